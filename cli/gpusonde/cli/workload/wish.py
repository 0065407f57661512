"""What the user wants of a graph: the inputs of the network, its name, and how far its code is trusted."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

_DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "bool")
_MOST_DIMENSIONS = 8


@dataclass(frozen=True)
class InputShape:
    """One input of a network.

    Attributes:
        extents: Of one sample, without the batch.
        dtype: Its numbers' type, as torch calls it.
    """

    extents: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class Wish:
    """How a graph is to be taken.

    Attributes:
        inputs: Of a factory's network; empty for one image of 3 x 224 x 224.
        batch_size: Samples to take it with; None for 1, or what the source has.
        name: What to call it; None for what the source calls it.
        sandbox: Run source code in a sandbox.
        weaker: Also in one that lacks what this system does not permit.
        trust: Run source code here.
    """

    inputs: Sequence[InputShape] = ()
    batch_size: int | None = None
    name: str | None = None
    sandbox: bool = False
    weaker: bool = False
    trust: bool = False


def input_shape(text: str) -> InputShape:
    """Argument type: extents separated by x or commas, after a type and a colon if it is not float32."""
    dtype, colon, extents = text.rpartition(":")
    if colon and dtype not in _DTYPES:
        raise argparse.ArgumentTypeError(f"{dtype!r} is no type; use {', '.join(_DTYPES)}")
    try:
        found = tuple(int(part) for part in extents.replace(",", "x").split("x"))
    except ValueError:
        found = ()
    if not 0 < len(found) <= _MOST_DIMENSIONS or min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape; write 3x224x224, or int64:128")
    return InputShape(found, dtype or _DTYPES[0])
