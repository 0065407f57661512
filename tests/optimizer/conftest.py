"""No answer that these tests ask for depends on how fast the machine is that runs them."""

import math
from typing import Any

import pytest

from gpusonde.optimizer.continual import candidates
from gpusonde.optimizer.documents import watching
from gpusonde.optimizer.several_jobs import solve_jobs
from gpusonde.optimizer.solve import pareto, solve

SEARCHES: tuple[Any, ...] = (
    solve, pareto, solve_jobs, watching.solve_problem, watching.solve_problems, watching.pareto_plans,
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_search_ends_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a test names no limit, the search ends with its proof; pytest's own limit ends one that never does."""
    for search in SEARCHES:
        monkeypatch.setattr(search, "__kwdefaults__", {**search.__kwdefaults__, "time_limit_s": math.inf})
    for module in (candidates, watching):
        monkeypatch.setattr(module, "_SEARCH_S", math.inf)
