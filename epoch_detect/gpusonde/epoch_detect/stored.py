"""What is stored of a run and read back: each value is what the class says that it goes into, or the state is refused.

A checksum tells that a file is as it was written, not that this release wrote it. What is taken must not make whoever
goes on with it fail, or work for ever.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Union

import numpy as np

from gpusonde.telemetry import FloatArray

# No figure of a run comes near: bytes per second, microseconds since 1970, variances of them.
_MOST = 1e36
_MOST_WHOLE = 1 << 53
# What reading raises where fields are of another kind, number or depth than expected.
_DAMAGED = (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError, ValueError)


class DamagedStateError(ValueError):
    """What is stored cannot be gone on with; the run's tracking begins anew."""


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Make one clear error of whatever reading raises.

    Args:
        what: What is read, for its first words.

    Raises:
        DamagedStateError: It cannot be read.
    """
    try:
        yield
    except DamagedStateError:
        raise
    except _DAMAGED as error:
        raise DamagedStateError(f"{what} ({error!r:.200}); start the run's tracking anew") from error


def read_as(kind: Any, value: Any) -> Any:
    """Return a value of JSON as what an annotation says: of a dataclass, of a list of them, a number, a text.

    A field that is missing has its default; a number that is none, as NaN, is one.

    Raises:
        ValueError: It is of another kind, or out of all proportion.
        KeyError: A field is unknown.
        TypeError: A field without a default is missing.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else read_as(next(each for each in inner if each is not type(None)), value)
    if origin in (list, tuple):
        if not isinstance(value, list):
            raise ValueError(f"{value!r:.80} is no list")
        if origin is list or inner[-1] is Ellipsis:
            return origin(read_as(inner[0], each) for each in value)
        return tuple(read_as(of, each) for of, each in zip(inner, value, strict=True))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return kind(**read_fields(kind, value))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    return _read_plain(kind, value)


def read_fields(kind: type[Any], values: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, each as its annotation says.

    Raises:
        ValueError: As for :func:`read_as`; ``KeyError`` of one that it does not have.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{values!r:.80} has no fields")  # noqa: TRY004 - one exception for what does not fit
    hints = typing.get_type_hints(kind)
    return {name: read_as(hints[name], value) for name, value in values.items()}


def read_array(value: Any, shape: tuple[int | None, ...]) -> FloatArray:
    """Return finite numbers of such a shape, where None is any length.

    Raises:
        ValueError: They are none, or of another shape.
    """
    found = np.asarray(value)
    if found.dtype.kind not in "fiu":
        found = np.array([read_as(float, each) for each in found.ravel().tolist()]).reshape(found.shape)
    fits = found.ndim == len(shape) and all(want in (None, size) for want, size in zip(shape, found.shape, strict=True))
    if not fits or not (np.abs(found) <= _MOST).all():
        raise ValueError(f"numbers of shape {found.shape}")
    return found.astype(np.float64)


def check(holds: bool, what: str) -> None:
    """Raise unless what is read fits together.

    Raises:
        ValueError: It does not.
    """
    if not holds:
        raise ValueError(what)


def _read_plain(kind: Any, value: Any) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # What former releases knew by yes or no is known by its likelihood now.
    if kind is float and isinstance(value, (int, float)) and (abs(value) <= _MOST or not math.isfinite(value)):
        return float(value)
    if kind is int and is_number and value == value // 1 and abs(value) <= _MOST_WHOLE:
        return int(value)
    if kind in (str, bool) and isinstance(value, kind):
        return value
    raise ValueError(f"{value!r:.80} is no {kind.__name__}")
