"""Reads the wire format of protocol buffers field by field, so that nothing is built that was not counted first.

A generated parser builds every message of a file at once: an ONNX file of 64 MiB that consists of empty nodes becomes
gigabytes. It is native code, too. Here a message is a slice of the file, and its fields are visited in plain Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from mmap import mmap

from gpusonde.predictor.workload.graph.errors import GraphLimitError, MalformedGraphError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
_LONGEST_VARINT = 10
_SIGN = 1 << 63

Bytes = bytes | mmap
"""A file in memory, or mapped into it so that only what is looked at is loaded."""

Field = tuple[int, int, int, int]
"""Number, wire type, and: the value and 0 of a varint, begin and end of anything else."""


class WireReader:
    """Visits the fields of messages.

    Args:
        data: The whole file.
        most_fields: Fields to visit before giving up, over all messages.
    """

    def __init__(self, data: Bytes, most_fields: int) -> None:
        self.data = data
        self._left = self._most = most_fields

    def fields(self, begin: int, end: int) -> Iterator[Field]:
        """Yield the fields of the message between two offsets, in the file's order.

        Raises:
            MalformedGraphError: No message.
            GraphLimitError: Too many fields.
        """
        data = self.data
        at = begin
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise GraphLimitError(f"more than {self._most} fields in the messages")
            key = data[at]
            at += 1
            if key >= 0x80:
                key, at = self._varint(at - 1, end)
            number, kind = key >> 3, key & 7
            if number == 0:
                raise MalformedGraphError(f"no protocol buffer: field 0 at byte {at}")
            if kind == VARINT:
                value, at = self._varint(at, end)
                yield number, kind, value, 0
                continue
            if kind == BYTES:
                size, at = self._varint(at, end)
            elif kind in _FIXED_BYTES:
                size = _FIXED_BYTES[kind]
            else:
                raise MalformedGraphError(f"no protocol buffer: a field of kind {kind} at byte {at}")
            if size > end - at:
                raise MalformedGraphError(f"no protocol buffer: the field at byte {at} is cut off")
            yield number, kind, at, at + size
            at += size

    def text(self, begin: int, end: int) -> str:
        """Text of a field.

        Raises:
            MalformedGraphError: No UTF-8.
        """
        try:
            return self.data[begin:end].decode("utf-8")
        except UnicodeDecodeError:
            raise MalformedGraphError(f"no UTF-8 text at byte {begin}") from None

    def integers(self, field: Field) -> Iterator[int]:
        """Yield the signed integers of a field of a repeated one, packed or not.

        Raises:
            MalformedGraphError: No integers.
            GraphLimitError: Too many fields.
        """
        _, kind, at, end = field
        if kind == VARINT:
            yield signed(at)
            return
        if kind != BYTES:
            raise MalformedGraphError("no ONNX: integers are expected")
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise GraphLimitError(f"more than {self._most} fields in the messages")
            value, at = self._varint(at, end)
            yield signed(value)

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = 0
        for place in range(_LONGEST_VARINT):
            if at >= end:
                break
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF, at
        raise MalformedGraphError(f"no protocol buffer: a number at byte {at} does not end")


def signed(value: int) -> int:
    """A varint as int64."""
    return value - (_SIGN << 1) if value & _SIGN else value


def encoded_varint(value: int) -> bytes:
    """Write an unsigned integer."""
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def encoded_bytes(number: int, content: bytes) -> bytes:
    """Write a field that holds bytes, text or a message."""
    return encoded_varint(number << 3 | BYTES) + encoded_varint(len(content)) + content
