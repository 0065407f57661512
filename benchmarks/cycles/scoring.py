"""What the answers are worth: levels, roles, boundaries, and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from methods import Method
from problems import Problem

from gpusonde.epoch_detect import EpochDetection
from gpusonde.epoch_detect.cycles.tree import LEAST_TOLD
from gpusonde.epoch_detect.detect import round_to_wire_times
from gpusonde.epoch_detect.evaluation import Summary, TraceScore, level_reliability, score, summarise
from gpusonde.epoch_detect.ticks import Ticks, active_range, select_values
from gpusonde.telemetry import Trace

_RIGHT = 0.10
_SURE = 0.9
_COUNT_TOLERANCE = 2  # steps; a ramp and a tail may look like one each
_ETA_AT = (0.4, 0.7)  # shares of the job after which the time left is asked for


@dataclass(frozen=True)
class MethodScores:
    """One method on one set; shares are ratios, None where no problem of the set speaks to one.

    Attributes:
        summary: Scores of levels, roles and best guesses.
        real_when_sure: Share of the levels told with 0.9 or more that are real, where all true levels are known.
        median_error: Of the levels that are told, from the true period, as a share of it.
        boundary_error: Median distance of a true start from the nearest told one, as a share of the period.
        roles_right_told: Share of the real levels that are called by their name once the number of epochs is told.
        counts_right: Share of the jobs of which only the steps are counted with a level of that many cycles.
        eta_error: Median error of the time left, as a share of it, of the questions that got an answer.
        eta_within_10pct: Share of all questions for the time left that are answered to within a tenth of it.
        cpu_s_per_trace_hour: CPU seconds for an hour of one trace.
    """

    summary: Summary
    real_when_sure: float | None
    median_error: float | None
    boundary_error: float | None
    roles_right_told: float | None
    counts_right: float | None
    eta_error: float | None
    eta_within_10pct: float | None
    cpu_s_per_trace_hour: float


def evaluate_method(method: Method, problems: Iterable[Problem]) -> MethodScores:
    """Ask a method about every problem."""
    scores: list[TraceScore] = []
    told: list[TraceScore] = []
    errors: list[float] = []
    boundaries: list[float] = []
    counts: list[bool] = []
    etas: list[float | None] = []
    cpu_s = traced_s = 0.0
    for problem in problems:
        begin = time.process_time()
        found = method(problem.traces, None)
        cpu_s += time.process_time() - begin
        traced_s += sum(trace.duration_s for trace in problem.traces)
        if problem.steps is not None:
            counts.append(_counts(found, problem))
            continue
        scores.append(score(problem.name, found, problem.truth))
        errors += _errors(scores[-1])
        boundaries += _boundary_errors(found, problem)
        if problem.epochs is not None:
            told.append(score(problem.name, method(problem.traces, problem.epochs), problem.truth))
        etas += list(_eta_errors(method, problem))
    answered = [eta for eta in etas if eta is not None]
    return MethodScores(
        summarise(scores),
        next((each.right for each in level_reliability(scores, (_SURE, 1.0))), None),
        _median(errors),
        _median(boundaries),
        summarise(told).roles_right,
        float(np.mean(counts)) if counts else None,
        _median(answered),
        sum(eta <= _RIGHT for eta in answered) / len(etas) if etas else None,
        cpu_s / (traced_s / 3600) if traced_s else float("nan"),
    )


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def _errors(scored: TraceScore) -> Iterator[float]:
    """Errors of the true levels that are told."""
    for periods, listed in zip(scored.true_levels_s, scored.levels_listed, strict=True):
        if listed:
            yield min(abs(level.period_s - p) / p for level in scored.levels for p in periods)


def _boundary_errors(found: EpochDetection, problem: Problem) -> Iterator[float]:
    for level in problem.truth.levels or ():
        near = [
            cycle
            for cycle in found.cycles
            if cycle.confidence >= LEAST_TOLD
            and cycle.starts_s.size
            and abs(cycle.period_s / level.periods_s[0] - 1) <= _RIGHT
        ]
        if level.visible and level.starts_s and near:
            told = max(near, key=lambda cycle: cycle.confidence)
            distance = np.abs(told.starts_s[:, None] - np.array(level.starts_s)).min(axis=0)
            yield float(np.median(distance)) / level.periods_s[0]


def _counts(found: EpochDetection, problem: Problem) -> bool:
    """Whether a level that is told has as many cycles as the job has steps."""
    told = [cycle for cycle in found.cycles if cycle.confidence >= LEAST_TOLD]
    first_s, stop_s = _active(problem.traces[0])
    counts = [cycle.count or (stop_s - first_s) / cycle.period_s for cycle in told]
    if not found.cycles and found.epoch_starts_s.size:
        counts = [float(found.epoch_starts_s.size)]
    return any(abs(count - (problem.steps or 0)) <= _COUNT_TOLERANCE for count in counts)


def _eta_errors(method: Method, problem: Problem) -> Iterator[float | None]:
    """Errors of the time left after parts of a job whose number of cycles is told; None without an answer."""
    if problem.total is None:
        return
    # A user tells the number of epochs; where progress is measured by another level, this does not help.
    epochs = problem.epochs if problem.epochs and abs(problem.epochs - problem.total) <= 1 else None
    for share in _ETA_AT:
        cut_s = problem.begin_s + share * (problem.end_s - problem.begin_s)
        seen = [trace.window(float(trace.time_s[0]), cut_s) for trace in problem.traces]
        found = method(seen, epochs)
        period = found.period_s
        if not np.isfinite(period):
            yield None
            continue
        first_s = float(found.epoch_starts_s[0]) if found.epoch_starts_s.size else _active(seen[0])[0]
        left_s = max(0.0, problem.total * period - (cut_s - first_s))
        yield abs(left_s / (problem.end_s - cut_s) - 1)


def _active(trace: Trace) -> tuple[float, float]:
    """When the GPU begins to work and when it ends, in the trace's time."""
    names, values = select_values(trace, None)
    ticks = Ticks(round_to_wire_times(trace.time_s), values.astype(np.float32), names)
    first, stop = active_range(ticks)
    return float(trace.time_s[first]), float(trace.time_s[max(first, stop - 1)])
