"""Between messages and documents: a message's fields are named as the keys of the document are.

So one schema, with one set of names in its errors, serves files and requests (``gpusonde.documents``). It is not
protobuf's own JSON mapping: that writes whole numbers of 64 bits as texts, enumerations in capitals with their type's
name and times as calendar dates, none of which a problem file does, and takes longer.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

_REPEATED_LABEL = 3
_WHOLE_TYPES = (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)


def to_document(message: Message, *, every_key: bool = False) -> dict[str, Any]:
    """Return a message as a document; enumerations become lower-case texts.

    Args:
        message: The message.
        every_key: Also hold what is unset: as None, or as an empty list.
    """
    held: Any = message.ListFields()
    document: dict[str, Any] = {}
    if every_key:
        held = [(field, getattr(message, field.name)) for field in message.DESCRIPTOR.fields]
    for field, value in held:
        if is_repeated(field):
            document[field.name] = [_to_plain(field, element, every_key) for element in value]
        elif every_key and field.has_presence and not message.HasField(field.name):
            document[field.name] = None
        else:
            document[field.name] = _to_plain(field, value, every_key)
    return document


def fill(message: Message, document: Mapping[str, Any]) -> None:
    """Set a message's fields to what a document holds; keys without a field, and None, are left out.

    Raises:
        TypeError: A value is of another kind than its field.
        ValueError: A value is outside of its field's range.
    """
    for key, value in document.items():
        field: Any = message.DESCRIPTOR.fields_by_name.get(key)
        if field is None or value is None:
            continue
        target = getattr(message, key)
        if field.message_type is None and is_repeated(field):
            target.extend(_to_wire(field, element) for element in value)
        elif field.message_type is None:
            setattr(message, key, _to_wire(field, value))
        elif is_repeated(field):
            for element in value:
                _fill_message(target.add(), element)
        else:
            target.SetInParent()
            _fill_message(target, value)


def enum_text(message: Message, name: str) -> str | None:
    """Return the lower-case text of an enumeration: empty where it is unset, None for what a newer peer knows."""
    field: Any = message.DESCRIPTOR.fields_by_name[name]
    number = getattr(message, name)
    return _enum_text(field.enum_type, number) if number else ""


def _to_plain(field: Any, value: Any, every_key: bool) -> Any:
    if isinstance(value, Timestamp):
        return value.ToNanoseconds() / 1e9
    if field.message_type is not None:
        return to_document(value, every_key=every_key)
    if field.enum_type is not None:
        # Enumerations are open: what a newer client says is for the document's check to refuse.
        return _enum_text(field.enum_type, value) or str(value)
    return value


def _to_wire(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values_by_name[f"{_prefix(field.enum_type)}{str(value).upper()}"].number
    return int(value) if field.cpp_type in _WHOLE_TYPES else value


def _fill_message(target: Message, value: Any) -> None:
    if isinstance(target, Timestamp):
        target.FromNanoseconds(round(value * 1e9))
    else:
        fill(target, value)


@functools.cache  # an enumeration is one of a few dozen; of its numbers a peer may send any, so not those
def _enum_texts(enum: Any) -> dict[int, str]:
    prefix = _prefix(enum)
    return {number: str(value.name).removeprefix(prefix).lower() for number, value in enum.values_by_number.items()}


def _enum_text(enum: Any, number: int) -> str | None:
    return _enum_texts(enum).get(number)


def _prefix(enum: Any) -> str:
    """Return what the names of an enumeration's values begin with: ``OBJECTIVE_`` for ``Objective``."""
    words = "".join(f"_{letter}" if letter.isupper() else letter for letter in enum.name)
    return f"{words.lstrip('_').upper()}_"


def is_repeated(field: Any) -> bool:
    """Return whether a field holds a list."""
    # Newer runtimes warn of the label, older ones have nothing else.
    told = getattr(field, "is_repeated", None)
    return bool(field.label == _REPEATED_LABEL if told is None else told)
