"""Generated jobs: the same for the same seed, labelled at every level, and kinds that a fit cannot look at."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gpusonde.epoch_detect import CycleRole


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks" / "epochs"))
    return __import__("jobs")


def test_kinds_that_are_set_aside_are_made_only_when_told_so(jobs: ModuleType) -> None:
    assert not jobs.BLIND & set(jobs.FIT)
    assert jobs.BLIND | set(jobs.FIT) == set(jobs.KINDS)
    with pytest.raises(ValueError, match="set aside"):
        jobs.job("diffusion_samples", 1, 0)
    made = jobs.job("diffusion_samples", 1, 0, blind=True, longest_s=600.0)
    assert {level.role for level in made.levels} >= {CycleRole.STEP, CycleRole.EPOCH}
    assert {each.kind for each in jobs.fit_jobs(1, range(len(jobs.FIT)), longest_s=300.0)} == set(jobs.FIT)


def test_one_seed_makes_one_job(jobs: ModuleType) -> None:
    first, second = (jobs.job("k_fold", 4, 2, longest_s=600.0) for _ in range(2))
    assert first.traces[0].metrics == second.traces[0].metrics
    for name, values in first.traces[0].values.items():
        np.testing.assert_array_equal(values, second.traces[0].values[name])
    assert [level.period_s for level in first.levels] == [level.period_s for level in second.levels]


def test_a_job_that_gets_slower_is_the_same_until_then(jobs: ModuleType) -> None:
    usual = jobs.job("nest", 7, 0, longest_s=600.0)
    at_s = 0.5 * usual.end_s
    slower = jobs.job("nest", 7, 0, longest_s=600.0, slower=(at_s, 0.1))
    for one, other in zip(usual.traces, slower.traces, strict=True):
        before = one.time_s < at_s - 5.0
        assert np.array_equal(one.time_s, other.time_s)
        assert all(np.array_equal(one.values[metric][before], other.values[metric][before]) for metric in one.values)
    for level, longer in zip(usual.levels, slower.levels, strict=True):
        count = longer.starts_s.size
        moved = level.starts_s + 0.1 * np.maximum(level.starts_s - at_s, 0.0)
        assert np.allclose(longer.starts_s, moved[:count])
    assert slower.end_s == pytest.approx(usual.end_s + 0.1 * (usual.end_s - at_s))


def test_levels_are_nested_and_told_from_start_to_start(jobs: ModuleType) -> None:
    made = jobs.job("k_fold", 4, 2, longest_s=900.0)
    assert [level.name for level in made.levels] == ["step", "epoch", "fold"]
    step, epoch, fold = made.levels
    assert fold.role is CycleRole.TRIAL
    # Each epoch starts with loader workers, so its first step starts at it or soon after it.
    gaps = step.starts_s[np.searchsorted(step.starts_s, epoch.starts_s[:-1])] - epoch.starts_s[:-1]
    assert (gaps < 0.5 * epoch.period_s).all()
    assert np.quantile(np.diff(epoch.starts_s), 0.2) <= epoch.period_s < fold.period_s / 2


def test_a_level_of_few_ticks_is_not_visible(jobs: ModuleType) -> None:
    for number in range(5):
        made = jobs.job("cnn_validation", 6, number, longest_s=600.0)
        interval = float(np.median(np.diff(made.traces[0].time_s)))
        assert all(level.period_s >= 7 * interval for level in made.visible)


def test_gpus_of_one_job_have_one_clock_and_wait_for_the_slowest(jobs: ModuleType) -> None:
    made = next(m for n in range(20) if len((m := jobs.job("data_parallel", 3, n, longest_s=400.0)).traces) > 1)
    first, *others = made.traces
    for other in others:
        np.testing.assert_array_equal(first.time_s, other.time_s)
        name = first.metrics[0]
        assert np.corrcoef(first.values[name], other.values[name])[0, 1] > 0.5
        assert not np.array_equal(first.values[name], other.values[name])


@pytest.mark.parametrize("kind", ["serving", "cron", "notebook"])
def test_what_is_no_training_has_no_epochs(jobs: ModuleType, kind: str) -> None:
    made = jobs.job(kind, 1, 0, blind=True, longest_s=400.0)
    assert made.run_state != "training"
    assert made.periods_s == ()
    assert not [level for level in made.levels if level.role is CycleRole.EPOCH]


def test_families_with_and_without_epochs_take_part_in_the_fit(
    jobs: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    fit = __import__("fit_levels")
    drawn = []

    def example(seed: int, number: int) -> None:
        rng = np.random.default_rng([seed, number])
        drawn.append(rng.random())
        raise LookupError

    def simulate(seed: int, numbers: list[int]) -> None:
        raise LookupError

    monkeypatch.setattr(fit, "example", example)
    monkeypatch.setattr(jobs, "fit_jobs", simulate)
    for number in range(400):
        with pytest.raises(LookupError):
            fit.sample(number, seed=900)
    # What decides on a family leaves its own draw as it would be: of all kinds.
    assert 40 < len(drawn) < 120
    assert 0.4 < np.mean(drawn) < 0.6
