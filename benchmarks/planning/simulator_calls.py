"""What both searches ask of the iteration simulator on the same problems, and what that costs."""

from __future__ import annotations

import time

import numpy as np

from gpusonde.optimizer import MachineOffer, Problem, SimulatedSteps, solve
from gpusonde.optimizer.paper import count_plans
from gpusonde.simulator.compute import ComputeProbe, fit_compute_curve
from gpusonde.simulator.gradients import assumed_trace
from gpusonde.simulator.iteration import BusBandwidth

# Name, GPUs, quota, USD per machine and hour, seconds per sample, bus bandwidth: made up, in the size of the seed's.
_OFFERS = (
    ("t4", 1, 32, 0.72, 0.004, 2e9),
    ("m60", 2, 32, 0.69, 0.008, 1e9),
    ("v100", 4, 8, 3.68, 0.001, 3e9),
)
_LAUNCH_S = 0.02
_GRADIENT_BYTES = 100e6
_LOG_SPREAD = 0.1
_PROBES = (8, 16, 32, 64)


class _Steady:
    """One bus bandwidth for all transfers."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second

    def bus_bandwidth(self, transfer_bytes: np.ndarray, world_size: int) -> BusBandwidth:
        shape = np.shape(transfer_bytes)
        return BusBandwidth(np.full(shape, self._bytes_per_second), np.full(shape, _LOG_SPREAD))


def call_lines(global_batches: tuple[int, ...]) -> list[str]:
    """Lines of the section."""
    said = []
    for global_batch in global_batches:
        problem, steps = _problem(global_batch)
        calls = {}
        for method in ("exact", "paper"):
            started = time.process_time()
            solution = solve(problem, steps, method=method, explain=False, time_limit_s=600.0)
            cpu_s = time.process_time() - started
            calls[method] = f"{solution.explored:,} calls, {cpu_s:.2f} s of CPU and {solution.plan}"
        said.append(
            f"With a batch of {global_batch} there are {count_plans(problem):,.0f} plans: exact {calls['exact']}, "
            f"paper {calls['paper']}."
        )
    text = (
        "With the iteration simulator behind it (three offers, quotas 32, 32 and 8, no limits) the seed simulates each "
        "of fewer than 10,000 plans, the exact search those that a bound does not dismiss."
    )
    return ["### Simulator calls", "", " ".join([text, *said]), ""]


def _problem(global_batch: int) -> tuple[Problem, SimulatedSteps]:
    offers = tuple(
        MachineOffer(name, name, devices, quota, usd, fabric=name, largest_batch=128)
        for name, devices, quota, usd, _, _ in _OFFERS
    )
    curves = {
        name: fit_compute_curve([ComputeProbe(batch, _LAUNCH_S + sample_s * batch) for batch in _PROBES])
        for name, _, _, _, sample_s, _ in _OFFERS
    }
    networks = {name: _Steady(bandwidth) for name, *_, bandwidth in _OFFERS}
    steps = SimulatedSteps(offers, curves, networks, assumed_trace(_GRADIENT_BYTES))
    return Problem(global_batch, 1000, offers), steps
