"""Every plan tried: problems with spot machines, regions, shared quotas, accumulation and sharding, simulated.

The plans are listed here and not by the optimizer: machines and batches of every offer of a region, in every mode,
that share out the global batch and fit into memory by the rules of docs/planning.md. What a plan takes and costs is
the product's own estimate.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from exact import Fabric
from page import bar

from gpusonde.optimizer import Billing, MachineOffer, Objective, Problem, SimulatedSteps
from gpusonde.optimizer.problem import DataCosts, Group, JobMemory, Plan, SharedQuota
from gpusonde.optimizer.solution import PlanEstimate, estimate_plan, rank, satisfies
from gpusonde.optimizer.solve import solve
from gpusonde.simulator.communication import BandwidthSharing
from gpusonde.simulator.compute import ComputeCurve
from gpusonde.simulator.compute.fitting import CurveOrigin
from gpusonde.simulator.gradients import assumed_trace
from gpusonde.simulator.iteration import Sharding, StepMode

_INSTANCES, _QUICK_INSTANCES = 300, 10
_FIRST_SEED = 78_000
_SAME = 1e-9
_GIB = float(2**30)
# What is the same of a machine for all jobs.
POOL_KEYS = ("device", "devices", "quota", "usd_per_hour", "billing", "preemptions_per_hour", "region")
# Of a GPU's memory, and what driver and libraries hold.
_USABLE, _CONTEXT = 0.95, 0.5 * _GIB


@dataclass
class Compared:
    """Both searches over many instances.

    Attributes:
        answers: Optima, and problems without a plan.
        kinds: What optimal plans make use of.
        plans: Listed in all.
        worst: Largest relative difference of the objective.
        false_no_plan: Plans that the search did not find.
        false_plan: Plans of the search that are none.
        unproven: Searches that ran out of time.
        exact_s: Seconds of each search.
    """

    answers: Counter[str]
    kinds: Counter[str]
    plans: int = 0
    worst: float = 0.0
    false_no_plan: int = 0
    false_plan: int = 0
    unproven: int = 0
    exact_s: tuple[float, ...] = ()


def section(args: argparse.Namespace) -> list[str]:
    """Return the section's lines."""
    wanted = _QUICK_INSTANCES if args.quick else _INSTANCES
    found = Compared(Counter(), Counter())
    for seed in range(_FIRST_SEED, _FIRST_SEED + wanted):
        compare(seed, found)
    bar(
        args,
        f"every plan tried, {wanted} problems with spot, regions, shared quotas, accumulation, sharding",
        'all optimal to 1e-9, 0 false "no plan"',
        f'largest difference {found.worst:.1e}, {found.false_no_plan} false "no plan", {found.unproven} not proven',
        met=found.worst <= _SAME and not (found.false_no_plan or found.false_plan or found.unproven),
    )
    kinds = ", ".join(f"{count} {kind}" for kind, count in found.kinds.most_common())
    words = (
        f"Seeds {_FIRST_SEED:,} to {_FIRST_SEED + wanted - 1:,} of `oracle.py`, which lists all plans itself, "
        f"{found.plans:,} in all. {found.answers['plan']} problems have a plan, {found.answers['none']} have none; "
        f"plans that break a rule: {found.false_plan}. Of the optimal plans: {kinds}. A search took "
        f"{np.median(found.exact_s):.2f} s in the median, {max(found.exact_s):.1f} s at most."
    )
    return ["## Every plan tried", "", words, ""]


def compare(seed: int, found: Compared) -> None:
    """Solve one problem both ways."""
    problem, steps = instance(seed)
    best: tuple[Plan, PlanEstimate] | None = None
    listed = set()
    for plan in every_plan(problem):
        listed.add(plan)
        estimate = estimate_plan(problem, plan, steps)
        if satisfies(problem, estimate) and (best is None or rank(problem, estimate) < rank(problem, best[1])):
            best = plan, estimate
    found.plans += len(listed)
    began = time.perf_counter()
    solution = solve(problem, steps, explain=False, time_limit_s=60.0)
    found.exact_s = (*found.exact_s, time.perf_counter() - began)
    found.unproven += not solution.proof.complete
    found.answers["plan" if best else "none"] += 1
    if solution.plan is not None and solution.estimate is not None:
        found.false_plan += solution.plan not in listed or not satisfies(problem, solution.estimate)
    if best is None:
        return
    for kind, is_so in _kinds(problem, best[0]).items():
        found.kinds[kind] += is_so
    if solution.estimate is None:
        found.false_no_plan += 1
    else:
        ours, truth = rank(problem, solution.estimate)[0], rank(problem, best[1])[0]
        found.worst = max(found.worst, abs(ours / truth - 1.0))


def _kinds(problem: Problem, plan: Plan) -> dict[str, bool]:
    offers = [problem.offer(group.offer) for group in plan.groups]
    return {
        "accumulate": plan.mode.accumulation_steps > 1,
        "shard": plan.mode.sharding is not Sharding.NONE,
        "checkpoint": plan.mode.checkpointing,
        "have spot machines": any(offer.preemption_rate for offer in offers),
        "mix machines": len(offers) > 1,
        "stand away from the data": problem.data is not None and offers[0].region != problem.data.region,
        "fill a shared quota": any(quota.gpus in problem.used(quota, plan).values() for quota in problem.quotas),
    }


def every_plan(problem: Problem) -> Iterator[Plan]:
    """Yield every plan, by rules of its own."""
    regions = {offer.region for offer in problem.offers}
    for mode, region in itertools.product(problem.modes, sorted(regions)):
        samples, rest = divmod(problem.global_batch, mode.accumulation_steps)
        if rest:
            continue
        offers = [offer for offer in problem.offers if offer.region == region]
        for taken in _shared_out(offers, samples, problem.batch_sizes or ()):
            devices = sum(offer.devices * group.machines for offer, group in taken)
            fits = all(_fits(problem, offer, group.batch_size, mode, devices) for offer, group in taken)
            if fits and not _exceeds(problem, taken):
                yield Plan(tuple(group for _, group in taken), mode)


def _exceeds(problem: Problem, taken: list[tuple[MachineOffer, Group]]) -> bool:
    """Whether machines of one region are more than a shared quota allows."""
    for quota in problem.quotas:
        counted = [
            offer.devices * group.machines
            for offer, group in taken
            if quota.region in ("", offer.region) and quota.billing in (None, offer.billing)
        ]
        if sum(counted) > quota.gpus:
            return True
    return False


def _shared_out(
    offers: list[MachineOffer], samples: int, sizes: tuple[int, ...]
) -> Iterator[list[tuple[MachineOffer, Group]]]:
    """Yield all machines of offers that take so many samples at once."""
    if not offers:
        if samples == 0:
            yield []
        return
    first, *others = offers
    yield from _shared_out(others, samples, sizes)
    for machines, size in itertools.product(range(1, first.quota + 1), sizes):
        left = samples - first.devices * machines * size
        if left >= 0:
            for taken in _shared_out(others, left, sizes):
                yield [(first, Group(first.name, machines, size)), *taken]


def _fits(problem: Problem, offer: MachineOffer, batch: int, mode: StepMode, devices: int) -> bool:
    if mode.sharding is Sharding.NONE and not mode.checkpointing and offer.largest_batch is not None:
        return batch <= offer.largest_batch
    memory = problem.memory
    if memory is None or offer.memory_bytes is None:
        return True
    shared = memory.gradients_bytes + memory.optimizer_bytes
    held = memory.weights_bytes
    if mode.sharding is Sharding.NONE:
        held += shared
    elif mode.sharding is Sharding.ZERO2:
        held += shared / devices
    else:
        held = min(2 * (memory.unit_bytes or math.inf), held) + (held + shared) / devices
    sample = memory.checkpointed_bytes if mode.checkpointing else memory.activation_bytes
    return held + (sample or 0.0) * batch <= _USABLE * offer.memory_bytes - _CONTEXT


def instance(seed: int, pools: Sequence[MachineOffer] = ()) -> tuple[Problem, SimulatedSteps]:
    """Return a small problem: always the same for a seed. The first of its offers are machines of ``pools``, if any."""
    random = np.random.default_rng(seed)
    weights = float(random.uniform(0.2, 4.0) * _GIB)
    memory = JobMemory(
        weights_bytes=weights,
        gradients_bytes=weights,
        optimizer_bytes=2.0 * weights,
        activation_bytes=float(random.uniform(0.05, 0.5) * _GIB),
        checkpointed_bytes=float(random.uniform(0.01, 0.04) * _GIB),
        unit_bytes=weights / 10 if random.random() < 0.7 else None,
    )
    offers, curves = [], {}
    for place in range(int(random.integers(2, 5))):
        devices, speed = int(random.choice([1, 2, 4])), float(random.lognormal(0.0, 0.6))
        spot = random.random() < 0.4
        price = float(devices * speed**0.7 * random.lognormal(-0.3, 0.4)) * (0.4 if spot else 1.0)
        offer = MachineOffer(
            name=f"offer{place}",
            device="any",
            devices=devices,
            quota=int(random.integers(1, 5)),
            usd_per_hour=price,
            billing=Billing.SPOT if spot else Billing.ON_DEMAND,
            fabric=f"fabric{random.integers(2)}",
            largest_batch=int(random.choice([8, 16, 64])) if random.random() < 0.5 else None,
            preemptions_per_hour=float(random.uniform(0.01, 0.5)) if spot else 0.0,
            region=str(random.choice(["a", "b"], p=[0.7, 0.3])),
            memory_bytes=float(random.choice([8.0, 16.0, 24.0, 40.0]) * _GIB),
        )
        if place < len(pools):
            offer = replace(offer, **{key: getattr(pools[place], key) for key in POOL_KEYS})
        offers.append(offer)
        line_s = random.uniform(0.005, 0.04) + random.uniform(0.0015, 0.005) / speed * np.array([1.0, 512.0])
        curves[offer.name] = ComputeCurve(
            np.array([1.0, 512.0]), line_s, np.full(2, random.uniform(0.0, 0.08)), float(random.uniform(0.25, 0.4)),
            CurveOrigin.PROBES, 1.0, 512.0,
        )  # fmt: skip
    fabrics = {f"fabric{n}": Fabric(10 ** random.uniform(8.5, 10.5), random.uniform(0.0, 0.2)) for n in range(2)}
    sharing = BandwidthSharing(max_in_flight=1)
    steps = SimulatedSteps(offers, curves, fabrics, assumed_trace(weights), sharing=sharing, samples=32)
    global_batch = int(random.choice([32, 48, 64, 96, 128]))
    most = int(random.choice([1, 4, 8]))
    modes = tuple(
        StepMode(number, sharding, checkpointing)
        for number in range(1, most + 1)
        if global_batch % number == 0
        for sharding in (list(Sharding) if random.random() < 0.5 else [Sharding.NONE])
        for checkpointing in ((False, True) if random.random() < 0.4 else (False,))
    )
    problem = Problem(
        global_batch=global_batch,
        iterations=int(random.integers(1_000, 100_000)),
        offers=tuple(offers),
        objective=Objective.TIME if random.random() < 0.4 else Objective.COST,
        batch_sizes=(1, 2, 4, 8, 12, 16, 24, 32, 64),
        overhead_s=float(random.choice([0.0, 200.0])),
        modes=modes,
        memory=memory,
        quotas=_quotas(random),
        data=DataCosts(float(random.uniform(1, 2_000)), "a", 0.05, 0.02, 0.03) if random.random() < 0.5 else None,
    )
    return _with_limits(problem, steps, random), steps


def _quotas(random: np.random.Generator) -> tuple[SharedQuota, ...]:
    if random.random() < 0.5:
        return ()
    billing = Billing.SPOT if random.random() < 0.3 else None
    return (SharedQuota(int(random.integers(1, 9)), region=str(random.choice(["", "a"])), billing=billing),)


def _with_limits(problem: Problem, steps: SimulatedSteps, random: np.random.Generator) -> Problem:
    """Limits around what a random plan takes and costs; a third of the problems have none, a third have both."""
    plans = list(itertools.islice(every_plan(problem), 2_000))
    kind = int(random.integers(3))
    if not plans or not kind:
        return problem
    usual = estimate_plan(problem, plans[int(random.integers(len(plans)))], steps)
    deadline_s = max(usual.time_at_confidence_s * float(random.uniform(0.3, 1.3)), problem.overhead_s + 1.0)
    budget_usd = usual.cost_usd * float(random.uniform(0.3, 1.3))
    if kind == 2:
        return replace(problem, deadline_s=deadline_s, budget_usd=budget_usd)
    if problem.objective is Objective.TIME:
        return replace(problem, budget_usd=budget_usd)
    return replace(problem, deadline_s=deadline_s)
