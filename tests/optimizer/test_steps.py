"""Step times: bounds that are bounds, networks of one machine and of several, scatter of whole runs."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.planning_problems import EvenNetwork, simulated_problem

from gpusonde.errors import ProblemError
from gpusonde.optimizer import Group, MachineOffer, Plan, SimulatedSteps, StepEstimate, TableSteps
from gpusonde.optimizer.search.space import every_plan
from gpusonde.optimizer.solution import quantile_s
from gpusonde.optimizer.step_times import least_quantile
from gpusonde.simulator.compute import ComputeCurve
from gpusonde.simulator.compute.fitting import CurveOrigin
from gpusonde.simulator.gradients import assumed_trace

CURVE = ComputeCurve(np.array([1.0, 64.0]), np.array([0.01, 0.2]), np.full(2, 0.05), 0.3, CurveOrigin.PROBES, 1.0, 64.0)
OFFERS = (
    MachineOffer("near", "x", 4, 8, 4.0, fabric="ethernet", machine_fabric="nvlink"),
    MachineOffer("far", "x", 1, 8, 1.0, fabric="ethernet"),
)
NETWORKS = {"ethernet": EvenNetwork(1e9, 0.1), "nvlink": EvenNetwork(1e11, 0.0)}


def simulated(**more: float) -> SimulatedSteps:
    return SimulatedSteps(OFFERS, {"near": CURVE, "far": CURVE}, NETWORKS, assumed_trace(4e8), **more)


@pytest.mark.parametrize("seed", range(30))
def test_the_bound_never_exceeds_the_estimate_of_a_plan_on_several_machines(seed: int):
    problem, steps = simulated_problem(seed)
    for plan in itertools.islice(every_plan(problem), 40):
        if plan.machines == 1:
            continue
        offers = [problem.offer(group.offer) for group in plan.groups]
        latency_s = max(
            steps.latency_s(offer, group.batch_size, group.machines)
            for offer, group in zip(offers, plan.groups, strict=True)
        )
        worlds = np.array([plan.devices(offers)])
        bound_s = steps.bound_s(latency_s, worlds, min(map(steps.network, offers)))[0]
        assert bound_s <= steps.estimate(plan).mean_s * (1 + 1e-12)


SCATTERING = st.tuples(
    st.floats(0.0, 0.9),  # of the network
    st.floats(0.0, 0.08),  # of single GPUs
    st.floats(8.5, 11.0),  # bandwidth, powers of ten
    st.sampled_from([0.5, 0.6, 0.8, 0.95, 0.975, 0.99]),
    st.lists(st.tuples(st.integers(2, 8), st.sampled_from([1, 4, 16, 64])), min_size=1, max_size=2),
    st.tuples(*[st.tuples(*[st.floats(0.0, 1.2)] * 2)] * 2),  # by how much curves may be off at their ends
)


@settings(max_examples=300, deadline=None)
@given(SCATTERING)
def test_no_plan_keeps_less_than_the_bound_of_its_quantile(drawn):
    network, spread, power, confidence, groups, doubts = drawn
    curves = {
        name: dataclasses.replace(CURVE, spread=np.full(2, spread), uncertainty=np.array(doubt))
        for name, doubt in zip(("near", "far"), doubts, strict=True)
    }
    networks = {"ethernet": EvenNetwork(10**power, network), "nvlink": EvenNetwork(1e11, 0.0)}
    steps = SimulatedSteps(OFFERS, curves, networks, assumed_trace(4e8))
    plan = Plan(tuple(Group(name, count, size) for name, (count, size) in zip(("near", "far"), groups, strict=False)))
    offers = {offer.name: offer for offer in OFFERS}
    latency_s = max(steps.latency_s(offers[group.offer], group.batch_size, group.machines) for group in plan.groups)
    world, of_network = np.array([plan.devices(OFFERS)]), steps.network(OFFERS[0])
    step = steps.estimate(plan)
    kept_s = quantile_s(step.mean_s, step.shared_sd_s, confidence, step.doubt)
    assert steps.kept_s(latency_s, world, of_network, confidence)[0] <= kept_s * (1 + 2e-3)
    # It is nearer where the slowest GPU is known not to take longer.
    near_s = steps.kept_s(latency_s, world, of_network, confidence, most_s=latency_s * (1 + 1e-6))[0]
    assert steps.kept_s(latency_s, world, of_network, confidence)[0] <= near_s <= kept_s * (1 + 2e-3)
    # Nor does a slower GPU make a run keep less.
    slower = [steps.kept_s(factor * latency_s, world, of_network, confidence)[0] for factor in (1.0, 1.1, 1.5, 3.0)]
    assert all(least <= most * (1 + 2e-3) for least, most in itertools.pairwise(slower))


@pytest.mark.parametrize("factor", [1.5, 2.0, 3.0, 5.0])
def test_a_deadline_is_kept_as_often_as_said_where_a_speed_is_known_to_a_factor_only(factor):
    deviation = np.log(factor) / 1.645  # of an interval that holds 90 % and reaches so far either way
    curve = dataclasses.replace(CURVE, spread=np.zeros(2), uncertainty=np.full(2, deviation))
    steps = SimulatedSteps(OFFERS, {"near": curve, "far": curve}, NETWORKS, assumed_trace(4e8))
    step = steps.estimate(Plan((Group("far", 1, 64),)))
    kept_s = quantile_s(step.mean_s, step.shared_sd_s, 0.95, step.doubt)
    times_s = 0.2 * np.exp(deviation * np.random.default_rng(0).standard_normal(100_000))
    assert np.mean(times_s <= kept_s) == pytest.approx(0.95, abs=0.005)


@given(st.floats(0.0, 1.5), st.floats(0.0, 1.5), st.floats(0.5, 0.999))
def test_the_least_quantile_is_that_of_no_larger_spread(least, more, confidence):
    spread = max(least, more)
    assert least_quantile(np.array([least]), confidence)[0] <= quantile_s(1.0, spread, confidence) * (1 + 1e-12)


def test_one_gpu_has_bounds_before_anything_is_asked_of_several():
    network = simulated().network(OFFERS[0])
    assert simulated().bound_s(1.0, np.array([1]), network) == pytest.approx([1.0])
    assert simulated().kept_s(1.0, np.array([1]), network, 0.95)[0] > 1.0


def test_latencies_grow_with_machines_because_the_slowest_decides():
    steps = simulated()
    latencies = [steps.latency_s(OFFERS[1], 16, machines) for machines in (1, 2, 4, 8)]
    assert latencies == sorted(latencies)
    assert latencies[0] == pytest.approx(float(CURVE.predict(16).total_s[0]))


def test_gpus_of_one_machine_talk_over_its_own_fabric():
    steps = simulated()
    inside = steps.estimate(Plan((Group("near", 1, 8),)))
    between = steps.estimate(Plan((Group("far", 4, 8),)))
    assert inside.mean_s < 0.2 * between.mean_s
    assert between.mean_s > 2 * 3 / 4 * 4e8 / 1e9  # what the slow network takes for all gradients at least


def test_what_placement_and_model_add_does_not_average_out_over_a_run():
    step = simulated(model_spread=0.08).estimate(Plan((Group("far", 8, 8),)))
    assert step.shared_sd_s is not None
    assert 0.08 * step.mean_s < step.shared_sd_s <= step.sd_s
    assert step.run_sd_s(10_000) == pytest.approx(10_000 * step.shared_sd_s, rel=1e-3)
    alone = StepEstimate(1.0, 0.2, 1.3, 0.0)
    assert alone.run_sd_s(100) == pytest.approx(2.0)


def test_the_quantile_of_a_run_is_that_of_many_drawn_ones():
    random = np.random.default_rng(1)
    for spread in (0.05, 0.3):
        sigma = np.sqrt(np.log1p(spread**2))
        drawn = random.lognormal(-0.5 * sigma**2, sigma, 400_000)
        assert quantile_s(1.0, spread, 0.95) == pytest.approx(np.quantile(drawn, 0.95), rel=0.01)
    assert quantile_s(3.0, 0.0, 0.95) == 3.0
    assert quantile_s(3.0, 1.0, 0.5) == 3.0


def test_an_offer_of_which_too_little_is_known_is_named():
    with pytest.raises(ProblemError, match="offer far has no compute curve"):
        SimulatedSteps(OFFERS, {"near": CURVE}, NETWORKS, assumed_trace(1e6))
    lost = dataclasses.replace(OFFERS[1], fabric="token ring")
    with pytest.raises(ProblemError, match="nothing is known about the fabric 'token ring'"):
        SimulatedSteps((lost,), {"far": CURVE}, NETWORKS, assumed_trace(1e6))
    with pytest.raises(ProblemError, match="model_spread"):
        simulated(model_spread=-1.0)
    with pytest.raises(ProblemError, match="spread"):
        TableSteps(OFFERS, {}, spread=-0.1)
