"""``CollectorConfig``: what an operator can set.

Precedence: flags over environment over file over defaults. Every option ``[section] name`` has the environment variable
``GPUSONDE_COLLECTOR_SECTION_NAME``. Unknown keys are errors, durations and sizes carry their unit.

What has to hold between the values of a ``CollectorConfig``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from gpusonde.collector.storage.clickhouse import DATABASE_NAME
from gpusonde.service.config import ConfigError, Configuration, LogConfig, option
from gpusonde.service.metrics_endpoint import split_address
from gpusonde.service.tls import is_loopback

__all__ = ["CollectorConfig", "ConfigError"]
_SHORTEST_RETENTION_S = 3600.0


def _check_address(option_name: str, listen: str) -> None:
    try:
        split_address(listen)
    except ValueError as error:
        raise ConfigError(f"{option_name} {error}", field=option_name) from None


def check(config: CollectorConfig) -> None:
    """Check a configuration.

    Raises:
        ConfigError: A value is out of its range, or does not go with another.
    """
    if config.metrics.listen:
        _check_address("metrics.listen", config.metrics.listen)
    _check_address("server.listen", config.server.listen)
    if config.server.reflection not in ("loopback", "on", "off"):
        raise ConfigError(f"server.reflection {config.server.reflection!r} is unknown; use loopback, on or off")
    _check_security(config)
    _check_clickhouse(config)
    if not 0.0 <= config.runs.activity_threshold < 1.0:
        raise ConfigError("runs.activity_threshold is a ratio: at least 0, less than 1")
    if config.ingest.max_record_bytes < 1 << 16 or config.ingest.max_record_bytes > 1 << 26:
        raise ConfigError("ingest.max_record_bytes must lie between 64KiB and 64MiB; the default is 4MiB")
    if config.runs.held_end_s < config.runs.idle_end_s:
        raise ConfigError("runs.held_end is shorter than runs.idle_end; use at least the same")
    ranges = {
        "ingest.commit_interval": (config.ingest.commit_interval_s, 0.001, 10.0),
        "ingest.max_unacked_records": (config.ingest.max_unacked_records, 1, 10_000),
        "ingest.max_agents": (config.ingest.max_agents, 1, 1_000_000),
        "ingest.max_records_per_second": (config.ingest.max_records_per_second, 5.0, 1e6),
        "ingest.max_bytes_per_second": (config.ingest.max_bytes_per_second, 1 << 16, 1 << 40),
        "ingest.max_waiting_bytes": (config.ingest.max_waiting_bytes, 1 << 20, 1 << 40),
        "security.max_questions": (config.security.max_questions, 1, 10_000),
        "security.questions_per_second": (config.security.questions_per_second, 0.1, 1e6),
        "ingest.max_gpus": (config.ingest.max_gpus, 1, 4096),
        "ingest.max_metrics": (config.ingest.max_metrics, 1, 4096),
        "ingest.poison_attempts": (config.ingest.poison_attempts, 1, 1000),
        "ingest.probe_interval": (config.ingest.probe_interval_s, 0.01, 3600.0),
        "store.segment_interval": (config.store.segment_interval_s, 0.1, 3600.0),
        "store.segment_bytes": (config.store.segment_bytes, 1 << 16, 1 << 34),
        "store.compact_after": (config.store.compact_after_s, 0.0, 86_400.0),
        "store.compact_share": (config.store.compact_share, 0.01, 1.0),
        "clickhouse.insert_interval": (config.clickhouse.insert_interval_s, 0.01, 10.0),
        "clickhouse.connect_timeout": (config.clickhouse.connect_timeout_s, 0.1, 600.0),
        "clickhouse.timeout": (config.clickhouse.timeout_s, 1.0, 3600.0),
        "clickhouse.tail_bytes": (config.clickhouse.tail_bytes, 1 << 20, 1 << 36),
        "runs.idle_end": (config.runs.idle_end_s, 1.0, 86_400.0),
        "runs.gap_end": (config.runs.gap_end_s, 1.0, 86_400.0),
        "runs.processes": (config.runs.processes, 0, 256),
        "runs.track_interval": (config.runs.track_interval_s, 0.01, 60.0),
        "runs.state_interval": (config.runs.state_interval_s, 1.0, 86_400.0),
        "runs.summary_time": (config.runs.summary_time_s, 0.001, 10.0),
        "planning.processes": (config.planning.processes, 0, 64),
        "planning.time_limit": (config.planning.time_limit_s, 0.1, 3600.0),
        "planning.memory_bytes": (config.planning.memory_bytes, 1 << 30, 1 << 44),
        "planning.max_waiting": (config.planning.max_waiting, 0, 10_000),
        "planning.max_request_bytes": (config.planning.max_request_bytes, 1 << 12, 1 << 23),
        "planning.max_watches": (config.planning.max_watches, 0, 10_000),
        "planning.watch_interval": (config.planning.watch_interval_s, 0.1, 3600.0),
        "workload.processes": (config.workload.processes, 0, 64),
        "workload.time_limit": (config.workload.time_limit_s, 0.1, 3600.0),
        "workload.graph_time_limit": (config.workload.graph_time_limit_s, 0.1, 3600.0),
        "workload.memory_bytes": (config.workload.memory_bytes, 1 << 30, 1 << 44),
        "workload.max_waiting": (config.workload.max_waiting, 0, 10_000),
        "workload.max_request_bytes": (config.workload.max_request_bytes, 1 << 12, 1 << 28),
        "workload.max_questions": (config.workload.max_questions, 1, 100_000),
        "workload.max_operations": (config.workload.max_operations, 1, 1_000_000),
        "workload.max_trainings": (config.workload.max_trainings, 1, 1000),
        "workload.host_load_interval": (config.workload.host_load_interval_s, 0.0, 86_400.0),
    }
    for name, (value, low, high) in ranges.items():
        if not low <= value <= high:
            raise ConfigError(f"{name} is out of its range of {low:g} to {high:g} (seconds, bytes or a count)")
    for name, retention_s in (
        ("raw", config.store.raw_retention_s),
        ("second", config.store.second_retention_s),
    ):
        if 0 < retention_s < _SHORTEST_RETENTION_S:
            raise ConfigError(f"store.{name}_retention is shorter than an hour; use 0s to keep for ever")
    if config.store.memory_bytes < config.store.segment_bytes:
        raise ConfigError("store.memory_bytes is smaller than store.segment_bytes; use at least the same")


def _check_clickhouse(config: CollectorConfig) -> None:
    if config.store.engine not in ("local", "clickhouse"):
        raise ConfigError(f"store.engine {config.store.engine!r} is unknown; use local or clickhouse")
    clickhouse = config.clickhouse
    if bool(clickhouse.tls_certificate) != bool(clickhouse.tls_key):
        raise ConfigError("clickhouse.tls_certificate and clickhouse.tls_key come together; give both or none")
    if config.store.engine == "local":
        return
    if not clickhouse.url.startswith(("http://", "https://", "chdb:///")):
        raise ConfigError(
            f"clickhouse.url {clickhouse.url!r} is no address; write https://host:8443, http://host:8123 or"
            " chdb:///directory"
        )
    if "@" in clickhouse.url:
        # Without showing it: what stands before the "@" may be a password, and --print-config shows addresses.
        raise ConfigError("clickhouse.url holds a user; write it into clickhouse.user, and the password into a file")
    if config.server.share_port and not config.server.id:
        raise ConfigError(
            "collectors that share a port share a host, whose name cannot be that of all of them: give each a server.id"
        )
    if not DATABASE_NAME.fullmatch(clickhouse.database):
        raise ConfigError(f"clickhouse.database {clickhouse.database!r} is no name: letters, digits and _, at most 63")


def _check_security(config: CollectorConfig) -> None:
    security, listen = config.security, config.server.listen
    choices = {
        "anonymous": ("loopback", "never", "anywhere"),
        "plaintext": ("loopback", "anywhere"),
        "certificate_role": ("", "agent", "reader"),
    }
    for name, known in choices.items():
        value = getattr(security, name)
        if value not in known:
            raise ConfigError(
                f"security.{name} {value!r} is unknown; use {', '.join(word or 'nothing' for word in known)}"
            )
    if bool(security.tls_certificate) != bool(security.tls_key):
        raise ConfigError("security.tls_certificate and security.tls_key come together; give both or none")
    if security.tls_client_ca and not security.tls_certificate:
        raise ConfigError("security.tls_client_ca needs security.tls_certificate and security.tls_key too")
    if security.certificate_role and not security.tls_client_ca:
        raise ConfigError("security.certificate_role is about client certificates: give security.tls_client_ca too")
    if is_loopback(listen):
        return
    if not security.tls_certificate and security.plaintext != "anywhere":
        raise ConfigError(
            f"server.listen {listen} is reachable from other hosts and there is no TLS: give security.tls_certificate "
            'and security.tls_key, or say security.plaintext = "anywhere" where something else encrypts'
        )
    if not (config.takes_anonymous or security.tls_client_ca or security.tokens_file):
        raise ConfigError(
            f"nobody could connect to server.listen {listen}: give security.tls_client_ca or security.tokens_file, or "
            'say security.anonymous = "anywhere"'
        )


DEFAULT_LISTEN = "127.0.0.1:7433"


@dataclass(frozen=True)
class ServerConfig:
    """``[server]``: where the collector listens."""

    listen: str = option("text", DEFAULT_LISTEN, "host:port; port 0 takes a free one, written to <store>/address")
    id: str = option("text", "", "name of this collector for its agents; empty: the host's name")
    reflection: str = option("text", "loopback", "gRPC reflection: loopback (only when listening there), on or off")
    share_port: bool = option(
        "switch",
        False,
        "let several collectors listen on one address, the kernel giving each connection to any of them: only for"
        " collectors in front of one database, never with a data directory each",
    )
    drain_grace_s: float = option("duration", 5.0, "time that open streams get to end when the collector stops")


@dataclass(frozen=True)
class SecurityConfig:
    """``[security]``: who may connect, and what is asked of them."""

    tls_certificate: str = option("text", "", "PEM file with the collector's certificate and its chain; empty: no TLS")
    tls_key: str = option("text", "", "PEM file with the certificate's key, not encrypted")
    tls_client_ca: str = option(
        "text", "", "PEM file with the authority of clients' certificates; every client then needs one; empty: none"
    )
    certificate_role: str = option(
        "text", "", "role of certificates without a gpusonde:// URI: agent or reader; empty: they are refused"
    )
    tokens_file: str = option("text", "", "file with the digests of bearer tokens; empty: no tokens are taken")
    anonymous: str = option(
        "text",
        "loopback",
        "callers without certificate and token: loopback (only when listening there), never, anywhere",
    )
    plaintext: str = option(
        "text", "loopback", "listening without TLS: loopback (refused elsewhere), or anywhere (a mesh encrypts)"
    )
    max_questions: int = option("count", 16, "questions of one caller that are answered at the same time")
    questions_per_second: float = option("number", 100.0, "questions of one caller, over 10s; then they are refused")


@dataclass(frozen=True)
class IngestConfig:
    """``[ingest]``: what agents may send."""

    commit_interval_s: float = option("duration", 0.1, "time between syncs of the log; acknowledgements wait for one")
    max_unacked_records: int = option("count", 64, "records that an agent may have in flight")
    max_record_bytes: int = option("size", 4 << 20, "largest record")
    max_records_per_second: float = option("number", 1000.0, "records of one agent, over 10s; then it is throttled")
    max_bytes_per_second: int = option("size", 16 << 20, "bytes of one agent's records, likewise")
    max_waiting_bytes: int = option("size", 256 << 20, "bytes of records that wait to be durable; then none is read")
    max_agents: int = option("count", 2000, "streams open at the same time")
    max_gpus: int = option("count", 128, "GPUs and MIG instances of one agent")
    max_metrics: int = option("count", 128, "metrics of one agent")
    poison_attempts: int = option(
        "count", 3, "refusals after which a record is put into the quarantine and passed over"
    )
    identity_hold_s: float = option(
        "duration", 60.0, "time a gone agent's id stays closed to a process started earlier"
    )
    probe_interval_s: float = option("duration", 1.0, "time between attempts to write to a disk that was full")


@dataclass(frozen=True)
class StoreConfig:
    """``[store]``: where and how samples are kept; sizes, segments and compaction are about the local engine."""

    engine: str = option("text", "local", "local: the data directory of this host; clickhouse: the database below")
    directory: str = option("text", "", "data directory; empty: ~/.local/state/gpusonde/collector")
    segment_interval_s: float = option("duration", 60.0, "age at which samples move from the log to a Parquet segment")
    segment_bytes: int = option("size", 128 << 20, "size in memory at which they do so earlier")
    memory_bytes: int = option("size", 512 << 20, "size in memory beyond which nothing is taken any more")
    reserve_bytes: int = option("size", 64 << 20, "free disk space that is left for segments and the catalogue")
    cache_bytes: int = option("size", 64 << 20, "memory for columns of segments that were read last")
    compact: bool = option(
        "switch", True, "turn each hour of segments into one compact file, and averages over seconds"
    )
    compact_after_s: float = option("duration", 300.0, "time after the end of an hour before that is done")
    compact_share: float = option("number", 0.25, "share of a core that it may take")
    raw_retention_s: float = option(
        "duration", 14 * 86_400.0, "time since their arrival for which ticks are kept; 0s: for ever"
    )
    raw_max_bytes: int = option("size", 0, "size of all ticks beyond which the oldest are deleted; 0B: any")
    second_retention_s: float = option("duration", 90 * 86_400.0, "the same for averages over seconds")
    second_max_bytes: int = option("size", 0, "the same for the size of the averages")
    keep_free_bytes: int = option("size", 0, "free disk space for which the oldest ticks are deleted; 0B: never")


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
        "duration", 1.0, "time between inserts, in place of ingest.commit_interval; acknowledgements wait for one"
    )
    connect_timeout_s: float = option("duration", 10.0, "time to reach the server")
    timeout_s: float = option("duration", 60.0, "time for one statement")
    tail_bytes: int = option("size", 256 << 20, "memory for the records of the last minutes, which tracking reads")


@dataclass(frozen=True)
class RunsConfig:
    """``[runs]``: when a run begins and ends."""

    activity_threshold: float = option("number", 0.05, "a tick is active when any activity ratio exceeds this")
    min_active_s: float = option("duration", 1.0, "activity that makes a run; less is a blip")
    idle_end_s: float = option("duration", 300.0, "idle time that ends a run; stalls of 120s occur inside of training")
    held_end_s: float = option("duration", 1800.0, "the same while the job still holds its device memory")
    gap_end_s: float = option("duration", 600.0, "time without ticks that ends a run")
    silence_end_s: float = option("duration", 86_400.0, "time without records, on the collector's clock, that does so")
    track: bool = option(
        "switch", True, "look for runs and epochs; without, the collector only takes and keeps samples"
    )
    processes: int = option(
        "count", 0, "processes that look for epochs, one per 500 GPUs or so; 0: a thread of the collector does"
    )
    track_interval_s: float = option("duration", 0.5, "time between rounds of tracking")
    state_interval_s: float = option(
        "duration", 300.0, "time between two stored states of an open run; a crash costs reading again so much of it"
    )
    summary_time_s: float = option("duration", 0.2, "time per round for mean metrics and energy of epochs, at least")


@dataclass(frozen=True)
class PredictionConfig:
    """``[prediction]``: the model."""

    model: str = option(
        "text", "", "file of 'gpusonde train'; empty: what 'gpusonde train --from-store' has put in service"
    )


@dataclass(frozen=True)
class PlanningConfig:
    """``[planning]``: questions about what to rent."""

    processes: int = option("count", 1, "processes that answer, started at need; 0: such questions are refused")
    time_limit_s: float = option("duration", 30.0, "time for one answer")
    memory_bytes: int = option("size", 2 << 30, "memory that each of these processes may allocate")
    max_waiting: int = option("count", 16, "questions that wait for a process; then they are refused")
    max_request_bytes: int = option("size", 4 << 20, "largest request")
    max_watches: int = option("count", 8, "jobs watched at the same time, each by a process of its own")
    watch_interval_s: float = option("duration", 10.0, "time between two looks at a watched job, at least")


@dataclass(frozen=True)
class WorkloadConfig:
    """``[workload]``: questions about networks' graphs, and the training of embeddings for them."""

    processes: int = option("count", 1, "processes that answer, started at need; 0: such questions are refused")
    time_limit_s: float = option("duration", 30.0, "time for the answers to one request")
    graph_time_limit_s: float = option("duration", 5.0, "processor time for reading one graph")
    memory_bytes: int = option("size", 2 << 30, "memory that each of these processes may allocate")
    max_waiting: int = option("count", 16, "requests that wait for a process; then they are refused")
    max_request_bytes: int = option("size", 8 << 20, "largest request, graphs included")
    max_questions: int = option("count", 1000, "questions of one request")
    max_operations: int = option("count", 20_000, "operations of one graph")
    model: str = option("text", "", "file of 'gpusonde workload fit'; empty: the shipped model")
    embeddings: str = option("text", "", "folder of trained encoders; empty: 'embeddings' in the data directory")
    queue: str = option("text", "", "folder of the queue of trainings; empty: 'trainings' in the data directory")
    max_trainings: int = option("count", 32, "trainings that are kept; questions alone may fill one half")
    train: bool = option(
        "switch", False, "train what is queued, one after the other, in a process beside the collector; needs torch"
    )
    datasets: str = option(
        "text", "", "folder with a folder of images for each dataset type to be trained on; empty: digits only"
    )
    host_load_interval_s: float = option(
        "duration", 30.0, "time between two reports of what an agent's host is doing; 0s: none is asked for"
    )


@dataclass(frozen=True)
class MetricsConfig:
    """``[metrics]``: what the collector says about itself."""

    listen: str = option(
        "text", "127.0.0.1:9434", "host:port of /metrics, /-/healthy and /-/ready over HTTP; empty: not served"
    )


@dataclass(frozen=True)
class CollectorConfig(Configuration):
    """Everything the collector can be told."""

    environment_prefix: ClassVar[str] = "GPUSONDE_COLLECTOR_"

    server: ServerConfig = field(default_factory=ServerConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    ingest: IngestConfig = field(default_factory=IngestConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    clickhouse: ClickHouseConfig = field(default_factory=ClickHouseConfig)
    runs: RunsConfig = field(default_factory=RunsConfig)
    prediction: PredictionConfig = field(default_factory=PredictionConfig)
    planning: PlanningConfig = field(default_factory=PlanningConfig)
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        """Check what depends on more than the kind of a value.

        Raises:
            ConfigError: A value out of its range.
        """
        check(self)

    @property
    def takes_anonymous(self) -> bool:
        """Whether callers without any proof are taken."""
        chosen = self.security.anonymous
        return chosen == "anywhere" or (chosen == "loopback" and is_loopback(self.server.listen))

    @property
    def commit_interval_s(self) -> float:
        """Time between two commits of the engine in use."""
        return self.clickhouse.insert_interval_s if self.store.engine == "clickhouse" else self.ingest.commit_interval_s

    @property
    def directory(self) -> Path:
        """The data directory."""
        if self.store.directory:
            return Path(self.store.directory).expanduser()
        return Path.home() / ".local" / "state" / "gpusonde" / "collector"

    @property
    def embeddings(self) -> Path:
        """Folder of the encoders."""
        chosen = self.workload.embeddings
        return Path(chosen).expanduser() if chosen else self.directory / "embeddings"

    @property
    def trainings(self) -> Path:
        """Folder of the queue of trainings."""
        chosen = self.workload.queue
        return Path(chosen).expanduser() if chosen else self.directory / "trainings"
