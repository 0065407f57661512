"""What has to hold between the values of a ``CollectorConfig``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusonde.collector.storage.clickhouse import DATABASE_NAME
from gpusonde.service.config import ConfigError
from gpusonde.service.metrics_endpoint import split_address
from gpusonde.service.tls import is_loopback

if TYPE_CHECKING:
    from gpusonde.collector.config import CollectorConfig

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
