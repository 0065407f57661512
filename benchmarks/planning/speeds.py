"""CPU seconds until a plan is proven, with everything through the iteration simulator, as ``gpusonde plan`` does.

*Mixed* offers have 1 to 4 GPUs, curves and prices of their own and networks of a few rates (``instances.mixed_offers``,
seeds from 0); a deadline is 1.2 times what the fastest plan that 30 s of CPU find needs to keep it. *Catalogue* is
every offer of the shipped one, for a job of which one run on a T4 is known: 90 epochs of an hour, 500 US
dollars, a deadline of 2, 4, 8, 12 and 24 h. It counts until the plan is proven, without what binds and what giving way
buys; one thread, one run each, by step times that know nothing yet.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from instances import mixed_offers
from page import bar, percent, table

from gpusonde.catalog import load_gpus, load_offers
from gpusonde.optimizer import Objective, Problem, Solution, StepTimes
from gpusonde.optimizer.documents.posing import JobTerms, PosedProblem
from gpusonde.optimizer.documents.problem import parse_problem
from gpusonde.optimizer.solve import solve
from gpusonde.predictor.crossgpu import LatencyModel, SourceMeasurement
from gpusonde.simulator.parallel import ParallelPredictor, Placement

_SEEDS, _QUICK_SEEDS = range(3), range(1)
_TIME_LIMIT_S = 20.0
_DEADLINE = 1.2
_CATALOGUE_H = (2.0, 4.0, 8.0, 12.0, 24.0)
_FASTEST_LIMIT_S = 30.0


Posed = Callable[[], tuple[Problem, StepTimes]]


@dataclass(frozen=True)
class _Kind:
    """Problems of one kind, made anew by every call, and the CPU seconds of their median that are wanted."""

    name: str
    most_cpu_s: float | None
    problems: Sequence[Posed]


def section(args: argparse.Namespace) -> list[str]:
    """Return the section's lines."""
    rows = []
    for kind in _kinds(_QUICK_SEEDS if args.quick else _SEEDS):
        found = [_timed(*posed()) for posed in kind.problems]
        cpu_s = [took for took, _ in found]
        proven = sum(solution.proof.complete for _, solution in found)
        said = f"median {np.median(cpu_s):.2f} s, longest {max(cpu_s):.2f} s, {proven} of {len(found)} proven"
        explored = [solution.explored for _, solution in found]
        gaps = [solution.proof.gap for _, solution in found]
        known = [gap for gap in gaps if gap is not None]
        largest = percent(max(known)) if len(known) == len(gaps) else f"{len(gaps) - len(known)} not known"
        rows.append([kind.name, len(found), f"{np.median(explored):,.0f} / {max(explored):,}", largest])
        wanted = "reported" if kind.most_cpu_s is None else f"median <= {kind.most_cpu_s:g} s of CPU, all proven"
        met = kind.most_cpu_s is None or (float(np.median(cpu_s)) <= kind.most_cpu_s and proven == len(found))
        bar(args, kind.name, wanted, said, met=met)
    columns = [
        "problems",
        "number",
        "plans simulated: median / most",
        "largest gap",
    ]
    words = (
        f"Through the simulator, {_TIME_LIMIT_S:.0f} s of CPU allowed, and as much again where no plan was found in "
        f"them; the machine is shared. A deadline is {_DEADLINE} times what the fastest plan needs that a search for "
        f"time finds in {_FASTEST_LIMIT_S:.0f} s of CPU."
    )
    return ["## Speed of plans", "", words, "", *table(columns, rows)]


def _kinds(seeds: range) -> Iterator[_Kind]:
    for objective in Objective:
        six = [partial(_mixed, 6, 64, batch, seed, objective) for batch in (1024, 4096) for seed in seeds]
        yield _Kind(f"6 mixed offers x 64, {objective.value}", 0.3, six)
    yield _Kind("the whole catalogue", 1.0, [partial(_catalogue, hours) for hours in _CATALOGUE_H])
    yield _Kind("60 mixed offers x 16, cost with a deadline", 10.0, [partial(_with_deadline, seed) for seed in seeds])
    most = [partial(_mixed, 1000, 16, 1024, seed, Objective.COST) for seed in seeds[:2]]
    yield _Kind("1,000 mixed offers x 16, cost", None, most)


def _timed(problem: Problem, steps: StepTimes) -> tuple[float, Solution]:
    began = time.process_time()
    found = solve(problem, steps, time_limit_s=_TIME_LIMIT_S, explain=False, clock=time.process_time)
    return time.process_time() - began, found


def _mixed(count: int, quota: int, batch: int, seed: int, objective: Objective) -> tuple[Problem, StepTimes]:
    problem, steps = mixed_offers(count, quota, batch, seed, samples=256)
    return replace(problem, objective=objective), steps


def _with_deadline(seed: int) -> tuple[Problem, StepTimes]:
    problem, steps = _mixed(60, 16, 1024, seed, Objective.COST)
    # By CPU time: with that of the clock, other work on the machine would draw another deadline.
    fastest = solve(
        replace(problem, objective=Objective.TIME),
        steps,
        tolerance=0.02,
        time_limit_s=_FASTEST_LIMIT_S,
        explain=False,
        clock=time.process_time,
    )
    assert fastest.estimate is not None
    problem = replace(problem, deadline_s=_DEADLINE * fastest.estimate.time_at_confidence_s)
    return problem, _mixed(60, 16, 1024, seed, Objective.COST)[1]


def _catalogue(hours: float) -> tuple[Problem, StepTimes]:
    gpus = load_gpus()
    here = Placement(gpus.get("T4"))
    source = SourceMeasurement(here.gpu, 3600.0)
    targets = [Placement(spec) for spec in gpus.specs]
    predictions = ParallelPredictor(load_offers().all).predict(LatencyModel.shipped(), source, here, targets)
    terms = JobTerms(90, hours * 3600.0, 500.0, batch_size=128, steps_per_epoch=10_000)
    posed = PosedProblem.of_run("resnet50", predictions, source, here, terms)
    document = parse_problem(posed.document, gpus, load_offers(gpus=gpus))
    return document.problem, document.step_times()
