"""What is found in the ticks of a job: the tree of its cycles, and its epochs.

The epochs are those of template matching (``detector``) unless the tree (``tree``, ``roles``) or what a user tells
refutes them. The tree is read from events (``events``), lines (``lines``) and the templates, from the mean of the GPUs
of the job and from each of them (``deviations``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from gpusonde.epoch_detect.cycles.candidates import EVERYTHING, Scope
from gpusonde.epoch_detect.cycles.detector import (
    LEAST_CYCLES,
    NO_TWO_WHOLE,
    Activity,
    CachedMatch,
    CycleHypotheses,
    choose_epochs,
    find_activity,
    find_hypotheses,
    measure_idle,
    place_hypothesis,
    tell_epochs,
)
from gpusonde.epoch_detect.cycles.deviations import find_deviations
from gpusonde.epoch_detect.cycles.events import CycleReading, Load, scale_load
from gpusonde.epoch_detect.cycles.holes import TimeMap
from gpusonde.epoch_detect.cycles.marks import Marks, name_by_marks
from gpusonde.epoch_detect.cycles.roles import (
    JUDGED_ROLES,
    NamedLevel,
    Settled,
    Told,
    describe_roles,
    name_levels,
    settle,
)
from gpusonde.epoch_detect.cycles.run_state import RUN_STATES, Use, describe_run, judge_run, judge_unread
from gpusonde.epoch_detect.cycles.scorer import Scorer
from gpusonde.epoch_detect.cycles.tree import Level, find_levels, judge_levels, level_of, nest, place_level
from gpusonde.epoch_detect.result import Cycle, CycleRole, Deviation, EpochDetection, RunState, Verdict
from gpusonde.epoch_detect.ticks import LEAST_TICKS, Ticks, active_range, average_ticks

_NOTHING_TOLD = Told()
_LIKELIER = 0.1  # by how much another level must be likelier than that of the template matching to be the best guess
_LEAST_GUESS = 0.65  # of a level where the template matching finds none
# What guesses was fitted to jobs of at most some hours, and takes so many cycles for none of epochs, however long.
_MANY, _NO_STEP_S, _SURE = 100, 30.0, 0.97
_TOLD = 0.98  # confidence of what follows from what was told
_SAME = 0.06  # of the logarithm of the period: such a hypothesis is the level

_Result = TypeVar("_Result")


def analyse(
    ticks: Ticks,
    *,
    devices: Mapping[str, Ticks] = MappingProxyType({}),
    ended: bool = True,
    told: Told = _NOTHING_TOLD,
    marks: Marks | None = None,
    scorer: Scorer | None = None,
) -> EpochDetection:
    """Find the cycles and the epochs in ticks; times are seconds on the ticks' own axis.

    Args and returns are those of :func:`analyse_in_steps`, without the match to cache.
    """
    return analyse_and_cache(ticks, devices=devices, ended=ended, told=told, marks=marks, scorer=scorer)[0]


def analyse_and_cache(
    ticks: Ticks,
    *,
    devices: Mapping[str, Ticks] = MappingProxyType({}),
    ended: bool = True,
    told: Told = _NOTHING_TOLD,
    marks: Marks | None = None,
    scorer: Scorer | None = None,
    scope: Scope = EVERYTHING,
) -> tuple[EpochDetection, CachedMatch | None]:
    """Do what :func:`analyse_in_steps` does, at once."""
    return complete(
        analyse_in_steps(
            ticks, devices=devices, ended=ended, told=told, marks=lambda: marks, scorer=scorer, scope=scope
        )
    )


def complete(steps: Generator[None, None, _Result]) -> _Result:
    """Do all of some work that pauses, at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _Result = end.value
            return result


def analyse_in_steps(
    ticks: Ticks,
    *,
    devices: Mapping[str, Ticks] = MappingProxyType({}),
    ended: bool = True,
    told: Told = _NOTHING_TOLD,
    marks: Callable[[], Marks | None] = lambda: None,
    scorer: Scorer | None = None,
    scope: Scope = EVERYTHING,
) -> Generator[None, None, tuple[EpochDetection, CachedMatch | None]]:
    """Find the cycles and the epochs in ticks, with a pause after each small part of the work.

    Args:
        ticks: Any number of ticks, idle around the activity included; of a job on several GPUs their mean.
        devices: The ticks of each GPU of such a job by its name, on the same axis.
        ended: Whether the run is over; while it is not, the end of the ticks does not end an epoch.
        told: What is known of the job; it refutes levels before one is chosen.
        marks: Returns what the job's processes did meanwhile, on the ticks' own axis; asked when levels are named.
        scorer: Judges the hypotheses; None for the shipped one.
        scope: Which periods to look for by template matching.

    Returns:
        The detection, ``none`` with the reason where there is nothing to find, times in seconds on the ticks' own
        axis; and the match that :func:`~gpusonde.epoch_detect.cycles.detector.extend_match` goes on from, if epochs
        were found.
    """
    activity = find_activity(ticks)
    use = Use.measure(ticks)
    if isinstance(activity, str):
        nothing = EpochDetection(Verdict.NONE, activity, metrics=ticks.names)
        if np.isfinite(ticks.values).any(axis=0).sum() < LEAST_TICKS:
            return nothing, None
        state = judge_unread(use)
        return replace(nothing, run_state=state[0], run_state_confidence=state[1]), None
    found = yield from find_hypotheses(activity, ended=ended, scope=scope)
    if isinstance(found, str):
        detection, cached = EpochDetection(Verdict.NONE, found, metrics=ticks.names), None
        templates: list[CycleReading] = []
    else:
        detection, cached, templates = yield from choose_epochs(found, ticks.names, scorer, ended=ended)
    job = scale_load(activity.active, activity.idle)
    loads = {} if job is None else _device_loads(devices, activity, job)
    yield
    named: list[NamedLevel] = []
    if job is None:
        run_state = judge_unread(use)
    else:
        named, run_state = yield from _find_levels(job, list(loads.values()), templates, use, ended=ended)
    span_s = 0.0 if job is None else len(job) * job.step_s
    settled = settle(name_by_marks(named, marks(), activity.time_map), told, ended=ended, span_s=span_s)
    cycles = nest(level.cycle for level in settled.levels)
    likeliest = level_of(detection.period_s, cycles)
    if likeliest is None and detection.verdict != Verdict.NONE and detection.hypotheses:
        # Pauses lengthen the mean epoch, not the usual one.
        likeliest = level_of(detection.hypotheses[0].period_s, cycles)
    likeliest_told = likeliest if detection.verdict != Verdict.NONE else None
    level = choose_level(settled, likeliest_told, trains=ended and run_state[0] == RunState.TRAINING)
    if level is None and (likeliest in settled.refuted or told.excludes(detection.epoch_starts_s.size)):
        detection, cached = _find_nothing(detection, told.refute(detection)), None
    elif level is not None and (level != likeliest or detection.verdict == Verdict.NONE):
        detection, cached = _place_level(detection, cycles[level], activity, found, ended=ended), None
        if told.excludes(detection.epoch_starts_s.size):
            detection, level = _find_nothing(detection, told.refute(detection)), None
    if level is not None:
        detection = replace(detection, confidence=_TOLD if level == settled.epoch else settled.levels[level].guess)
    compared_s = cycles[level].period_s if level is not None else max((c.period_s for c in cycles), default=math.nan)
    return replace(
        detection,
        cycles=tuple(replace(c, starts_s=activity.time_map.restore(c.starts_s)) for c in cycles),
        level=level,
        run_state=run_state[0],
        run_state_confidence=run_state[1],
        deviations=find_deviations(list(loads), list(loads.values()), compared_s),
        warnings=(*detection.warnings, *settled.warnings),
    ), cached


def name_anew(found: EpochDetection, marks: Marks) -> EpochDetection:
    """Name the levels of an answer by what marks say that came since; the best guess stays.

    Args:
        found: The answer.
        marks: On its time axis.
    """
    levels = [
        NamedLevel(
            replace(cycle, role=CycleRole.UNKNOWN, role_confidence=0.0),
            np.where([cycle.role == role for role in JUDGED_ROLES], cycle.role_confidence, 0.0),
            guess=1.0,  # which is chosen already
        )
        for cycle in found.cycles
    ]
    ends = np.array([0.0, 1.0])
    named = name_by_marks(levels, marks, TimeMap(ends, ends))
    cycles = nest(level.cycle for level in settle(named, _NOTHING_TOLD, ended=False, span_s=0.0).levels)
    level = None if found.level is None else level_of(found.cycles[found.level].period_s, cycles)
    return found if found.level is not None and level is None else replace(found, cycles=cycles, level=level)


def choose_level(settled: Settled, likeliest: int | None, *, trains: bool = False) -> int | None:
    """Choose the level that is the best guess of the epoch: that of the template matching unless something refutes it.

    Where none is likely, a training of many long cycles that are sure is told those: they count its progress.

    Args:
        settled: The levels.
        likeliest: That of the template matching; None if it gives none.
        trains: Whether the run is a training, and over.
    """
    if settled.epoch is not None:
        return settled.epoch
    guess = np.array([level.guess for level in settled.levels])
    guess[list(settled.refuted)] = 0.0
    if likeliest is None or likeliest in settled.refuted:
        best = int(np.argmax(guess)) if guess.size else None
        if best is not None and guess[best] >= _LEAST_GUESS:
            return best
        return next((i for i in reversed(range(guess.size)) if _counts_progress(settled, i)), None) if trains else None
    # What template matching chose is refuted by events or lines only, not by another template.
    guess[[not level.measured for level in settled.levels]] = 0.0
    guess[likeliest] = settled.levels[likeliest].guess + _LIKELIER
    return int(np.argmax(guess))


def _counts_progress(settled: Settled, index: int) -> bool:
    level, cycle = settled.levels[index], settled.levels[index].cycle
    if index in settled.refuted or not level.measured or cycle.role == CycleRole.STEP:
        return False
    return cycle.confidence >= _SURE and cycle.count >= _MANY and cycle.period_s >= _NO_STEP_S


def _find_levels(
    job: Load, devices: Sequence[Load], templates: list[CycleReading], use: Use, *, ended: bool
) -> Generator[None, None, tuple[list[NamedLevel], tuple[RunState, float]]]:
    """Find the levels of the tree of cycles, shortest first, in seconds of the activity, and what the run is."""
    working = [device for device in devices if device.values.any()]
    levels = yield from find_levels(job, working or [job], templates)
    judged = judge_levels(levels)
    yield
    judged.sort(key=lambda found: found.level.period_s)
    placed = [replace(place_level(j.level, job, ended=ended), confidence=j.confidence) for j in judged]
    yield
    states = judge_run(describe_run(job, use, judged))
    likeliest, training = int(np.argmax(states)), float(states[RUN_STATES.index(RunState.TRAINING)])
    named = name_levels(describe_roles(job, judged, training), placed, training=training)
    return named, (RUN_STATES[likeliest], float(states[likeliest]))


def compare_devices(devices: Mapping[str, Ticks], period_s: float) -> tuple[Deviation, ...]:
    """Name the GPUs of a job that do not do what the others do in a stretch of it.

    Args:
        devices: Ticks of each GPU by its name, on one time axis.
        period_s: Of the cycle to compare.
    """
    seen = {name: ticks for name, ticks in devices.items() if len(ticks) >= LEAST_TICKS}
    if len(seen) < 2:
        return ()
    activity = find_activity(average_ticks(list(seen.values())))
    job = None if isinstance(activity, str) else scale_load(activity.active, activity.idle)
    if isinstance(activity, str) or job is None:
        return ()
    loads = _device_loads(seen, activity, job)
    return find_deviations(list(loads), list(loads.values()), period_s)


def _device_loads(devices: Mapping[str, Ticks], activity: Activity, job: Load) -> dict[str, Load]:
    """Put what each GPU of a job does on the grid of the job, with nothing where it does nothing, if that is known."""
    grid_s = activity.time_map.restore(job.to_s(np.arange(len(job))))
    loads = {}
    for name, ticks in devices.items():
        if not np.isfinite(ticks.values).any():
            continue
        first, stop = active_range(ticks)
        load = scale_load(ticks.slice(first, stop), measure_idle(ticks)) if stop - first >= LEAST_TICKS else None
        if load is None:
            loads[name] = replace(job, values=np.zeros_like(job.values), traffic=np.zeros_like(job.traffic))
        else:
            own_s = ticks.time_us[first] * 1e-6 + load.start_s + load.step_s * np.arange(len(load))
            loads[name] = load.moved_to(job, own_s, grid_s)
    return loads


def _place_level(
    detection: EpochDetection, cycle: Cycle, activity: Activity, found: CycleHypotheses | str, *, ended: bool
) -> EpochDetection:
    """Tell the epochs of another level than the likeliest hypothesis has."""
    near = [] if isinstance(found, str) else [
        h for h in found.hypotheses if abs(np.log(h.usual_s / cycle.period_s)) < _SAME
    ]  # fmt: skip
    if near and not isinstance(found, str):
        chosen = max(near, key=lambda h: h.score)
        _, epochs = place_hypothesis(found, chosen, ended=ended)
        if epochs.regular.sum() >= LEAST_CYCLES:
            placed = tell_epochs(
                activity.active, activity.time_map, chosen.preprocessed.signal.step_s, epochs, cycle.confidence,
                detection.hypotheses,
            )  # fmt: skip
            if level_of(placed.period_s, [cycle]) is not None:
                return placed
    if cycle.starts_s.size < LEAST_CYCLES + 1:
        return _find_nothing(detection, NO_TWO_WHOLE)
    starts = activity.time_map.restore(cycle.starts_s)
    return replace(
        detection, verdict=Verdict.EPOCHS, reason=f"{starts.size - 1} cycles of {cycle.period_s:.4g} s repeat",
        period_s=cycle.period_s, period_low_s=cycle.period_low_s, period_high_s=cycle.period_high_s,
        confidence=cycle.confidence, epoch_starts_s=starts[:-1], epoch_ends_s=starts[1:],
    )  # fmt: skip


def _find_nothing(detection: EpochDetection, reason: str) -> EpochDetection:
    return EpochDetection(Verdict.NONE, reason, metrics=detection.metrics, hypotheses=detection.hypotheses)


def find_readings(ticks: Ticks, devices: Mapping[str, Ticks], *, ended: bool = True) -> tuple[Load, list[Level]] | None:
    """Find every level that some reading speaks for, to fit what judges them; None where there is nothing to read."""
    activity = find_activity(ticks)
    if isinstance(activity, str) or (job := scale_load(activity.active, activity.idle)) is None:
        return None
    found = complete(find_hypotheses(activity, ended=ended))
    templates = [] if isinstance(found, str) else complete(choose_epochs(found, ticks.names, None, ended=ended))[2]
    loads = [load for load in _device_loads(devices, activity, job).values() if load.values.any()]
    return job, complete(find_levels(job, loads or [job], templates))
