"""The parts of ``benchmarks/planning`` that decide what its figures mean."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = ("planning",)
SCALING = Path(__file__).parents[3] / "shared" / "data" / "distributed" / "scaling.csv"


def test_measured_configurations_are_medians_over_rows_and_orders_of_machines(module, tmp_path: Path) -> None:
    path = tmp_path / "scaling.csv"
    lines = [
        "source,workload,placement,local_bsz,step_time_s",
        "siasosp23/artifacts@1 placements-aws,bert,12,8.0,1.0",
        "siasosp23/artifacts@1 placements-aws,bert,21.0,8.0,3.0",
        "siasosp23/artifacts@1 placements-aws,bert,1,8.0,0.5",
        "siasosp23/artifacts@1 scalability-aws,bert,1,8.0,9.0",
        "siasosp23/artifacts@1 placements-dgx-ext,bert,1,8.0,9.0",
        "other,bert,1,text,9.0",
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = module("sia").read(path)
    assert [(row.nodes, row.world_size, row.step_s) for row in rows] == [((1,), 1, 0.5), ((2, 1), 3, 2.0)]


def test_probes_are_the_batch_sizes_nearest_to_four_geometric_ones(module) -> None:
    # Targets are 4, 8.6, 18.6 and 40.
    assert module("sia").probe_places([4, 6, 8, 11, 16, 20, 28, 40]) == [0, 2, 5, 7]


def test_regret_is_what_was_chosen_over_the_best_that_was_measured(module) -> None:
    regret, sia, estimates = module("regret"), module("sia"), module("estimates")

    def candidate(cluster: str, nodes: tuple[int, ...], step_s: float, said_s: float):
        row = sia.StepTime("bert", cluster, nodes, 16, step_s)
        probes = (sia.StepTime("bert", cluster, (1,), 8, 0.6), sia.StepTime("bert", cluster, (1,), 16, 1.1))
        return estimates.Estimates(row, {estimates.OURS: said_s}, estimates.Known(probes))

    # Two A100 in 1.0 s, two T4 in 1.5 s, and the estimates think otherwise about time.
    candidates = (candidate("dgx", (2,), 1.0, 1.4), candidate("aws", (2,), 1.5, 1.2))
    by_time = regret.Choice("bert", 32, "time", candidates)
    by_cost = regret.Choice("bert", 32, "cost", candidates)
    ours = regret.CHOOSERS[estimates.OURS]
    assert ours(by_time) == pytest.approx(1.5)
    assert ours(by_cost) == pytest.approx(1.0)
    # Once it is known that two T4 take 1.5 s, more than 1.4 s, the A100 are chosen.
    assert regret.CHOOSERS[regret.ASKED_AGAIN](by_time) == pytest.approx(1.0)
    assert by_cost.measured == pytest.approx([1.0 / 32 * 2 * 1.54 / 3600, 1.5 / 32 * 2 * 0.30 / 3600])
    assert regret.CHOOSERS["FGF"](by_time) == pytest.approx(1.0)
    assert regret.CHOOSERS["CGF"](by_time) == pytest.approx(1.5)


def test_a_chooser_that_knows_every_time_has_a_regret_where_measurements_scatter(module) -> None:
    regret, sia, estimates = module("regret"), module("sia"), module("estimates")
    measured = {
        ("bert", "aws", (4,), 8): [0.9, 1.1],
        ("bert", "aws", (2,), 16): [1.0],
        ("bert", "aws", (1,), 32): [2.0],
    }
    rows = [sia.StepTime(*key, sum(each) / len(each)) for key, each in measured.items()]
    problem = regret.Choice("bert", 32, "time", tuple(estimates.Estimates(row, {}) for row in rows))
    (off,) = regret.deviations(measured).values()
    assert off.std() == pytest.approx(abs(math.log(1.1 / 0.9)) / math.sqrt(2))
    redrawn = regret.perfect_regrets([problem], measured)
    # (4,) is measured twice anew and (2,), as quick, once; (1,) is never the best.
    assert np.unique(redrawn.round(9)) == pytest.approx(np.exp([0.0, abs(off[0]), 2 * abs(off[0])]))
    exact = {key: [row.step_s] for key, row in zip(measured, rows, strict=True)}
    assert (regret.perfect_regrets([problem], exact) == 1.0).all()


def test_what_was_never_measured_twice_scatters_as_neighbours_do(module) -> None:
    regret, random = module("regret"), np.random.default_rng(0)
    measured = {}
    for cluster, spread, repeats in (("aws", 0.04, 2), ("dgx", 0.01, 1)):
        for nodes, batch in itertools.product(range(1, 60), range(8, 16)):
            logarithms = 0.9 * math.log(batch) + spread * random.standard_normal(repeats)
            measured["bert", cluster, (nodes,), batch] = list(np.exp(logarithms))
    (key, off), *others = regret.deviations_of_neighbours(measured).items()
    assert key == ("bert", "dgx")
    assert off.std() == pytest.approx(0.01, rel=0.1)
    assert not others


def test_where_most_rows_are_known_the_rest_is_asked_and_larger_batches_help(module) -> None:
    end_to_end, sia = module("end_to_end"), module("sia")
    batches = (8, 16, 32, 64, 128)
    placements = [(1,), (2,), (4,), (1, 1), (2, 2), (2, 1), (4, 4), (1, 1, 1), (2, 2, 2), (4, 2)]
    # Beyond what exchanges, several devices are the slower the larger the batch is.
    rows = [
        sia.StepTime("bert", "dgx", nodes, batch, seconds)
        for nodes in placements
        for batch in batches
        for alone in [0.02 + 0.002 * batch]
        for seconds in [alone if nodes == (1,) else (alone + 0.05 * len(nodes)) * (batch / 8) ** 0.1]
    ]
    (curve,) = end_to_end.curves_of(rows)
    draws = [end_to_end.MostlyKnown.draw(curve, seed) for seed in range(20)]
    for known in draws:
        seen = {(each.placement, each.batch_size) for each in known.measured}
        asked = {(row.nodes, row.batch_size) for row in [*known.unseen_placements, *known.unseen_rows]}
        assert not seen & asked
        assert seen | asked == {(row.nodes, row.batch_size) for row in rows if row.nodes != (1,)}
        assert not {nodes for nodes, _ in seen} & {row.nodes for row in known.unseen_placements}
        assert {nodes for nodes, _ in seen} >= {row.nodes for row in known.unseen_rows}
        assert len(known.smallest()) == len({nodes for nodes, _ in seen})
    unseen = sum(len(known.unseen_placements) for known in draws) / (20 * 9 * len(batches))
    assert 0.08 < unseen < 0.22
    calibration = module("exchange_calibration").ExchangeCalibration
    with_all = end_to_end.mostly_known_errors([curve], lambda known: calibration(known.probes, known.measured))
    with_first = end_to_end.mostly_known_errors([curve], lambda known: calibration(known.probes, known.smallest()))
    for corrected, first in zip(with_all, with_first, strict=True):
        assert abs(corrected.all).mean() < 0.5 * abs(first.all).mean()
    assert with_all[0].of({"aws"}).by_key == {}
    assert with_all[0].of({"dgx"}).all.size == with_all[0].all.size == with_all[0].deviations.size


def test_a_random_instance_is_always_the_same_and_some_have_no_plan(module) -> None:
    instances = module("instances")
    first, _ = instances.instance(3, instances.SMALL)
    again, _ = instances.instance(3, instances.SMALL)
    assert first == again
    assert first != instances.instance(4, instances.SMALL)[0]

    from gpusonde.optimizer.search.space import brute_force

    answers = [brute_force(*instances.instance(seed, instances.SMALL)).plan is not None for seed in range(30)]
    assert 15 < sum(answers) < 30


@pytest.mark.shared_data
@pytest.mark.skipif(not SCALING.exists(), reason="../shared/data is not here")
def test_choices_by_estimate_are_better_than_those_of_the_baselines_on_measured_trainings(module) -> None:
    regret, sia, estimates = module("regret"), module("sia"), module("estimates")
    rows = [row for row in sia.read(SCALING) if row.network in {"bert", "imagenet"}]
    found = list(regret.choices(estimates.estimates_of(rows)))
    assert len(found) > 30
    means = {who: sum(map(chooser, found)) / len(found) for who, chooser in regret.CHOOSERS.items()}
    assert means[estimates.OURS] < 1.03
    assert means[estimates.OURS] < min(means[who] for who in ("APM", "Oracle-BO", "FGF", "CGF"))


def test_the_search_finds_what_trying_every_plan_finds(module) -> None:
    oracle = module("oracle")
    found = oracle.Compared(Counter(), Counter())
    for seed in (3, 5, 8, 12, 17, 21, 26, 30):
        oracle.compare(seed, found)
    assert found.worst <= 1e-9
    assert not found.false_no_plan
    assert not found.false_plan
    assert found.plans > 500
    assert found.kinds["accumulate"]
    assert found.kinds["have spot machines"]
