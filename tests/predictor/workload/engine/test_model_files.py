"""Model files: what is saved is what is loaded, and nothing else is taken for a model."""

from __future__ import annotations

import hashlib
import json
import pickle
import zipfile

import numpy as np
import pytest
from support.measured_workloads import chain

from gpusonde.predictor.archives import ArchiveError, pack, seal, unpack
from gpusonde.predictor.workload.engine import Cluster, ModelFileError, WorkloadModel, WorkloadRequest

LIMITS = {"file_bytes": 64 << 20, "manifest_bytes": 4 << 20, "array_bytes": 256 << 20}


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.zip"
    model.save(path)
    return path


def refusal(path):
    with pytest.raises(ModelFileError) as caught:
        WorkloadModel.load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def changed(saved, tmp_path, change):
    """The model with something else in its document or arrays, its checksums right."""
    manifest, arrays, _ = unpack(saved.read_bytes(), **LIMITS)
    for name in ("arrays", "arrays_sha256"):
        del manifest[name]
    change(manifest, arrays)
    path = tmp_path / "changed.zip"
    path.write_bytes(pack(manifest, arrays)[0])
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
    model.save(tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == saved.read_bytes()


def test_damaged_and_foreign_files_are_refused(saved, tmp_path):
    content = saved.read_bytes()
    path = tmp_path / "model.zip"
    for damaged in (b"", b"not a model", content[:-50], content[: len(content) // 2]):
        path.write_bytes(damaged)
        refusal(path)
    for position in (0.2, 0.5, 0.8):
        flipped = bytearray(content)
        flipped[int(len(content) * position)] ^= 0x10
        path.write_bytes(flipped)
        refusal(path)
    path.write_bytes(pack({"format": "something else"}, {"x": np.zeros(1)})[0])
    assert "not a workload model" in refusal(path)


def test_no_pickle_is_executed(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was executed",))

    path = tmp_path / "model.zip"
    path.write_bytes(pickle.dumps(Bomb()))
    refusal(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", pickle.dumps(Bomb()))
        archive.writestr("arrays.bin", pickle.dumps(Bomb()))
    refusal(path)


def test_a_document_that_unpacks_to_more_than_allowed_is_refused(tmp_path):
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", json.dumps({"x": " " * (8 << 20)}))
        archive.writestr("arrays.bin", b"")
    assert "unpacks to more" in refusal(path)


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
    refusal(changed(saved, tmp_path, lambda manifest, _: manifest.update({key: value})))


@pytest.mark.parametrize("extent", [1 << 62, 1 << 80, -1, 1.5, True])
def test_an_archive_whose_arrays_have_impossible_shapes_is_refused(extent):
    stored = np.zeros(1).tobytes()
    digest = hashlib.sha256(stored).hexdigest()
    sealed, _ = seal({"arrays": [["x", "<f8", [extent, 1]]], "arrays_sha256": digest}, stored)
    with pytest.raises(ArchiveError):
        unpack(sealed, file_bytes=1 << 20, manifest_bytes=1 << 20, array_bytes=1 << 20)
