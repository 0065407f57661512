"""``AnswerProcesses``: questions, each answered by a process that can be ended.

A computation cannot be interrupted from outside, and what is asked can make it long however it is capped: a process
with limits of memory and time answers, one question at a time, behind a queue of bounded length. What is asked and
answered are bytes whose format the two ends agree on; nothing is executed on either side.

A question with bytes: JSON, and behind it messages or graphs as they came, so that none is copied into a text.

What a process that answers questions does besides answering them.

It reads questions from standard input and writes answers to standard output, each behind its length, and ends with its
input. A question that takes much longer than it may ends the process, also when nobody is left to do so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import signal
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

_COUNT = struct.Struct("<I")
_PART_LENGTH = struct.Struct("<Q")


def pack(document: Mapping[str, Any], contents: Sequence[bytes]) -> bytes:
    """Join a document and contents.

    Raises:
        ValueError: The document holds what JSON does not.
    """
    parts = [json.dumps(document, allow_nan=False).encode(), *contents]
    lengths = b"".join(_PART_LENGTH.pack(len(part)) for part in parts)
    return b"".join([_COUNT.pack(len(parts)), lengths, *parts])


def unpack(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return what was joined."""
    (count,) = _COUNT.unpack_from(data)
    at = _COUNT.size + count * _PART_LENGTH.size
    parts = []
    for number in range(count):
        (length,) = _PART_LENGTH.unpack_from(data, _COUNT.size + number * _PART_LENGTH.size)
        parts.append(data[at : at + length])
        at += length
    return json.loads(parts[0]), parts[1:]


# Records of agents come first, then tracking.
_NICENESS = 5
# Where memory runs out, a question is lost and not the records.
_OOM_SCORE = "500"
_HEADER = struct.Struct("<Id")
_ANSWER_LENGTH = struct.Struct("<I")

# A question and the seconds it may take -> its answer.
Answer = Callable[[bytes, float], bytes]


def run(make_answer: Callable[[], Answer]) -> None:
    """Serve standard input and output until the questions end.

    Args:
        make_answer: Makes what answers; to be imported there, so that limits hold for imports too.
    """
    # Ctrl-C and systemd's stop reach the whole group; the collector ends us, in good order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid either
        os.nice(_NICENESS)
        limit = int(sys.argv[1])
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, encoding="ascii")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    serve(sys.stdin.buffer, answers, make_answer)


def serve(questions: BinaryIO, answers: BinaryIO, make_answer: Callable[[], Answer]) -> None:
    """Answer until the questions end."""
    # Made before readiness is said, so that the time limit is about the question.
    answer = make_answer()
    answers.write(b"+")
    answers.flush()
    while len(header := questions.read(_HEADER.size)) == _HEADER.size:
        length, limit_s = _HEADER.unpack(header)
        data = questions.read(length)
        if len(data) < length:
            return
        # The collector ends us at the limit; this is for when it is gone.
        signal.setitimer(signal.ITIMER_REAL, 2.0 * limit_s + 1.0)
        found = answer(data, limit_s)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        answers.write(_ANSWER_LENGTH.pack(len(found)))
        answers.write(found)
        answers.flush()


def fault(error: BaseException, memory_option: str) -> dict[str, Any]:
    """Return the answer that says that there is none: the client must get a status whatever happened."""
    if isinstance(error, MemoryError):
        return {"error": {"kind": "memory", "text": f"the question needs more memory than {memory_option}"}}
    return {"error": {"kind": "fault", "text": f"{type(error).__name__}: {error}"[:1000]}}


def write_json(answer: dict[str, Any]) -> bytes:
    """Return an answer as it goes over the pipe."""
    return json.dumps(answer, allow_nan=False).encode()


_LOG = logging.getLogger(__name__)
_LENGTH = struct.Struct("<I")
_LARGEST_ANSWER_BYTES = 64 << 20
_PIECE_BYTES = 1 << 18
# Python, NumPy and what answers are imported before the first answer, on a busy host in seconds.
_START_S = 60.0

# Asks the process that is held.
Ask = Callable[[bytes], Awaitable[bytes]]


class BusyError(Exception):
    """Too many questions wait: RESOURCE_EXHAUSTED."""


class OutOfTimeError(Exception):
    """A question took longer than it may: DEADLINE_EXCEEDED."""


class ProcessLostError(Exception):
    """The process died over a question, as it does without memory: RESOURCE_EXHAUSTED."""


@dataclass(frozen=True)
class Purpose:
    """What processes are there for; all but the module is for messages.

    Attributes:
        module: What they run, with the bytes of memory that they may allocate as its argument.
        subject: What questions are about, such as "plans".
        section: Of the configuration, which has ``time_limit`` and ``memory_bytes``.
        advice: What to ask for instead when time runs out.
    """

    module: str
    subject: str
    section: str
    advice: str


@dataclass(frozen=True)
class PoolOptions:
    """Bounds of the processes.

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


class AnswerProcesses:
    """Answers questions; to be used within one event loop.

    Processes start with the questions.

    Args:
        purpose: What they are there for.
        options: Their bounds.
    """

    def __init__(self, purpose: Purpose, options: PoolOptions) -> None:
        self._purpose = purpose
        self._options = options
        self._idle: list[Process] = []
        self._open: set[Process] = set()
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
            BusyError: Too many wait already.
            OutOfTimeError: The answer took too long.
            ProcessLostError: The process died.
        """
        async with self._turn():
            process = await self._process()
            answer = await self._ask(process, data, limit_s)
            self._rest(process)
            return answer

    @contextlib.asynccontextmanager
    async def hold(self) -> AsyncIterator[Ask]:
        """Hold a process that nobody else asks; yields what asks it, with the errors of ``ask``."""
        process = await self._start()

        async def ask(data: bytes) -> bytes:
            async with self._turn():
                return await self._ask(process, data, None)

        try:
            yield ask
        finally:
            self._open.discard(process)
            await process.end()

    async def close(self) -> None:
        """End all processes."""
        processes, self._open, self._idle = list(self._open), set(), []
        for process in processes:
            await process.end()

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if self._busy >= self._options.processes or self._waiting:
            if self._waiting >= self._options.waiting:
                raise BusyError(
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

    async def _ask(self, process: Process, data: bytes, limit_s: float | None) -> bytes:
        try:
            return await process.ask(data, self._options.time_limit_s if limit_s is None else limit_s)
        except BaseException:  # also when the caller went away: what computes for nobody is ended
            self._open.discard(process)
            await process.end()
            raise

    async def _process(self) -> Process:
        while self._idle:
            process = self._idle.pop()
            process.stay()
            if process.is_alive:
                return process
            self._open.discard(process)
        return await self._start()

    async def _start(self) -> Process:
        process = await Process.start(self._purpose, self._options.memory_bytes)
        self._open.add(process)
        return process

    def _rest(self, process: Process) -> None:
        self._idle.append(process)
        process.leave_after(self._options.idle_s, self._forget)

    def _forget(self, process: Process) -> None:
        self._idle.remove(process)
        self._open.discard(process)


class Process:
    """One process, asked one question at a time."""

    def __init__(self, process: asyncio.subprocess.Process, purpose: Purpose) -> None:
        self._process = process
        self._purpose = purpose
        self._timer: asyncio.TimerHandle | None = None
        self._is_ready = False

    @classmethod
    async def start(cls, purpose: Purpose, memory_bytes: int) -> Process:
        """Start one."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", purpose.module, str(memory_bytes),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment,
        )  # fmt: skip
        _LOG.info("process %d answers questions about %s", process.pid, purpose.subject)
        return cls(process, purpose)

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended by itself."""
        return self._process.returncode is None

    async def ask(self, data: bytes, limit_s: float) -> bytes:
        """Ask and wait for the answer.

        Raises:
            OutOfTimeError: The answer took too long.
            ProcessLostError: The process died.
        """
        try:
            if not self._is_ready:
                await asyncio.wait_for(self._read(1), _START_S)
                self._is_ready = True
            return await asyncio.wait_for(self._exchange(data, limit_s), limit_s)
        except asyncio.TimeoutError:
            raise OutOfTimeError(
                f"no answer within {limit_s:g} s ({self._purpose.section}.time_limit); {self._purpose.advice}"
            ) from None
        except (EOFError, OSError):
            raise ProcessLostError(
                f"the process that answered died, probably for want of memory ({self._purpose.section}.memory_bytes)"
            ) from None

    def stay(self) -> None:
        """Stop what ``leave_after`` began."""
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def leave_after(self, seconds: float, left: Callable[[Process], None]) -> None:
        """Let it end by itself after a while, which it does when nobody can ask any more."""

        def leave() -> None:
            if self._process.stdin:
                self._process.stdin.close()
            left(self)

        self._timer = asyncio.get_running_loop().call_later(seconds, leave)

    async def end(self) -> None:
        """End it now."""
        self.stay()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def _exchange(self, data: bytes, limit_s: float) -> bytes:
        if self._process.stdin is None:
            raise EOFError
        self._process.stdin.write(_HEADER.pack(len(data), limit_s))
        # Whatever asyncio holds is moved in memory with every write to the pipe: a large question would stop the loop.
        for start in range(0, len(data), _PIECE_BYTES):
            self._process.stdin.write(data[start : start + _PIECE_BYTES])
            await self._process.stdin.drain()
        (length,) = _LENGTH.unpack(await self._read(_LENGTH.size))
        if length > _LARGEST_ANSWER_BYTES:
            raise EOFError
        return await self._read(length)

    async def _read(self, length: int) -> bytes:
        if self._process.stdout is None:
            raise EOFError
        return await self._process.stdout.readexactly(length)
