"""``AgentConfig``: what an operator can set; how it is read and checked, ``gpusonde.service.config`` says.

A key is declared once, here: everything else about it follows from its field.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from gpusonde.errors import ConfigError
from gpusonde.service.config import DaemonConfiguration, LogConfig, option
from gpusonde.service.metrics_endpoint import listen_option
from gpusonde.service.tls import ClientSecurity

__all__ = ["AgentConfig", "ConfigError", "JobsConfig", "SourceConfig", "UplinkConfig"]

DEFAULT_COLLECTOR = "127.0.0.1:7433"
_ENGINE_ADDRESS = re.compile(r"embedded|unix:///.+|.+:\d{1,5}")
# What a collector takes for an identity.
_IDENTITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")


def _check_identity(text: str) -> None:
    if text and not _IDENTITY.fullmatch(text):
        raise ValueError(
            f"{text!r} is no name a collector takes; use 1 to 128 of A-Z a-z 0-9 . _ : @ -, beginning with a letter or "
            "digit"
        )


def _check_engine_address(text: str) -> None:
    if not _ENGINE_ADDRESS.fullmatch(text):
        raise ValueError(f"{text!r} is no address of a host engine; use HOST:PORT, unix:///PATH or embedded")


def is_service(collector: str) -> bool:
    """Whether a part of ``uplink.collector`` names an SRV record, such as ``_gpusonde._tcp.example``."""
    return collector.startswith("_") and ":" not in collector


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _check_collector(text: str) -> None:
    parts = _split(text)
    if not all(parts):
        raise ValueError("it is empty, or a part of it is; give the collector's host:port")
    if any(map(is_service, parts)) and importlib.util.find_spec("dns") is None:
        raise ValueError("SRV records need dnspython: pip install 'gpusonde[srv]'")


@dataclass(frozen=True)
class IdentityConfig:
    """``[agent]``: who the agent is."""

    id: str = option(
        "text",
        "",
        "name of this agent at the collector; empty: host name and a random part, kept beside the spool",
        check=_check_identity,
    )


@dataclass(frozen=True)
class SourceConfig:
    """``[source]``: what is sampled."""

    kind: str = option(
        "text",
        "auto",
        "auto (nvml where it has GPM metrics, else dcgm, else nvml), dcgm, nvml or replay",
        choices=("auto", "dcgm", "nvml", "replay"),
    )
    interval_s: float = option(
        "duration",
        "100ms",
        "time between ticks; profiling metrics are invalid below 100ms, and the watched job would notice",
        least="100ms",
        live=True,
    )
    rate: str = option(
        "text",
        "fixed",
        "fixed, or adaptive: less often, to 2s, once a job's period stays known within 1 % so, until something changes",
        choices=("fixed", "adaptive"),
    )
    slow_interval_s: float = option(
        "duration", "10s", "time between readings of slow metrics (temperatures, energy ...)"
    )
    read_budget: float = option(
        "number",
        0.25,
        "share of one core that reading the GPUs may take; beyond it they are read less often, in steps to a tenth",
        least=0.001,
        most=1.0,
        live=True,
    )
    idle_interval_s: float = option(
        "duration",
        "1s",
        "time between ticks while no GPU works, 1s at most to see a job begin; equal to interval: full rate always",
        most="1s",
        live=True,
    )
    idle_after_s: float = option(
        "duration",
        "5m",
        "time without work after which idle_interval holds; keep it above the stalls inside of jobs",
        least="1s",
        live=True,
    )
    dcgm_address: str = option(
        "text",
        "127.0.0.1:5555",
        "DCGM host engine: HOST:PORT, unix:///PATH, or embedded for one inside the agent",
        check=_check_engine_address,
    )
    dcgm_embedded: bool = option("switch", True, "start a DCGM engine inside the agent when no host engine answers")
    dcgm_bindings: str = option(
        "text", "", "folder of DCGM's Python bindings; empty: where its packages for versions 4 and 3 put them"
    )
    profiler_pause_file: str = option(
        "text", "", "while this file exists, DCGM leaves the profiling counters to another profiler; empty: never"
    )
    trace: str = option("text", "", "trace file to replay")
    speed: float = option("number", 1.0, "replay speed; 10 is ten times faster than it was recorded", least=0.001)
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
        "text",
        "nvml",
        "what a file named by a number counts: nvml (order of nvidia-smi) or device (N of /dev/nvidiaN)",
        choices=("nvml", "device"),
    )
    kubelet_socket: str = option(
        "text",
        "/var/lib/kubelet/pod-resources/kubelet.sock",
        "the kubelet's pod-resources socket, used where it is there; empty: never",
    )
    cgroups: bool = option(
        "switch", True, "look at the processes on the GPUs: their cgroup, start and user, nothing else"
    )
    activity: bool = option(
        "switch",
        True,
        "with cgroups: count each second their forks and ends, the bytes they read and write, and processor time",
    )


@dataclass(frozen=True)
class SpoolConfig:
    """``[spool]``: where samples wait for the collector."""

    directory: str = option("text", "", "directory, one agent each; empty: ~/.local/state/gpusonde/spool")
    max_bytes: int = option(
        "size",
        "1GiB",
        "bound of the spool; beyond it the oldest records are dropped and reported",
        least="1MiB",
        live=True,
    )
    commit_interval_s: float = option(
        "duration",
        "100ms",
        "time between syncs to the disk; nothing is sent before it is synced",
        least="10ms",
        most="10s",
        live=True,
    )

    @property
    def path(self) -> Path:
        """The directory, with the default filled in."""
        chosen = self.directory or "~/.local/state/gpusonde/spool"
        return Path(chosen).expanduser()


@dataclass(frozen=True)
class UplinkConfig:
    """``[uplink]``: the way to the collector."""

    collector: str = option(
        "text",
        DEFAULT_COLLECTOR,
        "the collector: host:port; of several (a list with commas, a name with several addresses, or an SRV record such"
        " as _gpusonde._tcp.example) each agent keeps to one and goes to another while that is gone",
        check=_check_collector,
        live=True,
    )
    batch_interval_s: float = option(
        "duration",
        "1s",
        "time covered by one record; four of them are sent together",
        least="100ms",
        most="1m",
        live=True,
    )
    drain_timeout_s: float = option(
        "duration", "10s", "time to empty the spool to the collector when stopped", live=True
    )
    tls_ca: str = option(
        "text",
        "",
        "PEM file with the authority of the collector's certificate; empty: plain text, for loopback only",
        live=True,
    )
    tls_certificate: str = option(
        "text", "", "PEM file with this agent's certificate and its chain; empty: none", live=True
    )
    tls_key: str = option("text", "", "PEM file with the certificate's key, not encrypted", live=True)
    server_name: str = option(
        "text", "", "name that the collector's certificate must have; empty: the host of uplink.collector", live=True
    )
    token_file: str = option(
        "text", "", "file with a token of 'gpusonde token new', instead of a certificate", live=True
    )
    allowed_targets: str = option(
        "text",
        "",
        "other collectors that this one may send the agent to: host:port, ..., * for any characters",
        live=True,
    )

    @property
    def collectors(self) -> tuple[str, ...]:
        """The collectors: addresses ``host:port`` and names of SRV records."""
        return _split(self.collector)

    @property
    def target_patterns(self) -> tuple[str, ...]:
        """The addresses that a collector may send the agent to."""
        return tuple(pattern.strip() for pattern in self.allowed_targets.split(",") if pattern.strip())

    @property
    def security(self) -> ClientSecurity:
        """The files that prove who the agent is and who the collector."""
        return ClientSecurity(self.tls_ca, self.tls_certificate, self.tls_key, self.server_name, self.token_file)


@dataclass(frozen=True)
class AgentMetricsConfig:
    """``[metrics]``: what the agent says about itself."""

    listen: str = listen_option("127.0.0.1:9435")


@dataclass(frozen=True)
class AgentConfig(DaemonConfiguration):
    """Everything the agent can be told."""

    environment_prefix: ClassVar[str] = "GPUSONDE_AGENT_"

    agent: IdentityConfig = field(default_factory=IdentityConfig)
    source: SourceConfig = field(default_factory=SourceConfig)
    jobs: JobsConfig = field(default_factory=JobsConfig)
    spool: SpoolConfig = field(default_factory=SpoolConfig)
    uplink: UplinkConfig = field(default_factory=UplinkConfig)
    metrics: AgentMetricsConfig = field(default_factory=AgentMetricsConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def check(self) -> None:
        """Check the rules between keys.

        Raises:
            ConfigError: Two values do not go together.
        """
        source, security = self.source, self.uplink.security
        if source.kind == "replay" and not source.trace:
            raise ConfigError("source.kind is replay but source.trace names no file", field="source.kind")
        if source.slow_interval_s < source.interval_s:
            raise ConfigError(
                "source.slow_interval is shorter than source.interval; use at least the same",
                field="source.slow_interval",
            )
        if problem := next(filter(None, map(security.problem, self.uplink.collectors)), ""):
            raise ConfigError(f"uplink.tls_ca, tls_certificate, tls_key, server_name and token_file: {problem}")
