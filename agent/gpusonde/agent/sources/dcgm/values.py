"""What DCGM's values are: numbers in its units, or one of its ways to say that there is none."""

from __future__ import annotations

import ctypes
import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpusonde.agent.sources.dcgm.bindings import Entity
from gpusonde.agent.sources.dcgm.connection import status_reason
from gpusonde.agent.sources.dcgm.fields import (
    INSTANT_POWER_FIELD,
    MEMORY_TEMPERATURE_FIELD,
    METRIC_OF_FIELD,
    PROFILING_METRICS,
)
from gpusonde.telemetry import FloatArray, MissingReason, Unit

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
    """Return how NumPy reads what a ``c_dcgmFieldValue_v2`` begins with: all but the rest of a text, in whole words."""
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
            "itemsize": -(-(theirs.value.offset + 8) // 8) * 8,
        }
    )


def decode_numbers(values: npt.NDArray[np.void]) -> FloatArray:
    """Return the numbers in an array of :func:`value_layout`, NaN where there is none."""
    is_double = values["type"] == _DOUBLE
    numbers = np.where(is_double, values["double"], values["integer"])
    numbers[(values["status"] != 0) | (numbers >= np.where(is_double, _DOUBLE_BLANK, _INT64_BLANK))] = np.nan
    return numbers


def number_words(
    types: npt.NDArray[np.int16], least: FloatArray, most: FloatArray
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the smallest and the largest word of 8 bytes that is a number of a field.

    Numbers from 0 on are in the order of their words, whole ones and others.

    Args:
        types: Types of values, the last axis are fields.
        least: The smallest number of each field, 0 or more.
        most: The largest; infinity for none.
    """
    is_double = types == _DOUBLE
    below = np.minimum(most, math.nextafter(_DOUBLE_BLANK, 0.0))
    whole = np.where(most < _INT64_BLANK, most, 0.0).astype(np.int64)
    low = np.where(is_double, least.view(np.int64), np.ceil(least).astype(np.int64))
    high = np.where(is_double, below.view(np.int64), np.where(most < _INT64_BLANK, whole, _INT64_BLANK - 1))
    return low, high


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
