"""``CollectorConfig``: what an operator can set; how it is read and checked, ``gpusonde.service.config`` says.

A key is declared once, here: everything else about it follows from its field.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from gpusonde.collector.storage.clickhouse import DATABASE_NAME
from gpusonde.errors import ConfigError
from gpusonde.service.child import PoolOptions
from gpusonde.service.config import DaemonConfiguration, LogConfig, check_url, option
from gpusonde.service.metrics_endpoint import listen_option, split_address
from gpusonde.service.tls import is_loopback
from gpusonde.service.wire import Limits

__all__ = ["CollectorConfig", "ConfigError", "PlanningConfig", "RunsConfig"]

DEFAULT_LISTEN = "127.0.0.1:7433"


@dataclass(frozen=True)
class ServerConfig:
    """``[server]``: where the collector listens."""

    listen: str = option(
        "text",
        DEFAULT_LISTEN,
        "host:port; port 0 takes a free one, told in the file address of the data directory",
        check=split_address,
    )
    id: str = option("text", "", "name of this collector for its agents; empty: the host's name", live=True)
    reflection: str = option(
        "text",
        "loopback",
        "gRPC reflection: loopback (only when listening there), on or off",
        choices=("loopback", "on", "off"),
    )
    drain_grace_s: float = option(
        "duration", "5s", "time that open streams get to end when the collector stops", live=True
    )


@dataclass(frozen=True)
class SecurityConfig:
    """``[security]``: who may connect, and what is asked of them."""

    tls_certificate: str = option("text", "", "PEM file with the collector's certificate and its chain; empty: no TLS")
    tls_key: str = option("text", "", "PEM file with the certificate's key, not encrypted")
    tls_client_ca: str = option(
        "text", "", "PEM file with the authority of clients' certificates; every client then needs one; empty: none"
    )
    certificate_role: str = option(
        "text",
        "",
        "role of certificates without a gpusonde:// URI: agent or reader; empty: they are refused",
        choices=("", "agent", "reader"),
    )
    tokens_file: str = option("text", "", "file with the digests of bearer tokens; empty: no tokens are taken")
    anonymous: str = option(
        "text",
        "loopback",
        "callers without certificate and token: loopback (only when listening nowhere else), never, anywhere",
        choices=("loopback", "never", "anywhere"),
    )
    plaintext: str = option(
        "text",
        "loopback",
        "listening without TLS: loopback (refused elsewhere), or anywhere (a mesh encrypts)",
        choices=("loopback", "anywhere"),
    )
    max_questions: int = option(
        "count", 16, "questions of one caller that are answered at the same time", least=1, most=10_000, live=True
    )
    questions_per_second: float = option(
        "number", 100.0, "questions of one caller, over 10s; then they are refused", least=0.1, most=1e6, live=True
    )


@dataclass(frozen=True)
class IngestConfig:
    """``[ingest]``: what agents may send."""

    commit_interval_s: float = option(
        "duration",
        "100ms",
        "time between syncs of the log; acknowledgements wait for one",
        least="1ms",
        most="10s",
        live=True,
    )
    max_unacked_records: int = option(
        "count", 64, "records that an agent may have in flight", least=1, most=10_000, live=True
    )
    max_record_bytes: int = option("size", "4MiB", "largest record", least="64KiB", most="64MiB")
    max_records_per_second: float = option(
        "number", 1000.0, "records of one agent, over 10s; then it is throttled", least=5.0, most=1e6, live=True
    )
    max_bytes_per_second: int = option(
        "size", "16MiB", "bytes of one agent's records, likewise", least="64KiB", most="1TiB", live=True
    )
    max_agents: int = option("count", 2000, "streams open at the same time", least=1, most=1_000_000)
    # No keys: nobody has had to change them, and tests take others.
    hello_timeout_s: float = 30.0  # for which a new stream may stay silent
    max_waiting_bytes: int = 256 << 20  # of all agents' records until they are durable; beyond it no stream is read
    max_lag_s: float = 2.0  # age of the oldest of them at which all agents are asked for less
    max_memory_share: float = 0.8  # of the store's memory, likewise
    calm_s: float = 5.0  # for which things have to be well before that is lifted

    @property
    def record_limits(self) -> Limits:
        """The caps on records."""
        return Limits(record_bytes=self.max_record_bytes, agents=self.max_agents)


@dataclass(frozen=True)
class StoreConfig:
    """``[store]``: where and how samples are kept; sizes, segments and compaction are about the local engine."""

    engine: str = option(
        "text",
        "local",
        "local: the data directory of this host; clickhouse: the database below",
        choices=("local", "clickhouse"),
    )
    directory: str = option("text", "", "data directory; empty: ~/.local/state/gpusonde/collector")
    segment_interval_s: float = option(
        "duration",
        "1m",
        "age at which samples move from the log to a Parquet segment",
        least="100ms",
        most="1h",
        live=True,
    )
    memory_bytes: int = option(
        "size", "512MiB", "size in memory beyond which nothing is taken any more", least="128MiB", live=True
    )
    reserve_bytes: int = option(
        "size", "64MiB", "free disk space that is left for segments and the catalogue", live=True
    )
    compact: bool = option(
        "switch", True, "turn each hour of segments into one compact file, and averages over seconds", live=True
    )
    lossless: bool = option(
        "switch",
        False,
        "keep all digits of ticks for good; else ratios to 1/8192, rates and watts to 13 binary digits",
        live=True,
    )
    raw_retention_s: float = option(
        "duration",
        "14d",
        "time since their arrival for which ticks are kept; 0s: for ever",
        least="1h",
        zero=True,
        live=True,
    )
    raw_max_bytes: int = option(
        "size", "0B", "size of all ticks beyond which the oldest are deleted; 0B: any", live=True
    )
    second_retention_s: float = option(
        "duration", "90d", "the same for averages over seconds", least="1h", zero=True, live=True
    )
    second_max_bytes: int = option("size", "0B", "the same for the size of the averages", live=True)
    keep_free_bytes: int = option(
        "size", "0B", "free disk space for which the oldest ticks are deleted; 0B: never", live=True
    )
    # No keys: nobody has had to change them, and tests of the store take others.
    segment_bytes: int = 128 << 20  # in memory, beyond which samples move to a segment earlier
    cache_bytes: int = 64 << 20  # for columns of segments that were read last: 50 GPUs' hour of one metric
    compact_after_s: float = 300.0  # after the end of an hour, when late records are in
    compact_share: float = 0.25  # of a core, for compaction while it works
    tail_s: float = 60.0  # for which records stay in memory for tracking, with ClickHouse
    tail_bytes: int = 256 << 20  # size of what stays there at most


@dataclass(frozen=True)
class ClickHouseConfig:
    """``[clickhouse]``: the database, with store.engine = "clickhouse"; store.*_retention hold there too."""

    url: str = option("text", "", "https://host:8443 or http://host:8123; chdb:///directory runs it in this process")
    database: str = option("text", "gpusonde", "name of the database")
    user: str = option("text", "default", "user")
    password_file: str = option("text", "", "file with the user's password; empty: none")
    tls_ca: str = option("text", "", "PEM file with the authority of the server's certificate; empty: the system's")
    tls_certificate: str = option("text", "", "PEM file with the certificate that is shown to the server; empty: none")
    tls_key: str = option("text", "", "PEM file with the certificate's key, not encrypted")
    create_schema: bool = option("switch", True, "make and upgrade the tables; without, they are only checked")
    insert_interval_s: float = option(
        "duration",
        "1s",
        "time between inserts, in place of ingest.commit_interval; acknowledgements wait for one",
        least="10ms",
        most="10s",
        live=True,
    )
    # No keys: nobody has had to change them, and tests take others.
    connect_timeout_s: float = 10.0  # to reach the server
    timeout_s: float = 60.0  # for one statement


@dataclass(frozen=True)
class RunsConfig:
    """``[runs]``: when a run begins and ends."""

    activity_threshold: float = option(
        "number", 0.05, "a tick is active when any activity ratio exceeds this", least=0.0, most=0.99
    )
    idle_end_s: float = option(
        "duration", "5m", "idle time that ends a run; stalls of 120s occur inside of training", least="1s", most="1d"
    )
    held_end_s: float = option("duration", "30m", "the same while the job still holds its device memory")
    gap_end_s: float = option("duration", "10m", "time without ticks that ends a run", least="1s", most="1d")
    silence_end_s: float = option(
        "duration", "1d", "time without records, on the collector's clock, that does so", live=True
    )
    track: bool = option(
        "switch", True, "look for runs and epochs; without, the collector only takes and keeps samples"
    )
    processes: int = option(
        "count",
        0,
        "processes that look for epochs, one per 500 GPUs or so; 0: a thread of the collector does",
        least=0,
        most=256,
    )
    track_interval_s: float = option(
        "duration", "500ms", "time between rounds of tracking", least="10ms", most="1m", live=True
    )
    state_interval_s: float = option(
        "duration",
        "5m",
        "time between two stored states of an open run; a crash costs reading again so much of it",
        least="1s",
        most="1d",
    )
    # No keys: nobody has had to change them.
    min_active_s: float = 1.0  # activity that makes a run; less is a blip
    clock_tolerance_s: float = 2.0  # by which the host's clock may step back; beyond it the run ends
    lead_in_s: float = 10.0  # idle time before the first activity that the epoch tracker gets to see
    binding_slack_s: float = 60.0  # by which a job may be bound after its first activity and still own it

    @property
    def policy(self) -> dict[str, float]:
        """What decides where runs begin and end; what was found under another one may be another run."""
        return {
            "activity_threshold": self.activity_threshold,
            "min_active_s": self.min_active_s,
            "idle_end_s": self.idle_end_s,
            "held_end_s": self.held_end_s,
            "gap_end_s": self.gap_end_s,
            "clock_tolerance_s": self.clock_tolerance_s,
            "lead_in_s": self.lead_in_s,
            "binding_slack_s": self.binding_slack_s,
        }


@dataclass(frozen=True)
class AlertsConfig:
    """``[alerts]``: after how long a state of a job is told to a person."""

    webhook: str = option(
        "text",
        "",
        "address that alerts are sent to, in the format of Alertmanager's webhooks; empty: they are only kept",
        check=check_url,
        live=True,
    )
    hung_after_s: float = option("duration", "30s", "time that a job is hung", least="1s", zero=True, live=True)
    stalled_after_s: float = option("duration", "10m", "time that it is stalled", least="1s", zero=True, live=True)
    slower_after_s: float = option("duration", "10m", "time that it is slower", least="1s", zero=True, live=True)
    idle_after_s: float = option("duration", "30m", "time that it is idle", least="1s", zero=True, live=True)
    clear_after_s: float = option(
        "duration", "2m", "time in another state after which an alert is over", least="1s", live=True
    )

    @property
    def after_s(self) -> dict[str, float]:
        """State -> seconds; 0 for never."""
        return {
            "hung": self.hung_after_s,
            "stalled": self.stalled_after_s,
            "slower": self.slower_after_s,
            "idle": self.idle_after_s,
        }


@dataclass(frozen=True)
class PredictionConfig:
    """``[prediction]``: the model."""

    model: str = option(
        "text", "", "file of 'gpusonde train'; empty: what 'gpusonde train --from-store' has put in service", live=True
    )


@dataclass(frozen=True)
class WorkersConfig:
    """``[workers]``: bounds of the processes that answer questions about plans and about graphs."""

    time_limit_s: float = option("duration", "30s", "time for one answer", least="100ms", most="1h", live=True)
    memory_bytes: int = option(
        "size", "2GiB", "memory that each process may allocate", least="1GiB", most="16TiB", live=True
    )
    max_waiting: int = option(
        "count",
        16,
        "questions that wait for a process of their kind; then they are refused",
        least=0,
        most=10_000,
        live=True,
    )

    def pool(self, processes: int) -> PoolOptions:
        """Return the bounds of one pool with so many processes."""
        return PoolOptions(processes, self.max_waiting, self.time_limit_s, self.memory_bytes)


@dataclass(frozen=True)
class PlanningConfig:
    """``[planning]``: questions about what to rent."""

    processes: int = option(
        "count", 1, "processes that answer, started at need; 0: such questions are refused", least=0, most=64, live=True
    )
    max_watches: int = option(
        "count", 8, "jobs watched at the same time, each by a process of its own", least=0, most=10_000, live=True
    )
    watch_interval_s: float = option(
        "duration", "10s", "time between two looks at a watched job, at least", least="100ms", most="1h", live=True
    )


@dataclass(frozen=True)
class WorkloadConfig:
    """``[workload]``: questions about networks' graphs, and the training of embeddings for them."""

    processes: int = option(
        "count", 1, "processes that answer, started at need; 0: such questions are refused", least=0, most=64, live=True
    )
    max_request_bytes: int = option("size", "8MiB", "largest request, graphs included", least="4KiB", most="256MiB")
    model: str = option("text", "", "file of 'gpusonde workload fit'; empty: the shipped model", live=True)
    embeddings: str = option("text", "", "folder of trained encoders; empty: 'embeddings' in the data directory")
    train: bool = option(
        "switch",
        False,
        "train what is queued, one after the other, in a process beside the collector; needs torch",
        live=True,
    )
    datasets: str = option(
        "text",
        "",
        "folder with a folder of images for each dataset type to be trained on; empty: digits only",
        live=True,
    )
    host_load_interval_s: float = option(
        "duration",
        "30s",
        "time between two reports of what an agent's host is doing; 0s: none is asked for",
        most="1d",
        live=True,
    )


@dataclass(frozen=True)
class WebConfig:
    """``[web]``: the page, and what gRPC answers as JSON; with the certificate of ``[security]`` if it has one."""

    listen: str = listen_option("127.0.0.1:7434", "the page and of HTTP/JSON", live=False)


@dataclass(frozen=True)
class CollectorMetricsConfig:
    """``[metrics]``: what the collector says about itself."""

    listen: str = listen_option("127.0.0.1:9434")
    job_gpus: bool = option("switch", False, "a series gpusonde_job_gpu for each GPU of a job, at most 10,000 of them")


@dataclass(frozen=True)
class OtlpConfig:
    """``[otlp]``: GPUs and what /metrics shows, sent as OpenTelemetry metrics; needs the extra 'push'."""

    endpoint: str = option(
        "text",
        "",
        "http://host:4317 or https://host:4317 of a receiver of OTLP over gRPC; empty: nothing is sent",
        check=check_url,
    )
    interval_s: float = option("duration", "30s", "time between two times", least="1s", most="1h")
    headers_file: str = option("text", "", "file of headers, such as authorization: a line Name: value each")


@dataclass(frozen=True)
class RemoteWriteConfig:
    """``[remote_write]``: what /metrics shows, sent by Prometheus' remote write; needs the extra 'push'."""

    url: str = option(
        "text",
        "",
        "address of the receiver, such as http://prometheus:9090/api/v1/write; empty: nothing is sent",
        check=check_url,
    )
    interval_s: float = option("duration", "30s", "time between two times", least="1s", most="1h")
    headers_file: str = option("text", "", "file of headers, such as Authorization: a line Name: value each")


@dataclass(frozen=True)
class CollectorConfig(DaemonConfiguration):
    """Everything the collector can be told."""

    environment_prefix: ClassVar[str] = "GPUSONDE_COLLECTOR_"

    server: ServerConfig = field(default_factory=ServerConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    ingest: IngestConfig = field(default_factory=IngestConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    clickhouse: ClickHouseConfig = field(default_factory=ClickHouseConfig)
    runs: RunsConfig = field(default_factory=RunsConfig)
    alerts: AlertsConfig = field(default_factory=AlertsConfig)
    prediction: PredictionConfig = field(default_factory=PredictionConfig)
    workers: WorkersConfig = field(default_factory=WorkersConfig)
    planning: PlanningConfig = field(default_factory=PlanningConfig)
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    web: WebConfig = field(default_factory=WebConfig)
    metrics: CollectorMetricsConfig = field(default_factory=CollectorMetricsConfig)
    otlp: OtlpConfig = field(default_factory=OtlpConfig)
    remote_write: RemoteWriteConfig = field(default_factory=RemoteWriteConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def check(self) -> None:
        """Check the rules between keys.

        Raises:
            ConfigError: Two values do not go together.
        """
        if self.runs.held_end_s < self.runs.idle_end_s:
            raise ConfigError(
                "runs.held_end is shorter than runs.idle_end; use at least the same", field="runs.held_end"
            )
        self._check_security()
        self._check_clickhouse()
        self._check_pushes()

    def _check_security(self) -> None:
        security, listen = self.security, self.server.listen
        if bool(security.tls_certificate) != bool(security.tls_key):
            raise ConfigError(
                "security.tls_certificate and security.tls_key come together; give both or none",
                field="security.tls_certificate",
            )
        if security.tls_client_ca and not security.tls_certificate:
            raise ConfigError(
                "security.tls_client_ca needs security.tls_certificate and security.tls_key too",
                field="security.tls_client_ca",
            )
        if security.certificate_role and not security.tls_client_ca:
            raise ConfigError(
                "security.certificate_role is about client certificates: give security.tls_client_ca too",
                field="security.certificate_role",
            )
        for key, address in (("server.listen", listen), ("web.listen", self.web.listen)):
            if not address or is_loopback(address):
                continue
            if not security.tls_certificate and security.plaintext != "anywhere":
                raise ConfigError(
                    f"{key} {address} is reachable from other hosts and there is no TLS: give "
                    'security.tls_certificate and security.tls_key, or say security.plaintext = "anywhere" where '
                    "something else encrypts",
                    field=key,
                )
            certificates = security.tls_client_ca if key == "server.listen" else ""
            if not (self.allow_anonymous or certificates or security.tokens_file):
                way = (
                    "security.tls_client_ca or security.tokens_file"
                    if key == "server.listen"
                    else "security.tokens_file"
                )
                raise ConfigError(
                    f'nobody could connect to {key} {address}: give {way}, or say security.anonymous = "anywhere"',
                    field=key,
                )

    def _check_clickhouse(self) -> None:
        clickhouse = self.clickhouse
        if bool(clickhouse.tls_certificate) != bool(clickhouse.tls_key):
            raise ConfigError(
                "clickhouse.tls_certificate and clickhouse.tls_key come together; give both or none",
                field="clickhouse.tls_certificate",
            )
        if self.store.engine == "local":
            return
        if "@" in clickhouse.url:
            # Without showing it: what stands before the "@" may be a password, and --print-config shows addresses.
            raise ConfigError(
                "clickhouse.url holds a user; write it into clickhouse.user, and the password into a file",
                field="clickhouse.url",
            )
        try:
            check_url("" if clickhouse.url.startswith("chdb:///") else clickhouse.url or "none")
        except ValueError:
            raise ConfigError(
                f"clickhouse.url {clickhouse.url!r} is no address; write https://host:8443, http://host:8123 or"
                " chdb:///directory",
                field="clickhouse.url",
            ) from None
        if not DATABASE_NAME.fullmatch(clickhouse.database):
            raise ConfigError(
                f"clickhouse.database {clickhouse.database!r} is no name: letters, digits and _, at most 63",
                field="clickhouse.database",
            )

    def _check_pushes(self) -> None:
        """Headers are secrets: they leave this host encrypted only."""
        for section, key, address in (
            ("otlp", "endpoint", self.otlp.endpoint),
            ("remote_write", "url", self.remote_write.url),
        ):
            headers = getattr(self, section).headers_file
            parts = urlsplit(address)
            if headers and parts.scheme == "http" and not is_loopback(f"{parts.hostname}:{parts.port or 80}"):
                raise ConfigError(
                    f"{section}.{key} {address} would get what is in {section}.headers_file without TLS: write https://",
                    field=f"{section}.{key}",
                )

    def live_keys(self) -> frozenset[str]:
        """Return the keys that a running collector takes over, as ``section.name``."""
        live = super().live_keys()
        # ClickHouse deletes by the time to live in the tables' schema, which is written at the start.
        return live if self.store.engine == "local" else live - {"store.raw_retention", "store.second_retention"}

    @property
    def allow_anonymous(self) -> bool:
        """Whether callers without any proof are taken."""
        chosen = self.security.anonymous
        listens = [self.server.listen, *filter(None, [self.web.listen])]
        return chosen == "anywhere" or (chosen == "loopback" and all(map(is_loopback, listens)))

    @property
    def commit_interval_s(self) -> float:
        """Time between two commits of the engine in use."""
        return self.clickhouse.insert_interval_s if self.store.engine == "clickhouse" else self.ingest.commit_interval_s

    @property
    def collector_id(self) -> str:
        """Name of this collector for its agents and, where collectors share a store, for the others."""
        return self.server.id or socket.gethostname()

    @property
    def directory(self) -> Path:
        """The data directory."""
        if self.store.directory:
            return Path(self.store.directory).expanduser()
        return Path.home() / ".local" / "state" / "gpusonde" / "collector"

    @property
    def model_file(self) -> str:
        """File of the model of training times; empty for the shipped one."""
        chosen = self.workload.model
        return str(Path(chosen).expanduser()) if chosen else ""

    @property
    def embeddings(self) -> Path:
        """Folder of the encoders."""
        chosen = self.workload.embeddings
        return Path(chosen).expanduser() if chosen else self.directory / "embeddings"

    @property
    def trainings(self) -> Path:
        """Folder of the queue of trainings."""
        return self.directory / "trainings"
