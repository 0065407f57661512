"""Iterations of several micro-batches, and of state that GPUs share out: worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from gpusonde.simulator.communication import BandwidthSharing
from gpusonde.simulator.compute import ComputeCurve, CurveOrigin
from gpusonde.simulator.gradients import GradientTrace
from gpusonde.simulator.iteration import BusBandwidth, DeviceGroup, IterationSimulator, Sharding, StepMode

# Four devices send 2 * 3 / 4 of what an allreduce has; two buckets of 80 bytes at 100 bytes/s take 1.2 s each.
TRACE = GradientTrace(np.array([0.5, 1.0]), np.array([80.0, 80.0]))
# Forward 1 s, backward 2 s, at any batch.
CURVE = ComputeCurve(np.array([1.0, 2.0]), np.full(2, 3.0), np.zeros(2), 1 / 3, CurveOrigin.PROBES, 1, 2)


class Wire:
    def bus_bandwidth(self, transfer_bytes, world_size):
        return BusBandwidth(np.full(len(transfer_bytes), 100.0), np.zeros(len(transfer_bytes)))


def mean_s(mode: StepMode, devices: int = 4, curve: ComputeCurve = CURVE) -> float:
    simulator = IterationSimulator(
        TRACE, Wire(), BandwidthSharing(max_in_flight=1), optimizer_s=0.5, mode=mode, samples=4
    )
    return simulator.estimate([DeviceGroup(curve, devices, 1)]).mean_s


@pytest.mark.parametrize(
    ("mode", "expected_s"),
    [
        # Buckets are ready at 1 and 2 s of the backward pass: the exchange ends at 3.4 s (1 + 1.2, 2.2 + 1.2).
        (StepMode(), 1 + 3.4 + 0.5),
        # Two more micro-batches of 3 s before the one exchange.
        (StepMode(3), 2 * 3 + 1 + 3.4 + 0.5),
        # A reduce-scatter is half of it: 0.6 s each, the last one ends at 2.6 s; then 1.2 s to gather the weights.
        (StepMode(1, Sharding.ZERO2), 1 + 2.6 + 1.2 + 0.5),
        (StepMode(3, Sharding.ZERO2), 3 * (1 + 2.6) + 1.2 + 0.5),
        # The forward pass waits 0.6 s for its first weights, and all are gathered after 1.2 s.
        (StepMode(1, Sharding.ZERO3), 1.6 + 3.4 + 0.5),
        (StepMode(3, Sharding.ZERO3), 3 * (1.6 + 3.4) + 0.5),
    ],
)
def test_what_an_iteration_takes(mode: StepMode, expected_s: float) -> None:
    assert mean_s(mode) == pytest.approx(expected_s)


@pytest.mark.parametrize("sharding", list(Sharding))
def test_one_device_exchanges_nothing(sharding: Sharding) -> None:
    assert mean_s(StepMode(2, sharding), devices=1) == pytest.approx(2 * 3 + 0.5)


def test_a_checkpointed_step_repeats_its_forward_pass() -> None:
    slower = CURVE.checkpointed()
    assert slower.predict(1).forward_s == pytest.approx(1.0)
    assert slower.predict(1).backward_s == pytest.approx(3.0)
