"""Checkpoints of a training: written as a whole, read without pickle."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from gpusonde.errors import EncoderError
from gpusonde.predictor.model_file import encode
from gpusonde.predictor.workload.training.result import read_checkpoint, write_checkpoint


class Exploit:
    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    arrays = {"layer.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "step": np.array(7.0)}
    write_checkpoint(path, {"step": 7, "losses": [1.5, None]}, arrays)
    document, found = read_checkpoint(path)
    assert (document["step"], document["losses"]) == (7, [1.5, None])
    assert {name: array.tolist() for name, array in found.items()} == {
        name: array.tolist() for name, array in arrays.items()
    }
    assert found["layer.weight"].dtype == np.float32


def test_objects_are_not_written(tmp_path):
    with pytest.raises(ValueError, match="cannot be saved"):
        write_checkpoint(tmp_path / "checkpoint.safetensors", {}, {"x": np.array([Exploit()])})
    assert not list(tmp_path.iterdir())


def test_a_pickle_is_refused_and_not_executed(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(pickle.dumps(Exploit()))
    with pytest.raises(EncoderError, match="no checkpoint of a training"):
        read_checkpoint(path)


def test_what_is_no_checkpoint_is_told(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    with pytest.raises(FileNotFoundError):
        read_checkpoint(path)
    write_checkpoint(path, {}, {})
    sound = path.read_bytes()
    for content in (b"", b"PK", sound[:-30], encode({"format": "other"}, {})[0]):
        path.write_bytes(content)
        with pytest.raises(EncoderError, match=r"checkpoint\.safetensors"):
            read_checkpoint(path)
