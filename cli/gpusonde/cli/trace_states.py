"""What the job of trace files did, second by second, as a collector would have told it while it ran."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from gpusonde.epoch_detect import EpochDetection, EpochTracker
from gpusonde.epoch_detect.progress import (
    CAUSE_METRICS,
    JobState,
    PaceChange,
    PaceWatch,
    StateSpan,
    StateWatch,
    find_slow_device,
    slowdown_causes,
    slowdown_in_words,
)
from gpusonde.epoch_detect.ticks import holes
from gpusonde.telemetry import FloatArray, Trace

_STEPS = 10_000  # in which the states of a long trace are followed
_LEAST_STEP_S = 1.0
_MOST_EXPLAINED = 16  # slowdowns of one run, the first
_BEFORE_S, _AFTER_S = 600.0, 300.0  # of one, that are compared
_TRAINS = frozenset({JobState.TRAINING, JobState.SLOWER})


def on_one_axis(traces: Sequence[Trace]) -> list[Trace]:
    """The same traces with the origin of the first; those without one are taken to begin together, as they say."""
    origins = [trace.origin_unix_s for trace in traces]
    first = origins[0]
    if first is None or None in origins:
        return list(traces)
    return [
        replace(trace, time_s=trace.time_s + ((trace.origin_unix_s or first) - first), origin_unix_s=first)
        for trace in traces
    ]


def follow_states(gpus: Sequence[Trace], detection: EpochDetection) -> list[StateSpan]:
    """Say what a job did as a collector does: with what was known of its cycles by then, and why it became slower."""
    time_s, names, values = _in_cells(gpus)
    together = _mean(values)
    tracker, pace, watch = EpochTracker(names), PaceWatch(names), StateWatch(len(gpus))
    spans: dict[float, StateSpan] = {}
    slowdowns: dict[float, tuple[PaceChange, float]] = {}  # by their beginning, with their end so far
    step_s = max(_LEAST_STEP_S, (time_s[-1] - time_s[0]) / _STEPS)
    tick_s = gpus[0].interval_s if len(gpus[0]) > 1 else 0.0
    begin = 0
    while begin < time_s.size:
        stop = max(begin + 1, int(np.searchsorted(time_s, time_s[begin] + step_s - 0.5 * tick_s)))
        part, begin = slice(begin, stop), stop
        tracker.update(time_s[part], together[:, part])
        if tracker.detection is not None:
            pace.note_detection(tracker.detection)
            watch.note_detection(tracker.detection)
        pace.update(time_s[part], together[:, part])
        change = pace.change
        if change is not None:
            slowdowns[change.since_s] = change, float(time_s[stop - 1])
        watch.note_slower(change.reason if change else "", change.since_s if change else math.inf)
        watch.update(time_s[part], {name: values[:, row, part] for row, name in enumerate(names)})
        latest = watch.spans
        # A watch remembers its latest stretches only, and may give those another beginning.
        since = latest[0].start_s if latest else math.inf
        spans = {at: span for at, span in spans.items() if at < since} | {span.start_s: span for span in latest}
    seen = [part for span in spans.values() for part in _seen(span, time_s)]
    cycle_s = min((cycle.period_s for cycle in detection.cycles if cycle.confirmed), default=0.0)
    given = {name: values[:, row] for row, name in enumerate(names) if name in CAUSE_METRICS}
    called = [trace.gpu_uuid or f"GPU {number}" for number, trace in enumerate(gpus)]
    for change, end_s in list(slowdowns.values())[:_MOST_EXPLAINED]:
        since_s = change.since_s
        near = slice(*np.searchsorted(time_s, [since_s - _BEFORE_S, min(end_s, since_s + _AFTER_S)]))
        sides = {name: column[:, near] for name, column in given.items()}
        causes = slowdown_causes(called, time_s[near], sides, since_s)
        words = slowdown_in_words(causes, find_slow_device(called, time_s[near], sides, since_s, cycle_s=cycle_s))
        seen = [
            replace(span, reason=f"{change.reason}; {words}")
            if span.state == JobState.SLOWER and since_s <= span.end_s and span.start_s <= end_s
            else span
            for span in seen
        ]
    return seen


def training_spans(gpus: Sequence[Trace], detection: EpochDetection) -> FloatArray | None:
    """When the job trained, shape (spans, 2), on the axis of the first trace; None where it never did."""
    spans = [(s.start_s, s.end_s) for s in follow_states(on_one_axis(gpus), detection) if s.state in _TRAINS]
    return np.array(spans) if spans else None


def _seen(span: StateSpan, time_s: FloatArray) -> Iterator[StateSpan]:
    """The parts of a stretch that ticks speak for: it ends at a hole, and goes on behind it."""
    gaps = np.flatnonzero(holes(np.diff(time_s))).tolist() if time_s.size > 1 else []
    start_s = span.start_s
    for begin_s, end_s in ((float(time_s[at]), float(time_s[at + 1])) for at in gaps):
        if end_s <= start_s or begin_s >= span.end_s:
            continue
        if begin_s > start_s:
            yield replace(span, start_s=start_s, end_s=begin_s)
        start_s = end_s
    if start_s < span.end_s:
        yield replace(span, start_s=start_s)


def _in_cells(gpus: Sequence[Trace]) -> tuple[FloatArray, tuple[str, ...], FloatArray]:
    """Times, metrics and values, shape (gpus, metrics, cells), of all GPUs in cells as wide as a tick."""
    names = tuple(dict.fromkeys(name for trace in gpus for name in trace.metrics))
    width_s = gpus[0].interval_s if len(gpus[0]) > 1 else 1.0
    numbers = [np.round((trace.time_s - gpus[0].time_s[0]) / width_s).astype(np.int64) for trace in gpus]
    cells = np.unique(np.concatenate(numbers))
    time_s = gpus[0].time_s[0] + cells * width_s
    values = np.full((len(gpus), len(names), cells.size), np.nan)
    for number, (trace, at) in enumerate(zip(gpus, numbers, strict=True)):
        place = np.searchsorted(cells, at)
        if len(gpus) == 1 and place.size == cells.size:
            time_s = trace.time_s
        for row, name in enumerate(names):
            if name in trace.values:
                values[number, row, place] = trace.values[name]
    return time_s, names, values


def _mean(values: FloatArray) -> FloatArray:
    """Mean over the GPUs, shape (metrics, cells), NaN where none has a value."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    sums = np.where(known, values, 0.0).sum(axis=0)
    return np.where(count > 0, sums / np.maximum(count, 1), np.nan)
