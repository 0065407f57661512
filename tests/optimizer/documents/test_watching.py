"""Watches: epochs as progress, machines that come and go by somebody else's hand."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.problem_documents import probes, small_problem

from gpusonde.catalog import load_gpus, load_offers
from gpusonde.errors import DocumentError
from gpusonde.optimizer.continual import ContinualOptions
from gpusonde.optimizer.documents.problem import parse_plan, parse_problem
from gpusonde.optimizer.documents.watching import estimate_plan as estimate_given
from gpusonde.optimizer.documents.watching import read_reports, solve_problem, start_watch, take_report

GPUS = load_gpus()
OFFERS = load_offers(gpus=GPUS)

PLAN = {"groups": [{"offer": "t4", "machines": 4, "batch_size": 64}]}


def watch(start=None, **changes):
    gpus = load_gpus()
    document = parse_problem(small_problem(**changes), gpus, load_offers(gpus=gpus))
    return start_watch(document, {"plan": PLAN} if start is None else start)


def test_epochs_are_progress_and_corrected_ones_replace_those_before():
    job = watch(samples_per_epoch=256 * 100)
    take_report(job, {"epoch_ends_s": [25.0, 50.0, 75.0, 100.0]})
    found = job.recommend(101.0)
    assert found["completed_iterations"] == 400
    assert found["throughput"]["mean"] == pytest.approx(4.0)
    take_report(job, {"epoch_ends_s": [50.0, 100.0]})
    assert job.recommend(102.0)["completed_iterations"] == 200


def test_epochs_count_on_from_what_was_done_before_their_run():
    job = watch({"plan": PLAN, "completed_iterations": 5000.0, "elapsed_s": 1200.0}, samples_per_epoch=256 * 100)
    take_report(job, {"epoch_ends_s": [1225.0, 1250.0], "older_epochs": 3})
    assert job.recommend(1251.0)["completed_iterations"] == 5500


def test_epochs_say_nothing_without_their_size():
    with pytest.raises(DocumentError, match="samples_per_epoch"):
        take_report(watch(), {"epoch_ends_s": [25.0]})


def test_a_run_that_ended_early_is_told_and_its_machines_are_used_until_they_are_reported_gone():
    job = watch(samples_per_epoch=256 * 100)
    job.recommend(0.0)
    take_report(job, {"epoch_ends_s": [25.0, 50.0, 75.0, 100.0], "run_ended_s": 110.0})
    found = job.recommend(300.0)
    assert found["why"].startswith("the run ended after 110 s with 4 of 200 epochs seen; ")
    assert (found["kind"], found["launch"], found["plan"]["groups"]) == ("run", [], PLAN["groups"])
    assert found["completed_iterations"] == 400
    # Two dollars per hour, whether they train or not.
    assert found["spent_usd"] == pytest.approx(2.0 * 300 / 3600)
    assert found["projection"]["end_s"] > 300 + 19_600 * 0.2
    again = [job.recommend(now_s) for now_s in (301.0, 400.0)]
    assert {(row["kind"], row["why"]) for row in again} == {("run", found["why"])}
    take_report(job, {"elapsed_s": 330.0})
    found = job.recommend(330.0)
    assert (found["kind"], found["launch"]) == ("launch", [{"offer": "t4", "machines": 4}])
    assert "ended" not in found["why"]


def test_the_end_of_a_run_that_did_all_is_the_end_of_the_job():
    job = watch(samples_per_epoch=256 * 10_000)
    take_report(job, {"epoch_ends_s": [2500.0, 5000.0], "run_ended_s": 5001.0})
    found = job.recommend(5002.0)
    assert (found["kind"], found["end"]) == ("done", [{"offer": "t4", "machines": 4}])
    assert "ended" not in found["why"]


def test_what_is_spent_goes_on_while_a_launch_stands():
    job = watch({"spent_usd": 1.0})
    take_report(job, {"elapsed_s": 0.0, "machines": [{"offer": "t4", "machines": 2}]})
    found = [job.recommend(now_s) for now_s in (0.0, 5.0, 10.0, 300.0)]
    assert {row["kind"] for row in found} == {"launch"}
    assert [row["spent_usd"] for row in found] == pytest.approx([1.0 + row["at_s"] / 3600 for row in found])


def test_machines_that_their_owner_ended_are_no_preemption():
    job = watch()
    job.recommend(0.0)
    take_report(job, {"elapsed_s": 60.0, "completed_iterations": 250.0})
    other = {"groups": [{"offer": "v100", "machines": 2, "batch_size": 128}]}
    take_report(job, {"elapsed_s": 90.0, "plan": other})
    assert job.recommend(90.0)["plan"]["groups"] == other["groups"]
    take_report(job, {"elapsed_s": 120.0})
    found = job.recommend(120.0)
    # All t4 could still be had: none of them was taken away.
    assert found["launch"] == [{"offer": "t4", "machines": 4}]


def test_machines_that_were_taken_away_and_refused_are_left_out_for_a_while():
    job = watch()
    job.recommend(0.0)
    take_report(job, {"elapsed_s": 60.0, "preempted": [{"offer": "t4", "machines": 4}]})
    assert {row["offer"] for row in job.recommend(60.0)["launch"]} == {"v100"}
    take_report(job, {"elapsed_s": 90.0, "refused": [{"offer": "v100", "machines": 2}]})
    assert job.recommend(90.0)["kind"] in ("idle", "no_plan")


@pytest.mark.parametrize(
    ("report", "field"),
    [
        ({}, "elapsed_s"),
        ({"elapsed_s": 1.0, "completed": 1}, "completed"),
        ({"elapsed_s": 1.0, "preempted": [{"offer": "t4"}]}, "preempted[0].machines"),
        ({"elapsed_s": 1.0, "plan": {"groups": []}}, "plan.groups"),
        ({"epoch_ends_s": [1.0] * 513}, "epoch_ends_s"),
    ],
)
def test_reports_that_cannot_be_are_refused(report, field):
    with pytest.raises(DocumentError) as error:
        take_report(watch(), report)
    assert error.value.field == field


def test_reports_are_read_line_by_line():
    found = read_reports(['{"elapsed_s": 1, "completed_iterations": 2}\n', "\n", '{"elapsed_s": 2, "plan": null}'], "f")
    assert [row["elapsed_s"] for row in found] == [1, 2]
    with pytest.raises(DocumentError, match="f:1: "):
        list(read_reports(["nothing\n"], "f"))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    objective=st.sampled_from(["cost", "time"]),
    confidence=st.sampled_from([0.5, 0.8, 0.95, 0.99]),
    iterations=st.integers(1_000, 3_000_000),
    overhead_s=st.sampled_from([0.0, 60.0, 180.0, 600.0]),
    to_spare=st.floats(-4.0, 0.3).map(lambda power: 10**power),
    quotas=st.tuples(*[st.integers(1, 4)] * 3),
    spot_share=st.none() | st.floats(0.2, 0.9),
    per_hour=st.floats(0.01, 5.0),
)
def test_solve_and_monitor_say_the_same_of_the_same_file_at_the_job_s_start(
    objective, confidence, iterations, overhead_s, to_spare, quotas, spot_share, per_hour
):
    changes = {"objective": objective, "confidence": confidence, "batch_sizes": [32, 64], "global_batch": 64}
    offers = [
        {"name": "t4", "device": "T4", "quota": quotas[0], "usd_per_hour": 0.5, "fabric": "slow"},
        {"name": "v100", "device": "V100-SXM2-16GB", "quota": quotas[1], "usd_per_hour": 2.5, "fabric": "fast"},
    ]
    if spot_share is not None:
        # Of longer work nothing would be left between two preemptions.
        per_hour = min(per_hour, 500_000 / iterations)
        offers += [{**offers[0], "name": "t4 spot", "quota": quotas[2], "usd_per_hour": 0.5 * spot_share,
                    "billing": "spot", "preemptions_per_hour": per_hour}]  # fmt: skip
    asked = small_problem(**changes, offers=offers, iterations=iterations, overhead_s=overhead_s, deadline_s=1e9)
    document = parse_problem(asked, GPUS, OFFERS)
    kept_s = solve_problem(document)["estimate"]["time_at_confidence_s"]
    document = replace(document, problem=replace(document.problem, deadline_s=kept_s * (1 + to_spare)))
    solved, found = solve_problem(document), start_watch(document, {}).recommend(0.0)
    assert (found["plan"], found["at_risk"]) == (solved["plan"], False)
    assert found["expected_usd"] == solved["estimate"]["cost_usd"]
    assert found["projection"]["end_s"] == solved["estimate"]["time_s"]
    assert found["projection"]["high_s"] == solved["estimate"]["time_at_confidence_s"]


def test_where_no_plan_keeps_the_deadline_monitor_names_the_one_that_solve_says_comes_nearest():
    """On average the V100 is faster, but nobody knows how fast it is."""
    epoch = {"batch_size": 256, "samples_per_epoch": 256_000, "interval_coverage": 0.9}
    doubtful = {**epoch, "epoch_latency_s": 650.0, "epoch_latency_low_s": 250.0, "epoch_latency_high_s": 1700.0}
    document = small_problem(global_batch=256, batch_sizes=[256], deadline_s=10_000.0)
    document["job"]["curves"] = [
        {"device": "T4", "largest_batch": 256, "probes": probes(0.003)},
        {"device": "V100-SXM2-16GB", "largest_batch": 256, "epochs": [doubtful]},
        {"device": "K80", "largest_batch": 256, "probes": probes(0.012)},
    ]
    document["offers"] = [
        {"name": name, "device": device, "quota": 1, "usd_per_hour": usd}
        for name, device, usd in (("t4", "T4", 0.5), ("v100", "V100-SXM2-16GB", 2.5), ("k80", "K80", 0.4))
    ]
    posed = parse_problem(document, GPUS, OFFERS)
    solved = solve_problem(posed)["nearest"]
    nearest, estimate = solved["plan"], solved["estimate"]
    assert nearest["groups"][0]["offer"] == "t4"
    found = start_watch(posed, {}).recommend(0.0)
    assert (found["plan"], found["at_risk"]) == (nearest, True)
    said = (found["expected_usd"], found["projection"]["end_s"], found["projection"]["high_s"])
    assert said == (estimate["cost_usd"], estimate["time_s"], estimate["time_at_confidence_s"])
    slow = start_watch(posed, {"plan": {"groups": [{"offer": "k80", "machines": 1, "batch_size": 256}]}})
    for now_s in range(0, 1260, 60):
        take_report(slow, {"elapsed_s": now_s, "completed_iterations": now_s / 3.1})
    found = slow.recommend(1260.0)
    assert (found["plan"], found["at_risk"]) == (nearest, True)
    assert found["why"].endswith("no plan keeps it with confidence, 1 x t4 @ 256 comes nearest")


def test_spot_machines_that_nothing_guards_are_at_risk_where_solve_says_no_plan_keeps_the_limits():
    """On average they end in time; with preemptions counted that is not sure enough."""
    spot = {"name": "spot", "device": "T4", "quota": 1, "fabric": "slow", "usd_per_hour": 0.15, "billing": "spot"}
    changes = {"batch_sizes": [64], "global_batch": 64, "iterations": 100_000, "overhead_s": 180.0}
    asked = small_problem(offers=[{**spot, "preemptions_per_hour": 0.5}], **changes, deadline_s=1e9)
    document = parse_problem(asked, GPUS, OFFERS)
    estimate = solve_problem(document)["estimate"]
    mean_s, kept_s = estimate["time_s"], estimate["time_at_confidence_s"]
    late = replace(document, problem=replace(document.problem, deadline_s=(mean_s + 3 * kept_s) / 4))
    dear = replace(document, problem=replace(document.problem, budget_usd=0.99 * estimate["cost_usd"]))
    for posed in (late, dear):
        solved, found = solve_problem(posed), start_watch(posed, {}).recommend(0.0)
        assert solved["status"] == "infeasible"
        assert (found["plan"], found["at_risk"]) == (solved["nearest"]["plan"], True)
    assert start_watch(late, {"plan": solved["nearest"]["plan"]}).recommend(0.0)["at_risk"]
    safe = replace(document, problem=replace(document.problem, deadline_s=1.1 * kept_s))
    assert not start_watch(safe, {}).recommend(0.0)["at_risk"]


def test_spot_machines_of_a_job_too_short_to_turn_to_others_are_used_as_planned():
    """Half an hour of work; on demand would be started anew for 20 minutes if a machine went: solve reckons with it."""
    slow = {"device": "T4", "quota": 1, "fabric": "slow"}
    offers = [
        {**slow, "name": "spot", "usd_per_hour": 0.15, "billing": "spot", "preemptions_per_hour": 0.05},
        {**slow, "name": "sure", "usd_per_hour": 0.5},
    ]
    changes = {"batch_sizes": [64], "global_batch": 64, "iterations": 8000, "deadline_s": 2900.0, "overhead_s": 600.0}
    document = parse_problem(small_problem(offers=offers, **changes), GPUS, OFFERS)
    planned, job = solve_problem(document), start_watch(document, {})
    ordered = job.recommend(0.0)
    assert ordered["plan"] == planned["plan"]
    assert (ordered["launch"], ordered["fallback"]) == ([{"offer": "spot", "machines": 1}], None)
    assert job.recommend(90.0)["launch"] == ordered["launch"]
    take_report(job, {"elapsed_s": 600.0, "plan": ordered["plan"]})
    for now_s in range(660, 2200, 60):
        take_report(job, {"elapsed_s": now_s, "completed_iterations": (now_s - 600) * 5.0})
        assert (found := job.recommend(float(now_s)))["kind"] == "keep", (now_s, found["why"])
        assert found["plan"] == ordered["plan"]
    take_report(job, {"elapsed_s": 2200.0, "preempted": [{"offer": "spot", "machines": 1}]})
    assert job.recommend(2200.0)["launch"] == [{"offer": "sure", "machines": 1}]


def test_what_a_change_of_machines_takes_comes_from_the_file():
    def options(**changes):
        return parse_problem(small_problem(**changes), GPUS, load_offers(gpus=GPUS)).options

    assert options() == ContinualOptions()
    given = options(continual={"launch_s": 600, "restore_s": 60, "save_s": 90, "window_s": 900, "improvement": 1.5})
    assert (given.launch_s, given.launch_slowest_s, given.restore_s, given.save_s) == (600, 1200, 60, 90)
    assert (given.window_s, given.improvement) == (900, 1.5)
    assert options(overhead_s=330.0).launch_s == 300.0
    with pytest.raises(DocumentError, match=r"continual\.improvement"):
        options(continual={"improvement": 0.9})


def test_spot_machines_are_told_which_costs_of_a_preemption_are_assumed():
    document = small_problem(deadline_s=36_000.0)
    document["offers"][0] |= {"billing": "spot", "preemptions_per_hour": 0.1, "usd_per_hour": 0.2}

    def parsed():
        return parse_problem(document, GPUS, load_offers(gpus=GPUS))

    assert any("save_s" in note and "[continual]" in note for note in parsed().notes)
    cheap = solve_problem(parsed())
    assert cheap["estimate"]["preemptions"] > 0
    assert cheap["estimate"]["checkpoint_interval_s"] > 0
    document["continual"] = {"save_s": 60, "launch_s": 900}
    assert not any("[continual]" in note for note in parsed().notes)
    assert (parsed().problem.save_s, parsed().problem.restart_s) == (60, 937)
    plan = parse_plan(cheap["plan"], parsed().problem, "plan")
    assert estimate_given(parsed(), plan)["estimate"]["time_s"] > cheap["estimate"]["time_s"]
