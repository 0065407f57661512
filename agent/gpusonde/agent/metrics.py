"""``AgentMetrics``: the agent's counters as Prometheus metrics, read when they are asked for.

Names, meanings and what to do about them: ``docs/agent.md``. No label holds a job, a user or a GPU's UUID.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from gpusonde.agent.counters import SelfCounters
from gpusonde.agent.records.record_ages import RecordAges
from gpusonde.agent.sources.base import GpuEventKind, SourceStatistics
from gpusonde.service import metrics
from gpusonde.service.reload import ReloadCounters
from gpusonde.telemetry import BlankReason

_PREFIX = "gpusonde_agent"
# Shown from the start: an alert on an increase does not see the appearance of a series.
_DROP_REASONS = ("spool_full", "disk_full", "spool_corrupt", "too_large")
_SLOWDOWN_REASONS = ("idle", "read_budget")


@dataclass(frozen=True)
class AgentFigures:
    """What there is to tell.

    Attributes:
        counters: Of all parts.
        source: The source's own.
        ages: When records were written.
        reloads: What became of SIGHUPs.
        version: Of the agent.
        source_name: Name of the source.
        spool_max_bytes: Bound of the spool.
    """

    counters: SelfCounters
    source: SourceStatistics
    ages: RecordAges
    reloads: ReloadCounters
    version: str
    source_name: str
    spool_max_bytes: Callable[[], int]


class AgentMetrics:
    """A collector for a ``CollectorRegistry``.

    Args:
        figures: What there is to tell.
    """

    def __init__(self, figures: AgentFigures) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        """Read everything once."""
        figures = self._figures
        yield metrics.info(
            f"{_PREFIX}_build_info", "What runs.", {"version": figures.version, "source": figures.source_name}
        )
        yield metrics.gauge(f"{_PREFIX}_gpus", "GPUs and MIG instances that are sampled.", figures.counters.gpus)
        yield from self._sampling(figures.counters)
        yield from self._source(figures.source)
        yield from self._jobs(figures.counters)
        yield from self._spool(figures.counters)
        yield from self._uplink(figures.counters)
        yield from figures.reloads.families(_PREFIX)

    def _sampling(self, counters: SelfCounters) -> Iterable[Metric]:
        yield metrics.counter(f"{_PREFIX}_ticks", "Ticks of one GPU each.", counters.ticks)
        yield metrics.counter(
            f"{_PREFIX}_ticks_missed", "Deadlines that passed without a reading of any GPU.", counters.missed_ticks
        )
        yield metrics.histogram(
            f"{_PREFIX}_tick_lateness_seconds", "Time between a deadline and its reading.", counters.tick_lateness
        )
        yield metrics.histogram(
            f"{_PREFIX}_sample_read_seconds", "Time that one reading of all GPUs takes.", counters.read_time
        )
        yield metrics.gauge(
            f"{_PREFIX}_sampling_interval_seconds", "Time between two ticks.", counters.sampling_interval_s
        )
        yield metrics.counters(
            f"{_PREFIX}_slowdowns",
            "How often sampling became slower than configured, by reason.",
            "reason",
            dict.fromkeys(_SLOWDOWN_REASONS, 0) | counters.slowdowns,
        )
        yield metrics.counters(
            f"{_PREFIX}_blank_values",
            "Values that the driver did not give, by reason.",
            "reason",
            {reason.value: counters.blanks.get(reason, 0) for reason in BlankReason},
        )
        yield metrics.counters(
            f"{_PREFIX}_gpu_events",
            "XIDs, lost and recovered GPUs, clock steps.",
            "kind",
            {kind.value: counters.gpu_events.get(kind.value, 0) for kind in GpuEventKind},
        )

    def _source(self, source: SourceStatistics) -> Iterable[Metric]:
        yield metrics.gauge(
            f"{_PREFIX}_source_lag_seconds", "Time from measuring the newest value to its arrival.", source.lag_s
        )
        yield metrics.counter(
            f"{_PREFIX}_source_suspect_ticks",
            "Ticks whose profiling values were zero for long on a GPU that the driver called busy.",
            source.suspect_ticks,
        )
        yield metrics.counter(
            f"{_PREFIX}_source_capped_ratios", "Ratios of MIG instances above 1, stored as 1.", source.capped_ratios
        )
        yield metrics.counter(
            f"{_PREFIX}_source_hung_calls", "Calls into the vendor's library that were given up.", source.hung_calls
        )
        yield metrics.counter(
            f"{_PREFIX}_source_reconnects", "Connections to a host engine after the first.", source.reconnects
        )
        yield metrics.counter(
            f"{_PREFIX}_source_inventories", "Changes of the set of GPUs since the start.", source.inventories
        )

    def _jobs(self, counters: SelfCounters) -> Iterable[Metric]:
        yield metrics.counter(
            f"{_PREFIX}_job_bindings", "Recorded bindings of jobs to GPUs, repetitions included.", counters.job_bindings
        )
        yield metrics.counters(
            f"{_PREFIX}_job_source_failures",
            "Questions that a source of jobs did not answer, by source.",
            "source",
            dict(counters.job_source_failures),
        )

    def _spool(self, counters: SelfCounters) -> Iterable[Metric]:
        yield metrics.gauge(f"{_PREFIX}_spool_bytes", "Size of the spool on disk.", counters.spool_bytes)
        yield metrics.gauge(
            f"{_PREFIX}_spool_max_bytes",
            "Size at which the oldest records are dropped.",
            self._figures.spool_max_bytes(),
        )
        yield metrics.gauge(
            f"{_PREFIX}_spool_oldest_record_age_seconds",
            "For how long the oldest record has waited for its acknowledgement; 0 when none waits.",
            self._figures.ages.oldest_s(counters.acked_sequence, counters.last_sequence),
        )
        yield metrics.counter(f"{_PREFIX}_records", "Records appended to the spool.", counters.records)
        yield metrics.counters(
            f"{_PREFIX}_dropped_records",
            "Records given up before they were acknowledged, by reason.",
            "reason",
            dict.fromkeys(_DROP_REASONS, 0) | counters.dropped_records,
        )
        yield metrics.counter(
            f"{_PREFIX}_lost_ticks", "Ticks inside of dropped records or never on disk.", counters.lost_ticks
        )

    def _uplink(self, counters: SelfCounters) -> Iterable[Metric]:
        yield metrics.gauge(
            f"{_PREFIX}_unacked_records", "Records that the collector has not made durable.", counters.unacked_records
        )
        yield metrics.gauge(
            f"{_PREFIX}_acked_sequence", "Highest sequence that the collector made durable.", counters.acked_sequence
        )
        yield metrics.counter(
            f"{_PREFIX}_reconnects", "Sessions with a collector after the first.", counters.reconnects
        )
        yield metrics.counters(
            f"{_PREFIX}_connection_failures",
            "Attempts and sessions that ended with an error, by gRPC status.",
            "code",
            dict(counters.connection_failures),
        )
        yield metrics.gauge(
            f"{_PREFIX}_throttled", "Whether the collector asks for fewer or smaller records now.", counters.throttled
        )
        yield metrics.gauge(
            f"{_PREFIX}_certificate_expiry_timestamp_seconds",
            "When the agent's certificate expires, as Unix time; absent without one.",
            counters.certificate_expiry_unix_s,
        )
