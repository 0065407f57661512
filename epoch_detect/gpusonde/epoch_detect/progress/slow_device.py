"""Which GPU or host makes the others of its job wait.

In synchronous training one slow device slows all. Utilisation does not show it: a GPU that waits in a collective stands
at 100 %. Power does: waiting costs about a sixth of the dynamic range (measured on 8 H100, one of which wrote a
checkpoint), so the slow device is the one that does not wait. The mean over a step can hide it, since a throttled
device saves while it computes what the others save while they wait; the shape within the step cannot. So each device's
power, relative to the middle of all, is looked at apart where all draw much, less, and least, and compared with what
that device did in the same run before the cycle slowed.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, stdtrit

from gpusonde.epoch_detect.progress.seconds import POWER, SM_CLOCK, TEMPERATURE, UTILIZATION
from gpusonde.formatting import percent
from gpusonde.telemetry import FloatArray

_CELL_S = 0.5  # readings of a cell are averaged; what is within a step is seen where ticks allow
_WINDOWS_S = (20.0, 30.0, 45.0, 60.0, 90.0, 150.0)
_LEAST_CELLS = 8  # of a window
_MOST_BASELINES = 64  # windows of each length that are remembered
_LEAST_BASELINES = 9
_OVERLAP = 4  # a window begins a quarter of its length after the one before it
_PARTS = (0.2, 0.4)  # of the cells of a window by common power: the least, the next, and the rest
_LIMIT = 4.1  # standard deviations, at least, at which a device is named
_ABOVE_BASELINE = 1.05  # times the highest of the same run's healthy windows
_ALIKE = 0.7  # of the first's deviation: so much of the second's, and it is not one device
_NOT_ALIKE = 3.0  # times the usual highest: such a window was something else, not training
_POWER_FLOOR, _UTILISATION_FLOOR, _CLOCK_FLOOR = 0.0025, 0.02, 0.004  # noise that is always reckoned with
# A temperature is told and proves nothing: its noise is beyond all that is measured.
_FLOORS = np.array([*[_POWER_FLOOR] * 3, _UTILISATION_FLOOR, _CLOCK_FLOOR, 1e6])
# What a slow device does otherwise than those that wait for it: power where all draw least, more, and most;
# utilisation; clock; temperature. It does not wait, and draws as before or less where it works.
_SIGNS = np.array([
    (1.0, 0.0, 0.0, 0.0, 0.0, 0.0), (1.0, 0.5, 0.0, 0.0, 0.0, 0.0),  # it is as it was, and does not wait
    (1.0, 1.0, 1.0, 0.0, 0.0, 0.0),  # likewise, where steps are shorter than what ticks tell apart
    (1.0, -0.4, -0.4, 0.0, 0.0, 0.0), (0.7, -1.0, -1.0, 0.0, 0.0, 0.0),  # it throttles: power with the clock, or more
    (-1.0, -1.0, -1.0, 0.0, 0.0, 0.0),  # likewise, where steps are shorter than what ticks tell apart
    (0.3, -1.0, 0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, -1.0, 0.0, 0.0), (0.2, 0.0, 0.0, -1.0, 0.0, 0.0),  # without data
    (0.0, 0.0, 0.0, 0.0, -1.0, 0.0), (0.5, -0.5, -0.5, 0.0, -1.0, 0.0),  # its clock is lower
])  # fmt: skip
_BREAK = 0.93  # of the usual common power: longer below it than a step's dip is no training
_LEAST_BREAK_S = 6.0
_BREAK_CYCLES = 0.6
_IDLE = 0.6  # of the usual common power
_LEAST_IDLE_S, _IDLE_CYCLES = 1.5, 0.35  # below which it is a step that waits
_EDGE_CELLS = 1
_LOOSEST = 2.5  # times its length, that a window may last with what is left out of it
_LEAST_KNOWN = 0.8  # share of a window's cells in which a device must have power
_LEAST_DEVICES = 3
# Of their usual power, which devices save at least while they wait for one that is 5 % slower: 1.5 to 4 % were seen.
_LEAST_WAITING = 0.0075


@dataclass(frozen=True)
class DeviceSuspicion:
    """One device of a job.

    Attributes:
        device: Its name.
        probability: That it is the one that makes the others wait, 0..1; what all leave is the probability of none.
        deviation: From its own baseline among the others, in standard deviations.
        evidence: What speaks for it, in words.
    """

    device: str
    probability: float
    deviation: float
    evidence: str


@dataclass(frozen=True)
class SlowDeviceVerdict:
    """Which device makes the others wait.

    Attributes:
        device: Its name, or None, which is the usual answer.
        probability: That the answer is right, 0..1.
        reason: Why, for a human reader.
        ranked: The likeliest three, likeliest first.
        window_s: Seconds of training that were looked at; 0 where there was nothing to look at.
    """

    device: str | None
    probability: float
    reason: str
    ranked: tuple[DeviceSuspicion, ...] = ()
    window_s: float = 0.0


def find_slow_device(
    devices: Sequence[str],
    time_s: FloatArray,
    values: Mapping[str, FloatArray],
    slow_since_s: float,
    *,
    cycle_s: float = 0.0,
) -> SlowDeviceVerdict:
    """Say which device makes the others wait, by how each differs from the others now and before.

    Args:
        devices: Names of the GPUs or hosts.
        time_s: Shape (n,), increasing; some minutes before the job slowed, and since then.
        values: Metric -> shape (devices, n), NaN where there is no value; power is needed, utilisation, clocks and
            temperatures are used where they are given.
        slow_since_s: Since when the job's cycles take longer. What came before is the baseline.
        cycle_s: Shortest cycle of the job that is followed, if any.

    Raises:
        ValueError: The shapes do not fit.
    """
    known = {name: values[name] for name in (POWER, UTILIZATION, SM_CLOCK, TEMPERATURE) if name in values}
    if any(column.shape != (len(devices), time_s.size) for column in known.values()):
        raise ValueError(f"expected values of shape ({len(devices)}, {time_s.size}) for each metric")
    if len(devices) < _LEAST_DEVICES:
        return SlowDeviceVerdict(None, 1.0, f"{len(devices)} devices cannot be compared; three or more can")
    if POWER not in known or time_s.size < 2:
        return SlowDeviceVerdict(None, 0.5, "the power of its devices is not known")
    cells = _Cells.of_ticks(time_s, known, cycle_s)
    for window_s in reversed(_WINDOWS_S):
        latest = cells.latest(window_s, slow_since_s)
        healthy = cells.before(window_s, slow_since_s) if latest is not None else []
        if latest is not None and len(healthy) >= _LEAST_BASELINES:
            verdict = _judge(devices, window_s, latest.features, np.array([each.features for each in healthy]))
            usual = float(np.median([each.common for each in healthy]))
            if verdict.device is None or latest.common < (1 - _LEAST_WAITING) * usual:
                return verdict
            reason = f"nobody waits: they draw no less than before, {latest.common:.0f} W for {usual:.0f} W"
            return replace(verdict, device=None, probability=0.5, reason=reason)
    least_s = _WINDOWS_S[0]
    return SlowDeviceVerdict(None, 0.5, f"fewer than {least_s:.0f} s of training since it slowed, or too few before")


@dataclass(frozen=True)
class _Window:
    """What devices do in some seconds of training.

    Attributes:
        features: Shape (devices, features).
        common: Mean power of the middle device.
    """

    features: FloatArray
    common: float


@dataclass(frozen=True)
class _Cells:
    """Means of the ticks of a device over short times, and which of them are of training.

    Attributes:
        time_s: Shape (cells,).
        cell_s: Their length.
        values: Metric -> shape (devices, cells).
        common: Power of the middle device, shape (cells,).
        trains: Shape (cells,): no idle, no evaluation.
    """

    time_s: FloatArray
    cell_s: float
    values: Mapping[str, FloatArray]
    common: FloatArray
    trains: npt.NDArray[np.bool_]

    @classmethod
    def of_ticks(cls, time_s: FloatArray, values: Mapping[str, FloatArray], cycle_s: float) -> _Cells:
        cell_s = max(_CELL_S, float(np.median(np.diff(time_s))))
        place = np.floor(time_s / cell_s).astype(np.int64)
        # The newest cell is not full yet.
        begins = np.flatnonzero(np.diff(place, prepend=place[0] - 1))
        stop = int(begins[-1])
        begins = begins[:-1]
        means = {}
        for name, column in values.items():
            good = np.isfinite(column[:, :stop])
            total = np.add.reduceat(np.where(good, column[:, :stop], 0.0), begins, axis=1)
            count = np.add.reduceat(good.astype(np.float64), begins, axis=1)
            means[name] = np.where(count > 0, total / np.maximum(count, 1.0), np.nan)
        power = means[POWER]
        # With half of the meters gone, the middle is of the other half.
        common = median_of_known(np.where(power > 0, power, np.nan), axis=0)
        cells = cls(time_s[begins], cell_s, means, common, np.isfinite(common))
        cells._leave_out_pauses(cycle_s)
        return cells

    def _leave_out_pauses(self, cycle_s: float) -> None:
        common = self.common
        if not np.isfinite(common).any():
            return
        usual = float(np.nanmedian(common[common > _IDLE * np.nanmax(common)]))
        # What is low for a moment is where a step waits, which is what tells; for longer it is no training.
        cycle_s = min(cycle_s, 10 * _LEAST_BREAK_S)
        self._leave_out(common < _BREAK * usual, max(_LEAST_BREAK_S, _BREAK_CYCLES * cycle_s))
        self._leave_out(common < _IDLE * usual, max(_LEAST_IDLE_S, _IDLE_CYCLES * cycle_s), newest=True)

    def _leave_out(self, low: npt.NDArray[np.bool_], least_s: float, *, newest: bool = False) -> None:
        """Leave out low stretches of that length with their edges; the newest too, if asked, which may yet reach it."""
        edges = np.diff(np.concatenate([[0], low.astype(np.int8), [0]]))
        for first, stop in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True):
            if (stop - first) * self.cell_s >= least_s or (newest and stop == low.size):
                self.trains[max(first - _EDGE_CELLS, 0) : stop + _EDGE_CELLS + 1] = False

    def _count(self, window_s: float) -> int:
        return max(round(window_s / self.cell_s), _LEAST_CELLS)

    def latest(self, window_s: float, since_s: float) -> _Window | None:
        """The newest training of so many seconds, None where there is less since then."""
        count = self._count(window_s)
        chosen = np.flatnonzero(self.trains & (self.time_s >= since_s))[-count:]
        return self._window(chosen) if chosen.size == count else None

    def before(self, window_s: float, since_s: float) -> list[_Window]:
        """The same of earlier stretches, each overlapping the one before it."""
        count = self._count(window_s)
        chosen = np.flatnonzero(self.trains & (self.time_s < since_s))
        found: list[_Window] = []
        for stop in range(chosen.size, count - 1, -max(count // _OVERLAP, 1)):
            piece = chosen[stop - count : stop]
            if self.time_s[piece[-1]] - self.time_s[piece[0]] > _LOOSEST * window_s:
                continue
            if (window := self._window(piece)) is not None:
                found.append(window)
            if len(found) == _MOST_BASELINES:
                break
        return found

    def _window(self, chosen: npt.NDArray[np.intp]) -> _Window | None:
        """Some cells, None where too few devices have power in them."""
        power, common = self.values[POWER][:, chosen], self.common[chosen]
        known = np.isfinite(power) & (power > 0)
        highest = np.where(known, power, 0.0).max(axis=1)
        usable = (known.mean(axis=1) >= _LEAST_KNOWN) & (highest > np.where(known, power, np.inf).min(axis=1))
        if usable.sum() < _LEAST_DEVICES:
            return None
        ratio = np.log(np.where(known, power, np.nan) / common)
        rank = np.argsort(np.argsort(common, kind="stable"), kind="stable")
        low, next_low = (round(share * chosen.size) for share in _PARTS)
        parts = (rank < low, (rank >= low) & (rank < next_low), rank >= next_low)
        columns = [mean_of_known(ratio[:, part], axis=1) for part in parts]
        columns.append(self._other(UTILIZATION, chosen))
        clocks = self._other(SM_CLOCK, chosen)
        columns.append(np.log(clocks / np.nanmedian(clocks)) if np.isfinite(clocks).any() else clocks)
        columns.append(self._other(TEMPERATURE, chosen))
        features = np.stack(columns, axis=1)
        features[~usable] = np.nan
        return _Window(features, float(common.mean()))

    def _other(self, name: str, chosen: npt.NDArray[np.intp]) -> FloatArray:
        if name not in self.values:
            return np.full(len(self.values[POWER]), np.nan)
        return mean_of_known(self.values[name][:, chosen], axis=1)


def _judge(devices: Sequence[str], window_s: float, features: FloatArray, healthy: FloatArray) -> SlowDeviceVerdict:
    base = median_of_known(healthy, axis=0)

    def centred(each: FloatArray) -> FloatArray:
        own = each - base
        return np.asarray(own - median_of_known(own, axis=-2, keepdims=True))

    noise = centred(healthy).reshape(-1, features.shape[1])
    used = np.isfinite(features).any(axis=0) & np.isfinite(noise).any(axis=0)
    noise, now = noise[:, used][np.isfinite(noise[:, used]).all(axis=1)], centred(features)[:, used]
    floor = _FLOORS[used]
    scale = np.maximum(1.48 * np.median(np.abs(noise), axis=0), floor)
    kept = noise[(np.abs(noise) < 5 * scale).all(axis=1)]
    if len(kept) <= 2 * used.sum():
        return SlowDeviceVerdict(None, 0.5, "too little is known of the devices before the cycle slowed")
    spread = np.cov(kept.T).reshape(used.sum(), used.sum()) + np.diag(floor**2)
    inverse = np.linalg.inv(spread)
    signs = _SIGNS[:, used]
    signs = signs[(signs != 0).any(axis=1)]
    filters = signs @ inverse / np.sqrt(np.einsum("ki,ij,kj->k", signs, inverse, signs))[:, None]

    def score(each: FloatArray) -> FloatArray:
        """How far it is, in standard deviations, towards what a slow device does."""
        return np.asarray(np.nan_to_num((each @ filters.T).max(axis=-1)).clip(0.0))

    highest = score(centred(healthy)[..., used]).max(axis=1)
    highest = highest[highest <= _NOT_ALIKE * max(float(np.median(highest)), _LIMIT / 2)]
    # The spread is known from so many windows only as do not overlap.
    freedom = (1 + (len(healthy) - 1) / _OVERLAP) * (len(devices) - 1) - used.sum()
    limit = max(-float(stdtrit(max(freedom, 1.0), ndtr(-_LIMIT))), _ABOVE_BASELINE * float(highest.max(initial=0.0)))
    deviation = score(now)
    order = np.argsort(-deviation)
    weight = np.exp(np.clip((deviation**2 - limit**2) / 2, -700, 300))
    probability = weight / (1 + weight.sum())
    columns = np.full(features.shape, np.nan)
    columns[:, used] = now
    ranked = tuple(
        DeviceSuspicion(devices[i], float(probability[i]), float(deviation[i]), _words(columns[i], window_s))
        for i in order[:3]
    )
    best, second = ranked[:2]
    if second.deviation > max(limit, _ALIKE * best.deviation):
        # One slow device leaves the others as they were among themselves.
        reason = f"{best.device} and {second.device} differ from the others alike"
        return SlowDeviceVerdict(None, 0.5, reason, ranked, window_s)
    if best.probability <= 0.5:
        reason = f"no device stands out: {best.device}, the first, is {best.deviation:.1f} standard deviations from "
        return SlowDeviceVerdict(
            None, 1 - float(probability.sum()), f"{reason}its usual, {limit:.1f} are needed", ranked, window_s
        )
    reason = f"{best.device} {best.evidence}; {best.deviation:.1f} standard deviations, {limit:.1f} are needed"
    return SlowDeviceVerdict(best.device, best.probability, reason, ranked, window_s)


def _words(row: FloatArray, window_s: float) -> str:
    """What a device does otherwise than before, from its features."""
    least, middle, most, busy, clock, warmer = row.tolist()
    words = []
    if np.isfinite(clock) and abs(clock) > 2 * _CLOCK_FLOOR:
        words.append(f"runs its clock {percent(abs(clock), 1)} {'lower' if clock < 0 else 'higher'}")
    if np.isfinite(busy) and busy < -2 * _UTILISATION_FLOOR:
        words.append(f"is without work in {percent(-busy)} more of the time")
    if least > 2 * _POWER_FLOOR:
        words.append(f"draws {percent(np.expm1(least), 1)} more where the others draw least, as if it did not wait")
    elif least < -2 * _POWER_FLOOR:
        words.append(f"draws {percent(-np.expm1(least), 1)} less where the others draw least")
    if min(middle, most) < -2 * _POWER_FLOOR:
        words.append(f"draws {percent(-np.expm1(min(middle, most)), 1)} less where they work")
    if np.isfinite(warmer) and abs(warmer) >= 3:
        words.append(f"is {abs(warmer):.0f} degrees {'warmer' if warmer > 0 else 'colder'}")
    return f"{', '.join(words) or 'does as before'}, in {window_s:.0f} s against its own time before"


def mean_of_known(values: npt.NDArray[np.floating], *, axis: int | None = None) -> FloatArray:
    """Mean of what is known, NaN where nothing is."""
    good = np.isfinite(values)
    total, count = np.where(good, values, 0.0).sum(axis=axis), good.sum(axis=axis)
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), np.nan))


def median_of_known(values: npt.NDArray[np.floating], *, axis: int, keepdims: bool = False) -> FloatArray:
    """Median of what is known, NaN where nothing is."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice encountered")
        middle: FloatArray = np.asarray(np.nanmedian(values, axis=axis, keepdims=keepdims))
        return middle
