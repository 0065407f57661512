"""``AgentConfig``: what an operator can set, where it comes from, and what is wrong with it.

Precedence: flags over environment over file over defaults. Every option ``[section] name`` has the environment variable
``GPUSONDE_AGENT_SECTION_NAME``. Unknown keys are errors, durations and sizes carry their unit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from gpusonde.service.config import ConfigError, Configuration, LogConfig, format_duration, format_size, option
from gpusonde.service.metrics_endpoint import split_address
from gpusonde.service.tls import ClientSecurity

__all__ = ["AgentConfig", "ConfigError", "JobsConfig", "SourceConfig"]

DEFAULT_COLLECTOR = "127.0.0.1:7433"
# Below this, profiling metrics are invalid on Hopper (NVIDIA/DCGM issue 310) and the watched job notices.
MINIMUM_INTERVAL_S = 0.1
_ENGINE_ADDRESS = re.compile(r"embedded|unix:///.+|.+:\d{1,5}")
# What a collector takes for an identity.
_IDENTITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")


@dataclass(frozen=True)
class IdentityConfig:
    """``[agent]``: who the agent is."""

    id: str = option(
        "text", "", "name of this agent at the collector; empty: host name and a random part, kept beside the spool"
    )


@dataclass(frozen=True)
class SourceConfig:
    """``[source]``: what is sampled."""

    kind: str = option(
        "text", "auto", "auto (dcgm, else nvml), dcgm, nvml (GPM metrics where the GPU has them) or replay"
    )
    interval_s: float = option("duration", 0.1, "time between ticks, at least 100ms")
    slow_interval_s: float = option(
        "duration", 10.0, "time between readings of slow metrics (temperatures, energy ...)"
    )
    read_budget: float = option(
        "number",
        0.25,
        "share of one core that reading the GPUs may take; beyond it they are read less often, in steps to a tenth",
    )
    idle_interval_s: float = option(
        "duration", 1.0, "time between ticks while no GPU works, at most 1s; equal to interval: full rate always"
    )
    idle_after_s: float = option(
        "duration", 300.0, "time without work after which idle_interval holds; keep it above the stalls inside of jobs"
    )
    dcgm_address: str = option(
        "text", "127.0.0.1:5555", "DCGM host engine: HOST:PORT, unix:///PATH, or embedded for one inside the agent"
    )
    dcgm_embedded: bool = option("switch", True, "start a DCGM engine inside the agent when no host engine answers")
    dcgm_bindings: str = option(
        "text", "", "folder of DCGM's Python bindings; empty: where its packages for versions 4 and 3 put them"
    )
    profiler_pause_file: str = option(
        "text", "", "while this file exists, DCGM leaves the profiling counters to another profiler; empty: never"
    )
    trace: str = option("text", "", "trace file to replay")
    speed: float = option("number", 1.0, "replay speed; 10 is ten times faster than it was recorded")
    keep_time: bool = option("switch", False, "replay with the recorded wall-clock times")


@dataclass(frozen=True)
class JobsConfig:
    """``[jobs]``: which job holds which GPU."""

    slurm_mapping_dir: str = option(
        "text",
        "/run/gpusonde/jobs",
        "folder with a file of Slurm job ids per GPU, as the prolog writes it; empty: none",
    )
    slurm_index: str = option(
        "text", "nvml", "what a file named by a number counts: nvml (order of nvidia-smi) or device (N of /dev/nvidiaN)"
    )
    kubelet_socket: str = option(
        "text",
        "/var/lib/kubelet/pod-resources/kubelet.sock",
        "the kubelet's pod-resources socket, used where it is there; empty: never",
    )
    cgroups: bool = option(
        "switch", True, "look at the processes on the GPUs: their cgroup, start and user, nothing else"
    )
    poll_interval_s: float = option("duration", 5.0, "time between two looks at jobs")


@dataclass(frozen=True)
class SpoolConfig:
    """``[spool]``: where samples wait for the collector."""

    directory: str = option("text", "", "directory, one agent each; empty: ~/.local/state/gpusonde/spool")
    max_bytes: int = option(
        "size", 1 << 30, "bound of the spool; beyond it the oldest records are dropped and reported"
    )
    commit_interval_s: float = option(
        "duration", 0.1, "time between syncs to the disk; nothing is sent before it is synced"
    )

    @property
    def path(self) -> Path:
        """The directory, with the default filled in."""
        chosen = self.directory or "~/.local/state/gpusonde/spool"
        return Path(chosen).expanduser()


@dataclass(frozen=True)
class UplinkConfig:
    """``[uplink]``: the way to the collector."""

    collector: str = option("text", DEFAULT_COLLECTOR, "address of the collector, host:port")
    batch_interval_s: float = option("duration", 1.0, "time covered by one record")
    compression: str = option("text", "zstd", "zstd or none")
    max_unacked_records: int = option("count", 64, "most records in flight without an acknowledgement")
    drain_timeout_s: float = option("duration", 10.0, "time to empty the spool to the collector when stopped")
    tls_ca: str = option(
        "text", "", "PEM file with the authority of the collector's certificate; empty: plain text, for loopback only"
    )
    tls_certificate: str = option("text", "", "PEM file with this agent's certificate and its chain; empty: none")
    tls_key: str = option("text", "", "PEM file with the certificate's key, not encrypted")
    server_name: str = option(
        "text", "", "name that the collector's certificate must have; empty: the host of uplink.collector"
    )
    token_file: str = option("text", "", "file with a token of 'gpusonde token new', instead of a certificate")
    allowed_targets: str = option(
        "text", "", "other collectors that this one may send the agent to: host:port, ..., * for any characters"
    )

    @property
    def target_patterns(self) -> tuple[str, ...]:
        """The addresses that a collector may send the agent to."""
        return tuple(pattern.strip() for pattern in self.allowed_targets.split(",") if pattern.strip())

    @property
    def security(self) -> ClientSecurity:
        """The files that prove who the agent is and who the collector."""
        return ClientSecurity(self.tls_ca, self.tls_certificate, self.tls_key, self.server_name, self.token_file)


@dataclass(frozen=True)
class MetricsConfig:
    """``[metrics]``: what the agent says about itself."""

    listen: str = option(
        "text", "127.0.0.1:9435", "host:port of /metrics, /-/healthy and /-/ready over HTTP; empty: not served"
    )


@dataclass(frozen=True)
class AgentConfig(Configuration):
    """Everything the agent can be told."""

    environment_prefix: ClassVar[str] = "GPUSONDE_AGENT_"

    agent: IdentityConfig = field(default_factory=IdentityConfig)
    source: SourceConfig = field(default_factory=SourceConfig)
    jobs: JobsConfig = field(default_factory=JobsConfig)
    spool: SpoolConfig = field(default_factory=SpoolConfig)
    uplink: UplinkConfig = field(default_factory=UplinkConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        """Check what depends on more than one character of the text.

        Raises:
            ConfigError: A value out of its range.
        """
        _check(self)


def _check_address(option_name: str, listen: str) -> None:
    try:
        split_address(listen)
    except ValueError as error:
        raise ConfigError(f"{option_name} {error}", field=option_name) from None


def _check(config: AgentConfig) -> None:
    if config.metrics.listen:
        _check_address("metrics.listen", config.metrics.listen)
    source, uplink = config.source, config.uplink
    if config.agent.id and not _IDENTITY.fullmatch(config.agent.id):
        raise ConfigError(
            f"agent.id {config.agent.id!r} is no name a collector takes; use 1 to 128 of A-Z a-z 0-9 . _ : @ -, "
            "beginning with a letter or digit",
            field="agent.id",
        )
    if source.kind not in ("auto", "dcgm", "nvml", "replay"):
        raise ConfigError(f"source.kind {source.kind!r} is unknown; use auto, dcgm, nvml or replay")
    if not _ENGINE_ADDRESS.fullmatch(source.dcgm_address):
        raise ConfigError(
            f"source.dcgm_address {source.dcgm_address!r} is no address of a host engine; use HOST:PORT, unix:///PATH "
            "or embedded",
            field="source.dcgm_address",
        )
    if source.kind == "replay" and not source.trace:
        raise ConfigError("source.kind is replay but source.trace names no file")
    if source.interval_s < MINIMUM_INTERVAL_S:
        raise ConfigError(
            f"source.interval {format_duration(source.interval_s)} is too short: profiling metrics are invalid below "
            "100ms, and the watched job would notice; use 100ms or more"
        )
    if source.slow_interval_s < source.interval_s:
        raise ConfigError("source.slow_interval is shorter than source.interval; use at least the same")
    if not 0.001 <= source.read_budget <= 1:
        raise ConfigError(f"source.read_budget {source.read_budget:g} is no share of a core from 0.001 to 1")
    if not source.idle_interval_s <= 1.0:
        raise ConfigError("source.idle_interval is longer than 1s: a job that begins would be seen too late")
    if source.idle_after_s < 1.0:
        raise ConfigError("source.idle_after is shorter than 1s; the default is 5m")
    if not source.speed > 0:
        raise ConfigError(f"source.speed {source.speed:g} is not positive; 1 is real time")
    _check_jobs(config.jobs)
    if config.spool.max_bytes < 1 << 20:
        raise ConfigError(f"spool.max_bytes {format_size(config.spool.max_bytes)} is too small; use 1MiB or more")
    if not 0.01 <= config.spool.commit_interval_s <= 10:
        raise ConfigError("spool.commit_interval must lie between 10ms and 10s; the default is 100ms")
    if not 0.1 <= uplink.batch_interval_s <= 60:
        raise ConfigError("uplink.batch_interval must lie between 100ms and 1m; the default is 1s")
    if uplink.compression not in ("zstd", "none"):
        raise ConfigError(f"uplink.compression {uplink.compression!r} is unknown; use zstd or none")
    if not 1 <= uplink.max_unacked_records <= 10_000:
        raise ConfigError("uplink.max_unacked_records must lie between 1 and 10000; the default is 64")
    if not uplink.collector:
        raise ConfigError("uplink.collector is empty; give the collector's host:port")
    if problem := uplink.security.problem(uplink.collector):
        raise ConfigError(f"uplink.tls_ca, tls_certificate, tls_key, server_name and token_file: {problem}")


def _check_jobs(jobs: JobsConfig) -> None:
    if jobs.slurm_index not in ("nvml", "device"):
        raise ConfigError(
            f"jobs.slurm_index {jobs.slurm_index!r} is unknown; use nvml or device", field="jobs.slurm_index"
        )
    # A collector gives a run to a job that is bound within a minute of its first activity.
    if not 1 <= jobs.poll_interval_s <= 30:
        raise ConfigError(
            "jobs.poll_interval must lie between 1s and 30s; the default is 5s", field="jobs.poll_interval"
        )
