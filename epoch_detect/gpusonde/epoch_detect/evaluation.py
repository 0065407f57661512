"""Scoring of epoch detection against known epochs, as ``gpusonde evaluate epochs`` reports it.

A trace's answer is the ``period_s`` of a verdict ``epochs`` or ``short_cycle``. A positive without an answer counts
with an error of 100 % and as a miss. The false positive rate is the share of negatives with the verdict ``epochs``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from gpusonde.epoch_detect.result import EpochDetection, Verdict
from gpusonde.epoch_detect.truth import Truth, TruthError
from gpusonde.telemetry import Trace

_RIGHT = 0.10  # an answer with an error of at most this is right
_NEAR = 0.05
_BOUNDARY_TOLERANCE_S = 0.3
_BOUNDARY_TOLERANCE = 0.05  # of the period, where that is more


@dataclass(frozen=True)
class TraceScore:
    """How one trace was answered.

    Attributes:
        trace_id: Its name.
        shape: Its kind.
        verdict: The detector's verdict.
        period_s: The detector's period, or None.
        true_period_s: The nearest right period, or None for a negative.
        ape: Absolute relative error as a ratio, 1 without an answer, None for a negative.
        confidence: The detector's confidence, 0..1.
        boundary_errors_s: Distance of each true epoch start from the nearest start or end found, in seconds; only where
            ``ape`` is at most 0.1 and epochs were placed.
        boundaries_found: Share of true epoch starts found to within 0.3 s or 5 % of the period; None like above.
    """

    trace_id: str
    shape: str
    verdict: str
    period_s: float | None
    true_period_s: float | None
    ape: float | None
    confidence: float
    boundary_errors_s: tuple[float, ...] = ()
    boundaries_found: float | None = None


@dataclass(frozen=True)
class Summary:
    """Scores of many traces; shares and errors are ratios, None where no trace speaks to it.

    Attributes:
        traces: Number of traces.
        positives: Number of them that have epochs.
        negatives: Number of them that have none.
        declared: Share of the positives with an answer.
        mape: Mean absolute relative error of the positives.
        median_ape: Median of it.
        within_5pct: Share of the positives with an error of at most 5 %.
        within_10pct: Same for 10 %.
        mape_declared: Mean absolute relative error of the positives with an answer.
        false_positive_rate: Share of the negatives with the verdict ``epochs``.
        boundary_error_median_s: Median distance of the true epoch starts from those found, in seconds.
        boundary_recall: Mean share of epoch starts found.
    """

    traces: int
    positives: int
    negatives: int
    declared: float | None
    mape: float | None
    median_ape: float | None
    within_5pct: float | None
    within_10pct: float | None
    mape_declared: float | None
    false_positive_rate: float | None
    boundary_error_median_s: float | None
    boundary_recall: float | None


@dataclass(frozen=True)
class ReliabilityBin:
    """Of the answers whose confidence lay in [low, high): how many there were, and the share that was right."""

    low: float
    high: float
    answers: int
    mean_confidence: float
    right: float


@dataclass(frozen=True)
class EpochEvaluation:
    """All scores of a set: each trace, the whole, and by shape."""

    scores: tuple[TraceScore, ...]
    overall: Summary
    by_shape: Mapping[str, Summary]

    @classmethod
    def of(cls, scores: Iterable[TraceScore]) -> EpochEvaluation:
        """Sum up the scores of a set."""
        every = tuple(scores)
        shapes = sorted({s.shape for s in every})
        by_shape = {shape: summarise(s for s in every if s.shape == shape) for shape in shapes}
        return cls(every, summarise(every), by_shape)


def score(trace_id: str, found: EpochDetection, truth: Truth) -> TraceScore:
    """Compare one answer with the truth."""
    # A detector of others may declare epochs without a period: that is no answer.
    answered = found.verdict != Verdict.NONE and math.isfinite(found.period_s) and found.period_s > 0
    period = found.period_s if answered else None
    if not truth.periods_s:
        return TraceScore(trace_id, truth.shape, str(found.verdict), period, None, None, found.confidence)
    apes = [1.0 if period is None else abs(period - p) / p for p in truth.periods_s]
    ape = min(apes)
    nearest = truth.periods_s[apes.index(ape)]
    errors: tuple[float, ...] = ()
    recall = None
    places = np.append(found.epoch_starts_s, found.epoch_ends_s)
    if period is not None and ape <= _RIGHT and truth.epoch_starts_s and places.size:
        distance = np.abs(places[:, None] - np.array(truth.epoch_starts_s)).min(axis=0)
        errors = tuple(distance.tolist())
        tolerance = max(_BOUNDARY_TOLERANCE_S, _BOUNDARY_TOLERANCE * nearest)
        recall = float((distance <= tolerance).mean())
    return TraceScore(trace_id, truth.shape, str(found.verdict), period, nearest, ape, found.confidence, errors, recall)


def evaluate(
    traces: Iterable[tuple[str, Trace]], truth: Mapping[str, Truth], detector: Callable[[Trace], EpochDetection]
) -> EpochEvaluation:
    """Run a detector over traces and score it.

    Args:
        traces: (trace id, trace) pairs.
        truth: Truth by trace id.
        detector: For example ``functools.partial(detect, mode="paper")``.

    Raises:
        TruthError: A trace has no truth.
    """
    scores = []
    for trace_id, trace in traces:
        if trace_id not in truth:
            raise TruthError(f"no truth for trace {trace_id!r}; add it, or leave the trace out", field=trace_id)
        scores.append(score(trace_id, detector(trace), truth[trace_id]))
    return EpochEvaluation.of(scores)


def summarise(scores: Iterable[TraceScore]) -> Summary:
    """Summarise scores."""
    every = list(scores)
    positives = [s for s in every if s.ape is not None]
    negatives = [s for s in every if s.ape is None]
    apes = np.array([s.ape for s in positives], dtype=np.float64)
    declared = np.array([s.period_s is not None for s in positives], dtype=bool)
    boundaries = np.array([e for s in positives for e in s.boundary_errors_s])
    recalls = [s.boundaries_found for s in positives if s.boundaries_found is not None]
    return Summary(
        traces=len(every),
        positives=len(positives),
        negatives=len(negatives),
        declared=_mean(declared),
        mape=_mean(apes),
        median_ape=float(np.median(apes)) if apes.size else None,
        within_5pct=_mean(apes <= _NEAR),
        within_10pct=_mean(apes <= _RIGHT),
        mape_declared=_mean(apes[declared]),
        false_positive_rate=_mean(np.array([s.verdict == Verdict.EPOCHS for s in negatives])),
        boundary_error_median_s=float(np.median(boundaries)) if boundaries.size else None,
        boundary_recall=_mean(np.array(recalls)),
    )


def reliability(
    scores: Iterable[TraceScore], edges: tuple[float, ...] = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
) -> tuple[ReliabilityBin, ...]:
    """Of the answers of each range of confidence, the share within 10 %; an answer to a negative is a wrong one.

    A confidence of 0 is that of a detector which states none; it belongs to no range.
    """
    answers = [(s.confidence, s.ape is not None and s.ape <= _RIGHT) for s in scores if _is_answer(s)]
    bins = []
    for low, high in itertools.pairwise(edges):
        inside = [(c, right) for c, right in answers if low <= c < high or (c == high == edges[-1])]
        if inside:
            confidence, right = np.array(inside, dtype=np.float64).T
            bins.append(ReliabilityBin(low, high, len(inside), float(confidence.mean()), float(right.mean())))
    return tuple(bins)


def _is_answer(score_: TraceScore) -> bool:
    # A short cycle in a negative is its iteration, which is what the verdict says.
    states_it = score_.period_s is not None and score_.confidence > 0
    return states_it and not (score_.ape is None and score_.verdict == Verdict.SHORT_CYCLE)


def _mean(values: np.ndarray[tuple[int], np.dtype[np.generic]]) -> float | None:
    return float(values.astype(np.float64).mean()) if values.size else None
