"""What a command prints under ``--json``, compared with its payload class, which ``docs/cli.md`` is written from."""

from __future__ import annotations

import dataclasses
import functools
import operator
import pydoc
from collections.abc import Iterator
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from gpusonde.cli.output import JsonKey
from gpusonde.documents import NOT_A_KEY


def mismatches(value: Any, kind: Any, path: str = "") -> list[str]:
    """Return in words where a value of JSON is not of a type; empty if it is."""
    return list(_mismatches(value, kind, path or "the object"))


def _mismatches(value: Any, kind: Any, path: str) -> Iterator[str]:
    if get_origin(kind) is Annotated:
        key, kind = kind.__metadata__[0], kind.__origin__
        if isinstance(key, JsonKey) and key.holds:
            kind = _replace_dict(kind, pydoc.locate(key.holds))
    if isinstance(kind, type) and issubclass(kind, Enum):
        kind = type(next(iter(kind)).value)
    if is_typeddict(kind) or dataclasses.is_dataclass(kind):
        hints = {
            name: hint
            for name, hint in get_type_hints(kind, include_extras=True).items()
            if NOT_A_KEY not in getattr(hint, "__metadata__", ())
        }
        if not isinstance(value, dict):
            yield f"{path} is {value!r}, no object"
            return
        if value.keys() != hints.keys():
            yield f"{path} has the keys {sorted(value.keys() ^ hints.keys())} too many or too few"
        for name in value.keys() & hints.keys():
            yield from _mismatches(value[name], hints[name], f"{path}.{name}")
    elif get_origin(kind) in (Union, UnionType):
        if all(_found := [list(_mismatches(value, choice, path)) for choice in get_args(kind)]):
            yield from _found[0]
    elif get_origin(kind) in (list, tuple):
        if not isinstance(value, list):
            yield f"{path} is {value!r}, no list"
            return
        for i, item in enumerate(value):
            yield from _mismatches(item, get_args(kind)[0], f"{path}[{i}]")
    elif kind is float:
        # NaN is printed as null.
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            yield f"{path} is {value!r}, no number"
    elif kind is not Any and type(value) is not kind:
        yield f"{path} is {value!r}, no {kind}"


def _replace_dict(kind: Any, held: Any) -> Any:
    """Return a type with the dataclass that is written as an object in the place of the object."""
    if get_origin(kind) is dict:
        return held
    if not get_args(kind):
        return kind
    choices = [_replace_dict(each, held) for each in get_args(kind)]
    return list[choices[0]] if get_origin(kind) is list else functools.reduce(operator.or_, choices)
