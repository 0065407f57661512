"""What the processes of a job do beside its GPUs, as evidence for what its cycles are.

The workers of a training's data loader live as long as what they load for: from one birth to the next, an epoch, or
with ``persistent_workers`` a fold. Those of an evaluation live as long as it, a part of the time between two of them.
What is written between two births is a checkpoint. Where a fold or trial begins, memory falls, or the data are read
anew in one go.

So births, writes and the rest are series of times, each with an interval; a level of the tree with the interval of a
series gets its name, and a series that no level has becomes one. Counts are per second: what repeats faster is not
seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpusonde.epoch_detect.cycles.holes import TimeMap
from gpusonde.epoch_detect.cycles.roles import JUDGED_ROLES, NamedLevel
from gpusonde.epoch_detect.cycles.signal import median
from gpusonde.epoch_detect.cycles.tree import MOST_LEVELS
from gpusonde.epoch_detect.result import Cycle, CycleRole
from gpusonde.telemetry import FloatArray

COLUMNS = ("forks", "exits", "lifetime_s", "read_bytes", "written_bytes", "processor_s")

_LEAST_TIMES = 3
_SAME = 0.14  # of the logarithm of a period
_CLOSE = 0.05
_RENEWED = 0.5  # share of the interval between their births that workers of a training live
_ALIKE = 1.8  # ratio of lives of one kind of worker
_REGULAR = 0.25  # median deviation of the intervals from the usual one, beyond which it is no cycle
_LEAST_WRITTEN_BYTES = 1e6
_BURST = 10.0  # times the usual bytes of a look
_READ_ANEW = 3.0  # times what a look at which workers are born reads
_FALL = 0.2  # of the usual memory
_MOST_EVENTS = 1000  # births and ends that are looked at, the last ones
_MOST_IN_LOOK = 1e6
_MOST_BIRTHS = 6  # of workers alive at once that are told apart
_UNSURE = 0.05  # of lives that were added up
_MOST_LOOKS = 100_000
_LEAST_LEVEL = 5.0  # looks in a cycle that becomes a level by its series alone
_ADDED = 0.6  # confidence of such a level
_SURE, _LIKELY = 0.95, 0.9
_APART_LOOKS = 2.5
_MOST_IN_FOLD = 100.0
_FOLDED = 0.75  # confidence that what repeats in a fold without a mark is its epoch


@dataclass(frozen=True)
class Marks:
    """What the processes of a job did, look by look, and how much memory its GPUs held.

    Attributes:
        time_s: Shape (looks,), increasing, on the axis of the ticks.
        values: Shape (6, looks), what came since the look before, in the order of :data:`COLUMNS`; NaN where unknown.
        memory_time_s: Shape (n,), on the same axis.
        memory_bytes: Shape (n,), framebuffer in use.
    """

    time_s: FloatArray
    values: FloatArray
    memory_time_s: FloatArray
    memory_bytes: FloatArray

    def with_memory(self, time_s: FloatArray, memory_bytes: FloatArray) -> Marks:
        """Return them with the memory of the GPUs."""
        return replace(self, memory_time_s=time_s, memory_bytes=memory_bytes)

    def shifted(self, by_s: float) -> Marks:
        """Return them on a time axis whose origin lies ``by_s`` seconds earlier."""
        return replace(self, time_s=self.time_s + by_s, memory_time_s=self.memory_time_s + by_s)

    def column(self, name: str) -> FloatArray:
        """Return one column, shape (looks,), with zeros where it is unknown."""
        values: FloatArray = np.nan_to_num(self.values[COLUMNS.index(name)], nan=0.0, posinf=0.0, neginf=0.0)
        return values


@dataclass(frozen=True)
class Series:
    """Times at which something happened, again and again.

    Attributes:
        times_s: Shape (n,), increasing.
        interval_s: The usual time between two; NaN for fewer than three.
    """

    times_s: FloatArray
    interval_s: float

    @classmethod
    def of(cls, times_s: Sequence[float]) -> Series:
        """Make one; without an interval where there are too few or too uneven ones."""
        times = np.unique(np.asarray(times_s, dtype=np.float64))
        if times.size < _LEAST_TIMES:
            return cls(times, float("nan"))
        lengths = np.diff(times)
        usual = median(lengths)
        if median(np.abs(lengths - usual)) > _REGULAR * usual:
            return cls(times, float("nan"))
        # Looks round each length to a second, and one may be missing: their mean is better than any of them.
        whole = np.round(lengths / usual)
        near = (whole >= 1) & (np.abs(lengths / usual - whole) <= _REGULAR)
        return cls(times, float(lengths[near].sum() / whole[near].sum()))

    def __bool__(self) -> bool:
        return bool(np.isfinite(self.interval_s))

    def agrees(self, period_s: float) -> bool:
        """Whether a cycle of this period is that of the series."""
        return bool(self) and abs(np.log(period_s / self.interval_s)) < _SAME


_NOTHING = Series(np.empty(0), float("nan"))


@dataclass(frozen=True)
class _Workers:
    """Processes that were born in one look and ended in one."""

    born_s: float
    lived_s: float


@dataclass(frozen=True)
class Evidence:
    """What the marks say happens again and again.

    Attributes:
        renewed: Births of workers that live until the next such birth.
        folds: Whether these are of a fold or trial: those of an evaluation in it are born later and end with them.
        evaluations: Births of workers that live for a part of the time between two of them.
        writes: Bursts of bytes written.
        anew: Where the data are read again in one go, or memory falls.
    """

    renewed: Series
    folds: bool
    evaluations: Series
    writes: Series
    anew: Series

    @classmethod
    def find(cls, marks: Marks) -> Evidence:
        """Find it; nothing where there are too few marks."""
        marks = _tidy(marks)
        least_s = _APART_LOOKS * _look_s(marks)
        renewed, folds, evaluations = _sort_workers(_follow_workers(marks), least_s)
        found = (renewed, evaluations, _find_writes(marks), _find_beginnings(marks))
        renewed, evaluations, writes, anew = (s if s and s.interval_s > least_s else _NOTHING for s in found)
        return cls(renewed, folds, evaluations, writes, anew)

    def roles(self) -> list[tuple[Series, CycleRole, float]]:
        """Return which role the level of each series has, and how sure that is; of one period the first counts."""
        told: list[tuple[Series, CycleRole, float]] = []
        if self.renewed:
            is_trial = self.folds or self.anew.agrees(self.renewed.interval_s)
            told.append(
                (self.renewed, CycleRole.TRIAL, _LIKELY) if is_trial else (self.renewed, CycleRole.EPOCH, _SURE)
            )
        if self.anew and (not self.renewed or self.anew.interval_s > self.renewed.interval_s):
            told.append((self.anew, CycleRole.TRIAL, _LIKELY))
        if self.evaluations:
            told.append((self.evaluations, CycleRole.EVALUATION, _LIKELY))
        if self.writes:
            told.append((self.writes, CycleRole.CHECKPOINT, _LIKELY))
        return [
            (series, role, sure)
            for i, (series, role, sure) in enumerate(told)
            if not any(before.agrees(series.interval_s) for before, _, _ in told[:i])
        ]


def name_by_marks(levels: Sequence[NamedLevel], marks: Marks | None, time_map: TimeMap) -> list[NamedLevel]:
    """Let marks say what levels are; levels that no mark speaks of keep what the samples say of them.

    Args:
        levels: Shortest first, with what the samples say.
        marks: What is known beside the samples, on the ticks' own axis; None or too few of them change nothing.
        time_map: From the time of the levels to that of the ticks.

    Returns:
        The levels, shortest first, at most five: a series of marks that none of them has may be one of its own.
    """
    if marks is None:
        return list(levels)
    marks = replace(marks, time_s=time_map.shorten(marks.time_s), memory_time_s=time_map.shorten(marks.memory_time_s))
    evidence = Evidence.find(marks)
    roles = evidence.roles()
    if not roles:
        return list(levels)
    named: dict[int, tuple[CycleRole, float]] = {}
    found = list(levels)
    for series, role, sure in roles:
        off = [abs(np.log(level.cycle.period_s / series.interval_s)) for level in found]
        nearest = int(np.argmin(off)) if off else -1
        added = _add_level(series, role, marks)
        if nearest >= 0 and off[nearest] < _SAME:
            if nearest not in named:
                named[nearest] = role, sure
                # The marks measure better than a level that is hardly one.
                if added is not None and off[nearest] > _CLOSE and found[nearest].cycle.confidence < _ADDED:
                    found[nearest] = added
        elif added is not None:
            found.append(added)
            named[len(found) - 1] = role, sure
    told = {role for role, _ in named.values()}
    in_fold = _find_in_fold(found, named) if evidence.folds else None
    judged = [
        _told_role(level, *named[i], told) if i in named else _left_over(level, told, is_in_fold=i == in_fold)
        for i, level in enumerate(found)
    ]
    if len(judged) > MOST_LEVELS:
        judged = sorted(judged, key=lambda level: -level.cycle.confidence)[:MOST_LEVELS]
    return sorted(judged, key=lambda level: level.cycle.period_s)


def _told_role(level: NamedLevel, role: CycleRole, sure: float, told: set[CycleRole]) -> NamedLevel:
    """Give a level the role that marks tell; that they repeat as it does makes it likelier to be real."""
    roles = np.where([known == role for known in JUDGED_ROLES], sure, np.minimum(level.roles, 1.0 - sure))
    # Without an epoch the best guess is what measures progress best.
    guess = max(level.guess, sure) if role == CycleRole.EPOCH else level.guess
    if role != CycleRole.EPOCH and CycleRole.EPOCH in told:
        guess = min(guess, 1.0 - sure)
    confidence = 1.0 - (1.0 - level.cycle.confidence) * (1.0 - sure)
    cycle = replace(level.cycle, confidence=max(level.cycle.confidence, min(confidence, _SURE)))
    return replace(level, cycle=cycle, roles=roles, guess=guess, measured=True, surest=max(level.surest, sure))


def _find_in_fold(levels: Sequence[NamedLevel], named: dict[int, tuple[CycleRole, float]]) -> int | None:
    """Return the likeliest level inside of a fold that no mark speaks of; None where an epoch is known.

    Workers that live through a fold leave no marks of its epochs.
    """
    if any(role == CycleRole.EPOCH for role, _ in named.values()):
        return None
    fold_s = min((levels[i].cycle.period_s for i, (role, _) in named.items() if role == CycleRole.TRIAL), default=0.0)
    inside = [i for i, x in enumerate(levels) if i not in named and 1.5 < fold_s / x.cycle.period_s < _MOST_IN_FOLD]
    return max(inside, key=lambda i: levels[i].cycle.confidence, default=None)


def _left_over(level: NamedLevel, told: set[CycleRole], *, is_in_fold: bool) -> NamedLevel:
    """Take from a level that no mark speaks of the roles that others have by their marks."""
    roles = level.roles.copy()
    for role in told & {CycleRole.EPOCH, CycleRole.TRIAL}:
        roles[JUDGED_ROLES.index(role)] *= 1.0 - _SURE
    guess = level.guess * (1.0 - _SURE) if CycleRole.EPOCH in told else level.guess
    if not is_in_fold:
        return replace(level, roles=roles, guess=guess)
    epoch = JUDGED_ROLES.index(CycleRole.EPOCH)
    roles[epoch] = max(float(roles[epoch]), _FOLDED)
    return replace(level, roles=roles, guess=max(guess, _FOLDED), surest=max(level.surest, _FOLDED))


def _add_level(series: Series, role: CycleRole, marks: Marks) -> NamedLevel | None:
    """Make a level of a series that no level has; None where the looks are too far apart to tell."""
    look_s = _look_s(marks)
    lengths = np.diff(series.times_s)
    if series.interval_s < _LEAST_LEVEL * look_s or lengths.size < _LEAST_TIMES:
        return None
    half = 1.96 * float(lengths.std()) / np.sqrt(lengths.size) + look_s / lengths.size
    half = min(half, 0.5 * series.interval_s)
    period = series.interval_s
    cycle = Cycle(period, period - half, period + half, int(lengths.size), series.times_s, _ADDED)
    return NamedLevel(cycle, np.zeros(len(JUDGED_ROLES)), _ADDED if role == CycleRole.EPOCH else 0.0)


def _tidy(marks: Marks) -> Marks:
    """Leave out looks whose time is not after that of the one before, or unknown."""
    count = min(marks.time_s.size, marks.values.shape[1])
    first = max(0, count - _MOST_LOOKS)
    time_s, values = marks.time_s[first:count], marks.values[:, first:count]
    count -= first
    finite = np.isfinite(time_s)
    latest = np.maximum.accumulate(np.where(finite, time_s, -np.inf)) if count else time_s
    kept = finite & (time_s > np.concatenate([[-np.inf], latest[:-1]])) if count else finite
    return replace(marks, time_s=time_s[kept], values=values[:, kept])


def _follow_workers(marks: Marks) -> list[_Workers]:
    """Say of processes that ended when they were born.

    Of those that ended in one look only the sum of their lives is known: they are those of the living whose lives add
    up to it, or some of them and others that were born before anybody looked.
    """
    alive: list[tuple[float, int]] = []
    ended: list[_Workers] = []
    forks, exits = (np.clip(np.floor(marks.column(name)), 0, _MOST_IN_LOOK) for name in ("forks", "exits"))
    lifetime = np.maximum(marks.column("lifetime_s"), 0.0)
    for i in np.flatnonzero((forks > 0) | (exits > 0))[-_MOST_EVENTS:]:
        now = float(marks.time_s[i])
        if forks[i] > 0:
            alive = [*alive, (now, int(forks[i]))][-_MOST_BIRTHS:]
        if exits[i] > 0:
            chosen, unknown_s = _choose_ended(alive, int(exits[i]), float(lifetime[i]), now, marks)
            births = [born for born, _ in chosen] + ([] if unknown_s is None else [now - unknown_s])
            ended += [_Workers(born, now - born) for born in births]
            alive = [birth for birth in alive if birth not in chosen]
    return ended


def _choose_ended(
    alive: Sequence[tuple[float, int]], count: int, lifetime_s: float, now_s: float, marks: Marks
) -> tuple[list[tuple[float, int]], float | None]:
    """Choose the births, whole ones, whose lives add up to what is known, and how long the others have lived.

    Where nothing comes out, all are others.
    """
    look_s, first_s = _look_s(marks), float(marks.time_s[0])
    most = _APART_LOOKS * look_s + _UNSURE * lifetime_s
    best, choice = 3.0 * most, list[tuple[float, int]]()
    unknown: float | None = lifetime_s / count
    for picked in itertools.product((0, 1), repeat=len(alive)):
        chosen = [birth for birth, is_in in zip(alive, picked, strict=True) if is_in]
        others = count - sum(number for _, number in chosen)
        # A birth is noticed half a look after it, as an end is; few are born and end between two looks.
        rest_s = lifetime_s - sum((now_s - born + 0.5 * look_s) * number for born, number in chosen)
        off = 0.5 * look_s * sum(number for born, number in chosen if born == now_s)
        if others == 0:
            off += abs(rest_s)
        elif others > 0 and rest_s / others >= now_s - first_s - look_s:
            off += most
        else:
            continue
        if off < best and (others or off < most):
            best, choice, unknown = off, chosen, rest_s / others if others else None
    return choice, unknown


def _sort_workers(workers: Sequence[_Workers], least_s: float) -> tuple[Series, bool, Series]:
    """Return births of a training's workers, whether these are of folds, and births of an evaluation's."""
    kinds: list[list[_Workers]] = []
    for one in sorted(workers, key=lambda w: w.lived_s):
        if kinds and one.lived_s + 1.0 <= _ALIKE * (kinds[-1][0].lived_s + 1.0):
            kinds[-1].append(one)
        else:
            kinds.append([one])
    renewed, evaluations, folds = _NOTHING, _NOTHING, False
    for kind in kinds:
        births = _once_each(sorted(w.born_s for w in kind))
        series = Series.of(births)
        if not series:
            continue
        lived = median(np.array([w.lived_s for w in kind]))
        if lived >= _RENEWED * series.interval_s:
            renewed = renewed or series
            folds = folds or _ends_together(kind) > least_s
        elif not evaluations or series.interval_s < evaluations.interval_s:
            evaluations = series
    return renewed, folds, evaluations


def _ends_together(workers: Sequence[_Workers]) -> float:
    """Return the usual seconds between the first and the last birth of those that end in one look."""
    births: dict[float, list[float]] = {}
    for one in workers:
        births.setdefault(round(one.born_s + one.lived_s, 3), []).append(one.born_s)
    return float(np.median([max(born) - min(born) for born in births.values()]))


def _once_each(times_s: Sequence[float]) -> list[float]:
    """Leave out times that follow another one sooner than half of the longest usual step."""
    if len(times_s) < 2:
        return list(times_s)
    steps = np.diff(times_s)
    apart = 0.5 * float(np.percentile(steps, 75))
    kept = [times_s[0]]
    for at in times_s[1:]:
        if at - kept[-1] > apart:
            kept.append(at)
    return kept


def _find_writes(marks: Marks) -> Series:
    """Find bursts of bytes written."""
    written = marks.column("written_bytes")
    return Series.of(_bursts(marks, written, max(_LEAST_WRITTEN_BYTES, _BURST * _usual(written))))


def _find_beginnings(marks: Marks) -> Series:
    """Find where memory falls, or data are read in one go that are more than what workers read when they are born."""
    falls = _find_falls(marks)
    if falls:
        return falls
    read = _around(marks.column("read_bytes"))
    forks = _around(marks.column("forks") + marks.column("exits"))
    quiet = _usual(read[forks == 0])
    by_each = _usual(((read - quiet) / np.maximum(forks, 1))[forks > 0])
    least = np.maximum(_LEAST_WRITTEN_BYTES + _BURST * quiet, _READ_ANEW * by_each * (forks + 1))
    return Series.of(_bursts(marks, read - least, 0.0))


def _around(values: FloatArray) -> FloatArray:
    """Add to the value of each look those of the looks beside it."""
    return np.convolve(values, np.ones(3), mode="same") if values.size >= 3 else values


def _find_falls(marks: Marks) -> Series:
    """Find where the memory of the GPUs falls by a good part of what is usual; it comes back by what follows."""
    memory = marks.memory_bytes
    known = np.isfinite(memory) & np.isfinite(marks.memory_time_s)
    memory, time_s = memory[known], marks.memory_time_s[known]
    if memory.size < _LEAST_TIMES:
        return _NOTHING
    low = memory < (1.0 - _FALL) * median(memory)
    begins = np.flatnonzero(low[1:] & ~low[:-1]) + 1
    return Series.of([float(t) for t in time_s[begins]])


def _bursts(marks: Marks, values: FloatArray, least: float) -> list[float]:
    """Return when values rise to at least so much; looks beside one another are one burst."""
    high = values >= least
    begins = np.flatnonzero(high & ~np.concatenate([[False], high[:-1]]))
    times = marks.time_s[begins]
    if times.size < 2:
        return [float(t) for t in times]
    apart = np.concatenate([[True], np.diff(times) > _APART_LOOKS * _look_s(marks)])
    return [float(t) for t in times[apart]]


def _look_s(marks: Marks) -> float:
    return float(median(np.diff(marks.time_s))) if marks.time_s.size > 1 else 1.0


def _usual(values: FloatArray) -> float:
    return float(np.median(values)) if values.size else 0.0
