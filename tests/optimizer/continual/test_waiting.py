"""How long cheap capacity is waited for, and what is set aside for preemptions."""

from __future__ import annotations

import math

import pytest
from baseline_uniform_progress import LoneJob, prophet_usd, replay_published
from simulated_cloud import SimulatedCloud, SimulatedJob, SimulatedWorld, StepCapacity
from spot_replay import CapacityTrace, Truth

from gpusonde.optimizer import Billing, MachineOffer, Plan
from gpusonde.optimizer.preemptions import PreemptionRates
from gpusonde.optimizer.problem import Group

HOUR = 3600.0
SPOT = MachineOffer("spot", "A", 1, 1, 0.3, Billing.SPOT, largest_batch=64)
SURE = MachineOffer("sure", "A", 1, 1, 1.0, largest_batch=64)


def test_the_most_preemptions_grow_with_the_hours_and_shrink_with_what_is_seen() -> None:
    rates = PreemptionRates(weight_hours=10.0)
    most = [rates.most("spot", 0.1, hours, 0.95) for hours in (0.0, 0.1, 6.0, 12.0, 24.0, 240.0)]
    assert most == sorted(most)
    assert most[0] == 0.0
    # Gamma(1, 10 h) of the rate: P(more than k in 24 h) = (24 / 34) ** (k + 1).
    assert most[4] == pytest.approx(math.log(0.05) / math.log(24 / 34) - 1, rel=1e-6)
    rates.ran("spot", 100.0)
    assert rates.most("spot", 0.1, 24.0, 0.95) < most[4] / 3
    rates.preempted("spot", 50)
    assert rates.most("spot", 0.1, 24.0, 0.95) > most[4]


def test_a_job_that_is_stopped_goes_on_from_there() -> None:
    cloud = SimulatedCloud({"sure": StepCapacity([0.0], [1])}, {"sure": 1.0}, lambda _: 0.0)
    world = SimulatedWorld(cloud, SimulatedJob(100.0, lambda _: 1.0))
    machines = cloud.launch("sure", 1)
    world.start(Plan((Group("sure", 1, 64),)), machines, math.inf)
    world.wait_until(40.0)
    world.stop()
    world.wait_until(60.0)
    assert world.completed() == 40.0
    world.start(Plan((Group("sure", 1, 64),)), machines, math.inf)
    world.wait_until(200.0)
    assert world.job.finished_s == 120.0
    world.stop()
    assert world.job.finished_s == 120.0


def test_the_prophet_takes_the_cheapest_hours_before_the_deadline() -> None:
    trace = CapacityTrace(HOUR, (0, 1, 0, 1, 1, 1, 1))
    job = LoneJob(3 * HOUR, 4 * HOUR, (SPOT,), SURE, 64)
    assert prophet_usd(job, {"spot": trace}, 0.0) == pytest.approx(2 * 0.3 + 1.0)
    loose = LoneJob(3 * HOUR, 7 * HOUR, (SPOT,), SURE, 64)
    assert prophet_usd(loose, {"spot": trace}, 0.0) == pytest.approx(3 * 0.3)


@pytest.mark.parametrize("uniform", [True, False])
def test_the_published_rules_keep_their_deadline_without_any_spot_machine(uniform: bool) -> None:
    job = LoneJob(4 * HOUR, 6 * HOUR, (SPOT,), SURE, 64)
    capacity = {"spot": StepCapacity([0.0], [0])}
    found = replay_published(job, capacity, Truth(launch_s=(90.0, 210.0)), until_s=20 * HOUR, uniform=uniform)
    assert found.end_s <= 6 * HOUR
    assert found.usd == pytest.approx(4.0, rel=0.05)
    capacity = {"spot": StepCapacity([0.0], [1])}
    found = replay_published(job, capacity, Truth(launch_s=(90.0, 210.0)), until_s=20 * HOUR, uniform=uniform)
    assert found.usd == pytest.approx(4 * 0.3, rel=0.05)
