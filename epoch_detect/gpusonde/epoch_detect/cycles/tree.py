"""The tree of cycles of a job: readings of several kinds merged into levels, judged, and laid through the run.

Readings of nearly one period (``events``, ``lines``, and the hypotheses of template matching) are one level. What
speaks for and against it are its :class:`LevelFeatures`; a fitted scorer makes them the probability that the job has
such a cycle. The level's period is that of the reading that measures best, and its starts are phase-locked.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from gpusonde.epoch_detect.cycles.events import LEAST_EVIDENCE, CycleReading, Load, read_events
from gpusonde.epoch_detect.cycles.folds import Autocorrelation, fold_cycles
from gpusonde.epoch_detect.cycles.lines import PhaseLock, cut_stretches, lock_phase, place_cycles, read_lines
from gpusonde.epoch_detect.cycles.scorer import Scorer
from gpusonde.epoch_detect.result import Cycle, EpochDetection
from gpusonde.telemetry import FloatArray

MOST_LEVELS = 5
LEAST_TOLD = 0.1  # confidence from which on a level is told
_SAME = 0.05  # of the logarithm of the period: such readings are one level
_DISTINCT = 0.1  # levels that are closer than this are not told side by side
# Evidence that makes a reading of one kind as strong as one of another.
_STRONG = {"clock": 6.0, "comb": 8.0, "line": 8.0, "template": 0.5}
_SOURCES = tuple(_STRONG)
_CUTS = 4  # kinds of events whose stretches are searched for lines
_LEAST_CELLS = 4
_LEAST_CYCLES = 1.8
_LOCKED = 12  # levels whose lines are phase-locked
_AS_GOOD = 0.9
_CLOCK_MEASURES = 2.0  # nats from which on it measures better than the others
_COMB_MEASURES = 8  # teeth from which on a comb measures better than a line
_LEAST_RATIO = 1.5  # of the periods of parent and child
_AS_LIKELY = 0.5
_STEADY = 0.8
_SURE = 0.3
_LINE_ERROR = 0.3  # of the resolution of the longest stretch
_OF_USUAL_LENGTH = 0.3
LEAST_OF_OWN = 6  # cycles for which a level has held when it is confirmed
_LEAST_OF_PARENT = 2  # the same of its parent
_HARMONICS = 8
_WHOLE = 0.04


@dataclass(frozen=True, kw_only=True)
class LevelFeatures:
    """What is known of one level; NaN where a feature does not apply."""

    log_cells: float  # of a cycle
    log_cycles: float  # in the busy span
    clock: float  # logarithm of 1 and the evidence in nats
    comb: float
    line: float
    template: float  # probability that it is the epoch
    template_score: float  # how alike its cycles are
    chosen: float  # by the template matching, as the epoch
    clock_share: float  # of the strongest of the trace
    comb_share: float
    line_share: float
    template_share: float
    sources: float
    strength: float
    rank: float
    depth: float
    log_width_cells: float
    width_share: float  # of the period
    spread: float
    cover: float  # share of the training time in intervals of the clock
    seen_share: float  # of the marks
    agreement: float
    steadiness: float
    explained: float
    explained_beyond_multiple: float  # what it explains more than the best integer multiple of it: that is a harmonic
    explained_beyond_part: float
    best_multiple: float  # strength of the strongest level that holds it a whole number of times, less its own
    best_part: float
    best_longer: float
    best_shorter: float
    multiple_ratio: float
    part_ratio: float
    nested_in_marks: float  # share of the marks of the strongest longer level that are marks of this one
    devices: float
    ahead: float  # likeness of the load a period later, as in ``folds``
    ahead_rise: float
    ahead_beyond_part: float
    ahead_of_multiple: float
    folded: float  # and of its cycles
    folded_own: float
    left_next: float
    left_later: float


LEVEL_FEATURES = tuple(field.name for field in fields(LevelFeatures))


@dataclass(frozen=True)
class Level:
    """A candidate for a level of the tree.

    Attributes:
        readings: Of it, the strongest first.
        lock: Its line, phase-locked; None where there is none.
        features: What is known of it.
    """

    readings: tuple[CycleReading, ...]
    lock: PhaseLock | None
    features: LevelFeatures

    @property
    def best(self) -> CycleReading:
        """The reading that measures the period best: the clock, a comb of many teeth, a line, a template."""
        return _best_measure(self.readings)

    @property
    def period_s(self) -> float:
        """Seconds from start to start."""
        return self.best.period_s

    def of(self, source: str) -> CycleReading | None:
        """Return its strongest reading of a kind; None if there is none."""
        return _strongest(self.readings, source)


def find_levels(
    job: Load, devices: Sequence[Load], templates: Sequence[CycleReading]
) -> Generator[None, None, list[Level]]:
    """Find every level that some reading speaks for, with a pause after each part of the work.

    Args:
        job: What the job does.
        devices: What each of its GPUs does, on the same grid.
        templates: Readings of the template matching, the chosen one first.
    """
    found = read_events(job)
    yield
    cuts = [np.array([[0, len(job)]], dtype=np.int64)]
    for group in _merge(found)[:_CUTS]:
        stretches = cut_stretches(job, group[0].marks_s)
        if len(stretches) > 1:
            cuts.append(stretches)
    for stretches in cuts:
        found += read_lines(devices, stretches)
        yield
    least, most = _LEAST_CELLS * job.step_s, len(job) * job.step_s / _LEAST_CYCLES
    groups = _merge([r for r in (*found, *templates) if least <= r.period_s <= most])
    yield
    locks: list[PhaseLock | None] = [None] * len(groups)
    for number, group in enumerate(groups[:_LOCKED]):
        locks[number] = _lock(job, group)
        yield
    chosen = templates[0] if templates else None
    features = _describe(job, groups, locks, chosen, len(devices))
    return [Level(tuple(g), lock, f) for g, lock, f in zip(groups, locks, features, strict=True)]


def _strength(reading: CycleReading) -> float:
    return reading.evidence / _STRONG[reading.source]


def _merge(readings: Sequence[CycleReading]) -> list[list[CycleReading]]:
    """Group readings of nearly one period, the strongest first, as the groups are."""
    groups: list[list[CycleReading]] = []
    for reading in sorted(readings, key=lambda r: -_strength(r)):
        for group in groups:
            if abs(np.log(reading.period_s / group[0].period_s)) < _SAME:
                group.append(reading)
                break
        else:
            groups.append([reading])
    return groups


def _strongest(group: Sequence[CycleReading], source: str) -> CycleReading | None:
    return next((r for r in group if r.source == source), None)


def _best_measure(group: Sequence[CycleReading]) -> CycleReading:
    for source in _SOURCES:
        reading = _strongest(group, source)
        measures = (source != "comb" or reading.count >= _COMB_MEASURES) if reading is not None else False
        if reading is not None and measures and (source != "clock" or reading.evidence >= _CLOCK_MEASURES):
            return reading
    return group[0]


def _lock(job: Load, group: Sequence[CycleReading]) -> PhaseLock | None:
    """Phase-lock the line of a level, through the whole run where that goes as well as between events."""
    line = _strongest(group, "line")
    if line is None:
        return None
    period = line.period_s / job.step_s
    lock = lock_phase(job, line.stretches, period)
    if len(line.stretches) > 1:
        whole = lock_phase(job, np.array([[0, len(job)]], dtype=np.int64), period)
        if whole is not None and (lock is None or whole.explained >= _AS_GOOD * lock.explained):
            return whole
    return lock


def _describe(
    job: Load,
    groups: list[list[CycleReading]],
    locks: list[PhaseLock | None],
    chosen: CycleReading | None,
    devices: int,
) -> list[LevelFeatures]:
    evidence = np.array(
        [[max((r.evidence for r in g if r.source == s), default=0.0) for s in _SOURCES] for g in groups]
    ).reshape(-1, len(_SOURCES))
    share = evidence / np.maximum(evidence.max(axis=0, initial=1e-9), 1e-9)
    period = np.array([_best_measure(g).period_s for g in groups])
    strength = np.array([_strength(g[0]) for g in groups])
    correlation = Autocorrelation(job)
    explained = np.array([lock.explained if lock else np.nan for lock in locks])
    found = []
    for i, group in enumerate(groups):
        ratio = period / period[i]
        multiple, part = _whole(ratio), _whole(1 / ratio)
        marked = next((r for r in group if len(r.marks_s)), None)
        measure, lock = _best_measure(group), locks[i]
        ahead, folded = correlation.look_ahead(measure.period_s), fold_cycles(job, measure)
        clock, comb = _strongest(group, "clock"), _strongest(group, "comb")
        counted, template = clock or comb, _strongest(group, "template")
        found.append(
            LevelFeatures(
                log_cells=np.log(period[i] / job.step_s),
                log_cycles=np.log(len(job) * job.step_s / period[i]),
                clock=np.log1p(max(0.0, clock.evidence - LEAST_EVIDENCE)) if clock else 0.0,
                comb=np.log1p(max(0.0, evidence[i, 1])),
                line=np.log1p(max(0.0, evidence[i, 2])),
                template=evidence[i, 3],
                template_score=template.score if template else np.nan,
                chosen=float(chosen is not None and any(r is chosen for r in group)),
                clock_share=share[i, 0],
                comb_share=share[i, 1],
                line_share=share[i, 2],
                template_share=share[i, 3],
                sources=len({r.source for r in group}),
                strength=strength[i],
                rank=i,
                depth=marked.depth if marked else np.nan,
                log_width_cells=np.log(max(marked.width_s / job.step_s, 1.0)) if marked else np.nan,
                width_share=marked.width_s / measure.period_s if marked else np.nan,
                spread=clock.spread if clock else np.nan,
                cover=clock.score if clock else np.nan,
                seen_share=min(2.0, counted.seen / max(counted.count, 1.0)) if counted else np.nan,
                agreement=lock.agreement if lock else np.nan,
                steadiness=lock.steadiness if lock else np.nan,
                explained=explained[i],
                explained_beyond_multiple=explained[i] - _largest(explained, multiple),
                explained_beyond_part=explained[i] - _largest(explained, part),
                best_multiple=_largest(strength, multiple) - strength[i],
                best_part=_largest(strength, part) - strength[i],
                best_longer=_largest(strength, ratio > 1.5) - strength[i],
                best_shorter=_largest(strength, ratio < 0.67) - strength[i],
                multiple_ratio=_ratio_of_strongest(ratio, strength, multiple),
                part_ratio=_ratio_of_strongest(1 / ratio, strength, part),
                nested_in_marks=_shared_marks(marked, groups, ratio),
                devices=devices,
                ahead=ahead.alike,
                ahead_rise=ahead.rise,
                ahead_beyond_part=ahead.beyond_part,
                ahead_of_multiple=ahead.of_multiple,
                folded=folded.explained,
                folded_own=folded.own,
                left_next=folded.next_like,
                left_later=folded.later_like,
            )
        )
    return found


@dataclass(frozen=True)
class JudgedLevel:
    """A level with the probability that it is real."""

    level: Level
    confidence: float


def judge_levels(levels: Sequence[Level], scorer: Scorer | None = None) -> list[JudgedLevel]:
    """Say how likely each level is real, and keep at most five of different period; likeliest first."""
    if not levels:
        return []
    scorer = scorer or Scorer.shipped("levels", LEVEL_FEATURES)
    table = np.array([[getattr(level.features, name) for name in LEVEL_FEATURES] for level in levels])
    return keep_likeliest(levels, scorer.probability(table))


def keep_likeliest(levels: Sequence[Level], confidence: FloatArray) -> list[JudgedLevel]:
    """Keep at most five levels of different period that are likely enough to be told; likeliest first.

    Of levels that are too near to be told side by side the likeliest is told: the others are the same cycle, measured a
    little off, and make it likelier.
    """
    kept: list[int] = []
    doubt: list[float] = []
    for i in np.argsort(-confidence, kind="stable"):
        off = [abs(np.log(levels[i].period_s / levels[k].period_s)) for k in kept]
        near = next((at for at, each in enumerate(off) if each < _DISTINCT), None)
        if near is None:
            kept.append(int(i))
            doubt.append(1.0 - float(confidence[i]))
        else:
            doubt[near] *= 1.0 - float(confidence[i])
    judged = [JudgedLevel(levels[i], 1.0 - d) for i, d in zip(kept, doubt, strict=True) if 1.0 - d >= LEAST_TOLD]
    return sorted(judged, key=lambda j: -j.confidence)[:MOST_LEVELS]


def place_level(level: Level, job: Load, *, ended: bool = True) -> Cycle:
    """Lay a level through the run: its starts, how many whole cycles there are, and the interval of its period.

    Times are seconds of the activity; confidence, role and parent are left open. While the run goes on, its end is none
    of a cycle: what no mark has ended is not counted.
    """
    best, lock, step_s = level.best, level.lock, job.step_s
    starts, whole = best.starts_s, max(0, best.starts_s.size - 1)
    if best.source == "line":
        starts, whole = place_cycles(job, lock) if lock else (starts, round(best.count))
        longest = float((best.stretches[:, 1] - best.stretches[:, 0]).max()) * step_s
        half = _LINE_ERROR * best.period_s**2 / (longest * np.sqrt(len(best.stretches)))
    elif best.source == "comb":
        whole += int(starts.size > 0 and job.end_s - starts[-1] >= (1 - _WHOLE) * best.period_s)
        seen = max(best.seen, 1)
        half = 1.96 * np.sqrt(12.0) * best.spread * best.period_s / seen**1.5 + step_s / seen
    else:
        lengths = np.diff(starts)
        lengths = lengths[np.abs(lengths / best.period_s - 1) < _OF_USUAL_LENGTH]
        spread = float(lengths.std()) if lengths.size > 1 else 0.1 * best.period_s
        half = 1.96 * spread / np.sqrt(max(lengths.size, 1)) + step_s / max(lengths.size, 1)
    if not ended and len(best.marks_s):
        starts = starts[starts <= best.marks_s[-1, 1] + 0.5 * step_s]
        whole = max(0, starts.size - 1)
    # Every event of a clock is a mark; where the waveform itself repeats, it shows the cycles without one, too.
    if best.source != "line" and lock is not None and lock.steadiness >= _STEADY:
        found, more = place_cycles(job, lock)
        starts, whole = (found, more) if more > whole else (starts, whole)
    half = float(min(half, 0.5 * best.period_s))
    return Cycle(best.period_s, best.period_s - half, best.period_s + half, whole, starts, 0.0)


def nest(cycles: Iterable[Cycle]) -> tuple[Cycle, ...]:
    """Name the parent of each level, shortest first: the shortest longer one that is about as likely to be real.

    A level is confirmed when it has held for six of its own cycles or two of its parent's.
    """
    levels = tuple(cycles)
    nested = []
    for i, level in enumerate(levels):
        longer = (
            j
            for j in range(i + 1, len(levels))
            if levels[j].period_s > _LEAST_RATIO * level.period_s
            and levels[j].confidence >= min(_SURE, _AS_LIKELY * level.confidence)
        )
        parent = next(longer, None)
        held = level.count >= LEAST_OF_OWN or (parent is not None and levels[parent].count >= _LEAST_OF_PARENT)
        nested.append(replace(level, parent=parent, confirmed=held))
    return tuple(nested)


def with_epochs(known: EpochDetection, found: EpochDetection) -> EpochDetection:
    """Return what was found with the tree that was known, its told level kept up to date by the epochs.

    Args:
        known: With the tree.
        found: The same epochs and later ones.
    """
    cycles, level = list(known.cycles), known.level
    if level is not None:
        cycles[level] = replace(
            cycles[level],
            period_s=found.period_s,
            period_low_s=found.period_low_s,
            period_high_s=found.period_high_s,
            count=found.epoch_starts_s.size,
            starts_s=np.append(found.epoch_starts_s, found.end_s),
        )
    return replace(
        known,
        verdict=found.verdict,
        reason=found.reason,
        period_s=found.period_s,
        period_low_s=found.period_low_s,
        period_high_s=found.period_high_s,
        epoch_starts_s=found.epoch_starts_s,
        epoch_ends_s=found.epoch_ends_s,
        cycles=nest(cycles),
    )


def level_of(period_s: float, cycles: Sequence[Cycle]) -> int | None:
    """Index of the level with a period; None if there is none."""
    if not cycles or not period_s > 0:
        return None
    off = [abs(np.log(c.period_s / period_s)) for c in cycles]
    nearest = int(np.argmin(off))
    return nearest if off[nearest] < _DISTINCT else None


def _whole(ratio: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    nearest = np.round(ratio)
    off = np.abs(ratio - nearest)
    return np.asarray((ratio > 1.5) & (nearest <= _HARMONICS) & (off < _WHOLE * np.maximum(1.0, nearest / 2)))


def _largest(values: FloatArray, where: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
    known = values[where & np.isfinite(values)]
    return float(known.max()) if known.size else float("nan")


def _ratio_of_strongest(
    ratio: FloatArray, strength: FloatArray, where: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> float:
    return float(ratio[where][np.argmax(strength[where])]) if where.any() else float("nan")


def _shared_marks(marked: CycleReading | None, groups: list[list[CycleReading]], ratio: FloatArray) -> float:
    """Share of the marks of the strongest longer level at which this one has a mark, too."""
    if marked is None or not len(marked.marks_s):
        return float("nan")
    for group, times in zip(groups, ratio, strict=True):
        longer = next((r for r in group if len(r.marks_s)), None) if times > 1.5 else None
        if longer is not None:
            middle = longer.marks_s.mean(axis=1)
            own = marked.marks_s.mean(axis=1)
            near = np.abs(middle[:, None] - own).min(axis=1) <= 0.5 * (longer.width_s + marked.width_s)
            return float(near.mean())
    return float("nan")
