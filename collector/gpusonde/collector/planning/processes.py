"""``PlanningProcesses``: the processes that answer questions to the optimizer, and what each does.

Documents go in, documents come out; a watch has a process of its own, which holds one job. ``RunProblems`` makes the
problem of a stored run that ``PoseProblem`` asks for.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import fields
from typing import Any

from gpusonde.catalog import load_gpus, load_offers
from gpusonde.collector.config import PlanningConfig, WorkersConfig
from gpusonde.collector.messages import fill, to_document
from gpusonde.collector.planning.wire import unpack_question
from gpusonde.collector.query.endings import earlier_stays
from gpusonde.collector.query.job_tree import JobTree
from gpusonde.collector.query.jobs import runs_of_job
from gpusonde.collector.query.prediction import LatencyPredictor
from gpusonde.collector.query.runs import tree_parts
from gpusonde.collector.storage.model import RunRow
from gpusonde.collector.storage.store import ResultStore
from gpusonde.epoch_detect import told_role
from gpusonde.errors import ChildBusyError, CommandError, DocumentError, ProblemError, RequestError
from gpusonde.optimizer.documents.posing import JobTerms, OtherRun, PosedProblem, doubt_of_run
from gpusonde.optimizer.documents.problem import ProblemDocument, parse_plan, parse_problem
from gpusonde.optimizer.documents.watching import (
    METHODS,
    JobWatch,
    estimate_plan,
    pareto_plans,
    solve_problem,
    solve_problems,
    start_watch,
    take_report,
)
from gpusonde.optimizer.problem import Objective
from gpusonde.optimizer.several_jobs import MOST_JOBS
from gpusonde.planning.v1 import planning_pb2
from gpusonde.query.v1 import query_pb2
from gpusonde.service import child
from gpusonde.service.child import ChildPool, Purpose

_SEARCH_SHARE = 0.4
_MOST_OTHERS = 16
_gpus = functools.cache(load_gpus)
_offers = functools.cache(lambda: load_offers(gpus=_gpus()))


class PlanningAnswers:
    """Answers questions: ``kind``, and what the kind needs. A watch that was started is followed from then on.

    An error is an answer too: ``error`` with ``kind``, ``text`` and ``field``.
    """

    def __init__(self) -> None:
        # Read before the first question, so that its time limit is about the question.
        _offers()
        self._watch: JobWatch | None = None

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Answer one question."""
        try:
            return self._answer(question)
        except DocumentError as error:
            return {"error": {"kind": "invalid", "text": str(error), "field": error.field}}
        except ProblemError as error:
            return {"error": {"kind": "invalid", "text": str(error), "field": ""}}

    def _answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        kind = question["kind"]
        if kind == "watch":
            return self._recommend(question)
        # What the search has by then is answered; reading and explaining take time as well.
        search_s = _SEARCH_SHARE * question["time_limit_s"]
        if kind == "solve_several":
            return {"solution": _solve_several(question, search_s)}
        problem = parse_problem(question["problem"], _gpus(), _offers())
        if kind == "start_watch":
            self._watch = start_watch(problem, question["start"])
            return {}
        if kind == "solve":
            return {"solution": _solve(problem, question.get("method"), search_s)}
        if kind == "pareto":
            return {"front": pareto_plans(problem, time_limit_s=search_s)}
        return {"solution": estimate_plan(problem, parse_plan(question["plan"], problem.problem, "plan"))}

    def _recommend(self, question: Mapping[str, Any]) -> dict[str, Any]:
        if self._watch is None:
            raise DocumentError("start", "comes before everything else")
        for report in question["reports"]:
            take_report(self._watch, report)
        return {"recommendation": self._watch.recommend(question["now_s"])}


def _solve(problem: ProblemDocument, method: object, search_s: float) -> dict[str, Any]:
    for known in METHODS:
        if method in (known, None):
            return solve_problem(problem, known, time_limit_s=search_s)
    raise DocumentError("method", f"there is no method {str(method)[:40]!r}; use {' or '.join(METHODS)}")


def _solve_several(question: Mapping[str, Any], search_s: float) -> dict[str, Any]:
    given = question["problems"]
    if not 1 <= len(given) <= MOST_JOBS:
        raise DocumentError("problems", f"give 1 to {MOST_JOBS} of them, not {len(given):,}")
    documents: list[ProblemDocument] = []
    for place, problem in enumerate(given):
        # Equal jobs share what is computed of one.
        first = given.index(problem)
        try:
            documents.append(documents[first] if first < place else parse_problem(problem, _gpus(), _offers()))
        except DocumentError as error:
            raise DocumentError(f"problems[{place}].{error.field}".rstrip("."), error.problem) from None
    objectives: dict[str | None, Objective | None] = {None: None, **{each.value: each for each in Objective}}
    if (objective := question.get("objective")) not in objectives:
        raise DocumentError("objective", f"must be {' or '.join(each.value for each in Objective)}")
    named = [(each.name or f"job {place}", each) for place, each in enumerate(documents, 1)]
    return solve_problems(named, objectives[objective], budget_usd=question.get("budget_usd"), time_limit_s=search_s)


def make_answer() -> child.Answer:
    """Return what answers in the child: questions of ``planning.wire`` in, JSON out."""
    answer = PlanningAnswers().answer

    def answer_json(data: bytes, limit_s: float) -> bytes:
        return json.dumps(answer({**unpack_question(data), "time_limit_s": limit_s}), allow_nan=False).encode()

    return answer_json


_PURPOSE = Purpose(
    answers="gpusonde.collector.planning.processes:make_answer",
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
