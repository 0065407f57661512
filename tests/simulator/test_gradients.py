"""Gradient traces: recorded, gathered into buckets, assumed."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from gpusonde.simulator.gradients import (
    GradientTrace,
    GradientTraceError,
    assumed_trace,
    bytes_from_traffic,
    ring_traffic_bytes,
)


def test_gradients_fill_buckets_in_their_order_and_a_bucket_is_ready_with_its_last_one():
    trace = GradientTrace([0.1, 0.2, 0.4, 0.7, 1.0], [1.0, 4.0, 4.0, 3.0, 2.0])
    buckets = trace.bucketed(bucket_bytes=6, first_bucket_bytes=1)
    assert buckets.ready_fractions.tolist() == [0.1, 0.4, 1.0]
    assert buckets.bucket_bytes.tolist() == [1.0, 8.0, 5.0]


def test_no_byte_is_lost_in_buckets():
    random = np.random.default_rng(2)
    trace = GradientTrace(np.sort(random.random(300)), random.lognormal(12, 2, 300))
    for size in (1, 100_000, 10**9):
        assert trace.bucketed(size, size).total_bytes == pytest.approx(trace.total_bytes)


@pytest.mark.parametrize("parameter_bytes", [1.0, 4e4, 1e8, 1e12])
def test_an_assumed_trace_says_so_holds_all_bytes_and_ends_with_the_backward_pass(parameter_bytes):
    trace = assumed_trace(parameter_bytes)
    assert trace.assumed
    assert trace.total_bytes == pytest.approx(parameter_bytes)
    assert trace.ready_fractions[-1] == pytest.approx(1.0)
    assert trace.bucket_bytes.size <= 1001


def test_a_trace_survives_json():
    trace = assumed_trace(1e8)
    again = GradientTrace.from_json(json.loads(json.dumps(trace.as_json())))
    assert again.ready_fractions.tolist() == trace.ready_fractions.tolist()
    assert again.bucket_bytes.tolist() == trace.bucket_bytes.tolist()
    assert again.assumed


def test_traffic_of_a_ring_and_the_bytes_behind_it_are_inverse():
    for world_size in (2, 3, 8, 64):
        traffic = float(ring_traffic_bytes([3e7, 7e7], world_size).sum())
        assert bytes_from_traffic(traffic, world_size) == pytest.approx(1e8)
    assert ring_traffic_bytes([3e7], 1).tolist() == [0.0]


@pytest.mark.parametrize(
    ("fractions", "sizes", "says"),
    [
        ([], [], "a bucket at least"),
        ([0.5], [1.0, 2.0], "one time and one size"),
        ([0.5, 0.4], [1.0, 1.0], "not decrease"),
        ([0.5, 1.1], [1.0, 1.0], "between 0 and 1"),
        ([math.nan], [1.0], "between 0 and 1"),
        ([0.5], [0.0], "above zero"),
        ([0.5], [math.inf], "finite"),
        (np.linspace(0, 1, 100_001), np.ones(100_001), "too many"),
    ],
)
def test_figures_that_are_no_trace_are_refused(fractions, sizes, says):
    with pytest.raises(GradientTraceError, match=says):
        GradientTrace(fractions, sizes)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "needs ready_fractions"),
        ({"ready_fractions": [1.0]}, "needs bucket_bytes"),
        ({"ready_fractions": ["x"], "bucket_bytes": [1.0]}, "lists of numbers"),
        ({"ready_fractions": None, "bucket_bytes": [1.0]}, "between 0 and 1"),
        ({"ready_fractions": [], "bucket_bytes": []}, "a bucket at least"),
    ],
)
def test_json_that_is_no_trace_is_refused(values, says):
    with pytest.raises(GradientTraceError, match=says):
        GradientTrace.from_json(values)


def test_bytes_and_limits_that_do_not_exist_are_refused():
    for parameter_bytes in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(GradientTraceError, match="parameter_bytes"):
            assumed_trace(parameter_bytes)
    for traffic, world_size in ((1e6, 1), (0.0, 2), (math.nan, 2)):
        with pytest.raises(GradientTraceError):
            bytes_from_traffic(traffic, world_size)
    with pytest.raises(GradientTraceError, match="size of a bucket"):
        assumed_trace(1e6).bucketed(0)
