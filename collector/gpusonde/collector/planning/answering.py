"""What answers questions about plans in a process of its own: documents in, documents out."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from gpusonde.catalog import load_gpus, load_offers
from gpusonde.collector.planning.wire import unpack_question
from gpusonde.errors import DocumentError, ProblemError
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
from gpusonde.service import child

_SEARCH_SHARE = 0.4
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
