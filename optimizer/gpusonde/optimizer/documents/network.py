"""``RatedNetwork``: what to assume of a network that nobody has measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpusonde.simulator.gradients import FloatArray
from gpusonde.simulator.iteration import BusBandwidth

# What allreduces of large buffers reach of a rated bandwidth over TCP: between a half and nine tenths of it are
# usual, and the spread covers that.
_REACHED_SHARE = 0.65
_LOG_SPREAD = 0.25
# Of one of the 2 (world - 1) steps of a ring.
_STEP_LATENCY_S = 30e-6


@dataclass(frozen=True)
class RatedNetwork:
    """A ring of devices whose machines are connected at a rated bandwidth.

    Attributes:
        bytes_per_second: Rated bandwidth of one machine.
    """

    bytes_per_second: float

    def bus_bandwidth(self, transfer_bytes: FloatArray, world_size: int) -> BusBandwidth:
        """Return what single transfers reach among ``world_size`` devices."""
        sizes = np.asarray(transfer_bytes, dtype=np.float64)
        per_byte = 1.0 / (_REACHED_SHARE * self.bytes_per_second) + world_size * _STEP_LATENCY_S / sizes
        return BusBandwidth(1.0 / per_byte, np.full(sizes.shape, _LOG_SPREAD))
