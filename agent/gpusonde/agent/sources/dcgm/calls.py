"""``CallGuard``: calls into the vendor's library, each with a limit; ``CallSeries``: one of them at several times.

A host engine that hangs holds its client inside the library (seen with profiling fields, NVIDIA/DCGM issue 144), and no
thread can be stopped there. So the calls of a connection are made by a thread of its own; one that does not return in
time is left behind with its connection, and the sampler goes on. It is a daemon thread, so the process can still end.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpusonde.agent.sources.base import CLOCK_READ_S, Clocks, OwnLook

log = logging.getLogger(__name__)

# dcgmReturn_t, dcgm_structs.h
CONNECTION_NOT_VALID = -21


@dataclass
class _Call:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    # Held until the call has returned; a bare lock costs a tenth of an Event.
    running: threading.Lock = field(default_factory=threading.Lock)
    result: Any = None
    error: BaseException | None = None
    processor_s: float = 0.0

    def make(self) -> None:
        before_s = time.thread_time()
        try:
            self.result = self.function(*self.arguments)
        except BaseException as error:
            self.error = error
        self.processor_s = time.thread_time() - before_s
        self.running.release()


class TimedAnswer(NamedTuple):
    """What came of one call of a :class:`CallSeries`."""

    look: OwnLook
    content: Any


class CallSeries:
    """The same call at several times, made by the guard's thread alone: nobody has to wake up for each.

    A call that comes too late is left out, and so is the answer of one that is refused.

    Args:
        function: What to call; it returns a ``dcgmReturn_t``.
        arguments: Its arguments.
        deadlines_s: When, monotonic clock; ascending.
        latest_s: By how much later each may be.
        keep: Returns what is to be kept of an answer.
        clocks: What time it is.
    """

    def __init__(
        self,
        function: Callable[..., int],
        arguments: tuple[Any, ...],
        deadlines_s: Sequence[float],
        latest_s: float,
        keep: Callable[[], Any],
        clocks: Clocks,
    ) -> None:
        self._function = function
        self._arguments = arguments
        self._deadlines_s = tuple(deadlines_s)
        self._latest_s = latest_s
        self._keep = keep
        self._clocks = clocks
        self.answers: list[TimedAnswer] = []
        self.processor_s = 0.0
        # Held until the last call has returned.
        self.running = threading.Lock()
        self.running.acquire()
        self.is_ended = False

    def make(self) -> None:
        """Make the calls, until :attr:`is_ended` is set or the engine is gone."""
        before_s = time.thread_time()
        function, arguments, clocks = self._function, self._arguments, self._clocks
        try:
            for deadline_s in self._deadlines_s:
                delay_s = deadline_s - clocks.monotonic()
                if delay_s > 0:
                    clocks.sleep(delay_s)
                began_s = clocks.monotonic()
                if self.is_ended:
                    break
                if began_s - deadline_s > self._latest_s:
                    continue
                code = function(*arguments)
                ended_s, wall_ns = clocks.monotonic(), clocks.wall_ns()
                while clocks.monotonic() - ended_s > CLOCK_READ_S:
                    ended_s, wall_ns = clocks.monotonic(), clocks.wall_ns()
                if code == 0:
                    look = OwnLook(deadline_s, began_s, ended_s, wall_ns)
                    self.answers.append(TimedAnswer(look, self._keep()))
                elif code == CONNECTION_NOT_VALID:
                    break
        except Exception as error:
            # The next call of its own meets the same.
            log.debug("a call at a set time: %s", error)
        self.processor_s = time.thread_time() - before_s
        self.running.release()


class CallGuard:
    """Makes calls one after the other, each with a limit.

    Args:
        limit_s: Seconds that a call may take.
        on_cost: Told the processor time of each call, in seconds: the caller's own thread does not spend it.
    """

    def __init__(self, limit_s: float, on_cost: Callable[[float], None] = lambda seconds: None) -> None:
        self._limit_s = limit_s
        self._on_cost = on_cost
        self._calls: queue.SimpleQueue[_Call | CallSeries | None] | None = None
        self._thread: threading.Thread | None = None
        self._left_behind: list[threading.Thread] = []

    @property
    def hung(self) -> int:
        """Calls that were given up and have not returned yet."""
        self._left_behind = [thread for thread in self._left_behind if thread.is_alive()]
        return len(self._left_behind)

    def call(self, function: Callable[..., Any], *arguments: Any, patience: float = 1.0) -> Any:
        """Return what the function returns, or raise what it raises.

        Args:
            function: What to call.
            arguments: Its arguments.
            patience: How many times the limit it may take.

        Raises:
            TimeoutError: It did not return in time; the connection that it used must not be used again.
        """
        call = _Call(function, arguments)
        call.running.acquire()
        self._put(call)
        self._wait_for(call, patience)
        if call.error is not None:
            raise call.error
        return call.result

    def repeat(self, series: CallSeries) -> None:
        """Begin a series; :meth:`end` before the next call."""
        self._put(series)

    def end(self, series: CallSeries) -> None:
        """End a series, which is to have its answers then.

        Raises:
            TimeoutError: A call of it did not return in time; the connection that it used must not be used again.
        """
        series.is_ended = True
        self._wait_for(series, 1.0)

    def _put(self, call: _Call | CallSeries) -> None:
        if self._calls is None:
            self._calls = queue.SimpleQueue()
            self._thread = threading.Thread(target=_work, args=(self._calls,), name="gpusonde-dcgm", daemon=True)
            self._thread.start()
        self._calls.put(call)

    def _wait_for(self, call: _Call | CallSeries, patience: float) -> None:
        if not call.running.acquire(timeout=patience * self._limit_s):
            # It ends by itself should the call ever return.
            self.close()
            if self._thread is not None:
                self._left_behind.append(self._thread)
            raise TimeoutError
        self._on_cost(call.processor_s)

    def close(self) -> None:
        """End the thread; the next call starts another."""
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.put(None)


def _work(calls: queue.SimpleQueue[_Call | CallSeries | None]) -> None:
    while (call := calls.get()) is not None:
        call.make()
