"""Readings of a trace: each candidate with its phase lock, and how consistent its cycles are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpusonde.epoch_detect.cycles.order import median
from gpusonde.epoch_detect.cycles.pauses import Strand
from gpusonde.epoch_detect.cycles.phase import Lock, lock
from gpusonde.epoch_detect.cycles.tempo import Candidate
from gpusonde.telemetry import FloatArray

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
