"""Decoders of models, encoders, checkpoints and trackers' states.

Archives of models have checksums, which mutated bytes never match: there the document inside is mutated, and the
archive made around it as its writer would.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import zipfile
from pathlib import Path

import numpy as np
from fuzz.folders import file, folder
from fuzz.target import Target

from gpusonde.epoch_detect import EpochTracker
from gpusonde.predictor.archives import MANIFEST, ArchiveError, opened, seal
from gpusonde.predictor.crossgpu import LatencyModel, ModelFileError
from gpusonde.predictor.crossgpu.learning import LIST, ModelVersions
from gpusonde.predictor.workload.embedding import EncoderDescription, EncoderWeights, EncoderWeightsError
from gpusonde.predictor.workload.embedding.registry import Registry, RegistryError
from gpusonde.predictor.workload.embedding.training.result import CheckpointError, read_checkpoint, write_checkpoint
from gpusonde.predictor.workload.engine import ModelFileError as WorkloadModelFileError
from gpusonde.predictor.workload.engine import WorkloadModel

_PREDICTOR = Path(__file__).parents[2] / "predictor/gpusonde/predictor"
_LATENCY_MODEL = _PREDICTOR / "crossgpu/shipped/latency_model.zip"
_WORKLOAD_MODEL = _PREDICTOR / "workload/engine/shipped/workload_model.zip"
_BOUNDS = {"file_bytes": 1 << 24, "manifest_bytes": 1 << 20, "array_bytes": 1 << 24}

_model_parts = functools.cache(lambda path: opened(path.read_bytes(), **_BOUNDS))


def _sealed(path: Path, document: bytes) -> bytes:
    """An archive with the arrays of a shipped one and another document, whose checksums fit."""
    try:
        manifest = json.loads(document)
        return seal(manifest, _model_parts(path)[1])[0] if isinstance(manifest, dict) else b""
    except (ValueError, RecursionError):
        return b""


def _manifest(path: Path) -> list[bytes]:
    document, _ = _model_parts(path)
    return [json.dumps({key: value for key, value in document.items() if key != "sha256"}).encode()]


def _load_latency_model(document: bytes) -> None:
    LatencyModel.load(file("latency.zip", _sealed(_LATENCY_MODEL, document)))


def _load_workload_model(document: bytes) -> None:
    WorkloadModel.load(file("workload.zip", _sealed(_WORKLOAD_MODEL, document)))


def _read_archive(data: bytes) -> None:
    opened(data, **_BOUNDS)


def _archives() -> list[bytes]:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(MANIFEST, "{}")
        archive.writestr("arrays.bin", b"12345678")
    return [packed.getvalue(), seal({"a": 1}, b"12345678")[0]]


def _read_versions(data: bytes) -> None:
    file(LIST, data)
    ModelVersions(folder()).listed()


@functools.cache
def _encoder() -> EncoderWeights:
    return EncoderWeights.random(0, EncoderDescription(hidden_size=2, primitives=("input", "other")))


def _encoder_members() -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(_encoder().to_bytes())) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _npy(data: bytes) -> bytes:
    packed = io.BytesIO()
    np.lib.format.write_array(packed, np.frombuffer(data, np.uint8), version=(1, 0))
    return packed.getvalue()


def _read_encoder(document: bytes) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in _encoder_members().items():
            archive.writestr(name, _npy(document) if name == "description.npy" else content)
    EncoderWeights.from_bytes(packed.getvalue())


def _encoder_documents() -> list[bytes]:
    content = _encoder_members()["description.npy"]
    return [np.load(io.BytesIO(content)).tobytes()]


def _read_card(data: bytes) -> None:
    registry = Registry(folder() / "registry")
    (folder() / "registry" / "small.json").write_bytes(data)
    registry.dataset_types()
    registry.get("small")


def _cards() -> list[bytes]:
    trained = dataclasses.replace(_encoder().description, dataset_type="small", training_steps=5)
    Registry(folder() / "registry").add(EncoderWeights(trained, _encoder().arrays))
    return [(folder() / "registry" / "small.json").read_bytes()]


def _checkpoints() -> list[bytes]:
    path = folder() / "made.npz"
    write_checkpoint(path, {"step": 7}, {"x": np.zeros((2, 3), np.float32)})
    return [path.read_bytes()]


def _read_checkpoint_document(document: bytes) -> None:
    path = folder() / "document.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("document.npy", _npy(document))
    read_checkpoint(path)


def _read_checkpoint_array(array: bytes) -> None:
    path = folder() / "array.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("document.npy", _npy(b'{"format": "gpusonde.training_checkpoint/1"}'))
        archive.writestr("x.npy", array)
    read_checkpoint(path)


def _restore_tracker(array: bytes) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("x.npy", array)
    EpochTracker.restore(packed.getvalue())


MODEL_TARGETS = {
    "latency_model": Target(
        _load_latency_model, lambda: _manifest(_LATENCY_MODEL), (ModelFileError,), is_slow=True
    ),
    "workload_model": Target(
        _load_workload_model, lambda: _manifest(_WORKLOAD_MODEL), (WorkloadModelFileError,), is_slow=True
    ),
    "model_archive": Target(_read_archive, _archives, (ArchiveError,)),
    "model_list": Target(
        _read_versions,
        lambda: [
            b'{"format": "gpusonde model versions", "format_version": 1, "versions": ["crossgpu-1-0123456789ab"]}'
        ],
        (ModelFileError,),
    ),
    "encoder_description": Target(_read_encoder, _encoder_documents, (EncoderWeightsError,), is_slow=True),
    "encoder_card": Target(_read_card, _cards, (RegistryError,), is_slow=True),
    "checkpoint": Target(lambda data: read_checkpoint(file("c.npz", data)), _checkpoints, (CheckpointError,)),
    "checkpoint_document": Target(
        _read_checkpoint_document, lambda: [b'{"format": "gpusonde.training_checkpoint/1", "step": 7}'],
        (CheckpointError,),
    ),
    "checkpoint_array": Target(
        _read_checkpoint_array, lambda: [_npy(b"123456")], (CheckpointError,)
    ),
    "tracker_array": Target(_restore_tracker, lambda: [_npy(b"123456")], (ValueError,)),
}  # fmt: skip
