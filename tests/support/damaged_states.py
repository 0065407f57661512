"""Stored states with one value of them damaged, in every place and in every way that a value can be."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]

_GONE = object()
# Of another kind, of none, no number, and numbers that nothing of a run has.
_OTHERS = (_GONE, None, "x", True, -7, 0.5, math.nan, math.inf, -math.inf, 1e300, 10**30, [], {}, [[]], ["x"])


def damaged(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield copies of a JSON document, each with one value of it damaged, and where and how it is.

    Of lists the first element and the last are damaged, and their length is.
    """
    for path in _paths(value):
        name = ".".join(map(str, path))
        for other in _OTHERS:
            yield f"{name} = {'nothing' if other is _GONE else repr(other)}", _put(value, path, other)
        held = _at(value, path)
        if isinstance(held, list) and held:
            for how, changed in (("shorter", held[:-1]), ("longer", [*held, held[-1]]), ("nested", [held])):
                yield f"{name} {how}", _put(value, path, changed)


def _paths(value: Any) -> Iterator[tuple[Any, ...]]:
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list) and value:
        keys = sorted({0, len(value) - 1})
    for key in keys:
        yield (key,)
        for path in _paths(value[key]):
            yield (key, *path)


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _put(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    key, *further = path
    changed = copy.copy(value)
    if further:
        changed[key] = _put(value[key], tuple(further), other)
    elif other is _GONE:
        del changed[key]
    else:
        changed[key] = other
    return changed


def damaged_arrays(arrays: Mapping[str, Array]) -> Iterator[tuple[str, dict[str, Array]]]:
    """Yield named arrays, each time with one of them damaged, and which and how; ``meta`` stays as it is."""
    for name, held in arrays.items():
        if name == "meta":
            continue
        floats = held.astype(float)
        others = {
            "of text": np.full(held.shape, "x"),
            "nested": held[None],
            "a number": np.array(3),
            "empty": np.empty(0),
            "not a number": floats * np.nan,
            "huge": np.full(held.shape, 1e300),
            "large": np.full(held.shape, 1 << 62),
            "negative": -floats,
            "complex": held + 1j,
        }
        if held.ndim:
            others |= {"backwards": held[..., ::-1], "shorter": held[..., :-1]}
            others["longer"] = np.concatenate([held, held[..., -1:]], axis=-1)
        yield f"{name} = nothing", {key: each for key, each in arrays.items() if key != name}
        for how, changed in others.items():
            yield f"{name} {how}", {**arrays, name: changed}
