"""A network's graph that a problem file names becomes estimated curves: a cold start for a job that never ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpusonde.catalog import GpuCatalog, GpuSpec, OfferCatalog, UnknownGpuError, UnknownProviderError, load_offers
from gpusonde.optimizer.documents.fields import DocumentError, Table, text, whole
from gpusonde.optimizer.documents.job import LARGEST_BATCH, device_name
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
