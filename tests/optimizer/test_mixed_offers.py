"""Many offers alike in time and price, through the simulator: what is found is proven, however many plans there are."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from gpusonde.optimizer import MachineOffer, Objective, Problem, SimulatedSteps, Status
from gpusonde.optimizer.search import exact
from gpusonde.optimizer.search.space import brute_force
from gpusonde.optimizer.solve import solve
from gpusonde.simulator.compute import ComputeProbe, fit_compute_curve
from gpusonde.simulator.gradients import assumed_trace
from gpusonde.simulator.links import RatedNetwork, inner_link, outer_link


def mixed(count, quota, global_batch, seed, samples=32):
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


def with_deadline(problem, steps, factor):
    """The deadline a little beyond what the fastest plan keeps."""
    fastest = brute_force(replace(problem, objective=Objective.TIME), steps)
    return replace(problem, deadline_s=fastest.estimate.time_at_confidence_s * factor)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("objective", list(Objective))
def test_what_is_found_among_mixed_offers_is_the_best(seed, objective):
    problem, steps = mixed(3, 3, 48, seed)
    problem = replace(with_deadline(problem, steps, 1.4), objective=objective)
    found, wanted = solve(problem, steps, explain=False), brute_force(problem, steps)
    assert found.status is wanted.status
    assert found.proof.bound == pytest.approx(wanted.proof.bound, rel=1e-9)


def test_a_search_does_not_end_before_its_time_however_many_plans_there_are(monkeypatch):
    """A subproblem with more plans than are made at a time used to be left out, with time left."""
    monkeypatch.setattr(exact, "_MOST_PARTIAL", 20)
    monkeypatch.setattr(exact, "_MOST_AT_ONCE", 2)
    problem, steps = mixed(3, 3, 48, 7)
    problem = replace(problem, objective=Objective.TIME)
    found = solve(problem, steps, explain=False, time_limit_s=1e6)
    assert found.status is Status.OPTIMAL
    assert found.proof.bound == pytest.approx(brute_force(problem, steps).proof.bound, rel=1e-9)


def test_the_search_stops_in_time_with_a_bound_that_holds():
    problem, steps = mixed(3, 3, 48, 3)
    best = brute_force(problem, steps).proof.bound
    ticks = itertools.count()
    for limit in (3, 30, 300):
        found = solve(problem, steps, explain=False, time_limit_s=limit, clock=lambda: float(next(ticks)))
        assert found.proof.bound <= best * (1 + 1e-9) <= found.estimate.cost_usd * (1 + 2e-9)
