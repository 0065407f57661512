"""``PlanningClient``: questions about plans to a collector; problems, plans and solutions are documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpusonde.collector.client.connection import ServiceClient
from gpusonde.collector.messages import fill, to_document
from gpusonde.errors import CollectorError
from gpusonde.planning.v1 import planning_pb2, planning_pb2_grpc

_PROBLEM_FORMAT = "gpusonde.problem/1"
_SOLUTION_FORMAT = "gpusonde.solution/1"
_JOINT_FORMAT = "gpusonde.joint_solution/1"
_PARETO_FORMAT = "gpusonde.pareto/1"


class PlanningClient(ServiceClient):
    """Asks one collector what to rent."""

    usual_timeout_s = 300.0
    _stub_type = planning_pb2_grpc.PlanningServiceStub

    def pose(self, run_id: str, terms: Mapping[str, Any]) -> dict[str, Any]:
        """Return the problem of a stored run: ``problem``, ``measured``, ``assumed``, ``key_notes``, ``extrapolated``.

        Args:
            run_id: The run.
            terms: ``epochs``, and what else of ``PoseProblemRequest`` is known.

        Raises:
            CollectorError: No such run, or of it no problem can be made.
        """
        request = planning_pb2.PoseProblemRequest(run_id=run_id)
        fill(request, terms)
        found = self._ask(self._stub.PoseProblem, request)
        return {
            "problem": {"format": _PROBLEM_FORMAT, **to_document(found.problem)},
            "measured": found.measured,
            "assumed": list(found.assumed[1:]),
            "key_notes": dict(found.key_notes),
            "extrapolated": dict(found.extrapolated),
        }

    def solve(self, problem: Mapping[str, Any], method: str = "exact") -> dict[str, Any]:
        """Return the solution of a problem.

        Raises:
            CollectorError: The problem makes no sense, it takes too long, or there is no answer.
        """
        request = planning_pb2.SolveProblemRequest()
        fill(request, {"problem": problem, "method": method})
        return self._solution(self._ask(self._stub.SolveProblem, request).solution)

    def solve_several(
        self,
        problems: Sequence[Mapping[str, Any]],
        *,
        objective: str | None = None,
        budget_usd: float | None = None,
    ) -> dict[str, Any]:
        """Return the plans of several jobs that share machines and a budget.

        Args:
            problems: One per job.
            objective: ``cost`` or ``time`` of all together; None for what all problems have.
            budget_usd: Most that all may cost on average; None for no limit.

        Raises:
            CollectorError: As for ``solve``, or the problems disagree about what they share.
        """
        request = planning_pb2.SolveProblemsRequest()
        fill(request, {"problems": problems, "objective": objective, "budget_usd": budget_usd})
        found = self._ask(self._stub.SolveProblems, request).solution
        return {"format": _JOINT_FORMAT, **to_document(found, every_key=True)}

    def estimate(self, problem: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a plan takes and costs, as a solution.

        Raises:
            CollectorError: As for ``solve``.
        """
        request = planning_pb2.EstimatePlanRequest()
        fill(request, {"problem": problem, "plan": plan})
        return self._solution(self._ask(self._stub.EstimatePlan, request).solution)

    def pareto(self, problem: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plans that no other one beats in both time and cost, ``points``, the fastest first.

        Raises:
            CollectorError: As for ``solve``.
        """
        request = planning_pb2.ListParetoPlansRequest()
        fill(request, {"problem": problem})
        return {"format": _PARETO_FORMAT, **to_document(self._ask(self._stub.ListParetoPlans, request), every_key=True)}

    def watch(
        self, problem: Mapping[str, Any], start: Mapping[str, Any], reports: Iterable[Mapping[str, Any]] = ()
    ) -> Iterator[dict[str, Any]]:
        """Yield recommendations for a job until it is done or, where no run tells its progress, the reports end.

        Args:
            problem: The whole job.
            start: What of ``plan``, ``elapsed_s``, ``spent_usd`` and ``run_id`` is known.
            reports: ``elapsed_s`` with ``completed_iterations``, or with ``plan``, ``preempted`` and ``refused``. They
                are taken in a thread of their own, so that they may come when they like; an exception of theirs is
                raised here.

        Raises:
            CollectorError: Something of it cannot be, too many jobs are watched, or the collector stops.
        """
        source = _Requests(problem, start, reports)
        call = self._stub.WatchJob(iter(source), metadata=self._metadata)
        try:
            with self._errors():
                for response in call:
                    yield to_document(response.recommendation, every_key=True)
        except CollectorError:
            source.raise_error()
            raise
        finally:
            call.cancel()
        source.raise_error()

    @staticmethod
    def _solution(message: planning_pb2.Solution) -> dict[str, Any]:
        return {"format": _SOLUTION_FORMAT, **to_document(message, every_key=True)}


class _Requests:
    """The requests of a watch, and what went wrong with them."""

    def __init__(
        self, problem: Mapping[str, Any], start: Mapping[str, Any], reports: Iterable[Mapping[str, Any]]
    ) -> None:
        self._problem = problem
        self._start = start
        self._reports = reports
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[planning_pb2.WatchJobRequest]:
        try:
            first = planning_pb2.WatchJobRequest()
            fill(first.start, {"problem": self._problem, **self._start})
            yield first
            for report in self._reports:
                request = planning_pb2.WatchJobRequest()
                fill(request.progress if "completed_iterations" in report else request.machines, report)
                yield request
        except Exception as error:  # gRPC would only log it
            self._error = error

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error
