"""``PaceWatch``: whether a job's cycles take longer than before, told a few cycles after they do.

What a look of the tracker has confirmed is followed from cycle to cycle by a :class:`CycleClock`, and judged by a
:class:`LevelPace`. Levels that cannot be followed say nothing.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence

import numpy as np

from gpusonde.epoch_detect.history import History
from gpusonde.epoch_detect.progress.cycle_clock import CycleClock
from gpusonde.epoch_detect.progress.level_pace import LevelPace, PaceChange, finite_or_none
from gpusonde.epoch_detect.result import Cycle, EpochDetection
from gpusonde.epoch_detect.stored import DamagedStateError, check, read_as, reading
from gpusonde.epoch_detect.ticks import choose_metrics, fastest_first
from gpusonde.telemetry import FloatArray

_MOST_METRICS = 3
_MOST_RECENT = 4096  # ticks from before a level is known
_COARSEST = 1 / 24  # of a period, ticks among which its cycles can still be told
_MOST_LEVELS = 4
_SHORTEST, _CLEAR = 5.0, 10.0  # ticks of a cycle that can be followed, that is followed gladly
_LIKELY_LEVEL, _STILL_LIKELY = 0.65, 0.5  # confidence from which on a level is likely, and below which it is so no more
_STATE_VERSION = 1


class PaceWatch:
    """Follows the cycles of a job; memory is bounded.

    Args:
        metrics: Names of the rows given to :meth:`update`.
    """

    def __init__(self, metrics: Sequence[str]) -> None:
        self.metrics = tuple(metrics)
        used = choose_metrics(self.metrics)
        best = [self.metrics.index(used[i]) for i in fastest_first(used)]
        # Power is slow and says the most of what the others do not.
        self._rows = sorted([*best[: _MOST_METRICS - 1], *best[-1:]]) if len(best) > _MOST_METRICS else best
        self._recent = History(tuple(self.metrics[i] for i in self._rows), _MOST_RECENT)
        self._last = np.full(len(self._rows), np.nan)
        self._last_s = -math.inf
        self._tick_s = math.nan
        self._paces: list[LevelPace] = []
        self._noted: EpochDetection | None = None

    def update(self, time_s: FloatArray, values: FloatArray) -> None:
        """Take ticks of the mean of the job's GPUs.

        Args:
            time_s: Shape (n,).
            values: Shape (metrics, n), NaN where there is no value.
        """
        good = time_s > np.maximum.accumulate(np.concatenate([[self._last_s], time_s]))[:-1]
        if not good.all():
            time_s, values = time_s[good], values[:, good]
        if not time_s.size or not self._rows:
            return
        rows = self._filled(values[self._rows])
        if time_s.size > 1:
            step_s = statistics.median((time_s[1:] - time_s[:-1]).tolist())  # a few: numpy's takes longer
            self._tick_s = step_s if math.isnan(self._tick_s) else self._tick_s + 0.1 * (step_s - self._tick_s)
        elif math.isfinite(self._last_s) and math.isnan(self._tick_s):
            self._tick_s = float(time_s[0]) - self._last_s
        self._last_s = float(time_s[-1])
        self._recent.append(np.round(time_s * 1e6).astype(np.int64), rows)
        for pace in self._paces:
            pace.update(time_s, rows)

    def note_detection(self, detection: EpochDetection) -> None:
        """Take what the tracker says of the job's cycles."""
        if detection is self._noted or math.isnan(self._tick_s):
            return
        self._noted = detection
        chosen = self._choose(detection)
        kept = [pace for pace in self._paces if pace.change or self._goes_on(pace, chosen)]
        for cycle in chosen:
            if not any(pace.is_of(cycle) for pace in kept):
                kept.append(self._begin(cycle))
        self._paces = kept[-_MOST_LEVELS:]
        for pace in self._paces:
            told = [cycle.confidence for cycle in detection.cycles if cycle.confirmed and pace.is_of(cycle)]
            if told:
                pace.is_sure &= max(told) >= _STILL_LIKELY

    @property
    def change(self) -> PaceChange | None:
        """By how much its cycles take longer than before; None if they do not."""
        told = [pace.change for pace in self._paces if pace.change is not None]
        return max(told, key=lambda change: change.after_s / change.before_s, default=None)

    @property
    def paces(self) -> tuple[LevelPace, ...]:
        """The levels that are followed."""
        return tuple(self._paces)

    def _choose(self, detection: EpochDetection) -> list[Cycle]:
        """The level that measures progress, the shortest that can be followed well, the shortest, and what may be one.

        Of cycles of few ticks, which cost most, that is the likeliest alone, however unlikely it is.
        """
        maybe = [c for c in detection.cycles if c.confirmed and c.period_s >= _SHORTEST * self._tick_s]
        told = [cycle for cycle in maybe if cycle.confidence >= _LIKELY_LEVEL]
        level = told if detection.level is None else [detection.cycles[detection.level]]
        clear = [cycle for cycle in told if cycle.period_s >= _CLEAR * self._tick_s]
        short = [cycle for cycle in maybe if cycle.period_s < _CLEAR * self._tick_s]
        likeliest = sorted(short, key=lambda cycle: -cycle.confidence)[:1]
        chosen = [*level[-1:], *clear[:1], *told[:1], *clear[1:], *likeliest, *maybe[len(short) :]][:_MOST_LEVELS]
        return [c for i, c in enumerate(chosen) if c.period_s >= _SHORTEST * self._tick_s and c not in chosen[:i]]

    def _goes_on(self, pace: LevelPace, chosen: Sequence[Cycle]) -> bool:
        """Whether a level is followed as it was; one of few ticks that has become likely begins anew, as it is now."""
        told = [cycle.confidence for cycle in chosen if pace.is_of(cycle)]
        is_vague = not pace.is_sure and pace.period_s < _CLEAR * self._tick_s
        return bool(told) and not (is_vague and max(told) >= _LIKELY_LEVEL)

    def _begin(self, cycle: Cycle) -> LevelPace:
        ticks = self._recent.ticks()
        step_s = float(np.median(np.diff(ticks.time_us[-64:]))) * 1e-6 if len(ticks) > 1 else self._tick_s
        fine = step_s <= max(1.5 * self._tick_s, _COARSEST * cycle.period_s)
        clock = CycleClock(cycle.period_s, max(step_s, self._tick_s) if fine else self._tick_s)
        pace = LevelPace(clock, is_sure=cycle.confidence >= _LIKELY_LEVEL)
        if fine:
            times = ticks.time_us.astype(np.float64) * 1e-6
            pace.update(times, ticks.values.astype(np.float64), cycle.starts_s)
        return pace

    def _filled(self, rows: FloatArray) -> FloatArray:
        """Rows with the last known value where there is none, 0 before the first."""
        known_all = math.isfinite(np.add.reduce(rows, axis=None))
        for i in () if known_all else np.flatnonzero(~np.isfinite(rows).all(axis=1)).tolist():
            known = np.flatnonzero(np.isfinite(rows[i]))
            before = float(np.nan_to_num(self._last[i]))
            place = np.searchsorted(known, np.arange(rows.shape[1]), side="right") - 1
            rows[i] = np.where(place >= 0, rows[i][known[np.maximum(place, 0)]] if known.size else before, before)
        self._last = rows[:, -1]
        return rows

    def state(self) -> bytes:
        """Serialise the watch as JSON, but for the ticks from before a level is known; some 50 kB at most."""
        paces = [pace.fields() for pace in self._paces]
        return json.dumps(
            {"version": _STATE_VERSION, "metrics": self.metrics, "tick_s": finite_or_none(self._tick_s),
             "paces": paces, "last_s": finite_or_none(self._last_s),
             "last": [finite_or_none(each) for each in self._last.tolist()]}
        ).encode()  # fmt: skip

    @classmethod
    def from_state(cls, data: bytes) -> PaceWatch:
        """Rebuild a watch from :meth:`state`.

        Raises:
            ValueError: The bytes are no such state, or one of another version.
        """
        with reading("no state of a pace"):
            told = json.loads(data)
            if told["version"] != _STATE_VERSION:
                raise DamagedStateError(
                    f"state of a pace of version {told['version']}; this release reads {_STATE_VERSION}"
                )
            watch = cls(read_as(list[str], told["metrics"]))
            tick_s, last_s = read_as(float | None, told["tick_s"]), read_as(float | None, told["last_s"])
            watch._tick_s = math.nan if tick_s is None else tick_s
            watch._last_s = -math.inf if last_s is None else last_s
            last = read_as(list[float | None], told["last"])
            check(len(last) == len(watch._rows), "latest values")
            watch._last = np.array(last, dtype=np.float64)
            watch._paces = [LevelPace.of_fields(fields, len(watch._rows)) for fields in told["paces"]]
        return watch
