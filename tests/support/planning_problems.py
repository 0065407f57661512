"""Small planning problems from a seed, odd on purpose: uneven batches, few machines, limits that nothing keeps."""

from __future__ import annotations

import dataclasses

import numpy as np

from gpusonde.optimizer import MachineOffer, Objective, Plan, Problem, SimulatedSteps, StepTimes, TableSteps
from gpusonde.optimizer.search.space import every_plan
from gpusonde.optimizer.solution import estimate_plan
from gpusonde.simulator.communication import BandwidthSharing
from gpusonde.simulator.compute import ComputeCurve
from gpusonde.simulator.compute.fitting import CurveOrigin
from gpusonde.simulator.gradients import assumed_trace
from gpusonde.simulator.iteration import BusBandwidth


def table_problem(seed: int) -> tuple[Problem, TableSteps]:
    """A problem of two to four offers whose iterations are a function of latency, GPUs and network."""
    random = np.random.default_rng(seed)
    offers, line_s, networks = [], {}, {}
    for place in range(random.integers(2, 5)):
        devices, speed = int(random.choice([1, 2, 4, 8])), random.lognormal(0.0, 0.8)
        offer = MachineOffer(
            name=f"offer{place}",
            device="any",
            devices=devices,
            quota=int(random.integers(1, 9)),
            usd_per_hour=float(devices * speed**0.7 * random.lognormal(-0.3, 0.4)),
            smallest_batch=int(random.choice([1, 2, 4, 8])),
            largest_batch=int(random.choice([16, 32, 64, 128])),
        )
        offers.append(offer)
        line_s[offer.name] = random.uniform(0.005, 0.04), random.uniform(0.0015, 0.005) / speed
        networks[offer.name] = float(random.choice([1.5e8, 4e8, 6e9]))
    gradient_bytes, hop_s = 10 ** random.uniform(6, 9), 10 ** random.uniform(-5, -3)

    def step_s(latency_s: float, world_sizes: np.ndarray, network: float) -> np.ndarray:
        exchange_s = 2 * gradient_bytes * (world_sizes - 1) / world_sizes / network + hop_s * world_sizes
        return latency_s / 3 + np.maximum(latency_s * 2 / 3, latency_s / 15 + exchange_s)

    kind = random.random()
    sizes = None
    if kind < 0.3:
        sizes = tuple({int(size) for size in random.integers(1, 40, 8)})
    elif kind < 0.6:
        sizes = tuple(2**power for power in range(8))
    problem = Problem(
        global_batch=int(random.choice([64, 96, 120, 128, 250])),
        iterations=1000,
        offers=tuple(offers),
        objective=Objective.TIME if random.random() < 0.5 else Objective.COST,
        batch_sizes=sizes,
    )
    latencies = {
        (offer.name, size): line_s[offer.name][0] + line_s[offer.name][1] * size
        for offer in offers
        for size in problem.candidates(offer)
    }
    steps = TableSteps(offers, latencies, step_s, networks)
    return _limited(problem, steps, random), steps


def simulated_problem(seed: int) -> tuple[Problem, SimulatedSteps]:
    """A problem of one to three offers through the iteration simulator: latencies and networks scatter.

    Of every third one curves are known to a factor only.
    """
    random, doubts = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    offers, curves = [], {}
    for place in range(random.integers(1, 4)):
        devices, speed = int(random.choice([1, 2, 4])), random.lognormal(0.0, 0.8)
        offer = MachineOffer(
            name=f"offer{place}",
            device="any",
            devices=devices,
            quota=int(random.integers(1, 7)),
            usd_per_hour=float(devices * speed**0.7 * random.lognormal(-0.3, 0.4)),
            fabric=f"fabric{random.integers(2)}",
            smallest_batch=int(random.choice([4, 8])),
            largest_batch=int(random.choice([32, 64])),
        )
        offers.append(offer)
        line_s = random.uniform(0.005, 0.04) + random.uniform(0.0015, 0.005) / speed * np.array([1.0, 512.0])
        spread = np.full(2, random.uniform(0.0, 0.1))
        share = random.uniform(0.25, 0.4)
        curve = ComputeCurve(np.array([1.0, 512.0]), line_s, spread, share, CurveOrigin.PROBES, 1.0, 512.0)
        curves[offer.name] = dataclasses.replace(curve, uncertainty=(seed % 3 == 0) * doubts.uniform(0.0, 0.8, 2))
    networks = {
        f"fabric{place}": EvenNetwork(10 ** random.uniform(8.5, 10.5), random.uniform(0, 0.2)) for place in (0, 1)
    }
    problem = Problem(
        global_batch=int(random.choice([64, 96, 128])),
        iterations=1000,
        offers=tuple(offers),
        objective=Objective.TIME if random.random() < 0.5 else Objective.COST,
        batch_sizes=(4, 8, 16, 32, 64),
    )
    in_flight = (None, 1, 2)[random.integers(3)]
    trace = assumed_trace(10 ** random.uniform(7, 9))
    steps = SimulatedSteps(
        offers,
        curves,
        networks,
        trace,
        sharing=BandwidthSharing(max_in_flight=in_flight),
        samples=32,
        model_spread=0.05,
    )
    return _limited(problem, steps, random), steps


@dataclasses.dataclass(frozen=True)
class EvenNetwork:
    """Every transfer reaches the same, somewhat less among many GPUs."""

    bytes_per_second: float
    log_spread: float

    def bus_bandwidth(self, transfer_bytes: np.ndarray, world_size: int) -> BusBandwidth:
        reached = self.bytes_per_second / (1.0 + 0.01 * world_size)
        return BusBandwidth(np.full(len(transfer_bytes), reached), np.full(len(transfer_bytes), self.log_spread))


def _limited(problem: Problem, steps: StepTimes, random: np.random.Generator) -> Problem:
    """No limits, a deadline, a budget or both, around what some plan takes."""
    plans: list[Plan] = list(every_plan(problem))
    if not plans:
        return problem
    usual = estimate_plan(problem, plans[random.integers(len(plans))], steps)
    kind = random.random()
    factors = [0.5, 0.8, 1.0, 1.2, 2.0]
    if kind < 0.5:
        problem = dataclasses.replace(problem, budget_usd=usual.cost_usd * float(random.choice(factors)))
    if 0.3 < kind < 0.8:
        problem = dataclasses.replace(problem, deadline_s=usual.time_s * float(random.choice(factors)))
    return problem
