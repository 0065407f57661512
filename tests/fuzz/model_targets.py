"""Decoders of models, encoders, checkpoints and trackers' states.

Model files have checksums, which mutated bytes never match: there the document inside is mutated, and the file made
around it as its writer would.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from fuzz.folders import file, folder
from fuzz.target import Target

from gpusonde.epoch_detect import EpochTracker
from gpusonde.errors import EncoderError, ModelError, ModelFileError
from gpusonde.predictor.crossgpu import LatencyModel
from gpusonde.predictor.crossgpu.learning import LIST, ModelVersions
from gpusonde.predictor.model_file import decode, encode
from gpusonde.predictor.workload.embedding import EncoderDescription, EncoderWeights
from gpusonde.predictor.workload.embedding.registry import Registry
from gpusonde.predictor.workload.engine import WorkloadModel
from gpusonde.predictor.workload.training.result import read_checkpoint, write_checkpoint

_PREDICTOR = Path(__file__).parents[2] / "predictor/gpusonde/predictor"
_LATENCY_MODEL = _PREDICTOR / "crossgpu/shipped/latency_model.safetensors"
_WORKLOAD_MODEL = _PREDICTOR / "workload/engine/shipped/workload_model.safetensors"
_BOUNDS = {"most_bytes": 1 << 24}

_content = functools.cache(lambda path: decode(path.read_bytes(), **_BOUNDS))


def _sealed(arrays: Mapping[str, np.ndarray], document: bytes) -> bytes:
    """A file of these arrays and another document, whose checksum fits."""
    try:
        found = json.loads(document)
        return encode(found, arrays)[0] if isinstance(found, dict) else b""
    except (ValueError, RecursionError):
        return b""


def _document(path: Path) -> list[bytes]:
    return [json.dumps(_content(path).document).encode()]


def _load_latency_model(document: bytes) -> None:
    LatencyModel.load(file("latency.safetensors", _sealed(_content(_LATENCY_MODEL).arrays, document)))


def _load_workload_model(document: bytes) -> None:
    WorkloadModel.load(file("workload.safetensors", _sealed(_content(_WORKLOAD_MODEL).arrays, document)))


def _read_model_file(data: bytes) -> None:
    decode(data, **_BOUNDS)


def _model_files() -> list[bytes]:
    former = io.BytesIO()
    with zipfile.ZipFile(former, "w") as archive:
        archive.writestr("manifest.json", '{"sha256": "", "arrays": []}')
        archive.writestr("arrays.bin", "12345678")
    return [former.getvalue(), encode({"a": 1}, {"x": np.zeros(2)})[0]]


def _read_versions(data: bytes) -> None:
    file(LIST, data)
    ModelVersions(folder()).listed()


@functools.cache
def _encoder() -> EncoderWeights:
    return EncoderWeights.random(0, EncoderDescription(hidden_size=2, primitives=("input", "other")))


def _npy(data: bytes) -> bytes:
    packed = io.BytesIO()
    np.lib.format.write_array(packed, np.frombuffer(data, np.uint8), version=(1, 0))
    return packed.getvalue()


def _read_encoder(document: bytes) -> None:
    EncoderWeights.from_bytes(_sealed(_encoder().arrays, document))


def _encoder_documents() -> list[bytes]:
    return [json.dumps(decode(_encoder().to_bytes(), **_BOUNDS).document).encode()]


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
    path = folder() / "made.safetensors"
    write_checkpoint(path, {"step": 7}, {"x": np.zeros((2, 3), np.float32)})
    return [path.read_bytes()]


def _read_checkpoint_document(document: bytes) -> None:
    read_checkpoint(file("document.safetensors", _sealed({"x": np.zeros(2)}, document)))


def _read_former_array(array: bytes) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("document.npy", _npy(b"{}"))
        archive.writestr("x.npy", array)
    decode(packed.getvalue(), **_BOUNDS)


def _restore_tracker(array: bytes) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("x.npy", array)
    EpochTracker.restore(packed.getvalue())


MODEL_TARGETS = {
    "latency_model": Target(
        _load_latency_model, lambda: _document(_LATENCY_MODEL), (ModelFileError,), is_slow=True
    ),
    "workload_model": Target(
        _load_workload_model, lambda: _document(_WORKLOAD_MODEL), (ModelFileError,), is_slow=True
    ),
    "arrays_file": Target(_read_model_file, _model_files, (ModelError,)),
    "model_list": Target(
        _read_versions,
        lambda: [
            b'{"format": "gpusonde model versions", "format_version": 1, "versions": ["crossgpu-1-0123456789ab"]}'
        ],
        (ModelFileError,),
    ),
    "encoder_description": Target(_read_encoder, _encoder_documents, (EncoderError,), is_slow=True),
    "encoder_card": Target(_read_card, _cards, (EncoderError,), is_slow=True),
    "checkpoint": Target(lambda data: read_checkpoint(file("c.safetensors", data)), _checkpoints, (EncoderError,)),
    "checkpoint_document": Target(
        _read_checkpoint_document, lambda: [b'{"format": "gpusonde.training_checkpoint/1", "step": 7}'],
        (EncoderError,),
    ),
    "former_model_array": Target(_read_former_array, lambda: [_npy(b"123456")], (ModelError,)),
    "tracker_array": Target(_restore_tracker, lambda: [_npy(b"123456")], (ValueError,)),
}  # fmt: skip
