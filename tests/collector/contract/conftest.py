"""Every test here runs once per engine of the store."""

import pytest
from support.store_engines import ENGINES, ClickHouseEngine, make_engine, quick_directory

from gpusonde.collector.storage.clickhouse.sql import ClickHouseSql, Connection


@pytest.fixture(scope="session")
def chdb_directory():
    """The one directory of this process's engine, kept open: opening it anew takes longer than most tests."""
    with quick_directory() as directory:
        keeper = ClickHouseSql(Connection(f"chdb://{directory}", "keeper"))
        yield directory
        keeper.close()


@pytest.fixture(params=ENGINES)
def engine(request, tmp_path):
    directory = request.getfixturevalue("chdb_directory") if request.param == "chdb" else tmp_path
    made = make_engine(request.param, tmp_path / "data", directory)
    yield made
    if isinstance(made, ClickHouseEngine):
        made.drop()
    else:
        made.close()


@pytest.fixture
def clickhouse(chdb_directory, tmp_path):
    """The engine on ClickHouse alone."""
    made = make_engine("chdb", tmp_path, chdb_directory)
    yield made
    made.drop()
