"""``TrackerProcesses``: makes trackers that live in other processes.

A ``RemoteTracker`` is used like an ``EpochTracker``, from one thread. It keeps ticks until the tracker would look at
them (or ten seconds), sends them, and takes the answer at a later call: nobody waits for an analysis, but for the one
at the end of a run. What was found is the same, since a tracker does not care how its ticks are cut.

A process that dies takes its trackers with it. Every call of theirs then raises ``TrackerLostError``, the followers are
dropped and made anew of what is stored, and the next tracker starts the process again.

What goes over the pipe between the collector and a process of trackers. Both ends are ours and of one version.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt

from gpusonde.collector.storage.errors import StoreError
from gpusonde.epoch_detect import EpochDetection, EpochEvent, TrackedEpoch
from gpusonde.epoch_detect.progress import Shares


@dataclass(frozen=True)
class Make:
    """A new tracker of these metrics."""

    tracker: int
    metrics: tuple[str, ...]


@dataclass(frozen=True)
class Restore:
    """A tracker made of a state."""

    tracker: int
    state: bytes


@dataclass(frozen=True)
class Update:
    """Ticks: times, shape (n,), and values, shape (metrics, n); see ``EpochTracker.update``."""

    tracker: int
    time_s: npt.NDArray[np.float64]
    values: npt.NDArray[np.float64]
    exhaustive: bool


@dataclass(frozen=True)
class Finish:
    """The run is over."""

    tracker: int


@dataclass(frozen=True)
class GiveState:
    """The tracker's state is wanted."""

    tracker: int


@dataclass(frozen=True)
class Drop:
    """Nobody needs the tracker any more; there is no reply."""

    tracker: int


Request = Make | Restore | Update | Finish | GiveState | Drop


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


@dataclass(frozen=True)
class Failed:
    """A tracker raised."""

    error: str


_LOG = logging.getLogger(__name__)
_MODULE = "gpusonde.collector.tracking.worker"
# Ticks are sent after so long at the latest, so that a tracker's memory, not ours, holds them.
_LONGEST_WAIT_S = 10.0
# Requests under way to one process; more would be a queue of ticks.
_MOST_UNDER_WAY = 16
_END_S = 5.0


class TrackerLostError(StoreError):
    """The process of a tracker is gone; what is stored of the run is not."""


class TrackerFailedError(RuntimeError):
    """A tracker raised; the text is its exception."""


class TrackerProcesses:
    """Makes trackers, in turn in each of a number of processes.

    Args:
        count: Processes; each is started when its first tracker is made.
    """

    def __init__(self, count: int) -> None:
        self._processes: list[_Process | None] = [None] * count
        self._numbers = itertools.count()

    def make(self, metrics: Sequence[str]) -> RemoteTracker:
        """Return a new tracker."""
        number, process = self._next()
        return RemoteTracker(process, number, Make(number, tuple(metrics)))

    def restore(self, state: bytes) -> RemoteTracker:
        """Return a tracker made of a state.

        Raises:
            TrackerFailedError: The bytes are no state.
            TrackerLostError: The process has died.
        """
        number, process = self._next()
        tracker = RemoteTracker(process, number, Restore(number, state))
        tracker.settle()
        return tracker

    def close(self) -> None:
        """End the processes."""
        processes, self._processes = self._processes, [None] * len(self._processes)
        for process in processes:
            if process:
                process.close()

    def _next(self) -> tuple[int, _Process]:
        number = next(self._numbers)
        place = number % len(self._processes)
        process = self._processes[place]
        if process is None or process.is_lost:
            process = self._processes[place] = _Process()
        return number, process


class RemoteTracker:
    """Stands for a tracker in another process; see ``collector.tracking.epochs.Tracker``."""

    def __init__(self, process: _Process, number: int, first: Make | Restore) -> None:
        self._process = process
        self._number = number
        self._under_way: deque[Future[Standing]] = deque([process.ask(first)])
        self._held: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]] = []
        self._next_analysis_s = -math.inf
        self._epochs: tuple[TrackedEpoch, ...] = ()
        self._detection: EpochDetection | None = None
        self._shares = Shares(math.nan, math.nan)
        weakref.finalize(self, process.drop, number).atexit = False

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
            TrackerFailedError: The tracker raised.
            TrackerLostError: Its process has died.
        """
        events = self._take_answers(wait=False)
        times = np.asarray(time_s, dtype=np.float64)
        if not times.size:
            return events
        self._held.append((times, np.asarray(values, dtype=np.float64)))
        newest = float(times[-1])
        if newest > self._next_analysis_s or newest - float(self._held[0][0][0]) >= _LONGEST_WAIT_S:
            self._send_held(exhaustive=exhaustive)
        return events

    def finish(self) -> list[EpochEvent]:
        """Have all ticks analysed once more, and wait for it.

        Raises:
            TrackerFailedError: The tracker raised.
            TrackerLostError: Its process has died.
        """
        self._send_held()
        self._under_way.append(self._process.ask(Finish(self._number)))
        return self._take_answers(wait=True)

    def shares(self) -> Shares:
        """Idle and stalled share of the time, as of the latest answer."""
        return self._shares

    def state(self) -> bytes:
        """Everything that another tracker needs to go on here.

        Raises:
            TrackerFailedError: The tracker raised.
            TrackerLostError: Its process has died.
        """
        self._send_held()
        return self._process.ask(GiveState(self._number)).result().state

    def settle(self) -> None:
        """Wait for every answer.

        Raises:
            TrackerFailedError: The tracker raised.
            TrackerLostError: Its process has died.
        """
        self._take_answers(wait=True)

    def _send_held(self, *, exhaustive: bool = True) -> None:
        held, self._held = self._held, []
        if held:
            times = np.concatenate([times for times, _ in held])
            values = np.concatenate([values for _, values in held], axis=1)
            self._under_way.append(self._process.ask(Update(self._number, times, values, exhaustive)))

    def _take_answers(self, *, wait: bool) -> list[EpochEvent]:
        events: list[EpochEvent] = []
        while self._under_way and (wait or self._under_way[0].done()):
            standing = self._under_way.popleft().result()
            events += standing.events
            self._next_analysis_s = standing.next_analysis_s
            if standing.epochs is not None:
                self._epochs, self._detection = standing.epochs, standing.detection
            if standing.shares is not None:
                self._shares = standing.shares
        return events


class _Process:
    """One process, asked in order; a thread takes its answers."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            # One thread each: several processes with a pool of threads each would only wait for one another.
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
            )
        self._pipe = Connection(ours.detach())
        self._lock = threading.Lock()
        self._room = threading.Semaphore(_MOST_UNDER_WAY)
        self._waiting: deque[Future[Standing]] = deque()
        self._dropped: deque[Drop] = deque()
        self._lost = False
        self._closing = False
        self._reader = threading.Thread(target=self._read, name="trackers", daemon=True)
        self._reader.start()
        _LOG.info("process %d looks for epochs", self._process.pid)

    @property
    def is_lost(self) -> bool:
        """Whether the process is gone."""
        return self._lost

    def ask(self, request: Request) -> Future[Standing]:
        """Send a request; wait where too many are under way."""
        self._room.acquire()
        answer: Future[Standing] = Future()
        with self._lock:
            if not self._lost:
                while self._dropped:
                    self._send(self._dropped.popleft())
                self._waiting.append(answer)
                self._send(request)
                return answer
        self._room.release()
        answer.set_exception(self._loss())
        return answer

    def drop(self, number: int) -> None:
        """Let a tracker go, with the next request."""
        # Garbage collection calls this in any thread and at any moment: nothing may be locked or sent here.
        self._dropped.append(Drop(number))

    def close(self) -> None:
        """End the process; requests under way are not waited for."""
        self._closing = True
        self._process.kill()
        self._process.wait(_END_S)
        self._reader.join(_END_S)
        self._pipe.close()

    def _send(self, request: Request) -> None:
        try:
            self._pipe.send(request)
        except OSError:
            self._lost = True  # the reader tells those who wait

    def _read(self) -> None:
        while True:
            try:
                reply = self._pipe.recv()
            except (EOFError, OSError):
                break
            answer = self._waiting.popleft()
            self._room.release()
            if isinstance(reply, Failed):
                answer.set_exception(TrackerFailedError(reply.error))
            else:
                answer.set_result(reply)
        with self._lock:
            self._lost = True
            waiting, self._waiting = self._waiting, deque()
        if not self._closing:
            _LOG.error("process %d, which looked for epochs, is gone; another one goes on", self._process.pid)
            self._process.wait()
        for answer in waiting:
            self._room.release()
            answer.set_exception(self._loss())

    def _loss(self) -> TrackerLostError:
        return TrackerLostError(f"process {self._process.pid}, which looked for its epochs, is gone")
