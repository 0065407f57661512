"""Template matching: where each cycle of a given period begins, and how alike the cycles are.

A template of one cycle is correlated with every position; dynamic programming then picks the sequence of positions that
match best while their distances stay near the period, as in beat tracking (Ellis 2007, "Beat tracking by dynamic
programming"). The sequence is local: it may begin and end anywhere, and it may jump over a stall, a hole or a restart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.epoch_detect.cycles.signal import median, quantile
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


def match_template(values: FloatArray, period: float, template: FloatArray | None = None) -> TemplateMatch | None:
    """Find the sequence of cycles of about ``period`` cells that agree best.

    Args:
        values: Shape (metrics, n), without trend.
        period: Cells, at least 4; ignored where a template is given.
        template: Shape (metrics, window), the cycle to begin with; None to look for one.

    Returns:
        The sequence, or None if there are not two cycles that resemble one another.
    """
    window = max(4, round(period)) if template is None else template.shape[1]
    n = values.shape[1]
    positions = n - window + 1
    if positions < window + 1:
        return None
    cycles, norms = _windows(values, window)
    unit = cycles / np.maximum(norms, 0.25 * median(norms) + 1e-9)[:, None]
    if template is None:
        mean_cycle, resemblance = _seed(unit, window)
        if resemblance < _LEAST_RESEMBLANCE:
            return None
    else:
        mean_cycle = template.reshape(-1)
    sequence: IntArray = np.empty(0, dtype=np.int64)
    for _ in range(_REFINEMENTS):
        correlations = unit @ (mean_cycle / (np.linalg.norm(mean_cycle) + 1e-12))
        previous, sequence = sequence, find_best_sequence(correlations, window)
        if sequence.size < 2:
            return None
        mean_cycle = unit[sequence].mean(axis=0)
        if np.array_equal(previous, sequence) or correlations[sequence].mean() < _HOPELESS:
            break
    spread = float(correlations.std()) + 1e-9
    return _describe(
        values, cycles, sequence, window, float(correlations[sequence].mean() - correlations.mean()) / spread
    )


def find_best_sequence(correlations: FloatArray, window: int) -> IntArray:
    """Find the sequence of positions with the largest sum of (correlation - baseline - penalty for another period).

    Args:
        correlations: Shape (positions,), correlation with the template.
        window: Period in cells.

    Returns:
        Shape (cycles,), increasing positions.
    """
    low, high = max(1, int(np.ceil(window * (1 - TOLERANCE)))), int(window * (1 + TOLERANCE)) + 1
    lags = np.arange(high, low - 1, -1)
    penalty = _TEMPO_WEIGHT * (np.log(lags / window) / np.log(1 + TOLERANCE)) ** 2
    n = correlations.size
    gain = correlations - _BASELINE
    # Padded by ``high`` on the left, so that every lag of every position exists; window i of the view then holds the
    # totals from lag ``high`` down to lag ``low`` of position i, also while they are being filled in.
    total = np.full(n + high, -np.inf)
    reachable = np.lib.stride_tricks.sliding_window_view(total, lags.size)
    # Positions that are too far back for a step are there for a jump; ``jumps`` holds the best total of them per block.
    jumps = np.full(-(-n // low), -np.inf)
    farthest, best_jump = high, -np.inf
    for block, begin in enumerate(range(0, n, low)):
        end = min(begin + low, n)
        if begin > farthest:
            best_jump = max(best_jump, float(np.maximum.reduce(total[farthest:begin])))
            farthest = begin
        jumps[block] = best_jump - _JUMP_COST
        value = np.maximum.reduce(reachable[begin:end] - penalty, axis=1)
        np.maximum(value, max(jumps[block], 0.0), out=value)
        np.add(value, gain[begin:end], out=total[begin + high : end + high])
    here = int(np.argmax(total[high:]))
    sequence = [here]
    while True:
        options = reachable[here] - penalty
        choice = int(options.argmax())
        jump = float(jumps[here // low])
        if max(float(options[choice]), jump) <= 0:
            return np.array(sequence[::-1], dtype=np.int64)
        if options[choice] >= jump:
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


def _windows(values: FloatArray, window: int) -> tuple[FloatArray, FloatArray]:
    """Return all windows, mean removed, metrics side by side: shape (positions, metrics * window); and their norms."""
    view = np.lib.stride_tricks.sliding_window_view(values, window, axis=1)
    mean = np.add.reduce(view, axis=2, keepdims=True) / window
    apart = np.empty((view.shape[1], view.shape[0], window))
    np.subtract(view.transpose(1, 0, 2), mean.transpose(1, 0, 2), out=apart)
    cycles = apart.reshape(view.shape[1], -1)
    return cycles, np.sqrt(np.add.reduce(cycles * cycles, axis=1))


def _seed(unit: FloatArray, window: int) -> tuple[FloatArray, float]:
    """Average the three (or two) windows in a row that are most alike; and say how alike they are, -1..1."""
    positions = unit.shape[0]
    slack = max(1, window // 10)
    best = np.full(positions, -2.0)
    for shift in sorted({window - slack, window, window + slack}):
        if shift < positions:
            similar = np.einsum("ij,ij->i", unit[:-shift], unit[shift:])
            best[: similar.size] = np.maximum(best[: similar.size], similar)
    if positions > 2 * window:
        pair = best[: positions - window].copy()
        ahead = best[window:]
        triple = np.where(ahead > -2, pair + ahead, -4.0)
        first = int(np.argmax(triple))
        rows = [first, first + window, min(first + 2 * window, positions - 1)]
        resemblance = 0.5 * float(triple[first])
    else:
        first = int(np.argmax(best))
        rows = [first, min(first + window, positions - 1)]
        resemblance = float(best[first])
    seed: FloatArray = unit[rows].mean(axis=0)
    return seed, resemblance


def _describe(
    values: FloatArray, cycles: FloatArray, sequence: IntArray, window: int, contrast: float
) -> TemplateMatch:
    chosen = cycles[sequence]
    others = (chosen.sum(axis=0) - chosen) / (sequence.size - 1)
    norms = np.linalg.norm(chosen, axis=1)
    correlation = (chosen * others).sum(axis=1) / (norms * np.linalg.norm(others, axis=1) + 1e-12)
    variance = float((chosen**2).sum())
    distances = np.diff(sequence)
    joined = distances <= int(window * (1 + TOLERANCE)) + 1
    regular = distances[joined]
    period = float(np.mean(regular)) if regular.size else float(window)
    overall = float(np.sqrt((values**2).mean() * cycles.shape[1])) + 1e-12
    return TemplateMatch(
        period=period,
        starts=sequence,
        joined=joined,
        template=chosen.mean(axis=0).reshape(values.shape[0], window),
        agreement=median(correlation),
        explained=1.0 - float(((chosen - others) ** 2).sum()) / (variance + 1e-12),
        scatter=float(np.std(regular) / period) if regular.size > 1 else 0.0,
        coverage=min(1.0, sequence.size * window / values.shape[1]),
        strength=min(1.0, median(norms) / overall),
        weakest=quantile(correlation, 0.1),
        neighbours=_neighbour_correlations(chosen / (norms[:, None] + 1e-12)),
        contrast=contrast,
    )


def _neighbour_correlations(unit: FloatArray) -> tuple[float, float, float]:
    one, two, three = (
        float((unit[:-apart] * unit[apart:]).sum(axis=1).mean()) if unit.shape[0] > apart else float("nan")
        for apart in (1, 2, 3)
    )
    return one, two, three
