"""What ``benchmarks/gpu`` makes of a job's events and of timed blocks; the rest needs torch and a GPU."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpusonde.cli.demo.run import bundled_trace

BENCHMARKS = ("gpu",)


def events_of(*named_times: tuple[str, float]) -> list[dict[str, object]]:
    return [{"event": name, "time_unix_s": time_s} for name, time_s in named_times]


def test_the_truth_is_in_the_time_of_the_recording(module) -> None:
    events = events_of(
        ("ready", 1000.0),
        ("epoch_start", 1002.0),
        ("validation_start", 1005.0),
        ("epoch_end", 1006.0),
        ("epoch_start", 1006.0),
        ("checkpoint_start", 1009.5),
        ("epoch_end", 1010.4),
    )
    truth = module("truth").truth_of(events, 990.0, "plain")
    assert truth["period_s"] == pytest.approx(4.2)
    assert truth["epoch_starts_s"] == [12.0, 16.0]
    assert truth["epoch_ends_s"] == [16.0, 20.4]
    assert truth["validation_starts_s"] == [15.0]
    assert truth["checkpoint_starts_s"] == [19.5]


def test_a_job_without_epochs_is_a_negative_and_a_broken_one_is_refused(module) -> None:
    truth_of = module("truth").truth_of
    assert truth_of(events_of(("ready", 5.0), ("end", 9.0)), 0.0, "idle") == {"period_s": None, "shape": "idle"}
    with pytest.raises(ValueError, match="finished 1 epochs"):
        truth_of(events_of(("epoch_start", 1.0), ("epoch_end", 2.0), ("epoch_start", 2.0)), 0.0, "plain")


def test_a_slow_down_comes_with_the_interval_of_student(module) -> None:
    found = module("paired").slow_down([(10.0, 10.1), (10.0, 10.3), (10.0, 10.2)])
    assert found.mean == pytest.approx(0.02)
    assert (found.pairs, found.block_s) == (3, 10.0)
    # 4.303 * 0.01 / sqrt(3)
    assert found.high - found.mean == pytest.approx(0.024843, rel=1e-3)
    assert found.low == pytest.approx(2 * found.mean - found.high)
    with pytest.raises(ValueError, match="two pairs"):
        module("paired").slow_down([(1.0, 1.0)])


def test_a_part_that_failed_is_said_on_the_page(module) -> None:
    page = module("report").report({"environment": {"gpu": "some"}, "read": {"failed": "no driver"}})
    assert "Failed: no driver" in page


def test_the_rehearsal_writes_recordings_with_their_truth(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: the jobs of benchmarks/gpu are torch programs")
    options = ["--device", "cpu", "--tiny", "--source", "replay", "--trace", str(bundled_trace())]
    folder = Path(__file__).parents[2] / "benchmarks" / "gpu"
    subprocess.run([sys.executable, folder, "--out", tmp_path, *options], check=True)
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert truth["tiny_validation"]["period_s"] > 0
    assert truth["tiny_idle"]["period_s"] is None
    assert "What the watched job loses" in (tmp_path / "README.md").read_text()
