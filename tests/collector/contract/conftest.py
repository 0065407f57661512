"""Every test here runs once per engine of the store."""

import pytest
from support.store_engines import ENGINES, ClickHouseEngine, make_engine


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
