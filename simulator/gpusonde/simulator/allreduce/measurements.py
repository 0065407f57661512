"""``AllreduceMeasurement``: what an ``AllreduceModel`` is made from, and the schema of its document.

``LinkTopology`` says which rings a machine's direct links allow: why five devices may exchange slower than four.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from gpusonde.documents import Number, Text, Whole
from gpusonde.errors import ProblemError
from gpusonde.simulator.gradients import LARGEST_WORLD


@dataclass(frozen=True)
class LinkTopology:
    """Direct links between the devices of one machine, as ``nvidia-smi topo -m`` shows them.

    Attributes:
        links: Pair of devices, the smaller number first -> number of links between them.
    """

    links: Mapping[tuple[int, int], int]

    def __post_init__(self) -> None:
        for (one, other), count in self.links.items():
            if not 0 <= one < other or count < 1:
                raise ValueError(f"links of ({one}, {other}): give the smaller device first and a count of 1 or more")

    @property
    def devices(self) -> int:
        """Number of devices."""
        return 1 + max((other for _, other in self.links), default=-1)

    def rings(self, world_size: int) -> int:
        """Return how many rings the first ``world_size`` devices can form at most, at least 1.

        Every ring enters and leaves a device over one link each. A link carries both directions, so two devices form
        as many rings as they have links, and more devices twice as many as half of the links of the poorest of them.

        Raises:
            ValueError: Fewer than two devices, or more than there are.
        """
        if not 2 <= world_size <= self.devices:
            raise ValueError(f"a world of this machine has 2 to {self.devices} devices, not {world_size}")
        degrees = [0] * world_size
        for (one, other), count in self.links.items():
            if other < world_size:
                degrees[one] += count
                degrees[other] += count
        rings = degrees[0] if world_size == 2 else 2 * (min(degrees) // 2)
        # Without a ring of direct links the devices still exchange, over the host.
        return max(1, rings)


# DGX-1 and p3.16xlarge: eight V100 with six NVLinks each (NVIDIA's DGX-1 white paper, "hybrid cube mesh").
HYBRID_CUBE_MESH = LinkTopology(
    {
        (0, 1): 1,
        (0, 2): 1,
        (0, 3): 2,
        (0, 4): 2,
        (1, 2): 2,
        (1, 3): 1,
        (1, 5): 2,
        (2, 3): 2,
        (2, 6): 1,
        (3, 7): 1,
        (4, 5): 1,
        (4, 6): 1,
        (4, 7): 2,
        (5, 6): 2,
        (5, 7): 1,
        (6, 7): 2,
    }
)

# Machines whose devices do not all see each other alike, by name.
KNOWN_TOPOLOGIES: Mapping[str, LinkTopology] = {"hybrid-cube-mesh": HYBRID_CUBE_MESH}

_MOST_CONCURRENT = 10_000
_LONGEST_NAME = 200
_Name = Annotated[str, Text(longest=_LONGEST_NAME)]
_Amount = Annotated[float, Number(most=1e18)]


@dataclass(frozen=True)
class AllreduceMeasurement:
    """One timed allreduce, or the median of several.

    Attributes:
        fabric: Name of what connects the devices: machine and network as far as they matter.
        transfer_bytes: Size of the buffer.
        world_size: Number of devices, 2 or more.
        seconds: Duration of one transfer while ``concurrent`` of them run.
        concurrent: Transfers in flight at the same time.
        weight: How much it counts; below 1 for less trusted ones. Age is counted apart, by ``measured_at_s``.
        location: Cloud, region and zone; empty when it does not matter.
        device: GPU; empty when the fabric's name says it.
        devices_per_machine: Devices of one machine, 0 when unknown: worlds above it cross the network.
        repeats: Transfers that ``seconds`` is the median of.
        log_spread: Standard deviation of the logarithm of a repeat's duration; None when it was not repeated.
        measured_at_s: When, Unix time in seconds; None when unknown, which counts as recent.

    Raises:
        ProblemError: A figure is out of range.
    """

    fabric: _Name
    transfer_bytes: _Amount
    world_size: Annotated[int, Whole(least=2, most=LARGEST_WORLD)]
    seconds: _Amount
    concurrent: Annotated[int, Whole(most=_MOST_CONCURRENT)] = 1
    weight: _Amount = 1.0
    location: _Name = ""
    device: _Name = ""
    devices_per_machine: Annotated[int, Whole(least=0, most=LARGEST_WORLD)] = 0
    repeats: Annotated[int, Whole()] = 1
    log_spread: Annotated[float, Number(least=0.0, most=99.0)] | None = None
    measured_at_s: Annotated[float, Number(above=None)] | None = None

    def __post_init__(self) -> None:
        for name in ("transfer_bytes", "seconds", "weight"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 < value < 1e18):
                raise ProblemError(f"{name} {value} must be finite and above zero")
        if not 2 <= self.world_size <= LARGEST_WORLD or not 1 <= self.concurrent <= _MOST_CONCURRENT:
            raise ProblemError("an allreduce has two devices or more, and one transfer or more")
        if self.devices_per_machine < 0 or self.repeats < 1:
            raise ProblemError("devices_per_machine must not be negative, repeats must be 1 or more")
        if self.log_spread is not None and not 0 <= self.log_spread < 100:
            raise ProblemError(f"log_spread {self.log_spread} must lie between 0 and 100")
        if self.measured_at_s is not None and not math.isfinite(self.measured_at_s):
            raise ProblemError(f"measured_at_s {self.measured_at_s} must be finite")
        for name in ("fabric", "location", "device"):
            value = getattr(self, name)
            if len(value) > _LONGEST_NAME or not value.isprintable():
                raise ProblemError(f"{name} must have at most {_LONGEST_NAME} printable characters")
        if not self.fabric:
            raise ProblemError("fabric must not be empty")

    @property
    def bus_bytes_per_second(self) -> float:
        """Bus bandwidth of the transfer: ``2 size (world - 1) / (world seconds)`` (Srifty, section 4.2)."""
        return 2.0 * self.transfer_bytes * (self.world_size - 1) / (self.world_size * self.seconds)


@dataclass(frozen=True, order=True)
class Link:
    """What measurements of one kind share.

    Attributes:
        fabric: Name of the fabric.
        device: GPU, or empty.
        location: Cloud, region and zone, or empty.
    """

    fabric: str
    device: str = ""
    location: str = ""

    @classmethod
    def from_measurement(cls, measurement: AllreduceMeasurement) -> Link:
        """Return the link that a measurement belongs to."""
        return cls(measurement.fabric, measurement.device, measurement.location)
