"""Cycles read from the spectrum of the plateaus: the step that ripples between two events.

An event (evaluation, checkpoint) starts the phase of the steps anew, so that the whole trace has no line where the
stretches between events have one each. Their spectra are added without phase, whitened, and their logarithm averaged
over the devices of a job: one loud device cannot win, and the line grows out of the noise with their number.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.ndimage import maximum_filter1d

from gpusonde.epoch_detect.cycles.events import CycleReading, Load, highest_peaks
from gpusonde.epoch_detect.cycles.signal import median, medians
from gpusonde.epoch_detect.cycles.template_matching import find_start_phase
from gpusonde.telemetry import FloatArray

IntArray = npt.NDArray[np.int64]

_LEAST_STRETCH = 24  # cells
_LONGEST_STRETCH = 4096  # cells: a longer one is cut, which costs nothing but the resolution of its longest cycles
_MOST_PIECES = 60  # that are transformed; as many tell what all would
_PADDING = 4
_CLIPPED = 7.0  # standard deviations, from the median absolute one
_ROUGHNESS_BELOW_S = 0.5  # width of a cell below which bursts of micro-batches show in the changes from cell to cell
_HARMONICS = 6
_MOST_OF_HARMONIC = 3.0  # nats
_PLAIN = 2.0  # nats above the floor, from which on the fundamental itself tells where it is
_MISSING_HARMONIC = -0.7
_FLOOR = float(np.log(2.0))  # of the whitened power: noise is 1 on average, its median 0.7
_LEAST_CYCLES = 3.5  # in the longest stretch
_LEAST_CELLS = 2.6  # per cycle
_LINES = 6
_BINS = 32  # of a folded cycle
_PIECE_CYCLES = 8
_LEAST_PIECE = 48  # cells
_ALIGNMENTS = 3
_LOCKED_CELLS = 10_000
_STRANGE = 3.0  # times as far from the mean cycle as the others: the ramp or the tail of a run
_LEAST_OWN = 0.05  # of the floor
_WHITENED_OVER = 1.5  # factor of frequency on either side


def cut_stretches(load: Load, marks_s: FloatArray) -> IntArray:
    """Return first cell, and one past the last, of what lies between marks and is long enough; shape (stretches, 2).

    Args:
        load: The signal.
        marks_s: Shape (marks, 2), increasing.
    """
    n = len(load)
    cells = np.round((marks_s - load.start_s) / load.step_s).astype(np.int64)
    inside = (cells[:, 1] > 0) & (cells[:, 0] < n)
    # One cell on either side mixes the event with what is around it.
    edges = np.clip(cells[inside] + [-1, 1], 0, n)
    pairs = np.concatenate([[0], edges.ravel(), [n]]).reshape(-1, 2)
    return np.asarray(pairs[pairs[:, 1] - pairs[:, 0] >= _LEAST_STRETCH])


def read_lines(devices: Sequence[Load], stretches: IntArray) -> list[CycleReading]:
    """Read fundamentals whose harmonics stand above the floor.

    Args:
        devices: Signals of the devices of one job, on one grid.
        stretches: Shape (stretches, 2), cells; where the job trains undisturbed.
    """
    stretches = stretches[stretches[:, 1] - stretches[:, 0] >= _LEAST_STRETCH]
    if not len(stretches):
        return []
    pieces = np.concatenate([_split(int(a), int(b)) for a, b in stretches])
    longest = int((pieces[:, 1] - pieces[:, 0]).max())
    size = 1 << (_PADDING * longest - 1).bit_length()
    over = size / longest  # bins per resolution cell
    some = pieces[:: -(-len(pieces) // _MOST_PIECES)]
    channels, floors = _log_spectra(devices, some, size, over)
    low, high = int(_LEAST_CYCLES * over), int(min(size // 2, size / _LEAST_CELLS))
    if high - low < 8:
        return []
    # A step may show in the level, in its roughness, or faintly in both.
    if len(channels) > 1:
        channels, floors = (np.concatenate([rows.mean(axis=0, keepdims=True), rows]) for rows in (channels, floors))
    found: list[tuple[float, float]] = []
    for nats, floor in zip(channels, floors, strict=True):
        score = _sum_harmonics(nats, np.arange(low, high))
        for i in highest_peaks(score, _LINES):
            frequency = _refine(nats, floor, low + i)
            if frequency is not None:
                found.append((float(score[i]), size / frequency))
    step_s, length = devices[0].step_s, float((stretches[:, 1] - stretches[:, 0]).sum())
    weight = float(np.sqrt(len(pieces) * len(devices)))
    nothing = np.empty((0, 2)), np.empty(0)
    return [
        CycleReading("line", period * step_s, score * weight, length / period, *nothing, stretches=stretches)
        for score, period in sorted(found, reverse=True)[:_LINES]
    ]


def _sum_harmonics(nats: FloatArray, base: IntArray) -> FloatArray:
    """Add up what stands above the floor at each fundamental and its harmonics; a missing one is fined."""
    score = np.zeros(base.size)
    for h in range(1, _HARMONICS + 1):
        near = maximum_filter1d(nats, 2 * (h // 2 + 1) + 1, mode="nearest")
        worth = np.clip(near[np.minimum(base * h, nats.size - 1)] - _FLOOR, _MISSING_HARMONIC, _MOST_OF_HARMONIC)
        score += np.where(base * h < nats.size, worth / np.sqrt(h), 0.0)
    return score


def _split(first: int, stop: int) -> IntArray:
    parts = -(-(stop - first) // _LONGEST_STRETCH)
    edges = np.linspace(first, stop, parts + 1).astype(np.int64)
    return np.stack([edges[:-1], edges[1:]], axis=1)


def _log_spectra(devices: Sequence[Load], pieces: IntArray, size: int, over: float) -> tuple[FloatArray, FloatArray]:
    """Logarithm of the whitened power, summed over the pieces, of level and roughness, and of the floor it stands on.

    Both have the shape (channels, bins) and are means of the devices.
    """
    mean = np.array([device.values.mean(axis=0) for device in devices])
    channels = [mean]
    if devices[0].step_s < _ROUGHNESS_BELOW_S:
        rough = np.abs(np.diff(mean, axis=1, prepend=mean[:, :1]))
        channels.append(np.minimum(rough, 6 * medians(rough)[:, None] + 1e-9))
    rows = np.concatenate(channels)
    power = np.zeros((len(rows), size // 2 + 1))
    # A piece weighs by its length: one that runs across an event nobody saw has two phases, and fringes for a line.
    for a, b in pieces:
        power += np.abs(np.fft.rfft(_prepare(rows[:, a:b]), size, axis=1)) ** 2 / (b - a)
    floor = _measure_floor(power, over)
    white = power / np.exp(floor)
    white[:, : int(2.5 * over)] = 1.0
    spectra = np.where(power.any(axis=1, keepdims=True), np.log(white + 1e-3), 0.0)
    nats, floors = (rows.reshape(len(channels), len(devices), -1).mean(axis=1) for rows in (spectra, floor))
    return nats, floors


def _prepare(rows: FloatArray) -> FloatArray:
    """Remove the quadratic trend of every row, clip outliers, and taper."""
    basis, squares, taper = _trend_and_taper(rows.shape[1])
    left = rows - (rows @ basis.T / squares) @ basis
    most = _CLIPPED * 1.4826 * medians(np.abs(left))[:, None] + 1e-9
    return np.asarray(np.clip(left, -most, most) * taper)


@functools.lru_cache(maxsize=8)
def _trend_and_taper(size: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Constant, slope and bend, shape (3, size), the sums of their squares, and the taper: most pieces are as long."""
    place = np.linspace(-1, 1, size)
    basis = np.stack([np.ones(size), place, place**2 - (place**2).mean()])
    return basis, (basis**2).sum(axis=1), np.hanning(size)


def _measure_floor(power: FloatArray, over: float) -> FloatArray:
    """Logarithm of the running median of the power of every row over a third of a decade of frequency."""
    bins = power.shape[1]
    grid = np.unique(np.round(np.geomspace(max(int(4 * over), 2), bins - 1, 60)).astype(np.int64))
    least = int(3 * over)
    ends = [(int(g / _WHITENED_OVER), max(int(g * _WHITENED_OVER), int(g / _WHITENED_OVER) + least) + 1) for g in grid]
    base = np.log(np.array([medians(power[:, a:b]) for a, b in ends]).T + 1e-12)
    place = np.log(np.maximum(np.arange(bins), 1))
    return np.array([np.interp(place, np.log(grid), row) for row in base])


@dataclass(frozen=True)
class PhaseLock:
    """A period followed through stretches of a load.

    Attributes:
        stretches: Shape (stretches, 2), cells; those that hold two cycles.
        period: Cells.
        agreement: Mean correlation of a piece of several cycles with the mean of the others, -1..1; NaN for one piece.
        steadiness: Length of the mean turn of the phase from piece to piece, 0 for noise and 1 for a steady cycle; NaN
            where no stretch has two pieces.
        explained: Share of the variance of the stretches that the mean of the other pieces explains.
    """

    stretches: IntArray
    period: float
    agreement: float
    steadiness: float
    explained: float


def lock_phase(load: Load, stretches: IntArray, period: float) -> PhaseLock | None:
    """Follow a period through stretches, each with a phase of its own; None if none of them holds two cycles.

    Args:
        load: The signal.
        stretches: Shape (stretches, 2), cells.
        period: Cells.
    """
    whole = stretches[stretches[:, 1] - stretches[:, 0] >= 2 * period]
    if not len(whole):
        return None
    pieces = _Pieces.cut(load, whole, period, _LOCKED_CELLS)
    template, shift, aligned = pieces.align()
    agreement = steadiness = explained = float("nan")
    if len(aligned) > 1:
        others = (aligned.sum(axis=0) - aligned) / (len(aligned) - 1)
        common = (aligned * others).sum(axis=1)
        norms = np.linalg.norm(aligned, axis=1) * np.linalg.norm(others, axis=1)
        agreement = float((common / (norms + 1e-12)).mean())
        explained = float((common / template.size * pieces.lengths).sum() / (pieces.values @ pieces.values + 1e-12))
    joined = (pieces.stretch[1:] == pieces.stretch[:-1]) & (np.diff(pieces.number) == 1)
    if joined.any():
        steadiness = float(np.abs(np.exp(2j * np.pi * np.diff(shift)[joined] / template.size).mean()))
    return PhaseLock(whole, period, agreement, steadiness, explained)


def place_cycles(load: Load, lock: PhaseLock) -> tuple[FloatArray, int]:
    """Place the cycles of a phase-locked period.

    Returns:
        Where cycles start, in seconds of the activity, and the number of whole ones; without those of the ramp and the
        tail of the run, which are not like the others.
    """
    pieces = _Pieces.cut(load, lock.stretches, lock.period)
    template, shift, _ = pieces.align()
    bins, origin = template.size, find_start_phase(template)
    starts = []
    for number, (a, b) in enumerate(lock.stretches):
        here = pieces.stretch == number
        turned = np.unwrap(shift[here], period=bins) / bins + origin
        turned -= np.floor(turned[0])
        edges = a + lock.period * np.arange(int((b - a) / lock.period) + 1)
        places = edges + lock.period * np.interp(edges, pieces.middle[here], turned)
        starts.append(places[(places >= a) & (places < b)])
    places = np.concatenate(starts)
    if not places.size:
        return places, 0
    stretch = np.repeat(np.arange(len(starts)), [s.size for s in starts])
    ends = np.append(places[1:], np.inf)
    inside = (stretch == np.append(stretch[1:], -1)) | (places + lock.period <= lock.stretches[stretch, 1] + 1)
    ends = np.where(inside, np.minimum(ends, places + 1.5 * lock.period), places)
    strange = pieces.measure_strangeness(places, ends, template)
    usual = _STRANGE * median(strange[inside]) if inside.any() else np.inf
    like = np.flatnonzero(inside & (strange <= usual))
    if not like.size:
        return load.to_s(places), 0
    alike = slice(like[0], like[-1] + 1)
    return load.to_s(places[alike]), int(inside[alike].sum())


@dataclass(frozen=True)
class _Pieces:
    """Pieces of about eight cycles, without their linear trends.

    Attributes:
        period: Cells of the load.
        values: Shape (cells,), all pieces one behind the other; cells of a long period are averaged.
        place: Shape (cells,), cells of the load.
        phase: Shape (cells,), cycles since the beginning of the stretch.
        piece: Shape (cells,), which piece each cell is of.
        lengths: Shape (pieces,), cells.
        stretch: Shape (pieces,), which stretch each is of.
        number: Shape (pieces,), which of all pieces each is.
        middle: Shape (pieces,), its middle in cells of the load.
    """

    period: float
    values: FloatArray
    place: FloatArray
    phase: FloatArray
    piece: IntArray
    lengths: IntArray
    stretch: IntArray
    number: IntArray
    middle: FloatArray

    @classmethod
    def cut(cls, load: Load, stretches: IntArray, period: float, most_cells: int | None = None) -> _Pieces:
        """Cut stretches; where they are long, take pairs of pieces evenly out of them."""
        mean, thin = load.values.mean(axis=0), max(1, int(period / _BINS))
        if thin > 1:
            mean = mean[: mean.size // thin * thin].reshape(-1, thin).mean(axis=1)
        spans = np.minimum(stretches // thin, mean.size)
        sizes = spans[:, 1] - spans[:, 0]
        parts = np.maximum(1, np.round(sizes / max(_PIECE_CYCLES * period / thin, _LEAST_PIECE))).astype(np.int64)
        edges = [np.linspace(a, b, k + 1).astype(np.int64) for (a, b), k in zip(spans, parts, strict=True)]
        first, lengths = np.concatenate([e[:-1] for e in edges]), np.concatenate([np.diff(e) for e in edges])
        stretch, number = np.repeat(np.arange(len(spans)), parts), np.arange(lengths.size)
        if most_cells is not None and lengths.sum() > most_cells:
            kept = number // 2 % -(-int(lengths.sum()) // most_cells) == 0
            first, lengths, stretch, number = first[kept], lengths[kept], stretch[kept], number[kept]
        piece = np.repeat(np.arange(lengths.size), lengths)
        begins = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        beside = np.arange(piece.size) - begins[piece]
        place = first[piece] + beside
        values = mean[place]
        values = values - (np.add.reduceat(values, begins) / lengths)[piece]
        beside = beside - 0.5 * (lengths - 1)[piece]
        slope = np.add.reduceat(values * beside, begins) / np.maximum(np.add.reduceat(beside**2, begins), 1e-9)
        values = values - slope[piece] * beside
        most = _CLIPPED * 1.4826 * median(np.abs(values)) + 1e-9
        middles = (place + 0.5) * thin - 0.5
        phase = (middles - stretches[stretch[piece], 0]) / period
        return cls(
            period, np.clip(values, -most, most), middles, phase, piece, lengths, stretch, number,
            (first + 0.5 * lengths) * thin,
        )  # fmt: skip

    def align(self) -> tuple[FloatArray, IntArray, FloatArray]:
        """Average each piece over its cycles, and turn it until it resembles the mean of all.

        Returns:
            That mean, shape (bins,); by how many bins each was turned, shape (pieces,); and the turned pieces.
        """
        bins = int(np.clip(self.period, 4, _BINS))
        index = self.piece * bins + (self.phase % 1 * bins).astype(np.int64) % bins
        size = self.lengths.size * bins
        counts = np.bincount(index, minlength=size)
        folded = (np.bincount(index, self.values, size) / np.maximum(counts, 1)).reshape(-1, bins)
        waves = np.fft.rfft(folded, axis=1)
        template = folded[int(np.argmax((folded**2).sum(axis=1)))]
        turned, shift = folded, np.zeros(len(folded), dtype=np.int64)
        for _ in range(_ALIGNMENTS):
            alike = np.fft.irfft(waves * np.conj(np.fft.rfft(template)), bins, axis=1)
            shift = np.argmax(alike, axis=1)
            turned = np.take_along_axis(folded, (np.arange(bins) + shift[:, None]) % bins, axis=1)
            template = turned.mean(axis=0)
        return template, shift, turned

    def measure_strangeness(self, starts: FloatArray, ends: FloatArray, template: FloatArray) -> FloatArray:
        """Root of the mean squared distance of each cycle from the template; shape (cycles,)."""
        cycle = np.clip(np.searchsorted(starts, self.place, side="right") - 1, 0, starts.size - 1)
        phase = (self.place - starts[cycle]) / np.maximum(ends - starts, 1.0)[cycle] + find_start_phase(template)
        inside = (self.place >= starts[cycle]) & (self.place < ends[cycle])
        off = (self.values - template[(phase % 1 * template.size).astype(np.int64) % template.size]) ** 2
        counts = np.bincount(cycle[inside], minlength=starts.size)
        return np.asarray(np.sqrt(np.bincount(cycle[inside], off[inside], starts.size) / np.maximum(counts, 1)))


def _refine(nats: FloatArray, floor: FloatArray, base: int) -> float | None:
    """Weigh the parabola at each harmonic by its order squared; bins, or None where no harmonic stands out.

    The parabola is that of the line's own power: a floor that slopes moves the peak of what is divided by it, and the
    fewer cycles a stretch holds, the wider the line and the farther.
    """
    near_base = base - 1 + int(np.argmax(nats[base - 1 : base + 2]))
    if nats[near_base] >= _FLOOR + _PLAIN:
        base = _climb(nats, near_base)  # what is as strong as a line can count scores as well beside its peak
    weighed, weight = 0.0, 0.0
    for h in range(1, _HARMONICS + 1):
        reach = h // 2 + 1
        if base * h + 2 >= nats.size:
            break
        first = max(1, base * h - reach)
        peak = first + int(np.argmax(nats[first : min(base * h + reach + 1, nats.size - 1)]))
        above = nats[peak]
        if above < _FLOOR + 0.5:
            continue
        near = slice(max(peak - 2, 0), peak + 3)
        own = np.log(np.maximum(np.expm1(nats[near]), _LEAST_OWN)) + floor[near]
        top = 1 + int(np.argmax(own[1:-1]))
        left, middle, right = own[top - 1 : top + 2]
        bend = left - 2 * middle + right
        shift = min(max(float(0.5 * (left - right) / bend), -1.0), 1.0) if bend < 0 else 0.0
        weighed += h * above * (near.start + top + shift)
        weight += h**2 * above
    return weighed / weight if weight > 0 else None


def _climb(values: FloatArray, place: int) -> int:
    """Return the place of the peak on whose flank a place is."""
    while place + 1 < values.size and values[place + 1] > values[place]:
        place += 1
    while place > 0 and values[place - 1] > values[place]:
        place -= 1
    return place
