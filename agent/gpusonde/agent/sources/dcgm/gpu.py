"""One GPU as DCGM shows it: values in, ticks out, and whether it is still there.

The engine stamps every value when it was measured and delivers late. ``TickGrid`` makes ticks with all columns of such
values: it has the agent's interval and the engine's phase, which it follows as the engine's clock drifts, so that each
measurement falls into the middle of its own tick. Profiling values can come from another thread of the engine than the
rest: each watch has a phase of its own.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gpusonde.agent.sources.base import GpuTicks, ZeroGuard
from gpusonde.agent.sources.dcgm.bindings import Entity
from gpusonde.agent.sources.dcgm.connection import status_reason
from gpusonde.agent.sources.dcgm.fields import (
    AVERAGE_POWER_FIELD,
    INSTANT_POWER_FIELD,
    METRIC_OF_FIELD,
    PROFILING_METRICS,
    SLOW_METRICS,
    XID_FIELD,
)
from gpusonde.telemetry import FloatArray, Metric, MissingReason, Unit

# Share of the deviation of a value from its tick's middle that the phase takes over.
_FOLLOW = 0.1
# Watches apart by more than this are numbered anew, in intervals.
_MAX_PHASE = 0.75
# A longer hole is not filled with blank ticks; the GPU counts as lost meanwhile.
_MAX_HOLE_S = 5.0


@dataclass(frozen=True)
class Tick:
    """One finished tick.

    Attributes:
        time_us: Unix microseconds.
        values: Shape (columns,), NaN where there is no value.
        blanks: Column -> why its value is NaN.
    """

    time_us: int
    values: FloatArray
    blanks: dict[int, MissingReason]


@dataclass
class _Bin:
    means: dict[int, float] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    blanks: dict[int, MissingReason] = field(default_factory=dict)


class TickGrid:
    """Collects the values of one GPU.

    Args:
        columns: Number of columns of a tick.
        expected: Columns that are measured every tick; a tick is finished when it has them all.
        interval_s: Seconds between ticks.
        settle_s: Seconds after which a tick is finished without them.
    """

    def __init__(self, columns: int, expected: Collection[int], interval_s: float, settle_s: float) -> None:
        self._columns = columns
        self._expected = frozenset(expected)
        self._interval_us = interval_s * 1e6
        self._settle_us = settle_s * 1e6
        self._max_hole = max(2, round(_MAX_HOLE_S / interval_s))
        self._held: dict[int, float | MissingReason] = {}
        self._standing: dict[int, MissingReason] = {}
        self.reset()

    def reset(self) -> None:
        """Forget all times: the clock was set, or the engine is another one."""
        self._bins: dict[int, _Bin] = {}
        self._origins_us: dict[str, float] = {}
        self._base = ""
        self._next = 0
        self._last_bin: dict[str, int] = {}

    def hold(self, column: int, value: float | MissingReason) -> None:
        """Set a slow column: its value is repeated in every tick until the next one."""
        self._held[column] = value

    def add(self, watch: str, column: int, time_us: int, value: float | MissingReason) -> None:
        """Put a value of a fast column into its tick. Several in one tick are averaged.

        Args:
            watch: Name of the watch it came with.
            column: Its column.
            time_us: When it was measured, Unix microseconds; 0 for a reason that stands until there is a value.
            value: In the catalogue's unit, or why there is none.
        """
        if isinstance(value, MissingReason):
            self._standing[column] = value
        elif self._standing:
            self._standing.pop(column, None)
        if not time_us:
            return
        number = self._number(watch, time_us)
        if number < self._next:
            return
        target = self._bins.get(number)
        if target is None:
            target = self._bins[number] = _Bin()
        if isinstance(value, MissingReason):
            target.blanks[column] = value
        elif column not in target.means:
            target.means[column] = value
        else:
            count = target.counts[column] = target.counts.get(column, 1) + 1
            target.means[column] += (value - target.means[column]) / count

    def take(self, now_us: int | None) -> list[Tick]:
        """Return the ticks that are finished at a time, oldest first; None for all, as they are.

        A tick without any value, between ticks that have some, is blank.
        """
        finished = []
        while self._bins:
            current = self._bins.get(self._next)
            if current is None and min(self._bins) - self._next > self._max_hole:
                self._next = min(self._bins)
                continue
            time_us = self._origins_us[self._base] + self._next * self._interval_us
            complete = current is not None and self._expected <= (current.means.keys() | current.blanks.keys())
            if not complete and now_us is not None and now_us < time_us + self._settle_us:
                break
            finished.append(self._tick(round(time_us), self._bins.pop(self._next, _Bin())))
            self._next += 1
        return finished

    def _tick(self, time_us: int, source: _Bin) -> Tick:
        values = np.full(self._columns, np.nan)
        blanks: dict[int, MissingReason] = {}
        for column in range(self._columns):
            answer = self._held.get(column)
            if answer is None:
                answer = source.means.get(column)
            if answer is None:
                answer = source.blanks.get(column) or self._standing.get(column, MissingReason.NO_DATA)
            if isinstance(answer, MissingReason):
                blanks[column] = answer
            else:
                values[column] = answer
        return Tick(time_us, values, blanks)

    def _number(self, watch: str, time_us: int) -> int:
        """Return the number of the tick that a time belongs to, and let the watch's phase follow."""
        if not self._origins_us:
            self._base = watch
            self._origins_us[watch] = float(time_us)
        base_us = self._origins_us[self._base]
        origin_us = self._origins_us.get(watch)
        if origin_us is None or abs(origin_us - base_us) > _MAX_PHASE * self._interval_us:
            origin_us = time_us - round((time_us - base_us) / self._interval_us) * self._interval_us
        number = round((time_us - origin_us) / self._interval_us)
        if self._last_bin.get(watch) != number:
            self._last_bin[watch] = number
            origin_us += _FOLLOW * (time_us - origin_us - number * self._interval_us)
        self._origins_us[watch] = origin_us
        return number


# dcgm_fields.h: DCGM_FT_DOUBLE, DCGM_FT_INT64, DCGM_FT_TIMESTAMP
_DOUBLE, _INT64, _TIMESTAMP = ord("d"), ord("i"), ord("t")
# dcgm_structs.h: blank, not found, not supported, no permission are four consecutive numbers, the rest is reserved.
_INT32_BLANK = 0x7FFFFFF0
_INT64_BLANK = 0x7FFFFFFFFFFFFFF0
_DOUBLE_BLANK = 140737488355328.0
_BLANK_REASONS = (
    MissingReason.NO_DATA,
    MissingReason.NOT_FOUND,
    MissingReason.NOT_SUPPORTED,
    MissingReason.NO_PERMISSION,
)


class EngineValue(NamedTuple):
    """One value as the engine gave it, with our reading of it.

    Attributes:
        entity: What was measured.
        field_id: DCGM's number of the field.
        time_us: When it was measured, Unix microseconds; 0 when the engine holds no value.
        number: In DCGM's unit, or why there is none.
    """

    entity: Entity
    field_id: int
    time_us: int
    number: float | MissingReason


class _Number(ctypes.Union):
    _fields_ = (("i64", ctypes.c_int64), ("dbl", ctypes.c_double))


@functools.cache
def plain_layout(theirs: type[ctypes.Structure]) -> type[ctypes.Structure] | None:
    """Return a structure that reads a ``c_dcgmFieldValue_v1`` in place; None where that has another layout.

    The bindings' own structures convert on every access in Python, which at 10 Hz costs more than all the rest.
    """
    members = (
        ("version", ctypes.c_uint),
        ("fieldId", ctypes.c_ushort),
        ("fieldType", ctypes.c_short),
        ("status", ctypes.c_int),
        ("ts", ctypes.c_int64),
        ("value", _Number),
    )
    size = sum(ctypes.sizeof(kind) for _, kind in members) + 4
    rest = ctypes.sizeof(theirs) - size
    if rest < 0:
        return None
    ours = type("PlainFieldValue", (ctypes.Structure,), {"_fields_": (*members, ("rest", ctypes.c_byte * rest))})
    same = all(getattr(ours, name).offset == getattr(theirs, name).offset for name, _ in members)
    return ours if same and ctypes.sizeof(ours) == ctypes.sizeof(theirs) else None


def read_number(value: Any) -> float | MissingReason:
    """Return what a ``c_dcgmFieldValue_v1`` holds, in DCGM's unit, or why it holds nothing."""
    if value.status != 0:
        return status_reason(value.status)
    if value.fieldType == _DOUBLE:
        number = float(value.value.dbl)
        return number if number < _DOUBLE_BLANK else _blank_reason(number - _DOUBLE_BLANK)
    if value.fieldType in (_INT64, _TIMESTAMP):
        integer = int(value.value.i64)
        return float(integer) if integer < _INT64_BLANK else _blank_reason(integer - _INT64_BLANK)
    # Texts and blobs: no metric of ours is one.
    return MissingReason.READ_ERROR


def is_blank_int32(number: int) -> bool:
    """Whether a 32-bit attribute of a device is one of DCGM's sentinels."""
    return number >= _INT32_BLANK


def text_of(value: Any) -> str:
    """Return a text of the engine; version 3 of the bindings answers in bytes, and texts have a sentinel too."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return "" if text.startswith("<<<") else text


def _blank_reason(offset: float) -> MissingReason:
    return _BLANK_REASONS[int(offset)] if 0 <= offset < len(_BLANK_REASONS) else MissingReason.NO_DATA


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
        missing: dict[str, MissingReason],
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
        is_blank = isinstance(number, MissingReason)
        if not isinstance(number, MissingReason):
            number *= scale
            if self.is_part and 1.0 < number <= maximum and column in self._ratio_columns:
                # NVIDIA/DCGM issue 152: the engine relates some ratios of an instance to fewer SMs than it has.
                number = 1.0
                self.capped_ratios += 1
            elif not 0.0 <= number <= maximum:
                number, is_blank = MissingReason.NO_DATA if math.isnan(number) else MissingReason.OUT_OF_RANGE, True
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

    def _take_xid(self, number: float | MissingReason) -> int | None:
        if isinstance(number, MissingReason) or number <= 0:
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
            tick.blanks.update(dict.fromkeys(self._profiled, MissingReason.NO_DATA))
