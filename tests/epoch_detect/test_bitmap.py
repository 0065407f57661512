"""The port of Luminol gives Luminol's scores, bit for bit."""

from pathlib import Path

import numpy as np
import pytest

from gpusonde.epoch_detect.published.luminol import (
    bitmap_scores,
    bitmap_window,
    luminol_scores,
    original_luminol_scores,
)
from gpusonde.errors import MissingExtraError

RECORDED = Path(__file__).parent.parent / "data" / "luminol_scores.npz"

SHAPES = {
    "noise": lambda n, rng: rng.normal(size=n),
    "constant": lambda n, rng: np.full(n, 0.1),
    "zero": lambda n, rng: np.zeros(n),
    "spike": lambda n, rng: np.where(np.arange(n) == n // 2, 50.0, rng.normal(size=n)),
    "spikes": lambda n, rng: rng.normal(size=n) + 20 * (rng.random(n) < 0.01),
    "missing values": lambda n, rng: np.where(np.arange(n) % 97 == 5, np.nan, rng.normal(size=n)),
    "square wave": lambda n, rng: np.sign(np.sin(np.arange(n) / 30)) + rng.normal(0, 0.01, n),
    "ramp": lambda n, rng: np.arange(n) / 7,
    "negative": lambda n, rng: -np.abs(rng.normal(size=n)) - 1,
}
LENGTHS = (2, 3, 50, 500, 1999, 2000, 2001, 4077)
LONG = (15999, 16000, 20000)  # about where windows stop growing; Luminol itself takes its time for them


@pytest.mark.parametrize("shape", SHAPES)
def test_port_equals_luminol_for_every_length_and_shape(shape: str) -> None:
    pytest.importorskip("luminol", reason="the extra 'paper' is not installed")
    rng = np.random.default_rng(5)
    for n in LENGTHS + (LONG if shape in ("noise", "spikes", "missing values") else ()):
        series = SHAPES[shape](n, rng)
        with np.errstate(all="ignore"):  # NaN runs through both
            ours, theirs = luminol_scores(series), original_luminol_scores(series)
        np.testing.assert_array_equal(ours, theirs, err_msg=f"n = {n}")


def test_port_equals_luminol_on_jittered_integer_times() -> None:
    pytest.importorskip("luminol", reason="the extra 'paper' is not installed")
    rng = np.random.default_rng(6)
    for n in (40, 700, 1999, 2600):
        series, time = rng.normal(size=n), np.cumsum(rng.integers(1, 9, n))
        np.testing.assert_array_equal(luminol_scores(series, time), original_luminol_scores(series, time))


@pytest.mark.parametrize("n", [150, 2100])
def test_port_equals_scores_recorded_from_luminol(n: int) -> None:
    with np.load(RECORDED) as recorded:
        np.testing.assert_array_equal(luminol_scores(recorded[f"series_{n}"]), recorded[f"scores_{n}"])


def test_windows_are_an_eightieth_of_the_series_at_most_200_and_none_below_2000_points() -> None:
    assert [bitmap_window(n) for n in (1999, 2000, 8000, 16000, 40000)] == [None, 25, 100, 200, 200]


def test_bitmap_detector_refuses_short_series_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="needs 2000 points, got 1999; default_scores"):
        bitmap_scores(np.zeros(1999))


def test_one_point_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 2 points, got 1"):
        luminol_scores([1.0])


def test_numpy_is_left_as_it_was_after_luminol_ran() -> None:
    pytest.importorskip("luminol", reason="the extra 'paper' is not installed")
    had = hasattr(np, "asscalar")
    original_luminol_scores(np.arange(60.0))
    assert hasattr(np, "asscalar") is had


def test_missing_luminol_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "luminol.anomaly_detector", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'gpusonde\[paper\]'"):
        original_luminol_scores(np.arange(60.0))
