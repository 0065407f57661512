"""Iterations: worked out by hand, against order statistics, and what must hold of any."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from gpusonde.simulator.communication import BandwidthSharing
from gpusonde.simulator.compute import ComputeCurve, ComputeProbe, CurveOrigin, fit_compute_curve
from gpusonde.simulator.gradients import GradientTrace, assumed_trace
from gpusonde.simulator.iteration import (
    BusBandwidth,
    DeviceGroup,
    IterationSimulator,
    draw_slowest,
    expect_slowest,
)


class Wire:
    """A network on which every transfer reaches the same."""

    def __init__(self, bytes_per_second, log_spread=0.0):
        self._reached = (bytes_per_second, log_spread)

    def bus_bandwidth(self, transfer_bytes, world_size):
        return BusBandwidth(*(np.full(len(transfer_bytes), each) for each in self._reached))


def curve(latency_s=0.3, spread=0.0):
    """As long at 16 samples as it says, a third of it forward."""
    return ComputeCurve(
        np.array([8.0, 16.0]),
        np.array([latency_s / 2, latency_s]),
        np.full(2, spread),
        1 / 3,
        CurveOrigin.PROBES,
        8,
        16,
    )


def test_an_iteration_is_forward_then_backward_or_exchange_then_the_optimizer():
    # Two devices move as many bytes as the buckets have: 0.1 s each. Ready at 0.1 and 0.2 of the backward pass.
    simulator = IterationSimulator(
        GradientTrace([0.5, 1.0], [100.0, 100.0]), Wire(1000.0), BandwidthSharing(max_in_flight=1), optimizer_s=0.05
    )
    found = simulator.estimate([DeviceGroup(curve(), 2, 16)])
    assert found.forward_s == pytest.approx(0.1, abs=1e-9)
    assert found.backward_s == pytest.approx(0.2, abs=1e-9)
    assert found.exchange_s == pytest.approx(0.3, abs=1e-9)
    assert found.exposed_communication_s == pytest.approx(0.1, abs=1e-9)
    assert found.mean_s == pytest.approx(0.45, abs=1e-9)
    assert (found.p50_s, found.p95_s) == pytest.approx((0.45, 0.45), abs=1e-9)
    assert found.optimizer_s == 0.05


def test_an_exchange_that_hides_behind_the_backward_pass_costs_nothing():
    simulator = IterationSimulator(GradientTrace([0.2, 0.4], [100.0, 100.0]), Wire(1e4))
    found = simulator.estimate([DeviceGroup(curve(), 2, 16)])
    assert found.mean_s == pytest.approx(0.3, abs=1e-9)
    assert found.exposed_communication_s == 0.0
    assert found.exchange_s == pytest.approx(0.09, abs=1e-9)


def test_one_device_exchanges_nothing():
    simulator = IterationSimulator(assumed_trace(1e9), Wire(1.0))
    assert simulator.estimate([DeviceGroup(curve(), 1, 16)]).mean_s == pytest.approx(0.3, abs=1e-9)


def test_the_slowest_group_decides():
    simulator = IterationSimulator(GradientTrace([1.0], [1.0]), Wire(1e9))
    groups = [DeviceGroup(curve(0.3), 4, 16), DeviceGroup(curve(0.9), 1, 16), DeviceGroup(curve(0.9), 2, 8)]
    assert simulator.estimate(groups).mean_s == pytest.approx(0.9, rel=1e-6)


@pytest.mark.parametrize("spread", [0.02, 0.1])
@pytest.mark.parametrize("devices", [1, 2, 4, 16, 64, 256])
def test_the_slowest_of_many_is_the_order_statistic(devices, spread):
    highest, _ = integrate.quad(
        lambda x: x * devices * stats.norm.pdf(x) * stats.norm.cdf(x) ** (devices - 1), -9, 9, epsabs=1e-10
    )
    forward, backward = draw_slowest([DeviceGroup(curve(0.3, spread), devices, 16)], samples=256)
    assert (forward + backward).mean() == pytest.approx(0.3 * (1 + spread * highest), rel=0.002)
    level = stats.norm.ppf(0.95 ** (1 / devices))
    assert np.quantile(forward + backward, 0.95) == pytest.approx(0.3 * (1 + spread * level), rel=0.002)


@pytest.mark.parametrize("seed", range(5))
def test_the_slowest_of_groups_that_differ_is_the_order_statistic(seed):
    groups = [(0.30, 0.05, 4), (0.31, 0.1, 2), (0.28, 0.08, 16)]

    def none_above(t):
        return math.prod(stats.norm.cdf((t / latency - 1) / spread) ** count for latency, spread, count in groups)

    mean, _ = integrate.quad(lambda t: 1 - none_above(t), 0, 1, epsabs=1e-10, limit=200)
    devices = [DeviceGroup(curve(latency, spread), count, 16) for latency, spread, count in groups]
    forward, backward = draw_slowest(devices, 256, seed)
    assert (forward + backward).mean() == pytest.approx(mean, rel=1e-4)
    usual, spread, count = np.array(groups).T[:, None]
    expected, scatter = expect_slowest(usual, spread, count)
    assert expected[0] == pytest.approx(mean, rel=1e-5)
    assert scatter[0] == pytest.approx((forward + backward).std() / mean, rel=0.02)


def test_devices_alike_take_as_long_in_several_groups_as_in_one():
    """Groups used to be drawn one by one, and some splits of the same devices looked faster than others."""
    one = draw_slowest([DeviceGroup(curve(0.3, 0.05), 12, 16)], 256)
    several = draw_slowest([DeviceGroup(curve(0.3, 0.05), count, 16) for count in (1, 4, 7)], 256)
    assert np.allclose(several, one, rtol=1e-10)


def test_an_estimate_is_the_same_every_time():
    simulator = IterationSimulator(assumed_trace(1e8), Wire(1e9, 0.2))
    groups = [DeviceGroup(curve(0.3, 0.1), 8, 16), DeviceGroup(curve(0.2, 0.1), 2, 16)]
    assert simulator.estimate(groups) == simulator.estimate(groups)


def test_a_network_that_varies_shows_in_the_tail():
    steady, varying = (
        IterationSimulator(assumed_trace(1e8), Wire(2e8, spread)).estimate([DeviceGroup(curve(), 8, 16)])
        for spread in (0.0, 0.3)
    )
    assert steady.p95_s == pytest.approx(steady.p50_s)
    assert varying.p50_s == pytest.approx(steady.p50_s, rel=0.01)
    assert varying.p95_s > 1.2 * varying.p50_s


def test_neither_more_devices_nor_a_slower_network_makes_an_iteration_shorter():
    def mean(devices, bandwidth):
        simulator = IterationSimulator(assumed_trace(1e8), Wire(bandwidth, 0.1))
        return simulator.estimate([DeviceGroup(curve(0.3, 0.1), devices, 16)]).mean_s

    over_devices = [mean(devices, 5e8) for devices in (1, 2, 4, 8, 16, 32)]
    over_bandwidth = [mean(8, bandwidth) for bandwidth in (1e10, 2e9, 1e9, 5e8, 1e8)]
    assert over_devices == sorted(over_devices)
    assert over_bandwidth == sorted(over_bandwidth)


def test_a_batch_size_that_no_probe_covers_is_said():
    simulator = IterationSimulator(assumed_trace(1e8), Wire(1e9))
    known = fit_compute_curve([ComputeProbe(8, 0.1), ComputeProbe(16, 0.2)])
    assert simulator.estimate([DeviceGroup(known, 2, 32), DeviceGroup(known, 2, 16)]).extrapolated
    assert not simulator.estimate([DeviceGroup(known, 2, 16)]).extrapolated


def test_iterations_that_do_not_exist_are_refused():
    simulator = IterationSimulator(assumed_trace(1e8), Wire(1e9))
    with pytest.raises(ValueError, match="needs a device"):
        simulator.estimate([])
    with pytest.raises(ValueError, match="one device or more"):
        DeviceGroup(curve(), 0, 16)
    with pytest.raises(ValueError, match="above zero"):
        DeviceGroup(curve(), 1, 0)
    with pytest.raises(ValueError, match="optimizer_s"):
        IterationSimulator(assumed_trace(1e8), Wire(1e9), optimizer_s=-1)
    with pytest.raises(ValueError, match="samples"):
        IterationSimulator(assumed_trace(1e8), Wire(1e9), samples=0)
