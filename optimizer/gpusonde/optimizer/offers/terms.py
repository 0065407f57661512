"""``Terms``: what only the user knows of machines that a catalogue lists."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpusonde.catalog import Offer as CatalogOffer


class TermsError(ValueError):
    """Terms that contradict themselves; the message says what to write instead."""


@dataclass(frozen=True)
class Quota:
    """The most that may be rented of every kind of machine that a rule fits.

    Attributes:
        machines: Most machines of one kind; give this or ``gpus``.
        gpus: Most GPUs of one kind of machine.
        provider: Only this provider's machines; empty for all.
        region: Only in this region or zone.
        instance_type: Only this one.
        gpu: Only machines with this GPU, in the catalogue's spelling.
        billing: Only ``on_demand`` or only ``spot``.

    Raises:
        TermsError: Not exactly one of ``machines`` and ``gpus``, or one that is not a whole number of 0 or more.
    """

    machines: int | None = None
    gpus: int | None = None
    provider: str = ""
    region: str = ""
    instance_type: str = ""
    gpu: str = ""
    billing: str = ""

    def __post_init__(self) -> None:
        given = [limit for limit in (self.machines, self.gpus) if limit is not None]
        if len(given) != 1:
            raise TermsError("a quota gives either machines or gpus")
        if given[0] < 0 or given[0] != int(given[0]):
            raise TermsError(f"a quota is a whole number of 0 or more, not {given[0]}")
        if self.billing not in ("", "on_demand", "spot"):
            raise TermsError(f"a quota's billing is on_demand or spot, not {self.billing!r}")

    def most_machines(self, offer: CatalogOffer, region: str, billing: str) -> int | None:
        """Return how many machines it allows; None where the rule does not fit the offer."""
        wanted = (self.provider, self.instance_type, self.gpu, self.billing)
        has = (offer.provider, offer.instance_type, offer.gpu_model, billing)
        if any(want and want != value for want, value in zip(wanted, has, strict=True)):
            return None
        if self.region and self.region not in region.split("/"):
            return None
        return self.machines if self.gpus is None else self.gpus // offer.gpu_count


@dataclass(frozen=True)
class BatchLimits:
    """Batch sizes that one GPU takes.

    Attributes:
        smallest: Samples per device and iteration that are worth running, 1 or more.
        largest: What fits into the device's memory, ``ComputeCurve.largest_batch`` where it was probed; 0 when the
            model does not fit at all, None when memory is no limit.

    Raises:
        TermsError: ``smallest`` below 1, or ``largest`` between 1 and ``smallest``.
    """

    smallest: int = 1
    largest: int | None = None

    def __post_init__(self) -> None:
        if self.smallest < 1:
            raise TermsError(f"the smallest batch is 1 or more, not {self.smallest}")
        if self.largest is not None and self.largest != 0 and self.largest < self.smallest:
            raise TermsError(f"the largest batch {self.largest} is below the smallest, {self.smallest}")


@dataclass(frozen=True)
class Terms:
    """What a catalogue cannot know.

    Attributes:
        quotas: Rules; every rule that fits an offer limits it. An offer that no rule fits is left out.
        batches: GPU -> its batch limits for this job. A GPU without an entry is left out.
        network_bytes_per_second: Instance type -> its network's rate, where the catalogue has none or a wrong one.
        fabrics: Instance type -> name of the network between its machines in the allreduce measurements;
            ``provider/instance_type`` without an entry.
        machine_fabrics: Instance type -> likewise of what connects the GPUs of one machine; as between machines
            without an entry.
        preemptions_per_hour: Instance type -> how often a spot machine is taken away; the entry ``*`` holds for all
            others. A spot offer without a rate is left out.

    Raises:
        TermsError: A rate that is negative or not finite.
    """

    quotas: Sequence[Quota]
    batches: Mapping[str, BatchLimits]
    network_bytes_per_second: Mapping[str, float] = field(default_factory=dict)
    fabrics: Mapping[str, str] = field(default_factory=dict)
    machine_fabrics: Mapping[str, str] = field(default_factory=dict)
    preemptions_per_hour: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for machine, rate in self.network_bytes_per_second.items():
            if not (math.isfinite(rate) and rate > 0):
                raise TermsError(f"network_bytes_per_second of {machine} must be finite and above zero, not {rate}")
        for machine, rate in self.preemptions_per_hour.items():
            if not (math.isfinite(rate) and rate >= 0):
                raise TermsError(f"preemptions_per_hour of {machine} must be finite and not negative, not {rate}")

    def quota(self, offer: CatalogOffer, region: str, billing: str) -> int | None:
        """Return the most machines of an offer that may be rented; None where no rule fits it."""
        limits = [rule.most_machines(offer, region, billing) for rule in self.quotas]
        return min((limit for limit in limits if limit is not None), default=None)

    def network(self, offer: CatalogOffer) -> float | None:
        """Return the rate of one machine's network, bytes per second; None where nobody knows it."""
        given = self.network_bytes_per_second.get(offer.instance_type)
        if given is not None or offer.network_bits_per_second is None:
            return given
        return offer.network_bits_per_second / 8

    def fabric(self, offer: CatalogOffer) -> str:
        """Return the name of the fabric that connects machines of an offer."""
        return self.fabrics.get(offer.instance_type, f"{offer.provider}/{offer.instance_type}")

    def preemptions(self, instance_type: str) -> float | None:
        """Return how often a spot machine is taken away per hour; None where nobody says."""
        return self.preemptions_per_hour.get(instance_type, self.preemptions_per_hour.get("*"))
