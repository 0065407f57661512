"""New cycles of a run beside the known ones: what matching lays through another tempo is left out."""

from collections.abc import Sequence

import numpy as np
import pytest

from gpusonde.epoch_detect import EpochDetection, Verdict
from gpusonde.epoch_detect.resemblance import keep_alike
from gpusonde.epoch_detect.ticks import Ticks


def _ticks(lengths_s: Sequence[float], stalls: Sequence[int] = ()) -> Ticks:
    """Epochs that end in two seconds of little work; those of ``stalls`` hang in the middle for as long as a half."""
    time_s = np.arange(0, sum(lengths_s), 0.1)
    ends = np.cumsum(lengths_s)
    which = np.searchsorted(ends, time_s, side="right")
    left_s, length_s = ends[which] - time_s, np.array(lengths_s)[which]
    hangs = np.isin(which, stalls) & (np.abs(left_s / length_s - 0.5) < 0.25)
    level = np.where((left_s <= 2.0) | hangs, 0.2, 0.9) + np.random.default_rng(4).normal(0, 0.03, time_s.size)
    names = ("dram_active",)
    return Ticks(np.round(time_s * 1e6).astype(np.int64), level[None].astype(np.float32), names)


def _found(*edges_s: float) -> EpochDetection:
    edges = np.array(edges_s)
    period = float(np.diff(edges).mean())
    return EpochDetection(
        Verdict.EPOCHS, "a test's", period_s=period, period_low_s=period, period_high_s=period, confidence=0.9,
        epoch_starts_s=edges[:-1], epoch_ends_s=edges[1:],
    )  # fmt: skip


_KNOWN = _found(*np.arange(0, 61, 10.0))


def test_cycles_that_go_on_are_kept() -> None:
    found = _found(*np.arange(0, 101, 10.0))
    assert keep_alike(_ticks([10.0] * 12), _KNOWN, found) is found


@pytest.mark.parametrize(("tempo_s", "laid_s"), [(14.0, 10.0), (14.0, 11.5), (20.0, 10.0)])
def test_what_is_laid_through_another_tempo_is_left_out(tempo_s: float, laid_s: float) -> None:
    ticks = _ticks([*[10.0] * 6, *[tempo_s] * 6])
    found = _found(*np.arange(0, 61, 10.0), *(60 + laid_s * np.arange(1, 7)))
    kept = keep_alike(ticks, _KNOWN, found)
    assert kept.epoch_starts_s.tolist() == _KNOWN.epoch_starts_s.tolist()
    assert kept.period_s == pytest.approx(10.0)
    assert kept.reason == "6 cycles of 10 s repeat"


def test_a_stall_in_a_cycle_does_not_cost_it_unless_it_is_the_last() -> None:
    found = _found(*np.arange(0, 101, 10.0))
    assert keep_alike(_ticks([10.0] * 12, stalls=[7]), _KNOWN, found) is found
    kept = keep_alike(_ticks([10.0] * 12, stalls=[9]), _KNOWN, found)
    assert kept.epoch_starts_s.size == 9


def test_two_known_cycles_are_too_few_to_tell() -> None:
    found = _found(*np.arange(0, 101, 14.0))
    assert keep_alike(_ticks([10.0] * 12), _found(0, 10, 20), found) is found


def test_metrics_without_a_value_say_nothing() -> None:
    ticks = _ticks([10.0] * 12)
    silent = Ticks(ticks.time_us, np.vstack([ticks.values, np.full((1, len(ticks)), np.nan)]), ("dram_active", "x"))
    found = _found(*np.arange(0, 101, 10.0))
    assert keep_alike(silent, _KNOWN, found) is found
