"""Answers to questions about a problem, as solution documents."""

from __future__ import annotations

from typing import Any, Literal

from gpusonde.optimizer.documents.fields import DocumentError
from gpusonde.optimizer.documents.problem import ProblemDocument
from gpusonde.optimizer.documents.solution import PARETO_FORMAT, plain_fields, solution_document
from gpusonde.optimizer.documents.steps import simulated_steps
from gpusonde.optimizer.evaluate import check_plan, satisfies
from gpusonde.optimizer.evaluate import estimate_plan as estimate
from gpusonde.optimizer.pareto import pareto
from gpusonde.optimizer.plan import Plan
from gpusonde.optimizer.problem import Problem, ProblemError
from gpusonde.optimizer.solution import PlanEstimate, Proof, Solution, Status
from gpusonde.optimizer.solve import DEFAULT_TIME_LIMIT_S, solve

Method = Literal["exact", "paper"]
METHODS: tuple[Method, ...] = ("exact", "paper")


def solve_problem(
    document: ProblemDocument, method: Method = "exact", *, time_limit_s: float = DEFAULT_TIME_LIMIT_S
) -> dict[str, Any]:
    """Return the best plan, or why there is none.

    Args:
        document: The problem.
        method: How to search.
        time_limit_s: Of the search; explaining what it found gets as much again at most.

    Raises:
        ProblemError: The problem makes no sense.
    """
    found = solve(document.problem, simulated_steps(document), method=method, time_limit_s=time_limit_s)
    return _with_notes(found, document)


def pareto_plans(document: ProblemDocument, *, time_limit_s: float = DEFAULT_TIME_LIMIT_S) -> dict[str, Any]:
    """Return the plans that no other one beats in both time and cost, the fastest first.

    Raises:
        ProblemError: The problem makes no sense.
    """
    front = pareto(document.problem, simulated_steps(document), time_limit_s=time_limit_s)
    return {"format": PARETO_FORMAT, **plain_fields(front), "notes": list(document.notes)}


def estimate_plan(document: ProblemDocument, plan: Plan) -> dict[str, Any]:
    """Return what a given plan takes and costs; infeasible where it breaks a limit.

    Raises:
        DocumentError: The plan does not share out the global batch, or exceeds a quota or a memory.
    """
    problem = document.problem
    try:
        check_plan(problem, plan)
    except ProblemError as error:
        raise DocumentError("plan", str(error)) from None
    found = estimate(problem, plan, simulated_steps(document))
    kept = satisfies(problem, found)
    solution = Solution(
        status=Status.FEASIBLE if kept else Status.INFEASIBLE,
        plan=plan,
        estimate=found,
        proof=Proof("given", False, None, None, "the plan was given; no other one was looked at"),
        why="; ".join(_judgement(problem, found)),
    )
    return _with_notes(solution, document)


def _judgement(problem: Problem, found: PlanEstimate) -> list[str]:
    words = []
    if problem.deadline_s is not None:
        is_kept = found.time_at_confidence_s <= problem.deadline_s
        words.append(
            f"with {problem.confidence:.0%} confidence it takes {found.time_at_confidence_s:,.0f} s, the deadline of"
            f" {problem.deadline_s:,.0f} s is {'kept' if is_kept else 'missed'}"
        )
    if problem.budget_usd is not None:
        is_kept = found.cost_usd <= problem.budget_usd
        words.append(
            f"it costs {found.cost_usd:,.2f} USD, the budget of {problem.budget_usd:,.2f} USD is"
            f" {'kept' if is_kept else 'exceeded'}"
        )
    return words or ["there is neither a deadline nor a budget"]


def _with_notes(solution: Solution, document: ProblemDocument) -> dict[str, Any]:
    return {**solution_document(solution), "notes": list(document.notes)}
