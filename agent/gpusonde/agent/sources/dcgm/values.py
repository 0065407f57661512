"""One value of the engine: a number in the catalogue's unit, or the reason why there is none."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

from gpusonde.agent.sources.dcgm.connection.entities import Entity
from gpusonde.agent.sources.dcgm.connection.errors import status_reason
from gpusonde.telemetry import BlankReason

# dcgm_fields.h: DCGM_FT_DOUBLE, DCGM_FT_INT64, DCGM_FT_TIMESTAMP
_DOUBLE, _INT64, _TIMESTAMP = ord("d"), ord("i"), ord("t")
# dcgm_structs.h: blank, not found, not supported, no permission are four consecutive numbers, the rest is reserved.
_INT32_BLANK = 0x7FFFFFF0
_INT64_BLANK = 0x7FFFFFFFFFFFFFF0
_DOUBLE_BLANK = 140737488355328.0
_BLANK_REASONS = (
    BlankReason.NO_DATA,
    BlankReason.NOT_FOUND,
    BlankReason.NOT_SUPPORTED,
    BlankReason.NO_PERMISSION,
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
    number: float | BlankReason


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


def read_number(value: Any) -> float | BlankReason:
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
    return BlankReason.READ_ERROR


def is_blank_int32(number: int) -> bool:
    """Whether a 32-bit attribute of a device is one of DCGM's sentinels."""
    return number >= _INT32_BLANK


def text_of(value: Any) -> str:
    """Return a text of the engine; version 3 of the bindings answers in bytes, and texts have a sentinel too."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return "" if text.startswith("<<<") else text


def _blank_reason(offset: float) -> BlankReason:
    return _BLANK_REASONS[int(offset)] if 0 <= offset < len(_BLANK_REASONS) else BlankReason.NO_DATA
