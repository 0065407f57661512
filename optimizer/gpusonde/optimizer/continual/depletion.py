"""``Depletions``: offers that have nothing to give, for a while.

Srifty takes a preemption as a sign that an offer is depleted and never chooses it again (section 4.5). Spot capacity
comes back, so here the exclusion expires; every further depletion in a row doubles it.
"""

from __future__ import annotations

import math


class Depletions:
    """Remembers until when an offer is left out.

    Args:
        first_s: How long the first depletion of an offer lasts; infinite is the seed's rule.
        longest_s: How long one lasts at most.
        growth: What a depletion is longer than the one before it, unless machines ran ``forget_s`` in between.
        forget_s: After this long without a depletion the offer's count starts anew.
    """

    def __init__(self, first_s: float, longest_s: float, *, growth: float = 2.0, forget_s: float = 4 * 3600.0) -> None:
        if not (first_s >= 0 and longest_s >= first_s and growth >= 1 and forget_s >= 0):
            raise ValueError("a depletion lasts zero seconds or more and grows by a factor of one or more")
        self._first_s = first_s
        self._longest_s = longest_s
        self._growth = growth
        self._forget_s = forget_s
        self._until_s: dict[str, float] = {}
        self._length_s: dict[str, float] = {}

    def add(self, offer: str, now_s: float, length_s: float | None = None) -> float:
        """Leave an offer out from now on; return until when. News of one that is left out already changes nothing.

        Args:
            offer: The offer.
            now_s: Now.
            length_s: How long; by default what the rule of growth says.
        """
        until_s = self._until_s.get(offer)
        if until_s is not None and now_s < until_s:
            return until_s
        if length_s is not None:
            self._until_s[offer] = now_s + length_s
            self._length_s.setdefault(offer, self._first_s)
            return now_s + length_s
        recent = until_s is not None and now_s < until_s + self._forget_s
        length_s = min(self._length_s[offer] * self._growth, self._longest_s) if recent else self._first_s
        self._length_s[offer] = length_s
        self._until_s[offer] = now_s + length_s
        return now_s + length_s

    def depleted(self, offer: str, now_s: float) -> bool:
        """Whether an offer is left out at a time."""
        return now_s < self._until_s.get(offer, -math.inf)

    def next_expiry_s(self, now_s: float) -> float:
        """Return when the next exclusion ends, infinite when none is in force or none ever ends."""
        return min((until_s for until_s in self._until_s.values() if until_s > now_s), default=math.inf)
