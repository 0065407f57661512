"""``WorkloadProcesses``: questions about workloads, of which one that ends its process does not take others with it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any

from gpusonde.collector.workload.checker import Questions
from gpusonde.collector.workload.errors import INTERNAL, OUT_OF_MEMORY, OUT_OF_TIME, WorkloadError
from gpusonde.errors import ChildBusyError, ChildError, ChildFaultError, ChildLostError, ChildTimeoutError
from gpusonde.service.child import ChildPool, PoolOptions, Purpose, pack

_LOG = logging.getLogger(__name__)
PURPOSE = Purpose(
    answers="gpusonde.collector.workload.answering:make_answer",
    subject="workloads",
    section="workers",
    advice="ask about fewer or smaller graphs at a time",
)

Answers = dict[str, Any]


class WorkloadProcesses:
    """Answers questions; to be used within one event loop.

    Args:
        options: Bounds of the processes.
        purpose: What they run.
    """

    def __init__(self, options: PoolOptions, purpose: Purpose = PURPOSE) -> None:
        self._processes = ChildPool(purpose, options)

    @property
    def options(self) -> PoolOptions:
        """The bounds in force."""
        return self._processes.options

    @property
    def waiting(self) -> int:
        """Questions that wait for a process."""
        return self._processes.waiting

    def configure(self, options: PoolOptions) -> None:
        """Set other bounds, from the next question on."""
        self._processes.configure(options)

    async def close(self) -> None:
        """End all processes."""
        await self._processes.close()

    async def ask(self, kind: str, questions: Questions, more: dict[str, Any]) -> Answers:
        """Return ``answers``, one document per row, and what else the kind has.

        Args:
            kind: "predict", "embed" or "nearest".
            questions: What is asked; rows that are errors already are answered with them.
            more: What else the kind needs.

        Raises:
            ChildBusyError: Too many wait already.
        """
        good = [row for row in questions.rows if not isinstance(row, WorkloadError)]
        found: Answers = {"answers": []}
        if good:
            found = await self._ask({"kind": kind, **more}, questions, good)
        answers = iter(found["answers"])
        found["answers"] = [
            {"error": row.document()} if isinstance(row, WorkloadError) else next(answers) for row in questions.rows
        ]
        return found

    async def _ask(self, head: dict[str, Any], questions: Questions, rows: list[dict[str, Any]]) -> Answers:
        try:
            return await self._once(head, questions, rows)
        except (ChildTimeoutError, ChildLostError) as error:
            indexes = list(dict.fromkeys(row["graph"] for row in rows))
            if len(indexes) == 1:
                return {"answers": [_refusal(error)] * len(rows)}
        # One graph has done it. Each is asked about alone, all of them within the limit once more.
        left_s = self.options.time_limit_s
        by_graph: dict[int, Answers] = {}
        for number, index in enumerate(indexes):
            alone = [row for row in rows if row["graph"] == index]
            limit_s = left_s / (len(indexes) - number)
            began_s = asyncio.get_running_loop().time()
            try:
                by_graph[index] = await self._once(head, questions, alone, limit_s)
            except (ChildTimeoutError, ChildLostError, ChildBusyError) as error:
                by_graph[index] = {"answers": [_refusal(error)] * len(alone)}
            # Starting the next process does not count.
            left_s -= min(limit_s, asyncio.get_running_loop().time() - began_s)
        taken = {index: iter(found["answers"]) for index, found in by_graph.items()}
        rest = {key: value for found in by_graph.values() for key, value in found.items() if key != "answers"}
        return {**rest, "answers": [next(taken[row["graph"]]) for row in rows]}

    async def _once(
        self,
        head: dict[str, Any],
        questions: Questions,
        rows: Sequence[dict[str, Any]],
        limit_s: float | None = None,
    ) -> Answers:
        positions = {index: number for number, index in enumerate(dict.fromkeys(row["graph"] for row in rows))}
        document = {
            **head,
            "graphs": [questions.graphs[index] for index in positions],
            "rows": [{**row, "graph": positions[row["graph"]]} for row in rows],
        }
        data = pack(document, [questions.contents[index] for index in positions])
        try:
            found: Answers = json.loads(await self._processes.ask(data, limit_s))
        except ChildFaultError as error:
            _LOG.error("a question about workloads failed: %s", error)
            return {"answers": [_refusal(error)] * len(rows)}
        errors = [answer["error"] for answer in found["answers"] if "error" in answer]
        # Processes write no files, which their standard error may be.
        for text in dict.fromkeys(said for each in errors if (said := each.pop("for_log", ""))):
            _LOG.error("a question about workloads failed: %s", text)
        return found


def _refusal(error: ChildError) -> dict[str, Any]:
    if isinstance(error, ChildFaultError):
        return {"error": WorkloadError(INTERNAL, "the question failed; see the collector's log").document()}
    kind = OUT_OF_MEMORY if isinstance(error, ChildLostError) else OUT_OF_TIME
    return {"error": WorkloadError(kind, str(error)).document()}
