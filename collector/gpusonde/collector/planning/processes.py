"""``PlanningProcesses``: questions to the optimizer, each answered by a process that can be ended.

A search cannot be interrupted from outside, and a document can make it long however it is capped: a process with limits
of memory and time answers, one question at a time, behind a queue of bounded length. A watch has a process of its own,
which holds the controller of one job and nothing else. What is asked and answered are documents as JSON, so that
nothing is executed on either side.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import struct
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

_LOG = logging.getLogger(__name__)
_MODULE = "gpusonde.collector.planning.worker"
_HEADER = struct.Struct("<Id")
_LENGTH = struct.Struct("<I")
_LARGEST_ANSWER_BYTES = 64 << 20
# Python, NumPy and the optimizer are imported before the first answer, on a busy host in seconds.
_START_S = 60.0


class BusyError(Exception):
    """Too many questions wait, or too many jobs are watched: RESOURCE_EXHAUSTED."""


class OutOfTimeError(Exception):
    """A question took longer than it may: DEADLINE_EXCEEDED."""


class ProcessLostError(Exception):
    """The process died over a question, as it does without memory: RESOURCE_EXHAUSTED."""


@dataclass(frozen=True)
class ProcessOptions:
    """Bounds of the processes.

    Attributes:
        processes: Questions answered at the same time.
        waiting: Questions that wait for one of them.
        watches: Jobs watched at the same time.
        time_limit_s: Time for one answer.
        memory_bytes: Memory that a process may allocate.
        idle_s: Time without a question after which a process ends.
    """

    processes: int = 1
    waiting: int = 16
    watches: int = 8
    time_limit_s: float = 30.0
    memory_bytes: int = 2 << 30
    idle_s: float = 300.0


class PlanningProcesses:
    """Answers questions, to which it adds ``time_limit_s``; to be used within one event loop.

    Processes start with the questions.

    Args:
        options: Their bounds.
    """

    def __init__(self, options: ProcessOptions) -> None:
        self._options = options
        self._idle: list[Process] = []
        self._open: set[Process] = set()
        self._busy = 0
        self._waiting = 0
        self._watches = 0
        self._freed = asyncio.Condition()

    @property
    def options(self) -> ProcessOptions:
        """The bounds in force."""
        return self._options

    def configure(self, options: ProcessOptions) -> None:
        """Set other bounds, from the next question on; processes keep their memory limit until they end."""
        self._options = options

    async def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a question.

        Raises:
            BusyError: Too many wait already.
            OutOfTimeError: The answer took too long.
            ProcessLostError: The process died.
        """
        async with self._turn():
            process = await self._process()
            answer = await self._ask(process, question)
            self._rest(process)
            return answer

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator[Callable[[Mapping[str, Any]], Any]]:
        """Hold a process for one job; yields what asks it, with the errors of ``ask``.

        Raises:
            BusyError: Too many jobs are watched already.
        """
        if self._watches >= self._options.watches:
            raise BusyError(f"{self._watches} jobs are watched (planning.max_watches); end one of the watches first")
        self._watches += 1
        try:
            process = await self._start()

            async def ask(question: Mapping[str, Any]) -> dict[str, Any]:
                async with self._turn():
                    return await self._ask(process, question)

            try:
                yield ask
            finally:
                self._open.discard(process)
                await process.end()
        finally:
            self._watches -= 1

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
                    f"{self._busy} questions about plans are being answered and {self._waiting} wait; ask again in a"
                    " moment"
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
                self._freed.notify()

    async def _ask(self, process: Process, question: Mapping[str, Any]) -> dict[str, Any]:
        limit_s = self._options.time_limit_s
        try:
            return await process.ask(json.dumps({**question, "time_limit_s": limit_s}).encode(), limit_s)
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
        process = await Process.start(self._options.memory_bytes)
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

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._timer: asyncio.TimerHandle | None = None
        self._is_ready = False

    @classmethod
    async def start(cls, memory_bytes: int) -> Process:
        """Start one."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", _MODULE, str(memory_bytes),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment,
        )  # fmt: skip
        _LOG.info("process %d answers questions about plans", process.pid)
        return cls(process)

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended by itself."""
        return self._process.returncode is None

    async def ask(self, data: bytes, limit_s: float) -> dict[str, Any]:
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
                f"no answer within {limit_s:g} s (planning.time_limit); ask with fewer offers, smaller quotas or fewer"
                " batch sizes"
            ) from None
        except (EOFError, OSError):
            raise ProcessLostError(
                "the process that answered died, probably for want of memory (planning.memory_bytes)"
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

    async def _exchange(self, data: bytes, limit_s: float) -> dict[str, Any]:
        if self._process.stdin is None:
            raise EOFError
        self._process.stdin.write(_HEADER.pack(len(data), limit_s) + data)
        await self._process.stdin.drain()
        (length,) = _LENGTH.unpack(await self._read(_LENGTH.size))
        if length > _LARGEST_ANSWER_BYTES:
            raise EOFError
        answer: dict[str, Any] = json.loads(await self._read(length))
        return answer

    async def _read(self, length: int) -> bytes:
        if self._process.stdout is None:
            raise EOFError
        return await self._process.stdout.readexactly(length)
