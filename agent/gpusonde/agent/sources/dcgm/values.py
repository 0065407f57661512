"""One value of the engine: a number in the catalogue's unit, or the reason why there is none."""

from __future__ import annotations

from typing import Any, NamedTuple

from gpusonde.agent.sources.dcgm.entities import Entity
from gpusonde.agent.sources.dcgm.errors import status_reason
from gpusonde.agent.sources.dcgm.fields import METRIC_OF_FIELD
from gpusonde.agent.sources.plausibility import plausible
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


def read_value(entity: Entity, value: Any) -> EngineValue:
    """Copy one ``c_dcgmFieldValue_v1``, whose memory ends with the callback."""
    return EngineValue(entity, int(value.fieldId), int(value.ts), _number(value))


def in_our_unit(field_id: int, number: float | BlankReason) -> float | BlankReason:
    """Convert to the unit of the field's metric; an impossible value becomes a reason."""
    if isinstance(number, BlankReason):
        return number
    metric = METRIC_OF_FIELD[field_id]
    return plausible(metric.name, number * metric.dcgm_scale)


def is_blank_int32(number: int) -> bool:
    """Whether a 32-bit attribute of a device is one of DCGM's sentinels."""
    return number >= _INT32_BLANK


def text_of(value: Any) -> str:
    """Return a text of the engine; version 3 of the bindings answers in bytes, and texts have a sentinel too."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return "" if text.startswith("<<<") else text


def _number(value: Any) -> float | BlankReason:
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


def _blank_reason(offset: float) -> BlankReason:
    return _BLANK_REASONS[int(offset)] if 0 <= offset < len(_BLANK_REASONS) else BlankReason.NO_DATA
