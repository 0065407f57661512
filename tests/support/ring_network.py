"""Networks whose truth is known."""

from __future__ import annotations

import numpy as np

from gpusonde.simulator.allreduce import AllreduceMeasurement

SIZES = tuple(4.0**power for power in range(1, 16))


def seconds(size: float, world: int, latency_s: float = 20e-6, bytes_per_second: float = 10e9) -> float:
    """A ring: a latency per step and a bandwidth."""
    return latency_s * 2 * (world - 1) + 2 * size * (world - 1) / world / bytes_per_second


def grid(fabric="ring", worlds=(2, 4, 8), sizes=SIZES, concurrent=(1,), factor=1.0, **more):
    """Measurements of that ring; transfers at a time share it."""
    return [
        AllreduceMeasurement(
            fabric, size, world, factor * seconds(size, world, bytes_per_second=10e9 / count), count, **more
        )
        for world in worlds
        for size in sizes
        for count in concurrent
    ]


def noisy(rows, spread, seed=0):
    """The same with a log-normal error on every duration."""
    random = np.random.default_rng(seed)
    factors = np.exp(spread * random.standard_normal(len(rows)))
    return [
        AllreduceMeasurement(
            one.fabric, one.transfer_bytes, one.world_size, one.seconds * factor, one.concurrent, location=one.location
        )
        for one, factor in zip(rows, factors, strict=True)
    ]
