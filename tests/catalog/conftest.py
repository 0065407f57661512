"""The shipped catalogue, loaded once for the tests that only read it."""

import pytest

from gpusonde.catalog import GpuCatalog, OfferCatalog, load_gpus, load_offers


@pytest.fixture(scope="session")
def gpus() -> GpuCatalog:
    return load_gpus()


@pytest.fixture(scope="session")
def offers(gpus: GpuCatalog) -> OfferCatalog:
    return load_offers(gpus=gpus)
