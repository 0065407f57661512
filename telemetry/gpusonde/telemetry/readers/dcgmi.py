"""Reader of ``dcgmi dmon`` logs."""

from __future__ import annotations

import re

# "ts" of moreutils may stand in front of each line, with an ISO 8601 or Unix time stamp.
_STAMP = r"(?:(?P<stamp>\d{4}-\d{2}-\d{2}[T ]\S+|\d{9,19}(?:\.\d+)?)\s+)?"
_HEADER = re.compile(_STAMP + r"#\s*Entity(?:Id)?\s+(?P<fields>\S.*)")
_ROW = re.compile(_STAMP + r"(?P<kind>GPU-CI|GPU-I|GPU|CI|Switch|Link|CPU)\s+(?P<id>\S+)\s+(?P<values>\S.*)")


def is_header(line: str) -> bool:
    """Whether this is the heading of ``dcgmi dmon``."""
    return _HEADER.fullmatch(line.strip()) is not None


def is_row(line: str) -> bool:
    """Whether this is a row of ``dcgmi dmon``."""
    return _ROW.fullmatch(line.strip()) is not None
