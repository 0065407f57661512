"""The seed's time line (Srifty, figure 8) in simulated time."""

from __future__ import annotations

import pytest

from gpusonde.optimizer import Billing, Objective, Offer, Plan, Problem, TableSteps
from gpusonde.optimizer.continual import ContinualOptions, Controller, Decision, DecisionKind, Runtime
from gpusonde.optimizer.continual.simulated import SimulatedCloud, SimulatedJob, SimulatedWorld, StepCapacity
from gpusonde.optimizer.search.brute_force import brute_force

# ResNet50, batch 1,024 on machines with 4, 2 and 1 GPU; "512 on a p3.8xl" is 128 on each of its GPUs.
OFFERS = (
    Offer("p3.8xl", "V100", 4, 2, 3.68, Billing.SPOT, largest_batch=128),
    Offer("g3.8xl", "M60", 2, 8, 0.69, Billing.SPOT, largest_batch=32),
    Offer("g4dn.8xl", "T4", 1, 8, 0.72, Billing.SPOT, largest_batch=128),
)
# Iterations as projected by the seed: 152 s / 400 on two p3, 101 s / 200 with g3, 0.58 and 1.1 s in its case study 1.
PROJECTED_S = {
    ("p3.8xl", 128): 152 / 400,
    ("g3.8xl", 32): 101 / 200,
    ("g4dn.8xl", 64): 0.58,
    ("g4dn.8xl", 128): 1.1,
}
PROBLEM = Problem(1024, 400, OFFERS, Objective.COST, deadline_s=500.0, batch_sizes=(32, 64, 128))


def play(options: ContinualOptions) -> tuple[list[tuple[float, Decision]], SimulatedWorld]:
    """Play the figure: boots take 138 and 95 s, one p3 goes at 222, iterations take 84 s / 200 and 96 s / 200."""
    boots = {"p3.8xl": 138.0, "g3.8xl": 95.0}
    capacity = {
        "p3.8xl": StepCapacity([0.0, 222.0], [2, 1]),
        "g3.8xl": StepCapacity([0.0], [8]),
        "g4dn.8xl": StepCapacity([0.0], [8]),
    }
    prices = {offer.name: offer.usd_per_hour for offer in OFFERS}
    cloud = SimulatedCloud(capacity, prices, lambda offer: boots.get(offer, 95.0), detect_s=1.0, release_s=4.0)

    def true_step_s(plan: Plan) -> float:
        return 84 / 200 if plan.machines == 2 else 96 / 200

    job = SimulatedJob(400, true_step_s, survivors_hold_state=True)
    world = SimulatedWorld(cloud, job)
    controller = Controller(PROBLEM, TableSteps(OFFERS, PROJECTED_S), cloud, brute_force, options)
    runtime = Runtime(controller, cloud, world, world, solve_s=1.0)
    seen: list[tuple[float, Decision]] = []
    while world.now_s() < 1000:
        decision = runtime.step()
        seen.append((world.now_s(), decision))
        if decision.kind is DecisionKind.DONE:
            break
        world.wait_for_event(decision.next_step_s)
    return seen, world


def test_every_event_of_the_seeds_time_line_comes_within_a_second() -> None:
    seen, world = play(ContinualOptions.paper())
    events = {}
    for carried_out_s, decision in seen:
        kind = str(decision.kind)
        if kind in ("launch", "run", "done"):
            events[f"{kind} {sum(k.startswith(kind) for k in events) + 1}"] = (carried_out_s, decision)
        if kind == "wait" and "volume" in decision.recommendation.why:
            events.setdefault("noticed", (decision.at_s, decision))
    launch, again = events["launch 1"][1], events["launch 2"][1]

    assert str(launch.recommendation.plan) == "2 x p3.8xl @ 128"
    assert launch.at_s == 0
    assert launch.recommendation.projection is not None
    assert launch.recommendation.projection.end_s == pytest.approx(302, abs=1)
    assert events["run 1"][0] == pytest.approx(138, abs=1)
    assert events["noticed"][0] == pytest.approx(223, abs=1)
    assert again.at_s == pytest.approx(227, abs=1)
    assert str(again.recommendation.plan) == "8 x g3.8xl @ 32 + 1 x p3.8xl @ 128"
    assert again.recommendation.launch == (("g3.8xl", 8),), "the surviving p3 is kept"
    assert again.recommendation.end == ()
    assert again.recommendation.remaining_iterations == pytest.approx(200, abs=1)
    assert events["launch 2"][0] == pytest.approx(228, abs=1)
    assert again.recommendation.projection is not None
    assert again.recommendation.projection.end_s == pytest.approx(479, abs=1)
    assert events["run 2"][0] == pytest.approx(323, abs=1)
    assert world.job.finished_s == pytest.approx(419, abs=1)
    assert world.job.finished_s < 500
    assert not world.cloud.machines(), "nothing is paid for after the end"


def test_without_waiting_for_the_volume_the_same_job_ends_four_seconds_sooner() -> None:
    seen, world = play(ContinualOptions(restore_s=0.0, save_s=0.0))
    assert world.job.finished_s == pytest.approx(415, abs=1)
    plans = [str(d.recommendation.plan) for _, d in seen if d.kind is DecisionKind.LAUNCH]
    assert plans == ["2 x p3.8xl @ 128", "8 x g3.8xl @ 32 + 1 x p3.8xl @ 128"]


def test_the_seeds_rules_never_ask_for_a_depleted_offer_again() -> None:
    seen, _ = play(ContinualOptions.paper())
    asked = [offer for at_s, d in seen for offer, _ in d.recommendation.launch if at_s > 222]
    assert asked == ["g3.8xl"]
