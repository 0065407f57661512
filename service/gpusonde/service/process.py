"""What a daemon does with its process: signals, log lines, start-up memory, open files, and ending its tasks.

Tasks are awaited and ended so that a cancellation is never lost: ``asyncio.wait_for`` before Python 3.12 swallows one
that arrives together with the result (python/cpython issue 86296); the task then lives on, and whoever waits for its
end waits in vain.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import ctypes.util
import json
import logging
import re
import resource
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO, TypeVar

from gpusonde.formatting import printable


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ``time`` (ISO 8601, UTC), ``level``, ``logger``, ``message``, ``exception`` if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record."""
        entry = {
            "time": datetime.fromtimestamp(record.created, tz=timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """``2026-01-31 12:00:00.000 WARNING agent.uplink: message``, local time."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class's name
        """Leave the distribution's own name out of our loggers' names."""
        record.name = record.name.removeprefix("gpusonde.")
        return printable(super().formatMessage(record))


def configure(log_format: str, *, verbose: bool, level: int, stream: TextIO | None = None) -> None:
    """Send log records of ``level`` and above to ``stream``, stderr by default; our own from DEBUG when verbose."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_formatter(log_format))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    logging.getLogger("gpusonde").setLevel(logging.DEBUG if verbose else level)


def set_format(name: str) -> None:
    """Change the form of the lines.

    Args:
        name: ``text`` or ``json``.
    """
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_formatter(name))


def set_level(name: str) -> None:
    """Change how much gpusonde's own loggers say.

    Args:
        name: ``debug``, ``info``, ``warning`` or ``error``.
    """
    logging.getLogger("gpusonde").setLevel(name.upper())


def _formatter(name: str) -> logging.Formatter:
    return JsonFormatter() if name == "json" else TextFormatter()


_LOG = logging.getLogger(__name__)

_SMAPS = Path("/proc/self/smaps")
# madvise(2): pages are dropped now and read from their file again should they be needed.
_MADV_DONTNEED = 4
_HEAD = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (r-[x-]p) \S+ \S+ ([0-9]+)\s+(/.*)?$")
_MOST_SMAPS_CHARACTERS = 16 << 20


def release_startup_memory() -> None:
    """Give back free heap, and the pages of libraries that imports have touched and nothing uses any more.

    A library's pages lie in its file: those that are used come back by themselves, one short fault each. What stays is
    what the process works with, some 20 MiB less for an agent. Does nothing where the system is not Linux with glibc.
    """
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        with _SMAPS.open() as file:
            text = file.read(_MOST_SMAPS_CHARACTERS)
        for start, end in unchanged_file_mappings(text):
            libc.madvise(start, end - start, _MADV_DONTNEED)
    except (OSError, AttributeError) as error:
        _LOG.debug("memory of the start is kept: %s", error)
    release_free_memory()


def release_free_memory() -> None:
    """Give back free heap, which glibc keeps in pieces for each thread that ever took some; other systems keep it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


# prctl(2)
_PR_SET_TIMERSLACK, _PR_GET_TIMERSLACK = 29, 30


@contextlib.contextmanager
def late_timers(slack_s: float) -> Iterator[None]:
    """Let the kernel wake this thread up to so much later than it asks for, together with others; others not at all.

    That holds for threads that are begun meanwhile, too, for good. A core that sleeps wakes up less often then, and
    what it runs finds its caches warm. Data and signals still come at once: only waits that time out are longer. Does
    nothing where the system is not Linux.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None
    if prctl is None:
        yield
        return
    before_ns = prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0)
    prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(round(slack_s * 1e9)), 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(before_ns), 0, 0, 0)


def unchanged_file_mappings(smaps: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of the private, read-only mappings of files whose pages are all as in the file.

    Mappings that the loader has written to (relocations) are read-only as well, and must not be dropped: they show
    anonymous pages.

    Args:
        smaps: The text of ``/proc/PID/smaps``.
    """
    mapping: tuple[int, int] | None = None
    for line in smaps.splitlines():
        if line.startswith("Anonymous:"):
            if mapping and line.split()[1] == "0":
                yield mapping
            mapping = None
        elif "-" in line.partition(" ")[0]:
            head = _HEAD.match(line)
            mapping = (int(head[1], 16), int(head[2], 16)) if head and head[4] != "0" and head[5] else None


def allow_open_files(wanted: int) -> int:
    """Raise the soft limit towards what is wanted, as far as the hard limit allows; return the limit in force.

    The soft limit of a shell and of systemd is 1024 for the sake of programs that use ``select``; raising it is left to
    those that do not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft >= reachable:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    except (OSError, ValueError):
        # A sandbox may forbid it; the caller says what the limit that stays is good for.
        return soft
    return reachable


def ignore_hangups() -> None:
    """Let SIGHUP do nothing: no daemon is to die of a reload that comes while it starts or ends."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


@contextlib.contextmanager
def sighup_handler(callback: Callable[[], None]) -> Iterator[None]:
    """Call ``callback`` at every SIGHUP, between any two steps of the main thread; elsewhere signals cannot be had.

    Not through the event loop: taking a handler from it puts the default action back for a moment, which is death.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGHUP, lambda *_: callback())
    signal.siginterrupt(signal.SIGHUP, False)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


class Shutdown:
    """Tells a daemon to stop: SIGTERM, SIGINT or another thread's event; one more signal forces it.

    Args:
        stop: Stops the daemon like a signal, for callers outside of the main thread.

    Attributes:
        requested: Set once the daemon is to stop.
        forced: Set once it is to wait for nothing more.
    """

    def __init__(self, stop: threading.Event | None = None) -> None:
        self.requested = asyncio.Event()
        self.forced = asyncio.Event()
        self._stop = stop

    @contextlib.contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Take SIGTERM and SIGINT on the running event loop; only the main thread gets them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self._take_signal, signal.Signals(number).name)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    async def wait(self) -> None:
        """Return once the daemon is to stop; without this, the other thread's event is not noticed."""
        while self._stop is not None and not self.requested.is_set():
            if self._stop.is_set():
                self.requested.set()
            with contextlib.suppress(asyncio.TimeoutError):
                await within(self.requested.wait(), _POLL_S)
        await self.requested.wait()

    def _take_signal(self, name: str) -> None:
        if self.requested.is_set():
            self.forced.set()
        self.requested.set()
        _LOG.info("%s: stopping", name)


_T = TypeVar("_T")

_CANCEL_AGAIN_S = 1.0
_POLL_S = 0.05


async def within(work: Coroutine[Any, Any, _T], timeout_s: float | None) -> _T:
    """Return the result of ``work``.

    Raises:
        asyncio.TimeoutError: It took longer than ``timeout_s``; it is cancelled then.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
        if task.done():
            return task.result()
        raise asyncio.TimeoutError
    finally:
        await end(task)


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and return once they are over; what they raise is theirs."""
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_CANCEL_AGAIN_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()
