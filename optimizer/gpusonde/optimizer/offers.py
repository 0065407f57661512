"""Offers of the catalogue, or of a file in its format, as offers of a problem.

``Terms`` hold what only the user knows of machines that a catalogue lists; an ``OfferSelection`` has the offers, and
every one that was left out with its reason.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from gpusonde.catalog import Offer, OfferCatalog
from gpusonde.catalog.offers import latest_day
from gpusonde.errors import ProblemError
from gpusonde.formatting import dollars, join_names
from gpusonde.optimizer.problem import Billing, MachineOffer


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
        ProblemError: Not exactly one of ``machines`` and ``gpus``, or one that is not a whole number of 0 or more.
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
            raise ProblemError("a quota gives either machines or gpus")
        if given[0] < 0 or given[0] != int(given[0]):
            raise ProblemError(f"a quota is a whole number of 0 or more, not {given[0]}")
        if self.billing not in ("", "on_demand", "spot"):
            raise ProblemError(f"a quota's billing is on_demand or spot, not {self.billing!r}")

    def most_machines(self, offer: Offer, region: str, billing: str) -> int | None:
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
        ProblemError: ``smallest`` below 1, or ``largest`` between 1 and ``smallest``.
    """

    smallest: int = 1
    largest: int | None = None

    def __post_init__(self) -> None:
        if self.smallest < 1:
            raise ProblemError(f"the smallest batch is 1 or more, not {self.smallest}")
        if self.largest is not None and self.largest != 0 and self.largest < self.smallest:
            raise ProblemError(f"the largest batch {self.largest} is below the smallest, {self.smallest}")


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
        ProblemError: A rate that is negative or not finite.
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
                raise ProblemError(f"network_bytes_per_second of {machine} must be finite and above zero, not {rate}")
        for machine, rate in self.preemptions_per_hour.items():
            if not (math.isfinite(rate) and rate >= 0):
                raise ProblemError(f"preemptions_per_hour of {machine} must be finite and not negative, not {rate}")

    def quota(self, offer: Offer, region: str, billing: str) -> int | None:
        """Return the most machines of an offer that may be rented; None where no rule fits it."""
        limits = [rule.most_machines(offer, region, billing) for rule in self.quotas]
        return min((limit for limit in limits if limit is not None), default=None)

    def network(self, offer: Offer) -> float | None:
        """Return the rate of one machine's network, bytes per second; None where nobody knows it."""
        given = self.network_bytes_per_second.get(offer.instance_type)
        if given is not None or offer.network_bits_per_second is None:
            return given
        return offer.network_bits_per_second / 8

    def fabric(self, offer: Offer) -> str:
        """Return the name of the fabric that connects machines of an offer."""
        return self.fabrics.get(offer.instance_type, f"{offer.provider}/{offer.instance_type}")

    def preemptions(self, instance_type: str) -> float | None:
        """Return how often a spot machine is taken away per hour; None where nobody says."""
        return self.preemptions_per_hour.get(instance_type, self.preemptions_per_hour.get("*"))


_NO_LIMITS = "no batch limits for {}; probe the job on it or predict them"


@dataclass(frozen=True)
class ExcludedOffer:
    """An offer that was not taken.

    Attributes:
        offer: Its name: provider, region, instance type, and ``spot`` where it is one.
        reason: What is missing, and who can give it.
        gpu: The GPU that it is missing of; empty where it is of the offer.
    """

    offer: str
    reason: str
    gpu: str = ""


@dataclass(frozen=True)
class OfferSelection:
    """Offers ready for a ``Problem``.

    Attributes:
        offers: The offers.
        described: Name of an offer -> one line with its price and the price's date.
        left_out: Those that were not taken.
    """

    offers: tuple[MachineOffer, ...]
    described: dict[str, str]
    left_out: tuple[ExcludedOffer, ...]

    def reasons(self) -> dict[str, int]:
        """Return how many offers were left out by reason, the most frequent first; GPUs without limits as one."""
        without = [each.gpu for each in self.left_out if each.gpu]
        joined = _NO_LIMITS.format(join_names(sorted(set(without)), "GPU"))
        return dict(Counter(joined if each.gpu else each.reason for each in self.left_out).most_common())

    def __add__(self, other: OfferSelection) -> OfferSelection:
        """Both together, for offers on demand and spot offers from another file."""
        return OfferSelection(
            self.offers + other.offers, {**self.described, **other.described}, self.left_out + other.left_out
        )


@dataclass(frozen=True)
class PricedMachine:
    """A machine at a price, before the user's terms.

    Attributes:
        machine: The catalogue's entry; its price and region may be another's.
        region: Region as the price's source spells it.
        zone: Zone; empty where the price holds in the whole region.
        billing: ``on_demand`` or ``spot``.
        usd_per_hour: Price of the whole machine.
        preemptions_per_hour: Of one spot machine; None where unknown.
        available: Most machines that can be had now; None where unknown.
        priced: When the price held, for the reader.
    """

    machine: Offer
    region: str
    zone: str
    billing: str
    usd_per_hour: float
    preemptions_per_hour: float | None
    available: int | None
    priced: str

    @property
    def name(self) -> str:
        """Name of the offer, unique within a selection."""
        where = f"{self.machine.provider}/{self.zone or self.region}/{self.machine.instance_type}"
        return f"{where}/spot" if self.billing == "spot" else where


def region_of(zone: str) -> str:
    """Return the region of a zone: zones are the region and a letter (us-east-1a, us-central1-a)."""
    return re.sub(r"(?<=[0-9])-?[a-z]$", "", zone)


def apply_terms(candidate: PricedMachine, terms: Terms) -> MachineOffer | ExcludedOffer:
    """Return the offer that a candidate is under the user's terms, or why it is none."""
    machine = candidate.machine
    quota = terms.quota(machine, candidate.region, candidate.billing)
    if quota is not None and candidate.available is not None:
        quota = min(quota, candidate.available)
    limits = terms.batches.get(machine.gpu_model)
    network = terms.network(machine)
    spot = candidate.billing == "spot"
    preemptions = candidate.preemptions_per_hour
    if spot and preemptions is None:
        preemptions = terms.preemptions(machine.instance_type)
    if limits is None:
        return ExcludedOffer(candidate.name, _NO_LIMITS.format(machine.gpu_model), machine.gpu_model)
    if quota is None:
        return ExcludedOffer(candidate.name, "no quota; say how many machines of it may be rented")
    if quota == 0:
        return ExcludedOffer(candidate.name, "none can be rented: quota or availability is 0")
    if spot and preemptions is None:
        return ExcludedOffer(candidate.name, "preemption rate unknown; give preemptions_per_hour")
    return MachineOffer(
        name=candidate.name,
        device=machine.gpu_model,
        devices=machine.gpu_count,
        # Nobody knows what several machines would reach together.
        quota=quota if network is not None or machine.instance_type in terms.fabrics else 1,
        usd_per_hour=candidate.usd_per_hour,
        billing=Billing.SPOT if spot else Billing.ON_DEMAND,
        network_bytes_per_second=network,
        fabric=terms.fabric(machine),
        smallest_batch=limits.smallest,
        largest_batch=limits.largest,
        preemptions_per_hour=preemptions or 0.0,
        region=f"{machine.provider}/{region_of(candidate.region)}",
        zone=candidate.zone,
        machine_fabric=terms.machine_fabrics.get(machine.instance_type, ""),
    )


def select_offers(candidates: list[PricedMachine], terms: Terms, left_out: list[ExcludedOffer]) -> OfferSelection:
    """Return the selection of candidates; of two with one name the cheaper is taken."""
    offers: dict[str, MachineOffer] = {}
    described: dict[str, str] = {}
    for candidate in sorted(candidates, key=lambda each: each.usd_per_hour):
        found = apply_terms(candidate, terms)
        if isinstance(found, ExcludedOffer):
            left_out.append(found)
        elif found.name in offers:
            left_out.append(ExcludedOffer(found.name, "the same machine is cheaper in another row"))
        else:
            offers[found.name] = found
            described[found.name] = (
                f"{found.name}: {found.devices}x {found.device}, {dollars(found.usd_per_hour)} per hour,"
                f" {candidate.priced}"
            )
    names = sorted(offers)
    return OfferSelection(
        tuple(offers[name] for name in names), {name: described[name] for name in names}, tuple(left_out)
    )


@dataclass(frozen=True)
class OfferFilter:
    """Which offers may be taken at all; an empty filter takes every one.

    Attributes:
        providers: Only these.
        regions: Only these and their zones, and prices that hold everywhere.
        gpus: Only these GPUs, in any spelling that the catalogue knows.
        instance_types: Only these.
        billing: ``on_demand``, ``spot`` or None for both.
        priced_since: Only prices of this day or later; an undated price is older than every day.
    """

    providers: Sequence[str] = ()
    regions: Sequence[str] = ()
    gpus: Sequence[str] = ()
    instance_types: Sequence[str] = ()
    billing: str | None = "on_demand"
    priced_since: date | None = None

    def choose(self, catalog: OfferCatalog) -> tuple[Offer, ...]:
        """Return the catalogue's whole-GPU offers that pass, whatever their price's date, in its order.

        Raises:
            CatalogError: The catalogue has no such provider.
            UnknownGpuError: It knows no such GPU.
            ValueError: ``billing`` is none of the above.
        """
        found = [
            offer
            for provider in self.providers or (None,)
            for region in self.regions or (None,)
            for gpu in self.gpus or (None,)
            for offer in catalog.offers(gpu, self.billing, provider=provider, region=region, known_only=False)
            if not self.instance_types or offer.instance_type in self.instance_types
        ]
        # A price that holds everywhere is found once per region.
        return tuple(dict.fromkeys(found))


def listed_offers(catalog: OfferCatalog, terms: Terms, chosen: OfferFilter | None = None) -> OfferSelection:
    """Return what a catalogue offers under the user's terms.

    A GPU without a data sheet is no obstacle where the user gives its batch limits. What an offer lacks is said in
    ``left_out``, never filled in.

    Args:
        catalog: The shipped catalogue (``gpusonde.catalog.load_offers()``) or another one.
        terms: Quotas, batch limits and what else only the user knows.
        chosen: Which offers to look at; all on demand by default.

    Raises:
        CatalogError, UnknownGpuError, ValueError: As for ``OfferFilter.choose``.
    """
    wanted = chosen or OfferFilter()
    candidates, left_out = [], []
    for offer in wanted.choose(catalog):
        candidate = PricedMachine(
            machine=offer,
            region=offer.region,
            zone="",
            billing=offer.billing,
            usd_per_hour=offer.usd_per_hour,
            preemptions_per_hour=None,
            available=None,
            priced=f"price of {offer.price_date}" if offer.price_date else "undated price",
        )
        if wanted.priced_since is not None and latest_day(offer.price_date) < wanted.priced_since:
            left_out.append(ExcludedOffer(candidate.name, f"its price is older than {wanted.priced_since.isoformat()}"))
        else:
            candidates.append(candidate)
    return select_offers(candidates, terms, left_out)
