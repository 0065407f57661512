"""Checks of single fields of records and greetings."""

from __future__ import annotations

import math
import re
from collections.abc import Sized

from gpusonde.errors import WireError

# Identities end up in file names, logs and labels: no separators, no control characters.
_IDENTITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")
# Nanoseconds that an int64 holds with room for offsets: from 1970 to the year 2116.
_LAST_UNIX_NANO = 1 << 62


def check_identity(value: str, field: str) -> str:
    """Return ``value`` if it can name an agent, a spool or a device."""
    if not _IDENTITY.fullmatch(value):
        raise WireError(
            field,
            f"{value[:40]!r} is not an identity: 1 to 128 of A-Z a-z 0-9 . _ : @ - beginning with a letter or digit",
        )
    return value


def check_text(value: str, field: str, limit: int, *, required: bool = False) -> str:
    """Return ``value`` if it is printable text of at most ``limit`` characters."""
    if required and not value:
        raise WireError(field, "is empty")
    if len(value) > limit:
        raise WireError(field, f"has {len(value)} characters, at most {limit} are taken")
    if value and not value.isprintable():
        raise WireError(field, "holds unprintable characters")
    return value


def check_count(items: Sized, field: str, limit: int) -> None:
    """Raise if there are more than ``limit`` items."""
    if len(items) > limit:
        raise WireError(field, f"has {len(items)} entries, at most {limit} are taken")


def check_index(index: int, field: str, count: int, what: str) -> int:
    """Return ``index`` if it is one of ``count``."""
    if index >= count:
        raise WireError(field, f"index {index} is out of range: the inventory has {count} {what}")
    return index


def check_time(unix_nano: int, field: str) -> int:
    """Return ``unix_nano`` if it is a time from 1970 to 2116."""
    if not 0 < unix_nano < _LAST_UNIX_NANO:
        raise WireError(field, f"{unix_nano} is not a time in nanoseconds since 1970")
    return unix_nano


def check_finite(value: float, field: str) -> float:
    """Return ``value`` if it is a finite number."""
    if not math.isfinite(value):
        raise WireError(field, f"{value} is not a finite number")
    return value
