"""Which GPU or host makes the others of its job wait.

In synchronous training one slow device slows all. Utilisation does not show it: a GPU that waits in a collective stands
at 100 %. Power does: waiting costs about a sixth of the dynamic range (measured on 8 H100, one of which wrote a
checkpoint), so the slow device is the one that does not wait. The mean over a step can hide it, since a throttled
device saves while it computes what the others save while they wait; the shape within the step cannot. So each device's
power, relative to the middle of all, is looked at apart where all draw much, less, and least, and compared with what
that device did in the same run before the cycle slowed.
"""

from __future__ import annotations

import json
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.telemetry import FloatArray

_POWER, _UTILISATION, _CLOCK, _TEMPERATURE = "power_watts", "gpu_utilization", "sm_clock_mhz", "gpu_temperature_celsius"
_CELL_S = 0.5  # readings of a cell are averaged; what is within a step is seen where ticks allow
_WINDOWS_S = (20.0, 30.0, 45.0, 60.0, 90.0, 150.0)
_LEAST_CELLS = 8  # of a window
_MOST_BASELINES = 64  # windows of each length that are remembered
_LEAST_BASELINES = 5
_PARTS = (0.2, 0.4)  # of the cells of a window by common power: the least, the next, and the rest
_LIMIT = 4.5  # standard deviations, at least, at which a device is named
_ABOVE_BASELINE = 1.05  # times the highest of the same run's healthy windows
_NOT_ALIKE = 3.0  # times the usual highest: such a window was something else, not training
_POWER_FLOOR, _UTILISATION_FLOOR, _CLOCK_FLOOR = 0.0025, 0.02, 0.004  # noise that is always reckoned with
_BREAK = 0.93  # of the usual common power: longer below it than a step's dip is no training
_LEAST_BREAK_S = 6.0
_BREAK_CYCLES = 0.6
_IDLE = 0.6  # of the usual common power
_LEAST_IDLE_S, _IDLE_CYCLES = 1.5, 0.35  # below which it is a step that waits
_EDGE_CELLS = 1
_MOST_CELLS = 720
_LEAST_KNOWN = 0.8  # share of a window's cells in which a device must have power
_LEAST_DEVICES = 3
_STATE_VERSION = 1


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


class SlowDeviceWatch:
    """Compares the devices of a job with each other and with themselves before; memory is bounded.

    Args:
        devices: Names of the GPUs or hosts, in the order of the rows given to :meth:`update`.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self.devices = tuple(devices)
        self._time = np.empty(0)
        self._cells: dict[str, npt.NDArray[np.float32]] = {}
        self._part: list[tuple[float, dict[str, FloatArray]]] = []
        self._baselines: dict[float, deque[tuple[float, FloatArray]]] = {}
        self._next_baseline: dict[float, float] = {}
        self._cell_s = _CELL_S
        self._cycle_s = 0.0

    def update(self, time_s: FloatArray, values: Mapping[str, FloatArray], *, cycle_s: float | None = None) -> None:
        """Take ticks.

        Args:
            time_s: Shape (n,), increasing, behind those before.
            values: Metric -> shape (devices, n), NaN where there is no value; power is needed, utilisation, clocks and
                temperatures are used where they are given.
            cycle_s: Shortest cycle of the job that is followed, if any.

        Raises:
            ValueError: The shapes do not fit.
        """
        known = {name: values[name] for name in (_POWER, _UTILISATION, _CLOCK, _TEMPERATURE) if name in values}
        if any(column.shape != (len(self.devices), time_s.size) for column in known.values()):
            raise ValueError(f"expected values of shape ({len(self.devices)}, {time_s.size}) for each metric")
        if cycle_s is not None and np.isfinite(cycle_s):
            self._cycle_s = float(cycle_s)
        if _POWER not in known or not time_s.size:
            return
        self._average(time_s, known)
        for window_s in _WINDOWS_S:
            self._remember(window_s)

    def look(self, slow_since_s: float | None) -> SlowDeviceVerdict:
        """Say which device makes the others wait.

        Args:
            slow_since_s: Since when the job's cycle takes longer; None if it does not. What came before is the
                baseline.
        """
        if slow_since_s is None:
            return SlowDeviceVerdict(None, 1.0, "the cycle has not slowed")
        if len(self.devices) < _LEAST_DEVICES:
            return SlowDeviceVerdict(None, 1.0, f"{len(self.devices)} devices cannot be compared; three or more can")
        for window_s in reversed(_WINDOWS_S):
            features = self._window(window_s, since_s=slow_since_s)
            if features is None:
                continue
            healthy = [each for end_s, each in self._baselines.get(window_s, ()) if end_s <= slow_since_s]
            if len(healthy) >= _LEAST_BASELINES:
                return self._judge(window_s, features, np.array(healthy))
        return SlowDeviceVerdict(
            None, 0.5, f"fewer than {_WINDOWS_S[0]:.0f} s of training since it slowed, or too few before"
        )

    def _judge(self, window_s: float, features: FloatArray, healthy: FloatArray) -> SlowDeviceVerdict:
        base = _middle(healthy, axis=0)

        def centred(each: FloatArray) -> FloatArray:
            own = each - base
            return np.asarray(own - _middle(own, axis=-2, keepdims=True))

        noise = centred(healthy).reshape(-1, features.shape[1])
        used = np.isfinite(features).any(axis=0) & np.isfinite(noise).any(axis=0)
        noise, now = noise[:, used][np.isfinite(noise[:, used]).all(axis=1)], centred(features)[:, used]
        floor = self._floors()[used]
        scale = np.maximum(1.48 * np.median(np.abs(noise), axis=0), floor)
        kept = noise[(np.abs(noise) < 5 * scale).all(axis=1)]
        if len(kept) <= 2 * used.sum():
            return SlowDeviceVerdict(None, 0.5, "too little is known of the devices before the cycle slowed")
        spread = np.cov(kept.T).reshape(used.sum(), used.sum()) + np.diag(floor**2)
        whiten = np.linalg.inv(np.linalg.cholesky(spread))

        def score(each: FloatArray) -> FloatArray:
            return np.asarray(np.nan_to_num(np.linalg.norm(each @ whiten.T, axis=-1)))

        highest = score(centred(healthy)[..., used]).max(axis=1)
        highest = highest[highest <= _NOT_ALIKE * max(float(np.median(highest)), _LIMIT / 2)]
        limit = max(_LIMIT, _ABOVE_BASELINE * float(highest.max(initial=0.0)))
        deviation = score(now)
        order = np.argsort(-deviation)
        weight = np.exp(np.clip((deviation**2 - limit**2) / 2, -700, 300))
        probability = weight / (1 + weight.sum())
        columns = np.full(features.shape, np.nan)
        columns[:, used] = now
        ranked = tuple(
            DeviceSuspicion(
                self.devices[i], float(probability[i]), float(deviation[i]), self._words(columns[i], window_s)
            )
            for i in order[:3]
        )
        best = ranked[0]
        if best.probability <= 0.5:
            reason = (
                f"no device stands out: {best.device}, the first, is {best.deviation:.1f} standard deviations from "
            )
            return SlowDeviceVerdict(
                None, 1 - float(probability.sum()), f"{reason}its usual, {limit:.1f} are needed", ranked, window_s
            )
        reason = f"{best.device} {best.evidence}; {best.deviation:.1f} standard deviations, {limit:.1f} are needed"
        return SlowDeviceVerdict(best.device, best.probability, reason, ranked, window_s)

    def _words(self, row: FloatArray, window_s: float) -> str:
        """What a device does otherwise than before, from its features."""
        least, middle, most, busy, clock, warmer = row.tolist()
        words = []
        if np.isfinite(clock) and abs(clock) > 2 * _CLOCK_FLOOR:
            words.append(f"runs its clock {abs(clock):.1%} {'lower' if clock < 0 else 'higher'}")
        if np.isfinite(busy) and busy < -2 * _UTILISATION_FLOOR:
            words.append(f"is without work in {-busy:.0%} more of the time")
        if least > 2 * _POWER_FLOOR:
            words.append(f"draws {np.expm1(least):.1%} more where the others draw least, as if it did not wait")
        elif least < -2 * _POWER_FLOOR:
            words.append(f"draws {-np.expm1(least):.1%} less where the others draw least")
        if min(middle, most) < -2 * _POWER_FLOOR:
            words.append(f"draws {-np.expm1(min(middle, most)):.1%} less where they work")
        if np.isfinite(warmer) and abs(warmer) >= 3:
            words.append(f"is {abs(warmer):.0f} degrees {'warmer' if warmer > 0 else 'colder'}")
        return f"{', '.join(words) or 'does as before'}, in {window_s:.0f} s against its own time before"

    def _floors(self) -> FloatArray:
        # A temperature is told and proves nothing: its noise is beyond all that is measured.
        return np.array([*[_POWER_FLOOR] * 3, _UTILISATION_FLOOR, _CLOCK_FLOOR, 1e6])

    def _average(self, time_s: FloatArray, values: Mapping[str, FloatArray]) -> None:
        """Add ticks to cells; the newest cell is open until a tick behind it comes."""
        self._cell_s = max(_CELL_S, float(np.median(np.diff(time_s))) if time_s.size > 2 else self._cell_s)
        cell = np.floor(time_s / self._cell_s)
        for at in np.unique(cell):
            inside = cell == at
            block = {name: column[:, inside] for name, column in values.items()}
            if self._part and np.floor(self._part[0][0] / self._cell_s) != at:
                self._close()
            self._part.append((float(time_s[inside][0]), block))

    def _close(self) -> None:
        names = self._part[0][1]
        self._time = np.append(self._time, self._part[0][0])[-_MOST_CELLS:]
        for name in names:
            ticks = np.concatenate([block[name] for _, block in self._part if name in block], axis=1)
            good = np.isfinite(ticks)
            mean = np.where(good, ticks, 0.0).sum(axis=1) / np.maximum(good.sum(axis=1), 1)
            mean = np.where(good.any(axis=1), mean, np.nan).astype(np.float32)
            row = self._cells.get(name)
            if row is None:
                row = np.full((len(self.devices), self._time.size - 1), np.nan, dtype=np.float32)
            self._cells[name] = np.concatenate([row, mean[:, None]], axis=1)[:, -_MOST_CELLS:]
        for name, row in self._cells.items():
            if row.shape[1] < self._time.size:
                self._cells[name] = np.pad(row, ((0, 0), (0, self._time.size - row.shape[1])), constant_values=np.nan)
        self._part = []

    def _training(self) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Common power of all devices, and the cells in which the job trains: no idle, no evaluation."""
        power = self._cells[_POWER]
        # With half of the meters gone, the middle is of the other half.
        common = _middle(np.where(power > 0, power, np.nan), axis=0)
        usual = float(np.nanmedian(common[common > _IDLE * np.nanmax(common)])) if np.isfinite(common).any() else 0.0
        # What is low for a moment is where a step waits, which is what tells; for longer it is no training.
        good = np.isfinite(common)
        cycle_s = min(self._cycle_s, 10 * _LEAST_BREAK_S)
        self._leave_out(good, common < _BREAK * usual, max(_LEAST_BREAK_S, _BREAK_CYCLES * cycle_s))
        self._leave_out(good, common < _IDLE * usual, max(_LEAST_IDLE_S, _IDLE_CYCLES * cycle_s))
        return common, good

    def _leave_out(self, good: npt.NDArray[np.bool_], low: npt.NDArray[np.bool_], least_s: float) -> None:
        """Leave out low stretches of that length, with their edges."""
        edges = np.diff(np.concatenate([[0], low.astype(np.int8), [0]]))
        for first, stop in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True):
            if (stop - first) * self._cell_s >= least_s:
                good[max(first - _EDGE_CELLS, 0) : stop + _EDGE_CELLS + 1] = False

    def _remember(self, window_s: float) -> None:
        """Keep a window of healthy time, every half of its length."""
        if not self._time.size or self._time[-1] < self._next_baseline.get(window_s, -np.inf):
            return
        first = window_s not in self._next_baseline
        self._next_baseline[window_s] = float(self._time[-1]) + (window_s if first else window_s / 4)
        if first:
            return
        features = self._window(window_s, since_s=self._baseline_since(window_s))
        if features is not None:
            kept = self._baselines.setdefault(window_s, deque(maxlen=_MOST_BASELINES))
            kept.append((float(self._time[-1]), features))

    def _baseline_since(self, window_s: float) -> float:
        return float(self._time[-1]) - 2.5 * window_s

    def _window(self, window_s: float, since_s: float) -> FloatArray | None:
        """Features of the devices over the newest training of so many seconds, shape (devices, features), or None."""
        if _POWER not in self._cells:
            return None
        count = max(round(window_s / self._cell_s), _LEAST_CELLS)
        common, good = self._training()
        chosen = np.flatnonzero(good & (self._time >= since_s))[-count:]
        if chosen.size < count:
            return None
        power = self._cells[_POWER][:, chosen].astype(np.float64)
        known = np.isfinite(power) & (power > 0)
        usable = (known.mean(axis=1) >= _LEAST_KNOWN) & (
            np.nanmax(np.where(known, power, 0.0), axis=1) > np.nanmin(np.where(known, power, np.inf), axis=1)
        )
        ratio = np.log(np.where(known, power, np.nan) / common[chosen])
        rank = np.argsort(np.argsort(common[chosen], kind="stable"), kind="stable")
        low, next_low = (round(share * count) for share in _PARTS)
        parts = (rank < low, (rank >= low) & (rank < next_low), rank >= next_low)
        columns = [_mean(ratio[:, part]) for part in parts]
        columns.append(self._other(_UTILISATION, chosen))
        clocks = self._other(_CLOCK, chosen)
        columns.append(np.log(clocks / np.nanmedian(clocks)) if np.isfinite(clocks).any() else clocks)
        columns.append(self._other(_TEMPERATURE, chosen))
        features = np.stack(columns, axis=1)
        features[~usable] = np.nan
        return features if usable.sum() >= _LEAST_DEVICES else None

    def _other(self, name: str, chosen: npt.NDArray[np.intp]) -> FloatArray:
        if name not in self._cells:
            return np.full(len(self.devices), np.nan)
        return _mean(self._cells[name][:, chosen].astype(np.float64))

    def state(self) -> bytes:
        """Serialise the watch as JSON."""
        return json.dumps({
            "version": _STATE_VERSION, "devices": self.devices, "time_s": self._time.tolist(), "cell_s": self._cell_s,
            "cycle_s": self._cycle_s, "cells": {name: _listed(row) for name, row in self._cells.items()},
            "part": [[at, {name: _listed(row) for name, row in block.items()}] for at, block in self._part],
            "baselines": [[w, [[end, _listed(row)] for end, row in kept]] for w, kept in self._baselines.items()],
            "next": list(self._next_baseline.items()),
        }).encode()  # fmt: skip

    @classmethod
    def from_state(cls, data: bytes) -> SlowDeviceWatch:
        """Rebuild a watch from :meth:`state`.

        Raises:
            ValueError: The bytes are no such state, or one of another version.
        """
        try:
            told = json.loads(data)
            if told["version"] != _STATE_VERSION:
                raise ValueError(f"state of version {told['version']}; this release reads {_STATE_VERSION}")
            watch = cls(told["devices"])
            watch._time, watch._cell_s, watch._cycle_s = np.array(told["time_s"]), told["cell_s"], told["cycle_s"]
            watch._cells = {name: np.array(row, dtype=np.float32) for name, row in told["cells"].items()}
            watch._part = [
                (at, {name: np.array(row, dtype=float) for name, row in block.items()}) for at, block in told["part"]
            ]
            for window_s, kept in told["baselines"]:
                rows = ((end, np.array(row, dtype=float)) for end, row in kept)
                watch._baselines[window_s] = deque(rows, maxlen=_MOST_BASELINES)
            watch._next_baseline = dict(told["next"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no state of a slow-device watch: {error}") from error
        return watch


def _listed(values: npt.NDArray[np.floating]) -> list[list[float | None]]:
    """Rows of numbers for JSON, which has no NaN."""
    return [[None if np.isnan(x) else float(x) for x in row] for row in values]


def _mean(columns: FloatArray) -> FloatArray:
    good = np.isfinite(columns)
    total = np.where(good, columns, 0.0).sum(axis=1)
    return np.asarray(np.where(good.any(axis=1), total / np.maximum(good.sum(axis=1), 1), np.nan))


def _middle(values: npt.NDArray[np.floating], *, axis: int, keepdims: bool = False) -> FloatArray:
    """Median of what is known, NaN where nothing is."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice encountered")
        middle: FloatArray = np.asarray(np.nanmedian(values, axis=axis, keepdims=keepdims))
        return middle
