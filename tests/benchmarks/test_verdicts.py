"""Benchmarks of verdicts: what they are asked of can be made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARKS = ("epochs", "cycles", "verdicts")


def test_a_day_of_the_reaper_is_filled_with_generated_jobs(module: Callable[[str], ModuleType]) -> None:
    reaper = module("reaper")
    day = reaper.Day(np.random.default_rng(1))
    reaper.generated(day)
    assert day.is_full


def test_days_are_replayed_before_the_reaper(module: Callable[[str], ModuleType]) -> None:
    reaper = module("reaper")
    # One that trained and is held, by runs one after the other, and one that is started again by the clock.
    held, by_the_clock = map(reaper.replay, (7, 12))
    assert held.idle_from_s < held.reaped_s < reaper.DAY_S
    assert (by_the_clock.kind, by_the_clock.reaped_s) == ("by_the_clock", np.inf)
    lines = reaper.table([held, by_the_clock])
    assert "| **all idle ones** | 1 | 0 | 0 | 0 | 100.0% | 100.0% |" in lines


def test_every_table_of_generated_jobs_is_made_of_a_few(
    module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    eta, hangs, slower, weeks, cost = map(module, ("eta", "hangs", "slower", "weeks", "watch_cost"))
    monkeypatch.setattr(cost, "_SECONDS", 12)
    monkeypatch.setattr(cost, "_REPEATS", 1)
    week = ("cnn_validation", 1, 0)
    assert week in weeks.every_job(0.02 * hangs.WEEK_H, 1)
    trials = slower.of_generated(("cnn_validation", 306, 9))
    tables = {
        "hangs": (hangs.generated_table(hangs.of_generated(("k_fold", 1, 0))), "| 1, at any time | 1 |"),
        "slower": (slower.table(trials), "| all | 1 |"),
        "causes": (slower.causes_table(trials), "| throttled 10 % | "),
        "eta": (eta.table(eta.of_job("k_fold", 41021, 1)), "| **generated, seed 41021** | 1 | 3 of 3 |"),
        "weeks": (weeks.table([weeks.watched(*week, looks=True)], kinds=True), "| all of these (1) |"),
        "paces": (slower.weeks_table([slower.of_weeks(week)]), "| 1 | 1 |"),
        "cost": (cost.table(), "| 64 |"),
    }
    for name, (lines, begins) in tables.items():
        assert any(line.startswith(begins) for line in lines), (name, lines)


def test_the_nodes_of_a_submission_are_laid_on_the_clock_of_the_first(
    module: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    def lines(*events: tuple[float, str, object]) -> str:
        return "".join(
            f":::MLLOG {json.dumps({'time_ms': 1e12 + 1e3 * s, 'key': k, 'value': v})}\n" for s, k, v in events
        )

    network = tmp_path / "2xBOX" / "llama"
    (network / "power" / "result_0").mkdir(parents=True)
    at = np.arange(300)
    watts = np.where((at > 20) & (at % 100 > 15), 7000 + 5 * at, 3000)
    for node, ahead_s in enumerate((0, 11)):
        readings = [(float(s + ahead_s), "power_reading", int(w)) for s, w in zip(at, watts, strict=True)]
        (network / "power" / "result_0" / f"node_{node}.txt").write_text(lines(*readings))
    spans = [
        (at, f"eval_{edge}", None) for start in (100, 200, 310) for at, edge in ((start, "start"), (start + 9, "stop"))
    ]
    (network / "result_0.txt").write_text(lines((16, "run_start", None), *spans, (290, "run_stop", None)))
    (network / "power" / "result_1").mkdir()
    (network / "power" / "result_1" / "node_0.txt").write_text(lines(*readings))
    (network / "result_1.txt").write_text(lines((16, "run_start", None)))  # it broke off
    (run,) = module("recordings").mlperf_results(tmp_path)
    assert (run.name, run.kind, run.devices) == ("2xBOX/llama/result_0", "llama/2", ("node-0", "node-1"))
    assert run.time_s[0] == 0.0
    inside = run.time_s < 280
    assert np.array_equal(run.power[0, inside], run.power[1, inside])
    assert (run.log.start_s, run.log.stop_s) == (16.0, 290.0)
    # What is evaluated after the run is no part of it.
    assert run.log.evaluations_s.tolist() == [[100.0, 109.0], [200.0, 209.0]]
