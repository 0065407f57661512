"""``JobStates``: what the jobs of an agent are doing, from the ticks of all their GPUs as they are followed.

The ticks of a job's GPUs come one GPU after the other, live a few seconds' worth, after a restart hours'. They are
averaged over seconds, and wait until all GPUs have got as far. What is found belongs to the run that leads the job.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gpusonde.collector.storage.model import JobStateRow
from gpusonde.collector.storage.samples import SECOND_NS, Samples
from gpusonde.epoch_detect import EpochDetection
from gpusonde.epoch_detect.detect import shifted
from gpusonde.epoch_detect.progress import PaceChange, StateWatch
from gpusonde.service.wire import ACTIVITY_COLUMNS, Float64Array, JobActivity

# Those that tell what a job does, as far as a GPU has them.
_METRICS = (
    "power_watts",
    "sm_active",
    "graphics_active",
    "gpu_utilization",
    "pcie_tx_bytes_per_second",
    "pcie_rx_bytes_per_second",
    "framebuffer_used_bytes",
)
# A GPU that is further behind the first one than this is not waited for, unless a backlog is read.
_PATIENCE_S = 10
_MOST_WAITING_S = 7200
# The words of a state that goes on have figures that change with every second.
_TOLD_AGAIN_S = 60.0
# That no state begins at a time any more.
_GONE = ""
_Key = tuple[str, ...]


@dataclass
class _Gpu:
    """Seconds of one GPU that wait: sums and counts of each metric, shape (metrics,)."""

    waiting: dict[int, tuple[Float64Array, Float64Array]] = field(default_factory=dict)
    newest: int = 0


@dataclass
class _Job:
    """One job on the GPUs of one agent; times of ``watch`` count from ``origin``, in whole seconds since 1970.

    ``looks`` are what its processes did: second -> bytes written per second, and processors taken. ``has_moved`` says
    whether it was watched since it was found to have no news.
    """

    origin: int
    watch: StateWatch
    gpus: dict[str, _Gpu] = field(default_factory=dict)
    looks: dict[int, tuple[float, float]] = field(default_factory=dict)
    reached: int = 0
    told: dict[int, JobStateRow] = field(default_factory=dict)
    told_at: float = -math.inf
    has_moved: bool = False


class JobStates:
    """Watches jobs.

    Args:
        make_watch: Makes the watch of a job of so many GPUs.
    """

    def __init__(self, make_watch: Callable[[int], StateWatch] = StateWatch) -> None:
        self._make_watch = make_watch
        self._jobs: dict[_Key, _Job] = {}

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
            job = self._jobs[key] = _Job(int(second.min()), self._make_watch(1))
        gpu = job.gpus.setdefault(gpu_uuid, _Gpu())
        job.watch.gpus = len(job.gpus)
        order = np.argsort(second, kind="stable")
        second = second[order]
        begins = np.flatnonzero(np.diff(second, prepend=second[0] - 1))
        values = samples.matrix(_METRICS)[:, order]
        known = np.isfinite(values)
        sums = np.add.reduceat(np.where(known, values, 0.0), begins, axis=1)
        counts = np.add.reduceat(known.astype(np.float64), begins, axis=1)
        for i, at in enumerate(second[begins].tolist()):
            if at <= job.reached:
                continue
            before = gpu.waiting.get(at)
            now = (sums[:, i], counts[:, i])
            gpu.waiting[at] = now if before is None else (before[0] + now[0], before[1] + now[1])
        gpu.newest = max(gpu.newest, int(second[-1]))
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
        time_s = activity.time_unix_nano / SECOND_NS
        since_s = np.diff(time_s, prepend=time_s[:1] - 1.0)
        written = activity.values[ACTIVITY_COLUMNS.index("written_bytes")] / since_s
        processors = activity.values[ACTIVITY_COLUMNS.index("processor_s")] / since_s
        for at, *look in zip(time_s.astype(np.int64).tolist(), written.tolist(), processors.tolist(), strict=True):
            if at > job.reached and len(job.looks) < _MOST_WAITING_S:
                job.looks[at] = (look[0], look[1])

    def settle(self, key: _Key) -> None:
        """Watch a job up to where its GPUs have got, now that all of them have been read as far as they were stored."""
        job = self._jobs.get(key)
        # One that another process has watched has no ticks here yet.
        if job is not None and job.gpus:
            newest = [gpu.newest for gpu in job.gpus.values()]
            # The newest second of a GPU is not over yet.
            self._advance(job, max(min(newest) - 1, max(newest) - _PATIENCE_S))

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
        news, job.told = _news(job)
        if news:
            job.told_at = float(job.reached)
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
        self._jobs[key] = _Job(int(origin), StateWatch.from_state(watch.encode()), reached=int(reached))

    def _advance(self, job: _Job, through: int) -> None:
        seconds = sorted({at for gpu in job.gpus.values() for at in gpu.waiting if job.reached < at <= through})
        if not seconds:
            return
        nothing = (np.zeros(len(_METRICS)), np.zeros(len(_METRICS)))
        # Shape (GPUs, seconds, metrics).
        pieces = [[gpu.waiting.pop(at, nothing) for at in seconds] for gpu in job.gpus.values()]
        sums = np.array([[piece[0] for piece in of_gpu] for of_gpu in pieces])
        counts = np.array([[piece[1] for piece in of_gpu] for of_gpu in pieces])
        means = np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan)
        used = [i for i in range(len(_METRICS)) if counts[:, :, i].any()]
        times = np.array(seconds, dtype=np.float64)
        looks = [*sorted(at for at in job.looks if at <= seconds[-1]), math.inf]
        begin = 0
        for at in looks:
            # What the processes did in a second is known with the ticks of that second.
            stop = int(np.searchsorted(times, at))
            if stop > begin:
                piece = slice(begin, stop)
                job.watch.update(times[piece] - job.origin, {_METRICS[i]: means[:, piece, i] for i in used})
                begin = stop
            if math.isfinite(at):
                written, processors = job.looks.pop(int(at))
                job.watch.note_marks(at - job.origin, written_bytes_per_s=written, processors=processors)
        job.reached, job.has_moved = seconds[-1], True
        for gpu in job.gpus.values():
            for at in [at for at in gpu.waiting if at <= job.reached]:
                del gpu.waiting[at]


def _news(job: _Job) -> tuple[list[JobStateRow], dict[int, JobStateRow]]:
    """Return what is to be told of a job, and what has been told by then."""
    rows: dict[int, JobStateRow] = {}
    for span in job.watch.spans:
        start = round((job.origin + span.start_s) * SECOND_NS)
        rows[start] = JobStateRow(start, str(span.state), span.reason, span.confidence)
    again = job.reached - job.told_at >= _TOLD_AGAIN_S
    changed = [
        row
        for start, row in rows.items()
        if (known := job.told.get(start)) is None or known.state != row.state or (again and known != row)
    ]
    first = min(rows, default=0)
    gone = [JobStateRow(start, _GONE, "", 0.0) for start in job.told if start >= first and start not in rows]
    told = {start: row for start, row in job.told.items() if start in rows}
    return [*gone, *changed], told | {row.start_unix_nano: row for row in changed}
