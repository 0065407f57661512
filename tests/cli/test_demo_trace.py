"""The bundled trace: honest about where it comes from, small, and reproducible."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gpusonde.cli.demo.run import bundled_trace
from gpusonde.telemetry import Trace, read_trace

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def trace() -> Trace:
    return read_trace(bundled_trace())


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_demo_trace", DATA / "generate_demo_trace.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_committed_generator_reproduces_the_trace_bit_for_bit(trace: Trace, generator: ModuleType) -> None:
    generated = generator.generate()
    assert generated.metrics == trace.metrics
    assert generated.time_s.tobytes() == trace.time_s.tobytes()
    for name in trace.metrics:
        assert generated.values[name].tobytes() == trace.values[name].tobytes(), name
    assert dict(generated.attributes) == dict(trace.attributes)
    assert (generated.gpu_uuid, generated.gpu_model) == (trace.gpu_uuid, trace.gpu_model)


def test_another_seed_gives_another_trace(trace: Trace, generator: ModuleType) -> None:
    assert generator.generate(seed=21).time_s.tobytes() != trace.time_s.tobytes()


def test_the_trace_says_that_it_is_generated_and_is_small(trace: Trace) -> None:
    assert "not recorded on a GPU" in trace.attributes["generated"]
    assert bundled_trace().stat().st_size < 1_000_000
    assert trace.warnings == ()


def test_the_trace_looks_like_a_t4_sampled_at_10_hz(trace: Trace) -> None:
    assert trace.gpu_model == "Tesla T4"
    assert trace.interval_s == pytest.approx(0.1, abs=0.001)
    assert trace.values["power_watts"].max() <= 75
    assert trace.values["power_watts"].min() > 8
    assert trace.values["sm_clock_mhz"].max() <= 1590
    assert set(np.round(trace.values["gpu_utilization"] * 100) / 100) == set(trace.values["gpu_utilization"])
    steps = np.diff(trace.time_s)
    assert (steps > 0.15).sum() >= 3, "lost ticks are part of the picture"
    assert steps.max() < 1.0


def test_the_trace_knows_its_true_epochs(trace: Trace) -> None:
    starts = json.loads(trace.attributes["true_epoch_starts_s"])
    end = json.loads(trace.attributes["true_end_s"])
    durations = np.diff([*starts, end])
    assert len(starts) == 12
    assert durations[0] > 1.2 * np.median(durations), "the first epoch is the slow one"
    assert ((durations[1:] > 15) & (durations[1:] < 20)).all()
    assert trace.time_s[0] < starts[0] - 10
    assert trace.time_s[-1] > end + 5
