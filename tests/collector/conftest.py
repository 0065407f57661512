"""Collectors and stores on a temporary directory, and five epochs to put into them."""

from pathlib import Path

import pytest
from support.running_collector import ThreadCollector
from support.trace_records import incoming, trace_records
from support.tracked_store import TrackedStore

from gpusonde.telemetry import read_trace

_DEMO_TRACE = Path(__file__).parents[1] / "data" / "demo_trace.parquet"


@pytest.fixture
def collector(tmp_path):
    with ThreadCollector(tmp_path / "data") as running:
        yield running


@pytest.fixture(scope="module")
def trace():
    return read_trace(_DEMO_TRACE).window(0, 110)


@pytest.fixture(scope="module")
def records(trace):
    return incoming(trace_records(trace))


@pytest.fixture
def setup(tmp_path):
    """Makes stores with tracking, one after the other, and closes them."""
    made = []

    def make(**more):
        made.append(TrackedStore(tmp_path / "data", **more))
        return made[-1]

    yield make
    for one in made:
        one.store.close()
