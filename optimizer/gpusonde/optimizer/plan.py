"""``Plan``: how many machines of which offers, and which batch each of their GPUs gets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpusonde.optimizer.problem import Offer, ProblemError


@dataclass(frozen=True)
class Group:
    """Machines of one offer.

    Attributes:
        offer: Name of the offer.
        machines: How many, 1 or more.
        batch_size: Samples per GPU and iteration, 1 or more.

    Raises:
        ProblemError: Figures out of range.
    """

    offer: str
    machines: int
    batch_size: int

    def __post_init__(self) -> None:
        if self.machines < 1:
            raise ProblemError(f"a group has one machine or more of {self.offer}, not {self.machines}")
        if self.batch_size < 1:
            raise ProblemError(f"the batch per GPU of {self.offer} is 1 or more, not {self.batch_size}")


@dataclass(frozen=True)
class Plan:
    """What to rent. Every offer occurs once at most: its machines share one batch size.

    Attributes:
        groups: The machines, by name of their offer.

    Raises:
        ProblemError: No groups, or an offer twice.
    """

    groups: tuple[Group, ...]

    def __post_init__(self) -> None:
        groups = tuple(sorted(self.groups, key=lambda group: group.offer))
        if not groups:
            raise ProblemError("a plan needs a machine")
        if len({group.offer for group in groups}) < len(groups):
            raise ProblemError("an offer occurs once at most in a plan: its machines share one batch size")
        object.__setattr__(self, "groups", groups)

    @property
    def machines(self) -> int:
        """Machines of all offers."""
        return sum(group.machines for group in self.groups)

    def devices(self, offers: Iterable[Offer]) -> int:
        """Return the number of GPUs: the world size."""
        by_name = {offer.name: offer for offer in offers}
        return sum(group.machines * by_name[group.offer].devices for group in self.groups)

    def global_batch(self, offers: Iterable[Offer]) -> int:
        """Return the samples of an iteration."""
        by_name = {offer.name: offer for offer in offers}
        return sum(group.machines * by_name[group.offer].devices * group.batch_size for group in self.groups)

    def usd_per_hour(self, offers: Iterable[Offer]) -> float:
        """Return the price of all machines per hour."""
        by_name = {offer.name: offer for offer in offers}
        return sum(group.machines * by_name[group.offer].usd_per_hour for group in self.groups)

    def __str__(self) -> str:
        return " + ".join(f"{group.machines} x {group.offer} @ {group.batch_size}" for group in self.groups)
