"""Template matching: where each cycle of a given period begins, and how alike the cycles are.

A template of one cycle is correlated with every position; dynamic programming then picks the sequence of positions that
match best while their distances stay near the period, as in beat tracking (Ellis 2007, "Beat tracking by dynamic
programming"). The sequence is local: it may begin and end anywhere, and it may jump over a stall, a hole or a restart.

A trace has a hundred candidates and more, each of a few hundred positions: what is done for all those with as long a
template at once costs little more than for one of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.epoch_detect.cycles.signal import fast_length, median, percentiles
from gpusonde.telemetry import FloatArray

IntArray = npt.NDArray[np.int64]

TOLERANCE = 0.22  # how far the length of one cycle may be from the period, as a ratio
_BASELINE = 0.2  # a window must correlations better than this to make a sequence worth extending
_TEMPO_WEIGHT = 0.4
_JUMP_COST = 0.8
_CELLS = 32  # of a normalised cycle
_REFINEMENTS = 3
_LEAST_RESEMBLANCE = 0.52  # of the three windows in a row that are most alike; of true epochs it was never below 0.59
_AS_LARGE = 0.75  # of the largest deviation from the usual level
_NO_WINDOW = 1e-12  # variance of a cell below which a window is constant but for rounding
_HOPELESS = 0.45  # mean correlation of a first sequence that further rounds would not save


@dataclass(frozen=True)
class TemplateMatch:
    """Cycles that resemble one another, in sequence.

    Attributes:
        period: Cells; the median distance of neighbouring cycles, or the period sought if there is no such pair.
        starts: Shape (cycles,), cells; the phase is arbitrary.
        joined: Shape (cycles - 1,), whether a cycle follows its predecessor directly, not after a jump.
        template: Shape (metrics, window), the mean cycle; mean 0 in each window.
        agreement: Median correlation of a cycle with the mean of the others, -1..1.
        explained: Share of the cycles' variance that the mean of the others explains; may be negative.
        scatter: Standard deviation of the cycle lengths as a ratio of the period.
        coverage: Share of the signal that lies in the sequence.
        strength: Mean amplitude of the cycles relative to the signal's own, about 0..1.
        weakest: The correlation that nine of ten cycles exceed, -1..1.
        neighbours: Mean correlation of cycles 1, 2 and 3 places apart, -1..1; NaN for too few cycles.
        contrast: How many standard deviations the matches of the sequence lie above those of all positions.
    """

    period: float
    starts: IntArray
    joined: npt.NDArray[np.bool_]
    template: FloatArray
    agreement: float
    explained: float
    scatter: float
    coverage: float
    strength: float
    weakest: float
    neighbours: tuple[float, float, float]
    contrast: float

    @property
    def cycles(self) -> int:
        """Number of cycles."""
        return int(self.starts.size)


@dataclass(frozen=True)
class Search:
    """A cycle to look for.

    Attributes:
        values: Shape (metrics, n), without trend.
        period: Cells, at least 4; ignored where a template is given.
        template: Shape (metrics, window), the cycle to begin with; None to look for one.
    """

    values: FloatArray
    period: float
    template: FloatArray | None = None

    @property
    def window(self) -> int:
        """Length of the template in cells."""
        return max(4, round(self.period)) if self.template is None else int(self.template.shape[1])


def match_template(values: FloatArray, period: float, template: FloatArray | None = None) -> TemplateMatch | None:
    """Find the sequence of cycles of about ``period`` cells that agree best.

    Args:
        values: Shape (metrics, n), without trend.
        period: Cells, at least 4; ignored where a template is given.
        template: Shape (metrics, window), the cycle to begin with; None to look for one.

    Returns:
        The sequence, or None if there are not two cycles that resemble one another.
    """
    return match_templates([Search(values, period, template)])[0]


def match_templates(searches: Sequence[Search]) -> list[TemplateMatch | None]:
    """Find the sequence of each of several cycles; see :func:`match_template`."""
    found: list[TemplateMatch | None] = [None] * len(searches)
    for places, matches in match_in_groups(searches):
        for place, match in zip(places, matches, strict=True):
            found[place] = match
    return found


def match_in_groups(searches: Sequence[Search]) -> Iterator[tuple[list[int], list[TemplateMatch | None]]]:
    """Match several cycles, those of one length at a time.

    Yields:
        Indices of some searches, and what was found for them. What is never yielded has too few cells to tell.
    """
    groups: dict[tuple[int, int, bool], list[int]] = {}
    for index, search in enumerate(searches):
        metrics, n = search.values.shape
        if n >= 2 * search.window:
            groups.setdefault((search.window, metrics, search.template is None), []).append(index)
    for members in groups.values():
        # Longest first: those that still go on at some position then are the first ones.
        members.sort(key=lambda i: -searches[i].values.shape[1])
        yield members, _match_group([searches[i] for i in members])


def _match_group(searches: list[Search]) -> list[TemplateMatch | None]:
    """Match cycles of one length in as many metrics, longest signal first; all with a template, or none."""
    found: list[TemplateMatch | None] = [None] * len(searches)
    windows = _Windows([search.values for search in searches], searches[0].window)
    members = np.arange(len(searches))
    if searches[0].template is None:
        seeds, resemblance = _seed(windows)
        members = np.flatnonzero(resemblance >= _LEAST_RESEMBLANCE)
        if not members.size:
            return found
        windows, templates = windows.choose(members), seeds[members]
    else:
        templates = np.array([search.template for search in searches])
    sequences: list[IntArray] = [np.empty(0, dtype=np.int64)] * len(searches)
    for last in range(_REFINEMENTS - 1, -1, -1):
        correlations = windows.correlate(templates)
        previous = [sequences[i] for i in members]
        current = _find_best_sequences(correlations, windows.positions, windows.window)
        long_enough = np.array([sequence.size >= 2 for sequence in current])
        if not long_enough.all():
            if not long_enough.any():
                break
            kept = np.flatnonzero(long_enough)
            members, windows, correlations = members[kept], windows.choose(kept), correlations[kept]
            previous, current = [previous[i] for i in kept], [current[i] for i in kept]
        places = _Places.of(current)
        at_sequence = places.mean(np.take_along_axis(correlations, places.starts, axis=1))
        done = np.array([np.array_equal(*pair) for pair in zip(previous, current, strict=True)])
        done |= (at_sequence < _HOPELESS) | (last == 0)
        if done.any():
            over = np.flatnonzero(done)
            here = windows.choose(over)
            contrast = here.contrast(correlations[over], at_sequence[over])
            chosen = [current[i] for i in over]
            for place, match in zip(members[over], _describe(here, chosen, contrast), strict=True):
                found[place] = match
            if done.all():
                break
            kept = np.flatnonzero(~done)
            members, windows, current = members[kept], windows.choose(kept), [current[i] for i in kept]
            places = _Places.of(current)
        for member, sequence in zip(members, current, strict=True):
            sequences[member] = sequence
        templates = windows.average(places)
    return found


@dataclass(frozen=True)
class _Places:
    """Some windows of each of several signals, padded to as many.

    Attributes:
        starts: Shape (signals, most), the positions; 0 where there are no more.
        valid: Shape (signals, most), which of them are meant.
    """

    starts: IntArray
    valid: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, sequences: list[IntArray]) -> _Places:
        """Pad sequences."""
        sizes = np.array([sequence.size for sequence in sequences])
        starts = np.zeros((sizes.size, sizes.max()), dtype=np.int64)
        valid = np.arange(starts.shape[1]) < sizes[:, None]
        starts[valid] = np.concatenate(sequences)
        return cls(starts, valid)

    @property
    def counts(self) -> IntArray:
        """Shape (signals,), how many are meant."""
        return np.asarray(np.add.reduce(self.valid, axis=1, dtype=np.int64))

    def mean(self, values: FloatArray) -> FloatArray:
        """Average values over the places of each signal, shape (signals,)."""
        return np.asarray(np.add.reduce(values * self.valid, axis=1) / self.counts)


class _Windows:
    """All windows of one length of several signals, their means removed, without laying out any of them.

    Args:
        signals: Each of shape (metrics, cells), longest first.
        window: Cells.
    """

    def __init__(self, signals: list[FloatArray], window: int) -> None:
        self.window = window
        self.cells = np.array([signal.shape[1] for signal in signals])
        self.positions: IntArray = self.cells - window + 1
        self.values = np.zeros((len(signals), signals[0].shape[0], self.cells.max()))
        for row, signal in zip(self.values, signals, strict=True):
            row[:, : signal.shape[1]] = signal
        self.energy = np.einsum("smn,smn->sn", self.values, self.values)
        self.sums = _moving_sum(self.values, window)
        squares = _moving_sum(self.energy, window) - np.einsum("smp,smp->sp", self.sums, self.sums) / window
        squares[squares < _NO_WINDOW * window] = 0.0
        sizes = np.sqrt(squares)
        least = [0.25 * median(row[:count]) + 1e-9 for row, count in zip(sizes, self.positions.tolist(), strict=True)]
        exists = (np.arange(sizes.shape[1]) < self.positions[:, None]) & (squares > 0)
        # A window that hardly varies counts for less than its direction.
        self.scale = np.where(exists, 1 / np.maximum(sizes, np.array(least)[:, None]), 0.0)
        self._spectrum: npt.NDArray[np.complex128] | None = None

    def choose(self, members: IntArray) -> _Windows:
        """Return those of some of the signals."""
        if members.size == self.cells.size:
            return self
        most = int(self.cells[members[0]])
        chosen = object.__new__(_Windows)
        chosen.window, chosen.cells, chosen.positions = self.window, self.cells[members], self.positions[members]
        chosen.values, chosen.energy = self.values[members, :, :most], self.energy[members, :most]
        positions = most - self.window + 1
        chosen.sums, chosen.scale = self.sums[members, :, :positions], self.scale[members, :positions]
        same = self._spectrum is not None and most == self.values.shape[2]
        chosen._spectrum = self._spectrum[members] if same and self._spectrum is not None else None
        return chosen

    def at(self, places: _Places) -> FloatArray:
        """Lay out some windows, shape (signals, most, metrics, window); others than meant are 0."""
        signals = np.arange(self.cells.size)[:, None]
        chosen: FloatArray = np.lib.stride_tricks.sliding_window_view(self.values, self.window, axis=2)[
            signals, :, places.starts
        ]
        chosen -= np.add.reduce(chosen, axis=3, keepdims=True) / self.window
        chosen *= places.valid[:, :, None, None]
        return chosen

    def average(self, places: _Places) -> FloatArray:
        """Average some windows of each signal, scaled to one size; shape (signals, metrics, window)."""
        weights = np.take_along_axis(self.scale, places.starts, axis=1) / places.counts[:, None]
        averages: FloatArray = np.einsum("sp,spmw->smw", weights, self.at(places))
        return averages

    def resemble(self, shift: int) -> FloatArray:
        """Correlate each window with that ``shift`` cells later, shape (signals, positions - shift)."""
        products = np.einsum("smn,smn->sn", self.values[:, :, :-shift], self.values[:, :, shift:])
        means = np.einsum("smp,smp->sp", self.sums[:, :, :-shift], self.sums[:, :, shift:]) / self.window
        similar: FloatArray = _moving_sum(products, self.window) - means
        similar *= self.scale[:, :-shift]
        similar *= self.scale[:, shift:]
        return similar

    def correlate(self, templates: FloatArray) -> FloatArray:
        """Correlate every window with its signal's template, shape (signals, positions); 0 beyond a signal's end."""
        size = fast_length(self.values.shape[2])
        if self._spectrum is None:
            self._spectrum = np.fft.rfft(self.values, size)
        spectrum = np.einsum("smf,smf->sf", self._spectrum, np.conj(np.fft.rfft(templates, size)))
        correlations: FloatArray = np.fft.irfft(spectrum, size)[:, : self.scale.shape[1]] * self.scale
        correlations /= np.sqrt(np.einsum("smw,smw->s", templates, templates))[:, None] + 1e-12
        return correlations

    def contrast(self, correlations: FloatArray, chosen: FloatArray) -> FloatArray:
        """Return how many standard deviations a mean correlation lies above that of all positions."""
        mean = np.add.reduce(correlations, axis=1) / self.positions
        power = np.einsum("sp,sp->s", correlations, correlations) / self.positions
        return np.asarray((chosen - mean) / (np.sqrt(np.maximum(power - mean**2, 0.0)) + 1e-9))


def _moving_sum(values: FloatArray, width: int) -> FloatArray:
    """Sum over each ``width`` cells along the last axis, shape (..., cells - width + 1)."""
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return np.asarray(sums[..., width:] - sums[..., :-width])


def _find_best_sequences(correlations: FloatArray, positions: IntArray, window: int) -> list[IntArray]:
    """Find for each signal the positions with the largest sum of (correlation - baseline - penalty for another period).

    Args:
        correlations: Shape (signals, most positions), correlation with the template.
        positions: Shape (signals,), how many positions each signal has; decreasing.
        window: Period in cells.

    Returns:
        For each signal increasing positions, at least one.
    """
    low, high = max(1, int(np.ceil(window * (1 - TOLERANCE)))), int(window * (1 + TOLERANCE)) + 1
    lags = np.arange(high, low - 1, -1)
    penalty = _TEMPO_WEIGHT * (np.log(lags / window) / np.log(1 + TOLERANCE)) ** 2
    signals, n = correlations.shape
    gain = np.where(np.arange(n) < positions[:, None], correlations - _BASELINE, -np.inf)
    # Padded by ``high`` on the left, so that every lag of every position exists; window i of the view then holds the
    # totals from lag ``high`` down to lag ``low`` of position i, also while they are being filled in.
    total = np.full((signals, n + high), -np.inf)
    reachable = np.lib.stride_tricks.sliding_window_view(total, lags.size, axis=1)
    # Positions that are too far back for a step are there for a jump; ``jumps`` holds the best total of them per block.
    jumps = np.full((signals, -(-n // low)), -np.inf)
    farthest, best_jump = high, np.full(signals, -np.inf)
    going = np.searchsorted(-positions, -np.arange(0, n, low), side="left").tolist()
    for block, (begin, some) in enumerate(zip(range(0, n, low), going, strict=True)):
        end = min(begin + low, n)
        if begin > farthest:
            np.maximum(best_jump, np.maximum.reduce(total[:, farthest:begin], axis=1), out=best_jump)
            farthest = begin
        jumps[:, block] = best_jump - _JUMP_COST
        value = np.maximum.reduce(reachable[:some, begin:end] - penalty, axis=2)
        np.maximum(value, np.maximum(jumps[:some, block], 0.0)[:, None], out=value)
        np.add(value, gain[:some, begin:end], out=total[:some, begin + high : end + high])
    return [
        _trace_back(total[i], reachable[i], jumps[i].tolist(), penalty, low, high, here)
        for i, here in enumerate(np.argmax(total[:, high:], axis=1).tolist())
    ]


def _trace_back(
    total: FloatArray, reachable: FloatArray, jumps: list[float], penalty: FloatArray, low: int, high: int, here: int
) -> IntArray:
    """Follow the best totals of :func:`_find_best_sequences` back from the last position."""
    sequence = [here]
    while True:
        options = reachable[here] - penalty
        choice = int(options.argmax())
        step, jump = float(options[choice]), jumps[here // low]
        if max(step, jump) <= 0:
            return np.array(sequence[::-1], dtype=np.int64)
        if step >= jump:
            here += choice - high
        else:
            here = int(np.argmax(total[high : here // low * low]))
        sequence.append(here)


def find_deviations(profile: FloatArray) -> npt.NDArray[np.bool_]:
    """Say where a profile is far from its median, beside where it is farthest; shape (bins,) as the profile."""
    size = np.abs(profile - median(profile))
    marked: npt.NDArray[np.bool_] = size > 0.4 * size.max()
    return marked


def find_start_phase(profile: FloatArray, *, waiting: bool = False) -> float:
    """Find the phase in [0, 1) at which training starts.

    Training takes most of an epoch, so the epoch starts where the largest deviation from the median level (validation,
    checkpoint, gap) ends.

    Args:
        profile: Shape (bins,), the level at each phase.
        waiting: Whether the GPU waits for most of the epoch: then the deviation is the training, with which it starts.
    """
    bins = profile.size
    size, marked = np.abs(profile - median(profile)), find_deviations(profile)
    if marked.all() or not marked.any():
        return 0.0
    first = int(np.argmin(marked))
    marked, size = np.roll(marked, -first), np.roll(size, -first)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], marked.astype(np.int8), [0]])))
    runs: list[tuple[int, int]] = []
    for begin, end in edges.reshape(-1, 2).tolist():
        if runs and begin - runs[-1][1] <= max(1, bins // 40):
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((begin, end))
    sizes = [float(size[begin:end].sum()) for begin, end in runs]
    next_begins = [begin for begin, _ in runs[1:]] + [runs[0][0] + bins]
    # Of deviations about as large, that before the longest stretch at the usual level, which is training.
    _, begin, end = max(
        (following - end, begin, end)
        for (begin, end), following, extent in zip(runs, next_begins, sizes, strict=True)
        if extent >= _AS_LARGE * max(sizes)
    )
    return float(((begin if waiting else end) + first) % bins) / bins


def correlate_cycles(one: FloatArray, other: FloatArray) -> float:
    """Return the largest circular correlation of two cycles from :func:`normalise_template`, -1..1."""
    products = np.fft.rfft(one, axis=1) * np.conj(np.fft.rfft(other, axis=1))
    return float(np.fft.irfft(products.sum(axis=0), _CELLS).max())


def normalise_template(template: FloatArray) -> FloatArray:
    """Resample a cycle of any length to as many cells as all others, without its mean and of size 1.

    Args:
        template: Shape (metrics, cells).

    Returns:
        Shape (metrics, 32).
    """
    place = np.linspace(0, template.shape[1] - 1, _CELLS)
    shape = np.array([np.interp(place, np.arange(row.size), row) for row in template])
    shape -= shape.mean(axis=1, keepdims=True)
    return np.asarray(shape / (np.linalg.norm(shape) + 1e-12))


def _seed(windows: _Windows) -> tuple[FloatArray, FloatArray]:
    """Average the three (or two) windows in a row that are most alike; and say how alike they are, -1..1.

    Returns:
        Shape (signals, metrics, window), and shape (signals,).
    """
    window, positions = windows.window, windows.positions
    slack = max(1, window // 10)
    place = np.arange(windows.scale.shape[1])
    best = np.full(windows.scale.shape, -2.0)
    for shift in (window - slack, window, window + slack):
        if shift < place.size:
            similar = windows.resemble(shift)
            similar[place[:-shift] >= (positions - shift)[:, None]] = -2.0
            np.maximum(best[:, : similar.shape[1]], similar, out=best[:, : similar.shape[1]])
    first = np.argmax(best, axis=1)
    resemblance = np.maximum.reduce(best, axis=1)
    thrice = positions > 2 * window
    if thrice.any():
        pair, ahead = best[:, : place.size - window], best[:, window:]
        triple = np.where(ahead > -2, pair + ahead, -4.0)
        triple[place[: triple.shape[1]] >= (positions - window)[:, None]] = -5.0
        first = np.where(thrice, np.argmax(triple, axis=1), first)
        resemblance = np.where(thrice, 0.5 * np.maximum.reduce(triple, axis=1), resemblance)
    starts = np.minimum(first[:, None] + np.arange(3) * window, positions[:, None] - 1)
    valid = np.ones(starts.shape, dtype=bool)
    valid[:, 2] = thrice
    return windows.average(_Places(starts, valid)), resemblance


def _describe(windows: _Windows, sequences: list[IntArray], contrast: FloatArray) -> list[TemplateMatch]:
    """Say how alike the cycles of each signal's sequence are."""
    places, window = _Places.of(sequences), windows.window
    chosen, counts = windows.at(places), places.counts
    metrics = chosen.shape[2]
    flat = chosen.reshape(*places.starts.shape, -1)
    sums = np.add.reduce(flat, axis=1)
    others = (sums[:, None] - flat) / (counts - 1)[:, None, None]
    power, other_power, product = (
        np.einsum("spx,spx->sp", one, other) for one, other in ((flat, flat), (others, others), (flat, others))
    )
    norms = np.sqrt(power)
    correlation = product / (norms * np.sqrt(other_power) + 1e-12)
    variance = np.add.reduce(power, axis=1)
    left = np.add.reduce((power - 2 * product + other_power) * places.valid, axis=1)
    explained = (1.0 - left / (variance + 1e-12)).tolist()
    energy = np.add.reduce(windows.energy, axis=1) / (windows.cells * metrics)
    overall = (np.sqrt(energy * (window * metrics)) + 1e-12).tolist()
    neighbours = [_correlate_neighbours(flat, norms, counts, apart) for apart in (1, 2, 3)]
    templates = (sums / counts[:, None]).reshape(-1, metrics, window)
    found = []
    for i, sequence in enumerate(sequences):
        distances = np.diff(sequence)
        joined = distances <= int(window * (1 + TOLERANCE)) + 1
        regular = distances[joined].tolist()
        period = sum(regular) / len(regular) if regular else float(window)
        spread = sum((distance - period) ** 2 for distance in regular)
        found.append(
            TemplateMatch(
                period=period,
                starts=sequence,
                joined=joined,
                template=templates[i],
                agreement=median(correlation[i, : sequence.size]),
                explained=explained[i],
                scatter=math.sqrt(spread / len(regular)) / period if len(regular) > 1 else 0.0,
                coverage=min(1.0, sequence.size * window / int(windows.cells[i])),
                strength=min(1.0, median(norms[i, : sequence.size]) / overall[i]),
                weakest=percentiles(correlation[i, : sequence.size], (10,))[0],
                neighbours=(neighbours[0][i], neighbours[1][i], neighbours[2][i]),
                contrast=float(contrast[i]),
            )
        )
    return found


def _correlate_neighbours(cycles: FloatArray, norms: FloatArray, counts: IntArray, apart: int) -> list[float]:
    """Average the correlation of cycles so many places apart, for each signal; NaN for too few cycles."""
    if cycles.shape[1] <= apart:
        return [float("nan")] * cycles.shape[0]
    products = np.einsum("spx,spx->sp", cycles[:, :-apart], cycles[:, apart:])
    sums = np.add.reduce(products / ((norms[:, :-apart] + 1e-12) * (norms[:, apart:] + 1e-12)), axis=1).tolist()
    pairs = (counts - apart).tolist()
    return [total / count if count > 0 else float("nan") for total, count in zip(sums, pairs, strict=True)]
