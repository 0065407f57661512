"""The trees of the hosts of a job become one: what they agree on, what they do not, and who does otherwise."""

from dataclasses import replace

import pytest

from gpusonde.collector.query.job_tree import JobTree, TreePart
from gpusonde.collector.storage.model import CycleRow, CycleTree, DeviationRow, RunRow

START = 1_700_000_000_000_000_000


def level(period_s, confidence=0.9, role="unknown", role_confidence=0.0, half=0.01, count=20, late_s=0.0, **more):
    low_s, high_s = period_s * (1 - half), period_s * (1 + half)
    starts = tuple(START + round((i * period_s + late_s) * 1e9) for i in range(min(count, 64)))
    fields = {"parent": None, "confirmed": True} | more
    return CycleRow(
        period_s, low_s, high_s, count, confidence, role, role_confidence, starts_unix_nano=starts, **fields
    )


def part(agent, *levels, told=None, start_s=0.0, length_s=1000.0, ended=False, state="training", gpus=()):
    period_s = levels[told].period_s if told is not None else float("nan")
    start = START + round(start_s * 1e9)
    run = RunRow(
        f"run-{agent}", agent, f"GPU-{agent}", "job-1", 1, ended, "", start, start + round(length_s * 1e9),
        1, 1, 1, 1, 1000, 0, "epochs" if told is not None else "none", "", period_s,
    )  # fmt: skip
    deviations = tuple(DeviationRow(gpu, "idle", 0.0) for gpu in gpus)
    return TreePart(run, CycleTree(tuple(levels), told, deviations, state, 0.9 if state else 0.0))


def periods(job):
    return [round(cycle.period_s, 2) for cycle in job.tree.cycles]


def test_what_the_hosts_agree_on_is_told_in_the_name_of_the_first_to_begin():
    one = part("b", level(4.0, role="step", role_confidence=0.8), level(36.2, 0.8, half=0.02, count=12), told=1)
    two = part(
        "a", level(4.02), level(36.0, 0.9, "epoch", 0.7, half=0.005, count=9), told=1, start_s=3.0, gpus=["GPU-x"]
    )
    job = JobTree.of([two, one])
    assert job.agent_id == "b"
    step, epoch = job.tree.cycles
    assert periods(job) == [4.01, 36.01]
    assert 35.8 < epoch.period_low_s < epoch.period_s < epoch.period_high_s < 36.4
    assert (epoch.role, step.role) == ("epoch", "step")
    assert (epoch.count, epoch.starts_unix_nano) == (12, one.tree.cycles[1].starts_unix_nano)
    assert 0.8 < epoch.confidence < 0.9
    assert job.tree.level == 1
    assert (step.parent, epoch.parent) == (1, None)
    assert job.tree.deviations == (DeviationRow("GPU-x", "idle", 0.0),)
    assert job.tree.run_state == "training"
    assert job.host_deviations == ()


def test_whoever_asks_and_in_whatever_order_the_answer_is_the_same():
    parts = [
        part("a", level(4.0), level(36.0, 0.7), told=1, start_s=9.0),
        part("b", level(4.1, 0.6), level(37.0), level(110.0, 0.4), told=1, start_s=5.0),
        part("c", level(9.0, 0.5), level(35.5), told=0, start_s=7.0),
    ]
    answers = [JobTree.of(order) for order in (parts, parts[::-1], [parts[1], parts[0], parts[2]])]
    assert answers[0] == answers[1] == answers[2]


def test_roles_that_disagree_are_less_sure_or_unknown():
    epoch, evaluation = (("epoch", 0.9), ("evaluation", 0.9))
    alike = JobTree.of([part("a", level(36.0, 0.9, *epoch)), part("b", level(36.0, 0.9, *epoch))])
    split = JobTree.of([part("a", level(36.0, 0.9, *epoch)), part("b", level(36.0, 0.9, *evaluation))])
    most = JobTree.of([part(name, level(36.0, 0.9, *(evaluation if name == "c" else epoch))) for name in "abcd"])
    silent = JobTree.of([part("a", level(36.0, 0.9, *epoch)), part("b", level(36.0))])
    assert (alike.tree.cycles[0].role, alike.tree.cycles[0].role_confidence) == ("epoch", pytest.approx(0.9))
    assert (split.tree.cycles[0].role, split.tree.cycles[0].role_confidence) == ("unknown", 0.0)
    assert most.tree.cycles[0].role == "epoch"
    assert 0.5 < most.tree.cycles[0].role_confidence < 0.9
    assert (silent.tree.cycles[0].role, silent.tree.cycles[0].role_confidence) == ("epoch", pytest.approx(0.9))


def test_a_level_that_one_of_many_hosts_has_is_left_out_and_one_that_was_too_young_does_not_count():
    others = [part(name, level(36.0), length_s=3000.0) for name in "bcdefgh"]
    seen = JobTree.of([part("a", level(36.0), level(144.0, 0.6)), *others])
    assert periods(seen) == [36.0]
    young = [part(name, level(36.0)) for name in "bcdefgh"]
    alone = JobTree.of([part("a", level(36.0), level(144.0, 0.6)), *young])
    assert periods(alone) == [36.0, 144.0]
    assert alone.tree.cycles[1].confidence == pytest.approx(0.6)


def test_levels_of_one_host_stay_apart_and_those_of_a_nest_are_not_mixed():
    job = JobTree.of([part("a", level(10.0), level(11.0)), part("b", level(10.2), level(20.5), level(41.0))])
    assert [round(cycle.period_s) for cycle in job.tree.cycles] == [10, 11, 20, 41]
    assert 10.0 < job.tree.cycles[0].period_s < 10.2
    many = JobTree.of([part("a", *(level(2.0**k) for k in range(5))), part("b", *(level(3.0**k) for k in range(1, 6)))])
    assert len(many.tree.cycles) == 5
    parents = [cycle.parent for cycle in many.tree.cycles]
    assert all(parent is None or parent > i for i, parent in enumerate(parents))


def test_hosts_that_do_otherwise_are_named():
    same = [part(name, level(4.0), level(36.0), told=1) for name in "ab"]
    slow = part("c", level(4.0), level(54.0), told=1)
    late = part("d", level(4.0, late_s=6.0), level(36.0, late_s=6.0), told=1)
    early = part("e", level(4.0), level(36.0, late_s=-0.5), told=1)
    blind = part("f", level(36.0), told=0)
    job = JobTree.of([*same, slow, late, early, blind])
    assert [(d.agent_id, d.kind, round(d.amount, 1)) for d in job.host_deviations] == [
        ("c", "period", 54.0),
        ("d", "lag", 6.0),
        ("f", "missing", 4.0),
    ]


def test_a_host_that_reads_another_moment_as_the_beginning_of_one_level_is_not_behind():
    parts = [
        part("a", level(4.0), level(36.0), level(144.0), told=1),
        part("b", level(4.0), level(36.0, late_s=11.0), level(144.0), told=1),
    ]
    assert JobTree.of(parts).host_deviations == ()


def test_of_two_hosts_the_later_one_is_behind_whichever_owns_the_answer():
    for late in ("a", "b"):
        parts = [part(name, level(36.0, late_s=6.0 * (name == late)), told=0) for name in "ab"]
        (deviation,) = JobTree.of(parts).host_deviations
        assert (deviation.agent_id, deviation.kind, deviation.amount) == (late, "lag", pytest.approx(6.0))


def test_levels_that_are_not_sure_yet_are_marked_and_left_out_and_parents_stay_right():
    levels = (level(4.0, parent=1), level(12.0, parent=2, confirmed=False, count=3), level(36.0, count=9))
    running = JobTree.of([part("a", *levels, told=2)])
    assert [cycle.confirmed for cycle in running.tree.cycles] == [True, False, True]
    listed = running.listed()
    assert [(round(cycle.period_s), cycle.parent) for cycle in listed.cycles] == [(4, 1), (36, None)]
    assert listed.level == 1
    ended = JobTree.of([part("a", *levels, told=2, ended=True)])
    assert len(ended.listed().cycles) == 3
    # What one host is sure of is told.
    both = JobTree.of([part("a", *levels), part("b", *(replace(row, confirmed=True) for row in levels))])
    assert len(both.listed().cycles) == 3


def test_hosts_without_cycles_or_without_a_look_do_no_harm():
    empty = part("a", state="", length_s=0.0)
    job = JobTree.of([empty, part("b", level(36.0), told=0, start_s=1.0)])
    assert (job.agent_id, periods(job), job.tree.level) == ("a", [36.0], 0)
    assert JobTree.of([empty]).tree.cycles == ()
    assert JobTree.of([empty, part("b", state="")]).tree.cycles == ()
    odd = level(36.0, half=0.0, count=0)
    assert periods(JobTree.of([part("a", odd), part("b", odd)])) == [36.0]
