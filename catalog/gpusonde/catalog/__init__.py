"""GPU specifications, instance offers and prices, each figure with its source."""

from gpusonde.catalog.gpus import AmbiguousName, GpuCatalog, Resolution, load_gpus
from gpusonde.catalog.offers import (
    CostedOffer,
    Offer,
    OfferCatalog,
    cheapest,
    fastest,
    load_offers,
    own_offers_file,
    rank_offers,
)
from gpusonde.catalog.others import OtherAccelerator
from gpusonde.catalog.spec import GpuSpec, Precision, Source
from gpusonde.errors import CatalogError, UnknownGpuError

__all__ = [
    "AmbiguousName",
    "CatalogError",
    "CostedOffer",
    "GpuCatalog",
    "GpuSpec",
    "Offer",
    "OfferCatalog",
    "OtherAccelerator",
    "Precision",
    "Resolution",
    "Source",
    "UnknownGpuError",
    "cheapest",
    "fastest",
    "load_gpus",
    "load_offers",
    "own_offers_file",
    "rank_offers",
]
