"""``slowdown_causes``: why a job's cycles take longer, as far as the metrics of its GPUs show it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gpusonde.epoch_detect.progress.seconds import MEMORY, POWER, SM_CLOCK, TEMPERATURE, UTILIZATION
from gpusonde.epoch_detect.progress.slow_device import SlowDeviceVerdict, mean_of_known, median_of_known
from gpusonde.formatting import percent
from gpusonde.telemetry import FloatArray

REPLAYS, XIDS, REASONS = "pcie_replay_count", "xid_count", "clock_event_reason_bits"
# nvmlClocksEventReasons in nvml.h; those that hold a GPU back which works.
_REASONS = {
    0x40: "thermal slowdown by hardware", 0x20: "thermal slowdown by software", 0x80: "power brake by hardware",
    0x4: "power cap", 0x8: "slowdown by hardware", 0x10: "sync boost", 0x2: "clocks that applications set",
}  # fmt: skip
_MORE_REASON = 0.2  # of the readings at work, that a reason is given in more than before
_LINKS = (
    ("NVLink", ("nvlink_tx_bytes_per_second", "nvlink_rx_bytes_per_second")),
    ("PCIe", ("pcie_tx_bytes_per_second", "pcie_rx_bytes_per_second")),
)
CAUSE_METRICS = (
    POWER, UTILIZATION, SM_CLOCK, TEMPERATURE, MEMORY, REPLAYS, XIDS, REASONS,
    *(name for _, names in _LINKS for name in names),
)  # fmt: skip
_WINDOW_S = 300.0  # before the change, and after it
_FEWEST = 8  # readings in each
_WORKS = 0.6  # quantile of the power, above which a GPU works
_LEAST_CLOCK, _LEAST_POWER, _LEAST_PEAK = 0.015, 0.03, 0.08  # that clock, power and peak rate of a link must fall by
_LEAST_WAITS = 0.02  # of the time, that pauses must grow by
_WARMER_C = 3.0
_HOT_C = 80.0
_WAITS_IN_KERNEL = 0.9  # utilisation in a pause
_LEAST_RATE = 1e8  # bytes per second of a link that matters
_LEAST_REPLAYS = 10.0
_TENANT_BYTES = 2.0**28
_GROWS = 0.02  # of the memory in use, over a window


def slowdown_causes(
    devices: Sequence[str], time_s: FloatArray, values: Mapping[str, FloatArray], since_s: float
) -> list[str]:
    """Compare the minutes after a change with those before.

    Args:
        devices: Names of the GPUs.
        time_s: Shape (n,), increasing.
        values: Metric -> shape (devices, n), NaN where there is no value; any of :data:`CAUSE_METRICS`.
        since_s: Since when the cycles take longer.

    Returns:
        Causes in words and figures, the most telling first; empty where the metrics show none.
    """
    before = (time_s >= since_s - _WINDOW_S) & (time_s < since_s)
    after = (time_s >= since_s) & (time_s < since_s + _WINDOW_S)
    if before.sum() < _FEWEST or after.sum() < _FEWEST:
        return []
    sides = [{name: column[:, side] for name, column in values.items()} for side in (before, after)]
    # What is not known, or nothing, on one side compares with nothing.
    with np.errstate(divide="ignore", invalid="ignore"):
        looks = (
            _clocks(devices, *sides), _links(devices, *sides), _tenant(devices, *sides), _pauses(*sides),
            _growth(*sides), _faults(devices, *sides),
        )  # fmt: skip
    return [said for said in looks if said]


def slowdown_in_words(causes: Sequence[str], verdict: SlowDeviceVerdict) -> str:
    """Say why cycles take longer, by :func:`slowdown_causes`, and which device drags, in one line."""
    said = "; ".join(causes) or "cause unknown: the metrics do not show it"
    if verdict.device is None:
        return said
    return f"{said}; drags: {verdict.device}, p {verdict.probability:.2f} ({verdict.ranked[0].evidence})"


_Side = Mapping[str, FloatArray]


def _clocks(devices: Sequence[str], before: _Side, after: _Side) -> str:
    """Clocks, or where they are not known power, that fell while the GPUs work."""
    if SM_CLOCK in before:
        old, new = (_at_work(side, SM_CLOCK) for side in (before, after))
        fell = 1 - new / old
        slow = fell >= _LEAST_CLOCK
        if slow.any():
            worst = int(np.nanargmax(fell))
            said = f"the SM clock of {_named(devices, slow)} fell by {percent(fell[worst], 1)} ({old[worst]:.0f} to"
            return f"{said} {new[worst]:.0f} MHz){_heat(before, after, slow)}{_reasons(before, after, slow)}"
        if np.isfinite(fell).all():
            return ""
    if POWER not in before:
        return ""
    # The middle, not the peak: since when it is slower is not known to the second.
    old, new = (_at_work(side, POWER) for side in (before, after))
    if UTILIZATION in before and mean_of_known(_peak(after[UTILIZATION]) - _peak(before[UTILIZATION])) < -_LEAST_POWER:
        return ""
    fell = 1 - new / old
    slow = fell >= _LEAST_POWER
    if not slow.any():
        return ""
    less = percent(float(np.nanmean(fell[slow])), 1)
    said = f"{_named(devices, slow)} draws {less} less power where it works, as if throttled"
    return said + _heat(before, after, slow) + _reasons(before, after, slow)


def _reasons(before: _Side, after: _Side, slow: npt.NDArray[np.bool_]) -> str:
    """Reasons that the driver gives for the clocks of slow GPUs more often than before."""
    if REASONS not in before or REASONS not in after:
        return ""
    old, new = (_while_working(side, REASONS)[slow].ravel() for side in (before, after))
    if not np.isfinite(new).any():
        return ""
    more = {bit: _share_with(new, bit) - _share_with(old, bit) for bit in _REASONS}
    told = [_REASONS[bit] for bit in sorted(more, key=lambda bit: -more[bit]) if more[bit] >= _MORE_REASON]
    return f", by the driver: {' and '.join(told)}" if told else ", the driver gives no new reason"


def _share_with(readings: FloatArray, bit: int) -> float:
    """Return the share of readings with a bit; means of unlike ones, which are no whole numbers, are left out."""
    known = readings[np.isfinite(readings) & (readings == np.floor(readings))].astype(np.int64)
    return float(((known & bit) > 0).mean()) if known.size else 0.0


def _heat(before: _Side, after: _Side, slow: npt.NDArray[np.bool_]) -> str:
    if TEMPERATURE not in before:
        return ""
    old, new = (median_of_known(side[TEMPERATURE], axis=1)[slow] for side in (before, after))
    if not np.isfinite(new).any():
        return ""
    hottest = float(np.nanmax(new))
    warmer = bool((new - old >= _WARMER_C).any())
    return f", at {hottest:.0f} degrees" if warmer or hottest >= _HOT_C else f", not for heat ({hottest:.0f} degrees)"


def _pauses(before: _Side, after: _Side) -> str:
    """Time in which no GPU works: without a kernel it waits for data, within one for the others."""
    said, after = "", _without_single_rest(before, after)
    if UTILIZATION in before:
        old, new = (float(mean_of_known(side[UTILIZATION])) for side in (before, after))
        if old - new >= _LEAST_WAITS:
            return f"the GPUs are without work in {percent(old - new, 1)} more of the time: they wait for data"
    if POWER in before:
        common = [mean_of_known(side[POWER], axis=0) for side in (before, after)]
        if not all(np.isfinite(each).any() for each in common):
            return ""
        lowest, usual = float(np.nanmin(np.concatenate(common))), float(np.nanquantile(common[0], 0.75))
        low = [np.asarray(each < (lowest + usual) / 2) for each in common]
        shares = [each.sum() / np.isfinite(side).sum() for each, side in zip(low, common, strict=True)]
        more = float(shares[1] - shares[0])
        if more >= _LEAST_WAITS:
            said = f"the GPUs pause in {percent(more, 1)} more of the time"
            use = after[UTILIZATION][:, low[1]] if UTILIZATION in after else np.empty(0)
            if float(mean_of_known(use)) >= _WAITS_IN_KERNEL:
                said += ", within a kernel: they wait for communication"
    return said


def _without_single_rest(before: _Side, after: _Side) -> _Side:
    """Leave out the longest pause where there is one more as long than before: a checkpoint falls on one side alone."""
    name = POWER if POWER in before else UTILIZATION
    if name not in before:
        return after
    common = [mean_of_known(side[name], axis=0) for side in (before, after)]
    if not all(np.isfinite(each).any() for each in common):
        return after
    limit = (np.nanmin(common[1]) + np.nanquantile(common[0], 0.75)) / 2
    changes = (np.diff((each < limit).astype(np.int8), prepend=0, append=0) for each in common)
    old, new = (np.flatnonzero(each).reshape(-1, 2) for each in changes)
    if not new.size:
        return after
    begin, end = new[np.diff(new, axis=1).argmax()]
    as_long_before, as_long = (int((2 * np.diff(each, axis=1) >= end - begin).sum()) for each in (old, new))
    if as_long != as_long_before + 1:
        return after
    return {metric: np.delete(column, slice(begin, end), axis=1) for metric, column in after.items()}


def _links(devices: Sequence[str], before: _Side, after: _Side) -> str:
    """Links that repeat packets, or are no longer as fast at their fastest."""
    if REPLAYS in before:
        old, new = (_grown(side[REPLAYS]) for side in (before, after))
        bad = new >= np.maximum(_LEAST_REPLAYS, 3 * old)
        if bad.any():
            return f"PCIe of {_named(devices, bad)} repeated {np.nanmax(new):.0f} packets ({np.nanmax(old):.0f} before)"
    for link, names in _LINKS:
        known = [name for name in names if name in before]
        if not known:
            continue
        old, new = (np.sum([_peak(side[name]) for name in known], axis=0) for side in (before, after))
        bad = (old >= _LEAST_RATE) & (1 - new / np.maximum(old, 1.0) >= _LEAST_PEAK)
        if bad.any():
            said = f"{link} of {_named(devices, bad)} moves at most {np.nanmin(new[bad]) / 1e9:.3g} GB/s"
            return f"{said} ({np.nanmin(old[bad]) / 1e9:.3g} before): communication takes longer"
    return ""


def _tenant(devices: Sequence[str], before: _Side, after: _Side) -> str:
    """Memory that some of the GPUs have in use besides what all have."""
    if MEMORY not in before:
        return ""
    more = median_of_known(after[MEMORY], axis=1) - median_of_known(before[MEMORY], axis=1)
    more = more - median_of_known(more, axis=0) if len(devices) > 2 else more
    used = more >= _TENANT_BYTES
    if not used.any():
        return ""
    return f"{np.nanmax(more) / 2**30:.2g} GiB more are in use on {_named(devices, used)}: another process runs there"


def _growth(before: _Side, after: _Side) -> str:
    if MEMORY not in before:
        return ""
    parts = [part for side in (before, after) for part in np.array_split(side[MEMORY], 3, axis=1)]
    thirds = [float(mean_of_known(part)) for part in parts]
    rises = np.diff(thirds)
    if not (rises > 0).all() or thirds[-1] - thirds[0] < 2 * _GROWS * thirds[0]:
        return ""
    return f"the memory in use grows steadily, from {thirds[0] / 2**30:.3g} to {thirds[-1] / 2**30:.3g} GiB"


def _faults(devices: Sequence[str], before: _Side, after: _Side) -> str:
    if XIDS not in before:
        return ""
    bad = _grown(np.concatenate([before[XIDS][:, -1:], after[XIDS]], axis=1)) > 0
    return f"the driver reported an XID of {_named(devices, bad)}" if bad.any() else ""


def _at_work(side: _Side, name: str) -> FloatArray:
    """Middle value of each GPU where it works."""
    return median_of_known(_while_working(side, name), axis=1)


def _while_working(side: _Side, name: str) -> FloatArray:
    if POWER not in side:
        return side[name]
    power = side[POWER]
    works = power >= np.quantile(np.nan_to_num(power), _WORKS, axis=1, keepdims=True)
    return np.where(works, side[name], np.nan)


def _peak(column: FloatArray) -> FloatArray:
    known = np.asarray(np.isfinite(column).any(axis=1))
    filled = np.where(known[:, None], column, 0.0)
    return np.asarray(np.where(known, np.nanquantile(filled, 0.9, axis=1), np.nan))


def _grown(column: FloatArray) -> FloatArray:
    """By how much a counter grew, 0 where it is not known."""
    known = np.isfinite(column)
    least = np.where(known, column, math.inf).min(axis=1)
    most = np.where(known, column, -math.inf).max(axis=1)
    return np.asarray(np.where(known.any(axis=1), most - least, 0.0))


def _named(devices: Sequence[str], chosen: npt.NDArray[np.bool_]) -> str:
    which = np.flatnonzero(chosen)
    if which.size == len(devices) > 1:
        return f"each of the {len(devices)} GPUs"
    return devices[which[0]] if which.size == 1 else f"{which.size} of {len(devices)} GPUs ({devices[which[0]]}, ...)"
