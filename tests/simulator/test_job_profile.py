"""A profile travels as plain JSON, and a file that is none is refused with what is wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gpusonde.simulator.compute import ComputeProbe
from gpusonde.simulator.gradients import GradientTrace
from gpusonde.simulator.job_profile import LARGEST_PROFILE_BYTES, JobProfile, JobProfileError

PROBES = (ComputeProbe(8, 0.02, 0.007, 0.01), ComputeProbe(32, 0.05, 0.017, 0.02), ComputeProbe(64, 0.09))


def a_profile(**changes):
    gradients = GradientTrace(np.array([0.4, 0.9]), np.array([1e6, 2e6]))
    return JobProfile(**{
        "device": "NVIDIA A100", "probes": PROBES, "gradients": gradients, "optimizer_s": 0.003, "largest_batch": 96,
    } | changes)  # fmt: skip


def test_a_profile_read_is_the_one_written(tmp_path):
    path = tmp_path / "profile.json"
    a_profile().write(path)
    read = JobProfile.read(path)
    assert read.as_json() == a_profile().as_json()
    assert read.probes == PROBES
    assert read.curve().largest_batch == 96


def test_what_stands_in_the_file():
    assert a_profile(largest_batch=None).as_json() == {
        "format": "gpusonde.profile/1",
        "device": "NVIDIA A100",
        "probes": [
            {"batch_size": 8, "total_s": 0.02, "forward_s": 0.007, "spread": 0.01},
            {"batch_size": 32, "total_s": 0.05, "forward_s": 0.017, "spread": 0.02},
            {"batch_size": 64, "total_s": 0.09, "forward_s": None, "spread": None},
        ],
        "gradients": {"ready_fractions": [0.4, 0.9], "bucket_bytes": [1e6, 2e6], "assumed": False},
        "optimizer_s": 0.003,
        "largest_batch": None,
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "gpusonde.profile/2"}, "this version reads 'gpusonde.profile/1'"),
        ({"device": 3}, "device must be a text"),
        ({"device": "x" * 300}, "device needs a name"),
        ({"probes": {}}, "probes must be a list"),
        ({"probes": [{"batch_size": 1, "total_s": 1}] * 2000}, "at most 1000"),
        ({"probes": [7]}, "a probe must be an object"),
        ({"probes": [{"batch_size": 8, "total_s": 0.02}]}, "two batch sizes"),
        ({"probes": [{"batch_size": True, "total_s": 0.02}]}, "batch_size must be a number from 1 to"),
        ({"probes": [{"batch_size": 8}]}, "total_s must be a number"),
        ({"gradients": None}, "gradients must be an object"),
        ({"gradients": {"ready_fractions": [0.5]}}, "gradients: "),
        ({"gradients": {"ready_fractions": [10**400], "bucket_bytes": [1]}}, "gradients: "),
        ({"probes": [{"batch_size": 1, "total_s": 5e-324}]}, "total_s must be a number from 1e-09"),
        ({"optimizer_s": -1}, "optimizer_s must be a number from 0 to"),
        ({"optimizer_s": "0.1"}, "optimizer_s must be a number from 0 to .*, not '0.1'"),
        ({"optimizer_s": 10**400}, "optimizer_s must be a number"),
        ({"optimizer_s": float("nan")}, "optimizer_s must be a number"),
        ({"largest_batch": 0}, "largest_batch must be a number from 1"),
    ],
)
def test_other_values_are_refused(change, words):
    with pytest.raises(JobProfileError, match=words):
        JobProfile.from_json(a_profile().as_json() | change)


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[" * 100_000, b"{", b"[]", b"null"])
def test_other_files_are_refused(data, tmp_path):
    path = tmp_path / "profile.json"
    path.write_bytes(data)
    with pytest.raises(JobProfileError, match=r"profile\.json"):
        JobProfile.read(path)


def test_a_file_larger_than_any_profile_is_not_parsed(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(a_profile().as_json()) + " " * LARGEST_PROFILE_BYTES)
    with pytest.raises(JobProfileError, match="larger than"):
        JobProfile.read(path)
