"""Many offers alike in time and price, through the simulator: what is found is proven, however many plans there are."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from instances import mixed_offers

from gpusonde.optimizer import Objective, Status
from gpusonde.optimizer.problem import Group, Plan
from gpusonde.optimizer.search import exact, plan_lists, subproblem
from gpusonde.optimizer.search.anchors import make_anchors
from gpusonde.optimizer.search.price_bounds import DualPrices, LatencyLimit, Lots
from gpusonde.optimizer.search.space import brute_force, every_plan, make_space
from gpusonde.optimizer.solve import solve
from gpusonde.simulator.iteration import expect_slowest


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
    monkeypatch.setattr(plan_lists, "_MOST_PARTIAL", 20)
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


def slowest(steps, plan):
    """Mean and spread of a plan's slowest GPU."""
    mean_s, spread = steps.slowest_s(plan.groups, np.arange(len(plan.groups))[None])
    return float(mean_s[0]), float(spread[0])


def limit_of(slowest_s, spread, hidden, most_spread=0.08):
    """The limit that a plan just keeps, whose slowest GPU may take so much more, relative, where it scatters most."""
    steady_s = slowest_s / (1.0 + hidden * (spread / most_spread) ** 2)
    return LatencyLimit(steady_s * (1.0 + hidden), steady_s, most_spread)


@pytest.mark.parametrize("hidden", [0.0, 0.005, 0.02])
@pytest.mark.parametrize("seed", range(8))
def test_several_groups_take_up_no_more_than_a_plan_bears(seed, hidden):
    problem, steps = mixed_offers(12, 16, 1024, seed, samples=256)
    random = np.random.default_rng(seed)
    taken = []
    for _ in range(100):
        offers = random.permutation(12)[: random.integers(1, 12)]
        groups = [Group(f"o{place}", int(random.integers(1, 17)), int(2 ** random.integers(0, 8))) for place in offers]
        limit = limit_of(*slowest(steps, Plan(tuple(groups))), hidden)
        gpu_s = [steps.gpu_s(problem.offer(group.offer), group.batch_size) for group in groups]
        devices = [group.machines * problem.offer(group.offer).devices for group in groups]
        taken.append(float(devices @ limit.load(*np.array(gpu_s).T)))
    assert 0.8 < max(taken) <= 1.0


def test_a_limit_is_reached_by_as_many_gpus_alike_as_their_load_says():
    numbers, spread = 2.0 ** np.arange(1, 12), 0.06
    alike = np.ones((numbers.size, 1))
    for number, mean_s, scatter in zip(
        numbers, *expect_slowest(0.03 * alike, spread * alike, numbers[:, None]), strict=True
    ):
        limit = limit_of(mean_s, scatter, 0.01)
        assert limit.load(np.array([0.03]), np.array([spread]))[0] == pytest.approx(1.0 / number, rel=0.01)


def test_no_plan_exceeds_a_limit_that_is_none():
    assert LatencyLimit(math.inf, math.inf).at(np.array([0.0, 0.05])).tolist() == [math.inf, math.inf]


def test_the_slowest_gpus_of_many_plans_are_those_of_each():
    """However many groups a plan has: draws differ with a group's place in its plan."""
    problem, steps = mixed_offers(4, 2, 48, 0)
    space = make_space(problem, steps)
    drawn = np.random.default_rng(0)
    places = np.array([[drawn.integers(-1, each.machines.size) for each in space.options] for _ in range(600)])
    places = places[(places >= 0).any(axis=1)]
    found = np.transpose(steps.slowest_s(*exact.groups_of(space.options, places)))
    for row, of_plan in zip(places.tolist(), found.tolist(), strict=True):
        groups = [each.group(place) for each, place in zip(space.options, row, strict=True) if place >= 0]
        assert of_plan == pytest.approx(slowest(steps, Plan(tuple(groups))), rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_costs_less_than_the_bounds_of_its_gpus(seed):
    problem, steps = mixed_offers(3, 3, 48, seed)
    options = make_space(problem, steps).options
    batches = 2.0 ** np.arange(8)
    gpu_s = np.array([[steps.gpu_s(each.offer, int(batch)) for batch in batches] for each in options])
    usd = np.array([each.offer.usd_per_hour / each.offer.devices for each in options])
    most = np.array([each.offer.devices * each.offer.quota for each in options])
    plans = [plan for plan in every_plan(problem) if plan.machines > 1]
    nearest = 0.0
    for chosen in np.random.default_rng(seed).permutation(len(plans))[:20]:
        limit_s = slowest(steps, plans[chosen])[0]
        loads = LatencyLimit(limit_s, limit_s).load(gpu_s[..., 0], gpu_s[..., 1])
        lots = Lots(np.repeat(most[:, None], 8, axis=1), usd, np.tile(batches, (3, 1)), loads)
        world_size = plans[chosen].devices(problem.offers)
        alike = [plan for plan in plans if plan.devices(problem.offers) == world_size]
        costs = [plan.usd_per_hour(problem.offers) for plan in alike if slowest(steps, plan)[0] <= limit_s]
        bounds = [
            found + prices.per_device * world_size
            for found, prices in lots.bounds(world_size, 48.0, DualPrices(0.0, 0.0, 0.0))
        ]
        assert max(bounds) <= min(costs) * (1 + 1e-9)
        nearest = max(nearest, max(bounds) / min(costs))
    assert nearest > 0.9


@pytest.mark.parametrize("seed", range(4))
def test_every_plan_is_a_node_s_own_and_takes_no_less_than_its_bounds(seed):
    problem, steps = mixed_offers(4, 3, 48, 60 + seed)
    space = make_space(problem, steps)
    made = make_anchors(space, steps, lambda step_s: np.full(step_s.shape, np.inf))
    nodes = [each for _, anchors in made for anchor in anchors for each in (anchor, *anchor.halves(space.samples))]
    options = {each.offer.name: each for each in space.options}
    plans = [plan for plan in every_plan(problem) if plan.machines > 1]
    for chosen in np.random.default_rng(seed).permutation(len(plans))[:150]:
        plan = plans[chosen]
        devices, taken = plan.devices(problem.offers), [(options[group.offer], group) for group in plan.groups]
        slowest_s, mean_s = slowest(steps, plan)[0], steps.estimate(plan).mean_s
        network = min(each.network for each, _ in taken)
        alike = [each for each in nodes if each.network == network and devices in each.world_sizes]
        # On an edge up to rounding it is that of two.
        holding = [each for each in alike if each.holds(slowest_s) and slowest_s < each.end_s * (1 - 1e-9)]
        assert holding
        for node in holding:
            limit, load = LatencyLimit(node.end_s, node.end_s), 0.0
            for each, group in taken:
                is_it = (each.machines == group.machines) & (each.batch_sizes == group.batch_size)
                place = int(np.flatnonzero(is_it)[0])
                assert place < node.counts[node.options.index(each)]
                load += each.devices[place] * limit.load(each.gpu_s[place], each.gpu_spread[place])
            assert load <= subproblem.MOST_LOAD
            assert steps.bound_s(node.latency_s, np.array([devices]), network)[0] <= mean_s
            assert node.usd_per_hour[node.world_sizes == devices][0] <= plan.usd_per_hour(problem.offers) * (1 + 1e-9)


@pytest.mark.parametrize(("most_partial", "most_least"), [(400_000, 1_000_000), (7, 1_000_000), (50, 0)])
@pytest.mark.parametrize(("per_sample", "per_load"), [(0.01, 0.0), (0.01, 0.7), (1.0, 0.0), (-1.0, 50.0)])
def test_the_plans_of_a_subproblem_below_a_price_are_all_listed_once(
    monkeypatch, most_partial, most_least, per_sample, per_load
):
    monkeypatch.setattr(plan_lists, "_MOST_PARTIAL", most_partial)
    monkeypatch.setattr(plan_lists, "_MOST_LEAST", most_least)
    # In rounds, too, where so few could be listed at once.
    monkeypatch.setattr(subproblem, "_FEW_WAYS", 0 if most_partial < 400_000 else subproblem._FEW_WAYS)
    problem, steps = mixed_offers(4, 3, 48, 5)
    space = make_space(problem, steps)
    rows = itertools.product(*(range(-1, each.machines.size) for each in space.options))
    places = np.array([row for row in rows if max(row) >= 0])

    def total(name):
        return sum_of([getattr(each, name) for each in space.options])

    def sum_of(columns):
        return sum(np.where(taken >= 0, each[taken], 0) for each, taken in zip(columns, places.T, strict=True))

    limit_s = float(np.quantile(np.concatenate([each.latency_s for each in space.options]), 0.8))
    limit = LatencyLimit(limit_s, limit_s)
    loads = sum_of([each.devices * limit.load(each.gpu_s, each.gpu_spread) for each in space.options])
    fits = (total("samples") == space.samples) & (loads <= subproblem.MOST_LOAD)
    devices = int(np.bincount(total("devices")[fits]).argmax())
    fits &= total("devices") == devices
    prices = total("usd_per_hour")
    ceiling = float(np.median(prices[fits]))
    cell = subproblem.Subproblem(
        space.options,
        [each.machines.size for each in space.options],
        devices,
        space.samples,
        DualPrices(float(prices[fits].min()) / devices / 2, per_sample, per_load),
        0.0,
        limit,
    )
    listed = np.concatenate(
        [each.places for each in plan_lists.list_plans(cell, ceiling, lambda: True, lambda: None)]
    ).tolist()
    wanted = places[fits & (prices <= ceiling)].tolist()
    assert len(wanted) > 10
    assert sorted(listed) == sorted(wanted)


def test_of_a_subproblem_that_waits_it_is_known_whether_it_holds_any_plan():
    """One listed later is no longer open: where all others were closed, too, the search ended with an error."""
    problem, steps = mixed_offers(3, 3, 48, 5)
    space = make_space(problem, steps)
    made = make_anchors(space, steps, lambda step_s: np.full(step_s.shape, np.inf))
    anchor = next(anchor for _, anchors in made for anchor in anchors)
    anchor.open[:] = False
    assert anchor.is_reached(0, space.samples, lambda: None) in (True, False)
    assert not anchor.open.any()
