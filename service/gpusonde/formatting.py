"""Quantities as a reader sees them, in every command, answer and remark: rounded, with their unit."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime, timezone

ABSENT = "-"
# A time is told in seconds and in minutes up to here.
_SECONDS_BELOW_S, _MINUTES_BELOW_S = 120.0, 7200.0
# States of jobs are told by the second.
_TOLD_FROM_S = 1.0
# Digits of a number outside of these would say nothing.
_SMALLEST, _LARGEST = 1e-9, 1e15
# From here on a ratio is told as times.
_MOST_AS_PERCENT = 10.0
# So many can be counted at a glance.
_MOST_NAMES, _FEW_NAMES = 6, 5
# Tabs and line ends are text; marks that turn the direction of writing are not, nor is what no encoding has.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def number(value: float | None, digits: int = 3) -> str:
    """A number to so many significant digits, without an exponent up to 1e15; a dash for None and NaN."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if value == 0:
        return "0"
    if not _SMALLEST <= abs(value) < _LARGEST:
        return f"{value:.{digits}g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def seconds(value: float | None) -> str:
    """A duration in seconds."""
    text = number(value)
    return text if text == ABSENT else f"{text} s"


def interval(low: float, high: float) -> str:
    """Both ends of an interval."""
    return ABSENT if math.isnan(low) or math.isnan(high) else f"{number(low)} to {number(high)}"


def duration(value: float | None) -> str:
    """A time that may be minutes or weeks, such as that of a whole job."""
    if value is None or not math.isfinite(value) or value < _SECONDS_BELOW_S:
        return seconds(value)
    if value < _MINUTES_BELOW_S:
        return f"{number(value / 60)} min"
    return f"{number(value / 3600)} h"


def lasted(value: float, *, is_over: bool) -> str:
    """For how long something did that began when it is said to have; of what was not seen to end, at least so long.

    Such a time below a second says nothing: a run ends with its last activity, and there a silent hang begins.
    """
    if is_over:
        return f"for {duration(value)}"
    return "since then" if value < _TOLD_FROM_S else f"for {duration(value)} or longer"


def percent(ratio: float | None, digits: int | None = 0, sign: str = "") -> str:
    """A ratio as percent with so many decimals, with None as it was given; a ``sign`` of ``+`` shows both.

    Above 1,000 % it says ``more than 10 times``.
    """
    if ratio is None or not math.isfinite(ratio):
        return ABSENT
    if ratio > _MOST_AS_PERCENT:
        return "more than 10 times"
    return f"{100 * ratio:{sign}.6g} %" if digits is None else f"{100 * ratio:{sign}.{digits}f} %"


def probability(value: float) -> str:
    """A probability with two decimals, which never claims certainty."""
    if math.isnan(value):
        return ABSENT
    return ">0.99" if value > 0.99 else "<0.01" if value < 0.01 else f"{value:.2f}"


def gibibytes(value: float | None) -> str:
    """An amount of memory."""
    return ABSENT if value is None else f"{number(value / (1 << 30))} GiB"


def money(value: float | None) -> str:
    """A price below a heading that names its unit, to three significant digits but at least cents."""
    return f"{value:,.2f}" if value is not None and 1 <= value < _LARGEST else number(value)


def dollars(value: float | None) -> str:
    """The same in a sentence."""
    text = money(value)
    return text if text == ABSENT else f"${text}"


def yes_no(value: bool) -> str:
    """A truth value."""
    return "yes" if value else "no"


def count(amount: int, noun: str) -> str:
    """An amount of things: ``1 epoch``, ``12 epochs``."""
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def join_names(names: Sequence[str], noun: str) -> str:
    """Names of alike things in a sentence; of many also how many there are: ``12 GPUs (A, B, ...)``."""
    if len(names) > _MOST_NAMES:
        return f"{count(len(names), noun)} ({', '.join(names)})"
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def few_names(names: Sequence[str]) -> str:
    """Names of things of which an example is enough: ``a, b, c, d, e and 12 more``."""
    more = len(names) - _FEW_NAMES
    return ", ".join(names[:_FEW_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def printable(text: str) -> str:
    """Text from elsewhere, such as a name; what a terminal would obey is written out, an escape as four characters."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def iso_time(unix_nano: int) -> str:
    """A time as ISO 8601 in UTC, to the microsecond."""
    whole_seconds, nano = divmod(unix_nano, 10**9)
    moment = datetime.fromtimestamp(whole_seconds, tz=timezone.utc).replace(microsecond=nano // 1000)
    return moment.isoformat(timespec="microseconds")


def local_time(unix_nano: int) -> str:
    """A time as a clock on the wall shows it, with its zone."""
    return datetime.fromtimestamp(unix_nano / 1e9).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
