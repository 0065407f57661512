"""Which share of a run the GPU idled, and which share was lost in stalls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpusonde.epoch_detect.ticks import Ticks, active_range, busy_ticks, seconds_seen, usable_metrics
from gpusonde.telemetry import FloatArray


@dataclass(frozen=True)
class Shares:
    """Shares of the time from the first to the last activity that was seen; ratios, NaN without activity.

    Attributes:
        idle: The GPU did not work: validation on the host, checkpoints, waiting for data, stalls.
        stalled: Idle that an epoch of this run does not usually have, and time between epochs that belongs to none.
    """

    idle: float
    stalled: float


def time_shares(
    time_s: FloatArray, values: Mapping[str, FloatArray], starts_s: FloatArray, ends_s: FloatArray
) -> Shares:
    """Measure idle and stalls.

    Idle is what lies under a twentieth of the metrics' own high level. The usual idle of an epoch is the median over
    the epochs; what one has beyond it counts as stalled, as does the time between the end of one epoch and the start of
    the next. Holes count as neither.

    Args:
        time_s: Shape (n,), increasing.
        values: Metric -> shape (n,).
        starts_s: Shape (epochs,), may be empty.
        ends_s: Shape (epochs,).
    """
    names = usable_metrics(tuple(values))
    if time_s.size < 2 or not names:
        return Shares(float("nan"), float("nan"))
    columns = np.array([values[name] for name in names], dtype=np.float32)
    ticks = Ticks(np.round((time_s - time_s[0]) * 1e6).astype(np.int64), columns, names)
    first, stop = active_range(ticks)
    if stop - first < 2:
        return Shares(float("nan"), float("nan"))
    seen = seconds_seen(time_s)
    idle = np.cumsum(np.where(busy_ticks(ticks), 0.0, seen))
    known = np.cumsum(seen)
    total = float(known[stop - 1] - known[first])
    if total <= 0:
        return Shares(float("nan"), float("nan"))

    def between(amount: FloatArray, begin: FloatArray, end: FloatArray) -> FloatArray:
        return np.asarray(np.interp(end, time_s, amount) - np.interp(begin, time_s, amount))

    stalled = 0.0
    if starts_s.size:
        inside = between(idle, starts_s, ends_s)
        stalled += float(np.maximum(inside - np.median(inside), 0.0).sum())
        stalled += float(np.maximum(between(known, ends_s[:-1], starts_s[1:]), 0.0).sum())
    return Shares(float(idle[stop - 1] - idle[first]) / total, min(1.0, stalled / total))
