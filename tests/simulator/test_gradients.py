"""Gradient traces: recorded, gathered into buckets, assumed."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from gpusonde.documents import parse
from gpusonde.errors import DocumentError, ProblemError
from gpusonde.simulator.gradients import GradientTrace, assumed_trace, bytes_from_traffic, ring_traffic_bytes


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
    again = parse(GradientTrace, json.loads(json.dumps(trace.as_json())))
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
    with pytest.raises(ProblemError, match=says):
        GradientTrace(fractions, sizes)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({}, "ready_fractions"),
        ({"ready_fractions": [1.0]}, "bucket_bytes"),
        ({"ready_fractions": ["x"], "bucket_bytes": [1.0]}, "ready_fractions[0]"),
        ({"ready_fractions": None, "bucket_bytes": [1.0]}, "ready_fractions"),
        ({"ready_fractions": [], "bucket_bytes": []}, ""),
    ],
)
def test_json_that_is_no_trace_is_refused(values, field):
    with pytest.raises(DocumentError) as error:
        parse(GradientTrace, values)
    assert error.value.field == field


def test_bytes_and_limits_that_do_not_exist_are_refused():
    for parameter_bytes in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ProblemError, match="parameter_bytes"):
            assumed_trace(parameter_bytes)
    for traffic, world_size in ((1e6, 1), (0.0, 2), (math.nan, 2)):
        with pytest.raises(ProblemError):
            bytes_from_traffic(traffic, world_size)
    with pytest.raises(ProblemError, match="size of a bucket"):
        assumed_trace(1e6).bucketed(0)
