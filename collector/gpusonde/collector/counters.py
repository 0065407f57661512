"""``CollectorCounters``: what the collector's parts count and measure, for its report and its metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpusonde.collector.workload.training.counters import TrainingCounters
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.metrics import Distribution

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
        segment_write: Seconds of each sealed segment.
        compaction: Seconds of each compacted file.
        prediction: Seconds of each answered prediction request.
        tracking_round_s: Seconds of the latest round of tracking.
        epochs: Epochs found since the start.
        workload_answers: Answers about workloads: ok, out_of_distribution, or the kind of the error.
        workload: Seconds of each answered request about workloads, its wait included.
        trainings: What the trainings of embeddings came to.
        workload_waiting: Number of requests about workloads that wait for a process.
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
    workload_answers: Counter[str] = field(default_factory=Counter)
    workload: Distribution = field(default_factory=Distribution)
    trainings: TrainingCounters = field(default_factory=TrainingCounters)
    workload_waiting: Callable[[], int] = lambda: 0

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
