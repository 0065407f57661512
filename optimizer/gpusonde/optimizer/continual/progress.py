"""``ProgressWindow``: how fast a job advances of late, with the 95 % bound of it (Srifty, section 4.5).

It is fed by what the job reports, or by ``EpochProgress``: iterations from epochs that were detected from outside,
without instrumentation. ``Clock`` counts a job's seconds, real or simulated.
"""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from scipy.special import stdtrit


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


# The spread that rates have at the least, so that two equal ones do not look certain.
_LEAST_SPREAD = 0.01
# A rate is known when its interval is no wider than this share of it to either side.
_KNOWN_WITHIN = 0.25
_FEWEST = 4


@dataclass(frozen=True)
class Throughput:
    """Iterations per second over the window.

    Attributes:
        mean: Iterations by seconds.
        low: Lower end of the interval of the mean.
        high: Upper end: the optimistic one.
        span_s: Seconds that were looked at.
        intervals: Between how many observations.
    """

    mean: float
    low: float
    high: float
    span_s: float
    intervals: int

    @property
    def certain(self) -> bool:
        """Whether the mean is known well enough to be reckoned with."""
        return self.mean > 0 and self.high - self.mean <= _KNOWN_WITHIN * self.mean


class ProgressWindow:
    """Remembers the latest observations of a job's progress.

    Memory is bounded: beyond ``capacity`` observations within the window every second one is dropped, which widens the
    intervals and leaves their sum as it is. Where fewer than four observations fall into the window (epochs longer
    than it), the latest four are used however old they are.

    An observation with a time or count that is not finite, a count below zero, or a time not after the one before it is
    left out. A count that goes back is a restart from a checkpoint: the window begins
    anew there, and ``restarts`` counts it.

    Args:
        window_s: Length of the window in seconds.
        confidence: Of the two-sided interval.
        capacity: Most observations that are kept.
    """

    def __init__(self, window_s: float = 300.0, *, confidence: float = 0.95, capacity: int = 512) -> None:
        if not window_s > 0:
            raise ValueError(f"a window is longer than zero seconds, not {window_s}")
        if not 0 < confidence < 1:
            raise ValueError(f"a confidence lies between 0 and 1, not at {confidence}")
        if capacity < _FEWEST:
            raise ValueError(f"a window keeps four observations or more, not {capacity}")
        self.window_s = window_s
        self.restarts = 0
        self._confidence = confidence
        self._capacity = capacity
        self._points: deque[tuple[float, float]] = deque()

    def __len__(self) -> int:
        return len(self._points)

    @property
    def completed(self) -> float:
        """Iterations at the latest observation; 0 before the first."""
        return self._points[-1][1] if self._points else 0.0

    @property
    def latest_s(self) -> float | None:
        """Time of the latest observation, or None."""
        return self._points[-1][0] if self._points else None

    def observe(self, time_s: float, completed: float) -> bool:
        """Take the number of iterations completed at a time.

        Returns:
            False when the observation was left out.
        """
        if not (math.isfinite(time_s) and math.isfinite(completed) and completed >= 0):
            return False
        if self._points:
            last_s, last = self._points[-1]
            if time_s <= last_s:
                return False
            if completed < last:
                self.restarts += 1
                self._points.clear()
        self._points.append((time_s, completed))
        while len(self._points) > _FEWEST and self._points[1][0] <= time_s - self.window_s:
            self._points.popleft()
        if len(self._points) > self._capacity:
            points = list(self._points)
            self._points = deque(points[:-1][::2])
            self._points.append(points[-1])
        return True

    def clear(self) -> None:
        """Forget the observations: other machines do the work from now on."""
        self._points.clear()

    def throughput(self) -> Throughput | None:
        """Return the throughput over the window, or None before two observations."""
        if len(self._points) < 2:
            return None
        points = list(self._points)
        spans = [b[0] - a[0] for a, b in pairwise(points)]
        rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(points)]
        total_s = points[-1][0] - points[0][0]
        mean = (points[-1][1] - points[0][1]) / total_s
        count = len(rates)
        if count < 2:
            # One interval says nothing of the spread: anything from standstill to twice the rate.
            return Throughput(mean, 0.0, 2 * mean, total_s, count)
        # Long intervals weigh more; the effective number of intervals says how much is known of the mean.
        weights = [span / total_s for span in spans]
        variance = sum(w * (rate - mean) ** 2 for w, rate in zip(weights, rates, strict=True))
        effective = max(2.0, 1.0 / sum(w * w for w in weights))
        variance = max(variance * effective / (effective - 1), (_LEAST_SPREAD * mean) ** 2)
        reach = float(stdtrit(effective - 1, 0.5 + self._confidence / 2)) * math.sqrt(variance / effective)
        return Throughput(mean, max(0.0, mean - reach), mean + reach, total_s, count)


@dataclass(frozen=True)
class Projection:
    """When a job will end, seconds on the job's clock; infinite where it stands still.

    Attributes:
        end_s: At the mean rate.
        low_s: At the optimistic rate.
        high_s: At the pessimistic rate.
    """

    end_s: float
    low_s: float
    high_s: float


def project(now_s: float, remaining: float, throughput: Throughput) -> Projection:
    """Return when ``remaining`` iterations will be done at a throughput."""

    def end(rate: float) -> float:
        return now_s if remaining <= 0 else now_s + remaining / rate if rate > 0 else math.inf

    return Projection(end(throughput.mean), end(throughput.high), end(throughput.low))


class EpochProgress:
    """Turns the epochs of a run into observations of progress.

    A detector reports epochs as they end, corrects their ends and withdraws some (``EpochEvent`` of the epoch detector:
    pass ``epoch.index``, ``epoch.end_s``). Progress is the number of epochs that stand, times the iterations of
    an epoch; what lies between two ends is not known and counts for nothing, so that a window holds three epochs at
    least, however long.

    Memory is bounded: of epochs older than the latest ``capacity`` only their number is kept.

    Args:
        iterations_per_epoch: Iterations of one epoch.
        offset_s: Added to the detector's times to get the job's clock.
        capacity: How many of the latest epochs can still be corrected.
    """

    def __init__(self, iterations_per_epoch: float, *, offset_s: float = 0.0, capacity: int = 256) -> None:
        if not (math.isfinite(iterations_per_epoch) and iterations_per_epoch > 0):
            raise ValueError(f"an epoch has iterations, not {iterations_per_epoch}")
        if capacity < 4:
            raise ValueError(f"four epochs or more are kept, not {capacity}")
        self._per_epoch = float(iterations_per_epoch)
        self._offset_s = offset_s
        self._capacity = capacity
        self._ends_s: dict[int, float] = {}
        self._settled = 0
        self._settled_end_s = -math.inf

    @property
    def completed(self) -> float:
        """Iterations in the epochs that stand."""
        return (self._settled + len(self._ends_s)) * self._per_epoch

    def report(self, index: int, end_s: float) -> bool:
        """Take an epoch, new or corrected.

        Args:
            index: Identifies it within the run.
            end_s: Its end, on the detector's time.

        Returns:
            False when it was left out: its end is not finite, or it is older than what can be corrected.
        """
        if not math.isfinite(end_s) or end_s + self._offset_s <= self._settled_end_s:
            return False
        self._ends_s[index] = end_s + self._offset_s
        if len(self._ends_s) > self._capacity:
            first = min(self._ends_s, key=self._ends_s.__getitem__)
            self._settled_end_s = self._ends_s.pop(first)
            self._settled += 1
        return True

    def withdraw(self, index: int) -> bool:
        """Take back an epoch that turned out to be none.

        Returns:
            False when it is unknown or too old to be corrected.
        """
        if index not in self._ends_s:
            return False
        del self._ends_s[index]
        return True

    def window(self, window_s: float = 300.0, *, confidence: float = 0.95) -> ProgressWindow:
        """Return the epochs' ends as observations of progress.

        It is built afresh, since an epoch that is withdrawn changes every count after it.
        """
        window = ProgressWindow(window_s, confidence=confidence)
        for number, end_s in enumerate(sorted(self._ends_s.values()), start=self._settled + 1):
            window.observe(end_s, number * self._per_epoch)
        return window
