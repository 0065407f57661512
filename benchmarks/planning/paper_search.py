"""The seed's own search on random problems: how far its plans are from the optimum, and what it does not find.

The same random problems as for the exact search, and larger ones: offers of 1 to 8 GPUs at 0.20 to 2.00 US dollars
per GPU and hour, latencies of 10 to 50 ms and 0.4 to 8 ms per sample, 5 to 500 MB of gradients over 5 to 100 Gbit/s;
of the limits, a third one and a third two, drawn at 0.3 to 1.5 times what a random plan takes and costs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from case_studies import case_lines
from instances import LARGE, SMALL, Size, instance
from page import bar, percent, table
from simulator_calls import call_lines

from gpusonde.optimizer.paper import count_plans, paper_search
from gpusonde.optimizer.problem import Problem
from gpusonde.optimizer.solution import Solution, Status, objective_value
from gpusonde.optimizer.solve import solve
from gpusonde.optimizer.step_times import StepTimes

_LARGE_INSTANCES, _SMALL_INSTANCES = 200, 300
_QUICK_INSTANCES = 10
_SAME = 1e-3  # a plan within this of the optimum counts as one


@dataclass(frozen=True)
class Outcome:
    """One instance.

    Attributes:
        optimum: Best objective, seconds or USD; None when there is provably no plan.
        values: What each search reached; None where it found no plan.
        cpu_s: What each took.
        plans: How many plans there are.
    """

    optimum: float | None
    values: dict[str, float | None]
    cpu_s: dict[str, float]
    plans: float


_EXACT, _HYBRID = "exact", "hybrid"
_SEARCHES: dict[str, Callable[[Problem, StepTimes], Solution]] = {
    _EXACT: lambda problem, steps: solve(problem, steps, explain=False),
    _HYBRID: lambda problem, steps: solve(problem, steps, method="paper"),
    "Banchor + MILP always": lambda problem, steps: paper_search(problem, steps, strategy="banchor"),
}


def section(args: argparse.Namespace) -> list[str]:
    """The seed's own search."""
    sets = {
        "large": _run(LARGE, _QUICK_INSTANCES if args.quick else _LARGE_INSTANCES),
        "small": _run(SMALL, _QUICK_INSTANCES if args.quick else _SMALL_INSTANCES),
    }
    false = _false_refusals(sets["large"], _HYBRID)
    gaps = _gaps(sets["large"], _HYBRID)
    shares = f"{percent(float((gaps > _SAME).mean()), 0)} not optimal, {percent(float(gaps.mean()), 0)} mean gap"
    bar(args, "the seed's own search, large instances", "reported", f'{shares}, {false} false "no plan"', met=True)
    lines = [
        "## The seed's own search",
        "",
        _words(sets),
        "",
        *table(
            (
                "instances",
                "search",
                "have a plan",
                "not optimal",
                "mean gap",
                "p90",
                "most",
                'false "no plan"',
                "CPU s",
            ),
            [row for name, outcomes in sets.items() for row in _rows(name, outcomes)],
        ),
    ]
    calls = call_lines((16,) if args.quick else (128, 512))
    return [*lines, *calls, *case_lines()]


def _words(sets: dict[str, list[Outcome]]) -> str:
    plans = {name: np.array([outcome.plans for outcome in outcomes]) for name, outcomes in sets.items()}
    exhaustive = int((plans["large"] < 10_000).sum())
    return (
        f"Powers of two as batches. *Large*: {len(sets['large'])} problems, three to five offers, quotas of 4 to 64, "
        f"global batch 512 to 4,096, {np.median(plans['large']):.1e} plans in the median; {exhaustive} have fewer than "
        "10,000, so that the seed searches them exhaustively, in all others it takes Banchor and an integer programme. "
        f"*Small*: {len(sets['small'])} problems that it always searches exhaustively. *Gap*: objective over the "
        f"optimum of the exact search (CPU {_exact_cpu_s(sets['large']):.3f} and {_exact_cpu_s(sets['small']):.3f} s), "
        "less one, where both found a plan; *not optimal*: a gap above 0.1 %."
    )


def _run(size: Size, count: int) -> list[Outcome]:
    outcomes = []
    for seed in range(count):
        problem, steps = instance(seed, size)
        values: dict[str, float | None] = {}
        cpu_s = {}
        for name, search in _SEARCHES.items():
            started = time.process_time()
            solution = search(problem, steps)
            cpu_s[name] = time.process_time() - started
            values[name] = None if solution.estimate is None else objective_value(problem, solution.estimate)
            if name == _EXACT and solution.status not in (Status.OPTIMAL, Status.INFEASIBLE):
                raise RuntimeError(f"instance {seed}: the exact search proved nothing ({solution.status})")
        outcomes.append(Outcome(values[_EXACT], values, cpu_s, count_plans(problem)))
    return outcomes


def _exact_cpu_s(outcomes: Sequence[Outcome]) -> float:
    return float(np.mean([outcome.cpu_s[_EXACT] for outcome in outcomes]))


def _gaps(outcomes: Sequence[Outcome], name: str) -> np.ndarray:
    gaps = []
    for outcome in outcomes:
        value = outcome.values[name]
        if outcome.optimum is not None and value is not None:
            gaps.append(value / outcome.optimum - 1.0)
    return np.array(gaps)


def _false_refusals(outcomes: Sequence[Outcome], name: str) -> int:
    return sum(outcome.optimum is not None and outcome.values[name] is None for outcome in outcomes)


def _rows(instances: str, outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    feasible = sum(outcome.optimum is not None for outcome in outcomes)
    return [
        (
            instances, name, f"{feasible} of {len(outcomes)}", *_summary(_gaps(outcomes, name)),
            str(_false_refusals(outcomes, name)),
            f"{np.mean([outcome.cpu_s[name] for outcome in outcomes]):.3f}",
        )
        for name in _SEARCHES
        if name != _EXACT
    ]  # fmt: skip


def _summary(gaps: np.ndarray) -> tuple[str, ...]:
    if not gaps.size:
        return ("", "", "", "")
    figures = (gaps.mean(), np.quantile(gaps, 0.9), gaps.max())
    return (percent(float((gaps > _SAME).mean()), 0), *(percent(float(figure)) for figure in figures))
