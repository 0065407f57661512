"""The benchmark of cycles: what it reads of an MLPerf submission, and how a method of others takes part."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gpusonde.epoch_detect import CycleRole
from gpusonde.errors import UsageError

FOLDER = Path(__file__).parents[2] / "benchmarks" / "cycles"
OURS = ("problems", "methods", "scoring")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    # The script finds its modules beside itself, and other benchmarks have modules of like names.
    monkeypatch.syspath_prepend(str(FOLDER))
    before, path = set(sys.modules), list(sys.path)
    yield {name: importlib.import_module(name) for name in OURS}
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(FOLDER.parent) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def event(at_s: float, key: str, value: object = None) -> str:
    entry = {"namespace": "", "time_ms": int(1000 * (1_715_000_000 + at_s)), "key": key, "value": value}
    return f":::MLLOG {json.dumps(entry)}\n"


@pytest.fixture
def submission(tmp_path: Path) -> Path:
    network = tmp_path / "results" / "1xBOX" / "ssd"
    readings = network / "power" / "result_1"
    readings.mkdir(parents=True)
    at = np.arange(0.0, 600.0, 2.0)
    watts = np.where((at % 60) < 50, 7000, 4000)
    power = [event(0, "power_measurement_start")]
    power += [event(t, "power_reading", int(w)) for t, w in zip(at, watts, strict=True)]
    power.insert(20, event(30.0, "power_reading", 6999))  # the meter's clock steps back now and then
    (readings / "node_0.txt").write_text("".join(power))
    log = ["+ srun --ntasks=8\n", "0: :::MLLOG {broken by another rank\n"]
    for epoch in range(10):
        for rank in range(2):
            log.append(f"{rank}: " + event(60.0 * epoch + 0.01 * rank, "epoch_start"))
        log.append("0: " + event(60.0 * epoch + 50, "eval_start"))
        log += [
            "0: " + event(60.0 * epoch + 12 * s, "tracked_stats", {"train_step_timing in s": 11.9}) for s in range(4)
        ]
    (network / "result_1.txt").write_text("".join([*log, event(600, "run_stop")]))
    (network / "power" / "result_2").mkdir()  # a run whose log was not published
    return tmp_path


def test_a_submission_is_read_as_its_repository_has_it(modules: dict[str, ModuleType], submission: Path) -> None:
    (problem,) = modules["problems"].mlperf_submission(submission)
    step, level = problem.truth.levels
    assert (step.roles, step.visible) == ((CycleRole.STEP,), True)
    assert step.periods_s == pytest.approx((12.0,))
    assert problem.truth.periods_s == pytest.approx((60.0,))
    assert set(level.roles) == {CycleRole.EPOCH, CycleRole.EVALUATION}
    assert (problem.total, problem.epochs, problem.truth.shape) == (9, 10, "ssd")
    assert problem.traces[0].metrics == ("power_watts",)
    assert np.all(np.diff(problem.traces[0].time_s) > 0)


def test_simple_methods_find_the_cycle_of_a_submission(modules: dict[str, ModuleType], submission: Path) -> None:
    problems = list(modules["problems"].mlperf_submission(submission))
    for name in ("FFT", "autocorrelation"):
        scores = modules["scoring"].evaluate_method(modules["methods"].METHODS[name], problems)
        assert scores.summary.listed_within_10pct == 1.0
        assert scores.summary.within_10pct == 1.0
        assert scores.eta_error < 0.2


def test_a_method_of_others_takes_part_by_its_name(
    modules: dict[str, ModuleType], submission: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sixty.py").write_text(
        "from methods import answer\n\ndef find(traces, epochs):\n    return answer([60.0, 7.0], [0.9, 0.05])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    name, method = modules["methods"].load_method("mine=sixty:find")
    scores = modules["scoring"].evaluate_method(method, modules["problems"].mlperf_submission(submission))
    assert name == "mine"
    assert (scores.summary.levels_told, scores.summary.listed_within_10pct, scores.median_error) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize("text", ["mine", "mine=sixty", "mine=no_such_module:find", "mine=math:no_such_function"])
def test_a_method_that_cannot_be_found_is_refused(modules: dict[str, ModuleType], text: str) -> None:
    with pytest.raises(UsageError, match="--method"):
        modules["methods"].load_method(text)


def test_steps_that_are_only_counted_are_right_within_two(modules: dict[str, ModuleType]) -> None:
    problems, methods = modules["problems"], modules["methods"]
    time_s = np.arange(0, 200, 0.5)
    trace = problems._increasing(time_s, {"power_watts": np.where(time_s % 10 < 8, 300.0, 200.0)}, "a")
    asked = problems.Problem("lora", (trace,), problems.Truth(()), steps=20)
    for period, right in ((10.0, 1.0), (5.0, 0.0)):
        scores = modules["scoring"].evaluate_method(lambda _, __, p=period: methods.answer([p]), [asked])
        assert scores.counts_right == right
