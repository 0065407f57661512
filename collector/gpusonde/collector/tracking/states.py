"""``JobStates``: what the jobs of an agent are doing, from the ticks of all their GPUs as they are followed.

The ticks of a job's GPUs come one GPU after the other, live a few seconds' worth, after a restart hours'. They are
averaged over seconds, and wait until all GPUs have got as far. What is found belongs to the run that leads the job.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field

import numpy as np

from gpusonde.collector.storage.model import JobStateRow
from gpusonde.collector.storage.samples import SECOND_NS, Samples, concatenate
from gpusonde.epoch_detect import EpochDetection
from gpusonde.epoch_detect.progress import STATE_METRICS, JobState, PaceChange, StateSpan, StateWatch
from gpusonde.epoch_detect.result import shifted
from gpusonde.service.wire import ACTIVITY_COLUMNS, Float64Array, JobActivity

# Ticks are averaged, and the job watched, so many seconds at a time, however they come: that costs half of what single
# ones do, and agents send about four.
_TOGETHER_S = 3
# States in which GPUs may rest, and from which use on one does not.
_RESTS = frozenset({JobState.STARTING, JobState.IDLE, JobState.ENDED, JobState.UNKNOWN})
_POWER = STATE_METRICS.index("power_watts")
_USES = [STATE_METRICS.index(name) for name in ("sm_active", "graphics_active", "gpu_utilization")]
_NOT_USED = 0.01
# A GPU that is further behind the first one than this is not waited for, unless a backlog is read.
_PATIENCE_S = 10
_MOST_WAITING_S = 7200
_LATEST = 1 << 33  # seconds since 1970, in the year 2242
# The words of a state that goes on have figures that change with every second.
_TOLD_AGAIN_S = 60.0
_MOST_TOLD = 128
_LOOKED_AT = [ACTIVITY_COLUMNS.index(name) for name in ("written_bytes", "processor_s")]
# That no state begins at a time any more.
_GONE = ""
_Key = tuple[str, ...]


@dataclass
class _Gpu:
    """What waits of one GPU: ticks, and seconds of them: sum, count and highest of each metric, shape (3, metrics)."""

    ticks: list[Samples] = field(default_factory=list)
    waiting: dict[int, Float64Array] = field(default_factory=dict)
    newest: int = 0


@dataclass
class _Job:
    """One job on the GPUs of one agent; times of ``watch`` count from ``origin``, in whole seconds since 1970.

    ``looks`` are what its processes did, second -> bytes written per second, processors taken, and how many there were,
    ``looked`` the latest second of them. ``told`` are the
    states that were told, by their beginnings, ``settled`` those stretches of them of which every word was.
    ``has_moved`` says whether it was watched since it was found to have no news.
    """

    origin: int
    watch: StateWatch
    gpus: dict[str, _Gpu] = field(default_factory=dict)
    looks: dict[int, tuple[float, float, int | None]] = field(default_factory=dict)
    looked: int = 0
    reached: int = 0
    told: dict[int, JobStateRow] = field(default_factory=dict)
    settled: dict[int, StateSpan] = field(default_factory=dict)
    told_at: float = -math.inf
    has_moved: bool = False


class JobStates:
    """Watches jobs, and learns of one what a GPU draws that rests, for the next one on it."""

    def __init__(self) -> None:
        self._jobs: dict[_Key, _Job] = {}
        self._idle_watts: dict[str, float] = {}

    def take(self, key: _Key, gpu_uuid: str, samples: Samples) -> None:
        """Take ticks of a run of a job.

        Args:
            key: Names the job on its agent.
            gpu_uuid: The GPU of the run.
            samples: In order of arrival.
        """
        if not len(samples):
            return
        second = samples.time_unix_nano // SECOND_NS
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = _Job(
                int(second.min()), StateWatch(1, idle_watts=self._idle_watts.get(gpu_uuid, math.inf))
            )
        gpu = job.gpus.setdefault(gpu_uuid, _Gpu())
        job.watch.gpus = len(job.gpus)
        gpu.ticks.append(samples)
        gpu.newest = max(gpu.newest, int(second.max()))
        if gpu.newest >= int(gpu.ticks[0].time_unix_nano[0]) // SECOND_NS + _TOGETHER_S:
            _average(job, gpu)
        if len(gpu.waiting) > _MOST_WAITING_S:
            self._advance(job, gpu.newest - 1)

    def note_detection(self, key: _Key, detection: EpochDetection, origin_unix_nano: int) -> None:
        """Take what was found of a job's cycles, on a time axis with that origin."""
        if (job := self._jobs.get(key)) is not None:
            job.watch.note_detection(shifted(detection, origin_unix_nano / SECOND_NS - job.origin))

    def note_pace(self, key: _Key, change: PaceChange | None, origin_unix_nano: int) -> None:
        """Take by how much a job's cycles take longer than before, None if they do not, on a time axis likewise."""
        if (job := self._jobs.get(key)) is not None:
            since_s = math.inf if change is None else change.since_s + origin_unix_nano / SECOND_NS - job.origin
            job.watch.note_slower("" if change is None else change.reason, since_s)

    def note_activity(self, key: _Key, activity: JobActivity) -> None:
        """Take what a job's processes did; of several GPUs of it the same is said more than once."""
        job = self._jobs.get(key)
        if job is None:
            return
        looks = activity.values[_LOOKED_AT].T.tolist()
        times_s = (activity.time_unix_nano / SECOND_NS).tolist()
        # A record does not say when the look before its first one was; there is one a second.
        before_s = times_s[0] - 1.0 if times_s else math.nan
        # As many as there were at most: that may have been when the record began.
        alive = activity.alive
        for time_s, (written, processors) in zip(times_s, looks, strict=True):
            since_s, before_s = time_s - before_s, time_s
            if int(time_s) > job.looked and len(job.looks) < _MOST_WAITING_S:
                job.looked = int(time_s)
                job.looks[job.looked] = (written / since_s, processors / since_s, alive)
                alive = None

    def settle(self, key: _Key) -> None:
        """Watch a job up to where its GPUs have got, now that all of them have been read as far as they were stored."""
        job = self._jobs.get(key)
        # One that another process has watched has no ticks here yet.
        if job is not None and job.gpus:
            newest = [gpu.newest for gpu in job.gpus.values()]
            # The newest second of a GPU is not over yet.
            through = max(min(newest) - 1, max(newest) - _PATIENCE_S)
            if through >= job.reached + _TOGETHER_S:
                self._advance(job, through)

    def has_news(self, key: _Key) -> bool:
        """Say whether there are states to be told."""
        job = self._jobs.get(key)
        if job is None or not job.has_moved:
            return False
        job.has_moved = bool(_news(job)[0])
        return job.has_moved

    def news(self, key: _Key) -> list[JobStateRow]:
        """Return the states of a job that are new or have changed since they were asked for.

        One that is empty says that no state begins at its time any more: what a job did is sometimes known later.
        """
        job = self._jobs.get(key)
        if job is None:
            return []
        news, fresh = _news(job)
        for row in news:
            if row.state:
                job.told[row.start_unix_nano] = row
            else:
                del job.told[row.start_unix_nano]
                job.settled.pop(row.start_unix_nano, None)
        if news:
            job.told_at = float(job.reached)
            job.settled |= {start: span for start, (span, row) in fresh.items() if job.told.get(start) == row}
        for known in (job.told, job.settled):
            while len(known) > _MOST_TOLD:  # a watch remembers its latest stretches only
                del known[min(known)]
        return news

    def end(self, key: _Key, gpu_uuid: str, *, leads: bool) -> list[JobStateRow]:
        """Note that a run is over: its GPU is no longer waited for, and a job without any is forgotten.

        Args:
            key: The job.
            gpu_uuid: The GPU of the run.
            leads: Whether it led the job, so that what is known belongs to it.

        Returns:
            What has not been told yet, if the run led the job or was the last of it.
        """
        job = self._jobs.get(key)
        if job is None:
            return []
        is_last = set(job.gpus) <= {gpu_uuid}
        if is_last:
            self._advance(job, max((gpu.newest for gpu in job.gpus.values()), default=0))
        news = self.news(key) if leads or is_last else []
        job.gpus.pop(gpu_uuid, None)
        job.watch.gpus = max(len(job.gpus), 1)
        if is_last:
            del self._jobs[key]
        return news

    def state(self, key: _Key) -> str:
        """Return what another one needs to go on with a job, as a text; empty where there is nothing."""
        job = self._jobs.get(key)
        return f"{job.origin} {job.reached} {job.watch.state().decode()}" if job else ""

    def restore(self, key: _Key, state: str) -> None:
        """Go on with a job where another one stood.

        Raises:
            ValueError: The text is no such state.
        """
        origin, reached, watch = state.split(" ", 2)
        times = int(origin), int(reached)
        if not 0 <= times[0] <= _LATEST or not 0 <= times[1] <= _LATEST:
            raise ValueError(f"it counts from {origin:.20} and has got to {reached:.20}")
        self._jobs[key] = _Job(times[0], StateWatch.from_state(watch.encode()), reached=times[1])

    def forget(self, key: _Key) -> None:
        """Know nothing of a job any more; its GPUs' next ticks begin it anew."""
        self._jobs.pop(key, None)

    def _advance(self, job: _Job, through: int) -> None:
        for gpu in job.gpus.values():
            if gpu.ticks:
                _average(job, gpu)
        seconds = sorted({at for gpu in job.gpus.values() for at in gpu.waiting if job.reached < at <= through})
        if not seconds:
            return
        nothing = np.zeros((3, len(STATE_METRICS)))
        # Shape (GPUs, seconds, 3, metrics).
        totals = np.array([[gpu.waiting.pop(at, nothing) for at in seconds] for gpu in job.gpus.values()])
        sums, counts = totals[:, :, 0], totals[:, :, 1]
        known = counts > 0
        means = np.where(known, sums / np.maximum(counts, 1.0), np.nan)
        if job.watch.report.state in _RESTS:
            for uuid, its in zip(job.gpus, means, strict=True):
                self._learn_idle(uuid, its)
        used = np.flatnonzero(known.any(axis=(0, 1))).tolist()
        load = next((i for i in (_POWER, *_USES) if i in used), None)
        times = np.array(seconds, dtype=np.float64)
        looks = [*sorted(at for at in job.looks if at <= seconds[-1]), math.inf]
        begin = 0
        for at in looks:
            # What the processes did in a second is known with the ticks of that second.
            stop = bisect.bisect_left(seconds, at)
            if stop > begin:
                piece = slice(begin, stop)
                job.watch.update(
                    times[piece] - job.origin,
                    {STATE_METRICS[i]: means[:, piece, i] for i in used},
                    None if load is None else totals[:, piece, 2, load],
                )
                begin = stop
            if math.isfinite(at):
                # Records hold half a minute of them: they are known behind the ticks, where those are followed live.
                written, processors, alive = job.looks.pop(int(at))
                job.watch.note_marks(
                    at - job.origin, written_bytes_per_s=written, processors=processors, processes=alive
                )
        job.reached, job.has_moved = seconds[-1], True
        for gpu in job.gpus.values():
            for at in [at for at in gpu.waiting if at <= job.reached]:
                del gpu.waiting[at]

    def _learn_idle(self, gpu_uuid: str, means: Float64Array) -> None:
        """Note the power, shape (seconds, metrics), of a GPU that is not in use; the lowest counts."""
        uses = means[:, _USES]
        unused = (uses < _NOT_USED).any(axis=1) & ~(uses >= _NOT_USED).any(axis=1) & (means[:, _POWER] > 0)
        if int(unused.sum()) >= _TOGETHER_S:
            watts = float(np.median(means[unused, _POWER]))
            self._idle_watts[gpu_uuid] = min(watts, self._idle_watts.get(gpu_uuid, math.inf))


def _average(job: _Job, gpu: _Gpu) -> None:
    """Average the ticks of a GPU over seconds."""
    samples = concatenate(gpu.ticks, STATE_METRICS) if len(gpu.ticks) > 1 else gpu.ticks[0]
    gpu.ticks.clear()
    second = samples.time_unix_nano // SECOND_NS
    values = samples.matrix(STATE_METRICS)
    later = second[1:] > second[:-1]
    if (second[1:] < second[:-1]).any():
        order = np.argsort(second, kind="stable")
        second, values = second[order], values[:, order]
        later = second[1:] > second[:-1]
    begins = np.concatenate(([0], np.flatnonzero(later) + 1))
    known = values == values  # noqa: PLR0124 - what is not NaN; a call less than np.isfinite
    known_values = np.where(known, values, 0.0)
    totals = np.array(
        (*np.add.reduceat((known_values, known), begins, axis=2), np.maximum.reduceat(known_values, begins, axis=1))
    )
    for i, at in enumerate(second[begins].tolist()):
        if at > job.reached:
            now, before = totals[:, :, i], gpu.waiting.get(at)
            if before is not None:
                now = np.array((*(now[:2] + before[:2]), np.maximum(now[2], before[2])))
            gpu.waiting[at] = now


def _news(job: _Job) -> tuple[list[JobStateRow], dict[int, tuple[StateSpan, JobStateRow]]]:
    """Return what is to be told of a job, and the stretches, by their beginnings, that may not have been told yet."""
    fresh: dict[int, tuple[StateSpan, JobStateRow]] = {}
    since = 0
    for span in reversed(job.watch.spans):
        since = round((job.origin + span.start_s) * SECOND_NS)
        if job.settled.get(since) is span:
            break
        fresh[since] = (span, JobStateRow(since, str(span.state), span.reason, span.confidence))
    again = job.reached - job.told_at >= _TOLD_AGAIN_S
    changed = [
        row
        for start, (_, row) in reversed(fresh.items())
        if (known := job.told.get(start)) is None or known.state != row.state or (again and known != row)
    ]
    gone = [JobStateRow(start, _GONE, "", 0.0) for start in job.told if start > since and start not in fresh]
    return [*gone, *changed], fresh
