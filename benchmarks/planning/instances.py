"""Random planning problems from a seed: offers, latencies, networks and limits, none of them measured anywhere.

Iterations overlap two thirds of the computation with a ring allreduce whose latency grows with the number of GPUs, so
that time is not monotone in machines and neither time nor cost has its optimum at an end. Limits are drawn around what
a random plan takes and costs; some instances have no plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpusonde.optimizer.problem import Group, MachineOffer, Objective, Plan, Problem
from gpusonde.optimizer.simulated_steps import SimulatedSteps
from gpusonde.optimizer.solution import estimate_plan
from gpusonde.optimizer.step_times import TableSteps
from gpusonde.simulator.compute import ComputeProbe, fit_compute_curve
from gpusonde.simulator.gradients import assumed_trace
from gpusonde.simulator.links import RatedNetwork, inner_link, outer_link

_ITERATIONS = 1000
_GIGABIT = 1e9 / 8
_HOP_S = 2.4e-4


@dataclass(frozen=True)
class Size:
    """How large the instances of a set are; pairs are least and most."""

    offers: tuple[int, int]
    quota: tuple[int, int]
    global_batches: tuple[int, ...]


# Small enough to try every plan.
SMALL = Size(offers=(1, 3), quota=(1, 16), global_batches=(24, 64, 96, 100, 128, 192, 256, 384))
# "User quota of tens of instances", global batches "from a few hundreds to thousands" (Srifty, section 5.2).
LARGE = Size(offers=(3, 5), quota=(4, 64), global_batches=(512, 1024, 2048, 4096))


def instance(seed: int, size: Size, pools: Sequence[MachineOffer] = ()) -> tuple[Problem, TableSteps]:
    """Return one instance: always the same for a seed. The first of its offers are machines of ``pools``, if any."""
    random = np.random.default_rng(seed)
    offers, networks = [], {}
    for place in range(random.integers(size.offers[0], size.offers[1] + 1)):
        devices = int(random.choice([1, 2, 4, 8], p=[0.4, 0.2, 0.3, 0.1]))
        offer = MachineOffer(
            name=f"offer{place}",
            device="any",
            devices=devices,
            quota=int(random.integers(size.quota[0], size.quota[1] + 1)),
            usd_per_hour=round(float(devices * np.exp(random.uniform(math.log(0.2), math.log(2.0)))), 2),
            smallest_batch=int(random.choice([1, 8])) if size is LARGE else 1,
            largest_batch=int(2 ** random.integers(5, 10)),
        )
        if place < len(pools):
            pool = pools[place]
            offer = replace(offer, devices=pool.devices, quota=pool.quota, usd_per_hour=pool.usd_per_hour)
        offers.append(offer)
        networks[offer.name] = float(random.choice([5.0, 10.0, 25.0, 100.0]) * _GIGABIT)
    sizes = 2 ** np.arange(13)
    latencies = {}
    for offer in offers:
        fixed_s, sample_s = random.uniform(0.01, 0.05), np.exp(random.uniform(math.log(4e-4), math.log(8e-3)))
        latencies |= {(offer.name, int(batch)): float(fixed_s + sample_s * batch) for batch in sizes}
    gradient_bytes = float(np.exp(random.uniform(math.log(5e6), math.log(5e8))))

    def step_s(latency_s: float, world_sizes: np.ndarray, network: float) -> np.ndarray:
        worlds = np.asarray(world_sizes, dtype=np.float64)
        exchange_s = 2.0 * gradient_bytes * (worlds - 1.0) / worlds / network + _HOP_S * (worlds - 1.0)
        return latency_s / 3.0 + np.maximum(latency_s * 2.0 / 3.0, latency_s * 0.2 / 3.0 + exchange_s)

    steps = TableSteps(offers, latencies, step_s, networks)
    problem = Problem(
        global_batch=int(random.choice(size.global_batches)),
        iterations=_ITERATIONS,
        offers=tuple(offers),
        objective=Objective.TIME if random.random() < 0.5 else Objective.COST,
        batch_sizes=tuple(int(batch) for batch in sizes),
    )
    return _with_limits(problem, steps, random), steps


def _with_limits(problem: Problem, steps: TableSteps, random: np.random.Generator) -> Problem:
    """A third of the instances without limits, a third with one, a third with both."""
    kind = random.integers(3)
    plan = _random_plan(problem, random) if kind else None
    if plan is None:
        return problem
    usual = estimate_plan(problem, plan, steps)
    deadline_s = usual.time_s * random.uniform(0.3, 1.5)
    budget_usd = usual.cost_usd * random.uniform(0.3, 1.5)
    if kind == 2:
        return replace(problem, deadline_s=deadline_s, budget_usd=budget_usd)
    if problem.objective is Objective.TIME:
        return replace(problem, budget_usd=budget_usd)
    return replace(problem, deadline_s=deadline_s)


def _random_plan(problem: Problem, random: np.random.Generator) -> Plan | None:
    """Machines at random until the global batch is placed; None when a hundred tries do not get there."""
    for _ in range(100):
        left, groups = problem.global_batch, []
        for place in random.permutation(len(problem.offers)):
            offer = problem.offers[place]
            batches = [batch for batch in problem.candidates(offer) if batch * offer.devices <= left]
            if not batches:
                continue
            batch = int(random.choice(batches))
            machines = int(random.integers(1, min(offer.quota, left // (batch * offer.devices)) + 1))
            groups.append(Group(offer.name, machines, batch))
            left -= machines * batch * offer.devices
            if left == 0:
                return Plan(tuple(groups))
    return None


def mixed_offers(
    count: int, quota: int, global_batch: int, seed: int, samples: int = 32
) -> tuple[Problem, SimulatedSteps]:
    """Offers of some GPUs each with its own curve, and networks of a few rates."""
    random = np.random.default_rng(seed)
    offers, curves, networks = [], {}, {}
    for place in range(count):
        fixed_s, sample_s = random.uniform(0.01, 0.03), np.exp(random.uniform(-7.8, -5.1))
        spread = random.uniform(0.02, 0.08)
        name, devices, rate = f"o{place}", int(random.choice([1, 1, 2, 4])), float(random.choice([1.25e9, 3e9, 12.5e9]))
        usd = 0.25 * (6e-3 / sample_s) ** 0.8 * devices * np.exp(random.normal(-0.3, 0.4))
        fabric = f"{rate:g} {devices}"
        offers.append(MachineOffer(name, "any", devices, quota, float(usd), fabric=fabric, largest_batch=128))
        probes = [ComputeProbe(batch, fixed_s + sample_s * batch, spread=spread) for batch in (8, 32, 128)]
        curves[name] = fit_compute_curve(probes)
        networks[fabric] = RatedNetwork(inner_link(None), devices, outer_link(rate))
    problem = Problem(global_batch, 2000, tuple(offers), Objective.COST)
    return problem, SimulatedSteps(offers, curves, networks, assumed_trace(5e7), samples=samples)
