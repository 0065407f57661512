"""Signs of life: which part of a daemon stands still, for the watchdog and for ``/-/healthy``."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

# Half of WatchdogSec in our units.
TOLERANCE_S = 15.0


class Heartbeat:
    """One part's promise to come back. Beaten by that part, looked at from any thread.

    Args:
        part: What it is, for people: "the sampler".
        tolerance_s: How late it may be.
        clock: Monotonic seconds.
    """

    def __init__(
        self, part: str, tolerance_s: float = TOLERANCE_S, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._part = part
        self._tolerance_s = tolerance_s
        self._clock = clock
        self._due_s = clock()

    def beat(self, pause_s: float = 0.0) -> None:
        """Say that the part is alive and will say so again after at most ``pause_s`` and some work."""
        self._due_s = self._clock() + pause_s

    def rest(self) -> None:
        """Say that the part has ended as it should: it owes no further beat."""
        self._due_s = math.inf

    def trouble(self) -> str | None:
        """Return what is wrong, or None."""
        late_s = self._clock() - self._due_s
        return f"{self._part} has not moved for {late_s:.0f} s" if late_s > self._tolerance_s else None


class Vitals:
    """All that has to be alive.

    Args:
        checks: Each says what is wrong, or None.
    """

    def __init__(self, *checks: Callable[[], str | None]) -> None:
        self._checks = checks

    def trouble(self) -> str | None:
        """Return the first thing that is wrong, or None."""
        return next((trouble for check in self._checks if (trouble := check()) is not None), None)
