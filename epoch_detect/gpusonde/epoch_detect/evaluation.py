"""Scoring of epoch detection against known epochs, as ``gpusonde evaluate epochs`` reports it.

``read_truth`` reads what is known to be true of traces. A trace's answer is the ``period_s`` of a verdict ``epochs``
or ``short_cycle``. A positive without an answer counts with an error of 100 % and as a miss. The false positive rate is
the share of negatives with the verdict ``epochs``.

Of the tree of cycles, the levels with a confidence of 0.1 or more count as told, at most five. A level is real if it is
within 10 % of a true one. Where the truth says only one period, nothing is known of the other levels that are told.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpusonde.epoch_detect.cycles.tree import LEAST_TOLD, MOST_LEVELS
from gpusonde.epoch_detect.result import Cycle, CycleRole, EpochDetection, Verdict
from gpusonde.errors import DocumentError
from gpusonde.telemetry import Trace

_LARGEST_BYTES = 64 << 20
# Of a manifest's words on how far a trace's truth can be trusted; "low" and "none" are not scored.
_TRUSTED = ("exact", "high", "medium")
# Cycles outside of the regular window that are a regime of their own: this many in a row, and this even.
_REGIME_CYCLES = 3
_REGIME_VARIATION = 0.05


@dataclass(frozen=True)
class TrueLevel:
    """A true level of the tree of cycles.

    Attributes:
        periods_s: Right periods: one, or several where the tempo changes.
        roles: Right names of it: an evaluation after each epoch is both; ``unknown`` for a cycle without such a name.
        visible: Whether the trace can show it; one that it cannot is real, but need not be told.
        starts_s: Shape (cycles,), in the trace's own time; may be empty.
    """

    periods_s: tuple[float, ...]
    roles: tuple[CycleRole, ...]
    visible: bool = True
    starts_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class Truth:
    """What is true of a trace.

    Attributes:
        periods_s: Right periods: one, or several where the trace has several regimes; none for a negative.
        epoch_starts_s: Shape (epochs,), in the trace's own time; may be empty where only the period is known.
        shape: Kind of trace, to group by.
        levels: True levels, also those that are not visible; None where only ``periods_s`` are known.
        levels_complete: Whether these are all; otherwise nothing is known of what is told besides.
    """

    periods_s: tuple[float, ...]
    epoch_starts_s: tuple[float, ...] = ()
    shape: str = ""
    levels: tuple[TrueLevel, ...] | None = None
    levels_complete: bool = True


@dataclass(frozen=True)
class TruthFile:
    """A truth file.

    Attributes:
        truth: Truth by trace id (or, in a manifest, by file).
        left_out: Entries that cannot be scored, and why.
    """

    truth: Mapping[str, Truth]
    left_out: Mapping[str, str]


def read_truth(path: str | Path) -> TruthFile:
    """Read a truth file, or the manifest of a folder of traces.

    A truth file is a JSON object: trace id -> ``period_s`` (seconds; null for a trace without epochs) and, where known,
    ``regimes_s`` (more periods that are right), ``epoch_starts_s``, ``shape`` and ``levels``: the levels of the tree of
    cycles (all of them unless ``levels_complete`` is false), each an object of ``period_s`` and, where known,
    ``regimes_s``, ``roles``, ``visible`` (false for what the trace cannot show) and ``starts_s``.

    A manifest is a JSON list of objects with ``file``, ``period_s``, ``trust`` (how far this can be trusted),
    ``epoch_or_cycle_starts_s`` and ``regular_window`` (start and end, in seconds, of the stretch that ``period_s``
    describes). Starts outside of the window do not count, but a period that the trace keeps there for three cycles and
    more is right as well. Entries whose trust is not exact, high or medium, or that have no period, are left out.

    Raises:
        DocumentError: The file is missing or not of these forms.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
        content = None if len(data) > _LARGEST_BYTES else json.loads(data.decode("utf-8"))
    except OSError as error:
        raise DocumentError("", f"{error.strerror or error}; give the truth file of the traces", path) from error
    except json.JSONDecodeError as error:
        raise DocumentError("", f"line {error.lineno}: not JSON ({error.msg}); correct it", path) from error
    except (ValueError, RecursionError) as error:
        raise DocumentError("", f"not JSON in UTF-8 ({error}); save it as such", path) from error
    if len(data) > _LARGEST_BYTES:
        raise DocumentError("", f"larger than {_LARGEST_BYTES >> 20} MiB, which no truth is", path)
    if isinstance(content, list):
        return _manifest(path, content)
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise DocumentError("", f"expected an object of trace ids or the list of a manifest, got a {kind}", path)
    return TruthFile({name: _truth(_Entry(path, name, entry)) for name, entry in content.items()}, {})


class _Entry:
    """One entry of a truth file, whose faults name the file, the trace and the key."""

    def __init__(self, path: str | Path, name: str, values: object) -> None:
        self.path = path
        self.name = name
        if not isinstance(values, dict):
            raise DocumentError(name, "expected an object with period_s", path)
        self.values: dict[str, Any] = values

    def period(self) -> float | None:
        """The period in seconds; None for a trace without epochs."""
        if "period_s" not in self.values:
            raise self.fault("period_s", "is missing; give the seconds of an epoch, or null for no epochs")
        return None if self.values["period_s"] is None else self._duration("period_s", self.values["period_s"])

    def durations(self, key: str) -> tuple[float, ...]:
        """A list of periods in seconds; empty where the key is absent or null."""
        return tuple(self._duration(key, item) for item in self._list(key))

    def times(self, key: str) -> tuple[float, ...]:
        """A list of times in seconds; empty where the key is absent or null."""
        return tuple(self._number(key, item) for item in self._list(key))

    def text(self, key: str) -> str:
        """A text; empty where the key is absent or null."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise self.fault(key, f"is {value!r}; give a text")
        return value or ""

    def flag(self, key: str) -> bool:
        """Read a truth value; true where the key is absent."""
        value = self.values.get(key, True)
        if not isinstance(value, bool):
            raise self.fault(key, f"is {value!r}; give true or false")
        return value

    def roles(self) -> tuple[CycleRole, ...]:
        """Read the roles of a level; empty where the key is absent or null."""
        roles = self._list("roles")
        if unknown := [each for each in roles if each not in list(CycleRole)]:
            raise self.fault("roles", f"holds {unknown[0]!r}; choose from {', '.join(CycleRole)}")
        return tuple(CycleRole(each) for each in roles)

    def entries(self, key: str) -> tuple[_Entry, ...] | None:
        """Read a list of objects; None where the key is absent or null."""
        if self.values.get(key) is None:
            return None
        return tuple(_Entry(self.path, f"{self.name}.{key}.{i}", each) for i, each in enumerate(self._list(key)))

    def _list(self, key: str) -> list[Any]:
        value = self.values.get(key)
        if value is not None and not isinstance(value, list):
            raise self.fault(key, f"is {value!r}; give a list of seconds, or leave it out")
        return value or []

    def _duration(self, key: str, value: object) -> float:
        number = self._number(key, value)
        if number <= 0:
            raise self.fault(key, f"is {value!r}; a period is above zero")
        return number

    def _number(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.fault(key, f"holds {value!r}; give seconds as a number")
        return float(value)

    def fault(self, key: str, problem: str) -> DocumentError:
        """Make the error that names the file, the trace and the key."""
        return DocumentError(f"{self.name}.{key}", problem, self.path)


def _truth(entry: _Entry) -> Truth:
    period = entry.period()
    regimes = entry.durations("regimes_s")
    if period is None and regimes:
        raise entry.fault(
            "regimes_s", "has epochs, while period_s (null) says that there are none; correct one of them"
        )
    periods = () if period is None else (period, *regimes)
    levels = entry.entries("levels")
    told = None if levels is None else tuple(_true_level(each) for each in levels)
    complete = entry.flag("levels_complete")
    return Truth(periods, entry.times("epoch_starts_s"), entry.text("shape"), told, complete)


def _true_level(entry: _Entry) -> TrueLevel:
    period = entry.period()
    if period is None:
        raise entry.fault("period_s", "is null; leave the level out, or give its seconds")
    return TrueLevel(
        (period, *entry.durations("regimes_s")), entry.roles(), entry.flag("visible"), entry.times("starts_s")
    )


def _manifest(path: str | Path, rows: Sequence[object]) -> TruthFile:
    truth: dict[str, Truth] = {}
    left_out: dict[str, str] = {}
    for number, row in enumerate(rows):
        file = row.get("file") if isinstance(row, dict) else None
        if not isinstance(file, str) or not file:
            raise DocumentError(f"{number}.file", "is missing; name its trace file", path)
        if file in truth or file in left_out:
            raise DocumentError(file, "has two entries; remove one", path)
        entry = _Entry(path, file, row)
        trust = entry.text("trust")
        if not trust.startswith(_TRUSTED):
            left_out[file] = f"its truth is not trusted: {trust or 'nothing is said of it'}"
        elif entry.period() is None:
            left_out[file] = "its period is not known"
        else:
            truth[file] = _measured(entry)
    return TruthFile(truth, left_out)


def _measured(entry: _Entry) -> Truth:
    """The truth of an entry of a manifest: what lies inside of its regular window."""
    period = entry.period()
    starts = entry.times("epoch_or_cycle_starts_s")
    regimes = entry.durations("regimes_s")
    window = entry.times("regular_window")
    if window:
        if len(window) != 2 or window[0] >= window[1]:
            raise entry.fault("regular_window", f"is {list(window)}; give its start and its end in seconds")
        outside = [s for s in starts if s < window[0]], [s for s in starts if s > window[1]]
        regimes += tuple(other for run in outside if (other := _regime(run)) is not None)
        starts = tuple(s for s in starts if window[0] <= s <= window[1])
    shape = entry.text("shape") or entry.name.partition("_")[0]
    return Truth((*(() if period is None else (period,)), *regimes), starts, shape)


def _regime(starts: Sequence[float]) -> float | None:
    """The period that cycles outside of the regular window keep; None if they are few or uneven."""
    lengths = np.diff(starts)
    if lengths.size < _REGIME_CYCLES or lengths.min() <= 0 or lengths.std() > _REGIME_VARIATION * lengths.mean():
        return None
    return float(np.median(lengths))


_RIGHT = 0.10  # an answer with an error of at most this is right
_NEAR = 0.05
_BOUNDARY_TOLERANCE_S = 0.3
_BOUNDARY_TOLERANCE = 0.05  # of the period, where that is more
_CONFIDENT = 0.8  # of the best guess
_CONFIDENT_ROLE = 0.7
# Truths of other traces nearer to an own one than this say nothing of chance.
_OTHER = 0.25


@dataclass(frozen=True)
class LevelScore:
    """How one level that was told compares with the truth.

    Attributes:
        period_s: As told.
        confidence: That it is real, 0..1.
        role: Its name.
        role_confidence: That the name is right, 0..1.
        real: Whether a true level is within 10 % of it; None where that is not known.
        role_right: Whether the name is that of the nearest true level; None where the level is not real, or nothing is
            said of its true name.
    """

    period_s: float
    confidence: float
    role: str
    role_confidence: float
    real: bool | None
    role_right: bool | None


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
        levels: Levels told, shortest first.
        listed: Whether a right period is within 10 % of a level that was told; None for a negative.
        true_levels_s: Right periods of each visible true level (of the only known one, where not all are known).
        levels_listed: For each of them whether it is within 10 % of a level that was told.
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
    levels: tuple[LevelScore, ...] = ()
    listed: bool | None = None
    true_levels_s: tuple[tuple[float, ...], ...] = ()
    levels_listed: tuple[bool, ...] = ()


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
        confidently_wrong: Share of the positives with an answer of confidence 0.8 or more that is not within 10 %.
        listed_within_10pct: Share of the positives with a right period among the levels told.
        listed_chance: The same for the truths of other traces: how often a list is right by luck.
        levels_listed: Share of all visible true levels that are among the levels told.
        levels_told: Levels told per trace.
        roles_right: Share of the real levels that are called by their name; ``unknown`` is one for what has none.
        roles_confidently_wrong: Share of them whose name is told with 0.7 or more and is wrong.
        epoch_role_rate: Share of the negatives of which a level is called an epoch.
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
    confidently_wrong: float | None
    listed_within_10pct: float | None
    listed_chance: float | None
    levels_listed: float | None
    levels_told: float | None
    roles_right: float | None
    roles_confidently_wrong: float | None
    epoch_role_rate: float | None


@dataclass(frozen=True)
class ReliabilityBin:
    """Of the answers whose confidence lay in [low, high): how many there were, and the share that was right.

    Attributes:
        low: Range of confidence, from.
        high: To.
        answers: How many; a detector that states no confidence has none.
        mean_confidence: Of them.
        right: Share of them with an error of at most 0.1; an answer ``epochs`` to a negative is wrong.
    """

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
    def from_scores(cls, scores: Iterable[TraceScore]) -> EpochEvaluation:
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
    levels = score_levels(_told(found, period), truth)
    named = truth.levels if truth.levels is not None else (TrueLevel(truth.periods_s, ()),) if truth.periods_s else ()
    visible = tuple(level.periods_s for level in named if level.visible)
    common = TraceScore(
        trace_id, truth.shape, str(found.verdict), period, None, None, found.confidence, levels=levels,
        true_levels_s=visible, levels_listed=tuple(_lists(levels, periods) for periods in visible),
    )  # fmt: skip
    if not truth.periods_s:
        return common
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
    return replace(
        common, true_period_s=nearest, ape=ape, boundary_errors_s=errors, boundaries_found=recall,
        listed=_lists(levels, truth.periods_s),
    )  # fmt: skip


def _told(found: EpochDetection, period_s: float | None) -> Iterable[Cycle]:
    """Return the levels of an answer; of a detector without a tree, its answer as the only one."""
    if found.cycles or period_s is None:
        return found.cycles
    confidence = found.confidence or 1.0  # one that states none
    return (Cycle(period_s, math.nan, math.nan, len(found.epoch_starts_s), found.epoch_starts_s, confidence),)


def score_levels(levels: Iterable[Cycle], truth: Truth) -> tuple[LevelScore, ...]:
    """Compare the levels that count as told with the true ones: the likeliest five of confidence 0.1 or more."""
    likeliest = sorted((each for each in levels if each.confidence >= LEAST_TOLD), key=lambda each: -each.confidence)
    return tuple(_score_level(each, truth) for each in sorted(likeliest[:MOST_LEVELS], key=lambda each: each.period_s))


def _score_level(told: Cycle, truth: Truth) -> LevelScore:
    real: bool | None
    right = None
    if truth.levels is None:
        # Of what is not right, nothing is known; a negative may have cycles that are no epochs.
        real = True if _error(told.period_s, truth.periods_s) <= _RIGHT else None
    else:
        near = min(truth.levels, key=lambda level: _error(told.period_s, level.periods_s), default=None)
        real = near is not None and _error(told.period_s, near.periods_s) <= _RIGHT
        real = real or (False if truth.levels_complete else None)
        if near is not None and real and near.roles:
            right = told.role in near.roles
    return LevelScore(told.period_s, told.confidence, str(told.role), told.role_confidence, real, right)


def _error(period_s: float, periods_s: Iterable[float]) -> float:
    return min((abs(period_s - right) / right for right in periods_s), default=math.inf)


def _lists(levels: Iterable[LevelScore], periods_s: Iterable[float]) -> bool:
    periods = tuple(periods_s)
    return any(_error(level.period_s, periods) <= _RIGHT for level in levels)


def evaluate(
    traces: Iterable[tuple[str, Trace]], truth: Mapping[str, Truth], detector: Callable[[Trace], EpochDetection]
) -> EpochEvaluation:
    """Run a detector over traces and score it.

    Args:
        traces: (trace id, trace) pairs.
        truth: Truth by trace id.
        detector: For example ``functools.partial(detect, mode="paper")``.

    Raises:
        DocumentError: A trace has no truth.
    """
    scores = []
    for trace_id, trace in traces:
        if trace_id not in truth:
            raise DocumentError(trace_id, "no truth for this trace; add it, or leave the trace out")
        scores.append(score(trace_id, detector(trace), truth[trace_id]))
    return EpochEvaluation.from_scores(scores)


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
        confidently_wrong=_mean(
            declared & (apes > _RIGHT) & (np.array([s.confidence for s in positives]) >= _CONFIDENT)
        ),
        listed_within_10pct=_mean(np.array([s.listed for s in positives])),
        listed_chance=_chance(every),
        levels_listed=_mean(np.array([listed for s in every for listed in s.levels_listed])),
        levels_told=_mean(np.array([len(s.levels) for s in every])),
        **_summarise_roles(every, negatives),
    )


def _summarise_roles(every: Iterable[TraceScore], negatives: Iterable[TraceScore]) -> dict[str, float | None]:
    named = [level for s in every for level in s.levels if level.role_right is not None]
    wrong = [not level.role_right and level.role_confidence >= _CONFIDENT_ROLE for level in named]
    calls = [any(level.role == CycleRole.EPOCH for level in s.levels) for s in negatives]
    return {
        "roles_right": _mean(np.array([level.role_right for level in named])),
        "roles_confidently_wrong": _mean(np.array(wrong)),
        "epoch_role_rate": _mean(np.array(calls)),
    }


def _chance(scores: Sequence[TraceScore]) -> float | None:
    """How often a list holds the truth of another trace, among truths that are far from all of its own."""
    tried = hit = 0
    truths = [(i, s.true_period_s) for i, s in enumerate(scores) if s.true_period_s is not None]
    others, right = np.array([i for i, _ in truths], dtype=int), np.array([p for _, p in truths], dtype=np.float64)
    for number, each in enumerate(scores):
        own = [p for periods in each.true_levels_s for p in periods]
        own += [] if each.true_period_s is None else [each.true_period_s]
        far = others != number
        for period in own:
            far &= np.abs(np.log(right / period)) > _OTHER
        found = np.zeros(right.size, dtype=bool)
        for level in each.levels:
            found |= np.abs(level.period_s - right) <= _RIGHT * right
        tried, hit = tried + int(far.sum()), hit + int((found & far).sum())
    return hit / tried if tried else None


_EDGES = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
_LEVEL_EDGES = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


def reliability(scores: Iterable[TraceScore], edges: tuple[float, ...] = _EDGES) -> tuple[ReliabilityBin, ...]:
    """Of the answers of each range of confidence, the share within 10 %; an answer to a negative is a wrong one.

    A confidence of 0 is that of a detector which states none; it belongs to no range.
    """
    return _bins([(s.confidence, s.ape is not None and s.ape <= _RIGHT) for s in scores if _is_answer(s)], edges)


def level_reliability(
    scores: Iterable[TraceScore], edges: tuple[float, ...] = _LEVEL_EDGES
) -> tuple[ReliabilityBin, ...]:
    """Of the levels told with each range of confidence, the share that is real, where all true levels are known."""
    levels = [level for s in scores for level in s.levels]
    return _bins([(level.confidence, level.real) for level in levels if level.real is not None], edges)


def role_reliability(
    scores: Iterable[TraceScore], edges: tuple[float, ...] = (0.0, *_LEVEL_EDGES)
) -> tuple[ReliabilityBin, ...]:
    """Of the names told with each range of confidence, the share that is right; only of levels that are real."""
    levels = [level for s in scores for level in s.levels if level.role != CycleRole.UNKNOWN]
    return _bins([(level.role_confidence, level.role_right) for level in levels if level.role_right is not None], edges)


def _bins(answers: Sequence[tuple[float, bool]], edges: tuple[float, ...]) -> tuple[ReliabilityBin, ...]:
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
