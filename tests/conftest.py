"""What all tests share: logs that one does not leave to the next, and the one ClickHouse that a process can hold."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """Commands run in process set levels and put their own handlers in the place of all others."""
    root, ours = logging.getLogger(), logging.getLogger("gpusonde")
    before = set(root.handlers)
    levels = root.level, ours.level
    yield
    for handler in set(root.handlers) - before:
        root.removeHandler(handler)
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


@pytest.fixture(scope="session")
def chdb_directory() -> Iterator[Path]:
    """The one directory of this process's engine, kept open: opening it anew takes longer than most tests."""
    from support.store_engines import quick_directory

    from gpusonde.collector.storage.clickhouse.sql import ClickHouseSql, Connection

    with quick_directory() as directory:
        keeper = ClickHouseSql(Connection(f"chdb://{directory}", "keeper"))
        yield directory
        keeper.close()
