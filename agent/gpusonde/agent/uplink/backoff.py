"""Waiting between attempts to connect: exponential, with full jitter.

Full jitter (a uniform draw from zero to the bound) spreads a fleet that lost its collector at one moment better than
jitter around the bound does.
"""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Seconds to wait before the next attempt.

    Args:
        initial_s: Bound of the first wait.
        maximum_s: Bound that later waits double up to.
        uniform: Draws from an interval.
    """

    def __init__(
        self,
        initial_s: float = 0.5,
        maximum_s: float = 30.0,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._initial_s = initial_s
        self._maximum_s = maximum_s
        self._uniform = uniform
        self._attempt = 0

    def reset(self) -> None:
        """Begin again: a collector answered."""
        self._attempt = 0

    def next_s(self) -> float:
        """Return the wait after one more failure that may pass."""
        bound_s = min(self._maximum_s, self._initial_s * 2.0 ** min(self._attempt, 16))
        self._attempt += 1
        return self._uniform(0.0, bound_s)

    def slow_s(self) -> float:
        """Return the wait after a refusal that only a person can lift."""
        return self._uniform(0.5 * self._maximum_s, self._maximum_s)
