"""Ticks as the detector sees them: float32 values at whole microseconds, and where among them the GPU works.

Values cross the wire as float32 and times as whole microseconds. Rounding to that first, always, is what makes a trace
file and the same ticks out of the collector give the same epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.telemetry import FloatArray, MetricKind, SamplingClass, Trace, TraceError, Unit, metric

IntArray = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]

LEAST_TICKS = 32
_HOLE = 5.0  # usual distances between ticks: a longer one is a hole, of which nothing is known
_NEIGHBOURS = 5  # steps on either side that tell a slower rate from a hole
_SLOWER = 1.9  # usual distances: below it is jitter; the first slower rate of an agent is half of the full one
_OTHER_RATE = 0.05  # share of the ticks that make another rate

# Metrics that react within a tick or two, best first; used for the places of the boundaries.
_FASTEST_FIRST = ("sm_active", "graphics_active", "dram_active", "tensor_active", "gpu_utilization")
# Says what is allocated, not what is being done; slow clocks and temperatures likewise follow, they do not lead.
_NOT_ACTIVITY = frozenset({Unit.BYTES, Unit.CELSIUS, Unit.MEGAHERTZ, Unit.COUNT, Unit.BITS, Unit.JOULES})
_BUSY_SHARE = 0.05  # of a metric's own high level; warm-up before the first epoch reaches about a tenth of it
_LEAST_HOLE_S = 10.0  # recorded logs have holes of up to 9 s from a busy driver
_LEAST_HOLE_TICKS = 20
_HIGH = 97  # percentile that is a metric's usual high level
_LEVEL_RANK = 20  # a metric's high level is its 20th largest value: idle around the activity does not move it


@dataclass(frozen=True)
class Ticks:
    """Ticks of one GPU.

    Attributes:
        time_us: Shape (n,), strictly increasing, whole microseconds from any origin.
        values: Shape (metrics, n), NaN where there is none.
        names: The metrics' names.
        merged: Ticks of the run that each is the mean of.
    """

    time_us: IntArray
    values: Float32Array
    names: tuple[str, ...]
    merged: int = 1

    def __len__(self) -> int:
        return int(self.time_us.size)

    def slice(self, first: int, stop: int) -> Ticks:
        """Return ticks ``first`` to ``stop - 1``."""
        return Ticks(self.time_us[first:stop], self.values[:, first:stop], self.names, self.merged)


def choose_metrics(names: Sequence[str]) -> tuple[str, ...]:
    """Pick the metrics that tell what a GPU is doing; if there is none among them, every gauge."""
    active = tuple(n for n in names if _is_activity(n))
    return active or tuple(n for n in names if metric(n).kind is MetricKind.GAUGE)


def fastest_first(names: Sequence[str]) -> list[int]:
    """Indices of the metrics, those that react fastest first; power, a one-second average on many boards, last."""

    def rank(index: int) -> int:
        name = names[index]
        if name in _FASTEST_FIRST:
            return _FASTEST_FIRST.index(name)
        return len(_FASTEST_FIRST) + (metric(name).unit is not Unit.RATIO) + 2 * (metric(name).unit is Unit.WATTS)

    return sorted(range(len(names)), key=rank)


def warn_of_holes(time_s: FloatArray) -> tuple[str, ...]:
    """Name the longest stretch without ticks, if it is long enough to look like a stopped sampler or a stepped clock.

    Args:
        time_s: Shape (n,), strictly increasing.
    """
    if time_s.size < LEAST_TICKS:
        return ()
    steps = np.diff(time_s)
    holes = steps > max(_LEAST_HOLE_S, _LEAST_HOLE_TICKS * float(np.median(steps)))
    if not holes.any():
        return ()
    longest = int(np.argmax(steps))
    others = int(holes.sum()) - 1
    more = f" ({others} more of this kind)" if others else ""
    where = f"no ticks for {steps[longest]:,.1f} s after {time_s[longest]:,.1f} s{more}"
    advice = "if the job did not go on meanwhile, cut the trace there and look at the parts"
    return (f"{where}: the sampler stood still or the clock jumped; {advice}",)


def select_values(trace: Trace, metrics: Sequence[str] | None) -> tuple[tuple[str, ...], FloatArray]:
    """Return names and values, shape (metrics, n), of the metrics to use.

    Raises:
        gpusonde.telemetry.TraceError: A metric that was asked for is not in the trace.
        gpusonde.telemetry.UnknownMetricError: A metric that was asked for does not exist.
    """
    names = tuple(trace.select(metrics).metrics) if metrics is not None else choose_metrics(trace.metrics)
    if metrics is not None and not names:
        raise TraceError("no metric was chosen; leave the choice out to use all that the trace has")
    return names, np.array([trace.values[n] for n in names]).reshape(len(names), len(trace))


def average_ticks(devices: Sequence[Ticks]) -> Ticks:
    """Average the GPUs of one job, each scaled to the usual high level of all; on the times of the one seen longest.

    Args:
        devices: One or more, times counted from the same moment; metrics that one of them lacks are left out.
    """
    axis = max(devices, key=lambda d: int(d.time_us[-1] - d.time_us[0]) if len(d) else -1)
    names = [name for name in axis.names if all(name in d.names for d in devices if len(d))]
    rows = []
    for name in names:
        columns, highs = [], []
        for device in devices:
            column = device.values[device.names.index(name)].astype(np.float64) if len(device) else np.empty(0)
            finite = np.isfinite(column)
            high = float(np.percentile(column[finite], _HIGH)) if finite.sum() >= LEAST_TICKS else 0.0
            if high > 0:
                place = np.interp(axis.time_us, device.time_us[finite], column[finite], left=np.nan, right=np.nan)
                columns.append(place / high)
                highs.append(high)
        if columns:
            scaled = np.array(columns)
            seen = np.isfinite(scaled)
            mean = np.where(seen, scaled, 0.0).sum(axis=0) / np.maximum(seen.sum(axis=0), 1)
            rows.append(np.where(seen.any(axis=0), mean * float(np.mean(highs)), np.nan))
        else:
            rows.append(np.full(len(axis), np.nan))
    values = np.array(rows, dtype=np.float32).reshape(len(names), len(axis))
    return Ticks(axis.time_us, values, tuple(names), axis.merged)


def holes(steps: FloatArray | IntArray) -> npt.NDArray[np.bool_]:
    """Say which steps from tick to tick are holes.

    One that is much longer than usual is, unless those right before it or right after it are like it: an agent samples
    less often while no GPU works or hypothesis is dear, and its ticks then speak for the longer time.

    Args:
        steps: Shape (n,), n at least 1, positive.
    """
    usual = float(np.median(steps))
    found = steps > _HOLE * usual
    if steps.size <= _NEIGHBOURS or not found.any():
        return np.asarray(found)
    around = np.median(np.lib.stride_tricks.sliding_window_view(steps, _NEIGHBOURS), axis=1)
    nearby = np.zeros(steps.size)
    nearby[_NEIGHBOURS:] = around[:-1]
    nearby[:-_NEIGHBOURS] = np.maximum(nearby[:-_NEIGHBOURS], around[1:])
    return np.asarray(found & ((steps > _HOLE * nearby) | (nearby < _SLOWER * usual)))


def has_several_rates(time_s: FloatArray) -> bool:
    """Say whether a twentieth of the ticks and more, several in a row, lie clearly further apart than others do.

    Args:
        time_s: Shape (n,), n at least 2, increasing.
    """
    steps = np.diff(time_s)
    # Where the median of five neighbours is far, three of them are: few far ones are no twentieth.
    if steps.size < LEAST_TICKS or (steps >= _SLOWER * steps.min()).sum() < 0.5 * _OTHER_RATE * steps.size:
        return False
    around = np.median(np.lib.stride_tricks.sliding_window_view(steps, _NEIGHBOURS), axis=1)
    close, far = np.quantile(around, [_OTHER_RATE, 1 - _OTHER_RATE])
    return bool(far >= _SLOWER * close)


def measure_closest_step(time_s: FloatArray, usual_s: float) -> float:
    """Return the seconds from tick to tick where they lay clearly closer than in the median for a while.

    Args:
        time_s: Shape (n,), n at least ``LEAST_TICKS``, increasing.
        usual_s: What to return where they never did.
    """
    several = LEAST_TICKS - 1
    closest = float((time_s[several:] - time_s[:-several]).min()) / several
    return closest if _SLOWER * closest <= np.median(np.diff(time_s)) else usual_s


def measure_seen_seconds(time_s: FloatArray) -> FloatArray:
    """For how many seconds each tick speaks: those since the tick before it, none after a hole.

    Args:
        time_s: Shape (n,), n at least 2, increasing.
    """
    steps = np.diff(time_s, prepend=time_s[0])
    return np.where(np.concatenate([[False], holes(steps[1:])]), 0.0, steps)


def active_range(ticks: Ticks) -> tuple[int, int]:
    """First busy tick and one past the last; (0, 0) if the GPU never works."""
    where = np.flatnonzero(active_ticks(ticks))
    return (int(where[0]), int(where[-1]) + 1) if where.size else (0, 0)


def active_ticks(ticks: Ticks) -> npt.NDArray[np.bool_]:
    """Shape (n,), whether the GPU works.

    Metrics with a true zero decide if there is one; power, whose idle level is unknown, only in their absence.
    """
    busy = np.zeros(len(ticks), dtype=bool)
    # One that the driver never gave decides nothing.
    known = [(n, column, finite) for n, column in zip(ticks.names, ticks.values, strict=True)
             if (finite := np.isfinite(column)).any()]  # fmt: skip
    zero_based = [metric(n).unit in (Unit.RATIO, Unit.BYTES_PER_SECOND) for n, *_ in known]
    for (_, column, finite), has_zero in zip(known, zero_based, strict=True):
        if has_zero is not any(zero_based):
            continue
        values = np.where(finite, column, np.nanmin(column)).astype(np.float64)
        # One odd tick is neither a level nor activity.
        values = middle_of_three(values)
        rank = min(_LEVEL_RANK, max(1, values.size // 8))
        high = float(np.partition(values, -rank)[-rank])
        if has_zero:
            busy |= values > max(_BUSY_SHARE * high, 1e-6)
        else:
            low = float(np.partition(values, rank - 1)[rank - 1])
            busy |= (values > low + 0.3 * (high - low)) & (high - low > 1e-6 * max(abs(high), 1.0))
    return busy


def middle_of_three(values: FloatArray) -> FloatArray:
    """Return the median of each value and its two neighbours; the first and the last stay."""
    middle = values.copy()
    left, here, right = values[:-2], values[1:-1], values[2:]
    middle[1:-1] = np.maximum(np.minimum(left, here), np.minimum(np.maximum(left, here), right))
    return middle


def _is_activity(name: str) -> bool:
    entry = metric(name)
    fast = entry.sampling_class is SamplingClass.FAST
    return entry.kind is MetricKind.GAUGE and fast and entry.unit not in _NOT_ACTIVITY
