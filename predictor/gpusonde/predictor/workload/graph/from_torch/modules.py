"""What both front ends ask of a module: its trainable tensors, the mode that it is read in, the shapes of values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from gpusonde.predictor.workload.graph.errors import DataDependentControlFlowError
from gpusonde.predictor.workload.graph.ir import Shape


def unwrapped(module: nn.Module) -> nn.Module:
    """The network inside of what runs it in parallel or compiles it.

    Args:
        module: The network, possibly wrapped.
    """
    while True:
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = module.module
        elif isinstance(getattr(module, "_orig_mod", None), nn.Module):
            module = module._orig_mod
        else:
            return module


def parameter_names(module: nn.Module) -> dict[str, str]:
    """The first name of every trainable tensor, by each of its names.

    Args:
        module: The network; a tensor that it uses in several places has several names.
    """
    first: dict[int, str] = {}
    names = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names[name] = first.setdefault(id(parameter), name)
    return names


def parameter_counts(module: nn.Module) -> dict[str, int]:
    """Numbers in every trainable tensor, each once, by its first name.

    Args:
        module: The network.
    """
    return {name: parameter.numel() for name, parameter in module.named_parameters()}


@contextlib.contextmanager
def read_mode(module: nn.Module, *, as_trained: bool = False) -> Iterator[None]:
    """Put a module into evaluation while its graph is read, and back afterwards.

    Dropout and batch normalisation are then plain operators, and one sample is enough. The fused kernel that
    ``nn.TransformerEncoder`` takes in evaluation, and never while it trains, is turned off.

    Args:
        module: The network.
        as_trained: Modules that hold others are put into training, so that they run what only runs there, such as
            auxiliary heads; the modules that they hold at the bottom stay in evaluation.
    """
    before = {each: each.training for each in module.modules()}
    fused = torch.backends.mha.get_fastpath_enabled()
    try:
        for each in before:
            each.training = as_trained and next(each.children(), None) is not None
        torch.backends.mha.set_fastpath_enabled(False)
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for each, training in before.items():
            each.training = training


def shape_of(value: Any) -> Shape | None:
    """Extents of a tensor, or of the first of several; None of anything else.

    Args:
        value: What an operator returned when it was run on tensors without storage.

    Raises:
        DataDependentControlFlowError: An extent depends on the values of the data.
    """
    if isinstance(value, tuple | list):
        return next((shape for shape in map(shape_of, value) if shape is not None), None)
    if not isinstance(value, torch.Tensor):
        return None
    try:
        return tuple(map(_extent, value.shape))
    except _SymbolicExtentError as error:
        raise DataDependentControlFlowError(
            f"a tensor has shape {tuple(value.shape)}, which depends on the values of the data: there is no single"
            " graph. Replace operations such as nonzero, unique or boolean indexing, or hand in the part of the"
            " network without them."
        ) from error


def on_device_of(module: nn.Module, example: Any) -> Any:
    """The example's tensors, moved to the meta device if the module is there.

    Args:
        module: The network.
        example: Tensors in tuples, lists and mappings.
    """
    tensors = [*module.parameters(), *module.buffers()]
    if not any(each.is_meta for each in tensors):
        return example
    return _to_meta(example)


class _SymbolicExtentError(ValueError):
    pass


def _extent(extent: Any) -> int:
    if isinstance(extent, int):
        return extent
    raise _SymbolicExtentError(str(extent))


def _to_meta(example: Any) -> Any:
    if isinstance(example, torch.Tensor):
        return example.to("meta")
    if isinstance(example, tuple | list):
        return type(example)(map(_to_meta, example))
    if isinstance(example, Mapping):
        return {name: _to_meta(each) for name, each in example.items()}
    return example
