"""One GPU as DCGM shows it: values in, ticks out, and whether it is still there."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence

import numpy as np

from gpusonde.agent.sources.base import GpuTicks
from gpusonde.agent.sources.dcgm.fields import (
    AVERAGE_POWER_FIELD,
    INSTANT_POWER_FIELD,
    METRIC_OF_FIELD,
    PROFILING_METRICS,
    SLOW_METRICS,
    XID_FIELD,
)
from gpusonde.agent.sources.dcgm.ticks import Tick, TickGrid
from gpusonde.agent.sources.dcgm.values import EngineValue
from gpusonde.agent.sources.plausibility import ZeroGuard
from gpusonde.telemetry import BlankReason, Metric, Unit

# A value arrives some 0.3 s after it was measured (NVIDIA/DCGM issue 170); a tick waits that long for its columns.
_SETTLE_S = 0.5
_SETTLE_INTERVALS = 2.0
# No value of the plain metrics for so long, and the GPU is taken for lost.
_SILENCE_S = 5.0
_SILENCE_INTERVALS = 10.0
_MAX_PENDING = 600
_SLOW_FIELDS = frozenset(m.dcgm_field_id for m in SLOW_METRICS)


class DcgmGpu:
    """One sampled GPU.

    Args:
        key: Its name in the fleet: a GPU's or a MIG instance's UUID.
        index: Its index in the inventory.
        columns: The columns of a tick.
        missing: Metrics it cannot give, and why.
        interval_s: Seconds between ticks.
        now_s: The monotonic clock.
        is_part: It is a MIG instance.
    """

    def __init__(
        self,
        key: str,
        index: int,
        columns: Sequence[Metric],
        missing: dict[str, BlankReason],
        interval_s: float,
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
        self._target_of_field = {
            field: (self._column[m.name], m.dcgm_scale, math.inf if m.maximum is None else m.maximum)
            for field, m in METRIC_OF_FIELD.items()
            if m.name in self._column
        }
        # Once there was an instant value, the average is left out, so that the column never alternates.
        self._has_instant_power = False
        self._silence_s = max(_SILENCE_S, _SILENCE_INTERVALS * interval_s)
        self._heard_s = now_s
        profiled = [m for m in PROFILING_METRICS if m.name in self._column and m.name not in missing]
        self._profiled = [self._column[m.name] for m in profiled]
        self._ratio_columns = frozenset(self._column[m.name] for m in profiled if m.unit is Unit.RATIO)
        self._ratios = [self._column[m.name] for m in profiled if m.unit is Unit.RATIO]
        self._pending: deque[Tick] = deque(maxlen=_MAX_PENDING)
        self._grid = TickGrid(
            len(columns), self._every_tick(columns, missing), interval_s, max(_SETTLE_S, _SETTLE_INTERVALS * interval_s)
        )
        for name, reason in missing.items():
            if name in self._column:
                self._grid.hold(self._column[name], reason)
        if "xid_count" in self._column and "xid_count" not in missing:
            self._grid.hold(self._column["xid_count"], 0.0)

    def take(self, watch: str, value: EngineValue, now_s: float) -> int | None:
        """Take one value of the engine; return the XID when it is one."""
        if value.field_id == XID_FIELD:
            return self._take_xid(value.number)
        target = self._target_of_field.get(value.field_id)
        if target is None:
            return None
        column, scale, maximum = target
        number = value.number
        is_blank = isinstance(number, BlankReason)
        if not isinstance(number, BlankReason):
            number *= scale
            if self.is_part and 1.0 < number <= maximum and column in self._ratio_columns:
                # NVIDIA/DCGM issue 152: the engine relates some ratios of an instance to fewer SMs than it has.
                number = 1.0
                self.capped_ratios += 1
            elif not 0.0 <= number <= maximum:
                number, is_blank = BlankReason.NO_DATA if math.isnan(number) else BlankReason.OUT_OF_RANGE, True
        if value.field_id == INSTANT_POWER_FIELD and not self._has_instant_power:
            if is_blank:
                return None
            self._has_instant_power = True
        elif value.field_id == AVERAGE_POWER_FIELD and self._has_instant_power:
            return None
        if value.field_id in _SLOW_FIELDS:
            self._grid.hold(column, number)
        elif not self.lost:
            self._grid.add(watch, column, value.time_us, number)
            if value.time_us and not is_blank:
                self._heard_s = now_s
        return None

    def is_silent(self, now_s: float) -> bool:
        """Whether there was no number for too long."""
        return now_s - self._heard_s >= self._silence_s

    def succeed(self, before: DcgmGpu) -> None:
        """Go on with the counts of the same GPU under other columns."""
        self.lost = before.lost
        self.xid_count, self.suspect_ticks = before.xid_count, before.suspect_ticks
        self.capped_ratios = before.capped_ratios
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
        chosen = [self._pending.popleft()]
        blanks = dict(chosen[0].blanks)
        while self._pending and all(
            blanks.get(column, reason) is reason for column, reason in self._pending[0].blanks.items()
        ):
            blanks.update(self._pending[0].blanks)
            chosen.append(self._pending.popleft())
        times = np.array([tick.time_us * 1000 for tick in chosen], dtype=np.int64)
        return GpuTicks(self.index, times, np.stack([tick.values for tick in chosen], axis=1), blanks)

    @property
    def has_pending(self) -> bool:
        """Whether :meth:`next_ticks` has more."""
        return bool(self._pending)

    def restart(self) -> None:
        """Forget the times of values: the clock was set, or the engine is another one."""
        self._grid.reset()

    def _every_tick(self, columns: Sequence[Metric], missing: Collection[str]) -> set[int]:
        held = {m.name for m in SLOW_METRICS} | {"xid_count"} | set(missing)
        return {i for i, m in enumerate(columns) if m.name not in held}

    def _take_xid(self, number: float | BlankReason) -> int | None:
        if isinstance(number, BlankReason) or number <= 0:
            return None
        self.xid_count += 1
        if "xid_count" in self._column:
            self._grid.hold(self._column["xid_count"], float(self.xid_count))
        return int(number)

    def _distrust_zeros(self, tick: Tick, now_s: float) -> None:
        if not self._ratios or "gpu_utilization" not in self._column:
            return
        measured = tick.values[self._ratios]
        activity = float(np.nanmax(measured)) if not np.isnan(measured).all() else float("nan")
        if self.zeros.observe(float(tick.values[self._column["gpu_utilization"]]), activity, now_s):
            self.suspect_ticks += 1
            tick.values[self._profiled] = np.nan
            tick.blanks.update(dict.fromkeys(self._profiled, BlankReason.NO_DATA))
