"""What the controller orders is used, and is worth its money, where spot machines never go."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from simulated_cloud import SimulatedCloud, SimulatedJob, SimulatedWorld, StepCapacity

from gpusonde.optimizer import Billing, MachineOffer, Objective, Problem, TableSteps
from gpusonde.optimizer.continual import ContinualOptions, Controller, DecisionKind, Runtime

HOUR = 3600.0
SPOT = MachineOffer("spot", "A", 1, 1, 0.31, Billing.SPOT, largest_batch=64)
SURE = MachineOffer("sure", "A", 1, 1, 1.0, largest_batch=64)


@dataclass
class Outcome:
    """A job's end; machines that still booted then are none of the ordered."""

    hours: float
    usd: float
    ordered: set[str]
    used: set[str]
    said: list[str]


def outcome(
    offers: Sequence[MachineOffer],
    work_h: float,
    deadline_h: float,
    factor: float = 1.0,
    launch_s: float = 150.0,
    capacity: Mapping[str, StepCapacity] | None = None,
    half_s: float = 5.5,
) -> Outcome:
    """Run a job whose machines are always there, unless ``capacity`` says when."""
    iterations = round(work_h * 360)
    task = Problem(64, iterations, tuple(offers), Objective.COST, deadline_s=deadline_h * HOUR, batch_sizes=(32, 64))
    steps = TableSteps(offers, {(o.name, b): s for o in offers for b, s in ((64, 10.0), (32, half_s))})
    cloud = SimulatedCloud(
        {offer.name: StepCapacity([0.0], [offer.quota]) for offer in offers} | dict(capacity or {}),
        {offer.name: offer.usd_per_hour for offer in offers},
        lambda _: launch_s,
    )
    job = SimulatedJob(iterations, lambda plan: factor * steps.estimate(plan).mean_s, save_s=5.0, restore_s=30.0)
    world = SimulatedWorld(cloud, job)
    controller = Controller(task, steps, cloud)
    runtime = Runtime(controller, cloud, world, world, solve_s=1.0)
    ordered: set[str] = set()
    used: set[str] = set()
    booting: set[str] = set()
    said = []
    while world.now_s() < 4 * deadline_h * HOUR:
        decision = runtime.step()
        said.append(decision.recommendation.why)
        used |= set(decision.machines)
        if decision.kind is DecisionKind.DONE:
            break
        ordered |= {machine.identifier for machine in cloud.machines()}
        booting = {machine.identifier for machine in cloud.machines() if not machine.ready}
        world.wait_for_event(decision.next_step_s)
    assert job.finished_s is not None
    return Outcome(job.finished_s / HOUR, cloud.spent_usd, ordered - (booting - used), used, said)


# Deadlines within a fifth of the work are those at which a job begins on demand and turns to spot machines later.
@pytest.mark.parametrize("deadline_h", [25.5, 26.4, 27.6])
def test_a_spot_machine_that_is_always_there_is_ordered_once_and_used(deadline_h: float) -> None:
    found = outcome((SPOT, SURE), 24.0, deadline_h)
    assert found.hours <= deadline_h
    assert found.ordered == found.used
    assert len(found.ordered) <= 3
    assert found.usd < 0.5 * 24.0


def test_a_machine_measured_on_spot_is_known_on_demand() -> None:
    """6 % to spare are enough once the speed is known: of an estimate alone they would not be."""
    found = outcome((SPOT, SURE), 24.0, 25.5)
    assert found.usd < 0.36 * 24.0


def test_the_time_to_spare_is_not_lost_between_two_checkpoints() -> None:
    """After a preemption at 36 minutes half an hour to spare suffices to go on in the next zone, not on demand."""
    other = replace(SPOT, name="other")
    there = {"spot": StepCapacity([0.0, 0.6 * HOUR], [1, 0]), "other": StepCapacity([0.0, 0.6 * HOUR], [0, 1])}
    found = outcome((SPOT, other, SURE), 6.0, 6.5, capacity=there)
    assert found.hours <= 6.5
    assert found.usd < 0.4 * 6.0


def test_a_job_on_demand_that_is_ahead_stops_and_waits_for_spot() -> None:
    spot = StepCapacity([0.0, 6 * HOUR], [0, 1])
    found = outcome((SPOT, SURE), 12.0, 26.0, capacity={"spot": spot})
    assert found.hours <= 26.0
    assert found.usd < 0.4 * 12.0
    late = outcome((SPOT, SURE), 12.0, 14.0, capacity={"spot": StepCapacity([0.0], [0])})
    assert late.hours <= 14.0
    assert late.usd <= 1.01 * 12.0


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    work_h=st.floats(0.5, 12.0),
    loose=st.floats(1.03, 1.6),
    price=st.floats(0.1, 1.2),
    quotas=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    factor=st.floats(0.9, 1.02),
    launch_s=st.floats(0.0, 300.0),
    half_s=st.floats(5.1, 7.0),
)
# Spot machines that nothing guards, and such as save less than their checkpoints take.
@example(1.0, 1.03, 0.96, (2, 1), 1.0, 0.0, 5.5)
@example(1.0, 1.03, 0.85, (2, 1), 1.0, 0.0, 5.5)
@example(1.0, 1.04, 0.995, (2, 2), 1.0, 83.0, 5.5)
def test_what_is_ordered_is_used_and_costs_no_more_than_on_demand(
    work_h: float, loose: float, price: float, quotas: tuple[int, int], factor: float, launch_s: float, half_s: float
) -> None:
    """It pays more where the cheapest plan on demand misses the deadline if launched slowly and slower than known."""
    spot, sure = replace(SPOT, quota=quotas[0], usd_per_hour=price), replace(SURE, quota=quotas[1])
    deadline_h = loose * work_h + 0.2
    found = outcome((spot, sure), work_h, deadline_h, factor, launch_s, half_s=half_s)
    alone = outcome((sure,), work_h, deadline_h, factor, launch_s, half_s=half_s)
    assert found.ordered == found.used
    assert found.hours <= deadline_h
    options = ContinualOptions()
    certain_s = work_h * HOUR * math.exp(NormalDist().inv_cdf(0.95) * options.spread)
    is_certain = options.launch_slowest_s + options.restore_s + certain_s <= deadline_h * HOUR
    # Otherwise for the fastest plan on demand, which keeps the deadline best.
    fastest = 1.0 if is_certain or quotas[1] < 2 else 2 * half_s / 10.0
    # A switch costs its checkpoint and restoring, on machines that are paid for.
    assert found.usd <= 1.02 * fastest * alone.usd
    assert not is_certain or not any("no plan" in why for why in found.said)
    looser = outcome((spot, sure), work_h, 1.3 * deadline_h, factor, launch_s, half_s=half_s)
    assert looser.usd <= 1.02 * found.usd
