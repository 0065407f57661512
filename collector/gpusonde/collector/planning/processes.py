"""``PlanningProcesses``: the processes that answer questions to the optimizer.

A watch has a process of its own, which holds one job. ``RunProblems`` makes the problem of a stored run that
``PoseProblem`` asks for.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import fields
from typing import Any

from gpusonde.collector.config import PlanningConfig, WorkersConfig
from gpusonde.collector.messages import fill, to_document
from gpusonde.collector.query.endings import earlier_stays
from gpusonde.collector.query.job_runs import runs_of_job
from gpusonde.collector.query.job_tree import JobTree
from gpusonde.collector.query.prediction import LatencyPredictor
from gpusonde.collector.query.runs import tree_parts
from gpusonde.collector.storage.model import RunRow
from gpusonde.collector.storage.store import ResultStore
from gpusonde.epoch_detect import told_role
from gpusonde.errors import ChildBusyError, CommandError, DocumentError, RequestError
from gpusonde.optimizer.documents.posing import JobTerms, OtherRun, PosedProblem, doubt_of_run
from gpusonde.planning.v1 import planning_pb2
from gpusonde.query.v1 import query_pb2
from gpusonde.service.child import ChildPool, Purpose

_MOST_OTHERS = 16
_PURPOSE = Purpose(
    answers="gpusonde.collector.planning.answering:make_answer",
    subject="plans",
    section="workers",
    advice="ask with fewer offers, smaller quotas or fewer batch sizes",
)


class PlanningProcesses:
    """Answers questions as documents; to be used within one event loop.

    Args:
        config: How many.
        workers: Their bounds.
    """

    def __init__(self, config: PlanningConfig, workers: WorkersConfig) -> None:
        self._most_watches = config.max_watches
        self._processes = ChildPool(_PURPOSE, workers.pool(config.processes))
        self._watches = 0

    def configure(self, config: PlanningConfig, workers: WorkersConfig) -> None:
        """Set other bounds, from the next question on; processes keep their memory limit until they end."""
        self._most_watches = config.max_watches
        self._processes.configure(workers.pool(config.processes))

    async def ask(self, question: bytes) -> dict[str, Any]:
        """Return the answer to a question, which ``wire.pack_question`` packs.

        Raises:
            ChildError: There is no answer.
        """
        return _document(await self._processes.ask(question))

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator[Callable[[bytes], Awaitable[dict[str, Any]]]]:
        """Hold a process for one job; yields what asks it, with the errors of ``ask``.

        Raises:
            ChildBusyError: Too many jobs are watched already.
        """
        if self._watches >= self._most_watches:
            raise ChildBusyError(
                f"{self._watches} jobs are watched (planning.max_watches); end one of the watches first"
            )
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


class RunProblems:
    """Poses problems.

    Args:
        predictor: Says what an epoch takes elsewhere.
        results: Where the trees of cycles are.
    """

    def __init__(self, predictor: LatencyPredictor, results: ResultStore) -> None:
        self._predictor = predictor
        self._results = results

    def pose(self, request: planning_pb2.PoseProblemRequest) -> planning_pb2.PoseProblemResponse:
        """Answer a request.

        Raises:
            RequestError: As of ``LatencyPredictor.predict_run``.
            RequestError: What is wanted cannot be (``INVALID_ARGUMENT``).
            RequestError: No GPU that can be rented is predicted (``FAILED_PRECONDITION``).
        """
        terms = _terms(request)
        question = query_pb2.PredictEpochLatencyRequest(
            run_id=request.run_id,
            precision=request.precision,
            target_placements=[query_pb2.Placement(gpu_count=1, host_count=1)],
        )
        found = self._predictor.predict_run(question)
        assert found.run is not None  # noqa: S101 - a run was asked for
        tree = JobTree.of(tree_parts(self._results, found.run)).listed()
        doubt = doubt_of_run(told_role(tree.cycles, tree.level), found.source.epoch_latency_s)
        name = found.run.job_id or found.run.run_id
        try:
            posed = PosedProblem.of_run(
                name,
                found.predictions,
                found.source,
                found.here,
                terms,
                cycles=tree.cycles,
                doubt=doubt,
                others=self._other_runs(found.run),
            )
        except DocumentError as error:
            raise RequestError("INVALID_ARGUMENT", f"field '{error.field}': {error.problem}") from None
        except CommandError as error:
            raise RequestError("FAILED_PRECONDITION", str(error)) from None
        response = planning_pb2.PoseProblemResponse(
            assumed=[posed.measured, *posed.assumed],
            measured=posed.measured,
            key_notes=posed.key_notes,
            extrapolated=posed.extrapolated,
        )
        fill(response.problem, posed.document)
        return response

    def _other_runs(self, run: RunRow) -> list[OtherRun]:
        """Return what other runs of a run's job took, now over or before it was requeued; the latest, oldest first."""
        members = runs_of_job(self._results, run)
        every = [each for stay in earlier_stays(self._results, members) for each in stay] + members
        found: list[OtherRun] = []
        reached = 0
        for each in sorted(every, key=lambda other: other.start_unix_nano):
            is_apart = each.end_unix_nano < run.start_unix_nano or each.start_unix_nano > run.end_unix_nano
            # Of GPUs that ran together one tells.
            if not is_apart or each.start_unix_nano <= reached or each.verdict != "epochs":
                continue
            reached = each.end_unix_nano
            with contextlib.suppress(RequestError):
                here = self._predictor.placement_of(each)
                cycles = JobTree.of(tree_parts(self._results, each)).listed().cycles
                found.append(OtherRun(here, each.period_s, cycles))
        return found[-_MOST_OTHERS:]


def _terms(request: planning_pb2.PoseProblemRequest) -> JobTerms:
    told = to_document(request)
    try:
        return JobTerms(
            **{"epochs": 0} | {each.name: told[each.name] for each in fields(JobTerms) if each.name in told}
        )
    except DocumentError as error:
        raise RequestError("INVALID_ARGUMENT", f"field '{error.field}': {error.problem}") from None
