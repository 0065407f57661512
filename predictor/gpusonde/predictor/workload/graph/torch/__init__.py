"""A PyTorch module's graph, read without running the network on data and without its weights.

The only package here that imports torch (extra ``torch``). It runs the module's Python code: use it on the side of who
wrote that code, never in the collector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gpusonde.errors import GraphError, UnsupportedGraphError
from gpusonde.predictor.workload.graph.ir import WorkloadGraph
from gpusonde.predictor.workload.graph.torch import export, fx
from gpusonde.predictor.workload.graph.torch.export import build, example
from gpusonde.predictor.workload.graph.torch.fx import (
    count_parameters,
    find_tensors,
    move_to_device_of,
    read_mode,
    unwrap,
)

__all__ = ["build", "example", "from_torch"]

_MOST_NAMED = 5


def from_torch(
    module: nn.Module,
    example: Any,
    *,
    name: str | None = None,
    batch_size: int | None = None,
    keywords: Mapping[str, Any] | None = None,
) -> WorkloadGraph:
    """Read a module's graph: by symbolic tracing, and where that would miss anything by ``torch.export``.

    Nothing is computed and nothing is allocated, so a network of any size can be built on the meta device and read
    there: ``with torch.device("meta"): module = build()``. The graph is that of one forward pass in evaluation, which
    is also what training runs, dropout aside. If parts of the network run in training only (auxiliary heads), the graph
    is taken with them and says so in its notes.

    Args:
        module: The network. Its mode is put back afterwards.
        example: What it is called with: a tensor, or a tuple of its positional arguments. Values do not matter.
        name: Of the graph; the module's class if not given.
        batch_size: Samples in the example; if not given, the first extent of its first tensor.
        keywords: Arguments given by name.

    Raises:
        DataDependentGraphError: Which operations run depends on the values of the data.
        UnsupportedGraphError: No graph can be had for another reason; the text says what to do.
    """
    if not isinstance(module, nn.Module):
        raise UnsupportedGraphError(f"a torch.nn.Module is needed, not {type(module).__name__}")
    module = unwrap(module)
    if any(map(is_lazy, module.parameters())):
        raise UnsupportedGraphError("lazy layers have no shapes yet: call the network once, then read its graph")
    arguments = example if isinstance(example, tuple) else (example,)
    arguments, keywords = move_to_device_of(module, arguments), move_to_device_of(module, keywords or {})
    given = list(find_tensors((arguments, keywords)))
    if given and not any(each.numel() for each in given):
        raise UnsupportedGraphError("the tensors of the example are empty: give it at least one sample")
    if batch_size is None:
        batch_size = _find_first_extent(arguments, keywords)
    title = name or type(module).__name__
    counts = count_parameters(module)
    with read_mode(module):
        graph = _read(module, arguments, keywords, title, batch_size)
    unread = _find_unread(graph, counts)
    if not unread:
        return graph
    with read_mode(module, as_trained=True):
        try:
            trained = export.export(module, arguments, keywords, name=title, batch_size=batch_size)
        except GraphError:
            trained = graph
    still_unread = _find_unread(trained, counts)
    if len(still_unread) < len(unread):
        only_there = [each for each in unread if each not in still_unread]
        numbers = sum(counts[each] for each in only_there)
        note = f"taken as in training: {numbers} trainable numbers are used only there ({_list_names(only_there)})"
        graph, unread = _add_note(trained, note), still_unread
    if unread:
        numbers = sum(counts[each] for each in unread)
        graph = _add_note(graph, f"{numbers} trainable numbers of the network are never used ({_list_names(unread)})")
    return graph


def _read(
    module: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any], name: str, batch_size: int
) -> WorkloadGraph:
    try:
        return fx.trace(module, arguments, keywords, name=name, batch_size=batch_size)
    except UnsupportedGraphError:
        return export.export(module, arguments, keywords, name=name, batch_size=batch_size)


def _find_unread(graph: WorkloadGraph, counts: Mapping[str, int]) -> list[str]:
    """Return the trainable tensors that no operation has."""
    read = {parameter.name for operation in graph.operations for parameter in operation.parameters}
    return [name for name, count in counts.items() if count and name not in read]


def _add_note(graph: WorkloadGraph, note: str) -> WorkloadGraph:
    return replace(graph, notes=(*graph.notes, note))


def _list_names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} others" if more > 0 else "")


def _find_first_extent(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> int:
    for each in (*arguments, *keywords.values()):
        if isinstance(each, torch.Tensor) and each.dim() and each.shape[0]:
            return int(each.shape[0])
    raise UnsupportedGraphError("the example holds no tensor whose first extent is the batch: say batch_size")
