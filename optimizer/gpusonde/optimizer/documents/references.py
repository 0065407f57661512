"""Files that a problem file names: profiles, measurements, predictions, graphs, prices become part of the document.

What is left holds figures only and no names of files, so that it can be sent to a collector or kept.

A network's graph that a problem file names becomes estimated curves: a cold start for a job that never ran.

Tables of spot prices that a problem file names become offers of the document, as of the moment of reading.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from gpusonde.catalog import (
    GpuCatalog,
    GpuSpec,
    OfferCatalog,
    UnknownGpuError,
    UnknownProviderError,
    load_gpus,
    load_offers,
)
from gpusonde.optimizer.documents.job import LARGEST_BATCH, device_name
from gpusonde.optimizer.documents.problem import plain_fields
from gpusonde.optimizer.documents.schema import DocumentError, Table, check_format, read_document, text, whole
from gpusonde.optimizer.offers import BatchLimits, OfferFilter, Quota, Terms, TermsError
from gpusonde.optimizer.spot_offers import SpotTableError, read_spot_rows, spot_offers
from gpusonde.predictor.workload.engine import EngineError, Precision, WorkloadPrediction
from gpusonde.predictor.workload.graph import GraphError, WorkloadGraph
from gpusonde.predictor.workload.graph.reading import read_graph
from gpusonde.simulator.compute.origins import GraphEstimator, WorkloadPredictor, gradient_bytes, largest_batch_estimate

KEYS = ("file", "precision", "batch_sizes", "largest_batch", "devices", "model")
_MOST_DEVICES = 256
_MOST_BATCH_SIZES = 64
# Beyond, no network was measured, and a step is in proportion to its samples anyway.
_LARGEST_ESTIMATED_BATCH = 256
# Below, few measurements are, and launches rule.
_SMALLEST_USUAL_BATCH = 16

ModelSource = Callable[[Path | None], WorkloadPredictor]


def with_graph_curves(
    job: dict[str, Any],
    document: Mapping[str, Any],
    folder: Path,
    gpus: GpuCatalog,
    model: ModelSource,
) -> dict[str, Any]:
    """Return the job with ``graph`` turned into a curve for every device that has none, and into gradients.

    Args:
        job: What the file says of the job; other files that it names are in it already.
        document: The whole document, whose offers name the devices.
        folder: Names of files are relative to it.
        gpus: Knows the devices.
        model: Returns the model of a file; of None, the shipped one.

    Raises:
        DocumentError: The graph cannot be used, or there is no device to estimate it for.
    """
    if "graph" not in job:
        return job
    table = Table(job.pop("graph"), "job.graph", KEYS)
    graph = _read_graph_entry(table, folder)
    curves = [element for _, element in Table(job, "job", job).items("curves", most=_MOST_DEVICES)]
    known = {device_name(str(curve.get("device")), gpus) for curve in curves if isinstance(curve, Mapping)}
    wanted = [spec for spec in _graph_gpus(table, document, gpus) if spec.name not in known]
    if not wanted and not curves:
        raise DocumentError(table.path, "no offer names a GPU of the catalogue; give devices, those to estimate for")
    limits = {spec.name: _largest_batch(table, graph, spec, document) for spec in wanted}
    try:
        curves += _curves(table, graph, [spec.name for spec in wanted if limits[spec.name]], limits, model, folder)
    except EngineError as error:
        raise DocumentError(table.path, str(error)) from None
    if not curves:
        raise DocumentError(table.path, "the parameters alone need more memory than any of these GPUs has")
    assumed = {} if "gradients" in job else {"gradients": {"parameter_bytes": gradient_bytes(graph)}}
    return {**job, "curves": curves, **assumed}


def _read_graph_entry(table: Table, folder: Path) -> WorkloadGraph:
    path = folder / Path(table.text("file", longest=4096)).expanduser()
    try:
        graph = read_graph(path)
    except (GraphError, OSError) as error:
        raise DocumentError(table.at("file"), f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not graph.parameter_count:
        raise DocumentError(table.at("file"), f"{path}: the network has no parameters, so that nothing is trained")
    return graph


def _curves(
    table: Table,
    graph: WorkloadGraph,
    devices: Sequence[str],
    limits: Mapping[str, int],
    model: ModelSource,
    folder: Path,
) -> list[dict[str, Any]]:
    if not devices:
        return []
    precision = Precision(table.choice("precision", [each.value for each in Precision], Precision.FP32.value))
    path = folder / Path(table.text("model", longest=4096)).expanduser() if "model" in table else None
    estimator = GraphEstimator(model(path), graph, precision)
    given = [whole(value, at, most=LARGEST_BATCH) for at, value in table.items("batch_sizes", most=_MOST_BATCH_SIZES)]
    if len(set(given)) == 1:
        raise DocumentError(table.at("batch_sizes"), "a curve needs two batch sizes or more")
    sizes = {device: given or _default_batch_sizes(limits[device]) for device in devices}
    every_size = sorted({size for each in sizes.values() for size in each})
    found = estimator.predictions(devices, every_size)
    curves = []
    for device in devices:
        rows = [(size, each) for size, each in zip(every_size, found[device], strict=True) if size in sizes[device]]
        is_limit_estimated = "largest_batch" not in table
        curves.append(
            {
                "device": device,
                "gray_box": [_row(size, each) for size, each in rows],
                "largest_batch": limits[device],
                "note": _note([each for _, each in rows], limits[device] if is_limit_estimated else None),
            }
        )
    return curves


def _row(batch_size: int, found: WorkloadPrediction) -> dict[str, float]:
    return {
        "batch_size": batch_size,
        "total_s": found.seconds,
        "total_low_s": found.low_s,
        "total_high_s": found.high_s,
        "interval_coverage": found.coverage,
    }


def _note(found: Sequence[WorkloadPrediction], estimated_limit: int | None) -> str:
    low = min(each.low_s / each.seconds for each in found) - 1
    high = max(each.high_s / each.seconds for each in found) - 1
    words = [f"{found[0].coverage:.0%} of such estimates lie within {low:+.0%} and {high:+.0%}"]
    if estimated_limit is not None:
        words.append(
            f"that batches of {estimated_limit} fit into its memory is estimated too, largest_batch says better"
        )
    unlike = [reason for each in found if each.out_of_distribution for reason in each.reasons]
    if unlike:
        words.append("unlike what the model has seen: " + "; ".join(dict.fromkeys(unlike)))
    return "; ".join(words)


def _default_batch_sizes(largest: int) -> list[int]:
    """Powers of two that are usual and fit, the largest two of all where fewer are."""
    powers = [1 << step for step in range(_LARGEST_ESTIMATED_BATCH.bit_length())]
    fitting = [size for size in powers if size <= max(largest, 2)]
    usual = [size for size in fitting if size >= _SMALLEST_USUAL_BATCH]
    return usual if len(usual) > 1 else fitting[-2:]


def _largest_batch(table: Table, graph: WorkloadGraph, spec: GpuSpec, document: Mapping[str, Any]) -> int:
    """The batch to go up to on a device; 0 where it cannot hold the network."""
    if "largest_batch" in table:
        return table.whole("largest_batch", most=LARGEST_BATCH)
    wanted = document.get("global_batch")
    most = wanted if isinstance(wanted, int) and 0 < wanted < LARGEST_BATCH else LARGEST_BATCH
    return min(largest_batch_estimate(graph, spec.memory_bytes), most)


def _graph_gpus(table: Table, document: Mapping[str, Any], gpus: GpuCatalog) -> list[GpuSpec]:
    """Those that are named, else those of everything that can be rented, as far as the catalogue knows them."""
    if "devices" in table:
        try:
            named = [gpus.resolve(text(value, at)).spec for at, value in table.items("devices", most=_MOST_DEVICES)]
        except UnknownGpuError as error:
            raise DocumentError(table.at("devices"), str(error.args[0] if error.args else error)) from None
        return list(dict.fromkeys(named))
    names: list[str] = []
    catalog = load_offers(gpus=gpus)
    for key in ("offers", "catalog", "spot"):
        # What is wrong with these is found where they are read.
        found = document.get(key)
        for element in found if isinstance(found, list) else []:
            if isinstance(element, Mapping):
                names += _named(element, catalog)
    specs = []
    for name in names:
        try:
            specs.append(gpus.resolve(name).spec)
        except UnknownGpuError:
            continue
    return list({spec.name: spec for spec in specs}.values())


def _named(element: Mapping[str, Any], catalog: OfferCatalog) -> list[str]:
    if isinstance(element.get("device"), str):
        return [element["device"]]
    if element.get("gpus"):
        return [name for name in element["gpus"] if isinstance(name, str)]
    found: list[str] = []
    for provider in _listed_texts(element.get("providers")):
        for region in _listed_texts(element.get("regions")):
            try:
                offers = catalog.offers(billing=None, provider=provider, region=region)
            except UnknownProviderError:
                continue
            kinds = _listed_texts(element.get("instance_types"))
            found += [offer.gpu_model for offer in offers if kinds == [None] or offer.instance_type in kinds]
    return found


def _listed_texts(values: Any) -> list[str | None]:
    """What a query asks for; [None], anything, where it says nothing."""
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) and values else [None]


_LOG = logging.getLogger(__name__)
_MOST_SPOT_FILES = 64
_MOST_MACHINES = 10_000
_HOUR_S = 3600.0
_KEYS = (
    "file", "gpus", "providers", "regions", "instance_types", "quota", "fabric", "machine_fabric", "smallest_batch",
    "largest_batch", "preemptions_per_hour", "longest_age_hours",
)  # fmt: skip


def with_spot_offers(document: dict[str, Any], folder: Path, clock: Callable[[], datetime]) -> dict[str, Any]:
    """Return the document with ``spot`` turned into ``offers``.

    A machine whose GPU the job has no curve of is left out. What else is left out is logged, with the reason.

    Args:
        document: The document; what its ``job`` refers to is in it already.
        folder: Names of files are relative to it.
        clock: Tells the moment of planning, with its time zone.

    Raises:
        DocumentError: A key or a table cannot be used, or nothing in a table can be rented now.
    """
    if "spot" not in document:
        return document
    gpus = load_gpus()
    catalog = load_offers(gpus=gpus)
    top = Table(document, "", document)
    offers = [element for _, element in top.items("offers", most=1 << 20)]
    for at, element in top.items("spot", most=_MOST_SPOT_FILES):
        offers += _offers(Table(element, at, _KEYS), folder, catalog, _spot_gpus(document, gpus), clock())
    return {**{key: value for key, value in document.items() if key != "spot"}, "offers": offers}


def _spot_gpus(document: Mapping[str, Any], gpus: GpuCatalog) -> set[str]:
    """Devices of the job's curves; what is wrong with these is found where they are read."""
    job = document.get("job")
    curves = job.get("curves") if isinstance(job, Mapping) else None
    found = curves if isinstance(curves, list) else []
    names = [curve.get("device") for curve in found if isinstance(curve, Mapping)]
    return {device_name(name, gpus) for name in names if isinstance(name, str)}


def _offers(
    table: Table, folder: Path, catalog: OfferCatalog, devices: set[str], now: datetime
) -> list[dict[str, Any]]:
    path = folder / Path(table.text("file", longest=4096)).expanduser()
    largest = table.whole("largest_batch", least=0, most=LARGEST_BATCH) if "largest_batch" in table else None
    try:
        limits = BatchLimits(table.whole("smallest_batch", 1, most=LARGEST_BATCH), largest)
        rate = table.number("preemptions_per_hour", above=False) if "preemptions_per_hour" in table else None
        terms = Terms(
            quotas=[Quota(machines=table.whole("quota", most=_MOST_MACHINES))],
            batches=dict.fromkeys(devices, limits),
            preemptions_per_hour={} if rate is None else {"*": rate},
        )
        chosen = OfferFilter(
            providers=_table_texts(table, "providers"),
            regions=_table_texts(table, "regions"),
            gpus=_table_texts(table, "gpus"),
            instance_types=_table_texts(table, "instance_types"),
        )
        age = timedelta(seconds=_HOUR_S * table.number("longest_age_hours", 24.0, most=1e6))
        selection = spot_offers(catalog, read_spot_rows(path), terms, now, chosen, longest_age=age)
    except (SpotTableError, TermsError, UnknownGpuError) as error:
        raise DocumentError(table.path, str(error)) from None
    for reason, count in selection.reasons().items():
        _LOG.warning("%s: %d offers are left out: %s", path, count, reason)
    if not selection.offers:
        raise DocumentError(table.at("file"), f"{path}: none of its machines can be rented now; the log says why")
    fabrics = {key: table.text(key) for key in ("fabric", "machine_fabric") if key in table}
    # A document leaves out what it does not say.
    said = (
        {key: value for key, value in plain_fields(offer).items() if value not in (None, "")}
        for offer in selection.offers
    )
    return [{**fields, **fabrics} for fields in said]


def _table_texts(table: Table, key: str) -> tuple[str, ...]:
    return tuple(text(value, at) for at, value in table.items(key, most=64))


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
