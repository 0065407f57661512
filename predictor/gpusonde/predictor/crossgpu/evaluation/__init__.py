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
    add_noise,
    evaluate,
    make_default_predictor,
    make_paper_predictor,
    make_prior_predictor,
    predict_pairs,
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
    "add_noise",
    "evaluate",
    "evaluate_timings",
    "is_timings_table",
    "make_default_predictor",
    "make_paper_predictor",
    "make_prior_predictor",
    "predict_pairs",
    "read_timings",
]
