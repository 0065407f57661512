"""Measured allreduces: what an ``AllreduceModel`` is made from."""

from __future__ import annotations

import math
from dataclasses import dataclass


class MeasurementError(ValueError):
    """A figure that no allreduce can have; the message says which."""


@dataclass(frozen=True)
class AllreduceMeasurement:
    """One timed allreduce.

    Attributes:
        fabric: Name of what connects the devices: cloud, zone, machine and network as far as they matter.
        transfer_bytes: Size of the buffer.
        world_size: Number of devices, 2 or more.
        seconds: Duration of one transfer while ``concurrent`` of them run.
        concurrent: Transfers in flight at the same time.
        weight: How much it counts; below 1 for stale ones.
    """

    fabric: str
    transfer_bytes: float
    world_size: int
    seconds: float
    concurrent: int = 1
    weight: float = 1.0

    def __post_init__(self) -> None:
        for name in ("transfer_bytes", "seconds", "weight"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise MeasurementError(f"{name} {value} must be finite and above zero")
        if self.world_size < 2 or self.concurrent < 1:
            raise MeasurementError("an allreduce has two devices or more, and one transfer or more")

    @property
    def bus_bytes_per_second(self) -> float:
        """Bus bandwidth of the transfer: ``2 size (world - 1) / (world seconds)`` (Srifty, section 4.2)."""
        return 2.0 * self.transfer_bytes * (self.world_size - 1) / (self.world_size * self.seconds)
