"""Between messages and documents.

A message's fields are named as the keys of the document are, so that one set of checks, with one set of names in its
errors, serves files and requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

_REPEATED_LABEL = 3


def to_document(message: Message) -> dict[str, Any]:
    """Return what is set in a message as a document; enumerations become lower-case texts."""
    document: dict[str, Any] = {}
    for field, value in message.ListFields():
        if _is_repeated(field):
            document[field.name] = [_plain(field, element) for element in value]
        else:
            document[field.name] = _plain(field, value)
    return document


def to_whole_document(message: Message) -> dict[str, Any]:
    """Return a message as a document with all keys: None for what is unset, an empty list for no elements."""
    document: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_repeated(field):
            document[field.name] = [_whole(field, element) for element in value]
        elif field.has_presence and not message.HasField(field.name):
            document[field.name] = None
        else:
            document[field.name] = _whole(field, value)
    return document


def fill(message: Message, document: Mapping[str, Any]) -> None:
    """Set a message's fields to what a document holds; keys without a field, and None, are left out.

    Raises:
        TypeError: A value is of another kind than its field.
        ValueError: A value is outside of its field's range.
    """
    fields = message.DESCRIPTOR.fields_by_name
    for key, value in document.items():
        field = fields.get(key)
        if field is None or value is None:
            continue
        if _is_repeated(field):
            _fill_list(getattr(message, key), field, value)
        elif field.message_type is not None:
            target = getattr(message, key)
            target.SetInParent()
            _fill_message(target, value)
        else:
            setattr(message, key, _wire(field, value))


def enum_text(message: Message, name: str) -> str | None:
    """Return the lower-case text of an enumeration's value; None for a value that a newer peer knows."""
    field: Any = message.DESCRIPTOR.fields_by_name[name]
    found = field.enum_type.values_by_number.get(getattr(message, name))
    return None if found is None else found.name.removeprefix(_prefix(field.enum_type)).lower()


def _fill_list(target: Any, field: Any, values: Sequence[Any]) -> None:
    if field.message_type is None:
        target.extend(_wire(field, value) for value in values)
        return
    for value in values:
        _fill_message(target.add(), value)


def _fill_message(target: Message, value: Any) -> None:
    if isinstance(target, Timestamp):
        target.FromNanoseconds(round(value * 1e9))
    else:
        fill(target, value)


def _plain(field: Any, value: Any) -> Any:
    if isinstance(value, Timestamp):
        return value.ToNanoseconds() / 1e9
    if field.message_type is not None:
        return to_document(value)
    if field.enum_type is not None:
        found = field.enum_type.values_by_number.get(value)
        # Enumerations are open: what a newer client says is for the document's check to refuse.
        return str(value) if found is None else found.name.removeprefix(_prefix(field.enum_type)).lower()
    return value


def _whole(field: Any, value: Any) -> Any:
    is_plain = field.message_type is None or isinstance(value, Timestamp)
    return _plain(field, value) if is_plain else to_whole_document(value)


def _wire(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values_by_name[f"{_prefix(field.enum_type)}{str(value).upper()}"].number
    if field.cpp_type in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64):
        return int(value)
    return value


def _prefix(enum: Any) -> str:
    """``OBJECTIVE_`` for ``Objective``."""
    words = "".join(f"_{letter}" if letter.isupper() else letter for letter in enum.name)
    return f"{words.lstrip('_').upper()}_"


def _is_repeated(field: Any) -> bool:
    # Newer runtimes warn of the label, older ones have nothing else.
    told = getattr(field, "is_repeated", None)
    return bool(field.label == _REPEATED_LABEL if told is None else told)
