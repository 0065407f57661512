"""``DcgmGpu``: one GPU as DCGM shows it: values in, ticks out, and whether it is still there."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from gpusonde.agent.sources.base import GpuTicks, ZeroGuard
from gpusonde.agent.sources.dcgm.fields import (
    AVERAGE_POWER_FIELD,
    INSTANT_POWER_FIELD,
    METRIC_OF_FIELD,
    PROFILING_METRICS,
    SLOW_METRICS,
)
from gpusonde.agent.sources.dcgm.raw_ticks import go_together, join_ticks
from gpusonde.agent.sources.dcgm.tick_grid import IndexArray, Tick, TickGrid
from gpusonde.agent.sources.dcgm.values import EngineValue, limits_of, refusal_of
from gpusonde.telemetry import FloatArray, Metric, MissingReason, Unit

# A value arrives some 0.3 s after it was measured (NVIDIA/DCGM issue 170); a tick waits that long for its columns.
_SETTLE_S = 0.5
_SETTLE_INTERVALS = 2.0
# No value of the plain metrics for so long, and the GPU is taken for lost.
_SILENCE_S = 5.0
_SILENCE_INTERVALS = 10.0
_MAX_PENDING = 600
# The engine says "no value" in passing, for fields that it has; for so many measurements the one before is repeated.
_HELD_INTERVALS = 3.0
# A metric without any number for so long since its GPU gave others is missing, until there is one.
_WITHOUT_S, _WITHOUT_INTERVALS = 30.0, 3.0
PLAIN, PROFILING = "plain", "profiling"


class DcgmGpu:
    """One sampled GPU.

    Args:
        key: Its name in the fleet: a GPU's or a MIG instance's UUID.
        index: Its index in the inventory.
        columns: The columns of a tick.
        missing: Metrics it cannot give, and why.
        interval_s: Seconds between ticks.
        slow_interval_s: Seconds between measurements of the slow metrics.
        now_s: The monotonic clock.
        is_part: It is a MIG instance.
    """

    def __init__(
        self,
        key: str,
        index: int,
        columns: Sequence[Metric],
        missing: dict[str, MissingReason],
        interval_s: float,
        slow_interval_s: float,
        now_s: float,
        is_part: bool = False,
    ) -> None:
        self.key = key
        self.index = index
        self.missing = missing
        self.lost = False
        self.xid_count = 0
        self.zeros = ZeroGuard(now_s)
        self.is_part = is_part
        self.capped_ratios = 0
        self.suspect_ticks = 0
        self._column = {m.name: i for i, m in enumerate(columns)}
        self._utilization = self._column.get("gpu_utilization")
        self._missing_columns = frozenset(self._column[name] for name in missing if name in self._column)
        self._hold_s = _HELD_INTERVALS * slow_interval_s
        self._held_until_s: dict[int, float] = {}
        self._without_s = max(_WITHOUT_S, _WITHOUT_INTERVALS * slow_interval_s)
        self._given: set[str] = set()
        self._blank_since: dict[str, tuple[float, MissingReason]] = {}
        self._silence_s = max(_SILENCE_S, _SILENCE_INTERVALS * interval_s)
        self._heard_s = now_s
        profiled = [m for m in PROFILING_METRICS if m.name in self._column and m.name not in missing]
        self._profiled = [self._column[m.name] for m in profiled]
        self._ratios = np.array([self._column[m.name] for m in profiled if m.unit is Unit.RATIO], dtype=np.intp)
        self._pending: deque[Tick] = deque(maxlen=_MAX_PENDING)
        self._grid = TickGrid(
            len(columns),
            self._every_tick(columns, missing),
            interval_s,
            max(_SETTLE_S, _SETTLE_INTERVALS * interval_s),
            self._column.get("power_watts"),
        )
        for name, reason in missing.items():
            if name in self._column:
                self._grid.hold(self._column[name], reason)
        if "xid_count" in self._column and "xid_count" not in missing:
            self._grid.hold(self._column["xid_count"], 0.0)

    def slots(self, field_ids: Sequence[int]) -> IndexArray:
        """Return where in a tick the values of fields belong."""
        slots = []
        for field in field_ids:
            slot = self._column.get(METRIC_OF_FIELD[field].name)
            if slot is None or slot in self._missing_columns:
                slot = self._grid.unused
            elif field == AVERAGE_POWER_FIELD and INSTANT_POWER_FIELD in field_ids:
                slot = self._grid.average_power
            slots.append(slot)
        return np.array(slots, dtype=np.intp)

    def take_whole(
        self, spans_us: Sequence[tuple[str, int, int]], slots: IndexArray, values: FloatArray,
        activity: tuple[float, float], now_s: float,
    ) -> bool:  # fmt: skip
        """Take all fast values of one tick; return whether they are one. See :meth:`TickGrid.add_whole`."""
        if self.lost:
            return True
        if not self._grid.add_whole(spans_us, slots, values, activity):
            return False
        self._heard_s = now_s
        return True

    def take_row(
        self,
        watch: str,
        slots: IndexArray,
        times_us: list[int],
        values: FloatArray,
        reason_of: Callable[[int], MissingReason],
        now_s: float,
    ) -> None:
        """Take new values of one watch; see :meth:`TickGrid.add_row`."""
        if self.lost:
            return
        self._grid.add_row(watch, slots, times_us, values, reason_of)
        if not np.isnan(values).all():
            self._heard_s = now_s

    def take(self, watch: str, slot: int, value: EngineValue) -> None:
        """Take one value of the past."""
        if self.lost or not value.time_us:
            return
        number, limits = value.number, limits_of(value.field_id)
        if not isinstance(number, MissingReason):
            if not limits.least <= number <= limits.most:
                number = refusal_of(value.field_id, number)
            elif self.is_part and limits.is_ratio and number > 1.0:
                number = 1.0
                self.capped_ratios += 1
            else:
                number *= limits.scale
        self._grid.add(watch, slot, value.time_us, number)

    def take_slow(
        self,
        slots: IndexArray,
        fresh: Sequence[bool],
        values: FloatArray,
        reason_of: Callable[[int], MissingReason],
        now_s: float,
    ) -> None:
        """Take the newest values of the slow metrics; one that is no number keeps the one before for a while."""
        for i, (slot, value) in enumerate(zip(slots.tolist(), values.tolist(), strict=True)):
            if slot == self._grid.unused or slot in self._missing_columns:
                continue
            if fresh[i] and not math.isnan(value):
                self._held_until_s[slot] = now_s + self._hold_s
                self._grid.hold(slot, value)
            elif now_s >= self._held_until_s.get(slot, -math.inf):
                self._grid.hold(slot, reason_of(i) if math.isnan(value) else MissingReason.NO_DATA)

    @property
    def held_until_s(self) -> float:
        """When the first of the slow values that are held is too old, monotonic clock."""
        return min(self._held_until_s.values(), default=math.inf)

    def stand(self, slot: int, reason: MissingReason) -> None:
        """Say why a value that was never measured is missing; see :meth:`TickGrid.stand`."""
        self._grid.stand(slot, reason)

    def skip(self) -> None:
        """Leave ticks out; see :meth:`TickGrid.skip`."""
        self._grid.skip()

    def count_xid(self) -> None:
        """Count one XID."""
        self.xid_count += 1
        if "xid_count" in self._column:
            self._grid.hold(self._column["xid_count"], float(self.xid_count))

    def has_given(self, metric: str) -> bool:
        """Whether there has been a number of a metric."""
        return metric in self._given

    def note_numbers(self, given: Collection[str], blank: Mapping[str, MissingReason], now_s: float) -> None:
        """Note which metrics have a number, and why others have none; asked now and then of a GPU that is there."""
        self._given.update(given)
        if self.lost or not given:
            return
        for name, reason in blank.items():
            since_s, _ = self._blank_since.get(name, (now_s, reason))
            self._blank_since[name] = since_s, reason

    def never_given(self, now_s: float) -> dict[str, MissingReason]:
        """Return the metrics that have had no number for so long that they count as missing, and why."""
        return {
            name: reason
            for name, (since_s, reason) in self._blank_since.items()
            if name not in self._given and now_s - since_s >= self._without_s
        }

    def is_silent(self, now_s: float) -> bool:
        """Whether there was no number for too long."""
        return now_s - self._heard_s >= self._silence_s

    def succeed(self, before: DcgmGpu) -> None:
        """Go on with the counts of the same GPU under other columns."""
        self.lost = before.lost
        self.xid_count, self.suspect_ticks = before.xid_count, before.suspect_ticks
        self.capped_ratios = before.capped_ratios
        self._given, self._blank_since = before._given, before._blank_since
        if "xid_count" in self._column and "xid_count" not in self.missing:
            self._grid.hold(self._column["xid_count"], float(self.xid_count))

    def collect(self, now_us: int | None, now_s: float) -> None:
        """Move ticks that are finished at a time, or (None) all, to the queue of :meth:`next_ticks`."""
        for tick in self._grid.take(now_us):
            self._distrust_zeros(tick, now_s)
            self._pending.append(tick)

    def next_ticks(self) -> GpuTicks | None:
        """Return the oldest ticks whose blanks have the same reasons."""
        if not self._pending:
            return None
        chosen, blanks = [self._pending.popleft()], dict[int, MissingReason]()
        blanks.update(chosen[0].blanks)
        while self._pending and go_together(blanks, self._pending[0].blanks):
            blanks.update(self._pending[0].blanks)
            chosen.append(self._pending.popleft())
        return join_ticks(self.index, chosen, blanks)

    def only_tick(self) -> Tick | None:
        """Return the tick that waits, if it is exactly one."""
        return self._pending.popleft() if len(self._pending) == 1 else None

    @property
    def pending(self) -> int:
        """How many ticks wait."""
        return len(self._pending)

    @property
    def has_pending(self) -> bool:
        """Whether :meth:`next_ticks` has more."""
        return bool(self._pending)

    @property
    def is_in_order(self) -> bool:
        """Whether it is there and all that came is whole ticks."""
        return not self.lost and not self._pending and self._grid.is_empty

    @property
    def next_us(self) -> tuple[str, dict[str, float]]:
        """See :attr:`TickGrid.next_us`."""
        return self._grid.next_us

    def go_on(self, ticks: int, next_us: Mapping[str, float], heard_s: float) -> None:
        """Go on behind ticks of which the newest came at a time, without doubt; see :meth:`TickGrid.go_on`."""
        self._heard_s = heard_s
        self.zeros.observe(0.0, 0.0, heard_s)
        self._grid.go_on(ticks, next_us)

    @property
    def held(self) -> tuple[FloatArray, Mapping[int, MissingReason]]:
        """See :attr:`TickGrid.held`."""
        return self._grid.held

    def restart(self, now_s: float) -> None:
        """Forget the times of values: the clock was set, or the engine is another one."""
        self._grid.reset()
        self.zeros = ZeroGuard(now_s)
        self._blank_since = {}

    def _every_tick(self, columns: Sequence[Metric], missing: Collection[str]) -> set[int]:
        held = {m.name for m in SLOW_METRICS} | {"xid_count"} | set(missing)
        return {i for i, m in enumerate(columns) if m.name not in held}

    def _distrust_zeros(self, tick: Tick, now_s: float) -> None:
        if not self._ratios.size or self._utilization is None:
            return
        utilization, activity = tick.activity or (
            float(tick.values[self._utilization]),
            float(np.fmax.reduce(tick.values[self._ratios])),
        )
        if self.zeros.observe(utilization, activity, now_s):
            self.suspect_ticks += 1
            tick.values[self._profiled] = np.nan
            tick.blanks.update(dict.fromkeys(self._profiled, MissingReason.NO_DATA))
