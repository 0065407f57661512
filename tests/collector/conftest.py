"""Collectors and stores on a temporary directory."""

import pytest
from support.running_collector import ThreadCollector


@pytest.fixture
def collector(tmp_path):
    with ThreadCollector(tmp_path / "data") as running:
        yield running
