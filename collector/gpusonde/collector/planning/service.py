"""``PlanningService``: the optimizer's way through gRPC."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import Executor
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import Message

from gpusonde.collector.config import PlanningConfig
from gpusonde.collector.messages import enum_text, fill
from gpusonde.collector.planning.processes import PlanningProcesses, RunProblems
from gpusonde.collector.planning.watch import EpochEnds, WatchStream
from gpusonde.collector.planning.wire import abort, pack_question, raise_errors, refusal_reason
from gpusonde.collector.query.runs import find_run
from gpusonde.collector.security.guard import Guard
from gpusonde.collector.security.identity import CallerIdentity
from gpusonde.collector.storage.store import ResultStore
from gpusonde.errors import RequestError
from gpusonde.planning.v1 import planning_pb2, planning_pb2_grpc

_START_WAIT_S = 30.0

Context = grpc.aio.ServicerContext[Any, Any]
# As much as gRPC takes where nothing else is said.
MAX_REQUEST_BYTES = 4 << 20


class PlanningService(planning_pb2_grpc.PlanningServiceServicer):
    """Implements ``gpusonde.planning.v1.PlanningService``.

    Args:
        processes: Answer.
        problems: Poses them.
        results: Where runs and epochs are.
        executor: Runs blocking reads of them.
        guard: Knows callers, whose proof may be withdrawn during a watch.
        config: How to watch and how much to take, at the time of the question.
        refused: Where refusals are counted, by reason.
    """

    def __init__(
        self,
        processes: PlanningProcesses,
        problems: RunProblems,
        results: ResultStore,
        executor: Executor,
        guard: Guard,
        config: Callable[[], PlanningConfig],
        refused: Counter[str],
    ) -> None:
        self._processes = processes
        self._problems = problems
        self._results = results
        self._executor = executor
        self._guard = guard
        self._config = config
        self._refused = refused
        self._draining = asyncio.Event()

    def drain(self) -> None:
        """Have every watch end."""
        self._draining.set()

    async def PoseProblem(  # noqa: N802 - gRPC's name, as below
        self, request: planning_pb2.PoseProblemRequest, context: Context
    ) -> planning_pb2.PoseProblemResponse:
        """Return the problem of a run."""
        await self._check(context, request)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, self._problems.pose, request)
        except Exception as error:  # the client must get a status whatever happened
            await self._abort(context, error)

    async def SolveProblem(  # noqa: N802
        self, request: planning_pb2.SolveProblemRequest, context: Context
    ) -> planning_pb2.SolveProblemResponse:
        """Return the best plan."""
        question = {"kind": "solve"}
        if request.method:
            question["method"] = enum_text(request, "method") or str(request.method)
        answer = await self._answer(context, request, question, {"problem": request.problem})
        response = planning_pb2.SolveProblemResponse()
        fill(response.solution, answer["solution"])
        return response

    async def SolveProblems(  # noqa: N802
        self, request: planning_pb2.SolveProblemsRequest, context: Context
    ) -> planning_pb2.SolveProblemsResponse:
        """Return the best plans of several jobs."""
        answer = await self._answer(context, request, {"kind": "solve_several"}, {"several": request})
        response = planning_pb2.SolveProblemsResponse()
        fill(response.solution, answer["solution"])
        return response

    async def EstimatePlan(  # noqa: N802
        self, request: planning_pb2.EstimatePlanRequest, context: Context
    ) -> planning_pb2.EstimatePlanResponse:
        """Return what a plan takes and costs."""
        messages = {"problem": request.problem, "plan": request.plan}
        answer = await self._answer(context, request, {"kind": "estimate"}, messages)
        response = planning_pb2.EstimatePlanResponse()
        fill(response.solution, answer["solution"])
        return response

    async def ListParetoPlans(  # noqa: N802
        self, request: planning_pb2.ListParetoPlansRequest, context: Context
    ) -> planning_pb2.ListParetoPlansResponse:
        """Return the plans that no other one beats in both time and cost."""
        answer = await self._answer(context, request, {"kind": "pareto"}, {"problem": request.problem})
        response = planning_pb2.ListParetoPlansResponse()
        fill(response, answer["front"])
        return response

    async def WatchJob(  # noqa: N802
        self, requests: AsyncIterator[planning_pb2.WatchJobRequest], context: Context
    ) -> None:
        """Follow a job and say when another plan is better."""
        try:
            start = await self._start(requests)
            await self._check(context, start)
            if start.run_id:
                await self._epochs_of(start.run_id)
            identity, sending = self._guard.identify(context), asyncio.Lock()

            def may_go_on() -> None:
                self._check_identity(identity)

            async def send(recommendation: dict[str, Any]) -> None:
                response = planning_pb2.WatchJobResponse()
                fill(response.recommendation, recommendation)
                async with sending:
                    await context.write(response)

            async with self._processes.watch() as ask:
                watch = WatchStream(start, ask, self._epochs_of, self._config)
                await unless_draining(self._draining, watch.run(requests, send, may_go_on), sending)
        except Exception as error:  # the client must get a status whatever happened
            await self._abort(context, error)

    def _check_identity(self, identity: CallerIdentity) -> None:
        if problem := self._guard.revoked(identity):
            raise RequestError("UNAUTHENTICATED", problem)

    async def _start(self, requests: AsyncIterator[planning_pb2.WatchJobRequest]) -> planning_pb2.WatchStart:
        try:
            first = await asyncio.wait_for(anext(requests, None), _START_WAIT_S)
        except asyncio.TimeoutError:
            first = None
        if first is None or first.WhichOneof("request") != "start":
            raise RequestError("INVALID_ARGUMENT", "field 'start': a watch begins with it")
        return first.start

    async def _epochs_of(self, run_id: str) -> EpochEnds:
        def read() -> EpochEnds:
            # The run before its epochs: of one that has ended all of them are there.
            run = find_run(self._results, run_id)
            standing = (epoch for epoch in self._results.epochs(run.run_id) if epoch.stands)
            return EpochEnds([epoch.end_unix_nano / 1e9 for epoch in standing], run.ended * run.end_unix_nano / 1e9)

        return await asyncio.get_running_loop().run_in_executor(self._executor, read)

    async def _answer(
        self, context: Context, request: Any, question: Mapping[str, Any], messages: Mapping[str, Message]
    ) -> dict[str, Any]:
        """Have a question answered and turn what goes wrong into statuses."""
        await self._check(context, request)
        try:
            return raise_errors(await self._processes.ask(pack_question(question, messages)))
        except Exception as error:  # the client must get a status whatever happened
            await self._abort(context, error)

    async def _abort(self, context: Context, error: Exception) -> NoReturn:
        if reason := refusal_reason(error):
            self._refused[reason] += 1
        await abort(context, error)

    async def _check(self, context: Context, request: Any) -> None:
        if self._config().processes < 1:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "this collector does not plan (planning.processes = 0)"
            )
        if (size := request.ByteSize()) > MAX_REQUEST_BYTES:
            self._refused["planning_size"] += 1
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the request has {size} bytes, {MAX_REQUEST_BYTES} are taken",
            )


async def unless_draining(draining: asyncio.Event, watching: Coroutine[Any, Any, None], sending: asyncio.Lock) -> None:
    """Follow a job until it ends or the collector stops.

    Args:
        draining: Set once the collector stops.
        watching: What follows the job.
        sending: Held while an answer is on its way: gRPC takes no status beside it.

    Raises:
        RequestError: The collector stops (``UNAVAILABLE``).
    """
    task, stops = asyncio.ensure_future(watching), asyncio.ensure_future(draining.wait())
    try:
        await asyncio.wait({task, stops}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            async with sending:
                raise RequestError("UNAVAILABLE", "the collector stops; watch again at another one")
        task.result()
    finally:
        task.cancel()
        stops.cancel()
