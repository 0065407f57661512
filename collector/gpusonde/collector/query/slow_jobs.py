"""``SlowJobs``: why jobs became slower, and which of their GPUs or hosts makes the others wait.

Both are asked only of a job whose cycles take longer, and answered from its ticks in the store, of all its hosts, some
minutes before the change and since then. What was found is remembered, and looked at again less and less often.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpusonde.collector.storage.model import GpuRow, RunRow
from gpusonde.collector.storage.samples import SECOND_NS, Samples
from gpusonde.collector.storage.store import Store
from gpusonde.epoch_detect.progress import CAUSE_METRICS, find_slow_device, slowdown_causes, slowdown_in_words
from gpusonde.epoch_detect.progress.slow_device import mean_of_known
from gpusonde.query.v1 import query_pb2
from gpusonde.service.wire import Float64Array

_BEFORE_S, _AFTER_S = 600.0, 300.0
_CELL_S = 0.5
_LEAST_AFTER_S = 20.0
_AGAIN_S, _AGAIN_SHARE = 10.0, 0.3  # after which it is looked at again, and share of the time since the change
_MOST_JOBS = 256
_MOST_GPUS = 1024
_MOST_COMPARED = 64  # GPUs that are compared one by one; of more, their hosts
_MOST_LAG_S = 20.0  # of a clock: in a public cluster of eight nodes they were up to 16 s apart
_AS_ALIKE = 0.003  # of correlation: the nearer of two shifts is taken, since cycles are alike
_SAME_WAVE = 0.5  # correlation of a host with the others, from which on it is shifted to them
_LEAST_TOLD = 0.05  # probability

_Key = tuple[int, str, int]


@dataclass(frozen=True)
class Slowdown:
    """What is known of a job's slow-down.

    Attributes:
        reason: Its cause, and the device that drags, in words.
        devices: Those that may make the others wait, likeliest first.
    """

    reason: str = ""
    devices: tuple[query_pb2.SlowDevice, ...] = ()


@dataclass(frozen=True)
class _Explained:
    slowdown: Slowdown
    reached_s: float  # seconds since the change that were looked at


class SlowJobs:
    """Remembers what was found of at most 256 jobs; safe in threads.

    Args:
        store: Where ticks are.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._found: OrderedDict[_Key, _Explained] = OrderedDict()
        self._lock = threading.Lock()

    def explain(
        self, job_id: str, runs: Sequence[RunRow], gpus: Mapping[tuple[str, str], GpuRow], since: int
    ) -> Slowdown:
        """Say why a job is slower, and who drags it.

        Args:
            job_id: Its name.
            runs: Those of its runs that go on, all of one scheduler.
            gpus: (GPU, agent) -> what is known of it.
            since: When its cycles began to take longer, Unix nanoseconds.

        Raises:
            StoreError: The ticks cannot be read.
        """
        key = (runs[0].scheduler if runs else 0, job_id, since)
        # As far as half of them have got: who has fallen silent delays nobody.
        ends = sorted(run.end_unix_nano for run in runs)
        reached_s = min((ends[len(ends) // 2] - since) / SECOND_NS, _AFTER_S) if runs else 0.0
        known = self._found.get(key, _Explained(Slowdown(), 0.0))
        due_s = max(_LEAST_AFTER_S, known.reached_s + max(_AGAIN_S, _AGAIN_SHARE * known.reached_s))
        if reached_s < min(due_s, _AFTER_S) or known.reached_s == _AFTER_S:
            return known.slowdown
        # Who asks meanwhile gets what is known: nobody waits for the ticks of a thousand GPUs twice.
        if not self._lock.acquire(blocking=False):
            return known.slowdown
        try:
            found = self._look(runs, gpus, since, reached_s)
            self._found[key] = _Explained(found, reached_s)
            self._found.move_to_end(key)
            while len(self._found) > _MOST_JOBS:
                self._found.popitem(last=False)
        finally:
            self._lock.release()
        return found

    def _look(
        self,
        runs: Sequence[RunRow],
        gpus: Mapping[tuple[str, str], GpuRow],
        since: int,
        reached_s: float,
    ) -> Slowdown:
        chosen = sorted({(run.agent_id, run.gpu_uuid) for run in runs})[:_MOST_GPUS]
        names = [_name(gpus.get((gpu, agent)), agent, gpu) for agent, gpu in chosen]
        origin = since - round(_BEFORE_S * 1e9)
        until_s = _BEFORE_S + reached_s
        # Where a clock is ahead, what belongs to the newest seconds stands behind them.
        time_s, values = self._read([gpu for _, gpu in chosen], origin, until_s + _MOST_LAG_S)
        if not time_s.size:
            return Slowdown()
        agents = np.array([agent for agent, _ in chosen])
        _align(values, agents, time_s)
        seen = time_s < until_s
        time_s, values = time_s[seen], {name: rows[:, seen] for name, rows in values.items()}
        causes = slowdown_causes(names, time_s, values, _BEFORE_S)
        lead = min(runs, key=lambda run: (run.agent_id, run.start_unix_nano, run.run_id))
        cycles = [cycle for cycle in self._store.results.tree(lead.run_id).cycles if cycle.confirmed]
        cycle_s = min((cycle.period_s for cycle in cycles), default=0.0)
        hosts = list(dict.fromkeys(agents.tolist()))
        by_host = len(chosen) > _MOST_COMPARED and len(hosts) > 1
        if by_host:
            of_host = {
                name: np.array([mean_of_known(rows[agents == host], axis=0) for host in hosts])
                for name, rows in values.items()
            }
            labels = [_host_name(gpus, host) for host in hosts]
            verdict = find_slow_device(labels, time_s, of_host, _BEFORE_S, cycle_s=cycle_s)
        else:
            verdict = find_slow_device(names, time_s, values, _BEFORE_S, cycle_s=cycle_s)
        devices = []
        for each in verdict.ranked:
            if each.probability >= _LEAST_TOLD:
                place = (labels if by_host else names).index(each.device)
                agent, gpu = (hosts[place], "") if by_host else chosen[place]
                devices.append(
                    query_pb2.SlowDevice(
                        agent_id=agent,
                        host_name=_host_name(gpus, agent),
                        gpu_uuid=gpu,
                        probability=each.probability,
                        evidence=each.evidence,
                    )
                )
        return Slowdown(slowdown_in_words(causes, verdict), tuple(devices))

    def _read(self, gpus: Sequence[str], origin: int, length_s: float) -> tuple[Float64Array, dict[str, Float64Array]]:
        """Read means over short times of all GPUs, from a time on; seconds, and metric -> shape (GPUs, n)."""
        end = origin + round(length_s * 1e9)
        cell_s, rows = 0.0, []
        for gpu in gpus:
            samples = self._store.samples.read(gpu, origin, end, CAUSE_METRICS)
            if not cell_s and len(samples) > 1:
                cell_s = max(_CELL_S, float(np.median(np.diff(samples.time_unix_nano))) / 1e9, samples.resolution_s)
            rows.append(_cells(samples, origin, cell_s or _CELL_S, length_s))
        if not cell_s:
            return np.empty(0), {}
        stacked = np.array(rows)  # (GPUs, metrics, cells)
        time_s: Float64Array = (np.arange(stacked.shape[2], dtype=np.float64) + 0.5) * cell_s
        values = {name: stacked[:, i] for i, name in enumerate(CAUSE_METRICS) if np.isfinite(stacked[:, i]).any()}
        return time_s, values


def _cells(samples: Samples, origin: int, cell_s: float, length_s: float) -> Float64Array:
    count = int(length_s / cell_s)
    place = ((samples.time_unix_nano - origin) / (cell_s * 1e9)).astype(np.int64)
    inside = (place >= 0) & (place < count)
    means = np.full((len(CAUSE_METRICS), count), np.nan)
    for i, column in enumerate(samples.matrix(CAUSE_METRICS)):
        good = inside & np.isfinite(column)
        number = np.bincount(place[good], minlength=count)
        total = np.bincount(place[good], weights=column[good], minlength=count)
        means[i] = np.where(number > 0, total / np.maximum(number, 1), np.nan)
    return means


def _align(
    values: Mapping[str, Float64Array], agents: np.ndarray[tuple[int], np.dtype[np.str_]], time_s: Float64Array
) -> None:
    """Shift hosts whose clocks are seconds beside those of the others to them."""
    power = values.get("power_watts")
    hosts = np.unique(agents)
    if power is None or hosts.size < 2 or time_s.size < 2:
        return
    most = int(_MOST_LAG_S / float(time_s[1] - time_s[0]))
    lags = sorted(range(-most, most + 1), key=abs)
    # What is common to all is sharp only once they stand one above the other.
    for _ in range(2 if hosts.size > 2 else 1):
        means = np.array([mean_of_known(power[agents == host], axis=0) for host in hosts])
        waves = np.nan_to_num(means - mean_of_known(means, axis=1)[:, None])
        # Between two of them there is no usual one.
        common = np.median(waves, axis=0) if hosts.size > 2 else waves[0]
        for host, wave in zip(hosts, waves, strict=True):
            scale = float(np.linalg.norm(common) * np.linalg.norm(wave))
            # The power of a host may not be known, or not move.
            if not scale:
                continue
            alike = np.array([float(np.dot(common, np.nan_to_num(_shift(wave, lag)))) for lag in lags]) / scale
            best = lags[int(np.argmax(alike > alike.max() - _AS_ALIKE))]
            if best and alike.max() > max(_SAME_WAVE, alike[0] + _LEAST_TOLD):
                for rows in values.values():
                    rows[agents == host] = _shift(rows[agents == host], best)


def _shift(rows: Float64Array, lag: int) -> Float64Array:
    """Move along the last axis; NaN comes in at the end that is left."""
    shifted = np.full_like(rows, np.nan)
    if lag >= 0:
        shifted[..., lag:] = rows[..., : rows.shape[-1] - lag]
    else:
        shifted[..., :lag] = rows[..., -lag:]
    return shifted


def _name(gpu: GpuRow | None, agent_id: str, gpu_uuid: str) -> str:
    return f"{gpu.host_name if gpu and gpu.host_name else agent_id}/{gpu_uuid}"


def _host_name(gpus: Mapping[tuple[str, str], GpuRow], agent_id: str) -> str:
    return next((gpu.host_name for (_, agent), gpu in gpus.items() if agent == agent_id and gpu.host_name), agent_id)
