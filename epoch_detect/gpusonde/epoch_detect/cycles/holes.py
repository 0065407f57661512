"""Stretches without ticks: nothing is known of them, so no epoch is claimed for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpusonde.epoch_detect.cycles.boundaries import Epochs
from gpusonde.epoch_detect.cycles.signal import median
from gpusonde.epoch_detect.ticks import IntArray, Ticks, holes
from gpusonde.telemetry import FloatArray

_LONGEST_HOLE = 0.25  # of the time that was seen: a longer one would leave too coarse a grid for the rest
_LEAST_LONGEST_HOLE = 20.0  # usual distances
_UNSEEN = 0.5  # share of an epoch in holes beyond which it is not reported
_VAGUE = 0.1  # the same for the hole in which it begins or ends


@dataclass(frozen=True)
class TimeMap:
    """A map from the detector's time, in which holes are short, to that of the ticks.

    Attributes:
        short_s: Shape (n,), the detector's time of each tick, from 0.
        real_s: Shape (n,), seconds on the ticks' own axis.
    """

    short_s: FloatArray
    real_s: FloatArray

    def restore(self, time_s: FloatArray) -> FloatArray:
        """Return seconds on the ticks' own axis; what lies outside the ticks keeps its distance to them."""
        inside = np.interp(time_s, self.short_s, self.real_s)
        beyond = np.minimum(time_s - self.short_s[0], 0.0) + np.maximum(time_s - self.short_s[-1], 0.0)
        return np.asarray(inside + beyond)

    def shorten(self, time_s: FloatArray) -> FloatArray:
        """Return the detector's time of seconds on the ticks' own axis: the way there of :meth:`restore`."""
        return TimeMap(self.real_s, self.short_s).restore(time_s)


def shorten_holes(ticks: Ticks) -> tuple[Ticks, TimeMap]:
    """Shorten holes that are long beside what was seen.

    Args:
        ticks: At least two.

    Returns:
        The ticks, their times from the first, and the way back.
    """
    real_us = ticks.time_us - ticks.time_us[0]
    steps = np.diff(real_us)
    usual = median(steps)
    seen = float(steps[~holes(steps)].sum())
    longest = int(max(_LONGEST_HOLE * seen, _LEAST_LONGEST_HOLE * usual))
    short_us = real_us
    if steps.max() > longest:
        short_us = np.concatenate([[0], np.cumsum(np.minimum(steps, longest))])
    return replace(ticks, time_us=short_us), TimeMap(_seconds(short_us), _seconds(ticks.time_us))


def _seconds(time_us: IntArray) -> FloatArray:
    return time_us.astype(np.float64) * 1e-6


def drop_unseen_epochs(epochs: Epochs, time_us: IntArray) -> Epochs:
    """Leave out epochs that lie in holes; one that begins or ends in a short one does not count for the period.

    Args:
        epochs: Seconds after the first tick.
        time_us: Shape (n,), the ticks' times.
    """
    time_s = (time_us - time_us[0]) * 1e-6
    steps = np.diff(time_s)
    hole = holes(steps)
    if not hole.any() or not epochs.starts_s.size:
        return epochs
    without_ticks = np.concatenate([[0.0], np.cumsum(np.where(hole, steps, 0.0))])
    unseen = np.interp(epochs.ends_s, time_s, without_ticks) - np.interp(epochs.starts_s, time_s, without_ticks)
    length = epochs.ends_s - epochs.starts_s
    vague = np.maximum(_hole_at(epochs.starts_s, time_s, hole), _hole_at(epochs.ends_s, time_s, hole))
    kept = (unseen <= _UNSEEN * length) & (vague <= _VAGUE * length)
    certain = epochs.regular & (vague == 0)
    regular = certain if (certain & kept).sum() >= 2 else epochs.regular
    return Epochs(epochs.starts_s[kept], epochs.ends_s[kept], regular[kept])


def _hole_at(place_s: FloatArray, time_s: FloatArray, hole: npt.NDArray[np.bool_]) -> FloatArray:
    """Return the length in seconds of the hole around each place; 0 where there is none."""
    step = np.clip(np.searchsorted(time_s, place_s) - 1, 0, hole.size - 1)
    return np.where(hole[step], np.diff(time_s)[step], 0.0)
