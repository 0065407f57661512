"""What the agent says about itself: every tick taken or missed, every record kept or lost, as Prometheus metrics.

Parts count in plain objects (``SelfCounters``, ``RecordAges``); ``AgentMetrics`` turns them into metrics when they are
asked for. Names, meanings and what to do about them: ``docs/agent.md``. No label holds a job, a user or a GPU's UUID.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.metrics_core import Metric

from gpusonde.agent.sources.base import GpuEventKind, SourceStatistics
from gpusonde.service import metrics
from gpusonde.service.metrics import Distribution
from gpusonde.service.reload import ReloadCounters
from gpusonde.telemetry import MissingReason


@dataclass
class SelfCounters:
    """Counts since the start of the process, written by one thread each and read by any.

    Attributes:
        ticks: Ticks of one GPU each that the source delivered.
        missed_ticks: Deadlines that passed without a reading; never caught up.
        blanks: NaN values by reason.
        events: GPU events recorded (lost GPUs, XIDs, clock steps).
        batches: Sample batches appended to the spool.
        records: Records of any kind appended to the spool.
        dropped_records: Records given up before they were acknowledged, by reason.
        lost_ticks: Ticks inside those records, and ticks that never reached the disk.
        sessions: Streams on which a collector answered our Hello.
        connection_failures: Attempts that ended with an error, by gRPC status name.
        sent_records: Records sent, resends included.
        acked_sequence: Highest sequence that the collector made durable.
        last_sequence: Highest sequence on the agent's disk.
        spool_bytes: Size of the spool on disk.
        lateness_s_sum: Sum over deadlines of the seconds between deadline and reading.
        lateness_s_max: The worst of them.
        read_s_sum: Sum of the seconds spent inside the source.
        read_s_max: The longest reading.
        deadlines: Deadlines met.
        last_tick_s: When a GPU last gave a tick, monotonic clock; -inf for never.
        sampling_interval_s: Seconds between ticks as they are taken now; 0 before the first.
        slowdowns: How often they were taken less often than configured, by reason.
        job_bindings: Job bindings recorded, repetitions included.
        job_source_failures: Questions that a source of jobs did not answer, by source.
        job_activity_records: Records of what the processes of jobs did.
        job_processes_unseen: Processes that came too many at once to be looked at.
        source_progress: Share of a finite source that was read, 0..1; None for hardware.
        throttled: A collector asks for less at the moment.
        certificate_expiry_unix_s: When the certificate of the latest connection expires; None without one.
        gpus: GPUs and MIG instances of the inventory in force.
        gpu_events: The events by kind.
        tick_lateness: Seconds between deadline and reading.
        read_time: Seconds spent inside the source.
    """

    ticks: int = 0
    missed_ticks: int = 0
    blanks: dict[MissingReason, int] = field(default_factory=dict)
    events: int = 0
    batches: int = 0
    records: int = 0
    dropped_records: dict[str, int] = field(default_factory=dict)
    lost_ticks: int = 0
    sessions: int = 0
    connection_failures: dict[str, int] = field(default_factory=dict)
    sent_records: int = 0
    acked_sequence: int = 0
    last_sequence: int = 0
    spool_bytes: int = 0
    lateness_s_sum: float = 0.0
    lateness_s_max: float = 0.0
    read_s_sum: float = 0.0
    read_s_max: float = 0.0
    deadlines: int = 0
    last_tick_s: float = -math.inf
    sampling_interval_s: float = 0.0
    slowdowns: dict[str, int] = field(default_factory=dict)
    job_bindings: int = 0
    job_source_failures: dict[str, int] = field(default_factory=dict)
    job_activity_records: int = 0
    job_processes_unseen: int = 0
    source_progress: float | None = None
    throttled: bool = False
    certificate_expiry_unix_s: float | None = None
    gpus: int = 0
    gpu_events: dict[str, int] = field(default_factory=dict)
    tick_lateness: Distribution = field(default_factory=Distribution, repr=False)
    read_time: Distribution = field(default_factory=Distribution, repr=False)

    @property
    def unacked_records(self) -> int:
        """Records on disk that the collector has not confirmed yet."""
        return max(0, self.last_sequence - self.acked_sequence)

    @property
    def reconnects(self) -> int:
        """Sessions after the first."""
        return max(0, self.sessions - 1)

    def count_blanks(self, counts: Mapping[MissingReason, int]) -> None:
        """Add NaN values by reason."""
        for reason, count in counts.items():
            self.blanks[reason] = self.blanks.get(reason, 0) + count

    def count_events(self, kinds: Iterable[str]) -> None:
        """Add recorded GPU events, each by its kind."""
        for kind in kinds:
            self.events += 1
            self.gpu_events[kind] = self.gpu_events.get(kind, 0) + 1

    def count_reading(self, late_s: float, read_s: float) -> None:
        """Add one deadline that was met.

        Args:
            late_s: Seconds between the deadline and the reading.
            read_s: Seconds spent inside the source.
        """
        self.deadlines += 1
        self.lateness_s_sum += max(0.0, late_s)
        self.lateness_s_max = max(self.lateness_s_max, late_s)
        self.read_s_sum += read_s
        self.read_s_max = max(self.read_s_max, read_s)
        self.tick_lateness.observe(max(0.0, late_s))
        self.read_time.observe(read_s)

    def count_dropped(self, reason: str, records: int, ticks: int) -> None:
        """Add records that were given up, and the ticks inside them."""
        self.dropped_records[reason] = self.dropped_records.get(reason, 0) + records
        self.lost_ticks += ticks

    def count_failure(self, code: str) -> None:
        """Add one failed connection attempt."""
        self.connection_failures[code] = self.connection_failures.get(code, 0) + 1

    def count_job_source_failure(self, source: str) -> None:
        """Add one question that a source of jobs did not answer."""
        self.job_source_failures[source] = self.job_source_failures.get(source, 0) + 1

    def as_json(self) -> dict[str, object]:
        """Return all figures with their unit in the key, ready for ``json.dumps``."""
        deadlines = max(1, self.deadlines)
        return {
            "ticks": self.ticks,
            "missed_ticks": self.missed_ticks,
            "blank_values": {reason.value: count for reason, count in sorted(self.blanks.items(), key=str)},
            "events": self.events,
            "batches": self.batches,
            "records": self.records,
            "dropped_records": dict(self.dropped_records),
            "lost_ticks": self.lost_ticks,
            "reconnects": self.reconnects,
            "connection_failures": dict(self.connection_failures),
            "sent_records": self.sent_records,
            "acked_sequence": self.acked_sequence,
            "last_sequence": self.last_sequence,
            "unacked_records": self.unacked_records,
            "spool_bytes": self.spool_bytes,
            "lateness_mean_s": self.lateness_s_sum / deadlines,
            "lateness_max_s": self.lateness_s_max,
            "read_mean_s": self.read_s_sum / deadlines,
            "read_max_s": self.read_s_max,
            "sampling_interval_s": self.sampling_interval_s,
            "slowdowns": dict(self.slowdowns),
            "job_bindings": self.job_bindings,
            "job_source_failures": dict(self.job_source_failures),
            "job_activity_records": self.job_activity_records,
            "job_processes_unseen": self.job_processes_unseen,
            "source_progress": self.source_progress,
        }


_RESOLUTION_S = 1.0
_MOST_REMEMBERED = 1024


class RecordAges:
    """Tells for how long the oldest record of the spool has waited for its acknowledgement; any thread may ask.

    It remembers about one record per second and fewer the more there are, so that a day without a collector costs no
    memory worth mentioning, and no question touches the disk.

    Args:
        wall_s: Unix time in seconds.
    """

    def __init__(self, *, wall_s: Callable[[], float] = time.time) -> None:
        self._wall_s = wall_s
        self._notes: list[tuple[int, float]] = []
        self._resolution_s = _RESOLUTION_S
        self._lock = threading.Lock()

    def restore(self, known: Iterable[tuple[int, float]]) -> None:
        """Take first sequences and Unix times, in order, of what an earlier process wrote."""
        with self._lock:
            self._notes = [*known, *self._notes]

    def note(self, sequence: int) -> None:
        """Note that everything up to ``sequence`` is written now."""
        now_s = self._wall_s()
        with self._lock:
            if self._notes:
                last, last_s = self._notes[-1]
                # A clock that was set back makes the difference negative: begin anew there.
                if sequence <= last or 0.0 <= now_s - last_s < self._resolution_s:
                    return
            self._notes.append((sequence, now_s))
            if len(self._notes) > _MOST_REMEMBERED:
                del self._notes[1::2]
                self._resolution_s *= 2

    def oldest_s(self, acked: int, last: int) -> float:
        """Return the age of the oldest record after ``acked`` in seconds, too high by at most the resolution.

        Args:
            acked: Highest sequence that needs no waiting any more.
            last: Highest sequence in the spool.
        """
        with self._lock:
            known = bisect_right(self._notes, acked + 1, key=lambda note: note[0])
            del self._notes[: max(0, known - 1)]
            if last <= acked or not self._notes:
                return 0.0
            return max(0.0, self._wall_s() - self._notes[0][1])


_PREFIX = "gpusonde_agent"
# Shown from the start: an alert on an increase does not see the appearance of a series.
_DROP_REASONS = ("spool_full", "disk_full", "spool_corrupt", "too_large")
_SLOWDOWN_REASONS = ("idle", "read_budget")


@dataclass(frozen=True, eq=False)
class AgentMetrics:
    """What the agent tells of itself; a collector for a ``CollectorRegistry``.

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

    def collect(self) -> Iterable[Metric]:
        """Read everything once."""
        yield metrics.info(f"{_PREFIX}_build_info", "What runs.", {"version": self.version, "source": self.source_name})
        yield metrics.gauge(f"{_PREFIX}_gpus", "GPUs and MIG instances that are sampled.", self.counters.gpus)
        yield from self._sampling(self.counters)
        yield from self._source(self.source)
        yield from self._jobs(self.counters)
        yield from self._spool(self.counters)
        yield from self._uplink(self.counters)
        yield from self.reloads.families(_PREFIX)

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
            {reason.value: counters.blanks.get(reason, 0) for reason in MissingReason},
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
        yield metrics.counter(
            f"{_PREFIX}_job_activity_records",
            "Records of what the processes of jobs did.",
            counters.job_activity_records,
        )
        yield metrics.counter(
            f"{_PREFIX}_job_processes_unseen",
            "Processes that came too many at once to be looked at.",
            counters.job_processes_unseen,
        )

    def _spool(self, counters: SelfCounters) -> Iterable[Metric]:
        yield metrics.gauge(f"{_PREFIX}_spool_bytes", "Size of the spool on disk.", counters.spool_bytes)
        yield metrics.gauge(
            f"{_PREFIX}_spool_max_bytes",
            "Size at which the oldest records are dropped.",
            self.spool_max_bytes(),
        )
        yield metrics.gauge(
            f"{_PREFIX}_spool_oldest_record_age_seconds",
            "For how long the oldest record has waited for its acknowledgement; 0 when none waits.",
            self.ages.oldest_s(counters.acked_sequence, counters.last_sequence),
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
