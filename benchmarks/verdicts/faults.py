"""What a healthy recording would have shown, had something gone wrong.

One device takes x longer: every step takes (1 + x), so time is stretched for all, and the others wait x / (1 + x) of
the step at the power of a spinning collective. That power is measured: while one of 8 H100 writes a checkpoint at 1-3 %
utilisation, the other seven stand at 100 % and 152 W (idle 71, busy 549 W), 0.17 of the dynamic range. What all devices
share (the median over them) and what each has of its own are stretched apart, since noise keeps its rate per reading.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from recordings import NODE_IDLE_WATTS, JobLog, JobRecording

from gpusonde.telemetry import FloatArray

SPIN = 0.17  # of the dynamic range, power of a GPU that waits in a collective
_CLOCK_MHZ = 1700.0
_FINER = 8  # cells per tick, over which a reading is the mean
_POWER, _UTILISATION, _CLOCK = "power_watts", "gpu_utilization", "sm_clock_mhz"
_HANG_NOISE = 0.01
_CLOCK_NOISE = 0.04  # of a reading of a GPU that its power caps, as recorded of LoRA; a node is the mean of eight
_STALLED_IDLE = 0.97  # of the dynamic power that a device without data saves
_MEMORY, _TENANT_BYTES = "framebuffer_used_bytes", 4 * 2.0**30
_CONTENTION = 0.5  # of the extra time, activity of another tenant's work on the shared device


def slow_device(
    recording: JobRecording,
    device: int,
    slower: float,
    fault: str,
    at_s: float = 0.0,
    *,
    spin: float = SPIN,
    power_exponent: float = 2.0,
    with_utilisation: bool = False,
    with_clock: bool = False,
) -> JobRecording:
    """Make one device slower from a time on.

    Args:
        recording: Healthy.
        device: Index of it.
        slower: By which share a step takes longer, 0.1 for 10 %.
        fault: ``hot`` (it computes on at its own power, the others wait at the end of the step), ``throttle``
            (likewise, its dynamic power falls with clocks ** ``power_exponent``), ``data`` (it has nothing to do at the
            head of the step) or ``link`` (all wait alike: no device is the slow one).
        at_s: From when on.
        spin: Share of the dynamic range at which the others wait.
        power_exponent: Of the clock, for ``throttle``.
        with_utilisation: Make up the utilisation of a recording that has none: 1 in steps and collectives, 0 without
            data.
        with_clock: Make up the clock of a recording that has none.

    Returns:
        As long as the recording; its log is stretched with it. Where the log has steps, the wait stands at the end of
        each; else it is mixed evenly.
    """
    time_s, idle = recording.time_s, recording.idle_watts
    fine = _fine_grid(time_s)
    old = np.where(fine < at_s, fine, at_s + (fine - at_s) / (1 + slower))
    after = fine >= at_s
    share = np.where(after, slower / (1 + slower), 0.0)  # of the cell, spent waiting
    at_fast, at_slow, stall = old, old, share
    steps = recording.log.steps_s
    if len(steps):
        i = np.clip(np.searchsorted(steps[:, 0], old, "right") - 1, 0, len(steps) - 1)
        first, last = steps[i, 0], steps[i, 1]
        inside = (old >= first) & (old < last) & after & (first >= at_s)
        into = (old - first) * (1 + slower)  # seconds of the longer step gone by
        at_fast = np.where(inside, np.minimum(first + into, last), old)
        share = np.where(inside, into > last - first, share).astype(float)
        if fault == "data":
            stall = np.where(inside, into < slower * (last - first), stall).astype(float)
            at_slow = np.where(inside, first + np.maximum(into - slower * (last - first), 0.0), old)
    power = recording.power
    common = np.median(power, axis=0)
    waiting = idle + spin * max(float(np.quantile(common, 0.8)) - idle, 1.0)
    fast_wave, slow_wave = np.interp(at_fast, time_s, common), np.interp(at_slow, time_s, common)
    others = fast_wave * (1 - share) + np.minimum(waiting, fast_wave) * share
    dynamic = np.maximum(slow_wave - idle, 0.0)
    one = {
        "hot": slow_wave,
        "throttle": idle + dynamic * np.where(after, (1 + slower) ** -power_exponent, 1.0),
        "data": slow_wave - stall * dynamic * _STALLED_IDLE,
        "link": others,
    }[fault]
    nearest = _nearest(time_s, _ticks(old))
    noise = power / common
    made = _ticks(others) * noise[:, nearest]
    made[device] = _ticks(one) * noise[device, nearest]
    values = {metric: column[:, nearest] for metric, column in recording.values.items()} | {_POWER: made}
    lost = _ticks(stall) if fault == "data" else np.zeros(time_s.size)
    if with_utilisation and _UTILISATION not in values:
        values[_UTILISATION] = np.where(_ticks(fast_wave) > idle + 0.5 * np.ptp(common), 1.0, 0.05) * np.ones_like(made)
    if _UTILISATION in values:
        busy = values[_UTILISATION]
        wait = _ticks(share)
        busy = busy * (1 - wait) + np.where(busy > 0, 1.0, 0.0) * wait  # a collective counts as a kernel that runs
        busy[device] = values[_UTILISATION][device] * (1 - lost)
        values[_UTILISATION] = busy
    if with_clock and _CLOCK not in values:
        noisy = _CLOCK_NOISE / (np.sqrt(8) if idle == NODE_IDLE_WATTS else 1)
        values[_CLOCK] = _CLOCK_MHZ * (1 + np.random.default_rng(device).normal(0, noisy, made.shape))
    if _CLOCK in values and fault == "throttle":
        values[_CLOCK] = values[_CLOCK].copy()
        values[_CLOCK][device, time_s >= at_s] /= 1 + slower
    return replace(recording, values=values, log=_moved(recording, old, fine))


def slower_cycles(
    recording: JobRecording, slower: float, at_s: float, *, power_exponent: float | None = None
) -> JobRecording:
    """Make every device take ``slower`` longer from a time on; with an exponent, since all throttle and save power."""
    made = _warped(recording, lambda fine: np.where(fine < at_s, fine, at_s + (fine - at_s) / (1 + slower)))
    if power_exponent is None:
        return made
    values = dict(made.values)
    after = made.time_s >= at_s
    dynamic = np.maximum(values[_POWER] - recording.idle_watts, 0.0)
    saved = dynamic * (1 - (1 + slower) ** -power_exponent)
    values[_POWER] = np.where(after, values[_POWER] - saved, values[_POWER])
    if _CLOCK in values:
        values[_CLOCK] = np.where(after, values[_CLOCK] / (1 + slower), values[_CLOCK])
    return replace(made, values=values)


def loader_stalls(recording: JobRecording, extra_s: float, at_s: float) -> JobRecording:
    """Let all devices wait for data, idle, for so long at the end of every cycle from a time on."""
    ends = recording.log.cycle_ends_s
    ends = ends[ends >= at_s]
    count = np.arange(ends.size)
    far = float(recording.time_s[-1]) + 1.0
    moved = np.stack([ends + count * extra_s, ends + (count + 1) * extra_s], axis=1).ravel()
    knots = np.concatenate([[0.0], moved, [far + ends.size * extra_s]])
    at = np.concatenate([[0.0], np.repeat(ends, 2), [far]])
    made = _warped(recording, lambda fine: np.interp(fine, knots, at))
    waits = (np.searchsorted(moved, made.time_s, side="right") % 2) == 1
    values = dict(made.values)
    idle = recording.idle_watts
    values[_POWER] = np.where(
        waits, idle + (1 - _STALLED_IDLE) * np.maximum(values[_POWER] - idle, 0.0), values[_POWER]
    )
    if _UTILISATION in values:
        values[_UTILISATION] = np.where(waits, 0.0, values[_UTILISATION])
    return replace(made, values=values)


def other_tenant(recording: JobRecording, device: int, slower: float, at_s: float) -> JobRecording:
    """Let somebody else's work run on one device: the job's steps take longer there, but it draws no less power."""
    made = slow_device(recording, device, slower, "hot", at_s)
    values = dict(made.values)
    power = values[_POWER].copy()
    top = float(np.quantile(power[device], 0.95))
    after = made.time_s >= at_s
    power[device] += np.where(after, _CONTENTION * np.maximum(top - power[device], 0.0), 0.0)
    if _MEMORY in values:
        memory = values[_MEMORY].copy()
        memory[device] += np.where(after, _TENANT_BYTES, 0.0)
        values[_MEMORY] = memory
    return replace(made, values=values | {_POWER: power})


def hang(
    recording: JobRecording, at_s: float, level: float | None, lasts_s: float, rng: np.random.Generator
) -> JobRecording:
    """Stop all progress at a time; the recording goes on for ``lasts_s``.

    Args:
        recording: Healthy; its log ends where progress does, and has no more cycles.
        at_s: When.
        level: Share of the dynamic range at which all devices stand: 0 is silent, 0.17 to 0.65 spinning. None: the
            first device is dead and the others spin.
        lasts_s: Seconds of hang.
        rng: Noise of the readings.
    """
    tick = recording.interval_s
    seen = int(np.searchsorted(recording.time_s, at_s))
    time_s = np.concatenate([recording.time_s[:seen], at_s + tick * np.arange(int(lasts_s / tick))])
    count = time_s.size - seen
    share = np.full(len(recording.devices), SPIN if level is None else level)
    if level is None:
        share[0] = 0.0
    idle = recording.idle_watts
    top = np.quantile(recording.power[:, : max(seen, 1)], 0.9, axis=1)
    watts = idle + share * np.maximum(top - idle, 0.0)
    tail = {_POWER: watts[:, None] * np.exp(rng.normal(0, _HANG_NOISE, (share.size, count)))}
    in_kernel = np.broadcast_to(np.where(share > 0, 1.0, 0.0)[:, None], (share.size, count))
    tail |= dict.fromkeys((_UTILISATION, "graphics_active"), in_kernel)
    # A kernel that waits is on one of many SMs, and neither computes nor reads; memory and clocks stay as they were.
    tail |= dict.fromkeys(("sm_active", "sm_occupancy"), 0.02 * in_kernel)
    still = [metric for metric in recording.values if metric.endswith(("_active", "_per_second"))]
    tail |= {metric: np.zeros((share.size, count)) for metric in still if metric not in tail}
    values = {}
    for metric, column in recording.values.items():
        last = column[:, max(seen - 1, 0), None]
        values[metric] = np.concatenate([column[:, :seen], tail.get(metric, np.repeat(last, count, axis=1))], axis=1)
    log = _cut(recording.log, at_s)
    return replace(recording, time_s=time_s, values=values, log=log)


def _warped(recording: JobRecording, old_of_new: Callable[[FloatArray], FloatArray]) -> JobRecording:
    """All devices through one map of time, from the new to the recording's own."""
    time_s = recording.time_s
    fine = _fine_grid(time_s)
    old = old_of_new(fine)
    nearest = _nearest(time_s, _ticks(old))
    values = {metric: column[:, nearest] for metric, column in recording.values.items()}
    if _POWER in values:
        common = np.nanmedian(recording.power, axis=0)
        values[_POWER] = _ticks(np.interp(old, time_s, common)) * (recording.power / common)[:, nearest]
    return replace(recording, values=values, log=_moved(recording, old, fine))


def _fine_grid(time_s: FloatArray) -> FloatArray:
    """Cells of an even division of the time that every reading is the mean of."""
    edges = np.concatenate([[2 * time_s[0] - time_s[1]], time_s])
    inside = (np.arange(_FINER) + 0.5) / _FINER
    return np.asarray((edges[:-1, None] + np.diff(edges)[:, None] * inside).ravel())


def _ticks(cells: FloatArray) -> FloatArray:
    return np.asarray(cells.reshape(-1, _FINER).mean(axis=1))


def _nearest(time_s: FloatArray, at_s: FloatArray) -> np.ndarray:
    return np.searchsorted((time_s[1:] + time_s[:-1]) / 2, at_s)


def _moved(recording: JobRecording, old: FloatArray, fine: FloatArray) -> JobLog:
    """The log on the new time; what would lie behind the last tick is left out."""
    log = recording.log
    last = float(recording.time_s[-1])
    # Where time stands still, an event lies at the beginning of that.
    first = np.concatenate([[True], np.diff(old) > 0])
    known, new = old[first], fine[first]

    def move(times: FloatArray) -> FloatArray:
        beyond = np.maximum(times - known[-1], 0.0) + np.minimum(times - known[0], 0.0)
        return np.asarray(np.interp(times, known, new) + beyond)

    def spans(pairs: FloatArray) -> FloatArray:
        made = move(pairs)
        return made[(made[:, 1] <= last) if len(made) else slice(0, 0)]

    ends = move(log.cycle_ends_s)
    start, stop = move(np.array([log.start_s, log.stop_s]))
    states = tuple((float(move(np.array([at]))[0]), state) for at, state in log.states)
    return JobLog(
        float(start), float(min(stop, last)), spans(log.evaluations_s), spans(log.steps_s), spans(log.epochs_s),
        ends[ends <= last], states,
    )  # fmt: skip


def _cut(log: JobLog, at_s: float) -> JobLog:
    def spans(pairs: FloatArray) -> FloatArray:
        return pairs[pairs[:, 1] <= at_s] if len(pairs) else pairs

    return JobLog(
        log.start_s, min(log.stop_s, at_s), spans(log.evaluations_s), spans(log.steps_s), spans(log.epochs_s),
        log.cycle_ends_s[log.cycle_ends_s <= at_s], tuple(state for state in log.states if state[0] < at_s),
    )  # fmt: skip
