"""``Clock``: seconds of a job, real or simulated."""

from __future__ import annotations

import math
import time
from typing import Protocol


class Clock(Protocol):
    """Counts seconds; its zero is where the job's deadline counts from."""

    def now_s(self) -> float:
        """Return the seconds since the clock's zero."""
        ...

    def wait_until(self, time_s: float) -> None:
        """Return when ``time_s`` has come; at once when it has passed."""
        ...


class RealClock:
    """The monotonic clock of this host.

    Args:
        elapsed_s: What the clock shows now; above zero for a job that was started before.
    """

    def __init__(self, elapsed_s: float = 0.0) -> None:
        self._zero_s = time.monotonic() - elapsed_s

    def now_s(self) -> float:
        """Return the seconds since the clock's zero."""
        return time.monotonic() - self._zero_s

    def wait_until(self, time_s: float) -> None:
        """Sleep until ``time_s``."""
        time.sleep(max(0.0, time_s - self.now_s()))


class SimulatedClock:
    """A clock that only moves when it is told to.

    Args:
        start_s: What it shows at first.
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = float(start_s)

    def now_s(self) -> float:
        """Return the seconds since the clock's zero."""
        return self._now_s

    def wait_until(self, time_s: float) -> None:
        """Move the clock to ``time_s``; a time that has passed leaves it where it is."""
        if not math.isfinite(time_s):
            raise ValueError(f"a simulated clock cannot wait until {time_s}")
        self._now_s = max(self._now_s, time_s)
