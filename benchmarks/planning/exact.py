"""The exact search: equal to brute force, and its CPU time on six offers with 64 machines each.

Random problems from seeds (``instances.py``), the optimum by trying everything. Time: CPU seconds of one solve, one
thread; step times are a table, so that no simulation is in them.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from instances import SMALL, Size, instance
from page import bar, table

from gpusonde.errors import ProblemError
from gpusonde.optimizer import MachineOffer, Objective, Problem, SimulatedSteps, Solution, Status, StepTimes
from gpusonde.optimizer.search.space import brute_force
from gpusonde.optimizer.solution import objective_value, satisfies
from gpusonde.optimizer.solve import pareto, solve
from gpusonde.simulator.communication import BandwidthSharing
from gpusonde.simulator.compute import ComputeCurve
from gpusonde.simulator.compute.fitting import CurveOrigin
from gpusonde.simulator.gradients import FloatArray, assumed_trace
from gpusonde.simulator.iteration import BusBandwidth

_INSTANCES, _QUICK_INSTANCES = 400, 40
_FIRST_SEED = 10_000  # others than those of the seed's search
_SIX, _QUICK_SIX = 50, 2
_RUNS = 3
_SCATTERING, _QUICK_SCATTERING = 20, 2
_MOST_CPU_S = {1024: 0.1, 4096: 0.5}


def section(args: argparse.Namespace) -> list[str]:
    """Return the section's lines."""
    lines = ["## Exact search", ""]
    lines += _equality(args)
    lines += _cpu(args)
    lines += _scatter(args)
    return lines


@dataclass
class _Compared:
    """Both searches over many instances."""

    answers: Counter[str]
    limits: Counter[str]
    worst: float = 0.0
    false_no_plan: int = 0
    false_plan: int = 0
    brute_cpu_s: float = 0.0
    exact_cpu_s: float = 0.0
    plans: int = 0


def _equality(args: argparse.Namespace) -> list[str]:
    wanted = _QUICK_INSTANCES if args.quick else _INSTANCES
    compared, seed = _Compared(Counter(), Counter()), _FIRST_SEED
    while sum(compared.answers.values()) < wanted:
        _compare(seed, compared)
        seed += 1
    answers, limits = compared.answers, compared.limits
    bar(
        args,
        f"exact search against brute force, {wanted} random problems",
        'equal to 1e-9, 0 false "no plan"',
        f'largest difference {compared.worst:.1e}, {compared.false_no_plan} false "no plan"',
        met=compared.worst <= 1e-9 and not compared.false_no_plan and not compared.false_plan,
    )
    words = (
        f"Random problems from seeds {_FIRST_SEED:,} to {seed - 1:,} (`instances.py`, *small*): one to three offers, "
        f"quotas up to 16; {limits['none']} without limits, {limits['deadline']} with a deadline, {limits['budget']} "
        f"with a budget, {limits['both']} with both. Brute force estimated all {compared.plans:,} plans, in "
        f"{compared.brute_cpu_s:.0f} s of CPU; the exact search took {compared.exact_cpu_s:.1f} s. "
        f"{answers['optimal']} have a plan, {answers['infeasible']} have none; plans that break a limit: "
        f"{compared.false_plan}."
    )
    return [words, ""]


def _compare(seed: int, compared: _Compared) -> None:
    problem, steps = instance(seed, SMALL)
    began = time.process_time()
    try:
        truth = brute_force(problem, steps)
    except ProblemError:
        return  # more plans than brute force takes
    compared.brute_cpu_s += time.process_time() - began
    began = time.process_time()
    found = solve(problem, steps, explain=False)
    compared.exact_cpu_s += time.process_time() - began
    compared.plans += truth.explored
    compared.answers[truth.status.value] += 1
    kinds = {(False, False): "none", (True, False): "deadline", (False, True): "budget", (True, True): "both"}
    compared.limits[kinds[problem.deadline_s is not None, problem.budget_usd is not None]] += 1
    if truth.estimate is None:
        compared.false_plan += found.plan is not None
    elif found.estimate is None:
        compared.false_no_plan += 1
    else:
        best = objective_value(problem, truth.estimate)
        compared.worst = max(compared.worst, abs(objective_value(problem, found.estimate) / best - 1.0))
        compared.false_plan += not satisfies(problem, found.estimate)


def _cpu(args: argparse.Namespace) -> list[str]:
    rows = []
    for global_batch, most_s in _MOST_CPU_S.items():
        size = Size(offers=(6, 6), quota=(64, 64), global_batches=(global_batch,))
        for objective in Objective:
            problems = []
            for seed in range(_QUICK_SIX if args.quick else _SIX):
                problem, steps = instance(seed, size)
                problems.append((replace(problem, objective=objective), steps))
            searched = [_cpu_s(lambda p=p, s=s: solve(p, s, explain=False)) for p, s in problems]
            explained = [_cpu_s(lambda p=p, s=s: solve(p, s)) for p, s in problems]
            fronts = [_cpu_s(lambda p=p, s=s: pareto(p, s)) for p, s in problems]
            proven = all(solve(p, s, explain=False).proof.complete for p, s in problems)
            rows.append(
                [
                    f"{global_batch:,}",
                    objective.value,
                    *(_spread(each) for each in (explained, fronts)),
                ]
            )
            bar(
                args,
                f"six offers x 64 machines, batch {global_batch:,}, {objective.value}",
                f"<= {most_s:g} s of CPU",
                f"median {np.median(searched):.3f} s, longest {max(searched):.3f} s",
                met=max(searched) <= most_s and proven,
            )
    words = (
        f"Six offers with 64 machines of each, {_QUICK_SIX if args.quick else _SIX} problems (a third of them with a "
        f"limit, a third with two): CPU seconds, the best of {_RUNS} runs, median / longest. The bars are the plan and "
        "its proof. *With explanation*: also what binds, what giving way buys, and the nearest plan where there is "
        "none. *Front*: all compromises between time and cost."
    )
    return [
        words,
        "",
        *table(["batch", "objective", "with explanation", "front"], rows),
    ]


def _cpu_s(work: Callable[[], object]) -> float:
    took = []
    for _ in range(_RUNS):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return min(took)


def _spread(values: list[float]) -> str:
    return f"{np.median(values):.3f} / {max(values):.3f}"


def _scatter(args: argparse.Namespace) -> list[str]:
    statuses: Counter[Status] = Counter()
    cpu_s, explored, gaps = [], [], []
    for seed in range(_QUICK_SCATTERING if args.quick else _SCATTERING):
        problem, steps = scattering_problem(seed)
        began = time.process_time()
        solution: Solution = solve(problem, steps, explain=False)
        cpu_s.append(time.process_time() - began)
        explored.append(solution.explored)
        statuses[solution.status] += 1
        if solution.status is Status.FEASIBLE and solution.proof.gap is not None:
            gaps.append(solution.proof.gap)
    open_words = f", {statuses[Status.FEASIBLE]} with a gap of {max(gaps):.1%} at most" if gaps else ""
    words = (
        "**Iterations that scatter.** The same through the iteration simulator: latencies with 2 to 8 %, bandwidth "
        "with 5 to 20 % of spread, half of the problems with a deadline at a confidence of 95 %. Proven "
        f"optimal within 30 s: {statuses[Status.OPTIMAL]} of {sum(statuses.values())}"
        f"{open_words}, {statuses[Status.INFEASIBLE]} without a plan. CPU: median {np.median(cpu_s):.1f} s, longest "
        f"{max(cpu_s):.1f} s; plans simulated: median {np.median(explored):.0f}, most {max(explored)}."
    )
    return [words, ""]


@dataclass(frozen=True)
class Fabric:
    """A network whose bandwidth falls a little with the number of devices."""

    bytes_per_second: float
    log_spread: float

    def bus_bandwidth(self, transfer_bytes: FloatArray, world_size: int) -> BusBandwidth:
        """Return what single transfers reach."""
        reached = self.bytes_per_second / (1.0 + 0.01 * world_size)
        return BusBandwidth(np.full(len(transfer_bytes), reached), np.full(len(transfer_bytes), self.log_spread))


def scattering_problem(seed: int) -> tuple[Problem, StepTimes]:
    """A problem through the iteration simulator: always the same for a seed."""
    random = np.random.default_rng(seed)
    offers, curves = [], {}
    for place in range(6):
        devices, speed = int(random.choice([1, 2, 4, 8])), float(random.lognormal(0.0, 0.8))
        offer = MachineOffer(
            name=f"offer{place}",
            device="any",
            devices=devices,
            quota=64,
            usd_per_hour=float(devices * speed**0.7 * random.lognormal(-0.3, 0.4)),
            fabric=f"fabric{random.integers(3)}",
            smallest_batch=8,
            largest_batch=int(random.choice([64, 128, 256, 512])),
        )
        offers.append(offer)
        line_s = random.uniform(0.005, 0.04) + random.uniform(0.0015, 0.005) / speed * np.array([1.0, 512.0])
        curves[offer.name] = ComputeCurve(
            np.array([1.0, 512.0]), line_s, np.full(2, random.uniform(0.02, 0.08)), float(random.uniform(0.25, 0.4)),
            CurveOrigin.PROBES, 1.0, 512.0,
        )  # fmt: skip
    fabrics = {
        f"fabric{place}": Fabric(10 ** random.uniform(8.5, 10.5), random.uniform(0.05, 0.2)) for place in range(3)
    }
    trace = assumed_trace(10 ** random.uniform(7, 9))
    steps = SimulatedSteps(offers, curves, fabrics, trace, sharing=BandwidthSharing(max_in_flight=1), samples=64)
    problem = Problem(
        global_batch=int(random.choice([1024, 4096])),
        iterations=1000,
        offers=tuple(offers),
        objective=Objective.TIME if seed % 4 < 2 else Objective.COST,
    )
    if seed % 2:
        fastest = solve(replace(problem, objective=Objective.TIME), steps, tolerance=0.05, explain=False)
        if fastest.estimate is not None:
            problem = replace(problem, deadline_s=1.5 * fastest.estimate.time_at_confidence_s)
    return problem, steps
