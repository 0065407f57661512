"""APM and Paleo, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from simulator_baselines import (
    ApmGroup,
    PaleoDevice,
    PaleoNetwork,
    apm_iteration_s,
    full_overlap_s,
    fully_overlapped_exchange_s,
    paleo_iteration_s,
)

from gpusonde.errors import ProblemError
from gpusonde.simulator.compute import ComputeProbe, fit_compute_curve

# 0.1 s fixed and 0.01 s per sample; a third of it is the forward pass.
PROBES = (ComputeProbe(10, 0.2), ComputeProbe(20, 0.3))


def test_apm_takes_the_slowest_device_the_slowest_network_and_full_overlap():
    fast, slow = ApmGroup(PROBES, 3, 10, 1e9), ApmGroup(PROBES, 1, 20, 1e8)
    # 2 * 3/4 * 4e7 bytes at 1e8 per second are 0.6 s, beside a backward pass of 0.2 s.
    assert apm_iteration_s([fast, slow], 4e7) == pytest.approx(0.1 + 0.6)
    # At 1e9 per second they hide.
    assert apm_iteration_s([fast, ApmGroup(PROBES, 1, 20, 1e9)], 4e7) == pytest.approx(0.3)
    assert apm_iteration_s([ApmGroup(PROBES, 1, 20, 1.0)], 4e7) == pytest.approx(0.3)


def test_full_overlap_and_the_exchange_behind_it_are_inverse_where_it_shows():
    compute = fit_compute_curve(PROBES, "linear").predict([10, 10, 10])
    exchange = np.array([0.2, 0.5, 3.0])
    assert fully_overlapped_exchange_s(compute, full_overlap_s(compute, exchange)) == pytest.approx(exchange)
    assert fully_overlapped_exchange_s(compute, np.array([0.1, 0.2, 0.19])).tolist() == [0.0, 0.0, 0.0]


def test_paleo_adds_operations_memory_and_the_mean_of_its_algorithms():
    network = PaleoNetwork(flops_per_sample=1e9, bytes_per_sample=1e8, parameter_bytes=1e8)
    device = PaleoDevice(flops_per_second=1e13, memory_bytes_per_second=1e12, share_of_peak=0.5)
    compute = 32 * (1e-4 + 1e-4) / 0.5
    assert paleo_iteration_s(network, device, 1, 32, 1e9) == pytest.approx(compute)
    # Eight devices: 14 transfers to and from one, 6 in a tree, 3 in a butterfly, 0.1 s each.
    assert paleo_iteration_s(network, device, 8, 32, 1e9) == pytest.approx(compute + 0.1 * (14 + 6 + 3) / 3)


def test_figures_that_describe_no_job_are_refused():
    with pytest.raises(ValueError, match="needs a device"):
        apm_iteration_s([], 1e8)
    with pytest.raises(ValueError, match="parameter_bytes"):
        apm_iteration_s([ApmGroup(PROBES, 1, 10, 1e9)], 0)
    with pytest.raises(ValueError, match="rated_bytes_per_second"):
        apm_iteration_s([ApmGroup(PROBES, 1, 10, 0)], 1e8)
    with pytest.raises(ProblemError, match="two batch sizes"):
        apm_iteration_s([ApmGroup(PROBES[:1], 1, 10, 1e9)], 1e8)
    with pytest.raises(ValueError, match="flops_per_second"):
        paleo_iteration_s(PaleoNetwork(1, 1, 1), PaleoDevice(0, 1), 1, 1, 1)
