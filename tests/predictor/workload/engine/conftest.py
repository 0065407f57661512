"""One model, fitted once, that no test changes."""

from __future__ import annotations

import pytest
from support.measured_workloads import measured

from gpusonde.catalog import load_gpus
from gpusonde.predictor.workload.engine import WorkloadModel


@pytest.fixture(scope="session")
def catalog():
    return load_gpus()


@pytest.fixture(scope="session")
def measurements(catalog):
    return measured(catalog)


@pytest.fixture(scope="session")
def model(catalog, measurements):
    return WorkloadModel(catalog).fit(measurements)
