"""Time stamps of trace files: ISO 8601, nvidia-smi's local time, Unix seconds to nanoseconds.

Everything becomes whole nanoseconds since 1970 first, so that differences are exact.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

NANOSECONDS = 1_000_000_000

_DATE_TIME = re.compile(
    r"(\d{4})[-/](\d{2})[-/](\d{2})[T ](\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,9})\d*)?[ ]?(Z|UTC|[+-]\d{2}:?\d{2})?",
    re.ASCII,
)
_NUMBER = re.compile(r"\d{1,19}(?:\.\d*)?", re.ASCII)
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
# 1e11 seconds is the year 5138, 1e11 milliseconds is 1973: each unit owns three decades of digits.
_UNIX_UNITS = ((10**11, NANOSECONDS), (10**14, 1_000_000), (10**17, 1_000), (1 << 63, 1))

TIME_ZONE_NOTE = "not stated in the file; read as UTC"


class TimestampError(ValueError):
    """A text that is no time stamp; the message says which forms are read."""


@dataclass
class TimestampParser:
    """Parses the time stamps of one file.

    Attributes:
        zoned: Whether any time stamp stated its zone or was Unix time. Where none did, clock readings are taken as UTC.
    """

    zoned: bool = False
    _days: dict[str, int] = field(default_factory=dict)

    def nanoseconds(self, text: str) -> int:
        """Return whole nanoseconds since 1970.

        Raises:
            TimestampError: The text is neither a date and time nor Unix time.
        """
        match = _DATE_TIME.fullmatch(text)
        if match is None:
            return self._unix(text)
        year, month, day, hour, minute, second, fraction, zone = match.groups()
        date = text[:10]
        days = self._days.get(date)
        if days is None:
            try:
                days = datetime.date(int(year), int(month), int(day)).toordinal() - _EPOCH_DAY
            except ValueError as error:
                raise TimestampError(f"{text!r} is no date: {error}") from None
            self._days[date] = days
        # 60 is a leap second.
        if int(hour) > 23 or int(minute) > 59 or int(second) > 60:
            raise TimestampError(f"{text!r} is no time of day")
        seconds = days * 86_400 + int(hour) * 3600 + int(minute) * 60 + int(second)
        if zone is not None:
            self.zoned = True
            if zone[0] in "+-":
                offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
                seconds += -offset if zone[0] == "+" else offset
        return _in_range(seconds * NANOSECONDS + (int(fraction.ljust(9, "0")) if fraction else 0), text)

    def _unix(self, text: str) -> int:
        if _NUMBER.fullmatch(text) is None:
            raise TimestampError(
                f"{text[:60]!r} is no time stamp; write ISO 8601 (2025-07-26T23:32:09.703Z) or Unix time (1753572729.7)"
            )
        self.zoned = True
        whole, _, fraction = text.partition(".")
        scale = unix_scale(int(whole))
        digits = len(str(scale)) - 1
        return _in_range(int(whole) * scale + int(fraction[:digits].ljust(digits, "0") or "0"), text)


def _in_range(nanoseconds: int, text: str) -> int:
    if not -(1 << 63) <= nanoseconds < 1 << 63:
        raise TimestampError(f"{text!r} lies outside of the years 1678 to 2262")
    return nanoseconds


def unix_scale(value: int) -> int:
    """Return how many nanoseconds one unit of a Unix time of this size stands for (s, ms, us or ns)."""
    return next((scale for limit, scale in _UNIX_UNITS if value < limit), 1)


def seconds_from(nanoseconds: npt.NDArray[np.int64], origin: int) -> npt.NDArray[np.float64]:
    """Return seconds after ``origin`` (nanoseconds since 1970), rounded once."""
    return np.asarray((nanoseconds - origin) / NANOSECONDS, dtype=np.float64)
