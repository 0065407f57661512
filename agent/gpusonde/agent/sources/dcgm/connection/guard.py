"""Calls into DCGM's library that may never return, made so that the sampler goes on.

A host engine that hangs holds its client inside the library (seen with profiling fields, NVIDIA/DCGM issue 144), and no
thread can be stopped there. So the calls of a connection are made by a thread of its own; one that does not return in
time is left behind with its connection. It is a daemon thread, so the process can still end.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class HungCallError(Exception):
    """A call did not return in time; the connection that it used must not be used again."""


@dataclass
class _Call:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None
    processor_s: float = 0.0


class CallGuard:
    """Makes calls one after the other, each with a limit.

    Args:
        limit_s: Seconds that a call may take.
        on_cost: Told the processor time of each call, in seconds: the caller's own thread does not spend it.
    """

    def __init__(self, limit_s: float, on_cost: Callable[[float], None] = lambda seconds: None) -> None:
        self._limit_s = limit_s
        self._on_cost = on_cost
        self._calls: queue.SimpleQueue[_Call | None] | None = None
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
            HungCallError: It did not return in time.
        """
        if self._calls is None:
            self._calls = queue.SimpleQueue()
            self._thread = threading.Thread(target=_work, args=(self._calls,), name="gpusonde-dcgm", daemon=True)
            self._thread.start()
        call = _Call(function, arguments)
        self._calls.put(call)
        if not call.done.wait(patience * self._limit_s):
            # It ends by itself should the call ever return.
            self.close()
            if self._thread is not None:
                self._left_behind.append(self._thread)
            raise HungCallError
        self._on_cost(call.processor_s)
        if call.error is not None:
            raise call.error
        return call.result

    def close(self) -> None:
        """End the thread; the next call starts another."""
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.put(None)


def _work(calls: queue.SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        before_s = time.thread_time()
        try:
            call.result = call.function(*call.arguments)
        except BaseException as error:
            call.error = error
        call.processor_s = time.thread_time() - before_s
        call.done.set()
