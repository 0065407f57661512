"""What both front ends ask of a module: its trainable tensors, the mode that it is read in, the shapes of values."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules import transformer

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
    ``nn.TransformerEncoder`` takes in evaluation, and never while it trains, is turned off. So is its look at the
    values of a mask, which only tells whether to call the mask a causal one: the work is the same.

    Args:
        module: The network.
        as_trained: Modules that hold others are put into training, so that they run what only runs there, such as
            auxiliary heads; the modules that they hold at the bottom stay in evaluation.
    """
    before = {each: each.training for each in module.modules()}
    fused = torch.backends.mha.get_fastpath_enabled()
    looks_at_mask = transformer._detect_is_causal_mask
    try:
        for each in before:
            each.training = as_trained and next(each.children(), None) is not None
        torch.backends.mha.set_fastpath_enabled(False)
        transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        transformer._detect_is_causal_mask = looks_at_mask
        for each, training in before.items():
            each.training = training


@contextlib.contextmanager
def kept_as_is(module: nn.Module) -> Iterator[None]:
    """Undo what a module's code assigns to it while it is traced.

    A network may replace a buffer or keep a tensor for the next call. What it would keep of a trace is no tensor, and
    whoever runs the network next would fail on it.

    Args:
        module: The network.
    """
    before = [(vars(each), dict(vars(each)), _collections_in(vars(each))) for each in module.modules()]
    try:
        yield
    finally:
        for attributes, values, collections in before:
            for name in attributes.keys() - values.keys():
                del attributes[name]
            attributes.update(values)
            for collection, content in collections:
                collection.clear()
                if isinstance(collection, list):
                    collection.extend(content)
                else:
                    collection.update(content)


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


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Tensors in tuples, lists and mappings.

    Args:
        value: What a network is given or returns; whatever else is in it is left out.
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors_in(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors_in(each)


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


def _collections_in(attributes: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """What can be put back into lists, sets and mappings that a module holds."""
    return [(each, each.copy()) for each in attributes.values() if type(each) in {dict, OrderedDict, list, set}]


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
