"""A training job whose device sleeps: real autograd, real gradients, real exchange, computation of known duration.

Two cores cannot compute for four devices at a time; they can sleep for them. The layers have the proportions of a
ResNet-18, scaled to 1.2 million parameters: 4.7 MB of gradients.
"""

from __future__ import annotations

import random
import time
from typing import Any

import torch

from gpusonde.simulator.instrument.profile import TrainingJob

_PARAMETERS = (9, 37, 37, 37, 37, 74, 147, 8, 147, 147, 295, 590, 33, 590, 590, 1180, 2359, 131, 2359, 2359, 513)
_WORK = (6, 5, 5, 5, 5, 4, 5, 1, 5, 5, 4, 5, 1, 5, 5, 4, 5, 1, 5, 5, 1)
_SCALE = 100
_LAUNCH_S = 0.020  # of a forward pass of any size
_SAMPLE_S = 0.001


class _Layer(torch.autograd.Function):
    """Sleeps as long as its computation would take, and has a gradient for its parameters."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, parameters: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds, ctx.shape = seconds, parameters.shape
        time.sleep(seconds)
        return value + 0.0

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        time.sleep(2.0 * ctx.seconds)
        return gradient, torch.zeros(ctx.shape), None


class EmulatedNetwork(torch.nn.Module):
    """The network.

    Args:
        slowness: Factor of the duration of everything.
        noise: Relative standard deviation of a step.
        seed: Of the noise.
    """

    def __init__(self, slowness: float = 1.0, noise: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        self.layers = torch.nn.ParameterList([torch.zeros(count * _SCALE) for count in _PARAMETERS])
        self._slowness = slowness
        self._noise = noise
        self._random = random.Random(seed)

    def forward(self, batch_size: int) -> torch.Tensor:
        """Sleep through a batch."""
        factor = self._slowness * max(0.5, self._random.gauss(1.0, self._noise))
        forward_s = factor * (_LAUNCH_S + _SAMPLE_S * batch_size)
        value = torch.zeros(1)
        for parameters, work in zip(self.layers, _WORK, strict=True):
            value = _Layer.apply(value, parameters, forward_s * work / sum(_WORK))
        return value.sum()


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    """The job's optimizer."""
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def job(slowness: float, noise: float) -> TrainingJob:
    """The job on one device, for ``profile``."""
    # As the ranks: a device's gradients are not made by several cores of the host.
    torch.set_num_threads(1)
    model = EmulatedNetwork(slowness, noise)
    return TrainingJob(model, lambda size: size, lambda network, size: network(size), optimizer_of(model))
