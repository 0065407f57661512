"""Files of documents: JSON and TOML, sizes, and the files that a problem refers to."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.problem_documents import measurements, probes, small_problem

from gpusonde.catalog import load_gpus, load_offers
from gpusonde.documents import LARGEST_DOCUMENT_BYTES, parse_json, read_document
from gpusonde.errors import DocumentError
from gpusonde.optimizer.documents.problem import parse_problem
from gpusonde.optimizer.documents.references import read_problem
from gpusonde.service.durable_files import write_json

GPUS, OFFERS = load_gpus(), load_offers()

TOML = """
format = "gpusonde.problem/1"
objective = "time"
global_batch = 64
iterations = 100

[job]
gradients = { parameter_bytes = 1e8 }

[[job.curves]]
device = "T4"
probes = [{ batch_size = 8, total_s = 0.03 }, { batch_size = 64, total_s = 0.2 }]

[[offers]]
name = "g4dn.xlarge"
device = "T4"
quota = 4
usd_per_hour = 0.526
network_bytes_per_second = 6.25e8
"""


def test_toml_and_json_say_the_same(tmp_path):
    (tmp_path / "a.toml").write_text(TOML)
    found = read_document(tmp_path / "a.toml")
    write_json(tmp_path / "a.json", found)
    assert read_document(tmp_path / "a.json") == found
    assert parse_problem(found, GPUS, OFFERS).problem.offers[0].quota == 4


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no JSON"),
        (b"[]", "one object"),
        (b'{"a": NaN}', "NaN is no JSON"),
        (b'{"a": 1, "a": 2}', "appears twice"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b'{"a":' * 50 + b"1" + b"}" * 50, "nested"),
        (b"[" * 100_000, "nested"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "no JSON"),
        (b" " * (LARGEST_DOCUMENT_BYTES + 1), "larger than"),
    ],
)
def test_what_is_no_document_is_refused(data, says):
    with pytest.raises(DocumentError) as error:
        parse_json(data)
    assert says in str(error.value)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_end_in_a_document_or_in_an_error(data):
    with contextlib.suppress(DocumentError):
        assert isinstance(parse_json(data), dict)


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["name", "device", "probes", "quota", "batch_size"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_value_anywhere_ends_in_a_problem_or_in_an_error(data):
    document = small_problem()
    target, key = document, data.draw(st.sampled_from(sorted(document)))
    while isinstance(target[key], (dict, list)) and data.draw(st.booleans()):
        target = target[key]
        key = data.draw(st.sampled_from(sorted(target) if isinstance(target, dict) else list(range(len(target)))))
    target[key] = data.draw(_JSON)
    with contextlib.suppress(DocumentError):
        parse_problem(document, GPUS, OFFERS)


def test_profiles_measurements_and_predictions_become_part_of_the_problem(tmp_path):
    profile = {
        "format": "gpusonde.profile/1",
        "device": "Tesla T4",
        "probes": [dict(probe, forward_s=None) for probe in probes(0.003)],
        "gradients": {"ready_fractions": [0.5, 1.0], "bucket_bytes": [1e6, 2e6], "assumed": False},
        "optimizer_s": 0.01,
        "largest_batch": 96,
    }
    write_json(tmp_path / "t4.json", profile)
    rows = measurements("slow", 1e9)
    write_json(tmp_path / "net.json", {"format": "gpusonde.allreduce-measurements/1", "measurements": rows})
    for size, seconds in ((16, 30.0), (64, 20.0)):
        row = {"gpu_model": "V100-SXM2-16GB", "epoch_latency_s": seconds, "status": "ok", "method": "prior"}
        lost = {"gpu_model": "K80", "epoch_latency_s": None, "status": "unsupported_gpu"}
        (tmp_path / f"{size}.json").write_text(json.dumps({"predictions": [row, lost], "notes": []}))
    document = small_problem()
    document["job"] = {
        "profiles": [{"file": "t4.json"}],
        "allreduce_files": ["net.json"],
        "predictions": [{"file": f"{size}.json", "batch_size": size, "samples_per_epoch": 10_000} for size in (16, 64)],
    }
    document["offers"][1]["fabric"] = "slow"
    write_json(tmp_path / "p.json", document)
    inlined = read_problem(tmp_path / "p.json")
    assert ".json" not in json.dumps(inlined)
    job = parse_problem(inlined, GPUS, OFFERS).job
    assert set(job.curves) == {"T4", "V100-SXM2-16GB"}
    assert job.curves["T4"].largest_batch == 96
    assert (job.optimizer_s, job.gradients.assumed, len(job.allreduce)) == (0.01, False, len(rows))
    assert float(job.curves["V100-SXM2-16GB"].predict(16).total_s[0]) == pytest.approx(30.0 / 625, rel=0.05)


@pytest.mark.parametrize(
    ("job", "field"),
    [
        ({"profiles": [{"file": "none.json"}]}, "job.profiles[0].file"),
        ({"profiles": [{"file": "p.json"}]}, "job.profiles[0].file.format"),
        ({"profiles": ["p.json"]}, "job.profiles[0]"),
        ({"allreduce_files": ["p.json"]}, "job.allreduce_files[0].format"),
        ({"allreduce_files": ["\0"]}, "job.allreduce_files[0]"),
        ({"predictions": [{"file": "p.json", "batch_size": 4, "samples_per_epoch": 9}]}, "job.predictions[0].file"),
    ],
)
def test_files_that_are_not_what_they_should_be_are_named(tmp_path, job, field):
    write_json(tmp_path / "p.json", small_problem(job=job))
    with pytest.raises(DocumentError) as error:
        read_problem(tmp_path / "p.json")
    assert error.value.field.startswith(field)
