"""GPU specifications, instance offers and prices, each figure with its source."""

from gpusonde.catalog.gpus import AmbiguousName, GpuCatalog, Resolution, UnknownGpuError, load_gpus
from gpusonde.catalog.offers import (
    CostedOffer,
    Offer,
    OfferCatalog,
    UnknownProviderError,
    cheapest,
    fastest,
    load_offers,
    rank_offers,
)
from gpusonde.catalog.spec import CatalogDataError, GpuSpec, Source

__all__ = [
    "AmbiguousName",
    "CatalogDataError",
    "CostedOffer",
    "GpuCatalog",
    "GpuSpec",
    "Offer",
    "OfferCatalog",
    "Resolution",
    "Source",
    "UnknownGpuError",
    "UnknownProviderError",
    "cheapest",
    "fastest",
    "load_gpus",
    "load_offers",
    "rank_offers",
]
