"""The published detector, as its text and as its notebook have it."""

import numpy as np
import pytest
from scipy.signal import find_peaks, savgol_filter
from support.epoch_traces import training_trace

from gpusonde.epoch_detect import detect
from gpusonde.epoch_detect.published.luminol import luminol_scores
from gpusonde.epoch_detect.published.paper import NOTEBOOK, PAPER, PaperSettings, boundaries_by_luminol
from gpusonde.telemetry import Trace


def test_paper_mode_is_three_rounds_of_scores_smoothing_and_scaling_then_peaks() -> None:
    series = training_trace(20.0, 12)[0].values["dram_active"][150:-150]
    window = int(series.size / 40) | 1
    expected = series
    for _ in range(3):
        expected = savgol_filter(luminol_scores(expected), window, 2)
        expected = (expected - expected.min()) / (expected.max() - expected.min())
    peaks, _ = find_peaks(expected, prominence=0.01)
    peaks = peaks[expected[peaks] >= expected.mean()]
    np.testing.assert_array_equal(boundaries_by_luminol(series, PAPER, luminol_scores), peaks)


def test_every_round_multiplies_the_peaks_which_is_why_the_paper_overcounts() -> None:
    series = training_trace(20.0, 10)[0].values["dram_active"][150:-150]
    counts = [boundaries_by_luminol(series, PaperSettings("p", rounds=k), luminol_scores).size for k in (1, 3)]
    assert counts[1] > 1.5 * counts[0]


@pytest.mark.parametrize("mode", ["paper", "notebook"])
def test_both_engines_give_the_same_answer(mode: str) -> None:
    pytest.importorskip("luminol", reason="the extra 'paper' is not installed")
    for epochs in (6, 12):
        trace, _ = training_trace(20.0, epochs)
        ours, theirs = detect(trace, mode=mode), detect(trace, mode=mode, engine="luminol")
        assert ours.period_s == theirs.period_s
        np.testing.assert_array_equal(ours.epoch_starts_s, theirs.epoch_starts_s)
        assert ours.mode == mode


def test_published_modes_prefer_their_own_metric_and_take_one_only() -> None:
    trace, _ = training_trace()
    both = Trace(trace.time_s, {**trace.values, "gpu_utilization": trace.values["dram_active"]})
    assert detect(both, mode="paper").metrics == ("dram_active",)
    assert detect(both, mode="notebook").metrics == ("gpu_utilization",)
    assert detect(both, mode="paper", metrics=["power_watts", "dram_active"]).metrics == ("power_watts",)


def test_notebook_skips_the_successor_of_each_peak_that_it_drops() -> None:
    series = np.tile(np.concatenate([np.full(60, 0.2), np.full(60, 0.8)]), 8) + np.linspace(0, 0.1, 960)
    exact = PaperSettings("p", rounds=1, order=1)
    faulty = PaperSettings("p", rounds=1, order=1, exact_mean_filter=False)
    kept, kept_by_fault = (set(boundaries_by_luminol(series, s, luminol_scores).tolist()) for s in (exact, faulty))
    assert kept <= kept_by_fault
    assert NOTEBOOK.exact_mean_filter is False


def test_a_constant_metric_gives_none_with_the_reason() -> None:
    found = detect(Trace(np.arange(3000) * 0.1, {"dram_active": np.full(3000, 0.5)}), mode="paper")
    assert (found.verdict, found.reason) == ("none", "0 peaks of the anomaly score; a period needs two")
