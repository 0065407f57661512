"""The store on one machine's disk: log, memtable, Parquet segments and SQLite catalogue in one directory.

What the command and the benchmarks use of it can be imported from here; each part is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpusonde.collector.storage.local.backup import BackupReport, backup_store
    from gpusonde.collector.storage.local.export import (
        CompactReport,
        ExportReport,
        StoreSnapshot,
        compact_store,
        export_samples,
    )
    from gpusonde.collector.storage.local.fsck import CheckReport, check_store
    from gpusonde.collector.storage.local.rebuild import rebuild_catalog
    from gpusonde.collector.storage.local.segments import SegmentKind
    from gpusonde.collector.storage.local.sql import SqlAnswer, query_store
    from gpusonde.collector.storage.local.store import LocalStore

_HOMES = {
    "BackupReport": "backup",
    "backup_store": "backup",
    "CompactReport": "export",
    "ExportReport": "export",
    "StoreSnapshot": "export",
    "rebuild_catalog": "rebuild",
    "compact_store": "export",
    "export_samples": "export",
    "CheckReport": "fsck",
    "check_store": "fsck",
    "SegmentKind": "segments",
    "SqlAnswer": "sql",
    "query_store": "sql",
    "LocalStore": "store",
}
__all__ = [
    "BackupReport",
    "CheckReport",
    "CompactReport",
    "ExportReport",
    "LocalStore",
    "SegmentKind",
    "SqlAnswer",
    "StoreSnapshot",
    "backup_store",
    "check_store",
    "compact_store",
    "export_samples",
    "query_store",
    "rebuild_catalog",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - see above

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
