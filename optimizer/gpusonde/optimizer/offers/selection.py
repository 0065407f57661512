"""``OfferSelection``: offers that a problem can be made of, and every offer left out with its reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gpusonde.catalog import Offer as CatalogOffer
from gpusonde.optimizer.offers.terms import Terms
from gpusonde.optimizer.problem import Billing, Offer


@dataclass(frozen=True)
class LeftOut:
    """An offer that was not taken.

    Attributes:
        offer: Its name: provider, region, instance type, and ``spot`` where it is one.
        reason: What is missing, and who can give it.
    """

    offer: str
    reason: str


@dataclass(frozen=True)
class OfferSelection:
    """Offers ready for a ``Problem``.

    Attributes:
        offers: The offers.
        described: Name of an offer -> one line with its price and the price's date.
        left_out: Those that were not taken.
    """

    offers: tuple[Offer, ...]
    described: dict[str, str]
    left_out: tuple[LeftOut, ...]

    def reasons(self) -> dict[str, int]:
        """Return how many offers were left out for each reason, the most frequent first."""
        return dict(Counter(offer.reason for offer in self.left_out).most_common())

    def __add__(self, other: OfferSelection) -> OfferSelection:
        """Both together, for offers on demand and spot offers from another file."""
        return OfferSelection(
            self.offers + other.offers, {**self.described, **other.described}, self.left_out + other.left_out
        )


@dataclass(frozen=True)
class Candidate:
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

    machine: CatalogOffer
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


def apply_terms(candidate: Candidate, terms: Terms) -> Offer | LeftOut:
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
        return LeftOut(candidate.name, f"no batch limits for {machine.gpu_model}; probe the job on it or predict them")
    if quota is None:
        return LeftOut(candidate.name, "no quota; say how many machines of it may be rented")
    if quota == 0:
        return LeftOut(candidate.name, "none can be rented: quota or availability is 0")
    if network is None and machine.instance_type not in terms.fabrics:
        return LeftOut(
            candidate.name, "network rate unknown; give network_bytes_per_second of the instance type, or its fabric"
        )
    if spot and preemptions is None:
        return LeftOut(candidate.name, "preemption rate unknown; give preemptions_per_hour, or of '*' for all")
    return Offer(
        name=candidate.name,
        device=machine.gpu_model,
        devices=machine.gpu_count,
        quota=quota,
        usd_per_hour=candidate.usd_per_hour,
        billing=Billing.SPOT if spot else Billing.ON_DEMAND,
        network_bytes_per_second=network,
        fabric=terms.fabric(machine),
        smallest_batch=limits.smallest,
        largest_batch=limits.largest,
        preemptions_per_hour=preemptions or 0.0,
        region=candidate.region,
        zone=candidate.zone,
        machine_fabric=terms.machine_fabrics.get(machine.instance_type, ""),
    )


def collect(candidates: list[Candidate], terms: Terms, left_out: list[LeftOut]) -> OfferSelection:
    """Return the selection of candidates; of two with one name the cheaper is taken."""
    offers: dict[str, Offer] = {}
    described: dict[str, str] = {}
    for candidate in sorted(candidates, key=lambda each: each.usd_per_hour):
        found = apply_terms(candidate, terms)
        if isinstance(found, LeftOut):
            left_out.append(found)
        elif found.name in offers:
            left_out.append(LeftOut(found.name, "the same machine is cheaper in another row"))
        else:
            offers[found.name] = found
            described[found.name] = (
                f"{found.name}: {found.devices}x {found.device}, {found.usd_per_hour:.4g} USD/h, {candidate.priced}"
            )
    names = sorted(offers)
    return OfferSelection(
        tuple(offers[name] for name in names), {name: described[name] for name in names}, tuple(left_out)
    )
