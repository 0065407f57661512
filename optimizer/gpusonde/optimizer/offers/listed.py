"""Offers of the catalogue, or of a file in its format, as offers of a problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from gpusonde.catalog import Offer as CatalogOffer
from gpusonde.catalog import OfferCatalog
from gpusonde.catalog.offers import latest_day
from gpusonde.optimizer.offers.selection import Candidate, LeftOut, OfferSelection, collect
from gpusonde.optimizer.offers.terms import Terms


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

    def choose(self, catalog: OfferCatalog) -> tuple[CatalogOffer, ...]:
        """Return the catalogue's whole-GPU offers that pass, whatever their price's date, in its order.

        Raises:
            UnknownProviderError: The catalogue has no such provider.
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
        UnknownProviderError, UnknownGpuError, ValueError: As for ``OfferFilter.choose``.
    """
    wanted = chosen or OfferFilter()
    candidates, left_out = [], []
    for offer in wanted.choose(catalog):
        candidate = Candidate(
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
            left_out.append(LeftOut(candidate.name, f"its price is older than {wanted.priced_since.isoformat()}"))
        else:
            candidates.append(candidate)
    return collect(candidates, terms, left_out)
