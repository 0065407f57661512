"""Cycles read from the spectrum of the plateaus: the step that ripples between two events.

An event (evaluation, checkpoint) starts the phase of the steps anew, so that the whole trace has no line where the
stretches between events have one each. Their spectra are added without phase, whitened, and their logarithm averaged
over the devices of a job: one loud device cannot win, and the line grows out of the noise with their number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpusonde.epoch_detect.cycles.events import Load, Reading, highest_peaks
from gpusonde.epoch_detect.cycles.signal import median
from gpusonde.telemetry import FloatArray

IntArray = npt.NDArray[np.int64]

_LEAST_STRETCH = 24  # cells
_LONGEST_STRETCH = 4096  # cells: a longer one is cut, which costs nothing but the resolution of its longest cycles
_PADDING = 4
_CLIPPED = 7.0  # standard deviations, from the median absolute one
_ROUGHNESS_BELOW_S = 0.5  # width of a cell below which bursts of micro-batches show in the changes from cell to cell
_HARMONICS = 6
_MOST_OF_HARMONIC = 3.0  # nats
_MISSING_HARMONIC = -0.7
_FLOOR = float(np.log(2.0))  # of the whitened power: noise is 1 on average, its median 0.7
_LEAST_CYCLES = 3.5  # in the longest stretch
_LEAST_CELLS = 2.6  # per cycle
_LINES = 6
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
    return pairs[pairs[:, 1] - pairs[:, 0] >= _LEAST_STRETCH]


def read_lines(devices: Sequence[Load], stretches: IntArray) -> list[Reading]:
    """Read fundamentals whose harmonics stand above the floor.

    Args:
        devices: Signals of the devices of one job, on one grid.
        stretches: Shape (stretches, 2), cells; where the job trains undisturbed.
    """
    if not len(stretches):
        return []
    load = devices[0]
    pieces = np.concatenate([_split(int(a), int(b)) for a, b in stretches])
    longest = int((pieces[:, 1] - pieces[:, 0]).max())
    size = 1 << (_PADDING * longest - 1).bit_length()
    nats = np.mean([row for device in devices for row in _log_spectra(device, pieces, size, size / longest)], axis=0)
    over = size / longest  # bins per resolution cell
    low, high = int(_LEAST_CYCLES * over), int(min(nats.size - 1, size / _LEAST_CELLS))
    if high - low < 8:
        return []
    base = np.arange(low, high)
    score = np.zeros(base.size)
    for h in range(1, _HARMONICS + 1):
        reach = np.arange(-(h // 2 + 1), h // 2 + 2)[:, None]
        near = nats[np.clip(base * h + reach, 0, nats.size - 1)].max(axis=0)
        worth = np.clip(near - _FLOOR, _MISSING_HARMONIC, _MOST_OF_HARMONIC) / np.sqrt(h)
        score += np.where(base * h < nats.size, worth, 0.0)
    found = []
    for i in highest_peaks(score, _LINES):
        frequency = _refine(nats, int(base[i]))
        if frequency is None:
            continue
        period = size / frequency  # cells
        starts = np.concatenate([np.arange(a, b, period) for a, b in stretches])
        count = float((stretches[:, 1] - stretches[:, 0]).sum() / period)
        evidence = float(score[i] * np.sqrt(len(pieces) * len(devices)))
        found.append(
            Reading("line", period * load.step_s, evidence, count, np.empty((0, 2)), load.to_s(starts), 0.0)
        )
    return found


def _split(first: int, stop: int) -> IntArray:
    parts = -(-(stop - first) // _LONGEST_STRETCH)
    edges = np.linspace(first, stop, parts + 1).astype(np.int64)
    return np.stack([edges[:-1], edges[1:]], axis=1)


def _log_spectra(load: Load, pieces: IntArray, size: int, over: float) -> list[FloatArray]:
    """Logarithm of the whitened power, summed over the pieces, of each channel of a device; shape (bins,) each."""
    mean = load.values.mean(axis=0)
    channels = [mean]
    if load.step_s < _ROUGHNESS_BELOW_S:
        rough = np.abs(np.diff(mean, prepend=mean[0]))
        channels.append(np.minimum(rough, 6 * median(rough) + 1e-9))
    spectra = []
    for channel in channels:
        power = np.zeros(size // 2 + 1)
        for a, b in pieces:
            power += np.abs(np.fft.rfft(_prepare(channel[a:b]), size)) ** 2
        if power.any():
            spectra.append(np.log(_whiten(power, over) + 1e-3))
    return spectra or [np.zeros(size // 2 + 1)]


def _prepare(values: FloatArray) -> FloatArray:
    """Remove the quadratic trend, clip outliers, and taper."""
    place = np.linspace(-1, 1, values.size)
    basis = np.stack([np.ones(values.size), place, place**2 - (place**2).mean()])
    left = values - (basis @ values / (basis**2).sum(axis=1)) @ basis
    most = _CLIPPED * 1.4826 * median(np.abs(left)) + 1e-9
    return np.clip(left, -most, most) * np.hanning(values.size)


def _whiten(power: FloatArray, over: float) -> FloatArray:
    """Divide power by its running median over a third of a decade of frequency."""
    first = max(int(4 * over), 2)
    grid = np.unique(np.round(np.geomspace(first, power.size - 1, 60)).astype(np.int64))
    least = int(3 * over)
    base = [
        median(power[int(g / _WHITENED_OVER) : max(int(g * _WHITENED_OVER), int(g / _WHITENED_OVER) + least) + 1])
        for g in grid
    ]
    level = np.interp(np.log(np.maximum(np.arange(power.size), 1)), np.log(grid), np.log(np.array(base) + 1e-12))
    white = power / np.exp(level)
    white[: int(2.5 * over)] = 1.0
    return white


def _refine(nats: FloatArray, base: int) -> float | None:
    """Weigh the parabola at each harmonic by its order squared; bins, or None where no harmonic stands out."""
    weighed, weight = 0.0, 0.0
    for h in range(1, _HARMONICS + 1):
        reach = h // 2 + 1
        if base * h + 2 >= nats.size:
            break
        first = max(1, base * h - reach)
        peak = first + int(np.argmax(nats[first : min(base * h + reach + 1, nats.size - 1)]))
        left, middle, right = nats[peak - 1 : peak + 2]
        if middle < _FLOOR + 0.5:
            continue
        bend = left - 2 * middle + right
        shift = float(np.clip(0.5 * (left - right) / bend, -1, 1)) if bend < 0 else 0.0
        weighed += h * middle * (peak + shift)
        weight += h**2 * middle
    return weighed / weight if weight > 0 else None
