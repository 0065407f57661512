"""Which rings a machine's direct links allow: why five devices may exchange slower than four."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
