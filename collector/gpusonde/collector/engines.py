"""The store's engines as a collector runs them: made of the configuration, with what they do in the background."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from gpusonde.collector.config import CollectorConfig
from gpusonde.collector.storage.clickhouse.facts import Ownership
from gpusonde.collector.storage.clickhouse.results import ClickHouseResults
from gpusonde.collector.storage.clickhouse.schema import Retention
from gpusonde.collector.storage.clickhouse.sql import ClickHouseSql, Connection
from gpusonde.collector.storage.clickhouse.store import ClickHouseOptions, ClickHouseStates, ClickHouseStore
from gpusonde.collector.storage.errors import StoreError
from gpusonde.collector.storage.local.compaction import CompactionOptions
from gpusonde.collector.storage.local.results import Results
from gpusonde.collector.storage.local.retention import MaintenanceOptions, RetentionOptions, TierLimits
from gpusonde.collector.storage.local.store import LocalStore, StoreOptions
from gpusonde.collector.storage.store import (
    Engine,
    OwnersListener,
    ResultStore,
    StateStore,
    Store,
    StoreCounters,
    StoreUsage,
)
from gpusonde.collector.supervisor import look_after
from gpusonde.service.durable_files import FileLayer

_LOG = logging.getLogger(__name__)
_MOST_SEAL_CHECK_S = 1.0
_OWNER_CHECK_S = 5.0


def make_engine(config: CollectorConfig, files: FileLayer | None = None) -> Engine:
    """Return the configured engine, not open yet.

    Args:
        config: Which one, and how.
        files: The file operations of the local one.

    Raises:
        StoreError: The database cannot be reached, its client is not installed, or the password cannot be read.
    """
    return ClickHouseEngine(config) if config.store.engine == "clickhouse" else LocalEngine(config, files)


class LocalEngine:
    """Everything in one directory of this machine.

    Args:
        config: Where and how.
        files: The file operations.
    """

    def __init__(self, config: CollectorConfig, files: FileLayer | None = None) -> None:
        self._store = LocalStore(config.directory, _local_options(config), files=files)
        self._segment_interval_s = config.store.segment_interval_s
        self.store: Store = self._store
        self.results: ResultStore = Results(self._store.database)
        self.states: StateStore = self._store.tracking_states
        self.counters: StoreCounters = self._store.counters
        self.place = str(config.directory)

    def open(self) -> None:
        """See ``Engine.open``."""
        self._store.open()

    def close(self) -> None:
        """See ``Engine.close``."""
        self._store.close()

    def memory_share(self) -> float:
        """See ``Engine.memory_share``."""
        return self._store.memory_share()

    def usage(self) -> StoreUsage:
        """See ``Engine.usage``."""
        return self._store.usage()

    def configure(self, config: CollectorConfig) -> None:
        """See ``Engine.configure``."""
        self._segment_interval_s = config.store.segment_interval_s
        self._store.configure(_local_options(config))

    def finish(self) -> None:
        """Turn the log into a segment; the next start would have to read it."""
        self._store.seal()

    def background(self, executors: Mapping[str, Executor]) -> Sequence[Coroutine[Any, Any, None]]:
        """Seal, compact, delete what is too old."""
        return [self._seal_for_ever(executors["seal"]), look_after(self._store.maintenance, executors["maintain"])]

    async def _seal_for_ever(self, executor: Executor) -> None:
        while True:
            await asyncio.sleep(min(self._segment_interval_s / 4, _MOST_SEAL_CHECK_S))
            try:
                await asyncio.shield(asyncio.get_running_loop().run_in_executor(executor, self._store.seal_if_due))
            except StoreError as error:
                # Samples stay in the log and in memory; ingest stops by itself when that gets too much.
                _LOG.error("no segment could be written: %s", error)

    def followed(self) -> list[tuple[str, str]]:
        """See ``Engine.followed``: all of them."""
        return [(gpu.agent_id, gpu.gpu_uuid) for gpu in self._store.gpus()]

    def subscribe_to_owners(self, listener: OwnersListener) -> None:
        """Do nothing: the directory is locked, no other collector has any agents of it."""


class ClickHouseEngine:
    """Everything in a database that other collectors share.

    Args:
        config: Where and how.

    Raises:
        StoreError: The database cannot be reached, its client is not installed, or the password cannot be read.
    """

    def __init__(self, config: CollectorConfig) -> None:
        options = config.clickhouse
        self._directory = config.directory
        self._sql = ClickHouseSql(_connection(config), create_database=options.create_schema)
        self._ownership = Ownership(config.server.id or socket.gethostname())
        self._store = ClickHouseStore(
            self._sql,
            self._ownership,
            ClickHouseOptions(
                database=options.database,
                create_schema=options.create_schema,
                retention=Retention(round(config.store.raw_retention_s), round(config.store.second_retention_s)),
                tail_bytes=options.tail_bytes,
            ),
        )
        self.store: Store = self._store
        self.results: ResultStore = ClickHouseResults(self._sql, self._ownership)
        self.states: StateStore = ClickHouseStates(self._sql, self._ownership)
        self.counters: StoreCounters = self._store.counters
        self.place = f"{options.url}, database {options.database}"

    def open(self) -> None:
        """See ``Engine.open``; the directory is only for the file with the address, and for models."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._store.open()
        except OSError as error:
            self._sql.close()
            raise StoreError(f"{self._directory}: {error.strerror or error}") from error
        except StoreError:
            self._sql.close()
            raise

    def close(self) -> None:
        """See ``Engine.close``."""
        self._store.close()

    def memory_share(self) -> float:
        """Return 0: no samples wait here, an insert has succeeded or the stream ends."""
        return 0.0

    def usage(self) -> StoreUsage:
        """Return what the tables take on the server's disks, of all collectors."""
        sizes = dict(
            self._sql.rows(
                "SELECT table, toInt64(sum(bytes_on_disk)) FROM system.parts"
                " WHERE active AND database = currentDatabase() GROUP BY table"
            )
        )
        raw, second = sizes.pop("samples", 0), sizes.pop("samples_1s", 0)
        return StoreUsage({"raw": raw, "second": second, "catalog": sum(sizes.values())})

    def configure(self, config: CollectorConfig) -> None:
        """Do nothing: all of it is fixed by the connection and the schema."""

    def finish(self) -> None:
        """Do nothing: everything is in its place."""

    def background(self, executors: Mapping[str, Executor]) -> Sequence[Coroutine[Any, Any, None]]:
        """Look whether agents have gone to other collectors."""
        return [self._watch_owners(executors["maintain"])]

    async def _watch_owners(self, executor: Executor) -> None:
        while True:
            await asyncio.sleep(_OWNER_CHECK_S)
            try:
                lost = await asyncio.shield(
                    asyncio.get_running_loop().run_in_executor(executor, self._store.check_owners)
                )
            except StoreError as error:
                _LOG.error("whose agents are whose cannot be read now: %s", error)
                continue
            if lost:
                _LOG.info("agents have gone to other collectors: %s", ", ".join(sorted(lost)))

    def followed(self) -> list[tuple[str, str]]:
        """See ``Engine.followed``: all but those of agents that greeted another collector last."""
        return self._store.followed()

    def subscribe_to_owners(self, listener: OwnersListener) -> None:
        """See ``Engine.subscribe_to_owners``."""
        self._ownership.subscribe(listener)


def _connection(config: CollectorConfig) -> Connection:
    options = config.clickhouse
    try:
        password = Path(options.password_file).read_text().rstrip("\n") if options.password_file else ""
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"the password of ClickHouse cannot be read from {options.password_file}: {error}") from error
    return Connection(
        options.url,
        options.database,
        options.user,
        password,
        connect_timeout_s=options.connect_timeout_s,
        timeout_s=options.timeout_s,
        ca_file=options.tls_ca,
        certificate_file=options.tls_certificate,
        key_file=options.tls_key,
    )


def _local_options(config: CollectorConfig) -> StoreOptions:
    store = config.store
    return StoreOptions(
        segment_interval_s=store.segment_interval_s,
        segment_bytes=store.segment_bytes,
        memory_bytes=store.memory_bytes,
        reserve_bytes=store.reserve_bytes,
        cache_bytes=store.cache_bytes,
        maintenance=MaintenanceOptions(
            enabled=store.compact,
            share=store.compact_share,
            compaction=CompactionOptions(delay_s=store.compact_after_s),
            retention=RetentionOptions(
                raw=TierLimits(store.raw_retention_s, store.raw_max_bytes),
                second=TierLimits(store.second_retention_s, store.second_max_bytes),
                free_bytes=store.keep_free_bytes,
                hold_untracked=config.runs.track,
            ),
        ),
    )
