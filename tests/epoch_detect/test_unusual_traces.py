"""Traces that no job makes get an answer, with fewer levels and the reason; never an exception."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from gpusonde.epoch_detect import CycleRole, RunState, Told, detect
from gpusonde.telemetry import Trace

_TICKS = 700


def _values(kind: str, rng: np.random.Generator) -> np.ndarray:
    noise = rng.random(_TICKS)
    square = (np.arange(_TICKS) % 50 < 40).astype(np.float64)
    made = {
        "constant": np.full(_TICKS, 0.5),
        "zero": np.zeros(_TICKS),
        "nothing": np.full(_TICKS, np.nan),
        "one value": np.where(np.arange(_TICKS) == 300, 1.0, np.nan),
        "holes": np.where(rng.random(_TICKS) < 0.5, np.nan, square),
        "huge": square * 3e38,
        "tiny": square * 1e-38,
        "negative": -square,
        "infinite": np.where(rng.random(_TICKS) < 0.01, np.inf, square),
        "noise": noise,
        "spike": (np.arange(_TICKS) == 350).astype(np.float64),
        "two levels": (np.arange(_TICKS) < 350).astype(np.float64),
        "flicker": np.arange(_TICKS) % 2 * 1.0,
        "steps up": np.floor(np.arange(_TICKS) / 50),
        "heavy tails": rng.standard_cauchy(_TICKS) * 1e6,
    }
    return np.asarray(made[kind])


_KINDS = (
    "constant", "zero", "nothing", "one value", "holes", "huge", "tiny", "negative", "infinite", "noise", "spike",
    "two levels", "flicker", "steps up", "heavy tails",
)  # fmt: skip


def _detect(trace: Trace | list[Trace], told: Told | None = None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = detect(trace, told=told)
    assert len(found.cycles) <= 5
    assert found.run_state in (None, *RunState)
    assert 0 <= found.run_state_confidence <= 1
    assert 0 <= found.confidence <= 1
    assert found.reason
    for cycle in found.cycles:
        assert cycle.period_s > 0
        assert 0 <= cycle.confidence <= 1
        assert np.isfinite(cycle.starts_s).all()


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("name", ["sm_active", "power_watts", "pcie_tx_bytes_per_second", "framebuffer_used_bytes"])
def test_any_values_get_an_answer(kind: str, name: str) -> None:
    time_s = 0.1 * np.arange(_TICKS) - 1e3
    _detect(Trace(time_s, {name: _values(kind, np.random.default_rng(1))}))


@pytest.mark.parametrize("kind", ["constant", "nothing", "holes", "flicker", "spike"])
def test_a_gpu_of_a_job_may_be_like_no_other(kind: str) -> None:
    time_s, rng = 0.1 * np.arange(_TICKS), np.random.default_rng(2)
    usual = Trace(
        time_s, {"sm_active": _values("holes", rng), "power_watts": 300 * _values("holes", rng)}, gpu_uuid="a"
    )
    _detect([usual, Trace(time_s, {"sm_active": _values(kind, rng)}, gpu_uuid="b")])
    _detect([usual, Trace(time_s + 1e4, {"sm_active": _values(kind, rng)}, gpu_uuid="b")])


@pytest.mark.parametrize("ticks", [0, 1, 2, 31, 32, 33])
def test_a_few_ticks_get_an_answer(ticks: int) -> None:
    _detect(Trace(np.arange(ticks, dtype=np.float64), {"sm_active": np.ones(ticks)}))


@pytest.mark.parametrize("seen", [0, 1, 31])
def test_what_is_hardly_seen_is_not_called_idle(seen: int) -> None:
    few = Trace(np.arange(seen, dtype=np.float64), {"gpu_utilization": np.full(seen, 0.5)})
    values = np.where(np.arange(_TICKS) < seen, 0.5, np.nan)
    for trace in (few, Trace(np.arange(_TICKS, dtype=np.float64), {"gpu_utilization": values})):
        assert detect(trace).run_state is None
    rested = Trace(np.arange(_TICKS, dtype=np.float64), {"gpu_utilization": np.zeros(_TICKS)})
    assert detect(rested).run_state is RunState.IDLE


@pytest.mark.parametrize("steps", ["uneven", "far apart", "bursts", "huge"])
def test_any_times_get_an_answer(steps: str) -> None:
    rng = np.random.default_rng(3)
    step = {
        "uneven": rng.exponential(0.1, _TICKS) + 1e-3,
        "far apart": np.full(_TICKS, 3600.0),
        "bursts": np.where(np.arange(_TICKS) % 100 == 0, 1e5, 0.01),
        "huge": np.full(_TICKS, 1e7),
    }[steps]
    _detect(Trace(np.cumsum(step), {"sm_active": _values("holes", rng)}))


@pytest.mark.parametrize(
    "told",
    [
        Told(total_epochs=1), Told(total_epochs=10**9), Told(steps_per_epoch=1), Told(steps_per_epoch=10**9),
        Told(roles=((1e-9, CycleRole.STEP), (1e9, CycleRole.EPOCH))),
        Told(roles=((5.0, CycleRole.EVALUATION), (5.0, CycleRole.EPOCH))),
    ],
)  # fmt: skip
def test_whatever_is_told_gets_an_answer(told: Told) -> None:
    time_s, square = 0.1 * np.arange(_TICKS), (np.arange(_TICKS) % 50 < 40).astype(np.float64)
    _detect(Trace(time_s, {"sm_active": square}), told)
    _detect(Trace(time_s, {"sm_active": np.zeros(_TICKS)}), told)
