"""Where exactly the epochs begin: cycles of the template match, moved to the level changes of the fastest metric."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.epoch_detect.cycles.signal import Signal, median, medians
from gpusonde.epoch_detect.cycles.template_matching import TemplateMatch, find_deviations, find_start_phase
from gpusonde.telemetry import FloatArray

_PHASE_BINS = 128
_PROFILE_WIDTHS = (0, 2, 4, 8)  # bins
_FEW_DEVIATIONS = 4
_WAITING = 0.2  # of the highest level: where the usual level is below, the GPU waits for most of the epoch
_LONGEST_EPOCH = 1.75  # periods between two boundaries that still hold one epoch (with a stall in it)
_MATCHED = 0.9  # share of an epoch that must lie in a matched window for it to count without a visible end
_AT_EDGE = (0.6, 1.6)  # periods from the outermost boundary to the edge of the activity that make an epoch
_LIKE_THE_OTHERS = 0.15  # by how much the length of the last epoch may differ to count, as a ratio
_LEAST_TO_COMPARE = 3  # epochs
_OFF_BY = 2.0  # cells
_CLEAR = 6.0  # level change over noise beyond which clearer is not better
_CHANGE_WIDTHS = (2, 4)  # times the usual width
_WIDEST_CHANGE = 0.1  # periods
_BETWEEN = np.array([0.3, 0.5, 0.7])  # of the way from one boundary to the next
_STANDS_OUT = 2.0  # how much larger the changes at the boundaries are than those between them
_CLEARER = 1.5  # the same, by how much a wider mean must improve it
_LEAST_CHANGE = 0.03
_ELSEWHERE = 0.5  # what a level change is worth less when it lies farther from the match than the others do
_RANK_WEIGHT = 0.7  # worth of a metric relative to the next faster one when looking for the boundaries


@dataclass(frozen=True)
class Epochs:
    """Epochs found.

    Attributes:
        starts_s: Shape (epochs,), seconds after the first tick of the signal.
        ends_s: Shape (epochs,).
        regular: Shape (epochs,), whether the duration counts for the period: seen at both ends, not slow at the start.
    """

    starts_s: FloatArray
    ends_s: FloatArray
    regular: npt.NDArray[np.bool_]


def place_epochs(signal: Signal, match: TemplateMatch, step_s: float, row_order: list[int], *, ended: bool) -> Epochs:
    """Turn a match of cycles into epochs.

    Args:
        signal: The signal at its full resolution; its extent is the extent of the activity.
        match: The cycles, in cells of ``step_s`` seconds on the same time axis.
        step_s: Cell width of the match.
        row_order: Rows of the signal, fastest metric first.
        ended: Whether the activity is over, so that its end also ends an epoch.

    Returns:
        The epochs; none if no whole epoch lies inside the activity.
    """
    scale = step_s / signal.step_s
    anchors, period = match.starts.astype(np.float64) * scale, match.period * scale
    phase = _phase(signal, anchors, period)
    sequence_starts = anchors + phase * period
    # Beside the match's own: one on either side, and where the match jumps the end of the cycle before. They count if
    # the trace shows a level change there as clear as the others.
    jumps = ~match.joined & (np.diff(sequence_starts) > _LONGEST_EPOCH * period)
    inner = np.sort(np.concatenate([sequence_starts, sequence_starts[:-1][jumps] + period]))
    rough = np.concatenate([sequence_starts[:1] - period, inner, sequence_starts[-1:] + period])
    snapped, clear = _snapped(signal, rough, period, row_order)
    clear |= np.isin(rough, sequence_starts)
    clear &= np.concatenate([[True], np.diff(snapped) > 0.3 * period])
    seen, matched = snapped[clear], snapped[1:-1]
    bounds = _with_edges(seen, match, phase, period, scale, len(signal) if ended else None, begins=bool(clear[0]))
    gaps = np.diff(bounds)
    keep = gaps <= _LONGEST_EPOCH * period
    starts = bounds[:-1]
    # After a longer gap (stall, hole, restart) nobody saw the epoch end; it gets the usual length.
    ends = np.where(keep, bounds[1:], starts + period)
    lengths = ends - starts
    # The edge of the activity ends an epoch, but warm-up before the first and a missing pause after the last are not
    # part of the usual length; a boundary next to the match was seen, but nothing says that it is of the same kind.
    between = [keep & np.isin(starts, kind) & np.isin(bounds[1:], kind) for kind in (matched, seen)]
    counted = next((inner for inner in between if inner.sum() >= 2), keep)
    usual = float(np.median(lengths[counted])) if counted.any() else period
    regular = counted & (lengths > 0.5 * usual) & (lengths < _LONGEST_EPOCH * usual)
    # The first epoch compiles, fills caches, allocates; where there are few others the last may stand in for it, though
    # nothing but the end of the activity ends it.
    others = regular.copy()
    others[:1] = False
    if others.sum() < 2 and others.any() and keep[-1]:
        others[-1] |= abs(lengths[-1] / float(np.median(lengths[others])) - 1) < _LIKE_THE_OTHERS
    if others.sum() >= 2:
        regular = others
    to_s = signal.step_s
    return Epochs(signal.start_s + starts * to_s, signal.start_s + ends * to_s, regular)


def move_to_changes(signal: Signal, epochs: Epochs, row_order: list[int]) -> Epochs:
    """Move boundaries that are off by a tick or two to the level changes there; arguments as above."""
    if epochs.starts_s.size < _LEAST_TO_COMPARE:
        return epochs
    period_s = float(np.median(epochs.ends_s - epochs.starts_s))
    rough, where = np.unique(np.concatenate([epochs.starts_s, epochs.ends_s]), return_inverse=True)
    cells, _ = _snapped(signal, (rough - signal.start_s) / signal.step_s, period_s / signal.step_s, row_order)
    places = signal.start_s + cells * signal.step_s
    moved = np.maximum.accumulate(np.where(np.abs(places - rough) <= _OFF_BY * signal.step_s, places, rough))
    count = epochs.starts_s.size
    return Epochs(moved[where[:count]], moved[where[count:]], epochs.regular)


def _phase(signal: Signal, anchors: FloatArray, period: float) -> float:
    """Phase at which the epochs start, from the metric whose level changes most."""
    profiles = [_profile(row, anchors, period) for row in signal.values]
    waiting = any(
        float(np.median(profile)) - zero < _WAITING * (float(profile.max()) - zero)
        for profile, zero in zip(profiles, signal.zeros, strict=True)
    )
    return find_start_phase(max(profiles, key=lambda profile: float(np.ptp(profile))), waiting=waiting)


def _profile(values: FloatArray, anchors: FloatArray, period: float) -> FloatArray:
    """Median over the cycles of the level at each phase, shape (bins,).

    Where iterations make the level swing, what it is at one place says little, and the profile deviates everywhere.
    Then it is that of means over as few bins as will do.
    """
    bins = int(min(_PHASE_BINS, max(8, period)))
    place = anchors[:, None] + (np.arange(bins) + 0.5) * (period / bins)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    fewest, chosen = bins, np.zeros(bins)
    for width in _PROFILE_WIDTHS:
        half = 0.5 * width * period / bins
        begin = np.clip((place - half).astype(np.int64), 0, values.size - 1)
        end = np.clip((place + half).astype(np.int64) + 1, begin + 1, values.size)
        profile = medians(((sums[end] - sums[begin]) / (end - begin)).T)
        deviations = int((np.diff(find_deviations(profile).astype(np.int8)) > 0).sum())
        if deviations < fewest:
            fewest, chosen = deviations, profile
        if deviations <= _FEW_DEVIATIONS:
            break
    return chosen


def _snapped(
    signal: Signal, rough: FloatArray, period: float, row_order: list[int]
) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """Move each place to the level change near it, in the metric and direction where it is clearest.

    A metric counts for less the slower it is, so that a one-second average decides only if nothing faster shows the
    boundary; a change that leads away from the usual level counts for less than one that leads back to it.
    """
    best, places = 0.0, rough
    clear = np.zeros(rough.size, dtype=bool)
    for rank, row in enumerate(row_order):
        values = signal.values[row]
        levels = _Levels(values)
        for direction in (1.0, -1.0):
            if _CLEAR * _RANK_WEIGHT**rank <= best:
                return places, clear  # nothing slower can count for more
            found = _edges(levels, direction, rough, period)
            clarity = min(found.clarity, _CLEAR) * (1.0 if found.leads_back else 0.5)
            weight = clarity * _RANK_WEIGHT**rank
            if weight > best:
                typical = median(found.change)
                fine = _inside_cell(values * direction, found.cells, found.width)
                shown = found.change > 0.3 * typical
                best, places = weight, np.where(shown, fine, rough + np.median((fine - rough)[shown]))
                clear = found.change > 0.6 * typical
    return places, clear


@dataclass(frozen=True)
class _Edges:
    cells: npt.NDArray[np.int64]
    change: FloatArray
    clarity: float
    leads_back: bool
    width: int


@dataclass(frozen=True)
class _EdgeSteps:
    """Means over some cells after and before the left edge of every cell, and the edge behind the last one.

    Attributes:
        after: Shape (cells + 1,).
        before: Shape (cells + 1,).
        change: Their difference, 0 at both ends.
        noise: Usual size of a change.
        usual: Median of ``after``.
    """

    after: FloatArray
    before: FloatArray
    change: FloatArray
    noise: float
    usual: float


class _Levels:
    """Steps of a row, of any width; rises and falls are looked for in the same ones.

    Args:
        values: Shape (cells,).
    """

    def __init__(self, values: FloatArray) -> None:
        self.size = values.size
        self._sums = np.concatenate([[0.0], np.cumsum(values)])
        self._steps: dict[int, _EdgeSteps] = {}

    def steps(self, width: int) -> _EdgeSteps:
        """Return the steps between means over ``width`` cells."""
        if width not in self._steps:
            self._steps[width] = self._make(min(width, self.size))
        return self._steps[width]

    def _make(self, width: int) -> _EdgeSteps:
        sums, n = self._sums, self.size
        whole = (sums[width:] - sums[:-width]) / width
        fewer = np.maximum(np.arange(width), 1)
        after = np.concatenate([whole, (sums[n] - sums[n - width + 1 :]) / fewer[::-1]])
        before = np.concatenate([sums[:width] / fewer, whole])
        change = after - before
        change[[0, n]] = 0.0
        return _EdgeSteps(after, before, change, median(np.abs(change)) + _LEAST_CHANGE, median(after))


def _edges(levels: _Levels, direction: float, rough: FloatArray, period: float) -> _Edges:
    """The largest rise (or fall) near each place, between means over as few cells as it takes to stand out."""
    narrow = int(np.clip(0.03 * period, 1, 8))
    best, chosen = _edges_of_width(levels, direction, rough, period, narrow)
    for width in (narrow * times for times in _CHANGE_WIDTHS):
        if best >= _STANDS_OUT or width > _WIDEST_CHANGE * period:
            break
        outstanding, edges = _edges_of_width(levels, direction, rough, period, width)
        if outstanding > _CLEARER * best:
            best, chosen = outstanding, edges
    return chosen


def _edges_of_width(
    levels: _Levels, direction: float, rough: FloatArray, period: float, width: int
) -> tuple[float, _Edges]:
    """How many times as large the rises (or falls) are as those elsewhere, and the rises."""
    n, steps = levels.size, levels.steps(width)
    reach = int(np.clip(max(0.08 * period, min(12, 0.25 * period)), 2, 60))
    offsets = np.arange(-reach, reach + 1)

    def nearby(places: FloatArray) -> npt.NDArray[np.int64]:
        near: npt.NDArray[np.int64] = np.clip(np.round(places).astype(np.int64)[:, None] + offsets, 0, n)
        return near

    near = nearby(rough)
    rises = np.maximum(steps.change[near] * direction, 0.0)
    choice = np.argmax(rises * (1 - 0.2 * np.abs(offsets) / reach), axis=1)
    # The match is off by the same distance everywhere, give or take; a rise elsewhere must be the larger to be taken.
    common = int(median(offsets[choice]))
    choice = np.argmax(rises * (1 - _ELSEWHERE * np.minimum(np.abs(offsets - common) / reach, 1)), axis=1)
    rows = np.arange(rough.size)
    cells, rise = near[rows, choice], rises[rows, choice]
    away, toward = np.abs(steps.before[cells] - steps.usual), np.abs(steps.after[cells] - steps.usual)
    typical = median(rise)
    edges = _Edges(cells, rise, typical / steps.noise, median(toward) <= median(away), width)
    between = (rough[:-1, None] + np.diff(rough)[:, None] * _BETWEEN).ravel()
    others = np.maximum((steps.change[nearby(between)] * direction).max(axis=1), 0.0)
    return typical / (median(others) + _LEAST_CHANGE), edges


def _inside_cell(values: FloatArray, edges: npt.NDArray[np.int64], width: int) -> FloatArray:
    """Place of each rise to a fraction of a cell.

    A cell in which the level changes holds a mixture of both levels, which tells where in it the change happened.
    Values describe the interval before their tick, and cells are centred on ticks: hence the half cell.
    """
    n = values.size

    def level(shift: int) -> FloatArray:
        picked: FloatArray = values[np.clip(edges + shift, 0, n - 1)]
        return picked

    after = np.mean([level(shift) for shift in range(1, width + 1)], axis=0)
    # A gap may be as short as a cell, so the level before is the lowest nearby, not a mean.
    before = np.minimum.reduce([level(-2), level(-1), level(0)])
    step = after - before
    steep = step > 0.05
    scale = np.where(steep, step, 1.0)
    share = [np.clip((level(shift) - before) / scale, 0, 1) for shift in (-1, 0)]
    place: FloatArray = np.where(steep, edges + 1 - share[0] - share[1], edges) - 0.5
    return place


def _with_edges(
    bounds: FloatArray,
    match: TemplateMatch,
    phase: float,
    period: float,
    scale: float,
    cells: int | None,
    *,
    begins: bool,
) -> FloatArray:
    """Add the start of the first and the end of the last epoch where the trace shows them."""
    last_window_end = (match.starts[-1] + match.template.shape[1]) * scale
    stop = float(last_window_end if cells is None else cells)
    bounds = np.unique(bounds[(bounds >= -0.1 * period) & (bounds <= stop + 0.1 * period)])
    if not bounds.size:
        return bounds
    ahead, behind = bounds[0] / period, (stop - bounds[-1]) / period
    # Where the level change at which the first epoch starts was seen, nothing is left to guess.
    if not begins and _AT_EDGE[0] <= ahead <= _AT_EDGE[1]:
        bounds = np.concatenate([[0.0], bounds])
    elif not begins and phase >= _MATCHED and bounds[0] >= period:
        bounds = np.concatenate([[bounds[0] - period], bounds])
    if cells is not None and _AT_EDGE[0] <= behind <= _AT_EDGE[1]:
        bounds = np.append(bounds, stop)
    elif last_window_end - bounds[-1] >= _MATCHED * period:
        bounds = np.append(bounds, min(bounds[-1] + period, stop))
    return bounds
