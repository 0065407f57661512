"""``ProgressWindow``: how fast a job advances of late, with the 95 % bound of it (Srifty, section 4.5).

It is fed by what the job reports, or by the ends of epochs that were detected from outside, without instrumentation.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from scipy.special import stdtrit

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
