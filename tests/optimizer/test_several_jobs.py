"""Jobs that share quotas and a budget: the best plans of all together, or how far they may be from these."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import replace

import fleet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import LARGE, SMALL, instance, mixed_offers

from gpusonde.errors import ProblemError
from gpusonde.optimizer import Billing, MachineOffer, Objective, Problem, Status, TableSteps, several_jobs, solve
from gpusonde.optimizer.explain import describe_gap
from gpusonde.optimizer.known_plans import TolledCost
from gpusonde.optimizer.problem import SharedQuota
from gpusonde.optimizer.search.exact import ExactSearch
from gpusonde.optimizer.search.space import every_plan, make_space
from gpusonde.optimizer.several_jobs import MOST_JOBS, SharingJob, solve_jobs
from gpusonde.optimizer.solution import estimate_plan, satisfies
from gpusonde.simulator.iteration import StepMode

# Others than those of the benchmark.
SEEDS = range(85_005, 85_011)
TABLE_SEEDS = range(60)


def value_of(found, objective):
    return found.end_s if objective is Objective.TIME else found.cost_usd


def asked_of(jobs, objective=Objective.COST, budget_usd=None):
    return fleet.Fleet(tuple(jobs), objective, budget_usd, tuple(list(fleet.rows_of(job)) for job in jobs))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_combination_of_plans_is_better_with_spot_regions_and_shared_quotas(seed):
    asked = fleet.fleet(seed)
    truth = fleet.every_combination(asked)
    found = solve_jobs(asked.jobs, objective=asked.objective, budget_usd=asked.budget_usd, explain=False)
    if truth is None:
        assert found.status is Status.INFEASIBLE
    else:
        assert found.status is Status.OPTIMAL
        assert value_of(found, asked.objective) == pytest.approx(truth, rel=1e-9)
        assert fleet.broken_limits(asked.jobs, found) == 0


@pytest.mark.parametrize("seed", TABLE_SEEDS)
def test_tolls_find_what_listing_finds(seed, monkeypatch):
    """Without the list of all plans of small jobs, searches under tolls find the same."""
    monkeypatch.setattr(several_jobs, "_FEW_COMBINATIONS", 0)
    jobs = fleet.table_fleet(seed, 2 + seed % 3, SMALL)
    objective = Objective.TIME if seed % 3 == 0 else Objective.COST
    alone = [solve(replace(job.problem, objective=Objective.COST), job.steps, explain=False) for job in jobs]
    budget_usd = 1.2 * sum(each.estimate.cost_usd for each in alone) if seed % 2 else None
    truth = fleet.every_combination(asked_of(jobs, objective, budget_usd))
    found = solve_jobs(jobs, objective=objective, budget_usd=budget_usd, explain=False)
    if truth is None:
        assert found.status is Status.INFEASIBLE
        assert found.nearest_jobs
    else:
        assert found.status is Status.OPTIMAL
        assert value_of(found, objective) == pytest.approx(truth, rel=1e-9)
        assert fleet.broken_limits(jobs, found) == 0


@pytest.mark.parametrize("seed", range(8))
def test_where_nothing_is_proven_the_gap_is_told_and_holds(seed, monkeypatch):
    monkeypatch.setattr(several_jobs, "_FEW_COMBINATIONS", 0)
    monkeypatch.setattr(several_jobs, "_MOST_ROUNDS", 2)
    monkeypatch.setattr(several_jobs, "_MOST_LISTED", 1)
    jobs = fleet.table_fleet(seed, 4, SMALL)
    truth = fleet.every_combination(asked_of(jobs))
    found = solve_jobs(jobs, explain=False)
    if found.cost_usd is None:
        assert found.status is Status.UNKNOWN or truth is None
        return
    assert truth is not None
    assert found.proof.bound <= truth * (1 + 1e-9)
    assert found.proof.gap == pytest.approx(1 - found.proof.bound / found.cost_usd, abs=1e-9)
    assert found.cost_usd >= truth * (1 - 1e-9)
    if found.status is Status.FEASIBLE:
        assert f"within {100 * found.proof.gap:.2f} % of the best possible" in found.why
    assert describe_gap(1.0) == "at an unknown distance from the best possible"


def test_twenty_jobs_get_plans_and_a_gap_in_time():
    jobs = fleet.table_fleet(1, 20, SMALL)
    jobs = [replace(job, problem=_with_quota(job.problem, 48)) for job in jobs]
    found = solve_jobs(jobs, time_limit_s=20.0, explain=False)
    assert found.status in (Status.OPTIMAL, Status.FEASIBLE)
    assert fleet.broken_limits(jobs, found) == 0
    assert found.proof.gap <= 0.03
    assert found.proof.bound <= found.cost_usd * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), usd=st.lists(st.floats(0.0, 50.0), min_size=4, max_size=4), simulated=st.booleans())
def test_a_search_under_tolls_finds_the_plan_that_costs_least_with_them(seed, usd, simulated):
    if simulated:
        problem, steps = mixed_offers(3, 2, 48, seed)
    else:
        problem, steps = instance(seed, SMALL)
    tolls = {offer.name: toll for offer, toll in zip(problem.offers, usd, strict=False)}
    best = math.inf
    for plan in every_plan(problem):
        found = estimate_plan(problem, plan, steps)
        if satisfies(problem, found):
            best = min(best, found.cost_usd + sum(group.machines * tolls[group.offer] for group in plan.groups))
    taken = []
    objective = TolledCost(problem, 1.0, tolls, math.inf, math.inf, lambda *more: taken.append(more), lists=False)
    space = make_space(problem, steps, tolls)
    searched = None if space is None else ExactSearch(problem, space, steps, objective, out_of_time=lambda: False).run()
    if math.isinf(best):
        assert searched is None or searched.plan is None
    else:
        assert searched.bound == pytest.approx(best, rel=1e-9)
        assert searched.value[0] == pytest.approx(best, rel=1e-9)
        assert taken


def test_twenty_jobs_that_want_more_than_there_is_are_proven_to_have_no_plans():
    found = solve_jobs(fleet.table_fleet(81_002, 20, LARGE), explain=False, time_limit_s=60, clock=time.process_time)
    assert found.status is Status.INFEASIBLE
    assert "quota of offer0 would have to be 70, not 50" in found.why


def _with_quota(problem: Problem, least: int) -> Problem:
    return replace(problem, offers=tuple(replace(each, quota=max(least, each.quota)) for each in problem.offers))


@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize("seed", range(6))
def test_one_job_alone_gets_the_plan_that_it_gets_today(seed, objective):
    (job,) = fleet.table_fleet(seed, 1, SMALL)
    alone = solve(replace(job.problem, objective=objective), job.steps)
    found = solve_jobs([job], objective=objective)
    assert found.status is Status.OPTIMAL
    assert value_of(found, objective) == pytest.approx(alone.proof.bound, rel=1e-9)
    assert found.jobs[0].estimate.cost_usd == pytest.approx(alone.estimate.cost_usd, rel=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_a_job_more_never_makes_the_others_cheaper_and_a_looser_quota_never_dearer(seed):
    jobs = fleet.table_fleet(seed, 4, SMALL)
    fewer, every = (solve_jobs(some, explain=False) for some in (jobs[:3], jobs))
    looser = [replace(job, problem=_with_quota(job.problem, 12)) for job in jobs]
    loose = solve_jobs(looser, explain=False)
    if every.cost_usd is not None:
        assert sum(each.estimate.cost_usd for each in every.jobs[:3]) >= fewer.cost_usd * (1 - 1e-9)
        assert loose.cost_usd <= every.cost_usd * (1 + 1e-9)
    elif fewer.cost_usd is None:
        assert every.status is Status.INFEASIBLE


def offer(name="cheap", quota=4, price=1.0, **more):
    return MachineOffer(name, "T4", 1, quota, price, largest_batch=32, **more)


def job(name, *offers, deadline_s=None, **more):
    """Four GPUs for an hour, or two for two hours."""
    latencies = {(each.name, size): size / 32 for each in offers for size in (32, 64)}
    offers = tuple(replace(each, largest_batch=64) for each in offers)
    problem = Problem(128, 3600, offers, batch_sizes=(32, 64), deadline_s=deadline_s, objective=Objective.COST, **more)
    return SharingJob(name, problem, TableSteps(offers, latencies))


def test_jobs_share_a_pool_and_the_answer_says_what_more_of_it_buys():
    cheap, dear = offer(), offer("dear", 8, 3.0)
    found = solve_jobs([job("a", cheap, dear, deadline_s=4000), job("b", cheap, dear)])
    # The one in a hurry mixes them, so that two cheap ones are left to the other.
    assert found.cost_usd == pytest.approx((2.0 + 6.0) + 2.0 * 2.0)
    assert str(found.jobs[0].plan) == "2 x cheap @ 32 + 2 x dear @ 32"
    assert "50.0 % more than if each had the quotas to itself" in found.why
    assert found.binding == ("quota of cheap",)
    assert found.relaxations[0].startswith("quota of cheap x 2: 33.3 % cheaper")


def test_a_quota_that_one_job_names_holds_for_all():
    east = {"region": "aws/us-east-1"}
    cheap, other = offer(**east), offer("other", 8, 2.0, **east)
    west = offer("west", 8, 5.0, region="aws/us-west-2")
    jobs = [job("a", cheap, west, quotas=(SharedQuota(4, region="us-east-1"),)), job("b", other, west)]
    found = solve_jobs(jobs)
    taken = Counter({group.offer: group.machines for each in found.jobs for group in each.plan.groups})
    assert taken["cheap"] + taken["other"] <= 4
    assert found.cost_usd == pytest.approx(4.0 + 8.0)


def test_without_plans_the_nearest_ones_and_the_limits_that_they_break_are_told():
    found = solve_jobs([job("a", offer(), deadline_s=4000), job("b", offer(), deadline_s=4000)])
    assert found.status is Status.INFEASIBLE
    assert "quota of cheap would have to be 8, not 4" in found.why
    assert [str(each.plan) for each in found.nearest_jobs] == ["4 x cheap @ 32"] * 2
    poor = solve_jobs([job("a", offer()), job("b", offer())], budget_usd=5.0)
    assert poor.status is Status.INFEASIBLE
    assert "All jobs cost at least $8.00, $3.00 more than the budget of $5.00." in poor.why
    alone = solve_jobs([job("a", offer()), job("b", offer(quota=4), deadline_s=60)])
    assert alone.status is Status.INFEASIBLE
    assert "b has no plan even alone: No plan keeps the deadline." in alone.why


def test_a_job_that_has_no_plan_even_alone_is_told_before_plans_of_the_others_are_listed():
    jobs = fleet.table_fleet(87_000, 2, LARGE)
    hopeless = replace(jobs[1], name="hopeless", problem=replace(jobs[1].problem, deadline_s=1.0))
    for asked in ([jobs[0], hopeless], [hopeless, jobs[0]]):
        found = solve_jobs(asked)
        assert found.status is Status.INFEASIBLE
        assert "hopeless has no plan even alone: No plan keeps the deadline." in found.why
        assert int(found.proof.words.split()[0].replace(",", "")) < 100


def test_micro_batches_are_for_the_job_that_has_no_other_plan():
    spare = tuple(StepMode(number) for number in (1, 2, 4))
    few = replace(offer(quota=3), largest_batch=32)
    steps = TableSteps([few], {("cheap", 32): 1.0})
    lacking = Problem(128, 3600, [few], batch_sizes=(32,), objective=Objective.COST, spare_modes=spare)
    plain = replace(lacking, global_batch=32)
    found = solve_jobs([SharingJob("lacking", lacking, steps), SharingJob("plain", plain, steps)])
    assert found.status is Status.OPTIMAL
    assert [each.plan.mode.accumulation_steps for each in found.jobs][1] == 1
    assert found.jobs[0].plan.mode.accumulation_steps > 1
    assert found.why.endswith("Without gradient accumulation there is none for lacking.")


def test_what_several_micro_batches_would_save_all_jobs_is_told():
    """So a tighter budget, which only these keep, made the jobs cheaper than "no choice of plans is cheaper" had it."""
    spare = tuple(StepMode(number) for number in (1, 2))
    kinds = (offer(quota=1), offer("dear", price=40.0, quota=2))
    steps = TableSteps(kinds, {(kind.name, batch): batch / 32 for kind in kinds for batch in (32, 64)})
    kinds = tuple(replace(kind, largest_batch=most) for kind, most in zip(kinds, (32, 64), strict=True))
    problem = Problem(64, 3600, kinds, batch_sizes=(32, 64), objective=Objective.COST, spare_modes=spare)
    jobs = [SharingJob(name, problem, steps) for name in "ab"]
    found = solve_jobs(jobs)
    assert {each.plan.mode.accumulation_steps for each in found.jobs} == {1}
    assert "accumulation_steps" in found.binding
    told = next(words for words in found.relaxations if words.startswith("accumulation_steps up to 2: "))
    saved = solve_jobs(jobs, budget_usd=0.9 * found.cost_usd)
    assert saved.cost_usd < 0.9 * found.cost_usd
    assert saved.why.endswith("Without gradient accumulation there is none.")
    assert f"${saved.cost_usd:.2f}" in told


def test_looking_for_jobs_without_a_plan_of_their_own_takes_no_longer_than_one_search(monkeypatch):
    asked_s = []

    def solve_alone(*arguments, time_limit_s, **more):
        asked_s.append(time_limit_s)
        return solve(*arguments, time_limit_s=time_limit_s, **more)

    monkeypatch.setattr(several_jobs, "solve", solve_alone)
    spare = tuple(StepMode(number) for number in (1, 2))
    solve_jobs([job(name, offer(quota=1), spare_modes=spare) for name in "abc"], time_limit_s=6.0, explain=False)
    assert asked_s.count(2.0) == 3


def test_what_jobs_disagree_about_is_named():
    with pytest.raises(ProblemError, match="its quota is 4 in a and 5 in b: write the same"):
        solve_jobs([job("a", offer()), job("b", offer(quota=5))])
    with pytest.raises(ProblemError, match=r"its usd_per_hour is 1.0 in a and 2.0 in b"):
        solve_jobs([job("a", offer()), job("b", offer(price=2.0))])
    spot = {"billing": Billing.SPOT, "preemptions_per_hour": 0.1}
    with pytest.raises(ProblemError, match="its billing is on_demand in a and spot in b"):
        solve_jobs([job("a", offer()), job("b", offer(**spot))])
    with pytest.raises(
        ProblemError, match="all jobs share the quota of 4 GPUs in a region of a, but b has a quota of 5"
    ):
        solve_jobs([job("a", offer(), quotas=(SharedQuota(4),)), job("b", offer(), quotas=(SharedQuota(5),))])


@pytest.mark.parametrize(
    ("count", "more", "words"),
    [
        (0, {}, "there are no jobs"),
        (MOST_JOBS + 1, {}, f"{MOST_JOBS + 1} jobs are too many; {MOST_JOBS} is the limit"),
        (1, {"budget_usd": 0.0}, "budget_usd 0.0 must be above zero"),
        (1, {"time_limit_s": 0.0}, "time_limit_s 0.0 must be above zero"),
    ],
)
def test_what_cannot_be_is_refused(count, more, words):
    with pytest.raises(ProblemError, match=words):
        solve_jobs([job("a", offer())] * count, **more)
