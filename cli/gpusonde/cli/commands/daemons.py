"""``gpusonde agent``: the daemon on a GPU host.

``gpusonde agent doctor``: what can be sampled on this host, what cannot and why.

``gpusonde collector``: the daemon that agents stream to.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpusonde.cli import formatting
from gpusonde.cli.daemon import (
    add_config_options,
    log_applier,
    overrides_of,
    show_config,
    usage_errors_of_settings,
)
from gpusonde.cli.output import Output, Screen
from gpusonde.cli.parsing import DEFAULT_COLLECTOR, Parser, address, positive_number
from gpusonde.service import process

if TYPE_CHECKING:
    from gpusonde.agent import AgentReport, SelfCounters
    from gpusonde.agent.doctor import Diagnosis, GpuFinding, JobSourceFinding, SourceFinding
    from gpusonde.collector import CollectorReport


def run_doctor(args: argparse.Namespace) -> int:
    """Examine the host; 0 when something can be sampled, else 1."""
    from gpusonde.agent import AgentConfig
    from gpusonde.agent.doctor import examine, examine_jobs
    from gpusonde.agent.sources.base import GpuDescription
    from gpusonde.agent.sources.select import make_process_reader

    with usage_errors_of_settings():
        config = AgentConfig.load(args.config, environment=os.environ, overrides=overrides_of(args, {}))
    if not args.verbose:
        # What a daemon tells about its choice stands in the findings.
        process.set_level("warning")
    output = Output(as_json=args.json)
    with output.progress("trying the sources"):
        diagnosis = examine(config.source)
        sampled = diagnosis.chosen.gpus if diagnosis.chosen else ()
        gpus = [GpuDescription(gpu.gpu_uuid, gpu.gpu_index, mig_uuid=gpu.mig_uuid) for gpu in sampled]
        jobs = examine_jobs(config.jobs, gpus, make_process_reader(config.source))
    output.result(payload(diagnosis, config.source.kind, jobs), lambda screen: render_doctor(screen, diagnosis, jobs))
    return 0 if diagnosis.chosen is not None else 1


def payload(diagnosis: Diagnosis, kind: str, jobs: Sequence[JobSourceFinding] = ()) -> dict[str, Any]:
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
    if chosen is not None:
        for gpu in chosen.gpus:
            _render_gpu(screen, gpu)
    for job_source in jobs:
        screen.heading(f"jobs from {job_source.name}: {'usable' if job_source.usable else 'not usable'}")
        screen.line(job_source.reason or formatting.count(len(job_source.owners), "owner") + " of GPUs now")
        for owner in job_source.owners:
            screen.line(f"{owner.gpu_uuid}: job {owner.job_id} ({owner.scheduler})")
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


def _source(finding: SourceFinding) -> dict[str, Any]:
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
    }


def _job_source(finding: JobSourceFinding) -> dict[str, Any]:
    return {
        "name": finding.name,
        "usable": finding.usable,
        "reason": finding.reason or None,
        "owners": [
            {"gpu_uuid": owner.gpu_uuid, "scheduler": owner.scheduler, "job_id": owner.job_id}
            for owner in finding.owners
        ],
    }


def _gpu(gpu: GpuFinding) -> dict[str, Any]:
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
                "missing_reason": metric.missing_reason,
            }
            for metric in gpu.metrics
        ],
    }


def add_collector_options(parser: Parser) -> None:
    """Declare ``gpusonde collector``."""
    parser.description = (
        "Take the agents' streams, keep them, find runs and epochs, answer questions. Runs until SIGTERM or Ctrl-C."
    )
    add_config_options(parser, "GPUSONDE_COLLECTOR_")
    group = parser.add_argument_group("collector")
    group.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help=f"where to listen (default: {DEFAULT_COLLECTOR}); port 0 takes a free one, written to DIR/address",
    )
    group.add_argument("--store", metavar="DIR", help="data directory; one collector each")
    group.add_argument("--model", metavar="FILE", help="model written by 'gpusonde train' (default: the shipped one)")


def run_collector(args: argparse.Namespace) -> int:
    """Run the collector, or check or print its configuration."""
    from gpusonde.collector import CollectorConfig

    flags = {"server.listen": args.listen, "store.directory": args.store, "prediction.model": args.model}
    overrides = overrides_of(args, flags)

    def load() -> CollectorConfig:
        return CollectorConfig.load(args.config, environment=os.environ, overrides=overrides)

    with usage_errors_of_settings():
        config = load()
    if args.check_config or args.print_config:
        return show_config(args, config.to_toml())
    from gpusonde.collector import run_collector
    from gpusonde.service import process
    from gpusonde.service.reload import ConfigSource

    process.ignore_hangups()
    apply_log = log_applier(args)
    apply_log(config.log)
    report = run_collector(config, config_source=ConfigSource(load, apply_log))
    counts = [{"name": name, "count": count} for name, count in report.counts.items()]
    Output(as_json=args.json).result(
        {"address": report.address, "store": str(config.directory), "counts": counts},
        lambda screen: _render_collector(screen, report),
    )
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
    add_config_options(parser, "GPUSONDE_AGENT_")
    group = parser.add_argument_group("agent")
    group.add_argument("--collector", type=address, metavar="HOST:PORT", help="address of the collector")
    group.add_argument("--spool", metavar="DIR", help="directory of the spool; one agent each")
    group.add_argument("--id", metavar="NAME", help="name of this agent at the collector")
    group.add_argument("--replay", metavar="TRACE", help="play this trace file instead of sampling GPUs")
    group.add_argument("--speed", type=positive_number, metavar="N", help="replay N times faster than recorded")
    group.add_argument("--keep-time", action="store_true", help="replay with the recorded wall-clock times")


def run_agent(args: argparse.Namespace) -> int:
    """Run the agent, or check or print its configuration, or examine the host."""
    if args.action == "doctor":
        return run_doctor(args)
    from gpusonde.agent import AgentConfig, run_agent
    from gpusonde.service import process
    from gpusonde.service.reload import ConfigSource

    flags = {
        "uplink.collector": args.collector,
        "spool.directory": args.spool,
        "agent.id": args.id,
        "source.trace": args.replay,
        "source.kind": None if args.replay is None else "replay",
        "source.speed": None if args.speed is None else repr(args.speed),
        "source.keep_time": "true" if args.keep_time else None,
    }
    overrides = overrides_of(args, flags)

    def load() -> AgentConfig:
        return AgentConfig.load(args.config, environment=os.environ, overrides=overrides)

    with usage_errors_of_settings():
        config = load()
    if args.check_config or args.print_config:
        return show_config(args, config.to_toml())
    process.ignore_hangups()
    apply_log = log_applier(args)
    apply_log(config.log)
    output = Output(as_json=args.json)
    is_replay = config.source.kind == "replay"
    with output.progress("replaying", total=1.0) if is_replay else output.progress("sampling") as show:

        def on_progress(counters: SelfCounters) -> None:
            if counters.source_progress is not None:
                show(counters.source_progress)

        report = run_agent(
            config,
            exit_when_acked=is_replay,
            # A live source has no end to progress to, and a daemon nothing to wake up for.
            on_progress=on_progress if is_replay else None,
            config_source=ConfigSource(load, apply_log),
        )
    output.result(report_payload(report), lambda screen: _render_agent(screen, report))
    return 0 if report.drained or not is_replay else 1


def report_payload(report: AgentReport) -> dict[str, Any]:
    """The report as it appears in JSON: tallies by reason become lists, so that no key is data."""
    return {key: tally(value) if isinstance(value, dict) else value for key, value in report.as_json().items()}


def tally(counts: dict[str, int]) -> list[dict[str, Any]]:
    """Counts by reason as a list of objects."""
    return [{"reason": reason, "count": count} for reason, count in counts.items()]


def _render_agent(screen: Screen, report: AgentReport) -> None:
    counters = report.counters
    screen.line(
        f"agent {report.agent_id}: {formatting.count(counters.ticks, 'tick')} sampled, {counters.missed_ticks} missed, "
        f"{formatting.count(counters.records, 'record')} spooled, {counters.unacked_records} of them not yet "
        "acknowledged"
    )
    if not report.drained:
        screen.note("the collector does not have everything yet; the rest is sent when the agent starts again")
