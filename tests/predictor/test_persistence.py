from __future__ import annotations

import pickle

import numpy as np
import pytest

from gpusonde.errors import ModelError
from gpusonde.predictor.crossgpu import LatencyModel, ModelFileError
from gpusonde.predictor.model_file import decode, encode


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    model.save(path)
    return path


def changed(saved, path, change):
    """The model with something else in its document or arrays, its checksum right."""
    file = decode(saved.read_bytes(), most_bytes=1 << 20)
    change(file.document, file.arrays)
    path.write_bytes(encode(file.document, file.arrays)[0])
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
    model.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == saved.read_bytes()
    assert list(tmp_path.iterdir()) == [tmp_path / "again.safetensors"]


def test_a_failed_save_leaves_the_previous_model_in_place(model, saved, tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
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
    path = tmp_path / "model.safetensors"
    path.write_bytes(saved.read_bytes()[:-100])
    assert "damaged" in refusal(path)


@pytest.mark.parametrize("position", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_flipped_bit_is_refused(saved, tmp_path, position):
    content = bytearray(saved.read_bytes())
    content[int(len(content) * position)] ^= 0x10
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    refusal(path)


def test_a_foreign_file_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text("not a model")
    assert "gpusonde train" in refusal(path)
    path.write_bytes(encode({"format": "another"}, {"x": np.zeros(1)})[0])
    assert "not a gpusonde latency model" in refusal(path)


def test_no_pickle_is_executed(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was executed",))

    path = tmp_path / "model.safetensors"
    path.write_bytes(pickle.dumps(Bomb()))
    refusal(path)


def test_another_format_version_is_refused_with_advice(saved, tmp_path):
    path = tmp_path / "model.safetensors"
    assert "format version 99" in refusal(changed(saved, path, lambda document, _: document.update(format_version=99)))


@pytest.mark.parametrize(
    "change",
    [
        lambda document, _: document["process"].update(noise=float("nan")),
        lambda document, _: document.update(gpus=["K80"]),
        lambda document, _: document.pop("calibrations"),
        lambda _, arrays: arrays.pop("runs_points"),
        lambda _, arrays: arrays.update(runs_points=arrays["runs_points"][:, 1:]),
        lambda _, arrays: arrays.update(process_weights=arrays["process_weights"].astype(np.float32)),
        lambda _, arrays: arrays.update(process_weights=np.full_like(arrays["process_weights"], np.inf)),
        lambda _, arrays: arrays.update(pairs_target_gpu=arrays["pairs_target_gpu"] + 99),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(saved, tmp_path, change):
    assert "damaged" in refusal(changed(saved, tmp_path / "model.safetensors", change))


def test_a_model_for_other_features_is_refused(saved, tmp_path, monkeypatch):
    monkeypatch.setattr("gpusonde.predictor.crossgpu.persistence.FEATURES", ("something else",))
    assert "other features" in refusal(saved)


def test_a_file_larger_than_any_model_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.truncate((256 << 20) + 1)
    assert "larger than 256 MiB" in refusal(path)


def test_an_unfitted_model_cannot_be_saved(tmp_path):
    with pytest.raises(ModelError, match="not fitted"):
        LatencyModel().save(tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())
