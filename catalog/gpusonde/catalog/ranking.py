"""Offers ranked by what an epoch costs on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpusonde.catalog.offers import Offer

_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class CostedOffer:
    """An offer with the latency and the cost of one epoch on it.

    Attributes:
        offer: The offer; its ``price_date`` tells how old the price is.
        epoch_latency_s: Predicted seconds of one epoch on one GPU of the offer.
        usd_per_epoch: ``usd_per_hour / 3600 * epoch_latency_s``: the whole instance for the time of one epoch.
    """

    offer: Offer
    epoch_latency_s: float
    usd_per_epoch: float


def rank_offers(
    latency_s_by_gpu: Mapping[str, float], offers: Iterable[Offer], *, gpu_count: int | None = 1
) -> list[CostedOffer]:
    """Cost one epoch on each offer and sort by it, cheapest first.

    The prediction is for a job on one GPU. An instance with more of them costs its whole price all the same, so such
    offers are left out unless they are asked for.

    Args:
        latency_s_by_gpu: ``GpuSpec.name`` -> seconds of one epoch. NaN stands for "not predicted": such a GPU's
            offers are left out, like those of a GPU that is not a key.
        offers: What may be rented.
        gpu_count: GPUs that an instance must have; None for any number.

    Returns:
        Sorted by ``usd_per_epoch``; ties by latency, then provider, region, instance type and billing, so that the
        order never depends on the input's.

    Raises:
        ValueError: A latency is zero, negative or infinite.
    """
    for gpu, latency in latency_s_by_gpu.items():
        if not (latency > 0 and math.isfinite(latency)) and not math.isnan(latency):
            raise ValueError(f"epoch latency of {gpu} is {latency} s; it must be positive and finite")
    costed = []
    for offer in offers:
        latency = latency_s_by_gpu.get(offer.gpu_model, math.nan)
        if math.isnan(latency) or (gpu_count is not None and offer.gpu_count != gpu_count):
            continue
        costed.append(CostedOffer(offer, latency, offer.usd_per_hour / _SECONDS_PER_HOUR * latency))
    return sorted(costed, key=lambda item: (item.usd_per_epoch, item.epoch_latency_s, *_identity(item.offer)))


def cheapest(costed: Iterable[CostedOffer]) -> CostedOffer | None:
    """The offer with the lowest cost per epoch, the faster one of two equal; None when there are none."""
    return min(
        costed, key=lambda item: (item.usd_per_epoch, item.epoch_latency_s, *_identity(item.offer)), default=None
    )


def fastest(costed: Iterable[CostedOffer]) -> CostedOffer | None:
    """The offer with the shortest epoch, the cheaper one of two equal; None when there are none."""
    return min(
        costed, key=lambda item: (item.epoch_latency_s, item.usd_per_epoch, *_identity(item.offer)), default=None
    )


def _identity(offer: Offer) -> tuple[str, ...]:
    return (offer.provider, offer.region, offer.instance_type, offer.billing, offer.price_date, offer.source.title)
