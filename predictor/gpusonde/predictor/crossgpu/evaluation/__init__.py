"""Evaluation: protocols that hold out what a user's query would not have been seen with, and the errors on it."""

from __future__ import annotations

from gpusonde.predictor.crossgpu.evaluation.scores import (
    LatencyEvaluation,
    LatencyProtocol,
    PairErrors,
    Predictor,
    Scores,
    Split,
    Task,
    default_predictor,
    evaluate,
    paper_predictor,
    predict_pairs,
    prior_predictor,
    with_noise,
)
from gpusonde.predictor.crossgpu.evaluation.timings import Timing, evaluate_timings, is_timings_table, read_timings

__all__ = [
    "LatencyEvaluation",
    "LatencyProtocol",
    "PairErrors",
    "Predictor",
    "Scores",
    "Split",
    "Task",
    "Timing",
    "default_predictor",
    "evaluate",
    "evaluate_timings",
    "is_timings_table",
    "paper_predictor",
    "predict_pairs",
    "prior_predictor",
    "read_timings",
    "with_noise",
]
