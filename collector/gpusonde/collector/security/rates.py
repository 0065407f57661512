"""How often and how much: token buckets, and what one caller may have going on at the same time."""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpusonde.errors import RequestError


class RateBucket:
    """Allows a mean rate with bursts; what is taken beyond it is owed.

    Args:
        rate_per_s: What comes back per second.
        burst: What may be taken at once after a rest.
        clock: Monotonic seconds.
    """

    def __init__(self, rate_per_s: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._clock = clock
        self._level = burst
        self._at_s = clock()

    @property
    def fill_ratio(self) -> float:
        """Share of the burst that may be taken at once; negative while something is owed."""
        now = self._clock()
        self._level = min(self._burst, self._level + (now - self._at_s) * self._rate_per_s)
        self._at_s = now
        return self._level / self._burst

    def take(self, amount: float) -> float:
        """Take, and return the seconds until that much is there again; 0 when it was."""
        level = self.fill_ratio * self._burst
        self._level = level - amount
        return max(0.0, -self._level / self._rate_per_s)

    def take_if_there(self, amount: float) -> bool:
        """Take only when it leaves no debt."""
        if self.fill_ratio * self._burst < amount:
            return False
        self._level -= amount
        return True


# Entries of the book looked at to find one that can be forgotten.
_LOOKED_AT = 16


@dataclass(frozen=True)
class CallerLimits:
    """What one caller may do.

    Attributes:
        questions: Questions answered at the same time.
        questions_per_s: Questions per second, over ten seconds.
        all_questions: Questions of all callers at the same time.
        streams: Streams of one agent: its own, one that replaces it, and as many that are being turned away.
        all_streams: Streams of all callers together, those that have not said Hello yet among them; half of them for
            one address.
        watches: Streams of one caller that asks, and of all of those who did not say who they are; half of them for
            one address.
    """

    questions: int = 16
    questions_per_s: float = 100.0
    all_questions: int = 256
    streams: int = 4
    all_streams: int = 4016
    watches: int = 64


@dataclass
class _Caller:
    bucket: RateBucket
    questions: int = 0
    streams: int = 0
    watches: int = 0
    nameless: int = 0

    @property
    def is_idle(self) -> bool:
        return not (self.questions or self.streams or self.watches or self.nameless)


class CallerBook:
    """Counts what callers have going on. Forgets the idle ones, so that its size is bounded.

    Args:
        limits: What one caller may do.
        clock: Monotonic seconds.
    """

    _MOST_CALLERS = 8192
    _BURST_S = 10.0

    def __init__(self, limits: CallerLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._callers: OrderedDict[str, _Caller] = OrderedDict()
        self._questions = 0
        self._streams = 0
        self._watches = 0
        self._strangers = 0

    def configure(self, limits: CallerLimits) -> None:
        """Set other limits; a caller who is being answered keeps its rate until it was forgotten."""
        self._limits = limits
        for name in [name for name, caller in self._callers.items() if caller.is_idle]:
            del self._callers[name]

    @contextlib.contextmanager
    def question(self, name: str) -> Iterator[None]:
        """Count one question for as long as it is being answered.

        Raises:
            RequestError: It is one too many.
        """
        limits, caller = self._limits, self._caller(name)
        if self._questions >= limits.all_questions or caller.questions >= limits.questions:
            raise RequestError(
                "RESOURCE_EXHAUSTED",
                f"{caller.questions} questions of {name} are being answered, of all {self._questions}; more are more"
                " than security.max_questions allows; ask when one is done",
                reason="concurrency",
            )
        if not caller.bucket.take_if_there(1.0):
            raise RequestError(
                "RESOURCE_EXHAUSTED",
                f"{name} asks more than {limits.questions_per_s:g} questions per second"
                " (security.questions_per_second); ask less often",
                reason="rate",
            )
        caller.questions += 1
        self._questions += 1
        try:
            yield
        finally:
            caller.questions -= 1
            self._questions -= 1

    @contextlib.contextmanager
    def stream(self, name: str, address: str, *, is_one_agent: bool) -> Iterator[None]:
        """Count one stream for as long as it is open.

        Raises:
            RequestError: It is one too many.
        """
        limits, caller, place = self._limits, self._caller(name), self._caller(address)
        if is_one_agent and caller.streams >= limits.streams:
            raise RequestError(
                "RESOURCE_EXHAUSTED",
                f"{caller.streams} streams of {name} are open, as many as one agent may have; close them first",
                reason="streams",
            )
        if place.streams >= max(1, limits.all_streams // 2) or self._streams >= limits.all_streams:
            raise RequestError(
                "RESOURCE_EXHAUSTED",
                f"{place.streams} streams of {address} are open, of all {self._streams}; more are more than"
                f" ingest.max_agents allows; {name} has {caller.streams} of them: close them first",
                reason="streams",
            )
        caller.streams += 1
        place.streams += 1
        self._streams += 1
        try:
            yield
        finally:
            caller.streams -= 1
            place.streams -= 1
            self._streams -= 1

    @contextlib.contextmanager
    def watch(self, name: str) -> Iterator[None]:
        """Count one stream of a caller who asks: to begin one is a question, and agents' streams are none of them.

        Raises:
            RequestError: It is one too many.
        """
        limits, caller = self._limits, self._caller(name)
        if caller.watches >= limits.watches or self._watches >= 16 * limits.watches:
            raise RequestError(
                "RESOURCE_EXHAUSTED",
                f"{caller.watches} streams of {name} are open, of all {self._watches}; more are more than"
                " planning.max_watches allows; close them first",
                reason="streams",
            )
        with self.question(name):
            caller.watches += 1
            self._watches += 1
        try:
            yield
        finally:
            caller.watches -= 1
            self._watches -= 1

    @contextlib.contextmanager
    def stranger(self, address: str) -> Iterator[None]:
        """Count one stream of somebody who need not say who it is.

        Raises:
            RequestError: It is one too many.
        """
        place = self._caller(address)
        if place.nameless >= max(1, self._limits.watches // 2) or self._strangers >= self._limits.watches:
            raise RequestError(
                "RESOURCE_EXHAUSTED",
                f"{place.nameless} streams of {address} without a name are open, of all {self._strangers}; more are"
                " more than planning.max_watches allows; close them first",
                reason="streams",
            )
        place.nameless += 1
        self._strangers += 1
        try:
            yield
        finally:
            place.nameless -= 1
            self._strangers -= 1

    def _caller(self, name: str) -> _Caller:
        caller = self._callers.get(name)
        if caller is None:
            rate = self._limits.questions_per_s
            caller = self._callers[name] = _Caller(RateBucket(rate, rate * self._BURST_S, self._clock))
            self._forget_idle()
        self._callers.move_to_end(name)
        return caller

    def _forget_idle(self) -> None:
        # Those with something open are few (all_questions, all_streams), so the oldest is hardly ever one of them.
        for _ in range(_LOOKED_AT):
            if len(self._callers) <= self._MOST_CALLERS:
                return
            name, caller = self._callers.popitem(last=False)
            if not caller.is_idle:
                self._callers[name] = caller
