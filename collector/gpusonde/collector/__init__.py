"""The collector: takes the agents' streams, keeps them, finds runs and epochs, answers questions.

The parts that need Arrow, SciPy and the models are imported when they are first asked for: a program that only wants
``gpusonde.collector.client`` does not pay for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpusonde.collector.config import CollectorConfig, ConfigError
    from gpusonde.collector.daemon import CollectorReport, run_collector
    from gpusonde.collector.storage.local.store import LocalStore
    from gpusonde.collector.storage.store import Store

__all__ = ["CollectorConfig", "CollectorReport", "ConfigError", "LocalStore", "Store", "run_collector"]

_HOMES = {
    "CollectorConfig": "gpusonde.collector.config",
    "ConfigError": "gpusonde.collector.config",
    "CollectorReport": "gpusonde.collector.daemon",
    "run_collector": "gpusonde.collector.daemon",
    "LocalStore": "gpusonde.collector.storage.local.store",
    "Store": "gpusonde.collector.storage.store",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - see above

    return getattr(import_module(_HOMES[name]), name)
