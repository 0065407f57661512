"""Page sizes and page tokens of lists."""

from __future__ import annotations

import base64
import binascii
import json

from gpusonde.errors import RequestError


def page_size(asked: int, default: int, largest: int) -> int:
    """Return the number of rows of a page; more than the largest are the largest.

    Raises:
        RequestError: It is negative.
    """
    if asked < 0:
        raise RequestError(
            "INVALID_ARGUMENT", f"field 'page_size': {asked} is negative; leave it out, or up to {largest}"
        )
    return min(asked, largest) or default


def to_token(place: list[int | str]) -> str:
    """Return a token that says where the next page begins."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode()


def from_token(token: str, kinds: tuple[type, ...]) -> list[int | str] | None:
    """Return the place that a token says, or None for the first page.

    Raises:
        RequestError: It is not one of ours.
    """
    if not token:
        return None
    try:
        place = json.loads(base64.b64decode(token.encode(), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        place = None
    if not isinstance(place, list) or len(place) != len(kinds) or not all(map(_is_value, place, kinds)):
        raise RequestError("INVALID_ARGUMENT", "field 'page_token': is not one that this collector gave out")
    return place


def _is_value(value: object, kind: type) -> bool:
    """Return whether a database takes it: JSON knows larger numbers, and halves of characters."""
    if isinstance(value, bool) or not isinstance(value, kind):
        return False
    if isinstance(value, int):
        return abs(value) < 1 << 63
    return not any("\ud800" <= character <= "\udfff" for character in str(value))
