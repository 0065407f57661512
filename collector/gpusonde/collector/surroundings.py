"""What surrounds a running collector: threads, who tracks epochs, what tells it to stop, the file with its address."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from gpusonde.collector.config import CollectorConfig
from gpusonde.collector.tracking.epochs import TrackerFactory, TrackerRestorer
from gpusonde.collector.tracking.processes.pool import TrackerProcesses
from gpusonde.epoch_detect import EpochTracker

_ADDRESS_FILE = "address"
_POLL_S = 0.05


@contextlib.contextmanager
def executors(*names: str) -> Iterator[dict[str, Executor]]:
    """Make one thread per name: each kind of work is done in order and does not wait for the others."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix=name)) for name in names}


@contextlib.contextmanager
def trackers(config: CollectorConfig, make_tracker: TrackerFactory) -> Iterator[tuple[TrackerFactory, TrackerRestorer]]:
    """Say where trackers come from: this process, or others."""
    if not config.runs.processes:
        yield make_tracker, EpochTracker.restore
        return
    with contextlib.closing(TrackerProcesses(config.runs.processes)) as processes:
        yield processes.make, processes.restore


@contextlib.contextmanager
def stop_signals(stopping: asyncio.Event, hurrying: asyncio.Event) -> Iterator[None]:
    """Have SIGTERM and SIGINT set the first event, and when they come again the second, in the main thread."""

    def stop() -> None:
        if stopping.is_set():
            hurrying.set()
        stopping.set()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def told_to_stop(stopping: asyncio.Event, stop: threading.Event | None) -> None:
    """Return when a signal has set the one event, or another thread the other."""
    while not (stop and stop.is_set()):
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stopping.wait(), _POLL_S if stop else None)
            return


@contextlib.contextmanager
def address_file(directory: Path) -> Iterator[Path]:
    """The file that holds the collector's address while it serves; ``announce`` writes it."""
    path = directory / _ADDRESS_FILE
    path.unlink(missing_ok=True)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def announce(path: Path, address: str) -> None:
    """Write the file as a whole: who finds it finds an address."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(address + "\n")
    temporary.rename(path)
