"""From findings to what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpusonde.agent.config import SourceConfig
from gpusonde.agent.doctor.findings import SourceFinding
from gpusonde.agent.doctor.system import SystemFacts
from gpusonde.telemetry import BlankReason

# The engine of a healthy host answers within some 0.3 s (NVIDIA/DCGM issue 170).
_LONG_LAG_S = 2.0


def advise(
    system: SystemFacts,
    findings: Sequence[SourceFinding],
    chosen: SourceFinding | None,
    config: SourceConfig,
    paused: bool,
) -> Iterator[str]:
    """Yield what to do, the most important first.

    Args:
        system: Driver and rights.
        findings: What was tried.
        chosen: What an agent would sample with.
        config: How it would sample.
        paused: Whether profiling is paused by the file.
    """
    if chosen is None:
        yield from _nothing_works(system, findings, config)
    if config.kind == "replay":
        return
    closed = [node.path for node in system.device_nodes if not node.accessible]
    if closed:
        yield f"this user may not open {', '.join(closed)}: add it to the groups video and render, or run as root"
    if paused:
        yield f"{config.profiler_pause_file} exists, so profiling through DCGM is paused: remove it to resume"
    for finding in findings:
        yield from finding.refusals
    if chosen is None:
        return
    if not chosen.profiles:
        yield (
            "no source gives activity ratios, only utilisation, power, memory and clocks: before Hopper they need a "
            "DCGM host engine with its profiling module, from Hopper on a driver with GPM"
        )
    refused = {m.missing_reason for gpu in chosen.gpus for m in gpu.metrics}
    if BlankReason.NO_PERMISSION in refused and not system.profiling_admin_only and chosen.name == "nvml":
        yield (
            "the driver refuses some metrics to this user (no_permission): run the agent as root, or sample through a "
            "DCGM host engine that does"
        )
    if BlankReason.NO_PERMISSION in refused and system.profiling_admin_only:
        yield (
            "the driver reserves profiling for root: run the DCGM host engine as root, or load the driver with "
            "NVreg_RestrictProfilingToAdminUsers=0"
        )
    split = {gpu.gpu_uuid for gpu in chosen.gpus if gpu.mig_uuid}
    hidden = [gpu.key for gpu in chosen.gpus if gpu.processes is None and gpu.key not in split]
    if hidden:
        yield (
            f"the processes on {', '.join(hidden)} are not told, so jobs are found through their scheduler only: NVML "
            "must work for this user on this host, and a container needs the host's PID namespace"
        )
    if chosen.lag_s > _LONG_LAG_S:
        yield f"values arrive {chosen.lag_s:.1f} s after they were measured: the host engine is overloaded, restart it"
    silent = [gpu.gpu_uuid for gpu in chosen.gpus if not gpu.tick_rate_hz]
    if silent:
        yield f"no tick came from {', '.join(silent)}: see 'nvidia-smi' and the kernel's log for XID errors"


def _nothing_works(system: SystemFacts, findings: Sequence[SourceFinding], config: SourceConfig) -> Iterator[str]:
    if config.kind == "replay":
        yield "give a trace file that can be read as source.trace"
        return
    if not system.driver_version and not any(finding.gpus for finding in findings):
        yield (
            "no NVIDIA kernel module is loaded: install the driver (in a container pass the GPUs through), or replay a "
            "recorded trace with 'gpusonde agent --replay FILE'"
        )
    others = [f.name for f in findings if f.usable]
    if others:
        yield f"source.kind {config.kind} cannot be used, but {', '.join(others)} can: set source.kind to auto"
