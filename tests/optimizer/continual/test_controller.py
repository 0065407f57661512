"""The controller under preemption, slow jobs, odd clouds and odd input."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from simulated_cloud import SimulatedCloud, SimulatedJob, SimulatedWorld, StepCapacity

from gpusonde.errors import CloudError, ProblemError
from gpusonde.optimizer import Billing, Group, MachineOffer, Objective, Plan, Problem, TableSteps
from gpusonde.optimizer.continual import (
    ContinualOptions,
    Controller,
    Decision,
    DecisionKind,
    Machine,
    Notice,
    NoticeKind,
    ReportedCloud,
    Runtime,
)

SPOT = MachineOffer("spot", "A", 1, 4, 1.0, Billing.SPOT, largest_batch=64)
OTHER = MachineOffer("other", "A", 1, 4, 1.2, Billing.SPOT, largest_batch=64)
SURE = MachineOffer("sure", "A", 1, 4, 3.0, Billing.ON_DEMAND, largest_batch=64)
OFFERS = (SPOT, OTHER, SURE)
# One second per iteration on one GPU, a little more than the half on two, and so on.
LATENCIES = {(o.name, b): s for o in OFFERS for b, s in ((64, 1.0), (32, 0.55), (16, 0.3))}
HOUR = 3600.0


def problem(iterations: int = 7200, **limits: object) -> Problem:
    given: dict[str, object] = {"objective": Objective.COST, "deadline_s": 4 * HOUR, "batch_sizes": (16, 32, 64)}
    return Problem(64, iterations, OFFERS, **{**given, **limits})  # type: ignore[arg-type]


def world_of(
    capacity: dict[str, StepCapacity],
    *,
    iterations: int = 7200,
    factor: float = 1.0,
    launch_s: Callable[[str], float] = lambda _: 150.0,
) -> SimulatedWorld:
    prices = {offer.name: offer.usd_per_hour for offer in OFFERS}
    cloud = SimulatedCloud(capacity, prices, launch_s)
    steps = TableSteps(OFFERS, LATENCIES)
    job = SimulatedJob(iterations, lambda plan: steps.estimate(plan).mean_s * factor, save_s=5.0, restore_s=30.0)
    return SimulatedWorld(cloud, job)


def play(
    task: Problem, world: SimulatedWorld, options: ContinualOptions | None = None, until_s: float = 24 * HOUR
) -> tuple[list[Decision], Controller]:
    controller = Controller(task, TableSteps(OFFERS, LATENCIES), world.cloud, options=options)
    runtime = Runtime(controller, world.cloud, world, world, solve_s=1.0)
    decisions = []
    while world.now_s() < until_s:
        decisions.append(runtime.step())
        if decisions[-1].kind is DecisionKind.DONE:
            break
        world.wait_for_event(min(until_s, decisions[-1].next_step_s))
    return decisions, controller


def always(**counts: int) -> dict[str, StepCapacity]:
    return {name: StepCapacity([0.0], [count]) for name, count in counts.items()}


def kinds(decisions: Sequence[Decision]) -> list[str]:
    """Kinds in order, repeats left out."""
    seen: list[str] = []
    for decision in decisions:
        if not seen or seen[-1] != str(decision.kind):
            seen.append(str(decision.kind))
    return seen


def test_a_quiet_job_runs_on_the_cheapest_plan_to_its_end() -> None:
    world = world_of(always(spot=4, other=4, sure=4))
    decisions, _ = play(problem(), world)
    assert kinds(decisions) == ["launch", "wait", "run", "keep", "done"]
    assert str(decisions[0].recommendation.plan) == "1 x spot @ 64"
    assert world.job.finished_s == pytest.approx(7200 * (1 + 5 / 600) + 180, rel=0.02)
    assert not world.cloud.machines()


def test_a_preempted_job_goes_on_with_another_offer_and_comes_back_after_the_depletion() -> None:
    world = world_of({**always(other=4, sure=4), "spot": StepCapacity([0.0, 3000.0, 3600.0], [4, 0, 4])})
    decisions, _ = play(problem(), world)
    launched = [offer for d in decisions for offer, _ in d.recommendation.launch]
    assert launched[:2] == ["spot", "other"]
    assert world.job.finished_s is not None
    assert world.job.finished_s < 4 * HOUR


def test_idle_time_is_spent_waiting_for_cheap_capacity_and_no_more_than_the_deadline_leaves() -> None:
    soon = world_of({**always(other=0, sure=4), "spot": StepCapacity([0.0, 1800.0], [0, 4])})
    decisions, _ = play(problem(), soon)
    assert "idle" in kinds(decisions)
    assert {offer for d in decisions for offer, _ in d.recommendation.launch} == {"spot", "other"}
    assert soon.cloud.machine_hours.keys() == {"spot"}

    never = world_of(always(spot=0, other=0, sure=4))
    decisions, _ = play(problem(), never)
    assert never.cloud.machine_hours.keys() == {"sure"}
    assert never.job.finished_s is not None
    assert never.job.finished_s < 4 * HOUR
    assert min(d.at_s for d in decisions if ("sure", 1) in d.recommendation.launch) > HOUR


def test_the_job_leaves_spot_while_on_demand_machines_can_still_keep_the_deadline() -> None:
    # Twice as slow as estimated, and only one spot machine is ever to be had.
    world = world_of(always(spot=1, other=0, sure=4), factor=2.0)
    decisions, _ = play(problem(), world)
    leave = next(d for d in decisions if any(offer == "sure" for offer, _ in d.recommendation.launch))
    assert leave.recommendation.end == (), "the spot machine works on until the others are there"
    assert world.job.finished_s is not None
    assert world.job.finished_s <= 4 * HOUR


def test_a_storm_of_preemptions_does_not_cost_the_deadline() -> None:
    times = [600.0 * i for i in range(200)]
    flapping = StepCapacity(times, [4 * (i % 2) for i in range(200)])
    world = world_of({**always(sure=4), "spot": flapping, "other": flapping})
    play(problem(), world)
    assert world.job.finished_s is not None
    assert world.job.finished_s <= 4 * HOUR


def test_a_slow_job_is_not_moved_before_it_is_certain_that_it_will_be_late() -> None:
    slight = world_of(always(spot=0, other=0, sure=4), factor=1.0)
    task = problem(deadline_s=2.4 * HOUR)
    decisions, _ = play(task, slight, replace(ContinualOptions(), seek_better=False))
    assert kinds(decisions).count("launch") <= 3
    late = world_of(always(spot=0, other=0, sure=4), factor=1.6)
    decisions, _ = play(task, late, replace(ContinualOptions(), seek_better=False))
    moved = next(d for d in decisions if "misses the deadline" in d.recommendation.why)
    assert moved.kind is DecisionKind.LAUNCH
    assert late.job.finished_s is not None
    assert late.job.finished_s <= 2.4 * HOUR


def test_a_deadline_that_nothing_can_keep_is_said_at_once_and_the_job_goes_on() -> None:
    world = world_of(always(spot=4, other=4, sure=4))
    decisions, _ = play(problem(deadline_s=600.0), world)
    assert decisions[0].recommendation.at_risk
    assert "no plan keeps" in decisions[0].recommendation.why
    assert world.job.finished_s is not None
    assert world.job.finished_s < 2.5 * HOUR, "it runs on the fastest there is"


@pytest.mark.parametrize("fitting", [True, False])
def test_a_deadline_that_a_plan_on_demand_keeps_is_never_said_to_be_lost(fitting: bool) -> None:
    """The cheapest one that may keep it does not if its machine boots slowly; faster ones do."""
    offers = [MachineOffer("tight", "A", 1, 1, 1.6, largest_batch=64), MachineOffer("fast", "C", 1, 1, 9.0)]
    if fitting:
        offers.append(MachineOffer("fitting", "B", 1, 1, 2.0, largest_batch=64))
    steps = TableSteps(offers, {("tight", 64): 8.7, ("fitting", 64): 8.0, ("fast", 64): 5.0})
    task = Problem(64, 720, offers, Objective.COST, deadline_s=3970.0, batch_sizes=(64,))
    controller = Controller(task, steps, ReportedCloud())
    controller.observe(50.0, 360.0)
    found = controller.step(100.0).recommendation
    assert str(found.plan) == f"1 x {'fitting' if fitting else 'fast'} @ 64"
    assert not found.at_risk
    assert "no plan" not in found.why


def test_the_time_to_restore_a_job_does_not_count_as_its_rate() -> None:
    world = world_of(always(spot=4, other=4, sure=4))
    decisions, _ = play(problem(), world)
    rates = [d.recommendation.projection.high_s for d in decisions if d.kind is DecisionKind.KEEP]  # type: ignore[union-attr]
    assert max(rates[4:]) < 1.05 * world.job.finished_s, "no projection is far off at any time"  # type: ignore[operator]


def test_a_job_that_never_gets_going_is_noticed() -> None:
    world = world_of(always(spot=4, other=4, sure=4), factor=1e9)
    decisions, _ = play(problem(deadline_s=2.5 * HOUR), world, until_s=2 * HOUR)
    risky = [d for d in decisions if "misses the deadline" in d.recommendation.why]
    assert risky
    assert risky[0].at_s < HOUR


def test_a_cloud_that_never_launches_is_given_up_on_and_asked_again_without_end_of_work() -> None:
    world = world_of(always(spot=4, other=4, sure=4), launch_s=lambda _: math.inf)
    decisions, controller = play(problem(), world, until_s=6 * HOUR)
    assert world.job.finished_s is None
    assert decisions[-1].kind is not DecisionKind.DONE
    assert len(decisions) < 6 * HOUR / 20
    assert controller.searches < 20 * len(decisions)
    assert len(world.cloud.machines()) <= 8, "what never boots is ended"


def test_a_cloud_without_any_capacity_is_no_plan_and_not_an_endless_search() -> None:
    world = world_of(always(spot=0, other=0, sure=0))
    decisions, _ = play(problem(), world, until_s=5 * HOUR)
    assert "no_plan" in kinds(decisions)
    assert decisions[-1].recommendation.at_risk
    assert len(decisions) < 1000


def test_without_a_deadline_cheap_capacity_is_waited_for_with_patience_only() -> None:
    world = world_of(always(spot=0, other=0, sure=4))
    decisions, _ = play(problem(deadline_s=None), world, ContinualOptions(patience_s=1800.0))
    first = min(d.at_s for d in decisions if ("sure", 1) in d.recommendation.launch)
    assert 1800 <= first <= 2000


def test_for_time_nothing_is_waited_for() -> None:
    world = world_of(always(spot=0, other=0, sure=4))
    decisions, _ = play(problem(objective=Objective.TIME, deadline_s=None), world)
    assert "idle" not in kinds(decisions)
    assert world.job.finished_s is not None
    assert world.job.finished_s < 0.4 * 7200


def test_a_budget_limits_the_plans() -> None:
    world = world_of(always(spot=0, other=0, sure=4))
    decisions, _ = play(problem(objective=Objective.TIME, deadline_s=None, budget_usd=6.4), world)
    first = next(d for d in decisions if any(offer == "sure" for offer, _ in d.recommendation.launch))
    assert str(first.recommendation.plan) == "1 x sure @ 64", "two machines would cost 6.60 USD"
    assert world.cloud.spent_usd < 6.4 * 1.02


def test_a_spent_budget_is_no_plan() -> None:
    world = world_of(always(spot=4, other=4, sure=4))
    decisions, _ = play(problem(budget_usd=0.01), world, until_s=HOUR)
    assert kinds(decisions) == ["no_plan"]
    assert world.cloud.spent_usd == 0


def test_a_deadline_that_spot_machines_alone_cannot_keep_gets_a_mixed_plan_whose_survivors_stay() -> None:
    # 2 h of work in 1.7 h: two machines, of which the spot market has one for half an hour.
    world = world_of({**always(other=0, sure=4), "spot": StepCapacity([0.0, 1800.0], [1, 0])})
    task = problem(deadline_s=1.7 * HOUR)
    decisions, _ = play(task, world)
    plans = [str(d.recommendation.plan) for d in decisions if d.kind is DecisionKind.RUN]
    assert plans[0] == "1 x spot @ 32 + 1 x sure @ 32"
    assert plans[-1] == "2 x sure @ 32"
    assert world.cloud.launched == 3, "the machine on demand is kept"
    assert world.job.finished_s is not None
    assert world.job.finished_s <= 1.7 * HOUR


class BrokenCloud(SimulatedCloud):
    """Its interface fails every second time."""

    calls = 0

    def launch(self, offer: str, machines: int) -> Sequence[str]:
        self.calls += 1
        if self.calls % 2:
            raise CloudError("503")
        return super().launch(offer, machines)

    def terminate(self, identifiers: Sequence[str]) -> None:
        self.calls += 1
        if self.calls % 2:
            raise CloudError("503")
        super().terminate(identifiers)


def test_a_cloud_whose_interface_fails_is_asked_again() -> None:
    prices = {offer.name: offer.usd_per_hour for offer in OFFERS}
    cloud = BrokenCloud(always(spot=4, other=4, sure=4), prices, lambda _: 150.0)
    steps = TableSteps(OFFERS, LATENCIES)
    world = SimulatedWorld(cloud, SimulatedJob(7200, lambda plan: steps.estimate(plan).mean_s, restore_s=30.0))
    controller = Controller(problem(), steps, cloud)
    Runtime(controller, cloud, world, world).run(5 * HOUR, poll_s=60.0)
    assert world.job.finished_s is not None
    assert world.job.finished_s <= 4 * HOUR
    assert not cloud.machines(), "what could not be ended at once was ended later"


def test_a_runtime_runs_a_job_to_its_end_by_itself() -> None:
    world = world_of(always(spot=4, other=4, sure=4), iterations=600)
    task = problem(600)
    controller = Controller(task, TableSteps(OFFERS, LATENCIES), world.cloud)
    heard: list[Decision] = []
    last = Runtime(controller, world.cloud, world, world).run(HOUR, poll_s=5.0, heard=heard.append)
    assert last.kind is DecisionKind.DONE
    assert heard[-1] is last
    assert not world.cloud.machines()
    never = world_of(always(spot=0, other=0, sure=0), iterations=600)
    controller = Controller(task, TableSteps(OFFERS, LATENCIES), never.cloud)
    last = Runtime(controller, never.cloud, never, never).run(HOUR, poll_s=60.0)
    assert last.kind is not DecisionKind.DONE
    assert never.now_s() == HOUR


class OddCloud(ReportedCloud):
    """Speaks of machines that nobody knows."""

    def notices(self) -> Sequence[Notice]:
        return [Notice(kind, f"ghost {kind}", "spot") for kind in NoticeKind] * 3

    def machines(self) -> Sequence[Machine]:
        return [Machine("stranger", "unheard of", ready=True), *super().machines()]


def test_news_of_unknown_machines_changes_nothing() -> None:
    controller = Controller(problem(), TableSteps(OFFERS, LATENCIES), OddCloud())
    decision = controller.step(0.0)
    assert str(decision.recommendation.plan) == "1 x spot @ 64"
    assert controller.fleet.spent_usd == 0.0
    assert "stranger" not in decision.terminate


def test_a_clock_that_goes_back_stands_still_and_one_that_shows_nothing_is_refused() -> None:
    cloud = ReportedCloud([Machine("m", "sure", ready=True)])
    controller = Controller(problem(), TableSteps(OFFERS, LATENCIES), cloud)
    controller.attach(Plan((Group("sure", 1, 64),)), ["m"])
    controller.step(1000.0)
    assert controller.step(10.0).at_s == 1000.0
    assert controller.fleet.spent_usd == 0.0
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite"):
            controller.step(bad)
    controller.step(1000.0 + HOUR)
    assert controller.fleet.spent_usd == pytest.approx(3.0)


def test_odd_progress_is_left_out() -> None:
    controller = Controller(problem(), TableSteps(OFFERS, LATENCIES), ReportedCloud())
    assert controller.observe(0.0, 0.0)
    for time_s, completed in ((1.0, math.nan), (math.nan, 5.0), (1.0, -3.0), (0.0, 5.0), (1.0, 1e300), (1.0, math.inf)):
        assert not controller.observe(time_s, completed)
    assert controller.step(1.0).kind is not DecisionKind.DONE, "one wild report does not end a job"
    controller.observe(10.0, 100.0)
    controller.observe(20.0, 40.0)
    assert controller.step(20.0).recommendation.remaining_iterations == 7160


def test_a_machine_that_vanishes_without_a_notice_is_a_preemption() -> None:
    cloud = ReportedCloud([Machine("m", "spot", ready=True)])
    controller = Controller(problem(), TableSteps(OFFERS, LATENCIES), cloud)
    controller.attach(Plan((Group("spot", 1, 64),)), ["m"])
    assert controller.step(0.0).kind is DecisionKind.KEEP
    cloud.report([])
    decision = controller.step(60.0)
    assert decision.kind is DecisionKind.LAUNCH
    assert decision.recommendation.launch == (("other", 1),)


def test_a_machine_that_was_to_end_and_is_kept_is_paid_for() -> None:
    cloud = ReportedCloud([Machine("sure/1", "sure", ready=True)])
    controller = Controller(problem(), TableSteps(OFFERS, LATENCIES), cloud)
    assert controller.step(0.0).terminate == ("sure/1",)
    controller.attach(Plan((Group("sure", 1, 64),)), ["sure/1"])
    controller.step(60.0)
    assert controller.step(60.0 + HOUR).recommendation.spent_usd == pytest.approx(SURE.usd_per_hour)


def test_progress_from_detected_epochs_projects_the_end_of_a_job_that_nobody_instrumented() -> None:
    cloud = ReportedCloud([Machine("m", "sure", ready=True)])
    task = problem(deadline_s=6 * HOUR)
    controller = Controller(replace(task, offers=(SURE,)), TableSteps(OFFERS, LATENCIES), cloud)
    controller.attach(Plan((Group("sure", 1, 64),)), ["m"])
    ends_s = [200.0 * epoch for epoch in range(1, 7)]
    controller.observe_epochs([math.nan, *reversed(ends_s)], iterations_per_epoch=100)
    recommendation = controller.step(1200.0).recommendation
    assert recommendation.remaining_iterations == 6600
    assert recommendation.projection is not None
    assert recommendation.projection.end_s == pytest.approx(1200 + 6600 * 2.0)


def test_a_price_that_rises_makes_the_job_move() -> None:
    cloud = ReportedCloud([Machine("m", "spot", ready=True)])
    controller = Controller(problem(), TableSteps(OFFERS, LATENCIES), cloud)
    controller.attach(Plan((Group("spot", 1, 64),)), ["m"])
    assert controller.step(0.0).kind is DecisionKind.KEEP
    controller.replace_offers([replace(SPOT, usd_per_hour=2.5), OTHER, SURE])
    decision = controller.step(60.0)
    assert decision.recommendation.launch == (("other", 1),)
    assert "instead of" in decision.recommendation.why
    with pytest.raises(ProblemError, match="names"):
        controller.replace_offers([SPOT, SURE])


def test_every_decision_says_why() -> None:
    world = world_of({**always(other=1, sure=4), "spot": StepCapacity([0.0, 2000.0, 9000.0], [2, 0, 2])}, factor=1.3)
    decisions, _ = play(problem(), world)
    assert all(len(d.recommendation.why) > 8 for d in decisions)
    assert all(d.next_step_s > d.at_s for d in decisions)


@pytest.mark.parametrize(
    "wrong",
    [{"launch_s": -1.0}, {"review_s": 0.0}, {"improvement": 0.9}, {"depletion_s": 0.0},
     {"launch_slowest_s": 1.0}, {"spread": math.nan}, {"window_s": math.inf}],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ProblemError):
        ContinualOptions(**wrong)  # type: ignore[arg-type]
