"""Jobs on one machine over real traces of spot capacity: ours, the published rules, and what a prophet would pay.

Fixed before the figures; developed on seeds 1 to 3, shown are the jobs of ``spot_jobs.SEED`` and, of several zones,
those of ``FRESH_SEED``, which were played once, after all else.

Jobs. 48 with one zone each, every zone of every campaign three times, and 96 with all zones of a campaign that has
several (24 until their result was known); 6, 12 or 24 hours, deadline 1.1, 1.2, 1.5 or 2 times that (tight: the first
two); prices as in ``spot_jobs``. Each twice: at the estimated speed, as published evaluations have it, and with true
iterations exp(N(0, 0.08)) times the estimated ones, which ours is not told and the published rules are. Jobs that no
machine could end in time are left out.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import spot_jobs
from baseline_uniform_progress import LoneJob, prophet_usd, replay_published
from page import table
from spot_replay import CapacityTrace, Outcome, Truth, replay

from gpusonde.optimizer import MachineOffer, Objective, Problem, TableSteps
from gpusonde.optimizer.problem import Billing
from gpusonde.optimizer.search.space import brute_force

HOURS = (6.0, 12.0, 24.0)
DEADLINES = (1.1, 1.2, 1.5, 2.0)
FRESH_SEED = 20261124
_LOOSE = 1.5
_BATCH = spot_jobs.GLOBAL_BATCH
_READY_S = 180.0


@dataclass(frozen=True)
class _Task:
    traces: Mapping[str, CapacityTrace]
    offers: tuple[MachineOffer, ...]
    deadline: float
    start_s: float
    problem: Problem
    truth: Truth
    work_s: float


@dataclass(frozen=True)
class AloneResult:
    """Costs of some jobs over the prophet's, by rule, and the deadlines they missed.

    Attributes:
        jobs: How many.
        prophet_usd: What the prophet pays for all.
        over: Cost over the prophet's: ours, Uniform Progress, greedy.
        missed: Deadlines missed, likewise.
    """

    jobs: int
    prophet_usd: float
    over: tuple[float, float, float]
    missed: tuple[int, int, int]


def play_all(
    folder: Path, *, zones: bool, known: bool, seed: int = spot_jobs.SEED, quick: bool = False
) -> list[tuple[str, AloneResult]]:
    """Play the jobs: all, tight ones, loose ones.

    Args:
        folder: Of the measurement tables.
        zones: Jobs with all zones of a campaign instead of one.
        known: Whether the true speed is the estimated one.
        seed: Of the draw.
        quick: A few jobs only.
    """
    tasks = _draw(folder, seed, zones=zones, known=known)[: 4 if quick else None]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        played = list(pool.map(_play, tasks))
    kinds = {
        "all": range(len(tasks)),
        "tight": [place for place, task in enumerate(tasks) if task.deadline < _LOOSE],
        "loose": [place for place, task in enumerate(tasks) if task.deadline >= _LOOSE],
    }
    return [(name, _sum(tasks, played, list(places))) for name, places in kinds.items() if places]


def lines(results: Mapping[str, Sequence[tuple[str, AloneResult]]]) -> list[str]:
    """Return the table of some results by what was played."""
    rows = [
        (
            f"{what}, {name}", str(found.jobs), f"{found.prophet_usd:,.0f}",
            *(f"{over:.3f} ({missed})" for over, missed in zip(found.over, found.missed, strict=True)),
        )
        for what, by_kind in results.items() for name, found in by_kind
    ]  # fmt: skip
    return table(("one machine", "jobs", "prophet, USD", "**ours**", "Uniform Progress", "waits, then on demand"), rows)


def _sum(tasks: Sequence[_Task], played: Sequence[tuple[list[Outcome], float]], places: Sequence[int]) -> AloneResult:
    least = sum(played[place][1] for place in places)
    over, missed = [], []
    for rule in range(3):
        over.append(sum(played[place][0][rule].usd for place in places) / least)
        missed.append(
            sum(not played[place][0][rule].met(tasks[place].problem.deadline_s or math.inf) for place in places)
        )
    return AloneResult(len(places), least, (over[0], over[1], over[2]), (missed[0], missed[1], missed[2]))


def _draw(folder: Path, seed: int, *, zones: bool, known: bool) -> list[_Task]:
    prices = spot_jobs.spot_prices(folder / "spot_history_aws_2020.csv")
    campaigns = spot_jobs.read_sets(folder)
    if zones:
        places = [campaign.zones for campaign in campaigns if len(campaign.zones) > 1] * 24
    else:
        places = [{zone: trace} for campaign in campaigns for zone, trace in campaign.zones.items()] * 3
    random = Random(f"{seed} alone {zones}")
    step_s = spot_jobs.step_s("medium", _BATCH, 1)
    tasks = []
    for number, traces in enumerate(places):
        hours, deadline = random.choice(HOURS), DEADLINES[(number + number // 4) % 4]
        length_s = min(trace.duration_s for trace in traces.values())
        start_s = random.uniform(0.0, length_s - 1.05 * deadline * hours * 3600.0)
        factor = math.exp(random.gauss(0.0, 0.08))
        truth = Truth(1.0 if known else factor, 0.0, (90.0, 210.0), number)
        spot = [
            MachineOffer(
                f"spot {zone}", "V100", 1, 1, prices.get(zone, prices.get(zone[:-1], prices[""])), Billing.SPOT,
                largest_batch=_BATCH, region=zone[:-1], zone=zone,
            )
            for zone in traces
        ]  # fmt: skip
        region = spot[0].region
        sure = MachineOffer("on demand", "V100", 1, 1, spot_jobs.ON_DEMAND_USD, largest_batch=_BATCH, region=region)
        iterations = math.ceil(hours * 3600.0 / step_s)
        problem = Problem(
            _BATCH, iterations, (*spot, sure), Objective.COST, deadline_s=deadline * hours * 3600.0,
            batch_sizes=(_BATCH,),
        )  # fmt: skip
        work_s = iterations * step_s * truth.factor
        if _READY_S + work_s <= deadline * hours * 3600.0:
            named = {f"spot {zone}": trace for zone, trace in traces.items()}
            tasks.append(_Task(named, problem.offers, deadline, start_s, problem, truth, work_s))
    return tasks


def _play(task: _Task) -> tuple[list[Outcome], float]:
    """Play one job under every rule, in a process of its own."""
    *spot, sure = task.offers
    capacity = {name: trace.from_moment(task.start_s) for name, trace in task.traces.items()}
    step_s = spot_jobs.step_s("medium", _BATCH, 1)
    steps = TableSteps(task.offers, {(offer.name, _BATCH): step_s for offer in task.offers})
    until_s = 3.0 * (task.problem.deadline_s or 0.0)
    alone = LoneJob(task.work_s, task.problem.deadline_s or 0.0, spot, sure, _BATCH)
    outcomes = [
        replay(task.problem, steps, capacity, task.truth, until_s=until_s, solver=brute_force),
        replay_published(alone, capacity, task.truth, until_s=until_s),
        replay_published(alone, capacity, task.truth, until_s=until_s, uniform=False),
    ]
    return outcomes, prophet_usd(alone, task.traces, task.start_s)
