from __future__ import annotations

import json
import pickle
import zipfile

import numpy as np
import pytest

from gpusonde.predictor.crossgpu import LatencyModel, ModelFileError, NotFittedError


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.zip"
    model.save(path)
    return path


def members(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rewritten(path, contents):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return path


def refusal(path):
    with pytest.raises(ModelFileError) as caught:
        LatencyModel.load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_loaded_model_answers_exactly_as_the_saved_one(model, saved, runs, gpus):
    loaded = LatencyModel.load(saved)
    targets = [gpus.get(name) for name in ("T4", "A10G", "H100-SXM5-80GB")]
    assert loaded.version == model.version
    for row in (0, 17, 42):
        source = runs.run(row).measurement()
        assert loaded.predict(source, targets) == model.predict(source, targets)


def test_a_model_remembers_what_it_was_fitted_on(model, saved):
    pairs, kept = model.state.pairs, LatencyModel.load(saved).state.pairs
    for name in ("features", "prior", "static", "log_ratio"):
        np.testing.assert_allclose(getattr(kept, name), getattr(pairs, name), rtol=1e-5, atol=1e-6)
    for name in ("configuration", "workload", "source_gpu", "target_gpu", "time_unix_s"):
        assert getattr(kept, name).tolist() == getattr(pairs, name).tolist()
    assert (kept.configurations, kept.workloads, kept.gpus) == (pairs.configurations, pairs.workloads, pairs.gpus)


def test_the_same_model_gives_the_same_file(model, saved, tmp_path):
    model.save(tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == saved.read_bytes()
    assert list(tmp_path.iterdir()) == [tmp_path / "again.zip"]


def test_a_failed_save_leaves_the_previous_model_in_place(model, saved, tmp_path, monkeypatch):
    path = tmp_path / "model.zip"
    path.write_bytes(saved.read_bytes())

    def full(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space") as caught:
        model.save(path)
    assert caught.value.filename == str(path)
    assert path.read_bytes() == saved.read_bytes()
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_in_the_models_place_is_named(model, tmp_path):
    with pytest.raises(IsADirectoryError) as caught:
        model.save(tmp_path)
    assert caught.value.filename == str(tmp_path)


def test_a_truncated_file_is_refused(saved, tmp_path):
    path = tmp_path / "model.zip"
    path.write_bytes(saved.read_bytes()[:-100])
    assert "damaged" in refusal(path)


@pytest.mark.parametrize("position", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_flipped_bit_is_refused(saved, tmp_path, position):
    content = bytearray(saved.read_bytes())
    content[int(len(content) * position)] ^= 0x10
    path = tmp_path / "model.zip"
    path.write_bytes(content)
    refusal(path)


def test_a_foreign_file_is_refused(tmp_path):
    path = tmp_path / "model.zip"
    path.write_text("not a model")
    assert "gpusonde train" in refusal(path)
    rewritten(path, {"manifest.json": "[]", "arrays.bin": b""})
    assert "not a gpusonde latency model" in refusal(path)
    rewritten(path, {"else.txt": "x"})
    assert "manifest.json" in refusal(path)


def test_no_pickle_is_executed(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was executed",))

    path = tmp_path / "model.zip"
    path.write_bytes(pickle.dumps(Bomb()))
    refusal(path)
    rewritten(path, {"manifest.json": pickle.dumps(Bomb()), "arrays.bin": pickle.dumps(Bomb())})
    refusal(path)


def test_another_format_version_is_refused_with_advice(saved, tmp_path):
    contents = members(saved)
    manifest = json.loads(contents["manifest.json"])
    manifest["format_version"] = 99
    path = rewritten(tmp_path / "model.zip", {**contents, "manifest.json": json.dumps(manifest)})
    assert "format version 99" in refusal(path)


def test_a_changed_number_is_refused(saved, tmp_path):
    contents = members(saved)
    manifest = json.loads(contents["manifest.json"])
    manifest["process"]["noise"] = 0.1
    path = rewritten(tmp_path / "model.zip", {**contents, "manifest.json": json.dumps(manifest)})
    assert "checksum" in refusal(path)


def test_a_model_for_other_features_is_refused(saved, tmp_path, monkeypatch):
    monkeypatch.setattr("gpusonde.predictor.crossgpu.persistence.FEATURES", ("something else",))
    assert "other features" in refusal(saved)


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path):
    path = rewritten(tmp_path / "model.zip", {"manifest.json": b" " * (5 << 20), "arrays.bin": b""})
    assert "unpacks to more than 4 MiB" in refusal(path)


def test_an_unfitted_model_cannot_be_saved(tmp_path):
    with pytest.raises(NotFittedError):
        LatencyModel().save(tmp_path / "model.zip")
    assert not list(tmp_path.iterdir())
