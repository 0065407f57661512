"""GPU specifications, instance offers and prices, each figure with its source."""

from gpusonde.catalog.gpus import AmbiguousName, GpuCatalog, Resolution, UnknownGpuError, load_gpus
from gpusonde.catalog.sources import CatalogDataError, Source
from gpusonde.catalog.spec import GpuSpec

__all__ = [
    "AmbiguousName",
    "CatalogDataError",
    "GpuCatalog",
    "GpuSpec",
    "Resolution",
    "Source",
    "UnknownGpuError",
    "load_gpus",
]
