"""Files of fitted models: numbers and text only, checked before use (``predictor.model_file``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusonde.errors import ModelError, ModelFileError
from gpusonde.predictor.crossgpu.neighbourhood import Calibration, GpuNeighbourhood, RunNeighbourhood, TrainedGpu
from gpusonde.predictor.model_file import Arrays, decode, encode
from gpusonde.predictor.workload.embedding.weights import check_dataset_type
from gpusonde.predictor.workload.engine.calibration import LEVELS, CalibratedRoofline
from gpusonde.predictor.workload.engine.encoders import EncoderReference
from gpusonde.predictor.workload.engine.estimator import Candidate, Estimator
from gpusonde.predictor.workload.engine.features import (
    ANALYTIC,
    ANALYTIC_COLUMNS,
    CATEGORIES,
    CLUSTER_COLUMNS,
    EMBEDDED,
    EMBEDDING,
    FEATURE_SETS,
    HOST_COLUMNS,
    ROOFLINE_COLUMNS,
    WITH_EMBEDDING,
    Encoding,
)
from gpusonde.predictor.workload.engine.fitting import KINDS, FittedEstimator, WorkloadModelState
from gpusonde.predictor.workload.engine.out_of_distribution import (
    HostRange,
    Intervals,
    Newness,
    OutOfDistributionDetector,
)
from gpusonde.predictor.workload.engine.regressors import REGRESSORS, FittedRegressor, Standardisation, check_arrays
from gpusonde.service.durable_files import write_durably

FORMAT = "gpusonde workload model"
FORMAT_VERSION = 4

_MOST_BYTES = 256 << 20
_COLUMNS = [list(each) for each in (ROOFLINE_COLUMNS, ANALYTIC_COLUMNS, CLUSTER_COLUMNS, CATEGORIES, LEVELS)]
_LONGEST_EMBEDDING = 512
_SHA256 = re.compile(r"[0-9a-f]{64}")


def write_model(path: Path, state: WorkloadModelState) -> str:
    """Write a model, replacing an older file only once the new one is complete and on disk.

    Returns:
        The model's version: the format's and a digest of its content.
    """
    content, digest = encode(_make_document(state), _collect_arrays(state))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, content)
    return _name_version(FORMAT_VERSION, digest)


def read_model(path: Path) -> tuple[WorkloadModelState, str]:
    """Read a model.

    Returns:
        What was fitted, and its version.

    Raises:
        ModelFileError: It is no model that this program reads.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    where = str(path)
    try:
        stored = decode(content, most_bytes=_MOST_BYTES)
        stored.check_finite()
    except ModelError as error:
        raise ModelFileError(where, f"not a workload model: {error}; fit one with 'gpusonde workload fit'") from error
    document = stored.document
    if document.get("format") != FORMAT:
        raise ModelFileError(where, "not a workload model; fit one with 'gpusonde workload fit'")
    if document.get("format_version") != FORMAT_VERSION or document.get("columns") != _COLUMNS:
        raise ModelFileError(where, "made for another version of this program: fit it again")
    try:
        return _read_state(document, stored.arrays), _name_version(FORMAT_VERSION, stored.digest)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise ModelFileError(where, f"damaged: {type(error).__name__} {error}; restore or fit it again") from error


def _make_document(state: WorkloadModelState) -> dict[str, Any]:
    ood_detector = state.ood_detector
    # Models without an embedding are what they were before there was a name for its encoder.
    encoder = {} if state.encoder is None else {"encoder": asdict(state.encoder)}
    return {
        **encoder,
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "columns": _COLUMNS,
        "kind": state.kind,
        "chosen": state.chosen,
        "rows": state.rows,
        "coverage": state.intervals.coverage,
        "quantiles": {newness.value: asdict(value) for newness, value in state.intervals.quantiles.items()},
        "roofline": {"names": [list(names) for names in state.roofline.names]},
        "roofline_errors": asdict(state.roofline_errors),
        "estimators": {name: _describe_estimator(each) for name, each in state.estimators.items()},
        "familiarity": {
            "usual_distance": ood_detector.networks.usual_distance,
            "architectures": list(ood_detector.architectures),
            "batches": list(ood_detector.batches),
            "devices": ood_detector.devices,
            "nodes": ood_detector.nodes,
            "gpus": [asdict(gpu) for gpu in ood_detector.gpus.gpus],
            "precisions": list(ood_detector.precisions),
            "parallelisms": list(ood_detector.parallelisms),
            "places": {name: list(batches) for name, batches in ood_detector.batches_by_environment.items()},
            "settings": sorted(ood_detector.settings),
            "networks": {name: sorted(known) for name, known in ood_detector.networks_by_environment.items()},
            **_describe_hosts(ood_detector),
        },
    }


def _describe_hosts(ood_detector: OutOfDistributionDetector) -> dict[str, Any]:
    # As with the encoder.
    hosts = {name: asdict(known) for name, known in ood_detector.hosts.items()}
    return {"hosts": hosts} if hosts else {}


def _describe_estimator(fitted: FittedEstimator) -> dict[str, Any]:
    estimator = fitted.estimator
    scale = estimator.fitted.standardisation
    return {
        "features": estimator.candidate.features,
        "options": dict(estimator.candidate.options),
        "categories": [list(values) for values in estimator.encoding.categories],
        "target_center": scale.target_center,
        "target_spread": scale.target_spread,
        "logarithmic": estimator.logarithmic,
        "bounds": list(estimator.bounds),
        "score": fitted.score,
        "architecture": asdict(fitted.architecture),
        "places": {name: asdict(value) for name, value in fitted.by_environment.items()},
        "measured_there": {name: asdict(value) for name, value in fitted.measured_there.items()},
    }


def _collect_arrays(state: WorkloadModelState) -> dict[str, npt.NDArray[Any]]:
    networks = state.ood_detector.networks
    arrays: dict[str, npt.NDArray[Any]] = {
        "roofline.common": state.roofline.common,
        "familiarity.center": networks.center,
        "familiarity.spread": networks.spread,
        "familiarity.points": networks.points,
        "familiarity.totals": state.ood_detector.totals,
    }
    for level, deviations in enumerate(state.roofline.deviations):
        arrays[f"roofline.{level}"] = deviations
    for name, each in state.estimators.items():
        fitted = each.estimator.fitted
        arrays[f"{name}.center"] = fitted.standardisation.center
        arrays[f"{name}.inverse"] = fitted.standardisation.inverse
        for part, array in fitted.arrays.items():
            arrays[f"{name}.{part}"] = array
    return arrays


def _read_state(document: Mapping[str, Any], arrays: Arrays) -> WorkloadModelState:
    coverage = float(document["coverage"])
    estimators = {
        str(name): _read_estimator(str(name), described, arrays) for name, described in document["estimators"].items()
    }
    _require(document["kind"] in KINDS and document["chosen"] in estimators and 0 < coverage < 1, "its settings")
    quantiles = {Newness(name): _read_calibration(value) for name, value in document["quantiles"].items()}
    state = WorkloadModelState(
        kind=document["kind"],
        chosen=document["chosen"],
        estimators=estimators,
        roofline=_read_roofline(document["roofline"], arrays),
        roofline_errors=_read_calibration(document["roofline_errors"]),
        ood_detector=_read_detector(document["familiarity"], arrays),
        intervals=Intervals(coverage, quantiles),
        rows=int(document["rows"]),
        encoder=_read_encoder(document["encoder"]) if "encoder" in document else None,
    )
    _require(state.encoder is None or state.has_embedding, "its encoder")
    return state


def _read_encoder(stored: Mapping[str, Any]) -> EncoderReference:
    sha256 = stored["sha256"]
    _require(isinstance(sha256, str) and _SHA256.fullmatch(sha256) is not None, "the digest of its encoder")
    return EncoderReference(check_dataset_type(stored["dataset_type"]), sha256)


def _read_calibration(stored: Mapping[str, Any]) -> Calibration:
    found = Calibration(float(stored["quantile"]), int(stored["count"]))
    _require(0 <= found.quantile < float("inf") and found.count >= 0, "a quantile")
    return found


def _read_roofline(stored: Mapping[str, Any], arrays: Arrays) -> CalibratedRoofline:
    parts = len(ROOFLINE_COLUMNS)
    names = tuple(_read_texts(each) for each in stored["names"])
    deviations = tuple(arrays[f"roofline.{level}"] for level in range(len(LEVELS)))
    common = arrays["roofline.common"]
    _require(len(names) == len(LEVELS) and common.shape == (parts,), "its roofline")
    _require(all(a.shape == (len(n), parts) for a, n in zip(deviations, names, strict=True)), "its roofline's levels")
    return CalibratedRoofline(common, names, deviations)


def _read_detector(stored: Mapping[str, Any], arrays: Arrays) -> OutOfDistributionDetector:
    center, spread, points, totals = (
        arrays[f"familiarity.{name}"] for name in ("center", "spread", "points", "totals")
    )
    width = len(ANALYTIC_COLUMNS)
    architectures = _read_texts(stored["architectures"])
    usual = float(stored["usual_distance"])
    _require(center.shape == spread.shape == (width,) and bool((spread > 0).all()), "its networks' scale")
    _require(points.shape == (len(architectures), width) and len(points) > 0 and usual > 0, "its networks")
    _require(totals.shape == (2, 4), "its networks' totals")
    least, most = map(float, stored["batches"])
    gpus = tuple(TrainedGpu(**gpu) for gpu in stored["gpus"])
    _require(len(gpus) > 0, "its devices")
    return OutOfDistributionDetector(
        networks=RunNeighbourhood(center, spread, points, usual),
        architectures=architectures,
        totals=totals,
        batches=(least, most),
        devices=float(stored["devices"]),
        nodes=float(stored["nodes"]),
        gpus=GpuNeighbourhood(gpus),
        precisions=_read_texts(stored["precisions"]),
        parallelisms=_read_texts(stored["parallelisms"]),
        batches_by_environment={str(name): (float(low), float(high)) for name, (low, high) in stored["places"].items()},
        settings=frozenset(_read_texts(stored["settings"])),
        networks_by_environment={
            str(name): frozenset(_read_texts(known)) for name, known in stored.get("networks", {}).items()
        },
        hosts={name: _read_host_range(name, known) for name, known in stored.get("hosts", {}).items()},
    )


def _read_host_range(name: str, stored: Mapping[str, Any]) -> HostRange:
    found = HostRange(float(stored["low"]), float(stored["high"]), bool(stored["always"]))
    _require(name in HOST_COLUMNS and 0 < found.low <= found.high < float("inf"), "what its hosts have free")
    return found


def _read_estimator(name: str, stored: Mapping[str, Any], arrays: Arrays) -> FittedEstimator:
    features = stored["features"]
    categories = tuple(_read_texts(values) for values in stored["categories"])
    _require(name in REGRESSORS and features in FEATURE_SETS and len(categories) == len(CATEGORIES), "a regressor")
    own = {key.removeprefix(f"{name}."): array for key, array in arrays.items() if key.startswith(f"{name}.")}
    center, inverse = own.pop("center"), own.pop("inverse")
    width = len(CLUSTER_COLUMNS) + sum(map(len, categories))
    if features != EMBEDDING:
        width += len(ROOFLINE_COLUMNS)
    if features in (ANALYTIC, EMBEDDED):
        width += len(ANALYTIC_COLUMNS)
    extra = len(center) - width
    most = _LONGEST_EMBEDDING if features in WITH_EMBEDDING else 0
    _require(center.shape == inverse.shape and 0 <= extra <= most, f"the columns of {name}")
    check_arrays(name, own, len(center))
    least, largest = map(float, stored["bounds"])
    logarithmic = bool(stored["logarithmic"])
    _require(least <= largest and (logarithmic or least > 0), f"the bounds of {name}")
    scale = Standardisation(center, inverse, float(stored["target_center"]), float(stored["target_spread"]))
    _require(
        bool(np.isfinite([least, largest, scale.target_center, scale.target_spread]).all()), f"the scale of {name}"
    )
    estimator = Estimator(
        Candidate(name, features, dict(stored["options"])),
        Encoding(features, categories),
        FittedRegressor(name, scale, own),
        logarithmic,
        (least, largest),
    )
    by_environment = {str(name): _read_calibration(value) for name, value in stored["places"].items()}
    # Models of before know no such errors: their answers are as wide as of a network that is new there.
    there = {str(name): _read_calibration(value) for name, value in stored.get("measured_there", {}).items()}
    architecture = _read_calibration(stored["architecture"])
    return FittedEstimator(estimator, float(stored["score"]), architecture, by_environment, there)


def _read_texts(values: Any) -> tuple[str, ...]:
    _require(isinstance(values, list) and all(isinstance(value, str) for value in values), "a list of names")
    return tuple(values)


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(f"{what} cannot be")


def _name_version(format_version: int, digest: str) -> str:
    return f"workload-{format_version}-{digest[:12]}"
