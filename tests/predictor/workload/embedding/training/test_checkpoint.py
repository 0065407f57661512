"""Checkpoints of a training: written as a whole, read without pickle."""

from __future__ import annotations

import pickle
import zipfile

import numpy as np
import pytest

from gpusonde.predictor.workload.embedding.training.result import CheckpointError, read_checkpoint, write_checkpoint


class Exploit:
    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "checkpoint.npz"
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
        write_checkpoint(tmp_path / "checkpoint.npz", {}, {"x": np.array([Exploit()])})
    assert not list(tmp_path.iterdir())


def test_a_pickle_is_refused_and_not_executed(tmp_path):
    path = tmp_path / "checkpoint.npz"
    np.savez(path, document=np.array([Exploit()], dtype=object))
    with pytest.raises(CheckpointError, match="no checkpoint of a training"):
        read_checkpoint(path)
    path.write_bytes(pickle.dumps(Exploit()))
    with pytest.raises(CheckpointError, match="no checkpoint of a training"):
        read_checkpoint(path)


def test_what_is_no_checkpoint_is_told(tmp_path):
    path = tmp_path / "checkpoint.npz"
    with pytest.raises(FileNotFoundError):
        read_checkpoint(path)
    write_checkpoint(path, {}, {})
    sound = path.read_bytes()
    for content in (b"", b"PK", sound[:-30], sound.replace(b"checkpoint/1", b"checkpoint/9")):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"checkpoint\.npz"):
            read_checkpoint(path)
    np.savez(path, document=np.frombuffer(b'{"format": "other"}', np.uint8))
    with pytest.raises(CheckpointError, match="of another version"):
        read_checkpoint(path)


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path):
    path = tmp_path / "checkpoint.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w") as file,
    ):
        for _ in range(1025):
            file.write(bytes(1 << 20))
    with pytest.raises(CheckpointError, match="unpacks to more than"):
        read_checkpoint(path)


def test_a_document_that_is_nested_without_end_and_an_array_of_lies_are_refused(tmp_path):
    path = tmp_path / "checkpoint.npz"
    np.savez(path, document=np.frombuffer(b"[" * 100_000, np.uint8))
    with pytest.raises(CheckpointError, match=r"checkpoint\.npz"):
        read_checkpoint(path)
    for shape in ("(1099511627776, 1048576)", "(-1,)", "(" * 2000 + ")" * 2000, "(None,)", "'x'", "((6,)", "(9" * 99):
        header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        with pytest.raises(CheckpointError, match=r"checkpoint\.npz"):
            read_checkpoint(path)
