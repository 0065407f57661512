"""SQL over a data directory, for operators: DuckDB reads, and can do nothing else.

DuckDB gets Arrow data sets and tables under fixed names and no access to files or the network; one SELECT is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from gpusonde.collector.storage.local.catalog import SegmentCatalog, SegmentFile
from gpusonde.collector.storage.local.compaction import second_schema, tick_schema
from gpusonde.collector.storage.local.database import Database
from gpusonde.collector.storage.local.facts import LocalFacts
from gpusonde.collector.storage.local.segments import SegmentKind, StoreLayout
from gpusonde.errors import StoreError

# What of the catalogue can be asked, without what only the collector understands.
TABLES = (
    "agents", "blank_counts", "deletions", "epochs", "gaps", "gpu_events", "job_alerts", "job_bindings", "job_states",
    "losses", "rejections", "runs", "segments", "spools", "trees",
)  # fmt: skip


@dataclass(frozen=True)
class SqlAnswer:
    """The rows of an answer.

    Attributes:
        columns: Names.
        types: DuckDB's types.
        rows: Values of Python.
        truncated: Whether there are more.
    """

    columns: list[str]
    types: list[str]
    rows: list[tuple[Any, ...]]
    truncated: bool


def query_store(directory: Path, statement: str, *, limit: int = 1000) -> SqlAnswer:
    """Answer one SELECT over the views ``samples``, ``seconds`` and the tables of the catalogue.

    Args:
        directory: A data directory, also one that a collector is using; what that has in memory only is not seen.
        statement: The SELECT.
        limit: Most rows.

    Raises:
        StoreError: DuckDB is not installed, it is no single SELECT or a wrong one, or it is no data directory.
    """
    try:
        import duckdb  # noqa: PLC0415 - optional
    except ImportError:
        raise StoreError("SQL needs DuckDB, which is not installed: run pip install 'gpusonde[sql]'") from None
    database = Database(StoreLayout(directory).catalog)
    database.open_read_only()
    try:
        with _connected(duckdb, directory, database) as connection:
            try:
                statements = connection.extract_statements(statement)
                if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                    raise StoreError("write one SELECT; nothing else is taken")
                result = connection.execute(statements[0])
                rows = result.fetchmany(limit + 1)
            except duckdb.Error as error:
                raise StoreError(str(error)) from error
            columns = [(str(name), str(kind)) for name, kind, *_ in result.description]
    finally:
        database.close()
    return SqlAnswer([name for name, _ in columns], [kind for _, kind in columns], rows[:limit], len(rows) > limit)


@contextmanager
def _connected(duckdb: Any, directory: Path, database: Database) -> Iterator[Any]:
    segments = SegmentCatalog(database)
    layout = StoreLayout(directory)
    # Of the catalogue, not of the files: of three months there are thousands.
    metrics = sorted({name for gpu in LocalFacts(database).gpus() for name in gpu.metrics})
    with duckdb.connect(":memory:", config={"python_enable_replacements": False}) as connection:
        ticks = segments.files(SegmentKind.MINUTE, SegmentKind.HOUR)
        connection.register("samples", _data_set(layout, ticks, tick_schema(metrics)))
        seconds = segments.files(SegmentKind.SECOND)
        connection.register("seconds", _data_set(layout, seconds, second_schema(metrics)))
        present = {name for (name,) in database.rows("SELECT name FROM sqlite_master")}
        for name in (table for table in TABLES if table in present):
            connection.register(name, _table(database, name))
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection


def _data_set(layout: StoreLayout, files: list[SegmentFile], schema: pa.Schema) -> Any:
    paths = [str(path) for f in files if (path := layout.path(f.kind, f.file_name)).is_file()]
    return ds.dataset(paths, schema=schema, format="parquet") if paths else schema.empty_table()


def _table(database: Database, name: str) -> pa.Table:
    columns = [(str(row[1]), str(row[2])) for row in database.rows(f"PRAGMA table_info({name})")]
    kept = [(column, kind) for column, kind in columns if kind != "BLOB"]
    rows = database.rows(f"SELECT {', '.join(column for column, _ in kept)} FROM {name}")  # noqa: S608 - own text
    types = {"INTEGER": pa.int64(), "REAL": pa.float64()}
    values = zip(*rows, strict=True) if rows else [()] * len(kept)
    return pa.table(
        {
            column: pa.array(list(cells), types.get(kind, pa.string()))
            for (column, kind), cells in zip(kept, values, strict=True)
        }
    )
