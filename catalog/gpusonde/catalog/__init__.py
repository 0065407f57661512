"""GPU specifications, instance offers and prices, each figure with its source."""

from gpusonde.catalog.gpus import AmbiguousName, GpuCatalog, Resolution, UnknownGpuError, load_gpus
from gpusonde.catalog.offers import Offer, OfferCatalog, UnknownProviderError, load_offers
from gpusonde.catalog.ranking import CostedOffer, cheapest, fastest, rank_offers
from gpusonde.catalog.sources import CatalogDataError, Source
from gpusonde.catalog.spec import GpuSpec

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
