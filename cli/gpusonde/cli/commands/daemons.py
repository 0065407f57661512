"""``gpusonde agent`` and ``gpusonde collector``: the daemons, on a GPU host and where agents stream to.

Both take a configuration file, and flags that override it. ``gpusonde agent doctor`` says what can be sampled on this
host, what cannot and why.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, TypeVar, cast

from gpusonde import formatting
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import DEFAULT_COLLECTOR, Parser, address, positive_number
from gpusonde.errors import UsageError
from gpusonde.service import process

if TYPE_CHECKING:
    from gpusonde.agent import AgentReport, SelfCounters
    from gpusonde.agent.doctor import Diagnosis, GpuFinding, JobSourceFinding, SamplingCost, SourceFinding
    from gpusonde.collector import CollectorReport
    from gpusonde.service.config import DaemonConfiguration, LogConfig
    from gpusonde.service.reload import ConfigSource

_C = TypeVar("_C", bound="DaemonConfiguration")


class DeviceNodePayload(TypedDict):
    """A device file of the driver."""

    path: str
    accessible: Annotated[bool, JsonKey("this user may read and write it")]


class SamplingCostPayload(TypedDict):
    """What reading all GPUs costs this host."""

    readings: int
    interval_s: float
    read_s: Annotated[float, JsonKey("a reading")]
    processor_s: Annotated[float, JsonKey("a reading")]
    core_share: Annotated[float, JsonKey("of one core")]
    adaptive_core_share: Annotated[float, JsonKey("the same at the longest interval of the adaptive rate")]


class SourcePayload(TypedDict):
    """Something that may be sampled."""

    name: Annotated[str, JsonKey("`dcgm`, `nvml`, `replay`")]
    usable: Annotated[bool, JsonKey("it opened and gave ticks")]
    reason: Annotated[str | None, JsonKey("why it is not usable, and what to do")]
    profiles: Annotated[bool, JsonKey("it gives profiling metrics")]
    bindings_folder: Annotated[str | None, JsonKey("of DCGM's Python bindings")]
    library_version: Annotated[str | None, JsonKey("of DCGM")]
    engine_address: Annotated[str | None, JsonKey("the DCGM engine that answered")]
    refusals: Annotated[list[str], JsonKey("what the DCGM engine refused, and what to do")]
    read_s: Annotated[float | None, JsonKey("mean time of one reading of all GPUs")]
    lag_s: Annotated[float | None, JsonKey("from a measurement to its arrival; 0 for NVML")]
    cost: Annotated[SamplingCostPayload | None, JsonKey("with `--cost`")]


class SampledMetricPayload(TypedDict):
    """One metric of one GPU."""

    name: str
    origin: Annotated[str, JsonKey("`dcgm 1002`, `gpm 2`, `nvml` ...")]
    interval_s: float
    multiplexed: Annotated[bool, JsonKey("measured only part of the time")]
    has_value: Annotated[bool, JsonKey("there was a number during the two seconds")]
    missing_reason: Annotated[str | None, JsonKey("why the GPU cannot give it")]


class SampledGpuPayload(TypedDict):
    """A GPU of the chosen source."""

    gpu_uuid: Annotated[str, JsonKey("of a MIG instance: of its GPU")]
    mig_uuid: Annotated[str | None, JsonKey("null for a whole GPU")]
    gpu_index: int
    product_name: str
    tick_rate_hz: float
    processes: Annotated[int | None, JsonKey("that compute on it")]
    metrics: list[SampledMetricPayload]


class GpuOwnerPayload(TypedDict):
    """The job that a GPU belongs to."""

    gpu_uuid: str
    scheduler: Annotated[str, JsonKey("as `scheduler` of a run")]
    job_id: str


class JobSourcePayload(TypedDict):
    """Where jobs are looked for."""

    name: Annotated[str, JsonKey("`slurm`, `kubernetes`, `processes`; empty for a replay")]
    usable: bool
    reason: Annotated[str | None, JsonKey("why not, and what to do")]
    owners: Annotated[list[GpuOwnerPayload], JsonKey("GPUs that it knows an owner of")]


class DoctorPayload(TypedDict):
    """What ``gpusonde agent doctor`` prints."""

    can_sample: bool
    source_kind: Annotated[str, JsonKey("`source.kind` of the configuration")]
    source: Annotated[str | None, JsonKey("what the agent would use")]
    driver_version: str | None
    is_root: bool
    profiling_admin_only: Annotated[bool | None, JsonKey("the driver reserves profiling for root")]
    device_nodes: Annotated[list[DeviceNodePayload], JsonKey("of the driver")]
    sources: Annotated[list[SourcePayload], JsonKey("what was tried")]
    gpus: Annotated[list[SampledGpuPayload], JsonKey("of the chosen source")]
    job_sources: Annotated[list[JobSourcePayload], JsonKey("where jobs are looked for")]
    advice: Annotated[list[str], JsonKey("what to do, the most important first")]


_COST_S = 5.0


def run_doctor(args: argparse.Namespace) -> int:
    """Examine the host; 0 when something can be sampled, else 1."""
    from gpusonde.agent import AgentConfig
    from gpusonde.agent.doctor import examine, examine_jobs
    from gpusonde.agent.sources.base import GpuDescription
    from gpusonde.agent.sources.select import make_process_reader

    with _config_errors_as_usage():
        config = AgentConfig.load(args.config, environment=os.environ, overrides=_overrides(args, {}))
    if not args.verbose:
        # What a daemon tells about its choice stands in the findings.
        process.set_level("warning")
    output = Output(as_json=args.json)
    with output.progress("trying the sources"):
        diagnosis = examine(config.source, cost_s=_COST_S if args.cost else 0.0)
        sampled = diagnosis.chosen.gpus if diagnosis.chosen else ()
        gpus = [GpuDescription(gpu.gpu_uuid, gpu.gpu_index, mig_uuid=gpu.mig_uuid) for gpu in sampled]
        jobs = examine_jobs(config.jobs, gpus, make_process_reader(config.source))
    output.result(payload(diagnosis, config.source.kind, jobs), lambda screen: render_doctor(screen, diagnosis, jobs))
    return 0 if diagnosis.chosen is not None else 1


def payload(diagnosis: Diagnosis, kind: str, jobs: Sequence[JobSourceFinding] = ()) -> DoctorPayload:
    """The diagnosis as it appears in JSON."""
    system = diagnosis.system
    chosen = diagnosis.chosen
    return {
        "can_sample": chosen is not None,
        "source_kind": kind,
        "source": chosen.name if chosen is not None else None,
        "driver_version": diagnosis.driver_version or None,
        "is_root": system.is_root,
        "profiling_admin_only": system.profiling_admin_only,
        "device_nodes": [{"path": node.path, "accessible": node.accessible} for node in system.device_nodes],
        "sources": [_source(finding) for finding in diagnosis.sources],
        "gpus": [_gpu(gpu) for gpu in chosen.gpus] if chosen is not None else [],
        "job_sources": [_job_source(finding) for finding in jobs],
        "advice": list(diagnosis.advice),
    }


def render_doctor(screen: Screen, diagnosis: Diagnosis, jobs: Sequence[JobSourceFinding] = ()) -> None:
    """Draw the diagnosis for a reader."""
    system, chosen = diagnosis.system, diagnosis.chosen
    screen.line(f"driver: {diagnosis.driver_version or 'no NVIDIA kernel module is loaded'}")
    nodes = [f"{node.path}{'' if node.accessible else ' (no access)'}" for node in system.device_nodes]
    screen.line(f"device files: {', '.join(nodes) or 'none'}; running as root: {formatting.yes_no(system.is_root)}")
    if system.profiling_admin_only is not None:
        screen.line(f"profiling reserved for root by the driver: {formatting.yes_no(system.profiling_admin_only)}")
    for finding in diagnosis.sources:
        screen.heading(f"source {finding.name}: {'usable' if finding.usable else 'not usable'}")
        if finding.bindings_folder:
            screen.line(f"bindings: {finding.bindings_folder} (DCGM {finding.library_version or 'of unknown version'})")
        if finding.engine_address:
            screen.line(f"engine: {finding.engine_address}")
        if finding.reason:
            screen.line(finding.reason)
        elif finding.usable:
            lag = f"; values arrive {formatting.seconds(finding.lag_s)} late" if finding.lag_s else ""
            screen.line(f"one reading of all GPUs takes {formatting.seconds(finding.read_s)}{lag}")
        if finding.cost is not None:
            cost = finding.cost
            screen.line(
                f"sampling costs {formatting.seconds(cost.processor_s)} of a core per reading: "
                f"{100 * cost.core_share:.2g} % of one at {1 / cost.interval_s:g} readings per second, "
                f"{100 * cost.adaptive_core_share:.2g} % at the slowest adaptive rate"
            )
    if chosen is not None:
        for gpu in chosen.gpus:
            _render_gpu(screen, gpu)
    for job_source in jobs:
        screen.heading(f"jobs from {job_source.name}: {'usable' if job_source.usable else 'not usable'}")
        owners = _owners(job_source)
        screen.line(job_source.reason or formatting.count(len(owners), "owner") + " of GPUs now")
        for owner in owners:
            screen.line(f"{owner['gpu_uuid']}: job {owner['job_id']} ({owner['scheduler']})")
    screen.heading(f"the agent would sample with {chosen.name}" if chosen else "nothing can be sampled on this host")
    for advice in diagnosis.advice:
        screen.note(f"- {advice}")


def _render_gpu(screen: Screen, gpu: GpuFinding) -> None:
    part = f"MIG instance {gpu.mig_uuid} of " if gpu.mig_uuid else ""
    screen.heading(
        f"{part}GPU {gpu.gpu_index} {gpu.product_name} ({gpu.gpu_uuid}): {formatting.number(gpu.tick_rate_hz)} ticks "
        "per second"
    )
    screen.line(f"processes that compute on it: {'not told' if gpu.processes is None else gpu.processes}")
    rows = []
    for metric in gpu.metrics:
        if metric.missing_reason is not None:
            state = f"missing: {metric.missing_reason.value}"
        elif not metric.has_value:
            state = "no value yet"
        else:
            state = "measured in turns" if metric.multiplexed else "measured"
        is_missing = metric.missing_reason is not None
        every = formatting.ABSENT if is_missing else formatting.seconds(metric.interval_s)
        rows.append((metric.name, formatting.ABSENT if is_missing else metric.origin, every, state))
    screen.table(("metric", "from", "every", "state"), rows)


def _source(finding: SourceFinding) -> SourcePayload:
    return {
        "name": finding.name,
        "usable": finding.usable,
        "reason": finding.reason or None,
        "profiles": finding.profiles,
        "bindings_folder": finding.bindings_folder or None,
        "library_version": finding.library_version or None,
        "engine_address": finding.engine_address or None,
        "refusals": list(finding.refusals),
        "read_s": finding.read_s if finding.usable else None,
        "lag_s": finding.lag_s if finding.usable else None,
        "cost": _cost(finding.cost) if finding.cost is not None else None,
    }


def _cost(cost: SamplingCost) -> SamplingCostPayload:
    return {
        "readings": cost.readings,
        "interval_s": cost.interval_s,
        "read_s": cost.read_s,
        "processor_s": cost.processor_s,
        "core_share": cost.core_share,
        "adaptive_core_share": cost.adaptive_core_share,
    }


def _job_source(finding: JobSourceFinding) -> JobSourcePayload:
    return {
        "name": finding.name,
        "usable": finding.usable,
        "reason": finding.reason or None,
        "owners": _owners(finding),
    }


def _owners(finding: JobSourceFinding) -> list[GpuOwnerPayload]:
    return [
        {"gpu_uuid": gpu, "scheduler": owner.scheduler.value, "job_id": owner.job_id}
        for gpu, owners in sorted(finding.owners.items())
        for owner in owners
    ]


def _gpu(gpu: GpuFinding) -> SampledGpuPayload:
    return {
        "gpu_uuid": gpu.gpu_uuid,
        "mig_uuid": gpu.mig_uuid or None,
        "gpu_index": gpu.gpu_index,
        "product_name": gpu.product_name,
        "tick_rate_hz": gpu.tick_rate_hz,
        "processes": gpu.processes,
        "metrics": [
            {
                "name": metric.name,
                "origin": metric.origin,
                "interval_s": metric.interval_s,
                "multiplexed": metric.multiplexed,
                "has_value": metric.has_value,
                "missing_reason": None if metric.missing_reason is None else metric.missing_reason.value,
            }
            for metric in gpu.metrics
        ],
    }


class TallyPayload(TypedDict):
    """How many, by reason."""

    reason: str
    count: int


class CountPayload(TypedDict):
    """Something that was counted."""

    name: Annotated[str, JsonKey("records, repetitions, refusals, gaps, quarantined")]
    count: int


class CollectorPayload(TypedDict):
    """What ``gpusonde collector`` prints at its end."""

    address: str
    store: str
    counts: list[CountPayload]


class ConfigPayload(TypedDict):
    """What ``--check-config`` and ``--print-config`` print."""

    config_file: str | None
    config_toml: Annotated[str, JsonKey("the configuration in effect")]


class AgentPayload(TypedDict):
    """What ``gpusonde agent`` prints at its end."""

    agent_id: str
    spool_id: str
    source: Annotated[str, JsonKey("`dcgm`, `gpm`, `nvml`, `replay`")]
    gpu_uuids: list[str]
    source_ended: Annotated[bool, JsonKey("a replay was played to its end")]
    drained: Annotated[bool, JsonKey("the collector has every record")]
    ticks: int
    missed_ticks: Annotated[int, JsonKey("deadlines without a reading")]
    blank_values: Annotated[list[TallyPayload], JsonKey("absent values")]
    events: Annotated[int, JsonKey("spooled")]
    batches: Annotated[int, JsonKey("spooled")]
    records: Annotated[int, JsonKey("spooled")]
    dropped_records: Annotated[list[TallyPayload], JsonKey("given up")]
    lost_ticks: Annotated[int, JsonKey("ticks that never reached disk or collector")]
    reconnects: Annotated[int, JsonKey("sessions after the first")]
    connection_failures: Annotated[list[TallyPayload], JsonKey("failed attempts, by gRPC status")]
    sent_records: Annotated[int, JsonKey("resends included")]
    acked_sequence: Annotated[int, JsonKey("last record that is durable at the collector")]
    last_sequence: Annotated[int, JsonKey("on the agent's disk")]
    unacked_records: int
    spool_bytes: int
    lateness_mean_s: Annotated[float, JsonKey("from deadline to reading")]
    lateness_max_s: Annotated[float, JsonKey("from deadline to reading")]
    read_mean_s: Annotated[float, JsonKey("a reading")]
    read_max_s: Annotated[float, JsonKey("a reading")]
    sampling_interval_s: float
    slowdowns: Annotated[list[TallyPayload], JsonKey("`idle`, `read_budget`")]
    job_bindings: Annotated[int, JsonKey("spooled")]
    job_source_failures: Annotated[list[TallyPayload], JsonKey("questions not answered, by source of jobs")]
    job_activity_records: Annotated[int, JsonKey("spooled")]
    job_processes_unseen: Annotated[int, JsonKey("came too many at once to be looked at")]
    source_progress: Annotated[float | None, JsonKey("played share of the trace")]


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    """Make files for no other user meanwhile, as the systemd units do."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def add_collector_options(parser: Parser) -> None:
    """Declare ``gpusonde collector``."""
    parser.description = (
        "Take the agents' streams, keep them, find runs and epochs, answer questions. Runs until SIGTERM or Ctrl-C."
    )
    _add_config_options(parser, "GPUSONDE_COLLECTOR_")
    group = parser.add_argument_group("collector")
    group.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help=f"where to listen (default: {DEFAULT_COLLECTOR}); port 0 takes a free one, written to DIR/address",
    )
    group.add_argument("--store", metavar="DIR", help="data directory; one collector each")


def run_collector(args: argparse.Namespace) -> int:
    """Run the collector, or check or print its configuration."""
    from gpusonde.collector import CollectorConfig

    flags = {"server.listen": args.listen, "store.directory": args.store}
    if (prepared := _prepare(args, CollectorConfig, flags)) is None:
        return 0
    from gpusonde.collector import run_collector

    config, config_source = prepared
    with _private_files():
        # Python's collector of garbage would go through all code, catalogues and models every few thousand calls.
        report = run_collector(config, config_source=config_source, on_ready=lambda _: gc.freeze())
    payload: CollectorPayload = {
        "address": report.address,
        "store": str(config.directory),
        "counts": [{"name": name, "count": count} for name, count in report.counts.items()],
    }
    Output(as_json=args.json).result(payload, lambda screen: _render_collector(screen, report))
    return 0


def _render_collector(screen: Screen, report: CollectorReport) -> None:
    counts = ", ".join(f"{count} {name}" for name, count in report.counts.items())
    screen.line(f"collector at {report.address} has stopped; {counts or 'nothing came in'}")


def add_agent_options(parser: Parser) -> None:
    """Declare ``gpusonde agent``."""
    parser.description = (
        "Sample this host's GPUs (or replay a trace) into a spool on disk and stream it to a collector. Runs until "
        "SIGTERM or Ctrl-C; a replay ends by itself once the collector has everything. 'gpusonde agent doctor' says "
        "what can be sampled here."
    )
    parser.add_argument(
        "action",
        nargs="?",
        choices=["doctor"],
        metavar="doctor",
        help="try every source of this host for two seconds and say what can be sampled, what cannot, why, and what to "
        "do; exit code 0 when something can be sampled, else 1. It examines as an agent with this --config and --set "
        "would sample",
    )
    parser.add_argument(
        "--cost", action="store_true", help="doctor: also sample each source for five seconds and say what that costs"
    )
    _add_config_options(parser, "GPUSONDE_AGENT_")
    group = parser.add_argument_group("agent")
    group.add_argument("--collector", type=address, metavar="HOST:PORT", help="address of the collector")
    group.add_argument("--spool", metavar="DIR", help="directory of the spool; one agent each")
    group.add_argument("--id", metavar="NAME", help="name of this agent at the collector")
    group.add_argument("--replay", metavar="TRACE", help="play this trace file instead of sampling GPUs")
    group.add_argument("--speed", type=positive_number, metavar="N", help="replay N times faster than recorded")


def run_agent(args: argparse.Namespace) -> int:
    """Run the agent, or check or print its configuration, or examine the host."""
    if args.action == "doctor":
        return run_doctor(args)
    from gpusonde.agent import AgentConfig, run_agent

    flags = {
        "uplink.collector": args.collector,
        "spool.directory": args.spool,
        "agent.id": args.id,
        "source.trace": args.replay,
        "source.kind": None if args.replay is None else "replay",
        "source.speed": None if args.speed is None else repr(args.speed),
    }
    if (prepared := _prepare(args, AgentConfig, flags)) is None:
        return 0
    config, config_source = prepared
    output = Output(as_json=args.json)
    is_replay = config.source.kind == "replay"
    progress = output.progress("replaying", total=1.0) if is_replay else output.progress("sampling")
    with _private_files(), progress as show:

        def on_progress(counters: SelfCounters) -> None:
            if counters.source_progress is not None:
                show(counters.source_progress)

        report = run_agent(
            config,
            exit_when_acked=is_replay,
            # A live source has no end to progress to, and a daemon nothing to wake up for.
            on_progress=on_progress if is_replay else None,
            config_source=config_source,
        )
    output.result(report_payload(report), lambda screen: _render_agent(screen, report))
    return 0 if report.drained or not is_replay else 1


def report_payload(report: AgentReport) -> AgentPayload:
    """The report as it appears in JSON: counts by reason become lists, so that no key is data."""
    return cast(
        AgentPayload,
        {
            key: [{"reason": reason, "count": count} for reason, count in value.items()]
            if isinstance(value, dict)
            else value
            for key, value in report.as_json().items()
        },
    )


def _render_agent(screen: Screen, report: AgentReport) -> None:
    counters = report.counters
    screen.line(
        f"agent {report.agent_id}: {formatting.count(counters.ticks, 'tick')} sampled, {counters.missed_ticks} missed, "
        f"{formatting.count(counters.records, 'record')} spooled, {counters.unacked_records} of them not yet "
        "acknowledged"
    )
    if not report.drained:
        screen.note("the collector does not have everything yet; the rest is sent when the agent starts again")


def _add_config_options(parser: argparse.ArgumentParser, environment_prefix: str) -> None:
    """Declare the options around the configuration."""
    group = parser.add_argument_group(
        "configuration", f"Precedence: flags, then {environment_prefix}SECTION_NAME in the environment, then the file."
    )
    group.add_argument("--config", type=Path, metavar="FILE.toml", help="configuration file")
    group.add_argument("--check-config", action="store_true", help="check the configuration and exit")
    group.add_argument(
        "--print-config", action="store_true", help="print the configuration in effect as a commented file and exit"
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.NAME=VALUE",
        help="override one setting (repeatable); --print-config lists them all",
    )


def _overrides(args: argparse.Namespace, flags: Mapping[str, str | None]) -> dict[str, str]:
    """Collect what the command line overrides: ``--set`` first, then the flags that were given.

    Raises:
        UsageError: A ``--set`` without a name or without ``=``.
    """
    chosen: dict[str, str] = {}
    for setting in args.set:
        key, separator, value = setting.partition("=")
        if not separator or not key.strip():
            raise UsageError(f"--set {setting!r}: write SECTION.NAME=VALUE")
        chosen[key.strip()] = value.strip()
    return chosen | {key: value for key, value in flags.items() if value is not None}


@contextlib.contextmanager
def _config_errors_as_usage() -> Iterator[None]:
    """Tell settings that are wrong on the command line from those in a file or in the environment.

    Raises:
        UsageError: A flag or ``--set`` names no option, or its value is of the wrong kind.
    """
    from gpusonde.errors import ConfigError

    try:
        yield
    except ConfigError as error:
        if error.on_command_line:
            raise UsageError(str(error)) from error
        raise


def _prepare(
    args: argparse.Namespace, kind: type[_C], flags: Mapping[str, str | None]
) -> tuple[_C, ConfigSource[_C]] | None:
    """Load a daemon's configuration and keep its log as that says; None when it was only to be checked or printed."""
    from gpusonde.service.reload import ConfigSource

    overrides = _overrides(args, flags)

    def load() -> _C:
        return kind.load(args.config, environment=os.environ, overrides=overrides)

    def apply_log(log: LogConfig) -> None:
        # --verbose wins over the level of the configuration.
        if not args.verbose:
            process.set_level(log.level)
        process.set_format(log.format)

    with _config_errors_as_usage():
        config = load()
    if args.check_config or args.print_config:
        toml = config.to_toml()
        payload: ConfigPayload = {"config_file": None if args.config is None else str(args.config), "config_toml": toml}
        Output(as_json=args.json).result(
            payload, lambda screen: screen.line(toml.rstrip() if args.print_config else "the configuration is good")
        )
        return None
    process.ignore_hangups()
    apply_log(config.log)
    return config, ConfigSource(load, apply_log)
