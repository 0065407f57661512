"""The files of latency models: settings, fitted state and the pairs that it was fitted to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusonde.errors import ModelError, ModelFileError
from gpusonde.predictor.crossgpu.features import FEATURES, SOURCE_FEATURE_COUNT
from gpusonde.predictor.crossgpu.neighbourhood import (
    Calibration,
    GpuNeighbourhood,
    Regime,
    RunNeighbourhood,
    TrainedGpu,
)
from gpusonde.predictor.crossgpu.pairs import Pairs
from gpusonde.predictor.crossgpu.regression import GaussianProcess, ObliviousTrees, ResidualModel, ResidualSettings
from gpusonde.predictor.crossgpu.state import LatencyModelState, ModelSettings
from gpusonde.predictor.model_file import Arrays, ModelFile, decode, encode
from gpusonde.service.durable_files import write_durably

FORMAT = "gpusonde cross-GPU latency model"
FORMAT_VERSION = 3

LARGEST_MODEL_BYTES = 256 << 20


def write_model(path: str | Path, settings: ModelSettings, state: LatencyModelState) -> str:
    """Write a model, replacing an older file only once the new one is complete and on disk.

    Returns:
        The model's version: the format's and a digest of its content.
    """
    path = Path(path)
    content, version = encode_model(settings, state)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, content)
    return version


def encode_model(settings: ModelSettings, state: LatencyModelState) -> tuple[bytes, str]:
    """Make the bytes of a model file, and the model's version."""
    arrays = {name: array.astype(_ARRAY_TYPES[name]) for name, array in _collect_arrays(state).items()}
    document = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "features": list(FEATURES),
        "settings": {
            "residual": asdict(settings.residual),
            "coverage": settings.coverage,
            "one_unseen_weight": settings.one_unseen_weight,
            "situations": [regime.name for regime in settings.regimes],
        },
        "process": {name: getattr(state.residual.process, name) for name in ("length", "amplitude", "noise")},
        "trees": {"bias": state.residual.trees.bias},
        "calibrations": {regime.name: asdict(value) for regime, value in state.calibrations.items()},
        "runs": {"usual_distance": state.runs.usual_distance},
        "gpus": [gpu.name for gpu in state.gpus.gpus],
        "pairs": {
            "configurations": list(state.pairs.configurations),
            "workloads": list(state.pairs.workloads),
            "gpus": [asdict(gpu) for gpu in state.pairs.gpus],
        },
    }
    content, digest = encode(document, arrays)
    return content, _name_version(FORMAT_VERSION, digest)


def read_model(content: bytes, path: str) -> tuple[ModelSettings, LatencyModelState, str]:
    """Read a model.

    Args:
        content: The file's bytes.
        path: Where they come from, for error messages.

    Returns:
        Settings, state and version.

    Raises:
        ModelFileError: The bytes are no model that this program reads.
    """
    try:
        file = decode(content, most_bytes=LARGEST_MODEL_BYTES)
    except ModelError as error:
        raise ModelFileError(path, f"not a latency model: {error}; make one with 'gpusonde train'") from error
    _check(file, path)
    try:
        # A tree that ends early has infinite borders; nothing else may be other than a number.
        file.check_finite(infinite=("trees_border",))
        version = _name_version(file.document["format_version"], file.digest)
        return _read_settings(file.document), _read_state(file.document, file.arrays, path), version
    except ModelFileError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ModelFileError(path, f"damaged: {type(error).__name__} {error}; restore or fit it again") from error


# Every array, and the type that it is stored as.
_ARRAY_TYPES = {
    "process_center": "<f8",
    "process_spread": "<f8",
    "process_points": "<f4",
    "process_weights": "<f8",
    "trees_feature": "<i2",
    "trees_border": "<f4",
    "trees_leaves": "<f4",
    "runs_center": "<f8",
    "runs_spread": "<f8",
    "runs_points": "<f4",
    "pairs_prior": "<f4",
    "pairs_static": "<f4",
    "pairs_log_ratio": "<f4",
    "pairs_configuration": "<i4",
    "pairs_workload": "<i4",
    "pairs_source_gpu": "<i4",
    "pairs_target_gpu": "<i4",
    "pairs_time_unix_s": "<f8",
}
# The pairs' features are the points of the process, which are stored already.
_PAIR_ARRAYS = tuple(name for name in _ARRAY_TYPES if name.startswith("pairs_"))


def _collect_arrays(state: LatencyModelState) -> dict[str, npt.NDArray[Any]]:
    process, trees, runs = state.residual.process, state.residual.trees, state.runs
    return {
        "process_center": process.center,
        "process_spread": process.spread,
        "process_points": process.points,
        "process_weights": process.weights,
        "trees_feature": trees.feature,
        "trees_border": trees.border,
        "trees_leaves": trees.leaves,
        "runs_center": runs.center,
        "runs_spread": runs.spread,
        "runs_points": runs.points,
        **{name: getattr(state.pairs, name.removeprefix("pairs_")) for name in _PAIR_ARRAYS},
    }


def _check(file: ModelFile, path: str) -> None:
    """Check that the file is ours and complete."""
    document = file.document
    if document.get("format") != FORMAT:
        raise ModelFileError(path, "not a gpusonde latency model; make one with 'gpusonde train'")
    version = document.get("format_version")
    if version != FORMAT_VERSION:
        raise ModelFileError(
            path, f"format version {version}, this program reads {FORMAT_VERSION}: fit it again with 'gpusonde train'"
        )
    if document.get("features") != list(FEATURES):
        raise ModelFileError(path, "it was made for other features: fit it again with 'gpusonde train'")
    if {name: array.dtype.newbyteorder("<").str for name, array in file.arrays.items()} != _ARRAY_TYPES or not all(
        1 <= array.ndim <= 2 for array in file.arrays.values()
    ):
        raise ModelFileError(path, "damaged: its arrays are not those of a latency model; restore or fit it again")


def _read_settings(document: Mapping[str, Any]) -> ModelSettings:
    stored = document["settings"]
    return ModelSettings(
        residual=ResidualSettings(**stored["residual"]),
        coverage=float(stored["coverage"]),
        one_unseen_weight=float(stored["one_unseen_weight"]),
        regimes=tuple(Regime[name] for name in stored["situations"]),
    )


def _read_state(document: Mapping[str, Any], arrays: Arrays, path: str) -> LatencyModelState:
    features, own = len(FEATURES), SOURCE_FEATURE_COUNT
    points, feature, border, leaves = (
        arrays[name] for name in ("process_points", "trees_feature", "trees_border", "trees_leaves")
    )
    consistent = (
        arrays["process_center"].shape == arrays["process_spread"].shape == (features,)
        and points.shape == (arrays["process_weights"].size, features)
        and feature.shape == border.shape
        and leaves.shape == (feature.shape[0], 1 << feature.shape[1])
        and (feature.size == 0 or (feature.min() >= 0 and feature.max() < features))
        and arrays["runs_center"].shape == arrays["runs_spread"].shape == (own,)
        and arrays["runs_points"].shape[1] == own
        and all(arrays[name].shape == arrays["process_weights"].shape for name in _PAIR_ARRAYS)
    )
    numbers = [
        *(document["process"][name] for name in ("length", "amplitude", "noise")),
        document["trees"]["bias"],
        document["runs"]["usual_distance"],
    ]
    if not consistent or not all(math.isfinite(number) for number in numbers):
        raise ModelFileError(path, "damaged: its parts do not fit together; restore or fit it again")
    process = GaussianProcess(
        center=arrays["process_center"], spread=arrays["process_spread"], points=points.astype(np.float64),
        weights=arrays["process_weights"], **document["process"],
    )  # fmt: skip
    pairs = _read_pairs(document["pairs"], arrays, process, path)
    known = {gpu.name: gpu for gpu in pairs.gpus}
    return LatencyModelState(
        residual=ResidualModel(
            process,
            ObliviousTrees(feature, border, leaves, float(document["trees"]["bias"])),
            float(document["settings"]["residual"]["process_weight"]),
        ),
        calibrations={Regime[name]: Calibration(**value) for name, value in document["calibrations"].items()},
        runs=RunNeighbourhood(
            center=arrays["runs_center"], spread=arrays["runs_spread"],
            points=arrays["runs_points"].astype(np.float64), usual_distance=float(document["runs"]["usual_distance"]),
        ),
        gpus=GpuNeighbourhood(tuple(known[name] for name in document["gpus"])),
        pairs=pairs,
    )  # fmt: skip


def _read_pairs(document: Mapping[str, Any], arrays: Arrays, process: GaussianProcess, path: str) -> Pairs:
    configurations, workloads = tuple(map(str, document["configurations"])), tuple(map(str, document["workloads"]))
    gpus = tuple(TrainedGpu(**gpu) for gpu in document["gpus"])
    for name, labels in (
        ("configuration", configurations), ("workload", workloads), ("source_gpu", gpus), ("target_gpu", gpus)
    ):  # fmt: skip
        numbers = arrays[f"pairs_{name}"]
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(labels):
            raise ModelFileError(path, f"damaged: a pair's {name} is not listed; restore or fit it again")
    own: dict[str, Any] = {
        name.removeprefix("pairs_"): arrays[name].astype(np.intp if _ARRAY_TYPES[name] == "<i4" else np.float64)
        for name in _PAIR_ARRAYS
    }
    return Pairs(
        features=process.points * process.spread + process.center,
        configurations=configurations,
        workloads=workloads,
        gpus=gpus,
        **own,
    )


def _name_version(format_version: int, digest: str) -> str:
    return f"crossgpu-{format_version}-{digest[:12]}"
