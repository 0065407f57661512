"""``fleet_runs``: jobs that ran on several GPU models, out of a store, as the runs that models are fitted on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpusonde.catalog import GpuCatalog, GpuSpec
from gpusonde.collector.query.prediction import measure_run, resolve
from gpusonde.collector.query.runs import gpu_message
from gpusonde.collector.storage.local.export import StoreSnapshot
from gpusonde.collector.storage.model import RunRow
from gpusonde.collector.tracking.jobs import NO_JOBS
from gpusonde.common.v1 import gpu_pb2
from gpusonde.errors import RequestError, StoreCorruptError
from gpusonde.formatting import percent
from gpusonde.predictor.crossgpu import REQUIRED_METRICS, MeasurementError, Run, RunConfiguration, RunsTable

_PAGE = 1000
# Newest first: reading them takes seconds each when they are long.
_MOST_RUNS_LISTED = 100_000
_MOST_RUNS_MEASURED = 1000
# More stays of one job on one GPU model say little more.
_MOST_STAYS = 3
_MINIMUM_EPOCHS = 3
# Width of the interval of the epoch latency, as a ratio of it: what is known worse says little about a GPU.
_WIDEST_INTERVAL = 0.4
_NANOSECONDS = 1e9


@dataclass
class FleetRuns:
    """What a store gives to fit on.

    Attributes:
        table: The runs; jobs are their configurations.
        jobs: Jobs among them.
        replayed: Runs among them whose samples come from a replayed or generated trace.
        left_out: Why other runs of jobs are not among them -> how many.
    """

    table: RunsTable
    jobs: int = 0
    replayed: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Stay:
    """A run that may count, and what it ran on."""

    run: RunRow
    spec: GpuSpec
    replayed: bool


def fleet_runs(
    store: StoreSnapshot, gpus: GpuCatalog, *, progress: Callable[[float], None] = lambda _: None
) -> FleetRuns:
    """Collect the runs of jobs that ran on more than one GPU model.

    A job is a scheduler's job id. Its runs at one time on several GPUs are one stay: parts of it are as long as each
    other, so one run speaks for it, and it is compared with stays on as many GPUs of as many hosts only.

    Args:
        store: The store.
        gpus: Resolves names.
        progress: Called with the share of the runs read, 0..1.

    Raises:
        StoreError: The catalogue cannot be read.
    """
    left_out: Counter[str] = Counter()
    by_configuration: dict[RunConfiguration, dict[str, list[_Stay]]] = defaultdict(lambda: defaultdict(list))
    described = {(gpu.gpu_uuid, gpu.agent_id): gpu_message(gpu) for gpu in store.facts.gpus()}
    for job, rows in _runs_by_job(store).items():
        stays = [stay for row in rows if (stay := _stay(store, gpus, row, described, left_out)) is not None]
        for together in _overlapping(stays):
            names = {stay.spec.name for stay in together}
            if len(names) > 1:
                left_out["on several GPU models at the same time"] += len(together)
                continue
            devices = len({stay.run.gpu_uuid for stay in together})
            hosts = len({stay.run.agent_id for stay in together})
            middle = sorted(together, key=lambda stay: stay.run.period_s)[len(together) // 2]
            by_configuration[RunConfiguration(job, f"{devices} GPUs, {hosts} hosts", "", "")][names.pop()].append(
                middle
            )
    chosen = [
        (configuration, stay)
        for configuration, by_gpu in by_configuration.items()
        if len(by_gpu) > 1
        for found in by_gpu.values()
        for stay in sorted(found, key=lambda stay: -stay.run.end_unix_nano)[:_MOST_STAYS]
    ]
    chosen.sort(key=lambda pair: -pair[1].run.end_unix_nano)
    left_out["older than the newest that are read"] += max(0, len(chosen) - _MOST_RUNS_MEASURED)
    runs: list[Run] = []
    replayed = 0
    for number, (configuration, stay) in enumerate(chosen[:_MOST_RUNS_MEASURED]):
        run = _measured(store, gpus, configuration, stay, len(runs), left_out)
        if run is not None:
            runs.append(run)
            replayed += stay.replayed
        progress((number + 1) / len(chosen))
    jobs = len({run.configuration.model for run in runs})
    return FleetRuns(RunsTable(tuple(runs)), jobs, replayed, +left_out)


def _runs_by_job(store: StoreSnapshot) -> dict[str, list[RunRow]]:
    found: dict[str, list[RunRow]] = defaultdict(list)
    before, listed = None, 0
    while listed < _MOST_RUNS_LISTED:
        page = store.results.runs(before=before, limit=_PAGE)
        for run in page:
            if run.job_id and run.scheduler not in NO_JOBS:
                found[f"{run.scheduler}:{run.job_id}"].append(run)
        if len(page) < _PAGE:
            break
        listed += len(page)
        before = page[-1].start_unix_nano, page[-1].run_id
    return found


def _stay(
    store: StoreSnapshot,
    gpus: GpuCatalog,
    run: RunRow,
    by_gpu: Mapping[tuple[str, str], gpu_pb2.Gpu],
    left_out: Counter[str],
) -> _Stay | None:
    """Return a run as a stay, or None and count the reason."""
    described = by_gpu.get((run.gpu_uuid, run.agent_id), gpu_pb2.Gpu())
    if not run.ended:
        reason = "still running"
    elif run.verdict != "epochs" or run.epoch_count < _MINIMUM_EPOCHS:
        reason = f"fewer than {_MINIMUM_EPOCHS} epochs found"
    elif run.period_high_s - run.period_low_s > _WIDEST_INTERVAL * run.period_s:
        reason = f"with an epoch latency that is not known to {percent(_WIDEST_INTERVAL)} (width of its interval)"
    elif not store.contains(run):
        reason = "not in segments yet"
    elif described.mig_uuid:
        reason = "on a part of a GPU"
    else:
        try:
            resolution = resolve(gpus, described.product_name, described.framebuffer_bytes)
        except RequestError:
            reason = "on a GPU that the catalogue does not hold"
        else:
            return _Stay(run, resolution.spec, described.replayed)
    left_out[reason] += 1
    return None


def _overlapping(stays: Sequence[_Stay]) -> Iterator[list[_Stay]]:
    """Yield runs of a job that overlap in time, directly or through others."""
    together: list[_Stay] = []
    end = 0
    for stay in sorted(stays, key=lambda stay: stay.run.start_unix_nano):
        if together and stay.run.start_unix_nano >= end:
            yield together
            together = []
        together.append(stay)
        end = max(end, stay.run.end_unix_nano)
    if together:
        yield together


def _measured(
    store: StoreSnapshot,
    gpus: GpuCatalog,
    configuration: RunConfiguration,
    stay: _Stay,
    row: int,
    left_out: Counter[str],
) -> Run | None:
    try:
        measurement = measure_run(stay.run, store.facts, store.samples, gpus)
    except (RequestError, MeasurementError, StoreCorruptError):
        left_out["samples that cannot be read or cannot be"] += 1
        return None
    if any(name not in measurement.metrics for name in REQUIRED_METRICS):
        left_out[f"without {', '.join(REQUIRED_METRICS)}"] += 1
        return None
    return Run(
        row=row,
        line=0,
        instance=stay.run.run_id,
        gpu=measurement.gpu,
        configuration=configuration,
        epoch_latency_s=measurement.epoch_latency_s,
        metrics=measurement.metrics,
        static_attributes=measurement.static_attributes,
        detected_epoch_latency_s=measurement.epoch_latency_s,
        epoch_latency_relative_error=measurement.epoch_latency_relative_error,
        end_unix_s=stay.run.end_unix_nano / _NANOSECONDS,
    )
