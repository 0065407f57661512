"""The configurations of the seed's exhaustive search."""

from __future__ import annotations

import itertools

import pytest

from gpusonde.optimizer.paper.space import count_plans, list_plans, saturating_batch
from gpusonde.optimizer.problem import MachineOffer, Problem


def test_the_search_space_of_figure_3_has_18_configurations():
    # ResNet18, 480 samples, up to 60 g4dn.2xlarge machines: the 18 divisors of 480 that are 60 or less.
    offer = MachineOffer("g4dn.2xl", "T4", 1, 60, 0.225, largest_batch=512)
    divisors = tuple(size for size in range(1, 481) if 480 % size == 0)
    problem = Problem(480, 1, (offer,), batch_sizes=divisors)
    found = list(list_plans(problem))
    assert len(found) == count_plans(problem) == 18
    assert {plan.machines for plan in found} == {count for count in divisors if count <= 60}


def brute_force(problem: Problem) -> set[str]:
    """Every combination of counts and powers of two, one by one."""
    found = set()
    choices = [
        [(0, 0), *itertools.product(range(1, offer.quota + 1), [2**power for power in range(12)])]
        for offer in problem.offers
    ]
    for combination in itertools.product(*choices):
        samples = 0
        for offer, (machines, batch) in zip(problem.offers, combination, strict=True):
            if machines and not offer.smallest_batch <= batch <= (offer.largest_batch or problem.global_batch):
                break
            samples += machines * batch * offer.devices
        else:
            if samples == problem.global_batch:
                used = zip(problem.offers, combination, strict=True)
                found.add(" + ".join(f"{count} x {offer.name} @ {batch}" for offer, (count, batch) in used if count))
    return found


@pytest.mark.parametrize("global_batch", [64, 96, 100, 7])
def test_all_plans_of_powers_of_two_are_given_once(global_batch: int):
    offers = (
        MachineOffer("a", "T4", 1, 5, 1.0, largest_batch=32),
        MachineOffer("b", "M60", 2, 3, 1.0, smallest_batch=2, largest_batch=16),
        MachineOffer("c", "V100", 4, 2, 1.0),
    )
    problem = Problem(global_batch, 1, offers)
    found = [str(plan) for plan in list_plans(problem)]
    assert len(found) == len(set(found)) == count_plans(problem)
    assert set(found) == brute_force(problem)


def test_a_sold_out_offer_and_one_the_model_does_not_fit_into_are_in_no_plan():
    offers = (
        MachineOffer("gone", "T4", 1, 0, 1.0),
        MachineOffer("small", "M60", 1, 8, 1.0, largest_batch=0),
        MachineOffer("there", "V100", 1, 8, 1.0),
    )
    problem = Problem(64, 1, offers)
    assert {group.offer for plan in list_plans(problem) for group in plan.groups} == {"there"}


def test_plans_are_counted_without_being_made():
    offers = tuple(MachineOffer(f"offer{place}", "T4", 1, 64, 1.0) for place in range(6))
    assert count_plans(Problem(4096, 1, offers)) > 1e9


def test_the_saturating_batch_is_the_least_one_at_nearly_the_highest_rate():
    sizes = [8, 16, 32, 64, 128, 256]
    # A fixed 10 ms and 1 ms per sample: 64 samples reach 0.865 of the highest rate asymptotically, 0.897 of that at
    # 256.
    latencies = [0.01 + 0.001 * size for size in sizes]
    assert saturating_batch(sizes, latencies, 0.85) == 64
    assert saturating_batch(sizes, latencies, 0.95) == 128
    assert saturating_batch(sizes, latencies, 1.0) == 256


@pytest.mark.parametrize(("sizes", "latencies", "share"), [([], [], 0.9), ([1, 2], [1.0], 0.9), ([1], [1.0], 0.0)])
def test_a_saturating_batch_needs_latencies_and_a_share(sizes: list[int], latencies: list[float], share: float):
    with pytest.raises(ValueError, match=r"saturating_batch|share"):
        saturating_batch(sizes, latencies, share)
