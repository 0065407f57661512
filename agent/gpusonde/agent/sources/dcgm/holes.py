"""``HoleFiller``: fetches what the engine measured between two looks, within a budget of requests."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpusonde.agent.sources.dcgm.fields_plan import Watches
from gpusonde.agent.sources.dcgm.gpu import PLAIN, PROFILING, DcgmGpu
from gpusonde.agent.sources.dcgm.tick_grid import IndexArray
from gpusonde.agent.sources.dcgm.values import EngineValue
from gpusonde.agent.sources.dcgm.watch import LatestValues
from gpusonde.errors import CallRefusedError

log = logging.getLogger(__name__)

# A step of the engine's stamps that is longer than this many intervals has a value in it that was not seen.
_HOLE_INTERVALS = 1.5
# Holes of single fields are fetched one by one, three requests each; from so many on their whole watch is cheaper.
_MAX_SINGLE_HOLES = 8
# Where the engine had measured nothing it is not asked for holes again at once.
_FIRST_FUTILE_S, _LONGEST_FUTILE_S = 1.0, 60.0
# Requests for history after late looks, per second and at most at once: a host that is late again and again must not
# pay for it twice.
_HISTORY_PER_S, _MOST_HISTORY = 15.0, 400.0
# Two readings apart by the same time, within this share, are apart by choice.
_SAME_PACE = 0.2


class ReaderRow(NamedTuple):
    """One entity in a reader, the GPU whose values it has, and where they belong in its ticks."""

    row: int
    gpu: DcgmGpu
    slots: IndexArray


class HoleFiller:
    """Asks for the history of fields whose newest value is more than one interval behind the one before.

    Hosts whose GPUs idle, and with the adaptive rate any, are looked at rarely by choice; their holes are left. So are
    those of an engine that does not keep its own pace, after it was asked in vain.

    Args:
        interval_s: Seconds between ticks.
        is_adaptive: Whether it is by choice that GPUs which work are looked at rarely.

    Attributes:
        step_s: From the look before the last one to that.
    """

    def __init__(self, interval_s: float, is_adaptive: bool) -> None:
        self._interval_s = interval_s
        self._is_adaptive = is_adaptive
        self._looked_s = -math.inf
        self.step_s = 0.0
        self._is_late = self._by_choice = False
        self._futile_s, self._futile_until_s = _FIRST_FUTILE_S, -math.inf
        self._left = _MOST_HISTORY

    def look(self, now_s: float) -> None:
        """Note a look at the engine."""
        step_s, before_s, self._looked_s = now_s - self._looked_s, self.step_s, now_s
        self._left = min(_MOST_HISTORY, self._left + _HISTORY_PER_S * step_s)
        self.step_s = step_s
        self._is_late = step_s > _HOLE_INTERVALS * self._interval_s
        self._by_choice = self._is_late and abs(step_s - before_s) < _SAME_PACE * step_s

    def is_in_time(self, step_s: float) -> bool:
        """Whether a look so long after the one before is an interval after it."""
        return abs(step_s - self._interval_s) <= _SAME_PACE * self._interval_s

    def misses(self, latest: LatestValues) -> bool:
        """Whether a look found a field without news, or with a value between that was not seen."""
        fast = latest.fast
        steps_us = (latest.times_us[:, fast] - latest.before_us[:, fast])[latest.counts]
        longest_us = _HOLE_INTERVALS * self._interval_s * 1e6
        return bool(steps_us.size) and not 0 < steps_us.min() <= steps_us.max() <= longest_us

    def fill(self, latest: LatestValues, rows_read: Sequence[ReaderRow], watches: Watches, now_s: float) -> None:
        """Give the GPUs what a look missed.

        Args:
            latest: What was read.
            rows_read: Its rows.
            watches: Where history is.
            now_s: The monotonic clock.

        Raises:
            EngineLostError: The engine is gone.
        """
        fast = latest.fast
        steps_us = latest.times_us[:, fast] - latest.before_us[:, fast]
        longest_us = _HOLE_INTERVALS * self._interval_s * 1e6
        if not steps_us.size or steps_us.max() <= longest_us:
            return
        holes = (steps_us > longest_us) & (latest.before_us[:, fast] > 0)
        if not holes.any():
            return
        if self._by_choice and (self._is_adaptive or not latest.shows_work):
            for _, gpu, _ in rows_read:
                gpu.skip()
            return
        if not self._is_late and now_s < self._futile_until_s:
            return
        # Where the looks are in time the engine is not, and what it measured is worth what it costs.
        if not self._by_choice and not self.is_in_time(self.step_s):
            size = int(holes.sum())
            cost = 3 * size if size <= _MAX_SINGLE_HOLES else holes.size + 4
            if cost > self._left:
                log.debug("%d values were measured between two looks; too many to fetch them now", size)
                return
            self._left -= cost
        rows = {entity: row for row, entity in enumerate(latest.entities)}
        places = {field: place for place, field in enumerate(latest.field_ids)}
        found = 0
        for value in _recorded(latest, holes, watches):
            row, place = rows.get(value.entity, -1), places[value.field_id]
            if row < 0 or not latest.before_us[row, place] < value.time_us < latest.times_us[row, place]:
                continue
            found += 1
            name = PLAIN if place < latest.profiling.start else PROFILING
            for its, gpu, slots in rows_read:
                if its == row:
                    gpu.take(name, int(slots[place]), value)
        if found:
            self._futile_s = _FIRST_FUTILE_S
        else:
            self._futile_until_s = now_s + self._futile_s
            self._futile_s = min(2 * self._futile_s, _LONGEST_FUTILE_S)


def _recorded(latest: LatestValues, holes: npt.NDArray[np.bool_], watches: Watches) -> list[EngineValue]:
    values: list[EngineValue] = []
    pairs = np.argwhere(holes).tolist()
    for those, part in ((watches.plain, latest.plain), (watches.profiling, latest.profiling)):
        wanted = [(row, place) for row, place in pairs if part.start <= place < part.stop]
        for watch in those if wanted else ():
            if latest.entities[0] not in watch.entities:
                continue
            try:
                if len(wanted) > _MAX_SINGLE_HOLES:
                    since_us = min(int(latest.before_us[row, place]) for row, place in wanted) + 1
                    values += watch.history(since_us)
                    continue
                for row, place in wanted:
                    if latest.field_ids[place] in watch.field_ids:
                        since_us = int(latest.before_us[row, place]) + 1
                        values += watch.history_of(latest.entities[row], latest.field_ids[place], since_us)
            except CallRefusedError as error:
                log.debug("%s", error)
    return values
