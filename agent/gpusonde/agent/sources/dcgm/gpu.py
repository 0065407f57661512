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
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpusonde.agent.sources.base import GpuTicks, ZeroGuard
from gpusonde.agent.sources.dcgm.bindings import Entity
from gpusonde.agent.sources.dcgm.connection import status_reason
from gpusonde.agent.sources.dcgm.fields import (
    AVERAGE_POWER_FIELD,
    INSTANT_POWER_FIELD,
    MEMORY_TEMPERATURE_FIELD,
    METRIC_OF_FIELD,
    PROFILING_METRICS,
    SLOW_METRICS,
)
from gpusonde.telemetry import FloatArray, Metric, MissingReason, Unit

IndexArray = npt.NDArray[np.intp]

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
        activity: ``gpu_utilization`` and the largest profiling ratio, where they are known already.
    """

    time_us: int
    values: FloatArray
    blanks: dict[int, MissingReason]
    activity: tuple[float, float] | None = None


class _Bin:
    def __init__(self, values: FloatArray, activity: tuple[float, float] | None = None) -> None:
        self.values = values
        # Utilisation and activity of a tick that came whole, without any blank.
        self.activity = activity
        self.counts: dict[int, int] = {}
        self.blanks: dict[int, MissingReason] = {}
        self.watches: set[str] = set()


class TickGrid:
    """Collects the values of one GPU.

    A value goes to a slot: its column, or one of two behind the columns. :attr:`average_power` is used for the power
    where a tick has no instant one, so that no tick mixes the two; :attr:`unused` takes what has no column.

    Args:
        columns: Number of columns of a tick.
        expected: Columns that are measured every tick; a tick is finished when it has them all.
        interval_s: Seconds between ticks.
        settle_s: Seconds after which a tick is finished without them.
        power: The column of the power; None where there is none.
    """

    def __init__(
        self, columns: int, expected: Collection[int], interval_s: float, settle_s: float, power: int | None = None
    ) -> None:
        self.average_power, self.unused = columns, columns + 1
        self._columns = columns
        self._power = power
        self._expects_power = power in expected
        self._expected = np.array(sorted(set(expected) - {power}), dtype=np.intp)
        self._has_instant_power = False
        self._interval_us = interval_s * 1e6
        self._settle_us = settle_s * 1e6
        self._max_hole = max(2, round(_MAX_HOLE_S / interval_s))
        # What every tick begins with: the slow columns.
        self._held = np.full(columns + 2, np.nan)
        self._held_blanks: dict[int, MissingReason] = {}
        self._standing: dict[int, MissingReason] = {}
        self.reset()

    def reset(self) -> None:
        """Forget all times: the clock was set, or the engine is another one."""
        self._bins: dict[int, _Bin] = {}
        self._origins_us: dict[str, float] = {}
        self._base = ""
        self._next = 0
        self._skips: set[int] = set()
        self._last_bin: dict[str, int] = {}

    def hold(self, column: int, value: float | MissingReason) -> None:
        """Set a slow column: its value is repeated in every tick until the next one."""
        if isinstance(value, MissingReason):
            self._held[column] = np.nan
            self._held_blanks[column] = value
        else:
            self._held[column] = value
            self._held_blanks.pop(column, None)

    def stand(self, slot: int, reason: MissingReason) -> None:
        """Say why a slot has no value; stands until there is one."""
        self._standing[slot] = reason

    def skip(self) -> None:
        """Leave the ticks out between what is here and what comes: nobody looked at the engine meanwhile, by choice."""
        self._skips.add(max(self._bins, default=self._next - 1) + 1)

    def add(self, watch: str, slot: int, time_us: int, value: float | MissingReason) -> None:
        """Put a value into its tick. Several in one tick are averaged.

        Args:
            watch: Name of the watch it came with.
            slot: Where it belongs.
            time_us: When it was measured, Unix microseconds.
            value: In the catalogue's unit, or why there is none.
        """
        number = self._number(watch, time_us)
        if number < self._next:
            return
        self._put(self._bin(number), watch, slot, value)

    def add_row(
        self,
        watch: str,
        slots: IndexArray,
        times_us: list[int],
        values: FloatArray,
        reason_of: Callable[[int], MissingReason],
    ) -> None:
        """Put values that were measured together into their tick.

        Args:
            watch: Name of the watch they came with.
            slots: Shape (n,), where they belong.
            times_us: n times.
            values: Shape (n,), NaN where there is none.
            reason_of: Why the value of this place in the row is NaN.
        """
        first_us, last_us = min(times_us), max(times_us)
        number = self._number(watch, first_us)
        together = last_us - first_us < self._interval_us and number == self._nearest(watch, last_us)
        target = self._bins.get(number)
        if not together or (target is not None and watch in target.watches):
            for i, (slot, value) in enumerate(zip(slots.tolist(), values.tolist(), strict=True)):
                self.add(watch, slot, times_us[i], reason_of(i) if math.isnan(value) else value)
            return
        if number < self._next:
            return
        target = target or self._bin(number)
        target.watches.add(watch)
        target.activity = None
        target.values[slots] = values
        if self._standing:
            for slot in slots.tolist():
                self._standing.pop(slot, None)
        blank = np.isnan(values)
        if blank.any():
            for i in np.flatnonzero(blank).tolist():
                slot = int(slots[i])
                target.blanks[slot] = self._standing[slot] = reason_of(i)

    def add_whole(
        self,
        spans_us: Sequence[tuple[str, int, int]],
        slots: IndexArray,
        values: FloatArray,
        activity: tuple[float, float],
    ) -> bool:
        """Put all values of a tick into it at once; return whether they are one: nothing is done where they are not.

        Args:
            spans_us: For each watch its name, and when its first and its last value were measured.
            slots: Shape (n,), where the values belong.
            values: Shape (n,), all of them numbers.
            activity: Utilisation and largest profiling ratio.
        """
        number = None
        for watch, first_us, last_us in spans_us:
            nearest = self._number(watch, first_us)
            if last_us - first_us >= self._interval_us or self._nearest(watch, last_us) != nearest:
                return False
            if number is not None and nearest != number:
                return False
            number = nearest
        if number is None or number < self._next or number in self._bins:
            return False
        target = self._bins[number] = _Bin(self._held.copy(), activity)
        target.values[slots] = values
        target.watches.update(watch for watch, _, _ in spans_us)
        if self._standing:
            self._standing.clear()
        return True

    def take(self, now_us: int | None) -> list[Tick]:
        """Return the ticks that are finished at a time, oldest first; None for all, as they are.

        A tick without any value, between ticks that have some, is blank.
        """
        finished = []
        while self._bins:
            current = self._bins.get(self._next)
            if current is None:
                following = min(self._bins)
                if following - self._next > self._max_hole or self._next in self._skips:
                    self._skips.discard(self._next)
                    self._next = following
                    continue
            time_us = self._origins_us[self._base] + self._next * self._interval_us
            if now_us is not None and now_us < time_us + self._settle_us and not self._is_complete(current):
                break
            self._bins.pop(self._next, None)
            finished.append(self._tick(round(time_us), current or _Bin(self._held.copy())))
            self._next += 1
        return finished

    def _bin(self, number: int) -> _Bin:
        target = self._bins.get(number)
        if target is None:
            target = self._bins[number] = _Bin(self._held.copy())
        return target

    def _put(self, target: _Bin, watch: str, slot: int, value: float | MissingReason) -> None:
        target.watches.add(watch)
        target.activity = None
        if isinstance(value, MissingReason):
            self._standing[slot] = value
            target.blanks[slot] = value
            return
        if self._standing:
            self._standing.pop(slot, None)
        before = float(target.values[slot])
        if math.isnan(before):
            target.values[slot] = value
        else:
            count = target.counts[slot] = target.counts.get(slot, 1) + 1
            target.values[slot] = before + (value - before) / count

    def _is_complete(self, source: _Bin | None) -> bool:
        if source is None:
            return False
        if source.activity is not None:
            return True
        if self._expects_power:
            # While instant values come, the average alone does not make a tick.
            slot = self._power if self._has_instant_power else self.average_power
            if math.isnan(source.values[slot]) and slot not in source.blanks:
                return False
        lacking = self._expected[np.isnan(source.values[self._expected])]
        return not lacking.size or all(column in source.blanks for column in lacking.tolist())

    def _tick(self, time_us: int, source: _Bin) -> Tick:
        values = source.values
        if source.activity is not None:
            return Tick(time_us, values[: self._columns], dict(self._held_blanks), source.activity)
        if self._expects_power:
            self._has_instant_power = not math.isnan(values[self._power])
            if not self._has_instant_power:
                values[self._power] = values[self.average_power]
        values = values[: self._columns]
        blanks: dict[int, MissingReason] = {}
        for column in np.flatnonzero(np.isnan(values)).tolist():
            blanks[column] = (
                self._held_blanks.get(column)
                or source.blanks.get(column)
                or self._standing.get(column, MissingReason.NO_DATA)
            )
        return Tick(time_us, values, blanks)

    def _number(self, watch: str, time_us: int) -> int:
        """Return the number of the tick that a time belongs to, and let the watch's phase follow."""
        if self._origins_us and self._nearest(watch, time_us) < self._next - self._max_hole:
            # Long before what was delivered: the engine's clock was set back.
            self.reset()
        if not self._origins_us:
            self._base = watch
            self._origins_us[watch] = float(time_us)
        base_us = self._origins_us[self._base]
        origin_us = self._origins_us.get(watch)
        if origin_us is None or abs(origin_us - base_us) > _MAX_PHASE * self._interval_us:
            origin_us = time_us - round((time_us - base_us) / self._interval_us) * self._interval_us
            self._origins_us[watch] = origin_us
        number = self._nearest(watch, time_us)
        if self._last_bin.get(watch) != number:
            self._last_bin[watch] = number
            self._origins_us[watch] = origin_us + _FOLLOW * (time_us - origin_us - number * self._interval_us)
        return number

    def _nearest(self, watch: str, time_us: int) -> int:
        origin_us = self._origins_us.get(watch, self._origins_us[self._base])
        return round((time_us - origin_us) / self._interval_us)


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


# DCGM takes what NVML does not support inside its answer for a valid 0 (seen in 3.3.9, 4.4.2 and 4.6.0). No GPU draws
# 0 W, and none that measures the temperature of its memory has it at 0 degrees.
NEVER_ZERO = frozenset({INSTANT_POWER_FIELD, MEMORY_TEMPERATURE_FIELD})


@dataclass(frozen=True)
class FieldLimits:
    """What numbers of a field can be, in DCGM's unit.

    Attributes:
        scale: Factor to the catalogue's unit.
        least: The smallest possible one.
        most: The largest possible one.
        is_ratio: Whether it is a share of something.
    """

    scale: float
    least: float
    most: float
    is_ratio: bool


@functools.cache
def limits_of(field_id: int) -> FieldLimits:
    """Return the limits of a field with a metric."""
    known = METRIC_OF_FIELD[field_id]
    return FieldLimits(
        scale=known.dcgm_scale,
        # The smallest number above 0.
        least=math.nextafter(0.0, 1.0) if field_id in NEVER_ZERO else 0.0,
        most=math.inf if known.maximum is None else known.maximum / known.dcgm_scale,
        is_ratio=known.unit is Unit.RATIO and known in PROFILING_METRICS,
    )


def refusal_of(field_id: int, number: float) -> MissingReason:
    """Return why a number that a field cannot have is none."""
    if math.isnan(number):
        return MissingReason.NO_DATA
    return MissingReason.NOT_SUPPORTED if number == 0 and field_id in NEVER_ZERO else MissingReason.OUT_OF_RANGE


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


def value_layout(theirs: type[ctypes.Structure]) -> np.dtype[np.void]:
    """Return how NumPy reads an array of ``c_dcgmFieldValue_v2`` in place."""
    members = {
        "entity_group": ("entityGroupId", "u4"),
        "entity_id": ("entityId", "u4"),
        "type": ("fieldType", "i2"),
        "status": ("status", "i4"),
        "time_us": ("ts", "i8"),
        "integer": ("value", "i8"),
        "double": ("value", "f8"),
    }
    return np.dtype(
        {
            "names": list(members),
            "formats": [kind for _, kind in members.values()],
            "offsets": [getattr(theirs, name).offset for name, _ in members.values()],
            "itemsize": ctypes.sizeof(theirs),
        }
    )


def decode_numbers(values: npt.NDArray[np.void]) -> FloatArray:
    """Return the numbers in an array of :func:`value_layout`, NaN where there is none."""
    is_double = values["type"] == _DOUBLE
    numbers = np.where(is_double, values["double"], values["integer"])
    numbers[(values["status"] != 0) | (numbers >= np.where(is_double, _DOUBLE_BLANK, _INT64_BLANK))] = np.nan
    return numbers


def read_reason(value: np.void) -> MissingReason | None:
    """Return why one value of :func:`value_layout` is no number; None when it is one."""
    if value["status"] != 0:
        return status_reason(int(value["status"]))
    if value["type"] == _DOUBLE:
        number = float(value["double"])
        return _blank_reason(number - _DOUBLE_BLANK) if number >= _DOUBLE_BLANK else None
    integer = int(value["integer"])
    return _blank_reason(integer - _INT64_BLANK) if integer >= _INT64_BLANK else None


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
# The engine says "no value" in passing, for fields that it has; for so many measurements the one before is repeated.
_HELD_INTERVALS = 3.0
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
        first = self._pending.popleft()
        if not self._pending:
            return GpuTicks(
                self.index, np.array([first.time_us * 1000], dtype=np.int64), first.values[:, np.newaxis], first.blanks
            )
        chosen = [first]
        blanks = dict(first.blanks)
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

    def restart(self, now_s: float) -> None:
        """Forget the times of values: the clock was set, or the engine is another one."""
        self._grid.reset()
        self.zeros = ZeroGuard(now_s)

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
