"""Runs whose epochs get longer or shorter: the same cycle with another period fills what one leaves out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.ndimage import uniform_filter1d

from gpusonde.epoch_detect.cycles.boundaries import Epochs, place_epochs
from gpusonde.epoch_detect.cycles.candidates import CycleHypothesis, longest_period, make_view
from gpusonde.epoch_detect.cycles.signal import Signal
from gpusonde.epoch_detect.cycles.template_matching import (
    TemplateMatch,
    correlate_cycles,
    match_template,
    normalise_template,
)
from gpusonde.telemetry import FloatArray

_OTHER_PERIOD = 0.15  # of the logarithm of the period; a match of cycles follows smaller changes itself
_MOST_CHANGE = 1.2  # of it: three times as long or short
_ALIKE = 0.7  # the cycle must be the same but for its length
_LEAST_AGREEMENT = 0.6
_LEAST_CYCLES = 2
_LEAST_COVERAGE = 0.6  # of the free stretch
_LEAST_STRETCH = 1.7  # periods that must be free for cycles to be looked for
_SAME_STEP = 0.02
_SAME_GRID = 0.75  # of the width of a cell: narrower ones are those before a halving
_LEAST_OF_TEMPLATE = 4  # cells
_HALVES_ALIKE = 0.7
_HALVES_UNLIKE = 0.3
_LEAST_CELLS = 16  # of half an epoch
_MOST_PATTERNS = 3


@dataclass(frozen=True)
class Pattern:
    """A cycle and the view of the signal in which to look for it.

    Attributes:
        step_s: Cell width of the view.
        smoothing: Cells that are averaged.
        changes: Whether the view shows changes instead of levels.
        template: Shape (rows, cells), the cycle.
    """

    step_s: float
    smoothing: int
    changes: bool
    template: FloatArray

    @property
    def period_s(self) -> float:
        """Length of the cycle in seconds."""
        return self.step_s * int(self.template.shape[1])

    @classmethod
    def from_hypothesis(cls, hypothesis: CycleHypothesis) -> Pattern:
        """Take the cycle of a hypothesis."""
        view = hypothesis.candidate
        return cls(view.level.step_s, view.smoothing, view.changes, hypothesis.match.template)

    def choose(self, rows: list[int]) -> Pattern:
        """Return the same of some of its rows."""
        return replace(self, template=self.template[rows])

    def coarsened(self, step_s: float) -> Pattern:
        """Return the same in cells as wide as those of a signal that remembers a longer run, if that has wider ones."""
        pattern = self
        while pattern.step_s < _SAME_GRID * step_s and pattern.template.shape[1] >= 2 * _LEAST_OF_TEMPLATE:
            cells = pattern.template.shape[1]
            edges = np.linspace(0, cells, round(cells / 2) + 1)
            sums = [np.interp(edges, np.arange(cells + 1), np.append(0.0, np.cumsum(row))) for row in pattern.template]
            template = np.diff(np.array(sums), axis=1) / np.diff(edges)
            pattern = Pattern(2 * pattern.step_s, max(1, pattern.smoothing // 2), pattern.changes, template)
        return pattern

    def apply(self, signal: Signal) -> Signal | None:
        """Make the view of the signal in which the pattern was found; None if the grid has become another one."""
        level = signal
        while level.step_s < _SAME_GRID * self.step_s and len(level) > 1:
            level = level.halved()
        if abs(level.step_s / self.step_s - 1) > _SAME_STEP:
            return None
        return make_view(level, self.smoothing, self.changes, longest_period(level))


def find_other_periods(chosen: CycleHypothesis, hypotheses: list[CycleHypothesis]) -> tuple[Pattern, ...]:
    """Find cycles like the chosen one of clearly other lengths, most convincing first."""
    shape = normalise_template(chosen.match.template)
    found = [
        r
        for r in hypotheses
        if r.preprocessed is chosen.preprocessed
        and _OTHER_PERIOD < abs(np.log(r.period_s / chosen.period_s)) < _MOST_CHANGE
        and r.match.agreement >= _LEAST_AGREEMENT
        and correlate_cycles(normalise_template(r.match.template), shape) >= _ALIKE
    ]
    return tuple(
        Pattern.from_hypothesis(r) for r in sorted(found, key=lambda r: -r.score * r.match.coverage)[:_MOST_PATTERNS]
    )


def add_other_periods(
    signal: Signal, epochs: Epochs, others: tuple[Pattern, ...], rows: list[int], *, ended: bool
) -> Epochs:
    """Add epochs of other lengths where there are none.

    Args:
        signal: The signal at its full resolution.
        epochs: Those of the chosen cycle.
        others: Cycles of other lengths.
        rows: Rows of the signal, fastest metric first.
        ended: Whether the activity is over.

    Returns:
        All epochs; the added ones are not regular, so that they do not count for the period.
    """
    pairs = _find_pairs(signal, epochs) if others else np.zeros(0, dtype=bool)
    if pairs.any():
        alone = Epochs(epochs.starts_s[~pairs], epochs.ends_s[~pairs], epochs.regular[~pairs])
        split = _add_other_periods(signal, alone, others, rows, ended=ended)
        if split.starts_s.size >= epochs.starts_s.size + pairs.sum() - 1:
            return split
    return _add_other_periods(signal, epochs, others, rows, ended=ended)


def _add_other_periods(
    signal: Signal, epochs: Epochs, others: tuple[Pattern, ...], rows: list[int], *, ended: bool
) -> Epochs:
    for pattern in others:
        view = pattern.apply(signal)
        if view is None:
            continue
        for begin_s, end_s in _find_free(signal, epochs, _LEAST_STRETCH * pattern.period_s):
            added = _match_within(signal, view, pattern, begin_s, end_s, rows, ended=ended)
            if added is not None:
                epochs = _merge(epochs, added)
    return epochs


def _find_pairs(signal: Signal, epochs: Epochs) -> npt.NDArray[np.bool_]:
    """Say which epochs, several in a row, are two short ones each: alike halves, unlike those of the others."""
    similarities = np.array(
        [_correlate_halves(signal, a, b) for a, b in zip(epochs.starts_s, epochs.ends_s, strict=True)]
    )
    alike = similarities > _HALVES_ALIKE
    in_a_row: npt.NDArray[np.bool_] = alike & (np.append(alike[1:], False) | np.append(False, alike[:-1]))
    others = similarities[~in_a_row & epochs.regular]
    if others.size < _LEAST_CYCLES or float(np.median(others)) > _HALVES_UNLIKE:
        return np.zeros(alike.size, dtype=bool)
    return in_a_row


def _correlate_halves(signal: Signal, begin_s: float, end_s: float) -> float:
    """Correlate the two halves of an epoch, -1..1."""
    first, stop = np.clip(np.round((np.array([begin_s, end_s]) - signal.start_s) / signal.step_s), 0, len(signal))
    cells = int(stop - first) // 2
    if cells < _LEAST_CELLS:
        return 0.0
    width = max(1, cells // 32)
    halves = uniform_filter1d(signal.values[:, int(first) : int(first) + 2 * cells], width, axis=1, mode="nearest")
    return float((normalise_template(halves[:, :cells]) * normalise_template(halves[:, cells:])).sum())


def _find_free(signal: Signal, epochs: Epochs, least_s: float) -> list[tuple[float, float]]:
    """Find stretches without epochs, in seconds of the signal."""
    end = signal.start_s + len(signal) * signal.step_s
    begins = np.concatenate([[signal.start_s], epochs.ends_s])
    ends = np.concatenate([epochs.starts_s, [end]])
    return [(float(a), float(b)) for a, b in zip(begins, ends, strict=True) if b - a >= least_s]


def _match_within(
    signal: Signal, view: Signal, pattern: Pattern, begin_s: float, end_s: float, rows: list[int], *, ended: bool
) -> Epochs | None:
    scale = round(view.step_s / signal.step_s)
    first = max(0, int((begin_s - signal.start_s) / view.step_s))
    stop = min(len(view), int(np.ceil((end_s - signal.start_s) / view.step_s)))
    values = view.values[:, first:stop]
    if values.shape[1] < _LEAST_CYCLES * pattern.template.shape[1]:
        return None
    match: TemplateMatch | None = match_template(values, float(pattern.template.shape[1]), pattern.template)
    if match is None or match.cycles < _LEAST_CYCLES or match.agreement < _LEAST_AGREEMENT:
        return None
    if match.coverage < _LEAST_COVERAGE:
        return None
    at_end = stop >= len(view)
    part = Signal(
        signal.start_s + first * scale * signal.step_s,
        signal.step_s,
        signal.values[:, first * scale : len(signal) if at_end else stop * scale],
        signal.rows,
        signal.zeros,
    )
    found = place_epochs(part, match, pattern.step_s, rows, ended=ended and at_end)
    slack = 0.1 * pattern.period_s
    inside = (found.starts_s >= begin_s - slack) & (found.ends_s <= end_s + slack)
    starts, ends = np.maximum(found.starts_s, begin_s), np.minimum(found.ends_s, end_s)
    return Epochs(starts[inside], ends[inside], np.zeros(int(inside.sum()), dtype=bool))


def _merge(epochs: Epochs, added: Epochs) -> Epochs:
    starts = np.concatenate([epochs.starts_s, added.starts_s])
    order = np.argsort(starts, kind="stable")
    ends = np.concatenate([epochs.ends_s, added.ends_s])
    regular = np.concatenate([epochs.regular, added.regular])
    return Epochs(starts[order], ends[order], regular[order])
