"""``PlanningProcesses``: questions to the optimizer; a watch has a process of its own, which holds one job."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from gpusonde.collector.workers.pool import AnswerProcesses, BusyError, PoolOptions, Purpose

_PURPOSE = Purpose(
    module="gpusonde.collector.planning.worker",
    subject="plans",
    section="planning",
    advice="ask with fewer offers, smaller quotas or fewer batch sizes",
)


@dataclass(frozen=True)
class ProcessOptions(PoolOptions):
    """Bounds of the processes.

    Attributes:
        watches: Jobs watched at the same time.
    """

    watches: int = 8


class PlanningProcesses:
    """Answers questions as documents; to be used within one event loop.

    Args:
        options: Their bounds.
    """

    def __init__(self, options: ProcessOptions) -> None:
        self._options = options
        self._processes = AnswerProcesses(_PURPOSE, options)
        self._watches = 0

    @property
    def options(self) -> ProcessOptions:
        """The bounds in force."""
        return self._options

    def configure(self, options: ProcessOptions) -> None:
        """Set other bounds, from the next question on; processes keep their memory limit until they end."""
        self._options = options
        self._processes.configure(options)

    async def ask(self, question: bytes) -> dict[str, Any]:
        """Return the answer to a question, which ``wire.pack_question`` packs.

        Raises:
            BusyError: Too many wait already.
            OutOfTimeError: The answer took too long.
            ProcessLostError: The process died.
        """
        return _document(await self._processes.ask(question))

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator[Callable[[bytes], Awaitable[dict[str, Any]]]]:
        """Hold a process for one job; yields what asks it, with the errors of ``ask``.

        Raises:
            BusyError: Too many jobs are watched already.
        """
        if self._watches >= self._options.watches:
            raise BusyError(f"{self._watches} jobs are watched (planning.max_watches); end one of the watches first")
        self._watches += 1
        try:
            async with self._processes.hold() as ask:

                async def ask_document(question: bytes) -> dict[str, Any]:
                    return _document(await ask(question))

                yield ask_document
        finally:
            self._watches -= 1

    async def close(self) -> None:
        """End all processes."""
        await self._processes.close()


def _document(data: bytes) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(data)
    return answer
