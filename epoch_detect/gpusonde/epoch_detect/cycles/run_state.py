"""What a GPU does in a trace as a whole: it trains, serves, idles, or does something else.

Work in cycles is not always training: a rollout and an update take turns, a program runs by the clock, data are
processed in rounds. What tells them apart is how the load is spread over the time, and how even its levels are; fitted
trees weigh it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from gpusonde.epoch_detect.cycles.events import Load
from gpusonde.epoch_detect.cycles.scorer import Scorer
from gpusonde.epoch_detect.cycles.signal import median, percentiles
from gpusonde.epoch_detect.cycles.tree import JudgedLevel
from gpusonde.epoch_detect.result import RunState
from gpusonde.epoch_detect.ticks import Ticks, active_range, fastest_first
from gpusonde.telemetry import FloatArray, Unit, metric

RUN_STATES = tuple(RunState)
_NOTHING = float("nan")
_LOW, _HIGH = 0.1, 0.6  # of the high level
_WORKS = 0.25
_LEAST_CONFIDENCE = 0.5  # of a level that counts
_WIDE = 30  # cells of a smoothing
_HARDLY_USED = 0.1  # mean share of use: below it a GPU on which nothing is to be read idles
_PERHAPS = 0.6


@dataclass(frozen=True)
class Use:
    """How much a GPU is used, in its own units; NaN where no metric tells.

    Attributes:
        active_share: Share of the trace from the first to the last work.
        mean: Of the metric of use that reacts fastest, 0..1.
        high: Its usual high level.
        low_watts_share: Low power over high power.
        middle_watts: Median power between both, 0..1.
    """

    active_share: float
    mean: float
    high: float
    low_watts_share: float
    middle_watts: float

    @classmethod
    def measure(cls, ticks: Ticks) -> Use:
        """Measure it over all ticks, those before and after the work, too."""
        if len(ticks) < 2:
            return cls(_NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING)
        first, stop = active_range(ticks)
        time_us = ticks.time_us
        share = (time_us[max(first, stop - 1)] - time_us[first]) / (time_us[-1] - time_us[0]) if stop > first else 0.0
        mean = high = low_share = middle = _NOTHING
        for index in fastest_first(ticks.names):
            row, unit = ticks.values[index], metric(ticks.names[index]).unit
            row = row[np.isfinite(row)].astype(np.float64)
            if not row.size:
                continue
            low_value, middle_value, high_value = percentiles(row, (2, 50, 97))
            if unit is Unit.RATIO and np.isnan(mean):
                mean, high = float(row.mean()), float(high_value)
            if unit is Unit.WATTS and high_value > 0:
                low_share = float(low_value / high_value)
                middle = float((middle_value - low_value) / max(high_value - low_value, 1e-9))
        return cls(float(share), mean, high, low_share, middle)


@dataclass(frozen=True, kw_only=True)
class RunFeatures:
    """How a load is spread over the time, and what its levels are; NaN where a feature does not apply."""

    log_span_s: float
    log_cells: float
    metrics: float
    active_share: float
    use: float
    high_use: float
    low_watts_share: float
    middle_watts: float
    mean: float
    deviation: float
    low: float  # share of the time in which the load is low
    middle: float
    high: float
    rough: float  # mean change from cell to cell, in units of the deviation
    wide: float  # deviation of the smoothed load, likewise
    log_bursts: float
    log_work_s: float
    log_gap_s: float
    even_work: float  # relative spread of the logarithm of the lengths
    even_gaps: float
    likeliest: float  # confidence of the levels
    second: float
    levels: float
    log_period_s: float  # of the likeliest level
    log_count: float
    spread: float
    steadiness: float
    explained: float
    mark_share: float
    depth: float
    log_longest_count: float
    log_shortest_cells: float
    template: float
    template_score: float
    bursting_traffic: float  # in the tenth of the cells with most of it, as a share of all


RUN_FEATURES = tuple(field.name for field in fields(RunFeatures))


def describe_run(job: Load, use: Use, levels: Sequence[JudgedLevel]) -> FloatArray:
    """Describe a run for the scorers of its state; shape (features,).

    Args:
        job: What the GPU does.
        use: How much it is used.
        levels: The judged levels.
    """
    load = job.values.mean(axis=0)
    deviation = float(load.std()) + 1e-6
    width = min(_WIDE, load.size)
    parts = load[: load.size // width * width].reshape(-1, width).mean(axis=1)
    works = load > _WORKS
    edges = np.flatnonzero(np.diff(np.concatenate([[0], works.astype(np.int8), [0]]))).reshape(-1, 2)
    work_s, gap_s = np.diff(edges)[:, 0] * job.step_s, (edges[1:, 0] - edges[:-1, 1]) * job.step_s
    ranked = sorted(levels, key=lambda x: -x.confidence)
    best = ranked[0].level.features if ranked else None
    likely = [x.level.features for x in ranked if x.confidence >= _LEAST_CONFIDENCE]
    templates = [x.level.features for x in ranked if np.isfinite(x.level.features.template_score)]
    traffic = np.sort(job.traffic.sum(axis=0)) if len(job.traffic) else np.empty(0)
    row = RunFeatures(
        log_span_s=np.log(len(job) * job.step_s),
        log_cells=np.log(len(job)),
        metrics=len(job.names),
        active_share=use.active_share,
        use=use.mean,
        high_use=use.high,
        low_watts_share=use.low_watts_share,
        middle_watts=use.middle_watts,
        mean=float(load.mean()),
        deviation=deviation,
        low=float((load < _LOW).mean()),
        middle=float(((load >= _LOW) & (load < _HIGH)).mean()),
        high=float((load >= _HIGH).mean()),
        rough=float(np.abs(np.diff(load)).mean()) / deviation,
        wide=float(parts.std()) / deviation,
        log_bursts=np.log(max(len(edges), 1)),
        log_work_s=np.log(median(work_s)) if work_s.size else _NOTHING,
        log_gap_s=np.log(median(gap_s)) if gap_s.size else _NOTHING,
        even_work=float(np.log(work_s).std()) if work_s.size > 2 else _NOTHING,
        even_gaps=float(np.log(gap_s).std()) if gap_s.size > 2 else _NOTHING,
        likeliest=ranked[0].confidence if ranked else 0.0,
        second=ranked[1].confidence if len(ranked) > 1 else 0.0,
        levels=len(likely),
        log_period_s=np.log(ranked[0].level.period_s) if ranked else _NOTHING,
        log_count=best.log_cycles if best else _NOTHING,
        spread=best.spread if best else _NOTHING,
        steadiness=best.steadiness if best else _NOTHING,
        explained=best.explained if best else _NOTHING,
        mark_share=best.width_share if best else _NOTHING,
        depth=best.depth if best else _NOTHING,
        log_longest_count=min((x.log_cycles for x in likely), default=_NOTHING),
        log_shortest_cells=min((x.log_cells for x in likely), default=_NOTHING),
        template=max((x.template for x in templates), default=0.0),
        template_score=max((x.template_score for x in templates), default=_NOTHING),
        bursting_traffic=float(traffic[-(-traffic.size * 9 // 10) :].sum() / max(traffic.sum(), 1e-9))
        if traffic.size
        else _NOTHING,
    )
    return np.array([getattr(row, name) for name in RUN_FEATURES], dtype=np.float64)


def judge_run(features: FloatArray) -> FloatArray:
    """Probability of each of :data:`RUN_STATES`, from what :func:`describe_run` gives."""
    each = [Scorer.shipped(f"run_{s}", RUN_FEATURES).probability(features[None])[0] for s in RUN_STATES]
    likely = np.maximum(np.array(each), 1e-3)
    return np.asarray(likely / likely.sum())


def judge_unread(use: Use) -> tuple[RunState, float]:
    """Say what a run is in which nothing is to be read: hardly any work, or no change in it."""
    unused = not use.active_share > 0 or use.mean < _HARDLY_USED
    return (RunState.IDLE, 1 - _HARDLY_USED) if unused else (RunState.OTHER, _PERHAPS)
