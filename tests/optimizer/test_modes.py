"""Accumulation, sharding and checkpointing: what fits, which plans they allow, and how a document says so."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest

from gpusonde.catalog import load_gpus, load_offers
from gpusonde.errors import DocumentError, ProblemError
from gpusonde.optimizer import Group, MachineOffer, Plan, Problem, Status, TableSteps, pareto, solve
from gpusonde.optimizer.documents.problem import parse_plan, parse_problem
from gpusonde.optimizer.documents.watching import pareto_plans, solve_problem, start_watch, take_report
from gpusonde.optimizer.problem import JobMemory
from gpusonde.optimizer.solution import check_plan
from gpusonde.simulator.iteration import Sharding, StepMode

GPUS, OFFERS = load_gpus(), load_offers()
FEW = {
    "format": "gpusonde.problem/1",
    "global_batch": 4096,
    "iterations": 1000,
    "job": {
        "gradients": {"parameter_bytes": 1e8},
        "curves": [
            {
                "device": "A10G",
                "largest_batch": 128,
                "probes": [{"batch_size": 32, "total_s": 0.09}, {"batch_size": 128, "total_s": 0.33}],
            }
        ],
    },
    "offers": [{"name": "g5", "device": "A10G", "quota": 4, "usd_per_hour": 1.0, "network_bytes_per_second": 1.25e9}],
}
STATE = {"weights_bytes": 4e9, "gradients_bytes": 4e9, "optimizer_bytes": 8e9}


def parse(**job):
    document = deepcopy(FEW)
    document["job"].update(job)
    return parse_problem(document, GPUS, OFFERS)


def answer(**job):
    found = parse(**job)
    return solve(found.problem, found.step_times(), explain=False)


def test_a_plan_without_accumulation_says_what_that_would_save() -> None:
    """So a looser deadline, which a dear machine keeps without it, made the job dearer without a word."""
    document = deepcopy(FEW) | {"global_batch": 512}
    dear = {**document["offers"][0], "name": "dear", "devices": 4, "quota": 1, "usd_per_hour": 40.0}
    document["offers"] = [{**document["offers"][0], "quota": 1}, dear]
    least = solve_problem(parse_problem(document, GPUS, OFFERS))
    assert [group["offer"] for group in least["plan"]["groups"]] == ["dear"]
    assert least["binding"][0] == "accumulation_steps"
    (told,) = least["relaxations"]
    assert told["words"].startswith("accumulation_steps up to 4: ")
    document["job"]["accumulation_steps"] = 4
    saved = solve_problem(parse_problem(document, GPUS, OFFERS))
    assert (told["plan"], told["cost_usd"]) == (saved["plan"], saved["estimate"]["cost_usd"])
    assert saved["estimate"]["cost_usd"] < 0.2 * least["estimate"]["cost_usd"]
    del document["job"]["accumulation_steps"]
    assert "accumulation_steps takes them in" in pareto_plans(parse_problem(document, GPUS, OFFERS))["notes"][-1]
    few = pareto_plans(parse_problem(deepcopy(FEW), GPUS, OFFERS))
    assert few["notes"][-1] == "Without gradient accumulation there is none."


def test_a_batch_too_large_for_the_gpus_is_accumulated_and_said_so() -> None:
    found = answer()
    assert found.status is Status.OPTIMAL
    assert found.plan is not None
    assert found.plan.mode.accumulation_steps * 128 * found.plan.machines == 4096
    assert found.why.endswith("Without gradient accumulation there is none.")
    front = pareto(parse().problem, parse().step_times())
    assert {point.plan.machines for point in front.points} == {1, 2, 4}


def test_a_batch_that_only_accumulation_reaches_is_late_with_it_and_not_said_to_be_none() -> None:
    document = {**deepcopy(FEW), "deadline_s": 600.0}
    found = parse_problem(document, GPUS, OFFERS)
    solution = solve(found.problem, found.step_times(), explain=False)
    assert solution.status is Status.INFEASIBLE
    assert solution.nearest is not None
    assert (solution.nearest.global_batch, solution.nearest.plan.mode.accumulation_steps) == (4096, 8)
    assert "cannot share out" not in solution.why
    late = parse_problem({**document, "global_batch": 512, "deadline_s": 60.0}, GPUS, OFFERS)
    plain = solve(late.problem, late.step_times(), explain=False)
    assert plain.nearest.plan.mode.accumulation_steps == 1
    # With one cheap GPU only accumulation comes near to the budget.
    dear = [{**document["offers"][0], "quota": 1}, {**document["offers"][0], "name": "dear", "usd_per_hour": 40.0}]
    poor = parse_problem(
        {**document, "global_batch": 512, "deadline_s": 2000.0, "budget_usd": 0.1, "offers": dear}, GPUS, OFFERS
    )
    near = solve(poor.problem, poor.step_times(), explain=False)
    assert near.status is Status.INFEASIBLE
    assert [group.offer for group in near.nearest.plan.groups] == ["g5"]
    assert near.nearest.plan.mode.accumulation_steps == 4


def test_a_job_that_cannot_accumulate_says_so() -> None:
    assert answer(accumulation_steps=1).status is Status.INFEASIBLE
    assert answer(accumulation_steps=4).status is Status.INFEASIBLE
    assert answer(accumulation_steps=8).plan == Plan((Group("g5", 4, 128),), StepMode(8))


def test_sharded_state_fits_once_there_are_enough_gpus() -> None:
    memory = JobMemory(weights_bytes=4e9, gradients_bytes=4e9, optimizer_bytes=8e9, activation_bytes=1e8)
    offer = MachineOffer("g", "any", 1, 8, 1.0, memory_bytes=16e9)
    # Usable are 0.95 * 16e9 less 0.5 GiB: 14.66e9; a batch of 50 leaves 9.66e9, less than the state of 16e9.
    assert memory.least_devices(offer, 50, StepMode()) == 0
    assert memory.least_devices(offer, 50, StepMode(1, Sharding.ZERO2)) == 3  # (9.66 - 4) * 3 > 12
    # Nothing says that weights are gathered in parts, so that they are there whole.
    assert memory.least_devices(offer, 50, StepMode(1, Sharding.ZERO3)) == 3  # (9.66 - 4) * 3 > 16
    parts = replace(memory, unit_bytes=5e8)
    assert parts.least_devices(offer, 50, StepMode(1, Sharding.ZERO3)) == 2  # (9.66 - 1) * 2 > 16
    assert replace(memory, checkpointed_bytes=1e7).least_devices(offer, 50, StepMode(checkpointing=True)) == 0


def test_what_fits_is_taken_from_the_largest_batch_that_was_measured() -> None:
    memory = JobMemory(weights_bytes=1e9, gradients_bytes=1e9, optimizer_bytes=2e9)
    offer = MachineOffer("g", "any", 1, 8, 1.0, memory_bytes=16e9, largest_batch=100)
    sample = memory.sample_bytes(offer, StepMode(1, Sharding.ZERO2))
    assert sample == pytest.approx((0.95 * 16e9 - 2**29 - 4e9) / 100)
    sharded = StepMode(1, Sharding.ZERO2)
    assert memory.least_devices(offer, 100, sharded) == 1
    assert memory.least_devices(offer, 120, sharded) == 4


def test_a_model_too_large_for_any_gpu_is_sharded() -> None:
    small = {"largest_batch": None}
    curve = [FEW["job"]["curves"][0] | small]
    memory = STATE | {"weights_bytes": 12e9, "activation_bytes": 1e8, "unit_bytes": 4e8}
    alone = answer(curves=curve, memory=memory, accumulation_steps=64)
    assert alone.status is Status.INFEASIBLE
    found = answer(curves=curve, memory=memory, sharding=["none", "zero3"], accumulation_steps=64)
    assert found.plan is not None
    assert found.plan.mode.sharding is Sharding.ZERO3
    assert found.plan.machines > 1


def test_a_given_plan_in_a_mode_is_checked() -> None:
    problem = parse().problem
    groups = [{"offer": "g5", "machines": 4, "batch_size": 128}]
    plan = parse_plan({"groups": groups, "mode": {"accumulation_steps": 8}}, problem, "plan")
    check_plan(problem, plan)
    with pytest.raises(ProblemError, match="512 samples per iteration"):
        check_plan(problem, replace(plan, mode=StepMode()))
    with pytest.raises(ProblemError, match="does not run iterations with 8 micro-batches, zero2"):
        check_plan(problem, replace(plan, mode=StepMode(8, Sharding.ZERO2)))


def test_when_machines_go_the_rest_accumulates_more() -> None:
    document = deepcopy(FEW)
    document["offers"][0] |= {"billing": "spot", "preemptions_per_hour": 0.1}
    document["objective"] = "time"
    watch = start_watch(parse_problem(document, GPUS, OFFERS), {})
    first = watch.recommend(0.0)["plan"]
    take_report(watch, {"elapsed_s": 0.0, "plan": first})
    take_report(watch, {"elapsed_s": 200.0, "completed_iterations": 0.0})
    take_report(watch, {"elapsed_s": 260.0, "completed_iterations": 20.0})
    left, gone = ([{"offer": "g5", "machines": machines}] for machines in (1, 3))
    take_report(watch, {"elapsed_s": 300.0, "machines": left, "preempted": gone})
    after = watch.recommend(301.0)
    assert first["groups"][0]["machines"] * first["mode"]["accumulation_steps"] * 128 == 4096
    (group,) = after["plan"]["groups"]
    assert group["machines"] == 1
    assert after["plan"]["mode"]["accumulation_steps"] == 32
    assert not after["launch"]


@pytest.mark.parametrize(
    ("job", "field", "words"),
    [
        ({"accumulation_steps": 0}, "job.accumulation_steps", "1 to 1,024"),
        ({"sharding": ["zero1"]}, "job.sharding[0]", "zero2 or zero3"),
        ({"sharding": []}, "job.sharding", "at least 1"),
        ({"sharding": ["zero3"]}, "job.memory", "give weights_bytes, gradients_bytes, optimizer_bytes"),
        ({"checkpointing": True}, "job.memory", "give weights_bytes"),
        ({"checkpointing": True, "memory": STATE}, "job.memory.checkpointed_bytes", "is missing"),
        ({"memory": STATE | {"weights_bytes": 0}}, "job.memory.weights_bytes", "above 0"),
    ],
)
def test_what_cannot_be_is_refused_with_its_key(job, field, words) -> None:
    with pytest.raises(DocumentError, match=words) as error:
        parse(**job)
    assert error.value.field == field


def test_a_gpu_without_known_memory_is_refused() -> None:
    document = deepcopy(FEW)
    document["job"]["memory"] = STATE
    document["job"]["curves"][0]["device"] = document["offers"][0]["device"] = "abacus"
    with pytest.raises(DocumentError, match="give memory_bytes; the catalogue has no such GPU"):
        parse_problem(document, GPUS, OFFERS)


def test_a_table_of_latencies_knows_accumulation_only() -> None:
    offer = MachineOffer("g", "any", 1, 2, 1.0, largest_batch=8)
    steps = TableSteps((offer,), {("g", 8): 1.0})
    problem = Problem(32, 10, (offer,), batch_sizes=(8,), modes=(StepMode(), StepMode(2)))
    found = solve(problem, steps)
    assert found.plan == Plan((Group("g", 2, 8),), StepMode(2))
    assert found.estimate is not None
    assert found.estimate.time_s == pytest.approx(20.0)
    with pytest.raises(ProblemError, match="neither sharding nor checkpointing"):
        solve(replace(problem, modes=(StepMode(1, Sharding.ZERO2),)), steps)
