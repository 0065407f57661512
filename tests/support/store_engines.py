"""The store's engines behind one face, for tests of what all of them promise.

chdb is ClickHouse's engine in this process. A process has one directory for it, so every test gets a database of its
own in the directory of the session. With ``GPUSONDE_CLICKHOUSE_URL`` (and ``GPUSONDE_CLICKHOUSE_USER``,
``GPUSONDE_CLICKHOUSE_PASSWORD``) the same tests run against a server too; they make and drop databases there whose
names begin with ``gpusonde_test_``.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from support.faulty_files import FaultyFiles

from gpusonde.collector import LocalStore
from gpusonde.collector.config import ClickHouseConfig, StoreConfig
from gpusonde.collector.storage.clickhouse.facts import Ownership
from gpusonde.collector.storage.clickhouse.sql import ClickHouseSql
from gpusonde.collector.storage.clickhouse.store import ClickHouseStore
from gpusonde.collector.storage.store import ResultStore, StateStore
from gpusonde.errors import StoreError

SERVER_URL = os.environ.get("GPUSONDE_CLICKHOUSE_URL", "")
ENGINES = ["local", "chdb", *(["server"] if SERVER_URL else [])]


@contextlib.contextmanager
def quick_directory() -> Iterator[Path]:
    """A directory in memory where there is one: the engine syncs every insert, and these tests lose no power."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as directory:
        yield Path(directory)


class LocalEngine:
    """The store on this machine's disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files = FaultyFiles()
        self.store: LocalStore | None = None

    def open(self) -> LocalStore:
        """A new store on the same data; the one before is closed."""
        self.close()
        self.store = LocalStore(self._directory, StoreConfig(reserve_bytes=0), files=self._files)
        self.store.open()
        return self.store

    @property
    def results(self) -> ResultStore:
        """Runs and epochs of the open store."""
        return self.store.results

    @property
    def states(self) -> StateStore:
        """What tracking knows, of the open store."""
        return self.store.states

    def settle(self) -> None:
        """Do what the engine does in the background."""
        self.store.flush()

    def break_before_acknowledging(self) -> None:
        """Have the next append fail when its data are written and not yet known to be."""
        self._files.sync_fails = True

    def repair(self) -> None:
        """Have everything work again."""
        self._files.sync_fails = False

    def close(self) -> None:
        """Close the store."""
        if self.store:
            self.store.close()
        self.store = None


class BreakingSql(ClickHouseSql):
    """A database that can fail before one table is written."""

    breaks_at = ""

    def insert(self, table, rows):
        if table == self.breaks_at:
            raise StoreError(f"the connection broke before {table} was written")
        super().insert(table, rows)


class ClickHouseEngine:
    """The store in a database of its own."""

    def __init__(self, config: ClickHouseConfig, collector: str = "collector-1", clock_ns=time.time_ns) -> None:
        self.config = config
        self.collector = collector
        self.clock_ns = clock_ns
        self.ownership: Ownership | None = None
        self.sql: BreakingSql | None = None
        self.store: ClickHouseStore | None = None

    def open(self) -> ClickHouseStore:
        """A new store on the same data; the one before is closed."""
        self.close()
        self.sql = BreakingSql(self.config)
        self.ownership = Ownership(self.collector, self.clock_ns)
        self.store = ClickHouseStore(
            self.sql,
            self.ownership,
            StoreConfig(),
            wall_clock_ns=self.clock_ns,
        )
        self.store.open()
        return self.store

    @property
    def results(self) -> ResultStore:
        """Runs and epochs of the open store."""
        return self.store.results

    @property
    def states(self) -> StateStore:
        """What tracking knows, of the open store."""
        return self.store.states

    def beside(self, collector: str, clock_ns=time.time_ns) -> ClickHouseEngine:
        """Another collector on the same database; the caller opens and closes it."""
        return ClickHouseEngine(self.config, collector, clock_ns)

    def settle(self) -> None:
        """Do what the engine does in the background: merge."""
        self.sql.run("OPTIMIZE TABLE samples FINAL")

    def break_before_acknowledging(self) -> None:
        """Have the next append fail when its samples are in the database and the durable sequence is not."""
        self.sql.breaks_at = "progress"

    def repair(self) -> None:
        """Have everything work again."""
        self.sql.breaks_at = ""

    def close(self) -> None:
        """Close the store."""
        if self.store:
            self.store.close()
        self.store = None

    def drop(self) -> None:
        """Close the store and remove its database."""
        self.close()
        sql = ClickHouseSql(self.config)
        sql.run(f"DROP DATABASE {self.config.database}")
        sql.close()


def make_engine(kind: str, directory: Path, chdb_directory: Path) -> LocalEngine | ClickHouseEngine:
    """An engine of a kind, empty."""
    if kind == "local":
        return LocalEngine(directory)
    name = f"gpusonde_test_{uuid.uuid4().hex}"
    if kind == "chdb":
        return ClickHouseEngine(ClickHouseConfig(f"chdb://{chdb_directory}", name))
    user = os.environ.get("GPUSONDE_CLICKHOUSE_USER", "default")
    password = directory / "clickhouse-password"
    password.write_text(os.environ.get("GPUSONDE_CLICKHOUSE_PASSWORD", ""))
    return ClickHouseEngine(ClickHouseConfig(SERVER_URL, name, user, str(password)))
