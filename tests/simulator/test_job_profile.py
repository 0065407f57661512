"""A profile travels as plain JSON, and a file that is none is refused with what is wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gpusonde.documents import LARGEST_DOCUMENT_BYTES, parse
from gpusonde.errors import DocumentError
from gpusonde.simulator.compute import ComputeProbe
from gpusonde.simulator.gradients import GradientTrace
from gpusonde.simulator.job_profile import JobProfile

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
    ("change", "field"),
    [
        ({"format": "gpusonde.profile/2"}, "format"),
        ({"device": 3}, "device"),
        ({"device": "x" * 300}, "device"),
        ({"probes": {}}, "probes"),
        ({"probes": [{"batch_size": 1, "total_s": 1}] * 2000}, "probes"),
        ({"probes": [7]}, "probes[0]"),
        ({"probes": [{"batch_size": 8, "total_s": 0.02}]}, ""),
        ({"probes": [{"batch_size": True, "total_s": 0.02}]}, "probes[0].batch_size"),
        ({"probes": [{"batch_size": 8}]}, "probes[0].total_s"),
        ({"gradients": None}, "gradients"),
        ({"gradients": {"ready_fractions": [0.5]}}, "gradients.bucket_bytes"),
        ({"gradients": {"ready_fractions": [10**400], "bucket_bytes": [1]}}, "gradients.ready_fractions[0]"),
        ({"probes": [{"batch_size": 1, "total_s": 5e-324}]}, "probes[0].total_s"),
        ({"optimizer_s": -1}, "optimizer_s"),
        ({"optimizer_s": "0.1"}, "optimizer_s"),
        ({"optimizer_s": 10**400}, "optimizer_s"),
        ({"optimizer_s": float("nan")}, "optimizer_s"),
        ({"largest_batch": 0}, "largest_batch"),
    ],
)
def test_other_values_are_refused(change, field):
    with pytest.raises(DocumentError) as error:
        parse(JobProfile, a_profile().as_json() | change, format_name="profile")
    assert error.value.field == field


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[" * 100_000, b"{", b"[]", b"null"])
def test_other_files_are_refused(data, tmp_path):
    path = tmp_path / "profile.json"
    path.write_bytes(data)
    with pytest.raises(DocumentError, match=r"profile\.json"):
        JobProfile.read(path)


def test_a_file_larger_than_any_profile_is_not_parsed(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(a_profile().as_json()) + " " * LARGEST_DOCUMENT_BYTES)
    with pytest.raises(DocumentError, match="larger than"):
        JobProfile.read(path)
