"""Group commit: what arrives within a tenth of a second shares one fsync."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

from gpusonde.collector.storage.errors import StoreError
from gpusonde.collector.storage.store import Incoming, Store


class Submitter(Protocol):
    """Who hands records over and wants to know what became of them."""

    def committed(self, sequence: int) -> None:
        """The record is durable, and so are all before it."""

    def failed(self, error: StoreError) -> None:
        """The record is not stored."""


class Committer:
    """Hands records to the store in groups, in their order.

    After a failure everything that waits is failed too: a later record must not be stored over the gap of an earlier
    one. The agents send all of it again.

    Args:
        store: Where to.
        executor: A single thread; the store blocks.
        interval_s: How long the first record of a group waits for others.
        on_failure: Called on the event loop with the error of a failed group.
    """

    def __init__(
        self, store: Store, executor: Executor, interval_s: float, on_failure: Callable[[StoreError], None]
    ) -> None:
        self._store = store
        self._executor = executor
        self._interval_s = interval_s
        self._on_failure = on_failure
        self._waiting: list[tuple[Submitter, Incoming]] = []
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()

    def submit(self, submitter: Submitter, incoming: Incoming) -> None:
        """Queue one record."""
        self._waiting.append((submitter, incoming))
        self._wake.set()

    async def run(self) -> None:
        """Commit until ``close`` is called and nothing waits any more."""
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            while True:
                wake = asyncio.ensure_future(self._wake.wait())
                await asyncio.wait({wake, closing}, return_when=asyncio.FIRST_COMPLETED)
                wake.cancel()
                if not self._waiting:
                    if self._closing.is_set():
                        return
                    continue
                await asyncio.wait({closing}, timeout=self._interval_s)
                await self._commit()
        finally:
            closing.cancel()

    def close(self) -> None:
        """Let ``run`` return once everything submitted so far has been committed."""
        self._closing.set()

    async def _commit(self) -> None:
        group, self._waiting = self._waiting, []
        self._wake.clear()
        records = [incoming for _, incoming in group]
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._store.append, records)
        except StoreError as error:
            group += self._waiting
            self._waiting = []
            for submitter, _ in group:
                submitter.failed(error)
            self._on_failure(error)
        else:
            for submitter, incoming in group:
                submitter.committed(incoming.entry.sequence)
