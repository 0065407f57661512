"""Learning from a fleet: only a better candidate replaces the model in service, and what is old counts less."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from support.synthetic_runs import synthetic_runs, write_runs

from gpusonde.predictor.crossgpu import LatencyModel, RunsTable
from gpusonde.predictor.crossgpu.learning import learn
from gpusonde.predictor.crossgpu.pairs import Pairs, decay_weights

DAY_S = 86_400.0
NOW_S = 1_800_000_000.0


@pytest.fixture(scope="module")
def current(runs, small_settings):
    return LatencyModel(dataclasses.replace(small_settings, regimes=())).fit(runs)


def fleet_of(tmp_path_factory, slower=None, models=4, seed=11, age_days=1.0):
    """Jobs of other workloads; on ``slower`` GPUs everything takes a third longer than the law of the table says."""
    from gpusonde.predictor.crossgpu import read_runs

    path = write_runs(
        tmp_path_factory.mktemp("fleet") / "runs.csv", synthetic_runs(models=models, batches=2, seed=seed)
    )
    return RunsTable(tuple(_as_job(run, slower, age_days) for run in read_runs(path).runs))


def _as_job(run, slower, age_days):
    seconds = run.epoch_latency_s * (1.33 if run.gpu.name == slower else 1.0)
    job = "|".join(run.configuration)
    return dataclasses.replace(
        run,
        configuration=run.configuration._replace(model=f"job {job}", batch_size="1 GPUs"),
        epoch_latency_s=seconds,
        detected_epoch_latency_s=seconds,
        end_unix_s=NOW_S - age_days * DAY_S,
    )


@pytest.fixture(scope="module")
def slow_fleet(tmp_path_factory):
    return fleet_of(tmp_path_factory, slower="A10G")


@pytest.fixture(scope="module")
def first(current, slow_fleet):
    """What the slow fleet teaches, and the progress that was told."""
    shown = []
    return learn(current, slow_fleet, now_unix_s=NOW_S, half_life_s=90 * DAY_S, progress=shown.append), shown


def test_a_fleet_that_differs_from_what_the_model_knows_gives_a_better_candidate(first, slow_fleet):
    lesson, shown = first
    found = lesson.comparison
    assert (lesson.pairs, lesson.carried_pairs, found.configurations, found.pairs) == (96, 240, 8, 96)
    assert found.candidate_mape < 0.8 * found.current_mape
    assert lesson.candidate is not None
    assert "better" in lesson.reason
    assert shown == sorted(shown)
    errors = [
        abs(lesson.candidate.predict(run.measurement(), [other.gpu])[0].epoch_latency_s / other.epoch_latency_s - 1)
        for row, run in enumerate(slow_fleet.runs)
        for other in slow_fleet.counterparts(row)
    ]
    assert np.mean(errors) < found.current_mape


def test_a_candidate_that_is_worse_is_not_put_in_service(current, runs, slow_fleet, tmp_path_factory):
    # What it would be fitted to besides is nonsense.
    latencies = np.random.default_rng(0).permutation([run.epoch_latency_s for run in runs.runs]).tolist()
    nonsense = RunsTable(
        tuple(
            dataclasses.replace(run, epoch_latency_s=seconds, detected_epoch_latency_s=seconds)
            for run, seconds in zip(runs.runs, latencies, strict=True)
        )
    )
    fleet = fleet_of(tmp_path_factory)
    lesson = learn(current, fleet, now_unix_s=NOW_S, half_life_s=90 * DAY_S, table=nonsense)
    assert lesson.comparison.candidate_mape > lesson.comparison.current_mape
    assert lesson.candidate is None
    assert "not better" in lesson.reason


def test_jobs_that_the_model_in_service_was_fitted_on_prove_nothing(first, slow_fleet):
    again = learn(first[0].candidate, slow_fleet, now_unix_s=NOW_S, half_life_s=90 * DAY_S)
    assert (again.comparison, again.candidate) == (None, None)
    assert again.reason.startswith("0 jobs")
    # The jobs are taken from the fleet, not twice.
    assert (again.pairs, again.carried_pairs) == (96, 240)


def test_jobs_that_the_store_no_longer_has_are_remembered(first, tmp_path_factory):
    other = fleet_of(tmp_path_factory, slower="A10G", models=2, seed=5)
    lesson = learn(first[0].candidate, other, now_unix_s=NOW_S, half_life_s=90 * DAY_S)
    assert lesson.carried_pairs == 240 + 96 - 48  # jobs of the same name are the same jobs
    assert lesson.pairs == 48


def test_an_empty_fleet_teaches_nothing(current):
    lesson = learn(current, RunsTable(()), now_unix_s=NOW_S, half_life_s=90 * DAY_S)
    assert (lesson.pairs, lesson.candidate) == (0, None)


def test_old_jobs_count_less(runs, tmp_path_factory, small_settings):
    fleet = fleet_of(tmp_path_factory, slower="A10G", age_days=360)
    both = Pairs.join([Pairs.from_runs(runs), Pairs.from_runs(fleet)])
    quick = dataclasses.replace(small_settings, regimes=())
    a10g = next(run.gpu for run in runs.runs if run.gpu.name == "A10G")
    sources = [run.measurement() for run in fleet.runs if run.gpu.name != "A10G"]

    def seconds_on_a10g(half_life_s):
        weights = decay_weights(both.time_unix_s, NOW_S, half_life_s)
        model = LatencyModel(quick).fit_pairs(both, weights)
        return np.mean([math.log(model.predict(source, [a10g])[0].epoch_latency_s) for source in sources])

    # What the fleet said of the A10G (a third slower than the table does) fades.
    fresh, fading, old = (seconds_on_a10g(days * DAY_S) for days in (math.inf, 180, 60))
    assert fresh > fading > old
    assert fresh - old > 0.03


def test_after_six_half_lives_a_job_is_as_if_it_had_never_run(current, tmp_path_factory):
    fleet = fleet_of(tmp_path_factory, slower="A10G", age_days=610)
    assert learn(current, fleet, now_unix_s=NOW_S, half_life_s=100 * DAY_S).pairs == 0
    assert learn(current, fleet, now_unix_s=NOW_S, half_life_s=110 * DAY_S).pairs == 96
