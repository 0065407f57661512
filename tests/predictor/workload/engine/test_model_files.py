"""Model files: what is saved is what is loaded, and nothing else is taken for a model."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from support.measured_workloads import chain

from gpusonde.errors import ModelFileError
from gpusonde.predictor.model_file import decode, encode
from gpusonde.predictor.workload.engine import Cluster, WorkloadModel, WorkloadRequest


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    model.save(path)
    return path


def refusal(path):
    with pytest.raises(ModelFileError) as caught:
        WorkloadModel.load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def changed(saved, tmp_path, change):
    """The model with something else in its document or arrays, its checksums right."""
    file = decode(saved.read_bytes(), most_bytes=1 << 24)
    change(file.document, file.arrays)
    path = tmp_path / "changed.safetensors"
    path.write_bytes(encode(file.document, file.arrays)[0])
    return path


def test_a_loaded_model_answers_exactly_as_the_saved_one(model, saved):
    loaded = WorkloadModel.load(saved)
    assert loaded.version == model.version
    requests = [
        WorkloadRequest(chain(40, 6), 16, Cluster("T4", environment="there/T4")),
        WorkloadRequest(chain(500, 50), 16, Cluster("H100-SXM5-80GB")),
    ]
    for name in model.scores:
        assert loaded.predict(requests, regressor=name) == model.predict(requests, regressor=name)


def test_the_same_model_gives_the_same_file(model, saved, tmp_path):
    model.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == saved.read_bytes()


def test_damaged_and_foreign_files_are_refused(saved, tmp_path):
    content = saved.read_bytes()
    path = tmp_path / "model.safetensors"
    for damaged in (b"", b"not a model", content[:-50], content[: len(content) // 2]):
        path.write_bytes(damaged)
        refusal(path)
    for position in (0.2, 0.5, 0.8):
        flipped = bytearray(content)
        flipped[int(len(content) * position)] ^= 0x10
        path.write_bytes(flipped)
        refusal(path)
    path.write_bytes(encode({"format": "something else"}, {"x": np.zeros(1)})[0])
    assert "not a workload model" in refusal(path)


def test_no_pickle_is_executed(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was executed",))

    path = tmp_path / "model.safetensors"
    path.write_bytes(pickle.dumps(Bomb()))
    refusal(path)


@pytest.mark.parametrize(
    "name",
    ["roofline.common", "familiarity.points", "svr.support", "polynomial.coefficients", "boosted_residual.border"],
)
def test_arrays_of_other_shapes_are_refused(saved, tmp_path, name):
    assert "damaged" in refusal(changed(saved, tmp_path, lambda _, arrays: arrays.update({name: arrays[name][:-1]})))


def test_trees_whose_walks_would_not_end_are_refused(saved, tmp_path):
    def loop(_, arrays):
        below = arrays["boosted_residual.below"].copy()
        below[0, 0] = 0
        arrays["boosted_residual.below"] = below

    assert "damaged" in refusal(changed(saved, tmp_path, loop))


def test_numbers_that_are_none_are_refused(saved, tmp_path):
    def spoil(_, arrays):
        arrays["svr.dual"] = np.full_like(arrays["svr.dual"], np.nan)

    refusal(changed(saved, tmp_path, spoil))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("chosen", "forest"), ("kind", "best"), ("coverage", 2.0), ("estimators", []), ("quantiles", {"FAMILY": {}}),
        ("familiarity", None), ("roofline", {"names": []}), ("columns", []), ("format_version", 99),
    ],
)  # fmt: skip
def test_documents_that_cannot_be_are_refused(saved, tmp_path, key, value):
    refusal(changed(saved, tmp_path, lambda document, _: document.update({key: value})))
