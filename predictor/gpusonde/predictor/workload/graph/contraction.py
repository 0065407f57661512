"""Einstein sums of two tensors as products of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpusonde.predictor.workload.graph.ir import Shape


def contraction_shapes(equation: str, left: Shape, right: Shape) -> tuple[Shape, Shape] | None:
    """Shapes of the two matrices, or stacks of them, whose product an Einstein sum is.

    Args:
        equation: As in ``torch.einsum``, such as "bhqd,bhkd->bhqk"; without an arrow, what occurs once is kept.
        left: Extents of the first tensor.
        right: Extents of the second.

    Returns:
        ((batch, m, k), (batch, k, n)), without ``batch`` if nothing is multiplied side by side; None if nothing is
        summed over that both have, or the equation is not one of these two tensors.
    """
    terms, _, result = equation.replace(" ", "").partition("->")
    both = terms.split(",")
    if len(both) != 2:
        return None
    extents: dict[str, int] = {}
    labels = []
    for term, shape in zip(both, (left, right), strict=True):
        names = _spelled_out(term, len(shape))
        if len(names) != len(shape):
            return None
        for name, extent in zip(names, shape, strict=True):
            extents[name] = max(extent, extents.get(name, 1))
        labels.append(dict.fromkeys(names))
    first, second = labels
    if "->" in equation:
        kept = {name for name in extents if (name in result if len(name) == 1 else "..." in result)}
    else:
        kept = {name for name in extents if len(name) > 1 or terms.count(name) == 1}
    shared = [name for name in first if name in second]
    summed = math.prod(extents[name] for name in shared if name not in kept)
    if all(name in kept for name in shared):
        return None
    batch = math.prod(extents[name] for name in shared if name in kept)
    rows = math.prod(extents[name] for name in first if name not in second)
    columns = math.prod(extents[name] for name in second if name not in first)
    if batch == 1:
        return (rows, summed), (summed, columns)
    return (batch, rows, summed), (batch, summed, columns)


def first_contraction(equation: str, shapes: Sequence[Shape]) -> tuple[str, Shape, str] | None:
    """Take the first two tensors of an Einstein sum of more.

    Args:
        equation: Without "...".
        shapes: Extents of its first two tensors.

    Returns:
        The equation of these two, the shape of what it makes, and the equation of that and of the other tensors; None
        if the equation is not one of these.
    """
    terms, arrow, result = equation.replace(" ", "").partition("->")
    tensors = terms.split(",")
    if "." in equation or len(tensors) < 3 or list(map(len, tensors[:2])) != list(map(len, shapes)):
        return None
    if not arrow:
        result = "".join(sorted(name for name in set(terms) - {","} if terms.count(name) == 1))
    extents: dict[str, int] = {}
    for name, extent in zip("".join(tensors[:2]), (extent for shape in shapes for extent in shape), strict=True):
        extents[name] = max(extent, extents.get(name, 1))
    wanted = set("".join(tensors[2:]) + result)
    kept = "".join(name for name in extents if name in wanted)
    first = f"{tensors[0]},{tensors[1]}->{kept}"
    return first, tuple(extents[name] for name in kept), f"{','.join([kept, *tensors[2:]])}->{result}"


def tensordot_equation(dims: Sequence[Sequence[int]], ranks: Sequence[int]) -> str:
    """Equation of a ``tensordot``, as of an Einstein sum.

    Args:
        dims: The dimensions that are summed over, of the first and of the second tensor, in the same order.
        ranks: Their numbers of dimensions.
    """
    left = [chr(ord("a") + number) for number in range(ranks[0])]
    right = [chr(ord("A") + number) for number in range(ranks[1])]
    for mine, other in zip(*dims, strict=True):
        right[other] = left[mine]
    kept = [name for name in (*left, *right) if (name in left) != (name in right)]
    return f"{''.join(left)},{''.join(right)}->{''.join(kept)}"


def _spelled_out(term: str, rank: int) -> list[str]:
    """One name for each extent; those that "..." stands for are ".1", ".2", ... from the last."""
    before, dots, after = term.partition("...")
    hidden = max(rank - len(before) - len(after), 0) if dots else 0
    return [*before, *(f".{number}" for number in range(hidden, 0, -1)), *after]
