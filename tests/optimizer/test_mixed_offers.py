"""Many offers alike in time and price, through the simulator: what is found is proven, however many plans there are."""

import itertools
from dataclasses import replace

import pytest
from instances import mixed_offers

from gpusonde.optimizer import Objective, Status
from gpusonde.optimizer.search import exact, subproblem
from gpusonde.optimizer.search.space import brute_force
from gpusonde.optimizer.solve import solve


def with_deadline(problem, steps, factor):
    """The deadline a little beyond what the fastest plan keeps."""
    fastest = brute_force(replace(problem, objective=Objective.TIME), steps)
    return replace(problem, deadline_s=fastest.estimate.time_at_confidence_s * factor)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("objective", list(Objective))
def test_what_is_found_among_mixed_offers_is_the_best(seed, objective):
    problem, steps = mixed_offers(3, 3, 48, seed)
    problem = replace(with_deadline(problem, steps, 1.4), objective=objective)
    found, wanted = solve(problem, steps, explain=False), brute_force(problem, steps)
    assert found.status is wanted.status
    assert found.proof.bound == pytest.approx(wanted.proof.bound, rel=1e-9)


def test_a_search_does_not_end_before_its_time_however_many_plans_there_are(monkeypatch):
    """A subproblem with more plans than are made at a time used to be left out, with time left."""
    monkeypatch.setattr(exact, "_MOST_PARTIAL", 20)
    monkeypatch.setattr(exact, "_MOST_AT_ONCE", 2)
    problem, steps = mixed_offers(3, 3, 48, 7)
    problem = replace(problem, objective=Objective.TIME)
    found = solve(problem, steps, explain=False, time_limit_s=1e6)
    assert found.status is Status.OPTIMAL
    assert found.proof.bound == pytest.approx(brute_force(problem, steps).proof.bound, rel=1e-9)


def test_the_search_stops_in_time_with_a_bound_that_holds():
    problem, steps = mixed_offers(3, 3, 48, 3)
    best = brute_force(problem, steps).proof.bound
    ticks = itertools.count()
    for limit in (3, 30, 300):
        found = solve(problem, steps, explain=False, time_limit_s=limit, clock=lambda: float(next(ticks)))
        assert found.proof.bound <= best * (1 + 1e-9) <= found.estimate.cost_usd * (1 + 2e-9)


def test_a_plan_that_keeps_all_limits_is_no_unknown_where_the_search_by_price_ran_out_of_time():
    problem, steps = mixed_offers(8, 4, 512, 2)
    fastest = solve(replace(problem, objective=Objective.TIME), steps, tolerance=0.05, explain=False)
    problem = replace(problem, deadline_s=1.05 * fastest.estimate.time_at_confidence_s)
    times_s = itertools.chain([0.0], itertools.repeat(2.0))
    found = solve(problem, steps, explain=False, time_limit_s=1.0, clock=lambda: next(times_s))
    assert found.status is Status.FEASIBLE
    assert found.estimate.time_at_confidence_s <= problem.deadline_s
    assert not found.proof.complete
    assert found.proof.gap == pytest.approx(1 - found.proof.bound / found.estimate.cost_usd)
    assert found.nearest is None


@pytest.mark.parametrize("seed", range(6))
def test_a_deadline_among_scattering_networks_leaves_out_no_plan(seed):
    problem, steps = mixed_offers(3, 4, 64, 40 + seed)
    for factor, confidence in ((1.02, 0.95), (1.3, 0.95), (1.15, 0.6)):
        asked = replace(problem, confidence=confidence)
        asked = with_deadline(asked, steps, factor)
        found, wanted = solve(asked, steps, explain=False), brute_force(asked, steps)
        assert found.status is Status.OPTIMAL
        assert found.proof.bound == pytest.approx(wanted.proof.bound, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_a_table_tells_partial_plans_apart_as_a_sort_does(seed, monkeypatch):
    problem, steps = mixed_offers(5, 4, 64, 50 + seed)
    found = solve(problem, steps, explain=False)
    monkeypatch.setattr(subproblem, "_MOST_SLOTS", 0)
    assert solve(problem, steps, explain=False).proof.bound == pytest.approx(found.proof.bound, rel=1e-12)
