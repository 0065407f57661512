"""``CollectorCounters`` and ``CollectorMetrics``: what the parts count, and that as Prometheus metrics.

``JobMetrics`` has the series of jobs. Names, meanings and what to do about them: ``docs/collector.md``. No other label
holds an agent, a job, a user or a GPU.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gpusonde.collector.alerts import JobAlerts
from gpusonde.collector.query.jobs import gpus_of
from gpusonde.collector.storage.model import StoreUsage
from gpusonde.collector.storage.store import StoreCounters
from gpusonde.collector.workload.errors import KINDS
from gpusonde.collector.workload.training import TrainingCounters
from gpusonde.collector.workload.training_queue import DONE, FAILED, QUEUED, RUNNING
from gpusonde.common.v1.job_pb2 import Scheduler
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.query.v1 import query_pb2
from gpusonde.service import metrics
from gpusonde.service.metrics import Distribution
from gpusonde.service.reload import ReloadCounters

# From milliseconds to the hour of a large compaction.
_COMPACTION_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


@dataclass
class CollectorCounters:
    """Counts since the start of the process. Each is written by one thread and read by any.

    Attributes:
        ingest: What became of records, by name: records, repetitions, refusals, gaps (refused jumps), declared_gaps,
            quarantined, throttles.
        refused: Refused calls and streams by reason.
        lost_ticks: Ticks that agents reported as lost, by reason.
        predictions: Predictions by status.
        ack_latency: Seconds from a record's arrival to its durability.
        log_sync: Seconds of each write to the log or the database, its sync included.
        segment_write: Seconds of each flushed segment.
        compaction: Seconds of each compacted file.
        prediction: Seconds of each answered prediction request.
        tracking_round_s: Seconds of the latest round of tracking.
        epochs: Epochs found since the start.
        states_refused: Stored states of tracking that could not be gone on with.
        workload_answers: Answers about workloads: ok, out_of_distribution, or the kind of the error.
        workload: Seconds of each answered request about workloads, its wait included.
        trainings: What the trainings of embeddings came to.
        workload_waiting: Number of requests about workloads that wait for a process.
        otlp: What became of points that were to be sent: sent, lost.
        remote_write: Likewise.
    """

    ingest: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    lost_ticks: Counter[str] = field(default_factory=Counter)
    predictions: Counter[str] = field(default_factory=Counter)
    ack_latency: Distribution = field(default_factory=Distribution)
    log_sync: Distribution = field(default_factory=Distribution)
    segment_write: Distribution = field(default_factory=Distribution)
    compaction: Distribution = field(default_factory=lambda: Distribution(_COMPACTION_SECONDS))
    prediction: Distribution = field(default_factory=Distribution)
    tracking_round_s: float = 0.0
    epochs: int = 0
    states_refused: int = 0
    workload_answers: Counter[str] = field(default_factory=Counter)
    workload: Distribution = field(default_factory=Distribution)
    trainings: TrainingCounters = field(default_factory=TrainingCounters)
    workload_waiting: Callable[[], int] = lambda: 0
    otlp: Counter[str] = field(default_factory=Counter)
    remote_write: Counter[str] = field(default_factory=Counter)

    def count_predictions(self, statuses: Iterable[str], seconds: float) -> None:
        """Add the answer to one request."""
        self.predictions.update(statuses)
        self.prediction.observe(seconds)


def loss_reason(reason: int) -> str:
    """Return the name of a ``gpusonde.ingest.v1.LossReason``, those of newer agents under one name."""
    try:
        return ingest_pb2.LossReason.Name(reason).removeprefix("LOSS_REASON_").lower()
    except ValueError:
        return "unknown"


_PREFIX = "gpusonde_collector"
# Shown from the start: an alert on an increase does not see the appearance of a series.
_LOSS_REASONS = ("unspecified", "spool_full", "spool_corrupt", "disk_full")
_REFUSAL_REASONS = (
    "concurrency",
    "identity",
    "no_hello",
    "not_permitted",
    "not_taking",
    "planning_busy",
    "planning_memory",
    "planning_size",
    "planning_time",
    "rate",
    "revoked",
    "second_agent",
    "streams",
    "throttle_ignored",
    "too_many_agents",
    "unauthenticated",
    "undecodable",
    "workload_busy",
    "workload_queue",
    "workload_size",
)
_WORKLOAD_STATUSES = ("ok", "out_of_distribution", *KINDS)
_TRAINING_STATES = (QUEUED, RUNNING, DONE, FAILED)
_PREDICTION_STATUSES = ("ok", "extrapolated", "insufficient_epochs", "unsupported_gpu")


@dataclass
class StoreFigures:
    """What the store holds; looked up now and then in a thread, so that no scrape waits for a disk.

    Attributes:
        usage: Size by tier, and free space.
        agents: Agents ever seen.
        gpus: GPUs ever described.
    """

    usage: StoreUsage = field(default_factory=lambda: StoreUsage({}))
    agents: int = 0
    gpus: int = 0


@dataclass(frozen=True, eq=False)  # the registry hashes it
class CollectorMetrics:
    """A collector for a ``CollectorRegistry``, of what there is to tell.

    Attributes:
        counters: Of all parts.
        store: Of the store.
        held: What the store holds.
        reloads: What became of SIGHUPs.
        version: Of the collector.
        engine: Of the store.
        streams: Number of open streams.
        ingest_lag_s: Age in seconds of the newest tick of the stream that is furthest behind; None without streams.
        taking_records: Whether records are taken.
        tracking_backlog: GPUs with something new that tracking has not looked at.
        certificate_expiry_unix_s: When the collector's certificate expires; None without one.
    """

    counters: CollectorCounters
    store: StoreCounters
    held: StoreFigures
    reloads: ReloadCounters
    version: str
    engine: str
    streams: Callable[[], int]
    ingest_lag_s: Callable[[], float | None]
    taking_records: Callable[[], bool]
    tracking_backlog: Callable[[], int]
    certificate_expiry_unix_s: Callable[[], float | None]

    def collect(self) -> Iterable[Metric]:
        """Read everything once."""
        yield metrics.info(f"{_PREFIX}_build_info", "What runs.", {"version": self.version, "engine": self.engine})
        yield from self._ingest(self.counters)
        yield from self._durability(self.counters)
        yield from self._store()
        yield from self._tracking(self.counters)
        yield from self._workloads(self.counters)
        yield from self._access()
        for receiver, counts in (("otlp", self.counters.otlp), ("remote_write", self.counters.remote_write)):
            yield metrics.counters(
                f"{_PREFIX}_{receiver}_points",
                "Points that were to be sent to others, by what became of them.",
                "result",
                {"sent": 0, "lost": 0} | counts,
            )
        yield from self.reloads.families(_PREFIX)

    def _ingest(self, counters: CollectorCounters) -> Iterable[Metric]:
        counts = counters.ingest
        yield metrics.gauge(f"{_PREFIX}_streams", "Open streams of agents.", self.streams())
        yield metrics.gauge(f"{_PREFIX}_agents_known", "Agents ever seen.", self.held.agents)
        yield metrics.gauge(f"{_PREFIX}_gpus_known", "GPUs and MIG instances ever described.", self.held.gpus)
        yield metrics.counter(f"{_PREFIX}_records_received", "Records taken to be stored.", counts["records"])
        yield metrics.counter(
            f"{_PREFIX}_records_duplicate", "Records that were there already and dropped.", counts["repetitions"]
        )
        yield metrics.counter(
            f"{_PREFIX}_records_rejected", "Refusals of records that can never be stored.", counts["refusals"]
        )
        yield metrics.counter(
            f"{_PREFIX}_records_quarantined", "Records put aside after too many refusals.", counts["quarantined"]
        )
        yield metrics.counter(
            f"{_PREFIX}_sequence_gaps",
            "Stretches of records that agents declared lost before they came.",
            counts["declared_gaps"],
        )
        yield metrics.counters(
            f"{_PREFIX}_lost_ticks_reported",
            "Ticks that agents reported as lost, by reason.",
            "reason",
            dict.fromkeys(_LOSS_REASONS, 0) | counters.lost_ticks,
        )
        yield metrics.counter(f"{_PREFIX}_throttles", "Requests to an agent to send less.", counts["throttles"])
        yield metrics.gauge(
            f"{_PREFIX}_ingest_lag_seconds",
            "Age of the newest tick of the stream that is furthest behind.",
            self.ingest_lag_s(),
        )

    def _durability(self, counters: CollectorCounters) -> Iterable[Metric]:
        yield metrics.gauge(
            f"{_PREFIX}_taking_records",
            "Whether records are taken; not while the disk is full or the collector shuts down.",
            self.taking_records(),
        )
        yield metrics.histogram(
            f"{_PREFIX}_ack_latency_seconds", "Time from a record's arrival to its durability.", counters.ack_latency
        )
        yield metrics.histogram(
            f"{_PREFIX}_log_sync_seconds", "Time of one group commit, its sync included.", counters.log_sync
        )
        yield metrics.histogram(
            f"{_PREFIX}_segment_write_seconds", "Time of writing one segment.", counters.segment_write
        )

    def _store(self) -> Iterable[Metric]:
        yield metrics.histogram(
            f"{_PREFIX}_compaction_seconds", "Time of compacting one file.", self.counters.compaction
        )
        yield metrics.counter(
            f"{_PREFIX}_compaction_failures",
            "Compactions that did not succeed; the segments stay as they are.",
            self.store.compaction_failures,
        )
        yield metrics.counters(
            f"{_PREFIX}_retention_deleted_bytes",
            "Bytes deleted for their age or for room, by tier.",
            "tier",
            self.store.deleted_bytes(),
        )
        yield metrics.gauges(f"{_PREFIX}_store_bytes", "Size on disk, by tier.", "tier", self.held.usage.tier_bytes)
        yield metrics.gauge(
            f"{_PREFIX}_store_free_bytes", "Free space where the store lies.", self.held.usage.free_bytes
        )

    def _tracking(self, counters: CollectorCounters) -> Iterable[Metric]:
        yield metrics.gauge(
            f"{_PREFIX}_tracking_backlog_gpus",
            "GPUs with records that tracking has not looked at.",
            self.tracking_backlog(),
        )
        yield metrics.gauge(
            f"{_PREFIX}_tracking_round_seconds", "Time of the latest round of tracking.", counters.tracking_round_s
        )
        yield metrics.counter(f"{_PREFIX}_epochs_detected", "Epochs found.", counters.epochs)
        yield metrics.counter(
            f"{_PREFIX}_tracking_states_refused",
            "Stored states of tracking that could not be gone on with; their runs were read again from the start.",
            counters.states_refused,
        )
        yield metrics.counters(
            f"{_PREFIX}_predictions",
            "Predictions by status.",
            "status",
            dict.fromkeys(_PREDICTION_STATUSES, 0) | counters.predictions,
        )
        yield metrics.histogram(
            f"{_PREFIX}_prediction_seconds", "Time of answering one request for predictions.", counters.prediction
        )

    def _workloads(self, counters: CollectorCounters) -> Iterable[Metric]:
        yield metrics.counters(
            f"{_PREFIX}_workload_answers",
            "Answers about workloads, by status.",
            "status",
            dict.fromkeys(_WORKLOAD_STATUSES, 0) | counters.workload_answers,
        )
        yield metrics.histogram(
            f"{_PREFIX}_workload_seconds", "Time of answering one request about workloads.", counters.workload
        )
        yield metrics.gauge(
            f"{_PREFIX}_workload_waiting", "Requests about workloads that wait.", counters.workload_waiting()
        )
        yield metrics.gauges(
            f"{_PREFIX}_workload_trainings",
            "Trainings of embeddings, by state.",
            "state",
            dict.fromkeys(_TRAINING_STATES, 0) | counters.trainings.states,
        )
        yield metrics.counter(
            f"{_PREFIX}_workload_training_failures",
            "Processes that train and ended with an error.",
            counters.trainings.failures,
        )
        yield metrics.counter(
            f"{_PREFIX}_workload_training_start_failures",
            "Processes that were to train and could not be started, or ended before they began.",
            counters.trainings.failed_starts,
        )

    def _access(self) -> Iterable[Metric]:
        counters = self.counters
        yield metrics.counters(
            f"{_PREFIX}_requests_refused",
            "Refused calls and streams, by reason.",
            "reason",
            dict.fromkeys(_REFUSAL_REASONS, 0) | {"sequence_gap": counters.ingest["gaps"]} | counters.refused,
        )
        yield metrics.gauge(
            f"{_PREFIX}_certificate_expiry_timestamp_seconds",
            "When the collector's certificate expires, as Unix time; absent without one.",
            self.certificate_expiry_unix_s(),
        )


# Beyond it a fleet's jobs are those of its scheduler's own exporter to tell.
MOST_JOBS = 1000


@dataclass(frozen=True, eq=False)
class JobMetrics:
    """A collector for a ``CollectorRegistry``, of the jobs that go on: at most 1,000, and gone when they end.

    Attributes:
        alerts: Knows them, and what it has told of them.
        with_gpus: Whether each GPU of a job has a series, too, at most 10,000 of them.
    """

    alerts: JobAlerts
    with_gpus: bool = False

    def collect(self) -> Iterable[Metric]:
        """Read everything once."""
        jobs = self.alerts.jobs[:MOST_JOBS]
        state = GaugeMetricFamily("gpusonde_job_state", "1 for the state that a job is in.", labels=[*_JOB, "state"])
        since = GaugeMetricFamily(
            "gpusonde_job_state_start_timestamp_seconds", "Since when it is in that state, as Unix time.", labels=_JOB
        )
        gpus = GaugeMetricFamily("gpusonde_job_gpus", "GPUs of a job.", labels=_JOB)
        goodput = GaugeMetricFamily(
            "gpusonde_job_goodput_ratio", "Share of its GPUs' time in which a job made progress.", labels=_JOB
        )
        progress = GaugeMetricFamily(
            "gpusonde_job_progress_ratio", "Share of what it is to run for that a job has done.", labels=_JOB
        )
        eta = GaugeMetricFamily("gpusonde_job_eta_seconds", "Time until a job is done, as estimated.", labels=_JOB)
        cycle = GaugeMetricFamily(
            "gpusonde_job_cycle_seconds", "Period of the level that measures its progress.", labels=[*_JOB, "level"]
        )
        cycles = GaugeMetricFamily("gpusonde_job_cycles", "Whole cycles of that level so far.", labels=[*_JOB, "level"])
        good_s = gpu_s = 0.0
        for job in self.alerts.jobs:
            gpu_s += job.gpu_time.ToNanoseconds() / 1e9
            good_s += job.goodput_ratio * job.gpu_time.ToNanoseconds() / 1e9
        for job in jobs:
            named = [job.job_id, _scheduler(job)]
            state.add_metric([*named, _state_name(job)], 1)
            since.add_metric(named, job.state_time.ToNanoseconds() / 1e9)
            gpus.add_metric(named, len(gpus_of(job)))
            if job.HasField("goodput_ratio"):
                goodput.add_metric(named, job.goodput_ratio)
            if job.HasField("progress_ratio"):
                progress.add_metric(named, job.progress_ratio)
            if job.HasField("estimate"):
                eta.add_metric(named, max(job.estimate.end_time.ToNanoseconds() / 1e9 - time.time(), 0.0))
            if job.HasField("level"):
                role = query_pb2.CycleRole.Name(job.level.role).removeprefix("CYCLE_ROLE_").lower()
                cycle.add_metric([*named, role], job.level.period.ToNanoseconds() / 1e9)
                cycles.add_metric([*named, role], job.level.count)
        yield from (state, since, gpus, goodput, progress, eta, cycle, cycles)
        if self.with_gpus:
            yield self._gpus(jobs)
        counters = self.alerts.counters
        left_out = len(self.alerts.jobs) - len(jobs)
        yield metrics.gauge(f"{_PREFIX}_jobs_left_out", "Jobs that go on and have no series here.", left_out)
        yield metrics.gauge(
            f"{_PREFIX}_goodput_ratio",
            "Share of the GPU time of all jobs that go on in which they made progress; absent while none is known.",
            good_s / gpu_s if gpu_s else None,
        )
        yield metrics.counters(f"{_PREFIX}_job_alerts", "Alerts about jobs, by rule.", "rule", counters.fired)
        yield metrics.counters(
            f"{_PREFIX}_job_alert_notifications",
            "Notifications of the webhook by what became of them; a failed one is tried again.",
            "result",
            {"sent": counters.sent, "failed": counters.failed, "dropped": counters.dropped},
        )

    def _gpus(self, jobs: Sequence[query_pb2.Job]) -> Metric:
        """Return which GPU is whose, to be joined with the metrics of GPUs that others export."""
        family = GaugeMetricFamily(
            "gpusonde_job_gpu", "1 for each GPU that a job has.", labels=[*_JOB, "gpu_uuid", "host_name"]
        )
        members = {
            (job.job_id, _scheduler(job), member.gpu_uuid, member.host_name)
            for job in jobs
            for member in job.members
            if member.active
        }
        for labels in sorted(members)[:_MOST_GPUS]:
            family.add_metric(labels, 1)
        return family


_MOST_GPUS = 10_000
_JOB = ("job_id", "scheduler")


def _scheduler(job: query_pb2.Job) -> str:
    return Scheduler.Name(job.scheduler).removeprefix("SCHEDULER_").lower()


def _state_name(job: query_pb2.Job) -> str:
    return query_pb2.JobState.Name(job.state).removeprefix("JOB_STATE_").lower()
