"""Files that a problem file names: profiles, measurements, predictions, graphs, prices become part of the document.

What is left holds figures only and no names of files, so that it can be sent to a collector or kept. A network's graph
becomes estimated curves, a cold start for a job that never ran; tables of spot prices become offers, as of the moment
of reading. ``FileReferences`` and ``SpotKeys`` are the keys that only files have.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any

from gpusonde.catalog import (
    CatalogError,
    GpuCatalog,
    GpuSpec,
    OfferCatalog,
    Precision,
    UnknownGpuError,
    load_gpus,
    load_offers,
)
from gpusonde.documents import ListOf, Number, Text, check_format, parse, read_document, to_plain
from gpusonde.errors import DocumentError, GraphError, ModelError, ProblemError, TableError
from gpusonde.formatting import count, percent
from gpusonde.optimizer.documents.job import device_name
from gpusonde.optimizer.documents.problem import PROBLEM, QueryKeys
from gpusonde.optimizer.offers import BatchLimits, Terms
from gpusonde.optimizer.problem import BatchSize, PreemptionRate
from gpusonde.optimizer.spot_offers import SpotRow, ask_spot_rows, read_spot_rows, spot_offers
from gpusonde.predictor.workload.engine import Cluster, Optimizer, StepMemory, WorkloadPrediction, WorkloadRequest
from gpusonde.predictor.workload.engine.model import note_memory
from gpusonde.predictor.workload.graph import WorkloadGraph, read_graph
from gpusonde.simulator.compute import EpochLatency
from gpusonde.simulator.compute.fitting import LARGEST_BATCH
from gpusonde.simulator.compute.sources import (
    WorkloadPredictor,
    gradient_bytes,
    latency_estimate,
    predict_steps,
)

_LOG = logging.getLogger(__name__)
_MOST_DEVICES = 256
_MOST_FILES = 256
_MOST_SPOT_FILES = 64
_MOST_BATCH_SIZES = 64
_MOST_ROWS = 1 << 20
_MOST_PREDICTIONS = 4096
_HOUR_S = 3600.0
# Beyond, no network was measured, and a step is in proportion to its samples anyway.
_LARGEST_ESTIMATED_BATCH = 256
# Below, few measurements are, and launches rule.
_SMALLEST_USUAL_BATCH = 16
# Keys of a prediction that an epoch latency has as well.
_PREDICTED = tuple(
    field.name for field in fields(EpochLatency) if field.name not in ("batch_size", "samples_per_epoch")
)

_FileName = Annotated[str, Text(longest=4096)]
ModelSource = Callable[[Path | None], WorkloadPredictor]
SpotSource = Callable[[Sequence[str], Path], Iterable[SpotRow]]


@dataclass(frozen=True)
class ProfileKeys:
    """The keys of ``job.profiles``: what ``gpusonde profile`` wrote.

    Attributes:
        file: The profile, relative to the problem file.
        device: GPU that it holds for, where the profile names another one.
    """

    file: _FileName
    device: str | None = None


@dataclass(frozen=True)
class PredictionKeys:
    """The keys of ``job.predictions``: what ``gpusonde predict --json`` printed.

    Attributes:
        file: The predictions, relative to the problem file.
        batch_size: Batch per GPU of the run that was measured.
        samples_per_epoch: Samples of an epoch.
        shape: GPU with a curve of its own, whose shape predictions at one batch size take, not that of most jobs; holds
            for later files too.
    """

    file: _FileName
    batch_size: Annotated[float, Number()]
    samples_per_epoch: Annotated[float, Number()]
    shape: str | None = None


@dataclass(frozen=True)
class GraphKeys:
    """The keys of ``job.graph``: a network that never ran.

    Attributes:
        file: Its graph, relative to the problem file.
        precision: What its matrix products are computed in.
        batch_sizes: Batches per GPU to estimate steps for; usual ones that fit without.
        largest_batch: Largest batch that fits into memory; estimated without.
        devices: GPUs to estimate for; all that can be rented without.
        model: Model of training times; the shipped one without.

    Raises:
        DocumentError: One batch size, of which no curve can be made.
    """

    file: _FileName
    precision: Precision = Precision.FP32
    batch_sizes: Annotated[tuple[BatchSize, ...], ListOf(_MOST_BATCH_SIZES)] = ()
    largest_batch: BatchSize | None = None
    devices: Annotated[tuple[str, ...], ListOf(_MOST_DEVICES, least=1)] | None = None
    model: _FileName | None = None

    def __post_init__(self) -> None:
        if len(set(self.batch_sizes)) == 1:
            raise DocumentError("batch_sizes", "a curve needs two batch sizes or more")


@dataclass(frozen=True, kw_only=True)
class SpotKeys(QueryKeys):
    """The keys of ``spot``: spot machines of a table with prices.

    Attributes:
        file: The table, relative to the problem file; this or ``command``.
        command: Program, with its arguments, that prints the table; it runs in the file's folder for a minute at most.
        reread_s: ``gpusonde monitor``, computing by itself, reads the prices again after so many seconds.
        preemptions_per_hour: How often a machine is taken away where the table does not say.
        longest_age_hours: Prices older than this are left out.

    Raises:
        DocumentError: Not exactly one of file and command.
    """

    file: _FileName | None = None
    command: Annotated[tuple[str, ...], ListOf(64, element=Text(longest=4096))] = ()
    reread_s: Annotated[float, Number(least=1.0, most=86_400.0)] | None = None
    preemptions_per_hour: PreemptionRate | None = None
    longest_age_hours: Annotated[float, Number(most=1e6)] = 24.0

    def __post_init__(self) -> None:
        if (self.file is None) == (not self.command):
            raise DocumentError("file", "give a table's file, or the command that prints one")


@dataclass(frozen=True)
class FileReferences:
    """Keys of a file's ``job`` that name other files.

    Attributes:
        profiles: Profiles of the job; each gives a curve, and the first also gradients and the optimizer's step.
        predictions: Predictions of epochs on other GPUs.
        allreduce_files: Files of allreduce measurements.
        graph: The network's graph, for GPUs without a curve.
    """

    profiles: Annotated[tuple[ProfileKeys, ...], ListOf(_MOST_FILES)] = ()
    predictions: Annotated[tuple[PredictionKeys, ...], ListOf(_MOST_FILES)] = ()
    allreduce_files: Annotated[tuple[_FileName, ...], ListOf(_MOST_FILES)] = ()
    graph: GraphKeys | None = None


def load_workload_model(path: Path | None) -> WorkloadPredictor:
    """Return the model of training times in a file; of None, the shipped one.

    Raises:
        gpusonde.predictor.workload.engine.ModelError: The file holds none.
    """
    # It brings scikit-learn, which few problems need.
    from gpusonde.predictor.workload.engine import WorkloadModel  # noqa: PLC0415

    return WorkloadModel.shipped() if path is None else WorkloadModel.load(path)


def read_problem(
    path: Path,
    clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    workload_model: ModelSource = load_workload_model,
    ask: SpotSource = ask_spot_rows,
) -> dict[str, Any]:
    """Read a problem file and put in what its ``job`` and ``spot`` refer to; names of files are relative to it.

    Args:
        path: The file.
        clock: Tells the moment of planning, by which spot prices are current or stale.
        workload_model: Returns the model that estimates steps of a network's graph.
        ask: Runs the program that prints a table of prices, in a folder.

    Raises:
        DocumentError: It, or a file that it names, cannot be used.
        OSError: It cannot be read.
    """
    document = read_document(path)
    check_format(document, PROBLEM)
    folder = path.parent
    if str(path) == "-":
        _refuse_commands(document)
    job = document.get("job")
    if isinstance(job, Mapping):
        own = {field.name for field in fields(FileReferences)}
        files = parse(FileReferences, {key: value for key, value in job.items() if key in own}, "job")
        job = _add_files({key: value for key, value in job.items() if key not in own}, files, folder)
        if files.graph is not None:
            job = _add_graph(job, files.graph, document, folder, workload_model)
        document = {**document, "job": job}
    if document.get("spot") is None:
        return {key: value for key, value in document.items() if key != "spot"}
    return _add_spot_offers(document, folder, clock, ask)


def _refuse_commands(document: Mapping[str, Any]) -> None:
    """Refuse programs of a document that came through a pipe: who runs it need not have read it."""
    tables = document.get("spot")
    for place, table in enumerate(tables if isinstance(tables, list) else []):
        if isinstance(table, Mapping) and table.get("command"):
            raise DocumentError(
                f"spot[{place}].command", "is not run for a problem on stdin; keep the problem in a file"
            )


def reread_after_s(path: Path) -> float | None:
    """Return after how many seconds a problem file wants its prices to be read again; None where it does not.

    Raises:
        DocumentError: It cannot be used.
        OSError: It cannot be read.
    """
    tables = ListOf(_MOST_SPOT_FILES).read(read_document(path).get("spot") or (), "spot")
    every = [parse(SpotKeys, element, f"spot[{place}]").reread_s for place, element in enumerate(tables)]
    return min((seconds for seconds in every if seconds is not None), default=None)


def _read(folder: Path, name: str, at: str) -> dict[str, Any]:
    path = folder / Path(name).expanduser()
    try:
        return read_document(path)
    except DocumentError as error:
        raise DocumentError(at, f"{path}: {error}") from None
    except (OSError, ValueError) as error:
        raise DocumentError(at, f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _add_files(job: dict[str, Any], files: FileReferences, folder: Path) -> dict[str, Any]:
    """Return the job with what its profiles, predictions and measurements say."""
    curves = _elements(job, "curves", "job")
    for place, profile in enumerate(files.profiles):
        curves.append(_add_profile(job, profile, f"job.profiles[{place}].file", folder))
    known = {curve["device"] for curve in curves if isinstance(curve, Mapping) and isinstance(curve.get("device"), str)}
    curves += _predicted_curves(files.predictions, folder, known)
    measurements = _elements(job, "allreduce", "job")
    for place, name in enumerate(files.allreduce_files):
        at = f"job.allreduce_files[{place}]"
        found = _read(folder, name, at)
        check_format(found, "allreduce-measurements", at)
        measurements += _elements(found, "measurements", at)
    return job | ({"curves": curves} if curves else {}) | ({"allreduce": measurements} if measurements else {})


def _elements(values: Mapping[str, Any], key: str, path: str) -> list[Any]:
    """Return a list that is checked where it is used; an empty one where there is none."""
    found = values.get(key)
    return [] if found is None else list(ListOf(_MOST_ROWS).read(found, f"{path}.{key}" if path else key))


def _add_profile(job: dict[str, Any], keys: ProfileKeys, at: str, folder: Path) -> dict[str, Any]:
    """Return the profile's curve; its gradients and optimizer step hold unless the job has some already."""
    profile = _read(folder, keys.file, at)
    check_format(profile, "profile", at)
    job.setdefault("gradients", profile.get("gradients"))
    job.setdefault("optimizer_s", profile.get("optimizer_s"))
    curve = {"device": keys.device or str(profile.get("device", "")), "probes": profile.get("probes")}
    if profile.get("largest_batch") is not None:
        curve["largest_batch"] = profile["largest_batch"]
    return curve


def _predicted_curves(files: Sequence[PredictionKeys], folder: Path, known: set[str]) -> list[dict[str, Any]]:
    """Return curves of every GPU without one; at one batch size of the shape that is named, or the usual one."""
    if not files:
        return []
    gpus = load_gpus()
    taken = {device_name(device, gpus) for device in known}
    by_device: dict[str, list[dict[str, Any]]] = defaultdict(list)
    shape = ""
    for place, keys in enumerate(files):
        batch = {"batch_size": keys.batch_size, "samples_per_epoch": keys.samples_per_epoch}
        shape = keys.shape or shape
        at = f"job.predictions[{place}].file"
        found = _read(folder, keys.file, at).get("predictions") or ()
        for index, row in enumerate(ListOf(_MOST_PREDICTIONS, least=1).read(found, f"{at}.predictions")):
            if not isinstance(row, Mapping):
                words = "is no prediction; give the output of 'gpusonde predict --json'"
                raise DocumentError(f"{at}.predictions[{index}]", words)
            device = row.get("gpu_model")
            if isinstance(device, str) and row.get("epoch_latency_s") is not None:
                by_device[device].append({**batch, **{key: row.get(key) for key in _PREDICTED}})
    curves = []
    for device, rows in by_device.items():
        if device in taken:
            continue
        alone = {"shape": shape} if shape and len({row["batch_size"] for row in rows}) == 1 else {}
        curves.append({"device": device, "epochs": rows, **alone})
    if not curves and not known:
        raise DocumentError("job.predictions", "no epoch latency of any GPU is predicted there")
    return curves


def _add_graph(
    job: dict[str, Any], keys: GraphKeys, document: Mapping[str, Any], folder: Path, model: ModelSource
) -> dict[str, Any]:
    """Return the job with a curve estimated from the graph for every device that has none, and with gradients."""
    gpus = load_gpus()
    graph = _read_graph(keys, folder)
    curves = _elements(job, "curves", "job")
    known = {device_name(str(curve.get("device")), gpus) for curve in curves if isinstance(curve, Mapping)}
    wanted = [spec for spec in _graph_gpus(keys, document, gpus) if spec.name not in known]
    if not wanted and not curves:
        raise DocumentError("job.graph", "no offer names a GPU of the catalogue; give devices, those to estimate for")
    limits = {spec.name: _largest_batch(keys, graph, spec, document) for spec in wanted}
    counted = {}
    if "memory" not in job and (job.get("checkpointing") or job.get("sharding")):
        counted = {"memory": _job_memory(keys, graph)}
    if not counted and "memory" not in job:
        limits = {name: limit for name, limit in limits.items() if limit}
    try:
        curves += _estimated_curves(keys, graph, limits, model, folder)
    except ModelError as error:
        raise DocumentError("job.graph", str(error)) from None
    if not curves:
        words = "the parameters alone need more memory than any of these GPUs has; sharding lets several share them"
        raise DocumentError("job.graph", words)
    assumed = {} if "gradients" in job else {"gradients": {"parameter_bytes": gradient_bytes(graph)}}
    return {**job, "curves": curves, **assumed, **counted}


def _job_memory(keys: GraphKeys, graph: WorkloadGraph) -> dict[str, Any]:
    """Return what the network holds, as ``job.memory``: never less than its step does at any batch."""
    memory = StepMemory.of(graph, Precision(keys.precision), Optimizer.ADAMW, buckets=True)
    passing = float((memory.kept[1] + memory.passing[1]).max())
    unit = _largest_unit(graph)
    return {
        "weights_bytes": memory.weights + passing,
        "gradients_bytes": float(memory.gradients.max()),
        "optimizer_bytes": memory.optimizer,
        "activation_bytes": float((memory.kept[0] + memory.passing[0]).max()),
        "checkpointed_bytes": memory.checkpointed_bytes,
        "unit_bytes": memory.weights * unit + passing,
    }


def _largest_unit(graph: WorkloadGraph) -> float:
    """Return the share of the weights in the largest part that is gathered at a time.

    That is a numbered block, such as ``layers.3`` of ``layers.3.q_proj``, as users wrap them, or all that is in none.
    """
    sizes: dict[tuple[str, ...], int] = defaultdict(int)
    for each in graph.operations:
        names = each.name.split(".")
        numbered = [place for place, name in enumerate(names[:-1]) if place and name.isdigit()]
        unit = tuple(names[: numbered[0] + 1]) if numbered else ()
        # A weight that is frozen, or an earlier operation's, is no parameter.
        weight = math.prod(each.weight) if each.weight else 0
        sizes[unit] += max(weight, sum(parameter.count for parameter in each.parameters))
    return max(sizes.values()) / sum(sizes.values())


def _read_graph(keys: GraphKeys, folder: Path) -> WorkloadGraph:
    path = folder / Path(keys.file).expanduser()
    try:
        graph = read_graph(path)
    except (GraphError, OSError) as error:
        words = getattr(error, "strerror", None) or error
        raise DocumentError("job.graph.file", f"{path}: {words}") from None
    if not graph.parameter_count:
        raise DocumentError("job.graph.file", f"{path}: the network has no parameters, so that nothing is trained")
    return graph


def _estimated_curves(
    keys: GraphKeys, graph: WorkloadGraph, limits: Mapping[str, int], model: ModelSource, folder: Path
) -> list[dict[str, Any]]:
    """Return a curve for each device, which takes batches up to its limit."""
    if not limits:
        return []
    path = None if keys.model is None else folder / Path(keys.model).expanduser()
    sizes = {device: keys.batch_sizes or _default_batch_sizes(limit) for device, limit in limits.items()}
    every_size = sorted({size for each in sizes.values() for size in each})
    found = predict_steps(model(path), graph, list(limits), every_size, keys.precision)
    curves = []
    for device, limit in limits.items():
        rows = [(size, each) for size, each in zip(every_size, found[device], strict=True) if size in sizes[device]]
        curves.append(
            {
                "device": device,
                "gray_box": [to_plain(latency_estimate(size, each)) for size, each in rows],
                **({"largest_batch": limit} if limit else {}),
                "note": _note(graph, device, rows, keys, is_limited=bool(limit)),
            }
        )
    return curves


def _note(
    graph: WorkloadGraph, device: str, rows: Sequence[tuple[int, WorkloadPrediction]], keys: GraphKeys, is_limited: bool
) -> str:
    """Return what to say of a curve; of GPUs alike in the same words, which then are said once."""
    found = [each for _, each in rows]
    low = min(each.low_s / each.seconds for each in found) - 1
    high = max(each.high_s / each.seconds for each in found) - 1
    within = f"{percent(low, sign='+')} and {percent(high, sign='+')}"
    words = [f"{percent(found[0].coverage)} of such estimates lie within {within}"]
    if is_limited and keys.largest_batch is None:
        words.append("which batches fit into the memory is estimated too, largest_batch says better")
    unlike = []
    for size, each in rows:
        # What fits is the plan's to say, which may share the job out.
        asked = WorkloadRequest(graph, size, Cluster(device, precision=keys.precision))
        of_memory = note_memory(asked, each.memory) if each.memory is not None else []
        if each.out_of_distribution:
            unlike += [reason.replace(device, "the GPU") for reason in each.reasons if reason not in of_memory]
    if unlike:
        words.append("unlike what the model has seen: " + "; ".join(dict.fromkeys(unlike)))
    return "; ".join(words)


def _default_batch_sizes(largest: int) -> list[int]:
    """Return powers of two that are usual and fit, the largest two of all where fewer are."""
    powers = [1 << step for step in range(_LARGEST_ESTIMATED_BATCH.bit_length())]
    fitting = [size for size in powers if size <= max(largest, 2)]
    usual = [size for size in fitting if size >= _SMALLEST_USUAL_BATCH]
    return usual if len(usual) > 1 else fitting[-2:]


def _largest_batch(keys: GraphKeys, graph: WorkloadGraph, spec: GpuSpec, document: Mapping[str, Any]) -> int:
    """Return the batch to go up to on a device; 0 where it cannot hold the network."""
    if keys.largest_batch is not None:
        return keys.largest_batch
    wanted = document.get("global_batch")
    most = wanted if isinstance(wanted, int) and 0 < wanted < LARGEST_BATCH else LARGEST_BATCH
    memory = StepMemory.of(graph, Precision(keys.precision), Optimizer.ADAMW)
    return min(memory.largest_batch(spec.memory_bytes), most)


def _graph_gpus(keys: GraphKeys, document: Mapping[str, Any], gpus: GpuCatalog) -> list[GpuSpec]:
    """Return those that are named, else those of everything that can be rented, as far as the catalogue knows them."""
    if keys.devices is not None:
        try:
            return list(dict.fromkeys(gpus.resolve_one(name).spec for name in keys.devices))
        except UnknownGpuError as error:
            raise DocumentError("job.graph.devices", str(error)) from None
    names: list[str] = []
    catalog = load_offers(gpus=gpus)
    for key in ("offers", "catalog", "spot"):
        # What is wrong with these is found where they are read.
        found = document.get(key)
        for element in found if isinstance(found, list) else []:
            if isinstance(element, Mapping):
                names += _named_gpus(element, catalog)
    specs = []
    for name in names:
        try:
            specs.append(gpus.resolve(name).spec)
        except UnknownGpuError:
            continue
    return list({spec.name: spec for spec in specs}.values())


def _named_gpus(element: Mapping[str, Any], catalog: OfferCatalog) -> list[str]:
    """Return the GPUs of an offer, or of what a query to the catalogue finds."""
    if isinstance(element.get("device"), str):
        return [element["device"]]
    found: list[str] = []
    if element.get("gpus"):
        for name in _listed_texts(element["gpus"]):
            with contextlib.suppress(UnknownGpuError):
                found += catalog.models(name or "")
        return found
    for provider in _listed_texts(element.get("providers")):
        for region in _listed_texts(element.get("regions")):
            try:
                offers = catalog.offers(billing=None, provider=provider, region=region)
            except CatalogError:
                continue
            kinds = _listed_texts(element.get("instance_types"))
            found += [offer.gpu_model for offer in offers if kinds == [None] or offer.instance_type in kinds]
    return found


def _listed_texts(values: Any) -> list[str | None]:
    """Return what a query asks for; [None], anything, where it says nothing."""
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) and values else [None]


def _add_spot_offers(
    document: dict[str, Any], folder: Path, clock: Callable[[], datetime], ask: SpotSource
) -> dict[str, Any]:
    """Return the document with ``spot`` turned into ``offers``.

    A machine whose GPU the job has no curve of is left out. What else is left out is logged, with the reason.
    """
    gpus = load_gpus()
    catalog = load_offers(gpus=gpus)
    offers = _elements(document, "offers", "")
    devices = _curve_gpus(document, gpus)
    for place, element in enumerate(ListOf(_MOST_SPOT_FILES).read(document["spot"], "spot")):
        at = f"spot[{place}]"
        offers += _spot_offers(parse(SpotKeys, element, at), at, folder, catalog, devices, clock(), ask)
    return {**{key: value for key, value in document.items() if key != "spot"}, "offers": offers}


def _curve_gpus(document: Mapping[str, Any], gpus: GpuCatalog) -> set[str]:
    """Return the devices of the job's curves; what is wrong with these is found where they are read."""
    job = document.get("job")
    curves = job.get("curves") if isinstance(job, Mapping) else None
    found = curves if isinstance(curves, list) else []
    names = [curve.get("device") for curve in found if isinstance(curve, Mapping)]
    return {device_name(name, gpus) for name in names if isinstance(name, str)}


def _note_places(rows: Iterable[SpotRow], places: set[str]) -> Iterator[SpotRow]:
    for row in rows:
        places |= {row.region, row.zone}
        yield row


def _spot_offers(
    keys: SpotKeys,
    at: str,
    folder: Path,
    catalog: OfferCatalog,
    devices: set[str],
    now: datetime,
    ask: SpotSource,
) -> list[dict[str, Any]]:
    path = f"what {keys.command[0]!r} prints" if keys.file is None else str(folder / Path(keys.file).expanduser())
    rate = keys.preemptions_per_hour
    try:
        terms = Terms(
            quotas=[keys.listed_quota],
            batches=dict.fromkeys(devices, BatchLimits(keys.smallest_batch, keys.largest_batch)),
            preemptions_per_hour={} if rate is None else {"*": rate},
        )
        age = timedelta(seconds=_HOUR_S * keys.longest_age_hours)
        rows = ask(keys.command, folder) if keys.file is None else read_spot_rows(path)
        places: set[str] = set()
        selection = spot_offers(catalog, _note_places(rows, places), terms, now, keys.offer_filter(), longest_age=age)
    except (TableError, ProblemError, UnknownGpuError) as error:
        raise DocumentError(at, str(error)) from None
    for region in set(keys.regions) - places:
        near = difflib.get_close_matches(region, places, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise DocumentError(f"{at}.regions", f"{path} has no row of {region!r}{meant}")
    for reason, number in selection.reasons().items():
        _LOG.warning("%s: %s left out of %s: %s", at, count(number, "price"), path, reason)
    if not selection.offers:
        why = "; ".join(selection.reasons()) or "it has no row that is asked for"
        raise DocumentError(at, f"{path}: none of its machines can be rented now: {why}")
    own = {key: value for key, value in (("fabric", keys.fabric), ("machine_fabric", keys.machine_fabric)) if value}
    # A document leaves out what it does not say.
    said = (
        {key: value for key, value in to_plain(offer).items() if value not in (None, "")} for offer in selection.offers
    )
    return [{**offer, **own, "quota": min(keys.quota, offer["quota"])} for offer in said]
