"""Cycles read from events: stretches off the training level, and the time between them.

A trace is cut into training and everything else (evaluation, checkpoint, stall, reload), at several smoothings. Two
readings are made of the stretches, the events, of each class:

* the training clock: between two events of a class the job trains for as long as between any other two, whatever else
  happens there; time is counted in training seconds, so that stalls and extra work do not bend it;
* the event comb: the periodogram of the times of the events, which forgives missing and false ones where intervals do
  not, and finds identical narrow dips at even distance in a noisy plateau.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.ndimage import median_filter, uniform_filter1d

from gpusonde.epoch_detect.cycles.signal import median, percentiles, resample_ticks
from gpusonde.epoch_detect.ticks import Ticks
from gpusonde.telemetry import FloatArray, Unit, metric

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_SMOOTHINGS = (1, 3, 10, 30, 80)  # cells
_LONGEST_SMOOTHING = 1 / 20  # of the busy span
# (least deviation as a share of the range, least deviation over the usual one): clear stretches, and dips of 1 %.
_THRESHOLDS = ((0.06, 4.5), (0.004, 3.0))
_MOST_OFF = 0.6  # of the cells: beyond it the level is no training level
_LEAST_EVENTS = 3
_MOST_EVENTS = 1 / 6  # of the cells
_BUSY = 0.35  # of the range: the first and the last such cell bound the busy span
_LEAST_BUSY_CELLS = 24
_DRIFT = 0.35  # of the training level: where the running median is farther off, the job does something else
_VARIES = 0.01  # of the high level
# Gaps of the sorted logarithm that part two classes of events, and how many classes are made at most.
_GAPS = {"area": (0.12, 7), "depth": (0.1, 6), "length": (0.3, 4)}
_LONG_ENOUGH = 0.2  # of the longest interval of a class: a shorter one belongs to one event in two parts
_INLIER = 0.08
_FEW_EVENTS = 8  # up to which time between them counts in seconds, too
_MOST_MISSED = 3  # usual intervals in one in which marks are missing
_CHANCE = 0.2  # that an interval is within that by accident
_LEAST_OF_TEMPO = 4  # intervals of a second length
LEAST_EVIDENCE = -1.5  # nats: weak readings are for the scorer to judge
_LEAST_SHARE = 0.3
_LEAST_COVER = 0.2
_LEAST_PERIOD = 3  # cells
_LONGEST_FIRST = 1.5  # usual cycles
_EVEN = 0.03  # relative spread of the intervals up to which their mean is better than their median
_COMB_EVENTS = (5, 200)
_COMB_CLASSES = 9  # of each set
_COMB_CELLS = 16  # per event
_COMB_PADDING = 8
_COMB_PEAKS = 3
_COMB_FINE = 13
_SAME_EVENTS = 2  # parts of the mean distance of events to which two classes must agree to be one
_COMB_NEAR = 0.1  # of a period that an event may be off its tooth
_LEAST_TEETH = 4


@dataclass(frozen=True)
class Load:
    """What a job does, on a uniform grid from the first to the last cell in which it is busy.

    Attributes:
        start_s: Time of the left edge of the first cell, in seconds of the activity.
        step_s: Width of a cell in seconds.
        values: Shape (metrics, cells), 0 where the job idles and 1 at its high level.
        traffic: The same of traffic to host, storage and other GPUs: its bursts mark cycles, its level says little.
        names: Of the metrics, those of the traffic last.
    """

    start_s: float
    step_s: float
    values: FloatArray
    traffic: FloatArray
    names: tuple[str, ...]

    def __len__(self) -> int:
        return int(self.values.shape[1])

    @property
    def end_s(self) -> float:
        """Right edge of the last cell."""
        return self.start_s + len(self) * self.step_s

    def to_s(self, cells: FloatArray | IntArray) -> FloatArray:
        """Seconds of the activity of the left edges of cells."""
        return np.asarray(self.start_s + self.step_s * cells)

    def moved_to(self, job: Load, own_s: FloatArray, job_s: FloatArray) -> Load:
        """Put this load on the grid of another.

        Args:
            job: The other load.
            own_s: Shape (cells,), times of the cells of this one.
            job_s: Shape (cells of ``job``,), times of its cells on the same axis.
        """
        values = np.array([np.interp(job_s, own_s, row) for row in self.values])
        traffic = np.array([np.interp(job_s, own_s, row) for row in self.traffic]).reshape(-1, job_s.size)
        return Load(job.start_s, job.step_s, values, traffic, self.names)


@dataclass(frozen=True)
class CycleReading:
    """A candidate for a level of the tree.

    Attributes:
        source: ``clock``, ``comb``, ``line`` or ``template``.
        period_s: Seconds from start to start.
        evidence: In nats; for a template the probability that it is the epoch.
        count: Cycles in the busy span.
        marks_s: Shape (marks, 2), begin and end of the events that mark the cycles, in seconds of the activity; those
            of a comb are where its teeth are, whether an event is there or not.
        starts_s: Shape (starts,), where cycles start: training starts where a mark ends. Whole cycles are between them.
        depth: Usual deviation in them, as a share of the range.
        spread: Relative spread of the length of a cycle in training seconds, or of the events about their teeth.
        seen: Number of events seen.
        score: Of a clock the share of the training time that its intervals cover, of a template how alike its cycles
            are.
        stretches: Of a line: shape (stretches, 2), cells between which it was seen.
    """

    source: str
    period_s: float
    evidence: float
    count: float
    marks_s: FloatArray
    starts_s: FloatArray
    depth: float = 0.0
    spread: float = float("nan")
    seen: int = 0
    score: float = float("nan")
    stretches: IntArray = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))

    @property
    def width_s(self) -> float:
        """Usual length of its marks; 0 without."""
        return median(self.marks_s[:, 1] - self.marks_s[:, 0]) if len(self.marks_s) else 0.0


@dataclass(frozen=True)
class EventSet:
    """The stretches off the training level, at one smoothing and threshold.

    Attributes:
        begin: Shape (events,), first cell.
        end: Shape (events,), one past the last.
        area: Shape (events,), sum of the deviation.
        depth: Shape (events,), mean deviation in the metric in which it is largest.
        off: Shape (cells + 1,), number of cells off the training level before each cell.
    """

    begin: IntArray
    end: IntArray
    area: FloatArray
    depth: FloatArray
    off: IntArray

    @property
    def length(self) -> FloatArray:
        """Cells of each event."""
        return np.asarray(self.end - self.begin, dtype=np.float64)


def scale_load(active: Ticks, idle: FloatArray | None = None) -> Load | None:
    """Put ticks on a grid and scale each metric from idle to its high level; None if the GPU is hardly ever busy.

    Args:
        active: Ticks of the activity.
        idle: Shape (metrics,), values of an idle GPU, for metrics without a true zero; None if there are none.
    """
    step, grid = resample_ticks(active)
    rows: dict[str, FloatArray] = {}
    for index, (row, name) in enumerate(zip(grid, active.names, strict=True)):
        if not np.isfinite(row[0]):
            continue
        low, high = percentiles(row, (2, 97))
        if metric(name).unit in (Unit.RATIO, Unit.BYTES_PER_SECOND):
            low = min(0.0, low)
        elif idle is not None and np.isfinite(idle[index]):
            low = min(low, idle[index])
        if float(np.ptp(row)) > _VARIES * max(abs(high), 1e-9) and high > low:
            rows[name] = (row - low) / (high - low)
    traffic = [name for name in rows if metric(name).unit is Unit.BYTES_PER_SECOND]
    work = [name for name in rows if name not in traffic]
    if not work:
        work, traffic = traffic, []
    if not work:
        return None
    values = np.array([rows[name] for name in work])
    beside = np.array([rows[name] for name in traffic]).reshape(len(traffic), grid.shape[1])
    span = find_busy_span(values)
    if span is None:
        return None
    here = slice(*span)
    # Values describe the interval before their tick, and cells are centred on ticks.
    return Load((span[0] - 1) * step, step, values[:, here], beside[:, here], (*work, *traffic))


def find_busy_span(values: FloatArray) -> tuple[int, int] | None:
    """Find first cell, and one past the last, at which the job does more than idle; None if it hardly does."""
    level = median_filter(values.mean(axis=0), 5, mode="nearest")
    low, high = percentiles(level, (2, 95))
    busy = np.flatnonzero(level > min(low, 0.5 * high) + _BUSY * (high - min(low, 0.5 * high)))
    return (int(busy[0]), int(busy[-1]) + 1) if busy.size >= _LEAST_BUSY_CELLS else None


def find_events(values: FloatArray, busy: FloatArray) -> list[EventSet]:
    """Find the stretches off the training level at several smoothings and thresholds.

    Args:
        values: Shape (metrics, cells), of which the events are.
        busy: Shape (cells,), how much the job works: its high values are training.
    """
    n, sets = values.shape[1], []
    for width in _SMOOTHINGS:
        if width > max(1, n * _LONGEST_SMOOTHING):
            break
        smooth = uniform_filter1d(values, width, axis=1, mode="nearest") if width > 1 else values
        mean = uniform_filter1d(busy, width, mode="nearest") if width > 1 else busy
        training = mean > 0.25 * percentiles(mean, (90,))[0]
        level = np.array([median(row[training]) for row in smooth])[:, None]
        drift = _running_median(smooth, max(9, n // 6))
        apart = smooth - np.where(np.abs(drift - level) < _DRIFT * np.abs(level), drift, level)
        size = np.abs(apart)
        usual = np.array([1.4826 * median(row) + 1e-4 for row in size])[:, None]
        sums = np.concatenate([np.zeros((size.shape[0], 1)), np.cumsum(size, axis=1)], axis=1)
        for floor, gain in _THRESHOLDS:
            off: BoolArray = np.any(size > np.maximum(gain * usual, floor), axis=0)
            found = None if off.mean() > _MOST_OFF else _cut_events(off, sums, width)
            if found is not None:
                sets.append(found)
    return sets


def _cut_events(off: BoolArray, sums: FloatArray, width: int) -> EventSet | None:
    n = off.size
    begin, end = np.flatnonzero(np.diff(np.concatenate([[0], off.astype(np.int8), [0]]))).reshape(-1, 2).T
    if not _LEAST_EVENTS <= begin.size <= n * _MOST_EVENTS:
        return None
    apart = begin[1:] - end[:-1] > max(1, int(0.7 * width))
    begin, end = begin[np.append(True, apart)], end[np.append(apart, True)]
    size = sums[:, end] - sums[:, begin]
    return EventSet(
        begin, end, size.mean(axis=0), (size / (end - begin)).max(axis=0), np.concatenate([[0], np.cumsum(off)])
    )


def _running_median(values: FloatArray, width: int) -> FloatArray:
    """Running median of every row over ``width`` cells, of a thinned copy."""
    n, thin = values.shape[1], max(1, width // 60)
    # Row by row: SciPy filters one dimension twenty times as fast as one of two.
    rows = [median_filter(row, max(3, width // thin), mode="nearest") for row in values[:, ::thin]]
    return np.array([np.interp(np.arange(n), np.arange(row.size) * thin, row) for row in rows])


def event_classes(events: EventSet) -> Iterator[BoolArray]:
    """Pick events by weight: all of them, and those above each wide gap of their sorted area, depth or length."""
    seen = set()
    for name, (least, most) in _GAPS.items():
        size = np.log(getattr(events, name) + 1e-6)
        order = np.sort(size)
        gap = np.diff(order)
        widest = [i for i in np.argsort(-gap)[:most] if gap[i] > least]
        for cut in (order[0] - 1, *(0.5 * (order[i] + order[i + 1]) for i in widest)):
            chosen: BoolArray = size > cut
            key = chosen.tobytes()
            if key not in seen and chosen.sum() >= _LEAST_EVENTS:
                seen.add(key)
                yield chosen


def read_events(load: Load) -> list[CycleReading]:
    """Read the training clock and the event comb of every class of events."""
    found: list[CycleReading] = []
    seen: set[bytes] = set()
    busy = load.values.mean(axis=0)
    sets = find_events(load.values, busy) + (find_events(load.traffic, busy) if len(load.traffic) else [])
    for events in sets:
        for number, chosen in enumerate(event_classes(events)):
            begin, end = events.begin[chosen], events.end[chosen]
            depth = median(events.depth[chosen])
            found += _read_clocks(load, events, begin, end, depth)
            # Other smoothings often give the same events, give or take a few cells.
            key = np.round(_SAME_EVENTS * begin.size * (begin + end) / (begin[0] + end[-1])).tobytes()
            if number < _COMB_CLASSES and _COMB_EVENTS[0] <= begin.size <= _COMB_EVENTS[1] and key not in seen:
                seen.add(key)
                found += _read_combs(load, begin, end, events.depth[chosen])
    return found


def _read_clocks(load: Load, events: EventSet, begin: IntArray, end: IntArray, depth: float) -> Iterator[CycleReading]:
    """Read the one or two lengths that the intervals between events have: a job may change its tempo."""
    between = begin[1:] - end[:-1]
    lost = events.off[begin[1:]] - events.off[end[:-1]]
    # A few events are too few for a comb, and narrow dips between them that come as they like cost no training.
    for train in (between - lost, between) if lost.any() and begin.size <= _FEW_EVENTS else (between - lost,):
        long = train > _LONG_ENOUGH * max(int(train.max()), 1)
        if long.sum() < 2:
            continue
        for usual in _usual_lengths(np.sort(train[long]).astype(np.float64)):
            found = _read_clock(load, events, begin, end, depth, train, long, usual)
            if found is not None:
                yield found


def _usual_lengths(lengths: FloatArray) -> list[float]:
    """Medians of the two groups of like lengths with most members.

    Args:
        lengths: Shape (intervals,), increasing.
    """
    found: list[float] = []
    for _ in range(2):
        stop = np.searchsorted(lengths, lengths * (1 + 2 * _INLIER), side="right")
        members = stop - np.arange(lengths.size)
        if not lengths.size or members.max() < (_LEAST_OF_TEMPO if found else 1):
            break
        first = int(np.argmax(members))
        found.append(median(lengths[first : stop[first]]))
        lengths = np.delete(lengths, np.arange(first, stop[first]))
    return found


def _read_clock(
    load: Load,
    events: EventSet,
    begin: IntArray,
    end: IntArray,
    depth: float,
    train: IntArray,
    long: BoolArray,
    usual: float,
) -> CycleReading | None:
    # Where a mark was missed, an interval is a multiple.
    times = np.clip(np.round(train / usual), 1, _MOST_MISSED)
    near = np.abs(train / usual / times - 1) < _INLIER / times
    single = near & (times == 1)
    inside = len(load) - int(events.off[-1])
    if single.sum() < 2 or usual < _LEAST_PERIOD or inside <= 0:
        return None
    worth = float((1 / times[near]).sum())
    # The first event often comes late: the first evaluation, what follows the start-up.
    first = int(np.argmax(long))
    total = int(long.sum()) - int(not near[first] and train[first] > usual)
    share, cover = worth / total, float(train[near].sum()) / inside
    spread = float(np.std(train[near] / times[near])) / usual
    evidence = count_nats(worth, total) * min(1.0, cover / 0.8) - 2 * np.log(1 + spread / 0.01)
    if share < _LEAST_SHARE or cover < _LEAST_COVER or evidence <= LEAST_EVIDENCE:
        return None
    by_begin, by_end = np.diff(begin)[single], np.diff(end)[single]
    lengths = by_begin if by_begin.std() < by_end.std() else by_end
    period = median(lengths)
    if spread <= _EVEN:
        # The mean is better, without those in which there was a stall or more of other work.
        like = lengths[np.abs(lengths / period - 1) < _INLIER]
        period = float(like.mean()) if like.size else period
    return CycleReading(
        "clock", period * load.step_s, float(evidence), inside / usual,
        load.to_s(np.stack([begin, end], axis=1)), load.to_s(_place_starts(events, begin, end, long, usual)),
        depth, spread, begin.size, cover,
    )  # fmt: skip


def _place_starts(events: EventSet, begin: IntArray, end: IntArray, long: BoolArray, usual: float) -> FloatArray:
    """Place the starts of the cycles of a clock, in cells: one behind each mark, and at even distance where one lacks.

    Args:
        events: The set that the marks are of.
        begin: Shape (marks,), first cell of each mark.
        end: Shape (marks,), one past the last.
        long: Shape (marks - 1,), whether it is training between two marks, and not two parts of one.
        usual: Cells of training in a cycle.
    """
    cells = events.off.size - 1
    last_part, first_part = np.append(long, True), np.append(True, long)
    trained = end[last_part] - events.off[end[last_part]]
    starts = end[last_part].astype(np.float64)
    cycles = np.diff(trained) / usual
    fill = np.where(np.abs(cycles / np.maximum(np.round(cycles), 1) - 1) < 2 * _INLIER, np.round(cycles), 1)
    number = np.concatenate([[0.0], np.cumsum(np.maximum(fill, 1))])
    placed = np.interp(np.arange(number[-1] + 1), number, starts)
    first = int(begin[first_part][0])
    ahead = (first - int(events.off[first])) / usual
    behind = (cells - int(events.off[-1]) - int(trained[-1])) / usual
    # The stretch before the first mark is a cycle unless a longer or shorter one, warm-up included; that behind the
    # last one if it is a whole one: nothing but the end of the activity ends it.
    if 1 - _INLIER <= ahead <= _LONGEST_FIRST:
        placed = np.concatenate([[max(0.0, first - usual)], placed])
    if behind >= 1 - _INLIER:
        placed = np.append(placed, min(float(cells), placed[-1] + usual))
    return np.asarray(placed, dtype=np.float64)


def count_nats(near: float, total: int) -> float:
    """Evidence that ``near`` of ``total`` intervals within 8 % of one length are no accident."""
    share = min(max(near / total, 1e-3), 1 - 0.5 / (total + 1))
    return float(near * np.log(share / _CHANCE) + (total - near) * np.log((1 - share) / (1 - _CHANCE)))


def _read_combs(load: Load, begin: IntArray, end: IntArray, depth: FloatArray) -> Iterator[CycleReading]:
    """Find the periods at which events pile up in phase, whatever is missing between them."""
    place: FloatArray = begin.astype(np.float64) + 0.5
    span = float(place[-1] - place[0])
    least = max(6.0, span / (2.5 * begin.size))
    if span < 4 * least:
        return
    weight = np.sqrt(depth / depth.max())
    total = float((weight**2).sum())
    # Two harmonics of the highest frequency stay below that of Nyquist.
    cells = 1 << (_COMB_CELLS * begin.size - 1).bit_length()
    train = np.bincount(((place - place[0]) / span * (cells - 1) + 0.5).astype(np.int64), weight, cells)
    power = np.abs(np.fft.rfft(train, _COMB_PADDING * cells)) ** 2 / total
    unit = (cells - 1) / (span * _COMB_PADDING * cells)  # cycles per cell of the load, of one bin
    index = np.arange(int(np.ceil(2.5 / span / unit)), int(min(1 / least / unit, power.size / 2 - 1)))
    if index.size < 3:
        return
    score = power[index] + np.minimum(power[2 * index], power[index])
    usual_depth, width = median(depth), median(end - begin)
    for i in highest_peaks(score, _COMB_PEAKS):
        worth = float(score[i]) - np.log(index.size) - 2
        if worth <= 0:
            continue
        best = _refine_comb(place, weight, unit * index[i], 1.2 * unit)
        phase = float(np.angle(np.exp(2j * np.pi * best * place) @ weight)) / (2 * np.pi)
        tooth = np.round(place * best - phase)
        near = np.abs(place * best - phase - tooth) < _COMB_NEAR
        taken = np.unique(tooth[near]).size
        evidence = worth - 0.5 * (span * best + 1 - taken)
        if evidence <= 0 or taken < _LEAST_TEETH:
            continue
        # A tooth without an event is believed in between, and once on either side.
        first, last = tooth[near].min() - 1, tooth[near].max() + 1
        teeth = (np.arange(first, last + 1) + phase) / best - 0.5
        teeth = teeth[(teeth >= -0.5) & (teeth <= len(load) - width)]
        marks = load.to_s(np.stack([teeth, teeth + width], axis=1))
        yield CycleReading(
            "comb", load.step_s / best, float(evidence), len(load) * best, marks, marks[:, 1], usual_depth,
            float(np.std((place * best - phase - tooth)[near])), taken,
        )  # fmt: skip  # fmt: skip


def _refine_comb(place: FloatArray, weight: FloatArray, frequency: float, reach: float) -> float:
    """Find the frequency near another one at which events are most in phase, the second harmonic included."""
    around = np.linspace(-reach, reach, _COMB_FINE)
    turn = np.exp(-2j * np.pi * np.multiply.outer(frequency + around, place - place[0]))
    power = np.abs(turn @ weight) ** 2 + 0.7 * np.abs((turn * turn) @ weight) ** 2
    peak = min(max(int(np.argmax(power)), 1), _COMB_FINE - 2)
    left, middle, right = power[peak - 1 : peak + 2]
    bend = left - 2 * middle + right
    shift = min(max(float(0.5 * (left - right) / bend), -1.0), 1.0) if bend < 0 else 0.0
    return float(frequency + around[peak] + shift * (around[1] - around[0]))


def highest_peaks(score: FloatArray, most: int) -> list[int]:
    """Indices of the highest local maxima, highest first."""
    inner = np.flatnonzero((score[1:-1] >= score[:-2]) & (score[1:-1] > score[2:])) + 1
    return [int(i) for i in inner[np.argsort(-score[inner])][:most]]
