"""Child processes that answer questions: ``Child``, ``ChildPool``, and what a child does.

A computation cannot be interrupted from outside, and what is asked can make it long however it is capped; so a process
with limits of memory and time answers, which can be killed, and another one takes its place. Questions and answers are
bytes, each behind its length, over one socket; what they mean is the business of the two ends.

A child is ``python -m gpusonde.service.child DESCRIPTOR MODULE:FUNCTION MEMORY_BYTES NICENESS OOM_SCORE``. It ends with
its socket, which is also what a parent that was killed leaves behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import math
import os
import queue
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gpusonde.errors import ChildBusyError, ChildError, ChildFaultError, ChildLostError, ChildTimeoutError

_LOG = logging.getLogger(__name__)
# Length of the question, seconds it may take.
_QUESTION = struct.Struct("<Qd")
# What came of it, length of the answer.
_ANSWER = struct.Struct("<cQ")
_READY, _DONE, _FAULT, _NO_MEMORY = b"+", b"+", b"!", b"m"
_MODULE = "gpusonde.service.child"
# Python, NumPy and what answers are imported before the first answer, on a busy host in seconds.
_START_S = 60.0
# One that is asked ahead of its answers, as trackers are; more would be a queue of ticks.
_MOST_UNDER_WAY = 16
_MOST_FAULT_CHARACTERS = 1000
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

# A question and the seconds it may take -> its answer.
Answer = Callable[[bytes, float], bytes]
# Asks the process that is held.
Ask = Callable[[bytes], Awaitable[bytes]]


@dataclass(frozen=True)
class Purpose:
    """What children are there for.

    Attributes:
        answers: ``MODULE:FUNCTION``; the function is called in the child without arguments and returns an ``Answer``.
        subject: What questions are about, such as "plans"; for messages.
        section: Of the configuration, which has ``time_limit`` and ``memory_bytes``; for messages.
        advice: What to ask for instead when time runs out; for messages.
        niceness: Added to the parent's; records of agents come first.
        oom_score: Where memory runs out, the highest goes first: a question is lost and not the records.
        is_confined: What is asked comes from strangers: the child gets no environment, no folder and no terminal.
        max_answer_bytes: A longer answer ends the child.
    """

    answers: str
    subject: str
    section: str = ""
    advice: str = ""
    niceness: int = 5
    oom_score: int = 500
    is_confined: bool = False
    max_answer_bytes: int = 64 << 20


class Child:
    """One process, which answers in the order in which it is asked. Any thread may ask.

    A thread of its own writes the questions and reads the answers, so that neither an event loop nor a tracker waits
    for a pipe. Whatever goes wrong with the process ends it, and with it every question that it has not answered.

    Args:
        process: The process, in a session of its own.
        connection: The socket to it.
        purpose: What it is there for.
    """

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket, purpose: Purpose) -> None:
        self.ended: Future[None] = Future()
        """Done when the process and everything that it started is gone."""
        self.ended.set_running_or_notify_cancel()
        self._process = process
        self._socket = connection
        self._purpose = purpose
        self._questions: queue.SimpleQueue[tuple[bytes, float, Future[bytes]] | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(_MOST_UNDER_WAY)
        self._lock = threading.Lock()
        self._is_lost = False
        self._is_ending = False
        self._thread = threading.Thread(target=self._work, name=f"asks about {purpose.subject}", daemon=True)

    @classmethod
    def start(cls, purpose: Purpose, memory_bytes: int = 0) -> Child:
        """Start a process.

        Args:
            purpose: What it is there for.
            memory_bytes: Address space that it may have; 0 for any.

        Raises:
            OSError: It cannot be started.
        """
        environment, folder = {**os.environ, **_ONE_THREAD}, None
        if purpose.is_confined:
            # Where the package is found is not for strangers to know, but the child has to.
            kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
            environment, folder = {**_ONE_THREAD, **kept, "LANG": "C.UTF-8"}, "/"
        ours, theirs = socket.socketpair()
        limits = map(str, (memory_bytes, purpose.niceness, purpose.oom_score))
        with theirs:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-m", _MODULE, str(theirs.fileno()), purpose.answers, *limits],
                    stdin=subprocess.DEVNULL,
                    # Whatever a library prints is no answer.
                    stdout=subprocess.DEVNULL if purpose.is_confined else 2,
                    stderr=subprocess.DEVNULL if purpose.is_confined else None,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    env=environment,
                    cwd=folder,
                )
            except OSError:
                ours.close()
                raise
        _LOG.info("process %d answers questions about %s", process.pid, purpose.subject)
        child = cls(process, ours, purpose)
        child._thread.start()
        return child

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended, by itself or otherwise."""
        if self._is_lost or self._is_ending:
            return False
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    def ask(self, data: bytes, limit_s: float = math.inf) -> Future[bytes]:
        """Ask a question; wait where sixteen are unanswered.

        Args:
            data: The question.
            limit_s: Time for the answer from when the question's turn has come.

        Returns:
            The answer to come, or ``ChildTimeoutError``, ``ChildLostError`` (the process is gone, or has no memory for
            the answer), or ``ChildFaultError`` (what answers has raised; the process goes on).
        """
        self._room.acquire()
        answer: Future[bytes] = Future()
        answer.add_done_callback(lambda _: self._room.release())
        with self._lock:
            if not self._is_lost:
                self._questions.put((data, limit_s, answer))
                return answer
        answer.set_exception(self._loss())
        return answer

    def tell(self, data: bytes) -> None:
        """Ask what needs no answer. Locks nothing: the garbage collector may call this at any moment."""
        self._questions.put((data, math.inf, Future()))

    def end(self) -> None:
        """End the process with everything that it started; unanswered questions are lost."""
        self._is_ending = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._questions.put(None)

    def _work(self) -> None:
        """Carry questions and answers until the end of the process, then clear up."""
        answer: Future[bytes] | None = None
        failure: ChildError = self._loss()
        deadline_s = time.monotonic() + _START_S
        limit_s = _START_S
        try:
            is_ready = False
            while (question := self._questions.get()) is not None:
                data, limit_s, answer = question
                if not answer.set_running_or_notify_cancel():
                    continue
                if not is_ready:
                    is_ready = self._read(1, deadline_s) == _READY
                self._exchange(data, limit_s, answer)
        except TimeoutError:
            advice = f" ({self._purpose.section}.time_limit); {self._purpose.advice}" if self._purpose.section else ""
            failure = ChildTimeoutError(f"no answer within {limit_s:g} s{advice}")
        except (EOFError, OSError):
            if not self._is_ending:
                _LOG.warning("process %d, which answered about %s, is gone", self.pid, self._purpose.subject)
        finally:
            self._clear_up()
            if answer is not None and not answer.done():
                answer.set_exception(failure)
            self._refuse_the_rest()
            self.ended.set_result(None)

    def _exchange(self, data: bytes, limit_s: float, answer: Future[bytes]) -> None:
        deadline_s = time.monotonic() + limit_s
        self._socket.settimeout(None if limit_s == math.inf else max(limit_s, 1e-3))
        self._socket.sendall(_QUESTION.pack(len(data), limit_s))
        self._socket.sendall(data)
        what, length = _ANSWER.unpack(self._read(_ANSWER.size, deadline_s))
        if length > self._purpose.max_answer_bytes:
            raise EOFError
        found = self._read(length, deadline_s)
        if what == _DONE:
            answer.set_result(found)
        elif what == _NO_MEMORY:
            answer.set_exception(
                ChildLostError(f"the question needs more memory than {self._purpose.section}.memory_bytes")
            )
        else:
            answer.set_exception(ChildFaultError(found.decode(errors="replace")))

    def _read(self, length: int, deadline_s: float) -> bytes:
        content = bytearray(length)
        view = memoryview(content)
        while view:
            left_s = deadline_s - time.monotonic()
            self._socket.settimeout(None if left_s == math.inf else max(left_s, 1e-3))
            count = self._socket.recv_into(view)
            if not count:
                raise EOFError
            view = view[count:]
        return bytes(content)

    def _clear_up(self) -> None:
        # Its session is its own: nobody else is hit. Until it is waited for, its number belongs to nobody else.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def _refuse_the_rest(self) -> None:
        with self._lock:
            self._is_lost = True
        with contextlib.suppress(queue.Empty):
            while True:
                question = self._questions.get_nowait()
                if question is not None and question[2].set_running_or_notify_cancel():
                    question[2].set_exception(self._loss())

    def _loss(self) -> ChildLostError:
        section = f" ({self._purpose.section}.memory_bytes)" if self._purpose.section else ""
        return ChildLostError(f"the process that answered died, probably for want of memory{section}")


@dataclass(frozen=True)
class PoolOptions:
    """Bounds of the processes of a pool.

    Attributes:
        processes: Questions answered at the same time.
        waiting: Questions that wait for one of them.
        time_limit_s: Time for one answer.
        memory_bytes: Memory that a process may allocate.
        idle_s: Time without a question after which a process ends.
    """

    processes: int = 1
    waiting: int = 16
    time_limit_s: float = 30.0
    memory_bytes: int = 2 << 30
    idle_s: float = 300.0


class ChildPool:
    """Answers questions, each by a child that has no other; to be used within one event loop.

    Children start with the questions.

    Args:
        purpose: What they are there for.
        options: Their bounds.
    """

    def __init__(self, purpose: Purpose, options: PoolOptions) -> None:
        self._purpose = purpose
        self._options = options
        self._idle: dict[Child, asyncio.TimerHandle] = {}
        self._open: set[Child] = set()
        self._busy = 0
        self._waiting = 0
        self._freed = asyncio.Condition()

    @property
    def options(self) -> PoolOptions:
        """The bounds in force."""
        return self._options

    @property
    def waiting(self) -> int:
        """Questions that wait for a process."""
        return self._waiting

    def configure(self, options: PoolOptions) -> None:
        """Set other bounds, from the next question on; processes keep their memory limit until they end."""
        self._options = options

    async def ask(self, data: bytes, limit_s: float | None = None) -> bytes:
        """Return the answer to a question.

        Args:
            data: The question.
            limit_s: Time for the answer; None means that of the options.

        Raises:
            ChildBusyError: Too many wait already.
            ChildTimeoutError: The answer took too long.
            ChildLostError: The process died.
            ChildFaultError: What answers has raised.
        """
        async with self._turn():
            child = self._take()
            try:
                return await self._ask(child, data, limit_s)
            finally:
                if child in self._open:
                    self._put_back(child)

    @contextlib.asynccontextmanager
    async def hold(self) -> AsyncIterator[Ask]:
        """Hold a process that nobody else asks; yields what asks it, with the errors of ``ask``."""
        child = self._start()

        async def ask(data: bytes) -> bytes:
            async with self._turn():
                return await self._ask(child, data, None)

        try:
            yield ask
        finally:
            await self._end(child)

    async def close(self) -> None:
        """End all processes."""
        for child in list(self._open):
            await self._end(child)

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if self._busy >= self._options.processes or self._waiting:
            if self._waiting >= self._options.waiting:
                raise ChildBusyError(
                    f"{self._busy} questions about {self._purpose.subject} are being answered and {self._waiting} wait;"
                    " ask again in a moment"
                )
            self._waiting += 1
            try:
                async with self._freed:
                    await self._freed.wait_for(lambda: self._busy < self._options.processes)
                    self._busy += 1
            finally:
                self._waiting -= 1
        else:
            self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            async with self._freed:
                # All of them, who take their turn in order: the one that is woken may be one that just gave up.
                self._freed.notify_all()

    async def _ask(self, child: Child, data: bytes, limit_s: float | None) -> bytes:
        try:
            return await asyncio.wrap_future(
                child.ask(data, self._options.time_limit_s if limit_s is None else limit_s)
            )
        except ChildFaultError:
            raise
        except BaseException:  # also when the caller went away: what computes for nobody is ended
            await self._end(child)
            raise

    def _take(self) -> Child:
        while self._idle:
            child, timer = self._idle.popitem()
            timer.cancel()
            if child.is_alive:
                return child
            self._dismiss(child)
        return self._start()

    def _put_back(self, child: Child) -> None:
        timer = asyncio.get_running_loop().call_later(self._options.idle_s, self._dismiss, child)
        self._idle[child] = timer

    def _start(self) -> Child:
        child = Child.start(self._purpose, self._options.memory_bytes)
        self._open.add(child)
        return child

    def _dismiss(self, child: Child) -> None:
        self._open.discard(child)
        if timer := self._idle.pop(child, None):
            timer.cancel()
        child.end()

    async def _end(self, child: Child) -> None:
        self._dismiss(child)
        await asyncio.wrap_future(child.ended)


_COUNT = struct.Struct("<I")
_PART_LENGTH = struct.Struct("<Q")


def pack(document: Mapping[str, Any], contents: Sequence[bytes] = ()) -> bytes:
    """Join a document and contents, which stay as they came: none is copied into a text.

    Raises:
        ValueError: The document holds what JSON does not.
    """
    parts = [json.dumps(document, allow_nan=False).encode(), *contents]
    lengths = b"".join(_PART_LENGTH.pack(len(part)) for part in parts)
    return b"".join([_COUNT.pack(len(parts)), lengths, *parts])


def unpack(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return what ``pack`` joined."""
    (count,) = _COUNT.unpack_from(data)
    at = _COUNT.size + count * _PART_LENGTH.size
    parts = []
    for number in range(count):
        (length,) = _PART_LENGTH.unpack_from(data, _COUNT.size + number * _PART_LENGTH.size)
        parts.append(data[at : at + length])
        at += length
    return json.loads(parts[0]), parts[1:]


def main(descriptor: str, answers: str, memory_bytes: str, niceness: str, oom_score: str) -> None:
    """Answer what comes over a socket until it ends."""
    # systemd's stop reaches the whole group; the parent ends us, in good order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid either
        os.nice(int(niceness))
        if limit := int(memory_bytes):
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(oom_score, encoding="ascii")
    # Imported here, so that the limits hold for imports too.
    module, function = answers.split(":")
    with socket.socket(fileno=int(descriptor)) as connection, contextlib.suppress(BrokenPipeError, ConnectionError):
        # Made before readiness is said, so that the time limit is about the question.
        answer: Answer = getattr(importlib.import_module(module), function)()
        with connection.makefile("rwb") as pipe:
            _serve(pipe, answer)  # type: ignore[arg-type]


def _serve(pipe: BinaryIO, answer: Answer) -> None:
    pipe.write(_READY)
    pipe.flush()
    while len(header := pipe.read(_QUESTION.size)) == _QUESTION.size:
        length, limit_s = _QUESTION.unpack(header)
        data = pipe.read(length)
        if len(data) < length:
            return
        if limit_s < math.inf:
            # The parent ends us at the limit; this is for when it is gone.
            signal.setitimer(signal.ITIMER_REAL, 2.0 * limit_s + 1.0)
        what, found = _answered(answer, data, limit_s)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        pipe.write(_ANSWER.pack(what, len(found)))
        pipe.write(found)
        pipe.flush()


def _answered(answer: Answer, data: bytes, limit_s: float) -> tuple[bytes, bytes]:
    """Answer whatever happens: the next question must get an answer too."""
    try:
        return _DONE, answer(data, limit_s)
    except MemoryError:
        return _NO_MEMORY, b""
    except Exception as error:
        return _FAULT, f"{type(error).__name__}: {error}"[:_MOST_FAULT_CHARACTERS].encode()


if __name__ == "__main__":
    main(*sys.argv[1:])
