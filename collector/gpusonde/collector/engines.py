"""The store that a configuration names, made of its options."""

from __future__ import annotations

import socket
from pathlib import Path

from gpusonde.collector.config import CollectorConfig
from gpusonde.collector.storage.clickhouse.facts import Ownership
from gpusonde.collector.storage.clickhouse.samples import ClickHouseOptions
from gpusonde.collector.storage.clickhouse.schema import TableLifetimes
from gpusonde.collector.storage.clickhouse.sql import ClickHouseSql, Connection
from gpusonde.collector.storage.clickhouse.store import ClickHouseStore
from gpusonde.collector.storage.errors import StoreError
from gpusonde.collector.storage.local.compaction import CompactionOptions
from gpusonde.collector.storage.local.retention import MaintenanceOptions, RetentionOptions, TierLimits
from gpusonde.collector.storage.local.samples import StoreOptions
from gpusonde.collector.storage.local.store import LocalStore
from gpusonde.collector.storage.store import Store
from gpusonde.service.durable_files import FileLayer


def make_store(config: CollectorConfig, files: FileLayer | None = None) -> Store:
    """Return the configured store, not open yet.

    Args:
        config: Which engine, and how.
        files: The file operations of the local one.

    Raises:
        StoreError: The database cannot be reached, its client is not installed, or the password cannot be read.
    """
    if config.store.engine != "clickhouse":
        return LocalStore(config.directory, _local_options(config), files=files)
    options = config.clickhouse
    try:
        # Only for the file with the address, and for models.
        config.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{config.directory}: {error.strerror or error}") from error
    return ClickHouseStore(
        ClickHouseSql(_connection(config), create_database=options.create_schema),
        Ownership(config.server.id or socket.gethostname()),
        ClickHouseOptions(
            database=options.database,
            create_schema=options.create_schema,
            retention=TableLifetimes(round(config.store.raw_retention_s), round(config.store.second_retention_s)),
            tail_bytes=options.tail_bytes,
        ),
        place=f"{options.url}, database {options.database}",
    )


def configure_store(store: Store, config: CollectorConfig) -> None:
    """Have a store take over what can change while the collector runs; nothing is read or written.

    All of ClickHouse is fixed by its connection and its schema.
    """
    if isinstance(store, LocalStore):
        store.configure(_local_options(config))


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
