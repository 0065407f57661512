"""Files that a problem file names: profiles, measurements, predictions, graphs, prices become part of the document.

What is left holds figures only and no names of files, so that it can be sent to a collector or kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gpusonde.catalog import load_gpus
from gpusonde.optimizer.documents.fields import DocumentError, Table, text
from gpusonde.optimizer.documents.files import check_format, read_document
from gpusonde.optimizer.documents.graph_files import ModelSource, with_graph_curves
from gpusonde.optimizer.documents.job import device_name
from gpusonde.optimizer.documents.spot_files import with_spot_offers
from gpusonde.simulator.compute.origins import WorkloadPredictor

_MOST_FILES = 256
_OF_PREDICTION = ("epoch_latency_s", "epoch_latency_low_s", "epoch_latency_high_s", "interval_coverage")


def shipped_or_read(path: Path | None) -> WorkloadPredictor:
    """Return the model of training times in a file; of None, the shipped one.

    Raises:
        gpusonde.predictor.workload.engine.EngineError: The file holds none.
    """
    # It brings scikit-learn, which few problems need.
    from gpusonde.predictor.workload.engine.model import WorkloadModel  # noqa: PLC0415

    return WorkloadModel.shipped() if path is None else WorkloadModel.load(path)


def read_problem(
    path: Path,
    clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    workload_model: ModelSource = shipped_or_read,
) -> dict[str, Any]:
    """Read a problem file and put in what its ``job`` and ``spot`` refer to; names of files are relative to it.

    Args:
        path: The file.
        clock: Tells the moment of planning, by which spot prices are current or stale.
        workload_model: Returns the model that estimates steps of a network's graph.

    Raises:
        DocumentError: It, or a file that it names, cannot be used.
        OSError: It cannot be read.
    """
    document = read_document(path)
    check_format(document, "problem")
    job = document.get("job")
    if isinstance(job, Mapping):
        job = _resolved(dict(job), path.parent)
        document = {**document, "job": with_graph_curves(job, document, path.parent, load_gpus(), workload_model)}
    return with_spot_offers(document, path.parent, clock)


def _resolved(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    table = Table(job, "job", job)
    files = {key: list(table.items(key, most=_MOST_FILES)) for key in ("profiles", "predictions", "allreduce_files")}
    for key in files:
        job.pop(key, None)
    curves = [element for _, element in table.items("curves", most=_MOST_FILES)]
    for at, element in files["profiles"]:
        curves.append(_add_profile(job, Table(element, at, ("file", "device")), folder))
    curves += _predicted_curves(
        [
            Table(element, at, ("file", "batch_size", "samples_per_epoch", "shape"))
            for at, element in files["predictions"]
        ],
        folder,
        {curve["device"] for curve in curves if isinstance(curve, Mapping) and isinstance(curve.get("device"), str)},
    )
    measurements = [element for _, element in table.items("allreduce", most=1 << 20)]
    for at, element in files["allreduce_files"]:
        found = _read(folder, text(element, at, longest=4096), at)
        check_format(found, "allreduce-measurements", at)
        measurements += [row for _, row in Table(found, at, found).items("measurements", most=1 << 20)]
    return job | ({"curves": curves} if curves else {}) | ({"allreduce": measurements} if measurements else {})


def _add_profile(job: dict[str, Any], table: Table, folder: Path) -> dict[str, Any]:
    """Return the profile's curve; its gradients and optimizer step hold unless the job has some already."""
    profile = _read(folder, table.text("file", longest=4096), table.at("file"))
    check_format(profile, "profile", table.at("file"))
    job.setdefault("gradients", profile.get("gradients"))
    job.setdefault("optimizer_s", profile.get("optimizer_s"))
    curve = {"device": table.text("device", str(profile.get("device", ""))), "probes": profile.get("probes")}
    if profile.get("largest_batch") is not None:
        curve["largest_batch"] = profile["largest_batch"]
    return curve


def _predicted_curves(tables: list[Table], folder: Path, known: set[str]) -> list[dict[str, Any]]:
    """Curves of every GPU without one that was predicted at two batch sizes, or at one with a shape to go by."""
    if not tables:
        return []
    gpus = load_gpus()
    taken = {device_name(device, gpus) for device in known}
    by_device: dict[str, list[dict[str, Any]]] = defaultdict(list)
    shape = ""
    for table in tables:
        batch = {key: table.number(key) for key in ("batch_size", "samples_per_epoch")}
        shape = table.text("shape", shape)
        found = _read(folder, table.text("file", longest=4096), table.at("file"))
        for at, row in Table(found, table.at("file"), found).items("predictions", most=4096, least=1):
            if not isinstance(row, Mapping):
                raise DocumentError(at, "is no prediction; give the output of 'gpusonde predict --json'")
            device = row.get("gpu_model")
            if isinstance(device, str) and row.get("epoch_latency_s") is not None:
                by_device[device].append({**batch, **{key: row.get(key) for key in _OF_PREDICTION}})
    curves = []
    for device, rows in by_device.items():
        if device in taken:
            continue
        if len({row["batch_size"] for row in rows}) > 1:
            curves.append({"device": device, "epochs": rows})
        elif shape:
            curves.append({"device": device, "epochs": rows, "shape": shape})
    if not curves and not known:
        raise DocumentError(
            "job.predictions",
            "no GPU is predicted at two batch sizes: measure the job at another one and predict, or give a profile and"
            " shape, the device it is of",
        )
    return curves


def _read(folder: Path, name: str, at: str) -> dict[str, Any]:
    path = folder / Path(name).expanduser()
    try:
        return read_document(path)
    except DocumentError as error:
        raise DocumentError(at, f"{path}: {error}") from None
    except (OSError, ValueError) as error:
        raise DocumentError(at, f"{path}: {getattr(error, 'strerror', None) or error}") from None
