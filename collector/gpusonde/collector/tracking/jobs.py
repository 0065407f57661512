"""``Jobs``: the runs of one job on the GPUs of one agent, which one epoch tracker follows together.

The run of a job that began first leads: its tracker gets the mean of all GPUs that are bound to the job, and what it
finds holds for the others. A run that goes on clearly longer than its leader is read again, then for itself. Who leads,
and what the mean is, follows from what the agent said in order of arrival, so that a restart, a backlog and a live
stream lead to the same rows, in whatever order the GPUs are looked at.

Units and users are not learned from: ``jupyter.service`` is many jobs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from gpusonde.collector.storage.model import CycleTree, DeviationRow, EpochRow, Position, RunRow, RunUpdate
from gpusonde.collector.storage.samples import Samples
from gpusonde.collector.storage.store import Store
from gpusonde.collector.tracking.epochs import TrackerFactory, TrackerRestorer
from gpusonde.collector.tracking.states import JobStates
from gpusonde.common.v1 import job_pb2
from gpusonde.epoch_detect import EpochTracker
from gpusonde.epoch_detect.cycles.analysis import compare_devices
from gpusonde.epoch_detect.ticks import Ticks, choose_metrics, fastest_first
from gpusonde.service.wire import Binding, Float64Array, Int64Array

# A unit or a user is the same every day, whatever it computes.
NO_JOBS = (job_pb2.SCHEDULER_SYSTEMD, job_pb2.SCHEDULER_USER)
# Activity of a run after the end of the one that led it, from which it is no longer taken for the end of the same.
_OUTLIVES_NS = 60_000_000_000
# Of jobs whose runs are all over; one that is forgotten is looked up in the catalogue.
_MOST_REMEMBERED = 1000
_MOST_RUNS = 1000
_SECOND_NS = 1_000_000_000
_MOST_SEQUENCES = 1 << 40
# The GPUs of a job are compared over its latest cycles.
_COMPARED_CYCLES = 12
_COMPARED_METRICS = 3
_LEAST_COMPARED_S = 60.0
_MOST_COMPARED_S = 3600.0


class JobKey(NamedTuple):
    """A job on one agent."""

    agent_id: str
    scheduler: int
    job_id: str


def job_of(run: RunRow) -> JobKey | None:
    """Return the job that a run belongs to, None where it is not known to be one."""
    if not run.job_id or run.scheduler in NO_JOBS:
        return None
    return JobKey(run.agent_id, run.scheduler, run.job_id)


class EpochsOfRun(Protocol):
    """What is known of the epochs of a run, and of those that it leads; ``RunEpochTracker`` or ``StoredEpochs``."""

    @property
    def version(self) -> int:
        """Grows with every change; 0 while there is nothing."""

    def row(self, run: RunRow, *, whole: bool) -> RunUpdate:
        """Return a run with what is known of its epochs, with ``whole`` also the epochs and the tree."""


class StoredEpochs:
    """The epochs of a run that leads others, as the catalogue has them: it is over, or not looked at yet.

    Args:
        leader: The run.
        store: Where its epochs are.
    """

    version = 1

    def __init__(self, leader: RunRow, store: Store) -> None:
        self._leader = leader
        self._store = store

    def row(self, run: RunRow, *, whole: bool) -> RunUpdate:
        """Return a run with the epochs of the one that leads it."""
        of, results = self._leader, self._store.results
        epochs: Sequence[EpochRow] | None = None
        tree: CycleTree | None = None
        if whole:
            epochs, tree = results.epochs(of.run_id), results.tree(of.run_id)
        row = replace(
            run,
            verdict=of.verdict,
            reason=of.reason,
            period_s=of.period_s,
            period_low_s=of.period_low_s,
            period_high_s=of.period_high_s,
            confidence=of.confidence,
            epoch_count=of.epoch_count,
            idle_share=of.idle_share,
            stalled_share=of.stalled_share,
        )
        return RunUpdate(row, epochs, tree)


@dataclass(eq=False)
class JobRun:
    """A run of a job.

    Attributes:
        row: The run as it stands.
        last_active: Its latest activity that is known, Unix nanoseconds.
        epochs: What is known of its epochs; None while another run leads it.
        has_others: Whether the job is known to hold other GPUs.
    """

    row: RunRow
    last_active: int
    epochs: EpochsOfRun | None = None
    has_others: bool = False

    @property
    def order(self) -> tuple[int, str, str]:
        """The first one leads."""
        return self.row.start_unix_nano, self.row.gpu_uuid, self.row.run_id

    def may_follow(self, other: JobRun) -> bool:
        """Say whether what is found in another run can hold for this one."""
        if other is self or not other.row.ended:
            return True
        return self.row.start_unix_nano <= other.last_active and self.last_active <= other.last_active + _OUTLIVES_NS


class Jobs:
    """Knows which runs are of one job, and which of them leads.

    Args:
        store: Where runs, bindings and samples are.
        make_tracker: Makes epoch trackers.
        restore_tracker: Makes them of their states.
    """

    def __init__(
        self, store: Store, make_tracker: TrackerFactory, restore_tracker: TrackerRestorer = EpochTracker.restore
    ) -> None:
        self.make_tracker = make_tracker
        self.restore_tracker = restore_tracker
        self.states = JobStates()
        self._store = store
        self._runs: OrderedDict[JobKey, dict[str, JobRun]] = OrderedDict()
        # Of each job the run that began first: while it goes on, it leads all others.
        self._first: dict[JobKey, JobRun] = {}

    def enter(self, key: JobKey, row: RunRow, last_active: int) -> JobRun:
        """Take a run into its job; one that was known, and is read again, replaces what was known."""
        runs = self._runs.setdefault(key, {})
        self._runs.move_to_end(key)
        # How far it goes stays known: a run that is read again for itself is not to be led again.
        known = runs.get(row.run_id)
        run = runs[row.run_id] = JobRun(row, max(last_active, known.last_active if known else 0))
        for other in self._store.results.runs(job_id=key.job_id, limit=_MOST_RUNS):
            over = other.ended and other.end_unix_nano < row.start_unix_nano
            if job_of(other) == key and other.run_id not in runs and not over:
                last = other.end_unix_nano if other.ended else other.start_unix_nano
                runs[other.run_id] = JobRun(other, last, StoredEpochs(other, self._store))
        self._forget()
        self._first[key] = min(runs.values(), key=lambda each: each.order)
        return run

    def leader(self, run: JobRun) -> JobRun:
        """Return the run that leads, which may be the run itself."""
        key = job_of(run.row)
        first = self._first.get(key) if key else None
        if first and not first.row.ended:
            return first
        leading: list[JobRun] = []
        for each in sorted(self._runs.get(key, {}).values() if key else (), key=lambda each: each.order):
            of_each = next((one for one in leading if each.may_follow(one)), each)
            if each is run:
                return of_each
            if of_each is each:
                leading.append(each)
        return run

    def led_by(self, run: JobRun) -> list[JobRun]:
        """Return the other runs that a run leads."""
        key = job_of(run.row)
        runs = self._runs.get(key, {}).values() if key else ()
        return [each for each in runs if each is not run and self.leader(each) is run]

    def has_others(self, run: JobRun) -> bool:
        """Say whether the job holds other GPUs than that of a run, as far as is known now."""
        key = job_of(run.row)
        if key and not run.has_others:
            bindings = self._store.facts.job_bindings(key.agent_id, key.job_id)
            run.has_others = any(gpu != run.row.gpu_uuid and _counts(binding, key) for gpu, _, binding in bindings)
        return run.has_others

    def average(self, run: JobRun, samples: Samples) -> Samples:
        """Return ticks of a run with the mean of all GPUs of its job in place of its own activity.

        Args:
            run: The run that leads.
            samples: Its ticks, in order of arrival.
        """
        key = job_of(run.row)
        others = self._bound(key, samples, run.row.gpu_uuid) if key else {}
        if not others:
            return samples
        names = choose_metrics(list(samples.columns))
        total = samples.matrix(names)
        known = np.isfinite(total)
        total[~known], count = 0.0, known.astype(np.int64)
        for gpu_uuid, bound in others.items():
            values = self._values_at(samples, gpu_uuid, names)
            known = np.isfinite(values) & bound
            values[~known] = 0.0
            total += values
            count += known
        mean = np.where(count, total / np.maximum(count, 1), np.nan)
        return replace(samples, columns={**samples.columns, **dict(zip(names, mean, strict=True))})

    def deviations(self, run: JobRun, period_s: float, end_unix_nano: int) -> tuple[DeviationRow, ...]:
        """Name the GPUs of a run's job that do otherwise than the others, in its latest cycles."""
        key = job_of(run.row)
        if key is None or not np.isfinite(period_s):
            return ()
        length_s = min(max(_COMPARED_CYCLES * period_s, _LEAST_COMPARED_S), _MOST_COMPARED_S)
        start = max(run.row.start_unix_nano, end_unix_nano - round(length_s * 1e9))
        # Of each binding what was told last. A job that is over gave its GPUs back within a minute of its end.
        told = self._store.facts.job_bindings(key.agent_id, key.job_id)
        latest = {(gpu, binding.start_unix_nano): binding for gpu, _, binding in told if _counts(binding, key)}
        until = end_unix_nano - _OUTLIVES_NS
        here = {gpu for (gpu, _), each in latest.items() if not each.end_unix_nano or each.end_unix_nano >= until}
        gpus = sorted(here | {run.row.gpu_uuid})
        ticks = {gpu: self._ticks(gpu, start, end_unix_nano) for gpu in gpus} if len(gpus) > 1 else {}
        return tuple(DeviationRow(each.gpu, each.kind, each.amount) for each in compare_devices(ticks, period_s))

    def _ticks(self, gpu_uuid: str, start: int, end: int) -> Ticks:
        names = choose_metrics(self._store.facts.metrics(gpu_uuid))
        names = tuple(names[i] for i in fastest_first(names)[:_COMPARED_METRICS])
        samples = self._store.samples.read(gpu_uuid, start, end, names)
        return Ticks((samples.time_unix_nano - start) // 1000, samples.matrix(names).astype(np.float32), names)

    def _bound(self, key: JobKey, samples: Samples, own: str) -> dict[str, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
        """Say of each other GPU at which ticks it was bound to the job, as far as was known when they were sampled."""
        stays: dict[tuple[str, int], list[tuple[Position, Binding]]] = {}
        for gpu_uuid, position, binding in self._store.facts.job_bindings(key.agent_id, key.job_id):
            if gpu_uuid != own and _counts(binding, key):
                stays.setdefault((gpu_uuid, binding.start_unix_nano), []).append((position, binding))
        time, spool, sequence = samples.time_unix_nano, samples.spool, samples.sequence
        found: dict[str, np.ndarray[tuple[int], np.dtype[np.bool_]]] = {}
        for (gpu_uuid, start), told in stays.items():
            here = np.zeros(len(samples), dtype=bool)
            for position, binding in told:
                known = (spool > position.spool) | ((spool == position.spool) & (sequence >= position.sequence))
                within = time >= start
                if binding.end_unix_nano:
                    within &= time < binding.end_unix_nano
                here = np.where(known, within, here)
            if here.any():
                found[gpu_uuid] = found.get(gpu_uuid, np.zeros(len(samples), dtype=bool)) | here
        return found

    def _values_at(self, samples: Samples, gpu_uuid: str, names: Sequence[str]) -> Float64Array:
        """Return what another GPU does at the ticks of a run: of its ticks in the same record the nearest one."""
        time = samples.time_unix_nano
        first = Position(int(samples.spool[0]), int(samples.sequence[0]))
        other = self._store.samples.read(
            gpu_uuid,
            int(time.min()) - _SECOND_NS,
            int(time.max()) + _SECOND_NS,
            names,
            first=first,
            last=samples.last_position,
        )
        if not len(other):
            return np.full((len(names), len(samples)), np.nan)
        if _are_aligned(samples, other):
            return other.matrix(names)
        other = other.take(np.lexsort((other.time_unix_nano, other.sequence, other.spool)))
        place = _places(samples, other)
        values = other.matrix(names)[:, np.maximum(place, 0)]
        values[:, place < 0] = np.nan
        return values

    def _forget(self) -> None:
        """Forget the oldest jobs whose runs are all over, and the oldest of too many runs of one job."""
        for runs in self._runs.values():
            ended = sorted((run for run in runs.values() if run.row.ended), key=lambda run: run.last_active)
            for run in ended[: max(0, len(runs) - _MOST_RUNS)]:
                del runs[run.row.run_id]
        over = [key for key, runs in self._runs.items() if all(run.row.ended for run in runs.values())]
        for key in over[: max(0, len(over) - _MOST_REMEMBERED)]:
            del self._runs[key], self._first[key]


def _counts(binding: Binding, key: JobKey) -> bool:
    """Say whether a GPU is the job's alone."""
    return binding.scheduler == key.scheduler and binding.labels.get("shared") != "true"


def _places(samples: Samples, other: Samples) -> Int64Array:
    """Return the index of the nearest tick of another GPU in the record of each tick, -1 where there is none.

    Records are one and the same however the ticks are read; what lies beside them is not.
    """
    origin = int(min(samples.time_unix_nano.min(), other.time_unix_nano.min()))
    one, two = (each.spool * _MOST_SEQUENCES + each.sequence for each in (samples, other))
    records = np.unique(two)
    missing = ~np.isin(one, records)
    one, two = np.searchsorted(records, one) + missing * records.size, np.searchsorted(records, two)
    # Ticks are some tenth of a second apart; a record is a few seconds long at most.
    width = 1 << 45
    wanted = one * width + (samples.time_unix_nano - origin) // 1000
    known = two * width + (other.time_unix_nano - origin) // 1000
    right = np.searchsorted(known, wanted)
    best = np.full(len(samples), -1, dtype=np.int64)
    distance = np.full(len(samples), np.iinfo(np.int64).max)
    for candidate in (right - 1, right):
        inside = np.clip(candidate, 0, len(other) - 1)
        apart = np.abs(known[inside] - wanted)
        better = (candidate >= 0) & (candidate < len(other)) & (two[inside] == one) & (apart < distance)
        best, distance = np.where(better, inside, best), np.where(better, apart, distance)
    return best


def _are_aligned(samples: Samples, other: Samples) -> bool:
    """Say whether each tick has its own next to it, as GPUs do that are read in one sweep."""
    one, two = samples.time_unix_nano, other.time_unix_nano
    if one.size != two.size or one.size < 2:
        return False
    close = 2 * np.abs(two - one).max() < min(np.diff(one).min(), np.diff(two).min())
    return bool(close and (samples.sequence == other.sequence).all() and (samples.spool == other.spool).all())
