"""Looks after the store in the background for as long as the collector runs."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Executor
from typing import Protocol

from gpusonde.collector.storage.errors import StoreError

_LOG = logging.getLogger(__name__)
_PAUSE_S = 20.0


class Maintenance(Protocol):
    """What a store has done to itself now and then."""

    def run(self, stop: threading.Event) -> None:
        """Do all that is due, or stop."""


async def look_after(maintenance: Maintenance, executor: Executor, pause_s: float = _PAUSE_S) -> None:
    """Have maintenance done until cancelled; what it is at then is given up soon, and done again after the next start.

    Args:
        maintenance: The work; it blocks.
        executor: A thread for nothing else.
        pause_s: Time between two looks at what is due.
    """
    stop = threading.Event()
    try:
        while True:
            await asyncio.sleep(pause_s)
            try:
                await asyncio.shield(asyncio.get_running_loop().run_in_executor(executor, maintenance.run, stop))
            except StoreError as error:
                # Samples stay where they are; the next look tries again.
                _LOG.error("segments cannot be compacted or deleted now: %s", error)
            except Exception:  # a fault here must not end the collector, which loses nothing by it
                _LOG.exception("segments are not compacted or deleted")
    finally:
        stop.set()
