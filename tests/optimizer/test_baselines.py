"""The policies that the optimizer is compared with."""

from __future__ import annotations

import math

import numpy as np
import pytest
from baseline_apm import ApmSteps, cheapest_first, explore, fastest_first, oracle_bayes

from gpusonde.errors import ProblemError
from gpusonde.optimizer.paper import list_plans
from gpusonde.optimizer.problem import Group, MachineOffer, Plan, Problem
from gpusonde.simulator.compute import ComputeProbe

SLOW = MachineOffer("slow", "T4", 1, 8, 0.72, largest_batch=128)
FAST = MachineOffer("fast", "V100", 4, 2, 3.68, largest_batch=128)


def problem(global_batch: int, *offers: MachineOffer) -> Problem:
    return Problem(global_batch, 1, offers or (SLOW, FAST))


def test_the_cheapest_gpu_gets_its_largest_batch_and_the_next_one_the_rest():
    assert cheapest_first(problem(1024)) == Plan((Group("slow", 8, 128),))
    assert cheapest_first(problem(1536)) == Plan((Group("slow", 8, 128), Group("fast", 1, 128)))


def test_the_price_of_a_gpu_counts_and_not_that_of_its_machine():
    large = MachineOffer("large", "T4", 8, 8, 2.4, largest_batch=128)
    assert cheapest_first(problem(1024, SLOW, large)) == Plan((Group("large", 1, 128),))


def test_the_fastest_gpu_gets_the_fixed_batch():
    assert fastest_first(problem(512), ("fast", "slow")) == Plan((Group("fast", 2, 64),))


def test_gpus_are_packed_fully_where_the_fixed_batch_needs_more_than_there_are():
    assert fastest_first(problem(1536), ("fast", "slow")) == Plan((Group("fast", 2, 128), Group("slow", 4, 128)))


def test_a_sold_out_offer_is_passed_over_and_too_few_machines_give_no_plan():
    gone = MachineOffer("gone", "T4", 1, 0, 0.1, largest_batch=128)
    assert cheapest_first(problem(1024, gone, SLOW)) == Plan((Group("slow", 8, 128),))
    assert cheapest_first(problem(4096)) is None
    assert fastest_first(problem(4096), ("fast", "slow")) is None


def test_the_order_of_speed_must_name_every_offer():
    with pytest.raises(ValueError, match="speed_order lacks fast"):
        fastest_first(problem(512), ("slow",))


def test_bayesian_optimisation_finds_the_bottom_of_a_valley_with_a_quarter_of_the_measurements():
    places = np.linspace(0.0, 1.0, 40)
    valley = 1.0 + (places - 0.7) ** 2
    for seed in range(5):
        explored = explore(places[:, None], lambda place: valley[place], 10, seed)
        assert len(explored) == len(set(explored)) == 10
        assert valley[explored].min() == pytest.approx(valley.min(), abs=1e-3)


def test_exploring_nothing_and_everything():
    assert explore(np.zeros((0, 1)), lambda _: 1.0, 5) == []
    assert sorted(explore(np.zeros((4, 2)), lambda place: 1.0 + place, 9)) == [0, 1, 2, 3]


def test_configurations_that_do_not_run_do_not_stop_the_exploration():
    explored = explore(np.arange(12.0)[:, None], lambda place: math.inf if place < 6 else 20.0 - place, 8)
    assert 11 in explored


def test_oracle_bo_measures_a_third_of_the_plans_on_machines_of_one_kind():
    measured: list[Plan] = []

    def measure(plan: Plan) -> float:
        measured.append(plan)
        return 1.0 / plan.machines

    offers = (MachineOffer("one", "T4", 1, 64, 0.72), MachineOffer("other", "M60", 1, 64, 0.69))
    asked = Problem(64, 1, offers)
    best = oracle_bayes(asked, measure)
    assert len(measured) == 4  # of 7 each, a third of 14 rounded per offer
    assert all(len(plan.groups) == 1 and plan.global_batch(offers) == 64 for plan in measured)
    assert best is not None
    assert best.machines == max(plan.machines for plan in measured)


def test_oracle_bo_has_no_answer_where_no_offer_alone_takes_the_batch():
    assert oracle_bayes(problem(2048), lambda _: 1.0) is None
    assert oracle_bayes(problem(1024), lambda _: math.inf) is None


def line(fixed_s: float, sample_s: float) -> list[ComputeProbe]:
    return [ComputeProbe(batch, fixed_s + sample_s * batch) for batch in (8, 16, 64, 128)]


RATED = (
    MachineOffer("t4", "T4", 1, 8, 0.72, network_bytes_per_second=1.25e9),
    MachineOffer("v100", "V100", 4, 4, 3.68, network_bytes_per_second=3e9),
)
PROBES = {"t4": line(0.02, 0.004), "v100": line(0.02, 0.001)}


def test_apm_takes_the_straight_line_the_rated_network_and_full_overlap():
    steps = ApmSteps(RATED, PROBES, 100e6)
    alone = steps.estimate(Plan((Group("t4", 1, 64),)))
    assert alone.mean_s == pytest.approx(0.02 + 0.004 * 64)
    # 8 GPUs: 2 * 7 / 8 of 100 MB at 1.25 GB/s last longer than two thirds of 52 ms.
    together = steps.estimate(Plan((Group("t4", 8, 8),)))
    assert together.mean_s == pytest.approx(0.052 / 3 + 1.75 * 0.08)
    assert together.sd_s == 0.0


def test_the_bound_of_apm_is_its_estimate():
    steps = ApmSteps(RATED, PROBES, 100e6)
    assert steps.exact
    for plan in list_plans(Problem(128, 1, RATED)):
        offers = {offer.name: offer for offer in RATED}
        latency_s = max(steps.latency_s(offers[group.offer], group.batch_size) for group in plan.groups)
        slowest = min(steps.network(offers[group.offer]) for group in plan.groups)
        bound = steps.bound_s(latency_s, np.array([plan.devices(RATED)]), slowest)
        assert steps.estimate(plan).mean_s == pytest.approx(bound[0], rel=1e-12)


def test_apm_needs_probes_and_rated_networks():
    with pytest.raises(ProblemError, match="offer v100 has no compute probes"):
        ApmSteps(RATED, {"t4": PROBES["t4"]}, 100e6)
    with pytest.raises(ProblemError, match="offer slow needs network_bytes_per_second"):
        ApmSteps((SLOW,), {"slow": PROBES["t4"]}, 100e6)
    with pytest.raises(ProblemError, match="parameter_bytes 0"):
        ApmSteps(RATED, PROBES, 0)
