"""``Pace``: keeps background work to its share of a core and lets it be stopped."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable


class StoppedError(Exception):
    """The work is to end here; what is half done is thrown away."""


class Pace:
    """Rests so long after each piece of work that the work keeps to its share.

    Args:
        share: Share of a core, above 0; 1 never rests.
        stop: Ends the work.
        clock: CPU seconds of the working thread, or whatever else is to be shared.
    """

    def __init__(
        self,
        share: float,
        stop: threading.Event | None = None,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._share = share
        self._stop = stop or threading.Event()
        self._clock = clock
        self._worked_from = clock()

    def begin(self) -> None:
        """Note that work begins now."""
        self._worked_from = self._clock()

    def rest(self) -> None:
        """Rest for what was done since the last rest.

        Raises:
            StoppedError: The work is to end.
        """
        worked_s = max(0.0, self._clock() - self._worked_from)
        if self._stop.wait(worked_s * (1.0 / self._share - 1.0)):
            raise StoppedError
        self._worked_from = self._clock()


def step_back() -> None:
    """Let the kernel prefer every other thread of the process to the calling one, where it can tell them apart."""
    with contextlib.suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
