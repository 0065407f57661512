"""Which periods are worth a closer look: peaks of the autocorrelation at many resolutions.

Readings of a trace: each candidate with its phase lock, and how consistent its cycles are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.signal import find_peaks

from gpusonde.epoch_detect.cycles.pauses import Strand
from gpusonde.epoch_detect.cycles.signal import (
    Signal,
    autocorrelation,
    changes,
    median,
    pyramid,
    smoothed,
    without_trend,
)
from gpusonde.epoch_detect.cycles.template_matching import Lock, lock
from gpusonde.telemetry import FloatArray

_SHORTEST = 16  # samples per period that a level is made for: 16 ... 40; the finest level takes shorter ones, too
_LONGEST = 40
_SHORTEST_OF_ALL = 5
_TREND = 3  # times the longest period
# (cells to average, whether to look at changes instead of levels). Averages stand against an iteration ripple that is
# faster than the cycle sought, changes against plateaus that have nothing to do with it, such as another tenant's.
_VIEWS = ((1, False), (4, False), (2, True))
_PEAKS = 4  # per level and smoothing
_PROMINENCE = 0.03
_SIEVE_RATIO = 1.25


@dataclass(frozen=True)
class Candidate:
    """A period to examine.

    Attributes:
        period: In cells of ``level``.
        level: The signal to examine it in: about 16 to 40 cells per period, smoothed, without trend.
        smoothing: Cells that were averaged.
        changes: Whether the signal was replaced by its changes.
        correlation: Autocorrelation at the period.
    """

    period: float
    level: Signal
    smoothing: int
    changes: bool
    correlation: float

    @property
    def period_s(self) -> float:
        """Period in seconds."""
        return self.period * self.level.step_s


def view_of(level: Signal, width: int, of_changes: bool, longest: int) -> Signal:
    """One view of a level: its changes, or the smoothed level without its trend.

    Args:
        level: The signal at some resolution.
        width: Cells to average.
        of_changes: Whether to look at changes instead of levels.
        longest: Longest period of interest in cells; the trend is what varies more slowly than that.
    """
    if of_changes:
        values = changes(level.values, width)
    else:
        values = without_trend(smoothed(level.values, width), _TREND * longest)
    return Signal(level.start_s, level.step_s, values, level.rows, (float("nan"),) * len(level.rows))


def longest_period(level: Signal) -> int:
    """Longest period in cells that is looked for in a level."""
    return min(_LONGEST, int(len(level) / 2.5))


def candidates(signal: Signal) -> list[Candidate]:
    """Periods at which the signal resembles itself, of five cells and up to 1/2.5 of its length."""
    found: list[Candidate] = []
    for depth, level in enumerate(pyramid(signal)):
        shortest = _SHORTEST if depth else _SHORTEST_OF_ALL
        longest = longest_period(level)
        if longest < shortest + 2:
            continue
        for width, of_changes in _VIEWS:
            view = view_of(level, width, of_changes, longest)
            if float(np.abs(view.values).max()) < 1e-6:
                continue
            correlation = autocorrelation(view.values, longest + 2)
            least = shortest if of_changes else max(shortest, 2 * width)
            peaks = _peaks(correlation, least)
            peaks += [(p, float(correlation[round(p)])) for p in _sieve(least, longest) if not _near(p, peaks)]
            found += [Candidate(p, view, width, of_changes, r) for p, r in peaks]
    return _distinct(found)


def _peaks(correlation: FloatArray, least: int) -> list[tuple[float, float]]:
    peaks, _ = find_peaks(correlation, prominence=_PROMINENCE)
    peaks = peaks[(peaks >= least) & (correlation[peaks] > 0.02)]
    if not peaks.size:
        return []
    strongest = peaks[np.argsort(-correlation[peaks])][:_PEAKS].tolist()
    first_strong = int(peaks[np.argmax(correlation[peaks] > 0.75 * correlation[peaks].max())])
    if first_strong not in strongest:
        strongest.append(first_strong)
    return [_vertex(correlation, p) for p in strongest]


def _sieve(least: int, longest: int) -> list[float]:
    """Periods so close together that the phase lock, with its tolerance, misses none between them."""
    steps = int(np.log(longest / least) / np.log(_SIEVE_RATIO)) + 1
    return [least * _SIEVE_RATIO**k for k in range(steps)]


def _near(period: float, peaks: list[tuple[float, float]]) -> bool:
    return any(abs(np.log(period / p)) < 0.5 * np.log(_SIEVE_RATIO) for p, _ in peaks)


def _vertex(correlation: FloatArray, peak: int) -> tuple[float, float]:
    """Place and height of the parabola through a peak and its neighbours."""
    left, middle, right = correlation[peak - 1 : peak + 2]
    bend = left - 2 * middle + right
    shift = 0.5 * (left - right) / bend if bend < 0 else 0.0
    return peak + float(shift), float(middle - 0.25 * (left - right) * shift)


def _distinct(found: list[Candidate]) -> list[Candidate]:
    """Of candidates within 4 % of one another, keep the best correlated of each view."""
    kept: list[Candidate] = []
    for candidate in sorted(found, key=lambda c: -c.correlation):
        if all(k.smoothing != candidate.smoothing or abs(candidate.period_s / k.period_s - 1) > 0.04 for k in kept):
            kept.append(candidate)
    return kept


_EXAMINED_CYCLES = 24
_SAME = 0.06  # periods this close are one
_RETUNED = 2  # times at most
_OUT_OF_TUNE = 0.05  # of the length of the template


@dataclass(frozen=True)
class Reading:
    """A candidate with its phase lock.

    Attributes:
        period_s: Seconds, as locked, without what its strand leaves out.
        chain: The cycles in the examined part.
        candidate: Where it came from.
        score: How convincing it is, 0..1.
        strand: In which the candidate was found.
        first: Cell of the candidate's level at which the examined part begins.
    """

    period_s: float
    chain: Lock
    candidate: Candidate
    score: float
    strand: Strand
    first: int = 0

    @property
    def starts_s(self) -> FloatArray:
        """Shape (cycles,), where the cycles start, in seconds of the activity; the phase is arbitrary."""
        cells = (self.first + self.chain.starts).astype(np.float64)
        return self.strand.activity_s(cells * self.candidate.level.step_s)

    @property
    def usual_s(self) -> float:
        """Median distance of neighbouring cycles in seconds of the activity, with what the strand leaves out."""
        distances = np.diff(self.starts_s)[self.chain.joined]
        return median(distances) if distances.size else self.period_s


def read(candidate: Candidate, strand: Strand) -> Reading | None:
    """Lock a candidate in the part of its signal that resembles itself best; None if there are not two cycles."""
    values, first = candidate.level.values, 0
    span = int(_EXAMINED_CYCLES * candidate.period)
    if values.shape[1] > span:
        first = _best_part(candidate, span)
        values = values[:, first : first + span]
    chain = lock(values, candidate.period)
    if chain is None:
        return None
    score = consistency(chain, candidate)
    return Reading(chain.period * candidate.level.step_s, chain, candidate, score, strand, first)


def read_whole(reading: Reading) -> Lock:
    """Lock the whole signal, starting from the cycle that was found in its examined part."""
    values = reading.candidate.level.values
    found = lock(values, reading.candidate.period, reading.chain.template)
    if found is None or found.cycles < reading.chain.cycles:
        found = reading.chain
    for _ in range(_RETUNED):
        # Cycles that are all longer than their template, or shorter, come out between the two.
        if abs(found.period / found.template.shape[1] - 1) <= _OUT_OF_TUNE:
            break
        tuned = lock(values, found.period)
        if tuned is None or tuned.cycles < found.cycles or tuned.agreement < found.agreement:
            break
        found = tuned
    return found


def consistency(chain: Lock, candidate: Candidate) -> float:
    """Agreement, explained variance and autocorrelation; few, scattered or sparse cycles count for less."""
    alike = (
        0.5 * max(0.0, chain.agreement)
        + 0.3 * float(np.sqrt(max(0.0, chain.explained)))
        + 0.2 * min(1.0, max(0.0, candidate.correlation) / 0.6)
    )
    return alike * (1 - 0.5 / chain.cycles) * min(1.0, chain.coverage / 0.6) * (1 - min(0.5, chain.scatter))


def distinct(readings: list[Reading]) -> list[Reading]:
    """The best reading of each period in each strand, best first."""
    kept: list[Reading] = []
    for reading in sorted(readings, key=lambda r: -r.score):
        if all(k.strand is not reading.strand or abs(reading.period_s / k.period_s - 1) > _SAME for k in kept):
            kept.append(reading)
    return kept


def _best_part(candidate: Candidate, span: int) -> int:
    values, lag = candidate.level.values, round(candidate.period)
    product = (values[:, :-lag] * values[:, lag:]).sum(axis=0)
    sums = np.concatenate([[0.0], np.cumsum(product)])
    inside = min(span - lag, product.size)
    return int(np.argmax(sums[inside:] - sums[:-inside]))
