"""``gpusonde agent doctor``: what can be sampled on this host, what cannot and why."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpusonde.cli import wording
from gpusonde.cli.daemon import overrides_of, usage_errors_of_settings
from gpusonde.cli.output import Output, Screen
from gpusonde.service import process

if TYPE_CHECKING:
    from gpusonde.agent.doctor import Diagnosis, GpuFinding, JobSourceFinding, SourceFinding


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
    screen.line(f"device files: {', '.join(nodes) or 'none'}; running as root: {wording.yes_no(system.is_root)}")
    if system.profiling_admin_only is not None:
        screen.line(f"profiling reserved for root by the driver: {wording.yes_no(system.profiling_admin_only)}")
    for finding in diagnosis.sources:
        screen.heading(f"source {finding.name}: {'usable' if finding.usable else 'not usable'}")
        if finding.bindings_folder:
            screen.line(f"bindings: {finding.bindings_folder} (DCGM {finding.library_version or 'of unknown version'})")
        if finding.engine_address:
            screen.line(f"engine: {finding.engine_address}")
        if finding.reason:
            screen.line(finding.reason)
        elif finding.usable:
            lag = f"; values arrive {wording.seconds(finding.lag_s)} late" if finding.lag_s else ""
            screen.line(f"one reading of all GPUs takes {wording.seconds(finding.read_s)}{lag}")
    if chosen is not None:
        for gpu in chosen.gpus:
            _render_gpu(screen, gpu)
    for job_source in jobs:
        screen.heading(f"jobs from {job_source.name}: {'usable' if job_source.usable else 'not usable'}")
        screen.line(job_source.reason or wording.count(len(job_source.owners), "owner") + " of GPUs now")
        for owner in job_source.owners:
            screen.line(f"{owner.gpu_uuid}: job {owner.job_id} ({owner.scheduler})")
    screen.heading(f"the agent would sample with {chosen.name}" if chosen else "nothing can be sampled on this host")
    for advice in diagnosis.advice:
        screen.note(f"- {advice}")


def _render_gpu(screen: Screen, gpu: GpuFinding) -> None:
    part = f"MIG instance {gpu.mig_uuid} of " if gpu.mig_uuid else ""
    screen.heading(
        f"{part}GPU {gpu.gpu_index} {gpu.product_name} ({gpu.gpu_uuid}): {wording.number(gpu.tick_rate_hz)} ticks per "
        "second"
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
        every = wording.ABSENT if is_missing else wording.seconds(metric.interval_s)
        rows.append((metric.name, wording.ABSENT if is_missing else metric.origin, every, state))
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
