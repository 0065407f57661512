"""``RatedNetwork``: what to assume of allreduces between GPUs that nobody measured, from ratings and measured classes.

A link is rated by a data sheet (NVLink, PCI Express) or by a cloud (network of a machine); its class says what NCCL's
allreduces reach of it, what each of them takes beside, and how far fabrics of the class differ from each other. The
figures are rounded ones of public measurements; ``python benchmarks/planning networks`` compares.

    time = traffic / (share * rating) + setup * (bytes / 4 MiB)^(1/4)

Between machines NCCL needs not send more than ``2 (machines - 1) / machines`` of the bytes into each of them, over all
of its NICs together; the slower of inside and between decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.catalog import GpuSpec
from gpusonde.simulator.gradients import FloatArray, ring_traffic_bytes
from gpusonde.simulator.iteration import BusBandwidth

# Bytes per second, lane and direction of each PCI Express generation, after encoding.
_PCIE_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
# Links of a GPU to all others at once, through switches, have at least this; bridges join two cards.
SWITCHED_NVLINK = 500e9
_CUBE_MESH_NVLINK = 250e9
# From here on, machines have NICs that reach into a GPU's memory.
_DIRECT_NETWORK = 12.5e9
_SETUP_BYTES = 4 * 2.0**20
# Larger transfers take longer to fill all channels.
_SETUP_POWER = 0.25
_SETUP_WORLD = 16


@dataclass(frozen=True)
class LinkClass:
    """Links of one technology, as measured.

    Attributes:
        name: For people.
        reached_share: What large allreduces reach of the rating: shape of ``devices``, read off between them.
        setup_s: What an allreduce of 4 MiB takes beside.
        log_spread: Standard deviation of the logarithm of measured over assumed bandwidth, over fabrics and sizes.
        devices: Devices in a machine that the shares hold for.
        setup_rating: Rating for which ``setup_s`` holds; slower links take longer. 0 where it is the same for all.
    """

    name: str
    reached_share: tuple[float, ...]
    setup_s: float
    log_spread: float
    devices: tuple[int, ...] = (2,)
    setup_rating: float = 0.0


NVSWITCH = LinkClass("NVLink through switches", (0.82,), 50e-6, 0.18)
# Two neighbours share one or two of the six links, eight use them all; five and six leave some idle.
CUBE_MESH = LinkClass("NVLink in a cube mesh", (0.2, 0.5, 0.8), 50e-6, 0.5, (2, 4, 8))
# GeForce cards, which exchange through the host's memory; of eight in two sockets some reach a fifth of this.
PCIE = LinkClass("PCI Express", (0.3,), 50e-6, 0.7)
EFA = LinkClass("EFA", (0.6,), 500e-6, 0.33, setup_rating=50e9)
INFINIBAND = LinkClass("InfiniBand", (0.9,), 130e-6, 0.28)
TCP = LinkClass("TCP", (0.65,), 900e-6, 0.25)


@dataclass(frozen=True)
class RatedLink:
    """A link as its data sheet has it.

    Attributes:
        kind: Its class.
        bytes_per_second: Rating in one direction, of a device inside of a machine, of a machine between machines.
    """

    kind: LinkClass
    bytes_per_second: float

    def reached(self, devices: int) -> float:
        """Return what large allreduces reach, bytes per second, among so many devices of a machine."""
        return self.bytes_per_second * float(np.interp(devices, self.kind.devices, self.kind.reached_share))

    def setup_s(self, transfer_bytes: FloatArray) -> FloatArray:
        """Return what allreduces take besides, shape of ``transfer_bytes``."""
        slower = (self.kind.setup_rating / self.bytes_per_second) ** 0.75 if self.kind.setup_rating else 1.0
        return np.asarray(self.kind.setup_s * slower * (transfer_bytes / _SETUP_BYTES) ** _SETUP_POWER)


def joins_all(gpu: GpuSpec) -> bool:
    """Tell whether NVLink joins all GPUs of a machine, and not pairs of cards by bridges."""
    is_card = "PCIe" in gpu.name or "NVL-" in gpu.name
    return (gpu.nvlink_bytes_per_second or 0.0) >= _CUBE_MESH_NVLINK and not is_card


def pcie_bytes_per_second(gpu: GpuSpec | None) -> float:
    """Return the rate of a GPU's PCI Express in one direction; of 16 lanes of the third generation where unknown."""
    generation, lanes = (3, 16) if gpu is None else (gpu.pcie_generation or 3, gpu.pcie_lanes or 16)
    return _PCIE_LANE.get(generation, _PCIE_LANE[3]) * lanes


def inner_link(gpu: GpuSpec | None) -> RatedLink:
    """Return the link between the GPUs of one machine; without a data sheet PCI Express is assumed, as without NVLink.

    Nobody says which machines have bridges between pairs of cards, so none are assumed.
    """
    if gpu is not None and joins_all(gpu):
        both_ways = gpu.nvlink_bytes_per_second or 0.0
        return RatedLink(NVSWITCH if both_ways >= SWITCHED_NVLINK else CUBE_MESH, both_ways / 2)
    return RatedLink(PCIE, pcie_bytes_per_second(gpu))


def outer_link(bytes_per_second: float, provider: str = "") -> RatedLink:
    """Return the link between machines with such a network: RDMA from 100 Gbit/s on, at AWS by EFA, TCP below."""
    if bytes_per_second < _DIRECT_NETWORK:
        return RatedLink(TCP, bytes_per_second)
    return RatedLink(EFA if provider == "aws" else INFINIBAND, bytes_per_second)


@dataclass(frozen=True)
class RatedNetwork:
    """Machines alike with links that nobody measured.

    Attributes:
        inside: Between the devices of a machine.
        devices: Of a machine.
        between: Between machines; None where nobody knows, and one machine is meant.
        factor: Transfers take so many times as long as links of their class say.
        factor_spread: Standard deviation of its natural logarithm where iterations tell it; None for that of classes.
    """

    inside: RatedLink
    devices: int
    between: RatedLink | None = None
    factor: float = 1.0
    factor_spread: float | None = None

    def bus_bandwidth(self, transfer_bytes: npt.ArrayLike, world_size: int) -> BusBandwidth:
        """Return what single transfers reach among ``world_size`` devices."""
        sizes = np.asarray(transfer_bytes, dtype=np.float64)
        traffic = ring_traffic_bytes(sizes, world_size)
        machines = 1 if self.between is None else math.ceil(world_size / self.devices)
        together = min(world_size, self.devices) if machines > 1 else world_size
        taken_s, setup_s, spread = np.zeros(sizes.shape), np.zeros(sizes.shape), 0.0
        if together > 1:
            taken_s = traffic / self.inside.reached(together)
            setup_s, spread = self.inside.setup_s(sizes), self.inside.kind.log_spread
        if machines > 1 and self.between is not None:
            between_s = ring_traffic_bytes(sizes, machines) / self.between.reached(self.devices)
            # What decides is not known better than its class.
            binds = bool((between_s >= taken_s).all())
            spread = self.between.kind.log_spread if binds else max(spread, self.between.kind.log_spread)
            taken_s = np.maximum(taken_s, between_s)
            setup_s = setup_s + self.between.setup_s(sizes) * math.sqrt(world_size / _SETUP_WORLD)
        spread = spread if self.factor_spread is None else self.factor_spread
        return BusBandwidth(traffic / (self.factor * (taken_s + setup_s)), np.full(sizes.shape, spread))
