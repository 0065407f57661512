"""What programs read of an error: its field out of its text, and ``google.rpc.Status`` in ``grpc-status-details-bin``.

The messages of ``google.rpc`` are written by hand: they are three, of texts only, and a package for them would be one
more that hosts need.
"""

from __future__ import annotations

import re

import grpc

DETAILS_KEY = "grpc-status-details-bin"
_DOMAIN = "gpusonde"
_TYPE = "type.googleapis.com/google.rpc."
_FIELD = re.compile(r"field '([^']{1,200})': ", re.ASCII)


def field_of(text: str) -> str:
    """Return the field that the text of an error names; empty where it names none."""
    found = _FIELD.match(text)
    return found[1] if found else ""


def status_details(code: grpc.StatusCode, text: str) -> bytes:
    """Return a ``google.rpc.Status`` with ``ErrorInfo`` and, where a field is named, ``BadRequest``."""
    details = [_any("ErrorInfo", _text(1, code.name) + _text(2, _DOMAIN))]
    if field := field_of(text):
        violation = _text(1, field) + _text(2, text.partition(": ")[2])
        details.append(_any("BadRequest", _bytes(1, violation)))
    number: int = code.value[0]
    return b"\x08" + _varint(number) + _text(2, text) + b"".join(_bytes(3, detail) for detail in details)


def _any(name: str, message: bytes) -> bytes:
    return _text(1, _TYPE + name) + _bytes(2, message)


def _text(number: int, text: str) -> bytes:
    return _bytes(number, text.encode("utf-8", "replace"))


def _bytes(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)
