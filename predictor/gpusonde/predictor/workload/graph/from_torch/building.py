"""Networks from a user's factory, built without their weights, and inputs for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin

from gpusonde.predictor.workload.graph.errors import UnsupportedGraphError


def build(factory: Callable[[], object]) -> nn.Module:
    """Return a factory's network on the meta device: its shapes, no weights.

    Args:
        factory: Called without arguments. It may compute with tensors of its own, only parameters lose their values.

    Raises:
        UnsupportedGraphError: It returns something else, or fails; the cause is what it raised.
    """
    module = _built(factory)
    if not isinstance(module, nn.Module):
        raise UnsupportedGraphError(f"the factory returned {type(module).__name__}; it must return a torch.nn.Module")
    if any(isinstance(each, UninitializedTensorMixin) for each in (*module.parameters(), *module.buffers())):
        raise UnsupportedGraphError(
            "lazy layers have no shapes before the network has run: call it once on an example before returning it"
        )
    return module.to("meta")


def _built(factory: Callable[[], object]) -> object:
    """Whoever computes with tensors while building needs those, and whoever looks at weights needs weights."""
    first: Exception | None = None
    for without in (lambda: torch.device("meta"), parameters_on_meta, contextlib.nullcontext):
        try:
            with without():
                return factory()
        except Exception as error:
            first = first or error
    raise UnsupportedGraphError(f"building the network failed: {type(first).__name__}: {first}") from first


def example(inputs: Sequence[tuple[Sequence[int], str]], batch_size: int) -> tuple[torch.Tensor, ...]:
    """Return a batch of inputs without values.

    Args:
        inputs: Extents of one sample and type of numbers of each input, as in ``((3, 224, 224), "float32")``.
        batch_size: Samples.
    """
    return tuple(
        torch.empty((batch_size, *extents), dtype=getattr(torch, dtype), device="meta") for extents, dtype in inputs
    )


@contextlib.contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Parameters lose their storage as soon as they are registered; other tensors keep theirs."""
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None:
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = register_on_meta
    try:
        yield
    finally:
        nn.Module.register_parameter = register
