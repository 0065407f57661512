"""Whether the collector takes records at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

import grpc

from gpusonde.collector.ingest.session import Stop
from gpusonde.collector.storage.errors import StoreError, StoreFullError
from gpusonde.collector.storage.store import Store

_LOG = logging.getLogger(__name__)
# A disk can stay full for days, and the log may lie on it.
_REMINDER_INTERVAL_S = 300.0


class Gate:
    """Closed while the store cannot be written and while the collector shuts down.

    Args:
        store: Probed until it can be written again.
        executor: Runs the store's blocking calls.
        probe_interval_s: Time between probes.
        on_change: Called with True when the gate opens and False when it closes.
    """

    def __init__(
        self, store: Store, executor: Executor, probe_interval_s: float, on_change: Callable[[bool], None]
    ) -> None:
        self._store = store
        self._executor = executor
        self._probe_interval_s = probe_interval_s
        self._on_change = on_change
        self._stop: Stop | None = None
        self._failed = asyncio.Event()
        self._draining = False

    @property
    def closed(self) -> Stop | None:
        """Why new streams are refused, or None when they are welcome."""
        return self._stop

    def configure(self, probe_interval_s: float) -> None:
        """Change the time between probes."""
        self._probe_interval_s = probe_interval_s

    def store_failed(self, error: StoreError) -> None:
        """Close until the store can be written again."""
        if self._stop:
            return
        _LOG.error("no records are taken: %s; the collector goes on by itself when it can store again", error)
        full = isinstance(error, StoreFullError)
        code = grpc.StatusCode.RESOURCE_EXHAUSTED if full else grpc.StatusCode.UNAVAILABLE
        self._stop = Stop(code, f"the collector cannot store records: {error}")
        self._failed.set()
        self._on_change(False)

    def drain(self) -> None:
        """Close for good: the collector shuts down."""
        self._draining = True
        self._stop = Stop(grpc.StatusCode.UNAVAILABLE, "the collector is shutting down; reconnect in a moment")
        self._on_change(False)

    async def run(self) -> None:
        """Probe a store that failed until it can be written; runs until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._failed.wait()
            reminder_s = loop.time() + _REMINDER_INTERVAL_S
            while (error := await self._probe()) is not None:
                if loop.time() >= reminder_s:
                    _LOG.warning("still no records are taken: %s", error)
                    reminder_s = loop.time() + _REMINDER_INTERVAL_S
            self._failed.clear()
            if not self._draining:
                self._stop = None
                _LOG.info("records are taken again")
                self._on_change(True)

    async def _probe(self) -> StoreError | None:
        """Wait, then try to write; returns why that fails."""
        await asyncio.sleep(self._probe_interval_s)
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._store.check_writable)
        except StoreError as error:
            return error
        return None
