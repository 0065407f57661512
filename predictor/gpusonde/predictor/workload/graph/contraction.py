"""Einstein sums of two tensors as products of matrices."""

from __future__ import annotations

import math

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


def _spelled_out(term: str, rank: int) -> list[str]:
    """One name for each extent; those that "..." stands for are ".1", ".2", ... from the last."""
    before, dots, after = term.partition("...")
    hidden = max(rank - len(before) - len(after), 0) if dots else 0
    return [*before, *(f".{number}" for number in range(hidden, 0, -1)), *after]
