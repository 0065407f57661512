"""``refresh``: what a price list changes, and the file of your own offers with its prices in it."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpusonde.catalog.gpus import GpuCatalog
from gpusonde.catalog.offers import OFFER_COLUMNS, Offer, OfferCatalog, read_offer_rows
from gpusonde.catalog.price_lists import ListedPrice, PriceList
from gpusonde.errors import CatalogError, UnknownGpuError

_GIBIBYTE = 1 << 30
_GIGABIT = 1e9
_HEAD = (
    "# Offers of your own, read beside the shipped ones, which they replace by provider, region and billing.\n"
    "# 'gpusonde prices' replaces the lines of what it refreshes; comments are not kept.\n"
)


@dataclass(frozen=True)
class PriceChange:
    """A machine whose price is new, different or gone.

    Attributes:
        region: As the cloud spells it.
        instance_type: The cloud's name of the machine.
        billing: ``on_demand`` or ``spot``.
        gpu_model: ``GpuSpec.name``.
        gpu_count: GPUs of the machine.
        before_usd_per_hour: None for one that was not known.
        usd_per_hour: None for one that the list has no longer.
    """

    region: str
    instance_type: str
    billing: str
    gpu_model: str
    gpu_count: int
    before_usd_per_hour: float | None
    usd_per_hour: float | None

    @property
    def change(self) -> float | None:
        """Price over the one before, minus 1; None where one of them is missing."""
        if self.before_usd_per_hour is None or self.usd_per_hour is None:
            return None
        return self.usd_per_hour / self.before_usd_per_hour - 1


@dataclass(frozen=True)
class Refreshed:
    """A price list made into offers.

    Attributes:
        content: The file of own offers as it should be.
        offer_count: Offers of the list.
        unchanged_count: Offers whose price is the one that was known.
        changes: The others, by region and instance type.
        left_out: Why -> instance types with GPUs that are not entered.
    """

    content: str
    offer_count: int
    unchanged_count: int
    changes: tuple[PriceChange, ...]
    left_out: Mapping[str, tuple[str, ...]]


def refresh(listed: PriceList, offers: OfferCatalog, gpus: GpuCatalog, own_file: Path) -> Refreshed:
    """Compare a price list with what is known, and put it in the place of its provider, regions and billings.

    Args:
        listed: The list.
        offers: What is known, own offers included.
        gpus: Tells the GPU of an instance type by its family.
        own_file: File of own offers, which need not exist; its other lines are kept.

    Raises:
        CatalogError: The list holds no machine with GPUs of the catalogue, or the file cannot be used.
    """
    known = {offer.instance_type: offer for offer in offers.all if offer.provider == listed.provider}
    rows: list[dict[str, str]] = []
    models: dict[tuple[str, str, str], tuple[str, int, float]] = {}
    left_out: defaultdict[str, set[str]] = defaultdict(set)
    for price in listed.prices:
        try:
            model, count, note = _machine(price, known.get(price.instance_type), gpus)
        except UnknownGpuError as error:
            if price.has_gpus:
                left_out[error.reason or "of a family that the catalogue does not know"].add(price.instance_type)
            continue
        if count is None:
            left_out["the list does not say how many GPUs"].add(price.instance_type)
            continue
        models[price.region, price.instance_type, price.billing] = (model, count, price.usd_per_hour)
        rows.append(_row(listed, price, known.get(price.instance_type), model, count, note))
    if not rows:
        raise CatalogError(f"the list of {listed.provider} holds no machine with GPUs of the catalogue")
    covered = {(listed.provider, row["region"], row["billing"]) for row in rows}
    before = {
        (offer.region, offer.instance_type, offer.billing): offer
        for offer in offers.offers(billing=None, whole_only=True, known_only=True)
        if (offer.provider, offer.region, offer.billing) in covered
    }
    changes = []
    for region, instance_type, billing in sorted(models.keys() | before.keys()):
        key = (region, instance_type, billing)
        old = before.get(key)
        new = models.get(key)
        if old is not None and new is not None and abs(new[2] / old.usd_per_hour - 1) < 1e-9:
            continue
        model, count = (new[0], new[1]) if new is not None else (before[key].gpu_model, before[key].gpu_count)
        changes.append(
            PriceChange(*key, model, count, old.usd_per_hour if old else None, new[2] if new is not None else None)
        )
    kept = [row for row in _own_rows(own_file) if (row["provider"], row["region"], row["billing"]) not in covered]
    return Refreshed(
        content=_written([*kept, *rows]),
        offer_count=len(rows),
        unchanged_count=len(models) - sum(change.usd_per_hour is not None for change in changes),
        changes=tuple(changes),
        left_out={reason: tuple(sorted(types)) for reason, types in sorted(left_out.items())},
    )


def _machine(price: ListedPrice, known: Offer | None, gpus: GpuCatalog) -> tuple[str, int | None, str]:
    """Return GPU model, count and a note; a count that was entered by hand is believed before the list's."""
    resolution = gpus.resolve(price.instance_type)
    if resolution.note:
        raise UnknownGpuError(price.instance_type, reason=f"more than one GPU by its name: {resolution.note}")
    if known is None or not known.gpu_known:
        return resolution.spec.name, price.gpu_count, ""
    differs = price.gpu_count is not None and price.gpu_count != known.gpu_count
    note = f"{known.gpu_count} GPUs; the list says {price.gpu_count}" if differs else ""
    return known.gpu_model, known.gpu_count, note


def _row(
    listed: PriceList, price: ListedPrice, known: Offer | None, model: str, count: int, note: str
) -> dict[str, str]:
    # Lists leave out what the shipped offers may have from elsewhere: hosts' sizes, guaranteed rates of networks.
    vcpu, memory, network = price.vcpu_count, price.memory_gib, price.network_gbit_per_s
    if known is not None:
        vcpu = known.vcpu_count if vcpu is None else vcpu
        memory = known.memory_bytes / _GIBIBYTE if memory is None and known.memory_bytes else memory
        bits = known.network_bits_per_second
        network = bits / _GIGABIT if network is None and bits else network
    return {
        "provider": listed.provider,
        "region": price.region,
        "instance_type": price.instance_type,
        "gpu": model,
        "gpu_count": str(count),
        "whole_gpu": "yes",
        "vcpu_count": "" if vcpu is None else str(vcpu),
        "memory_gib": "" if memory is None else f"{memory:g}",
        "network_gbit_per_s": "" if network is None else f"{network:g}",
        "usd_per_hour": f"{price.usd_per_hour:.10g}",
        "billing": price.billing,
        "price_date": listed.price_date,
        "source": listed.source,
        "note": note,
    }


def _own_rows(file: Path) -> list[Mapping[str, str]]:
    return [row for _, row in read_offer_rows(file)] if file.exists() else []


def _written(rows: list[Mapping[str, str]]) -> str:
    text = io.StringIO()
    text.write(_HEAD)
    writer = csv.DictWriter(text, OFFER_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
