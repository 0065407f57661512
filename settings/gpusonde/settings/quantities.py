"""Durations and byte sizes as people write them in a configuration: with their unit.

A bare number is refused: ``interval = 3`` once meant 3 ms to one program and 3 s to its reader.
"""

from __future__ import annotations

import math
import re

_DURATION_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_UNITS_BYTES = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


class QuantityError(ValueError):
    """Text that is not a number with a known unit."""


def parse_duration_s(text: str) -> float:
    """Return the seconds meant by, for example, ``"100ms"``, ``"10s"``, ``"5m"`` or ``"1h"``.

    Raises:
        QuantityError: No unit, an unknown one, or not a number.
    """
    return _parse(text, _DURATION_UNITS_S, "a duration", '"100ms", "10s", "5m"')


def parse_size_bytes(text: str) -> int:
    """Return the bytes meant by, for example, ``"64MiB"`` or ``"1GB"``.

    Raises:
        QuantityError: No unit, an unknown one, or not a number.
    """
    return round(_parse(text, _SIZE_UNITS_BYTES, "a size", '"64MiB", "1GiB"'))


def format_duration(seconds: float) -> str:
    """Write a duration so that :func:`parse_duration_s` reads the same value back."""
    if seconds == 0:
        return "0s"
    for unit in ("d", "h", "m", "s", "ms"):
        count = seconds / _DURATION_UNITS_S[unit]
        if count >= 1 and abs(count - round(count)) < 1e-9 * count:
            return f"{round(count)}{unit}"
    return f"{seconds * 1e3:.6f}".rstrip("0").rstrip(".") + "ms"


def format_size(size_bytes: int) -> str:
    """Write a size so that :func:`parse_size_bytes` reads the same value back."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % _SIZE_UNITS_BYTES[unit] == 0:
            return f"{size_bytes // _SIZE_UNITS_BYTES[unit]}{unit}"
    return f"{size_bytes}B"


def _parse(text: str, units: dict[str, float] | dict[str, int], what: str, examples: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise QuantityError(f"{text!r} is not {what}; write a number and its unit, for example {examples}")
    number, unit = match.groups()
    if not unit:
        raise QuantityError(f"{text!r} has no unit; write for example {examples}")
    if unit not in units:
        raise QuantityError(f"{text!r} has the unknown unit {unit!r}; known are {', '.join(units)}")
    value = float(number) * units[unit]
    if not math.isfinite(value):
        raise QuantityError(f"{text!r} is too large to be {what}")
    return value
