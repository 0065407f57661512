"""How many parts a message may have, counted before it is decoded.

Two bytes on the wire become a message of a hundred in memory, and a Python object when somebody looks at it: a request
of a few megabytes could hold the event loop for seconds and take a gigabyte. So parts are counted in the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

MOST_ELEMENTS = 100_000
"""Messages and texts in one request, at any depth; the largest problem that is answered has some 80,000."""
# Less than this cannot hold enough of them to matter, and records are hardly ever larger.
_SMALL_BYTES = 1 << 16

# Number of a field -> the fields of its messages; None for texts and bytes. Fields of numbers are left out.
_Fields: TypeAlias = "Mapping[int, _Fields | None]"


class TooManyElementsError(DecodeError):
    """A message has more parts than anybody needs."""


def bounded(decode: Callable[[bytes], Any], descriptor: Descriptor) -> Callable[[bytes], Any]:
    """Return what decodes messages of a type, but for those with too many parts.

    Args:
        decode: Decodes them.
        descriptor: Their type.
    """
    fields = _fields_of(descriptor, {})

    def decode_bounded(data: bytes) -> Any:
        if len(data) > _SMALL_BYTES:
            check_elements(data, fields)
        return decode(data)

    return decode_bounded


def check_elements(data: bytes, fields: _Fields, most: int = MOST_ELEMENTS) -> None:
    """Count the messages and texts in a message.

    Args:
        data: The message. What is wrong with it otherwise is left to its decoder.
        fields: Its fields.
        most: The largest number.

    Raises:
        TooManyElementsError: There are more.
        DecodeError: It holds a group, in which the rest of the message could hide.
    """
    left = most
    rest = [(0, len(data), fields)]
    try:
        while rest:
            at, end, known = rest.pop()
            while at < end:
                tag = data[at]
                at += 1
                if tag > 127:
                    tag, at = _varint(data, at - 1)
                kind = tag & 7
                if kind == 2:
                    length = data[at]
                    at += 1
                    if length > 127:
                        length, at = _varint(data, at - 1)
                    number = tag >> 3
                    if number in known:
                        left -= 1
                        if left < 0:
                            raise TooManyElementsError(f"more than {most} messages and texts in one message")
                        if (inner := known[number]) is not None:
                            rest.append((at, min(at + length, end), inner))
                    at += length
                elif kind == 0:
                    while data[at] > 127:
                        at += 1
                    at += 1
                elif kind == 1:
                    at += 8
                elif kind == 5:
                    at += 4
                else:
                    raise DecodeError("a field is of no kind that is used here")
    except IndexError:  # it is cut off
        return


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128 or shift > 63:
            return value, at
        shift += 7


def _fields_of(descriptor: Descriptor, known: dict[str, dict[int, _Fields | None]]) -> _Fields:
    """Return the fields of a type; types that hold themselves are fine."""
    if descriptor.full_name in known:
        return known[descriptor.full_name]
    fields = known[descriptor.full_name] = {}
    for field in descriptor.fields:
        if field.message_type is not None:
            fields[field.number] = _fields_of(field.message_type, known)
        elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            fields[field.number] = None
    return fields
