"""How transfers that run at the same time share a machine's link."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


class LinkShare(Enum):
    """How the capacity is divided once the transfers want more than there is."""

    # Srifty, section 4.3: everyone gets at most an equal part, as soon as together they want as much as there is. What
    # a transfer does not want of its part stays idle.
    SEED = "seed"
    # Max-min fair: what one does not want goes to the others, so that a wanted capacity is never idle.
    MAXMIN = "maxmin"


@dataclass(frozen=True)
class LinkPolicy:
    """Rules of one machine's link.

    Attributes:
        share: How the capacity is divided.
        capacity_bytes_per_second: Bus bandwidth of the machine, infinite when it never binds.
        max_in_flight: Transfers at a time, the others wait in the order in which they became ready. NCCL with one
            communicator runs 1, gloo 2.

    Raises:
        ValueError: A capacity or a limit that is not above zero.
    """

    share: LinkShare = LinkShare.MAXMIN
    capacity_bytes_per_second: float = math.inf
    max_in_flight: int | None = None

    def __post_init__(self) -> None:
        if not self.capacity_bytes_per_second > 0:
            raise ValueError(f"the capacity of a link is above zero, not {self.capacity_bytes_per_second}")
        if self.max_in_flight is not None and self.max_in_flight < 1:
            raise ValueError(f"max_in_flight is 1 or more, not {self.max_in_flight}")


@dataclass(frozen=True)
class ExchangeTimeline:
    """When every transfer ran.

    Attributes:
        start_s: Shape (n,), seconds after the start of the backward pass.
        finish_s: Shape (n,), likewise.
    """

    start_s: FloatArray
    finish_s: FloatArray

    @property
    def end_s(self) -> float:
        """When the last transfer finished; 0 without transfers."""
        return float(self.finish_s.max(initial=0.0))


def rates(wanted: FloatArray, policy: LinkPolicy) -> FloatArray:
    """Return what each of the transfers in flight gets, bytes per second on the bus.

    Args:
        wanted: Shape (c,), bus bandwidth that each would reach alone.
        policy: The link's rules.
    """
    capacity = policy.capacity_bytes_per_second
    asked = wanted.sum()
    if policy.share is LinkShare.SEED:
        return wanted if asked < capacity else np.minimum(wanted, capacity / wanted.size)
    if asked <= capacity:
        return wanted
    ascending = np.argsort(wanted, kind="stable")
    given = np.empty_like(wanted)
    left = capacity
    for place, index in enumerate(ascending):
        given[index] = min(wanted[index], left / (wanted.size - place))
        left -= given[index]
    return given
