"""The calibrated roofline finds the factors that measurements were made with."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from support.measured_workloads import PLACES, chain, true_seconds

from gpusonde.predictor.workload.engine import Cluster, WorkloadRequest
from gpusonde.predictor.workload.engine.calibration import CalibratedRoofline, _TermIndex
from gpusonde.predictor.workload.engine.features import FeatureBuilder, FeatureTable, StepPart


@pytest.fixture(scope="module")
def rows(catalog, measurements):
    table = FeatureBuilder(catalog).table([each.request for each in measurements])
    return table, np.log([each.seconds for each in measurements])


def test_it_fits_what_was_measured_and_what_lies_beside_it(rows, catalog):
    table, log_seconds = rows
    fitted = CalibratedRoofline.fit(table, log_seconds)
    assert np.abs(fitted.log_seconds(table) - log_seconds).mean() < 0.06
    asked = [WorkloadRequest(chain(80, 12), 16, Cluster(gpu, environment=place)) for place, (gpu, _) in PLACES.items()]
    predicted = np.exp(fitted.log_seconds(FeatureBuilder(catalog).table(asked)))
    np.testing.assert_allclose(predicted, true_seconds(asked, catalog), rtol=0.12)


def test_networks_ten_times_as_large_stay_within_a_factor(rows, catalog):
    fitted = CalibratedRoofline.fit(*rows)
    asked = [WorkloadRequest(chain(1024, 40), 32, Cluster("T4", environment="here/T4"))]
    predicted = np.exp(fitted.log_seconds(FeatureBuilder(catalog).table(asked)))
    np.testing.assert_allclose(predicted, true_seconds(asked, catalog), rtol=0.5)


def test_what_no_measurement_tells_of_keeps_what_the_field_knows(rows):
    fitted = CalibratedRoofline.fit(*rows)
    assert fitted.common[StepPart.GROUPED] == pytest.approx(
        np.log(3.0), abs=0.05
    )  # no grouped convolution was measured


def test_an_unknown_place_lies_between_the_known_ones(rows, catalog):
    fitted = CalibratedRoofline.fit(*rows)
    graph = chain(64, 8)
    here, there, elsewhere = fitted.log_seconds(
        FeatureBuilder(catalog).table(
            [WorkloadRequest(graph, 32, Cluster("T4", environment=each)) for each in ("here/T4", "there/T4", None)]
        )
    )
    assert here < elsewhere < there


def test_a_step_solves_the_equations_of_all_environments_at_once():
    drawn = np.random.default_rng(0)
    rows, parts = 200, len(StepPart)
    columns = [drawn.choice(each, rows) for each in (["", "forward"], ["fp32", "fp16"], ["T4", "V100"], ["", "a", "b"])]
    own = np.where(columns[3] == "", "", np.char.add(np.char.add(columns[3], columns[2]), columns[1]))
    keys = [*columns, own, np.where(drawn.random(rows) < 0.5, "", own)]
    names = tuple(tuple(sorted(set(each.tolist()) - {""})) for each in keys)
    index = _TermIndex.of(names, keys)
    size = index.count * parts
    shares, weights, error = drawn.random((rows, parts)), drawn.random(rows), drawn.normal(size=rows)
    shares[:, 3] = 0.0  # a part that no row tells of
    state = drawn.normal(size=size)
    jacobian = np.zeros((rows, index.count + 1, parts))
    for column in index.blocks.T:
        jacobian[np.arange(rows), column] = shares
    jacobian = jacobian.reshape(rows, -1)[:, :size]
    normal = jacobian.T @ (weights[:, None] * jacobian) + np.diag(index.precisions)
    gradient = jacobian.T @ (weights * error) - index.precisions * state
    np.testing.assert_allclose(index.solve(shares, weights, error, state), np.linalg.solve(normal, gradient), atol=1e-9)


def test_a_few_wild_measurements_do_not_move_it(rows):
    table, log_seconds = rows
    wild = log_seconds.copy()
    wild[::30] += np.log(8)
    straight = np.arange(len(wild)) % 30 != 0
    shift = CalibratedRoofline.fit(table, wild).log_seconds(table) - CalibratedRoofline.fit(
        table, log_seconds
    ).log_seconds(table)
    assert np.abs(shift[straight]).mean() < 0.03


def test_beginning_near_the_end_ends_in_the_same_place(rows):
    table, log_seconds = rows
    part = np.arange(len(table)) % 5 > 0
    whole = CalibratedRoofline.fit(table, log_seconds)
    from_there = CalibratedRoofline.fit(table.rows(part), log_seconds[part], near=whole)
    afresh = CalibratedRoofline.fit(table.rows(part), log_seconds[part])
    np.testing.assert_allclose(from_there.log_seconds(table), afresh.log_seconds(table), atol=0.01)


def test_forward_passes_measured_on_one_gpu_tell_of_those_on_another(rows, catalog):
    table, log_seconds = rows
    builder = FeatureBuilder(catalog)

    def ask(gpu, place):
        return builder.table(
            [
                WorkloadRequest(chain(width, 8), 32, Cluster(gpu, environment=place), forward_only=True)
                for width in (32, 64, 128, 256)
            ]
        )

    passes, elsewhere = ask("T4", "here/T4"), ask("V100-SXM2-16GB", None)
    before = CalibratedRoofline.fit(table, log_seconds)
    halved = before.log_seconds(passes) - np.log(2)
    both = FeatureTable(
        **{each.name: np.concatenate([getattr(t, each.name) for t in (table, passes)]) for each in fields(table)}
    )
    after = CalibratedRoofline.fit(both, np.concatenate([log_seconds, halved]))

    assert (after.log_seconds(elsewhere) - before.log_seconds(elsewhere) < np.log(0.8)).all()
    assert np.abs(after.log_seconds(table) - before.log_seconds(table)).mean() < 0.05
