"""A question with bytes: JSON, and behind it messages or graphs as they came, so that none is copied into a text."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

_COUNT = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")


def pack(document: Mapping[str, Any], contents: Sequence[bytes]) -> bytes:
    """Join a document and contents.

    Raises:
        ValueError: The document holds what JSON does not.
    """
    parts = [json.dumps(document, allow_nan=False).encode(), *contents]
    lengths = b"".join(_LENGTH.pack(len(part)) for part in parts)
    return b"".join([_COUNT.pack(len(parts)), lengths, *parts])


def unpack(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return what was joined."""
    (count,) = _COUNT.unpack_from(data)
    at = _COUNT.size + count * _LENGTH.size
    parts = []
    for number in range(count):
        (length,) = _LENGTH.unpack_from(data, _COUNT.size + number * _LENGTH.size)
        parts.append(data[at : at + length])
        at += length
    return json.loads(parts[0]), parts[1:]
