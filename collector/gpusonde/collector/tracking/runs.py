"""``RunTracker``: where a job's stay on one GPU begins and ends.

The tracker is a function of what an agent said about the GPU, in order of arrival, and of nothing else: after a restart
the same records give the same runs with the same ids. ``has_activity`` tells whether metrics say that a GPU is working.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TypeAlias

import numpy as np

from gpusonde.collector.config import RunsConfig
from gpusonde.collector.storage.model import Position, RunRow
from gpusonde.collector.storage.samples import Samples, concatenate
from gpusonde.collector.tracking.run_state import OpenRun, Resume, RunTrackerState
from gpusonde.service.wire import Binding, Int64Array
from gpusonde.telemetry import METRICS, FloatArray, Unit

# Ratios that move when a kernel runs. Video engines do not train networks.
_ACTIVITY = tuple(
    m.name for m in METRICS if m.unit is Unit.RATIO and m.name not in ("encoder_utilization", "decoder_utilization")
)


def has_activity(metrics: Sequence[str]) -> bool:
    """Return whether any of the metrics tells that a GPU is working."""
    return any(name in _ACTIVITY for name in metrics)


def measure_activity(samples: Samples) -> FloatArray:
    """Return the largest activity ratio of every tick, NaN where none is known."""
    matrix = samples.matrix([name for name in _ACTIVITY if name in samples.columns])
    if not matrix.size:
        return np.full(len(samples), np.nan)
    known = np.isfinite(matrix)
    largest = np.where(known, matrix, -np.inf).max(axis=0)
    return np.where(known.any(axis=0), largest, np.nan)


_MEMORY = "framebuffer_used_bytes"
# Less than this above the idle level is the driver's own memory, not a job's.
_LEAST_HELD_BYTES = 64.0 * (1 << 20)


_BEGINNING = Resume()


@dataclass(frozen=True)
class RunStarted:
    """A run has begun; its ticks, beginning with the lead-in, follow."""

    run: RunRow


@dataclass(frozen=True)
class RunTicks:
    """Ticks of the run that is open."""

    samples: Samples


@dataclass(frozen=True)
class RunEnded:
    """The open run is over."""

    run: RunRow


RunEvent: TypeAlias = RunStarted | RunTicks | RunEnded


@dataclass
class _Idle:
    """Time between runs: the lead-in of the next one, and its first activity if that may be one."""

    recent: list[Samples] = field(default_factory=list)
    candidate: int | None = None
    active_s: float = 0.0
    last_active: int = 0


class RunTracker:
    """Finds the runs of one GPU in what one agent says about it.

    Args:
        agent_id: The agent.
        gpu_uuid: The GPU.
        config: When runs begin and end.
        has_activity: Whether the GPU has any activity ratio; without one, every tick counts as active.
        resume: Where the tracker begins.
        bindings: Job bindings up to there, or up to where the state was taken.
        state: What an earlier tracker knew; this one goes on there instead.
    """

    def __init__(
        self,
        agent_id: str,
        gpu_uuid: str,
        config: RunsConfig,
        *,
        has_activity: bool = True,
        resume: Resume = _BEGINNING,
        bindings: Sequence[Binding] = (),
        state: RunTrackerState | None = None,
    ) -> None:
        self._agent_id = agent_id
        self._gpu_uuid = gpu_uuid
        self._config = config
        self._resume = resume
        self._bindings: dict[tuple[str, int], Binding] = {(b.job_id, b.start_unix_nano): b for b in bindings}
        self._open: OpenRun | None = None
        self._idle = _Idle()
        self._last_time: int | None = None
        self._last_position = resume.position
        self._memory = math.nan
        self._has_activity = has_activity
        if state:
            self._resume = _BEGINNING
            self._open = state.run
            self._last_time = state.last_time
            self._last_position = state.last_position
            self._memory = state.memory
            self._has_activity = state.has_activity

    @property
    def resume(self) -> Resume:
        """Where a new tracker has to begin in order to come to the same state."""
        if self._open:
            return self._open.resume
        return _beginning_with(self._idle.recent[0]) if self._idle.recent else Resume(self._last_position)

    @property
    def is_open(self) -> bool:
        """Whether a run is open."""
        return self._open is not None

    @property
    def run(self) -> RunRow | None:
        """The open run as it stands."""
        return self._row(self._open, ended="") if self._open else None

    @property
    def last_active(self) -> int:
        """Latest activity of the open run, Unix nanoseconds; 0 without one."""
        return self._open.last_active if self._open else 0

    def state(self) -> RunTrackerState | None:
        """Return what another tracker needs to go on here; None between runs, where ``resume`` says enough."""
        if self._open is None or self._last_time is None:
            return None
        return RunTrackerState(
            replace(self._open), self._last_time, self._last_position, self._memory, self._has_activity
        )

    def ticks(self, samples: Samples) -> list[RunEvent]:
        """Take ticks in order of arrival and return what follows from them."""
        events: list[RunEvent] = []
        if len(samples) and self._resume.not_before_unix_nano:
            samples = _without_the_past(samples, self._resume.not_before_unix_nano)
            self._resume = _BEGINNING
        activity = measure_activity(samples)
        memory = samples.matrix([_MEMORY])[0]
        if self._open and self._goes_on(self._open, samples.time_unix_nano, activity, memory):
            return self._pass_on(samples)
        begin = 0
        for i, time in enumerate(samples.time_unix_nano.tolist()):
            broken = self._broken(time)
            if broken:
                events += self._pass_on(samples.take(slice(begin, i)))
                events += self._end(broken)
                self._idle = _Idle()
                begin = i
            late = self._last_time is not None and time <= self._last_time and not broken
            if late:
                continue
            active = self._is_active(float(activity[i]))
            if memory[i] == memory[i]:
                self._memory = float(memory[i])
            if self._open:
                ended = self._step_open(self._open, time, active)
            else:
                ended = ""
                if self._step_idle(time, active):
                    events += self._start(samples.take(slice(begin, i + 1)))
                    begin = i + 1
            self._last_time = time
            if ended:
                events += self._pass_on(samples.take(slice(begin, i + 1)))
                events += self._end(ended)
                begin = i + 1
        events += self._pass_on(samples.take(slice(begin, len(samples))))
        if len(samples):
            self._last_position = samples.last_position
        return events

    def binding(self, position: Position, binding: Binding) -> list[RunEvent]:
        """Take a job binding; a job that leaves, or another one that takes the GPU over, ends the run.

        A job that only shares the GPU with the run's job ends nothing.
        """
        self._last_position = position
        self._bindings[binding.job_id, binding.start_unix_nano] = binding
        run = self._open
        if run is None:
            return []
        over_before = 0 < binding.end_unix_nano <= run.start
        if over_before or (run.job and binding.start_unix_nano < run.job.start_unix_nano):
            return []
        if run.job and run.job.job_id != binding.job_id and _is_shared(binding):
            return []
        took_over = binding.start_unix_nano > run.start + _nano(self._config.binding_slack_s)
        if run.job.job_id != binding.job_id if run.job else took_over:
            return self._end(f"job {binding.job_id} took the GPU")
        run.job = binding
        return self._end(f"job {binding.job_id} left the GPU") if binding.end_unix_nano else []

    def source_ended(self, position: Position) -> list[RunEvent]:
        """Take the end of a finite source."""
        self._last_position = position
        events = self._end("the source has ended")
        self._idle = _Idle()
        self._last_time = None
        return events

    def end(self, reason: str) -> list[RunEvent]:
        """End the open run, if there is one, for a reason outside of the ticks."""
        return self._end(reason)

    def _goes_on(self, run: OpenRun, time: Int64Array, activity: FloatArray, memory: FloatArray) -> bool:
        """Take ticks in all of which the run goes on, at once; return whether they are such."""
        if not time.size or self._last_time is None:
            return False
        steps = np.diff(time, prepend=self._last_time)
        if steps.min() <= 0 or steps.max() / 1e9 > self._config.gap_end_s:
            return False
        if self._has_activity and not (activity > self._config.activity_threshold).all():
            return False
        known = memory[~np.isnan(memory)]
        if np.isnan(memory[0]):
            run.memory_peak = float(np.fmax(run.memory_peak, self._memory))
        if known.size:
            self._memory = float(known[-1])
            run.memory_peak = max(run.memory_peak, float(known.max()))
        run.last_active = self._last_time = int(time[-1])
        return True

    def _broken(self, time: int) -> str:
        """Say why this tick cannot belong to what was before it, or nothing."""
        if self._last_time is None:
            return ""
        step_s = (time - self._last_time) / 1e9
        if step_s > self._config.gap_end_s:
            return f"no ticks for {step_s:.0f} s"
        if step_s < -self._config.clock_tolerance_s:
            return f"the host's clock was set back by {-step_s:.1f} s"
        return ""

    def _is_active(self, activity: float) -> bool:
        return activity > self._config.activity_threshold if self._has_activity else True

    def _step_idle(self, time: int, active: bool) -> bool:
        """Take one tick outside of a run; return whether a run has begun."""
        idle = self._idle
        if active:
            if idle.candidate is None:
                idle.candidate, idle.active_s = time, 0.0
            elif self._last_time is not None:
                idle.active_s += (time - self._last_time) / 1e9
            idle.last_active = time
            return idle.active_s >= self._config.min_active_s
        if idle.candidate is not None and time - idle.last_active > _nano(self._config.lead_in_s):
            idle.candidate = None
        return False

    def _step_open(self, run: OpenRun, time: int, active: bool) -> str:
        """Take one tick of the run; return why the run is over, or nothing."""
        if self._memory == self._memory:
            run.memory_peak = max(run.memory_peak, self._memory)
        if active:
            run.last_active = time
            return ""
        idle_s = (time - run.last_active) / 1e9
        if idle_s >= self._config.held_end_s:
            return f"idle for {idle_s:.0f} s while holding device memory"
        if idle_s >= self._config.idle_end_s and not self._holds_memory(run):
            return f"idle for {idle_s:.0f} s"
        return ""

    def _holds_memory(self, run: OpenRun) -> bool:
        grown = run.memory_peak - run.memory_floor
        return grown > _LEAST_HELD_BYTES and self._memory >= run.memory_floor + grown / 2

    def _start(self, newest: Samples) -> list[RunEvent]:
        """Open a run with its lead-in; ``newest`` ends with the tick that made it one."""
        idle, self._idle = self._idle, _Idle()
        start = idle.candidate if idle.candidate is not None else int(newest.time_unix_nano[-1])
        pieces = [*idle.recent, newest]
        metrics = list(dict.fromkeys(name for piece in pieces for name in piece.columns))
        samples = concatenate(pieces, metrics)
        samples = samples.between(start - _nano(self._config.lead_in_s), 1 << 62)
        inside = samples.between(start, 1 << 62)
        first = Position(int(inside.spool[0]), int(inside.sequence[0]))
        run_id = _run_id(self._agent_id, self._gpu_uuid, start, first)
        before = samples.between(0, start).columns.get(_MEMORY)
        known = before[np.isfinite(before)] if before is not None else np.empty(0)
        floor = float(np.median(known)) if known.size else 0.0
        self._open = OpenRun(run_id, self._job_at(start), start, first, _beginning_with(samples), floor)
        self._open.last_active = start
        row = self._row(self._open, ended="")
        return [RunStarted(row), *self._pass_on(samples)]

    def _pass_on(self, samples: Samples) -> list[RunEvent]:
        """Give ticks to the open run, or keep them as the next one's lead-in."""
        if not len(samples):
            return []
        if self._open is None:
            self._keep(samples)
            return []
        run = self._open
        inside = samples.between(run.start, 1 << 62)
        upto = inside.between(0, run.last_active + 1)
        if len(upto):
            run.active_ticks = run.ticks + len(upto)
            run.active_missed = run.missed + int(upto.missed_ticks.sum())
            run.active_position = upto.last_position
        run.ticks += len(inside)
        run.missed += int(inside.missed_ticks.sum())
        self._last_position = samples.last_position
        return [RunTicks(samples)]

    def _keep(self, samples: Samples) -> None:
        idle = self._idle
        idle.recent.append(samples)
        newest = idle.candidate if idle.candidate is not None else int(samples.time_unix_nano[-1])
        horizon = newest - _nano(self._config.lead_in_s)
        while len(idle.recent) > 1 and idle.recent[0].time_unix_nano[-1] < horizon:
            del idle.recent[0]

    def _end(self, reason: str) -> list[RunEvent]:
        if self._open is None:
            return []
        row = self._row(self._open, ended=reason)
        self._open = None
        return [RunEnded(row)]

    def _job_at(self, time: int) -> Binding | None:
        slack = _nano(self._config.binding_slack_s)
        holders = [
            b
            for b in self._bindings.values()
            if b.start_unix_nano <= time + slack and (b.end_unix_nano == 0 or b.end_unix_nano > time)
        ]
        return max(holders, key=lambda b: (not _is_shared(b), b.start_unix_nano), default=None)

    def _row(self, run: OpenRun, ended: str) -> RunRow:
        over = bool(ended)
        last = run.active_position if over else self._last_position
        return RunRow(
            run_id=run.run_id,
            agent_id=self._agent_id,
            gpu_uuid=self._gpu_uuid,
            job_id=run.job.job_id if run.job else "",
            scheduler=run.job.scheduler if run.job else 0,
            ended=over,
            end_reason=ended,
            start_unix_nano=run.start,
            end_unix_nano=run.last_active if over else self._last_time or run.start,
            first_spool=run.first.spool,
            first_sequence=run.first.sequence,
            last_spool=last.spool,
            last_sequence=last.sequence,
            tick_count=run.active_ticks if over else run.ticks,
            missed_ticks=run.active_missed if over else run.missed,
        )


def _beginning_with(samples: Samples) -> Resume:
    return Resume(Position(int(samples.spool[0]), int(samples.sequence[0]) - 1), int(samples.time_unix_nano[0]))


def _is_shared(binding: Binding) -> bool:
    """Return whether another job held the GPU before, and still does."""
    return binding.labels.get("shared") == "true"


def _without_the_past(samples: Samples, not_before_unix_nano: int) -> Samples:
    """Leave earlier ticks of the first record out."""
    first = (samples.spool == samples.spool[0]) & (samples.sequence == samples.sequence[0])
    return samples.take(~(first & (samples.time_unix_nano < not_before_unix_nano)))


def _nano(seconds: float) -> int:
    return round(seconds * 1e9)


def _run_id(agent_id: str, gpu_uuid: str, start_unix_nano: int, first: Position) -> str:
    """Name a run: readable, in order of time, and the same whenever it is found again."""
    digest = hashlib.sha256(f"{agent_id}\n{gpu_uuid}\n{start_unix_nano}\n{first}".encode()).hexdigest()
    moment = datetime.fromtimestamp(start_unix_nano // 1_000_000_000, tz=timezone.utc)
    return f"{moment:%Y%m%dT%H%M%S}-{digest[:8]}"
