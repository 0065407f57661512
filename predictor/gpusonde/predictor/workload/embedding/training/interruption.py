"""Ctrl-C while training: the step under way is finished and saved; a second Ctrl-C ends at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[Callable[[], bool]]:
    """Take SIGINT as a wish to stop, in the main thread and where it is not ignored, as it is in background jobs.

    Yields:
        Whether it came.
    """
    came = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:
        yield came.is_set
        return

    def note(number: int, frame: FrameType | None) -> None:
        came.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, note)
    try:
        yield came.is_set
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.default_int_handler)
