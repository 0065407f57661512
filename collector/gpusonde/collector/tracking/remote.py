"""``TrackerProcesses``: makes trackers that live in child processes.

A ``RemoteTracker`` is used like an ``EpochTracker``, from one thread. It keeps ticks until the tracker would look at
them (or ten seconds), sends them, and takes the answer at a later call: nobody waits for an analysis, but for the one
at the end of a run. What was found is the same, since a tracker does not care how its ticks are cut.

A process that dies takes its trackers with it. Every call of theirs then raises ``ChildLostError``, the followers are
dropped and made anew of what is stored, and the next tracker starts the process again. A process holds trackers
(``Trackers``) and nothing else: everything that must outlive it is in the collector's store.
"""

from __future__ import annotations

import itertools
import math
import pickle
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from gpusonde.epoch_detect import EpochDetection, EpochEvent, EpochTracker, TrackedEpoch
from gpusonde.epoch_detect.progress import Shares
from gpusonde.service import child
from gpusonde.service.child import Child, Purpose

_Array: TypeAlias = npt.NDArray[np.float64]
# Name of a method of ``Trackers``, number of the tracker, what else the method takes.
Request: TypeAlias = tuple[str, int, tuple[Any, ...]]


@dataclass(frozen=True)
class Standing:
    """How a tracker stands after a request.

    Attributes:
        events: What changed.
        next_analysis_s: Time of the ticks at which it looks next.
        epochs: All epochs; None where nothing has changed.
        detection: The latest analysis; None where it is still the one before.
        shares: Idle and stalled share; None where nothing has changed.
        state: Its serialised state, where that was asked for.
    """

    events: list[EpochEvent]
    next_analysis_s: float
    epochs: tuple[TrackedEpoch, ...] | None = None
    detection: EpochDetection | None = None
    shares: Shares | None = None
    state: bytes = b""


class Trackers:
    """Carries requests out, in the child; the methods are those of ``EpochTracker``, for a tracker by its number."""

    def __init__(self) -> None:
        self._trackers: dict[int, EpochTracker] = {}
        self._told: dict[int, EpochDetection | None] = {}

    def handle(self, request: Request) -> Standing | None:
        """Carry one request out; a tracker that raises is gone, the others are not touched."""
        name, number, given = request
        try:
            standing: Standing | None = getattr(self, name)(number, *given)
        except Exception:
            self.drop(number)
            raise
        return standing

    def make(self, number: int, metrics: Sequence[str]) -> Standing:
        """Make a tracker of these metrics."""
        self._trackers[number], self._told[number] = EpochTracker(metrics), None
        return self._standing(number, [])

    def restore(self, number: int, state: bytes) -> Standing:
        """Make a tracker of a state."""
        tracker = self._trackers[number] = EpochTracker.restore(state)
        self._told[number] = tracker.detection
        shares = tracker.shares() if tracker.epochs else None
        return Standing([], tracker.next_analysis_s, tracker.epochs, tracker.detection, shares)

    def update(self, number: int, time_s: _Array, values: _Array, exhaustive: bool) -> Standing:
        """Take ticks."""
        return self._standing(number, self._trackers[number].update(time_s, values, exhaustive=exhaustive))

    def note_marks(self, number: int, time_s: _Array, values: _Array) -> Standing:
        """Take what the processes of the run's job did."""
        self._trackers[number].note_marks(time_s, values)
        return self._standing(number, [])

    def finish_look(self, number: int) -> Standing:
        """Do all that is left of a look."""
        return self._standing(number, self._trackers[number].finish_look())

    def finish(self, number: int) -> Standing:
        """Take the end of the run."""
        return self._standing(number, self._trackers[number].finish())

    def state(self, number: int) -> Standing:
        """Serialise a tracker's state."""
        tracker = self._trackers[number]
        return Standing([], tracker.next_analysis_s, state=tracker.state())

    def drop(self, number: int) -> None:
        """Forget a tracker that nobody needs any more."""
        self._trackers.pop(number, None)
        self._told.pop(number, None)

    def _standing(self, number: int, events: list[EpochEvent]) -> Standing:
        tracker = self._trackers[number]
        found = tracker.detection
        if not events and found is self._told[number]:
            return Standing(events, tracker.next_analysis_s)
        self._told[number] = found
        return Standing(events, tracker.next_analysis_s, tracker.epochs, found, tracker.shares())


def make_answer() -> child.Answer:
    """Return what answers in the child; both ends are ours and of one version, so what goes between them is pickled."""
    trackers = Trackers()
    return lambda data, _: pickle.dumps(trackers.handle(pickle.loads(data)))  # noqa: S301 - see above


_PURPOSE = Purpose("gpusonde.collector.tracking.remote:make_answer", "epochs", niceness=2, oom_score=0)
# Ticks are sent after so long at the latest, so that a tracker's memory, not ours, holds them.
_LONGEST_WAIT_S = 10.0
_END_S = 5.0


class TrackerProcesses:
    """Makes trackers, in turn in each of a number of processes.

    Args:
        count: Processes; each is started when its first tracker is made.
    """

    def __init__(self, count: int) -> None:
        self._processes: list[Child | None] = [None] * count
        self._numbers = itertools.count()

    def make(self, metrics: Sequence[str]) -> RemoteTracker:
        """Return a new tracker."""
        number, process = self._next()
        return RemoteTracker(process, number, "make", tuple(metrics))

    def restore(self, state: bytes) -> RemoteTracker:
        """Return a tracker made of a state.

        Raises:
            ChildFaultError: The bytes are no state.
            ChildLostError: The process has died.
        """
        number, process = self._next()
        tracker = RemoteTracker(process, number, "restore", state)
        tracker.settle()
        return tracker

    def close(self) -> None:
        """End the processes."""
        processes, self._processes = self._processes, [None] * len(self._processes)
        for process in filter(None, processes):
            process.end()
        for process in filter(None, processes):
            process.ended.result(_END_S)

    def _next(self) -> tuple[int, Child]:
        number = next(self._numbers)
        place = number % len(self._processes)
        process = self._processes[place]
        if process is None or not process.is_alive:
            if process:
                process.end()
            process = self._processes[place] = Child.start(_PURPOSE)
        return number, process


class RemoteTracker:
    """Stands for a tracker in another process; see ``collector.tracking.epochs.Tracker``."""

    def __init__(self, process: Child, number: int, first: str, given: object) -> None:
        self._process = process
        self._number = number
        self._under_way: deque[Future[bytes]] = deque([self._ask(first, given)])
        self._held: list[tuple[_Array, _Array]] = []
        self._is_exhaustive = True
        self._next_analysis_s = -math.inf
        self._epochs: tuple[TrackedEpoch, ...] = ()
        self._detection: EpochDetection | None = None
        self._shares = Shares(math.nan, math.nan)
        weakref.finalize(self, process.tell, pickle.dumps(("drop", number, ()))).atexit = False

    @property
    def epochs(self) -> tuple[TrackedEpoch, ...]:
        """Every epoch ever reported, as of the latest answer."""
        return self._epochs

    @property
    def detection(self) -> EpochDetection | None:
        """The latest analysis that was answered."""
        return self._detection

    def update(self, time_s: npt.ArrayLike, values: npt.ArrayLike, *, exhaustive: bool = True) -> list[EpochEvent]:
        """Take ticks, or none; return what earlier ones have led to meanwhile.

        Raises:
            ChildFaultError: The tracker raised.
            ChildLostError: Its process has died.
        """
        events = self._take_answers(wait=False)
        times = np.asarray(time_s, dtype=np.float64)
        if not times.size:
            return events
        self._held.append((times, np.asarray(values, dtype=np.float64)))
        self._is_exhaustive = exhaustive
        newest = float(times[-1])
        if newest > self._next_analysis_s or newest - float(self._held[0][0][0]) >= _LONGEST_WAIT_S:
            self._send_held(exhaustive=exhaustive)
        return events

    def note_marks(self, time_s: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Take what the processes of the run's job did, behind the ticks so far."""
        self._send_held(exhaustive=self._is_exhaustive)
        marks = np.asarray(time_s, dtype=np.float64), np.asarray(values, dtype=np.float64)
        self._under_way.append(self._ask("note_marks", *marks))

    def finish_look(self) -> list[EpochEvent]:
        """Send what is held, and have a look at it finished; return what earlier ticks have led to meanwhile.

        Raises:
            ChildFaultError: The tracker raised.
            ChildLostError: Its process has died.
        """
        self._send_held(exhaustive=self._is_exhaustive)
        self._under_way.append(self._ask("finish_look"))
        return self._take_answers(wait=False)

    def finish(self) -> list[EpochEvent]:
        """Have all ticks analysed once more, and wait for it.

        Raises:
            ChildFaultError: The tracker raised.
            ChildLostError: Its process has died.
        """
        self._send_held()
        self._under_way.append(self._ask("finish"))
        return self._take_answers(wait=True)

    def shares(self) -> Shares:
        """Idle and stalled share of the time, as of the latest answer."""
        return self._shares

    def state(self) -> bytes:
        """Everything that another tracker needs to go on here.

        Raises:
            ChildFaultError: The tracker raised.
            ChildLostError: Its process has died.
        """
        self._send_held()
        return self._standing(self._ask("state")).state

    def settle(self) -> None:
        """Wait for every answer.

        Raises:
            ChildFaultError: The tracker raised.
            ChildLostError: Its process has died.
        """
        self._take_answers(wait=True)

    def _send_held(self, *, exhaustive: bool = True) -> None:
        held, self._held = self._held, []
        if held:
            times = np.concatenate([times for times, _ in held])
            values = np.concatenate([values for _, values in held], axis=1)
            self._under_way.append(self._ask("update", times, values, exhaustive))

    def _take_answers(self, *, wait: bool) -> list[EpochEvent]:
        events: list[EpochEvent] = []
        while self._under_way and (wait or self._under_way[0].done()):
            standing = self._standing(self._under_way.popleft())
            events += standing.events
            self._next_analysis_s = standing.next_analysis_s
            if standing.epochs is not None:
                self._epochs, self._detection = standing.epochs, standing.detection
            if standing.shares is not None:
                self._shares = standing.shares
        return events

    def _ask(self, name: str, *given: object) -> Future[bytes]:
        request: Request = name, self._number, given
        return self._process.ask(pickle.dumps(request))

    def _standing(self, answer: Future[bytes]) -> Standing:
        return cast(Standing, pickle.loads(answer.result()))  # noqa: S301 - of our own process
