"""SIGHUP for daemons: a wish, never an end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


def ignore_hangups() -> None:
    """Let SIGHUP do nothing: no daemon is to die of a reload that comes while it starts or ends."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


@contextlib.contextmanager
def hangups(wish: Callable[[], None]) -> Iterator[None]:
    """Call ``wish`` at every SIGHUP, between any two steps of the main thread; elsewhere signals cannot be had.

    Not through the event loop: taking a handler from it puts the default action back for a moment, which is death.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGHUP, lambda *_: wish())
    signal.siginterrupt(signal.SIGHUP, False)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
