"""What the agent says about itself: every tick taken or missed, every record kept or lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpusonde.service.metrics import Distribution
from gpusonde.telemetry import BlankReason


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
        sampling_interval_s: Seconds between ticks as they are taken now; 0 before the first.
        slowdowns: How often they were taken less often than configured, by reason.
        job_bindings: Job bindings recorded, repetitions included.
        job_source_failures: Questions that a source of jobs did not answer, by source.
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
    blanks: dict[BlankReason, int] = field(default_factory=dict)
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
    sampling_interval_s: float = 0.0
    slowdowns: dict[str, int] = field(default_factory=dict)
    job_bindings: int = 0
    job_source_failures: dict[str, int] = field(default_factory=dict)
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

    def count_blanks(self, counts: Mapping[BlankReason, int]) -> None:
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
            "source_progress": self.source_progress,
        }
