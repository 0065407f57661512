"""``GpuFollower``: runs and epochs of one GPU, as far as the store has got."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from gpusonde.collector.config import RunsConfig
from gpusonde.collector.storage.model import RunRow, RunUpdate
from gpusonde.collector.storage.samples import ActivityEntry, BindingEntry, Samples, TicksEntry, concatenate
from gpusonde.collector.storage.store import Store, UnusableStateError
from gpusonde.collector.tracking.epochs import RunEpochTracker
from gpusonde.collector.tracking.jobs import EpochsOfRun, JobRun, Jobs, job_of
from gpusonde.collector.tracking.run_state import FollowerState, Resume
from gpusonde.collector.tracking.runs import (
    RunEnded,
    RunEvent,
    RunStarted,
    RunTicks,
    RunTracker,
    has_activity,
)
from gpusonde.epoch_detect import EpochDetection

# Lengths of the run after which the GPUs of its job are compared again, and the least time.
_COMPARE_GROWTH = 3.0
_LEAST_COMPARE_NS = 60_000_000_000
# Ticks of a job that wait, so that its other GPUs are read once for what agents send together, not for each record.
_HELD_NS = 3_000_000_000


class RunLeftAloneError(Exception):
    """The run that led this one is over, and this one goes on: it is read again from its start, now for itself."""


class GpuFollower:
    """Reads what arrived for one GPU since it last looked, and tracks it.

    Because it reads the store, it works the same for ticks of this second, for a backlog, and after a restart.

    Args:
        agent_id: The agent.
        gpu_uuid: The GPU.
        store: Where the ticks are.
        config: When runs begin and end.
        jobs: The runs of each job; makes epoch trackers.
        resume: Where to begin.
        state: What an earlier follower knew; this one goes on there instead.

    Raises:
        UnusableStateError: The state was made under other rules, or the epoch tracker cannot be rebuilt.
    """

    def __init__(
        self,
        agent_id: str,
        gpu_uuid: str,
        store: Store,
        config: RunsConfig,
        jobs: Jobs,
        resume: Resume,
        state: FollowerState | None = None,
    ) -> None:
        self._agent_id = agent_id
        self._gpu_uuid = gpu_uuid
        self._store = store
        self._jobs = jobs
        self._policy = config.policy
        self._run_id = ""
        # What names the run's job to ``JobStates``: of a run without one, the run itself.
        self._state_key: tuple[str, ...] = ()
        self._noted: EpochDetection | None = None
        self._epochs: RunEpochTracker | None = None
        self._job: JobRun | None = None
        # Whether ticks of the run went to the tracker of another one.
        self._was_led = False
        self._told: tuple[EpochsOfRun | None, int] = (None, 0)
        self._compare_from = 0
        self._held: list[Samples] = []
        # What processes did before there was a run: that of its lead-in belongs to it.
        self._early: list[ActivityEntry] = []
        self._is_exhaustive = True
        self._reached = resume.position
        self._restored = state is not None
        if state:
            if state.policy != config.policy:
                raise UnusableStateError("the options that say when runs begin and end have changed")
            self._reached = state.reached
            self._run_id = state.run_id
            self._was_led = state.epochs is None
            if state.epochs:
                self._epochs = RunEpochTracker.restored(
                    state.run_id, state.epochs, jobs.make_tracker, jobs.restore_tracker
                )
        self._runs = RunTracker(
            agent_id,
            gpu_uuid,
            config,
            has_activity=has_activity(store.facts.metrics(gpu_uuid)),
            resume=resume,
            bindings=[
                binding for position, binding in store.facts.bindings(agent_id, gpu_uuid) if position <= self._reached
            ],
            state=state.runs if state else None,
        )
        if run := self._runs.run:
            self._note_job(run)
            if state and state.job_state:
                self._restore_job(state.job_state)

    @property
    def resume(self) -> Resume:
        """Where another follower has to begin in order to come to the same state."""
        return self._runs.resume

    @property
    def restored(self) -> bool:
        """Whether what it knows of the open run comes from a stored state."""
        return self._restored

    @property
    def has_run(self) -> bool:
        """Whether a run is open."""
        return self._runs.is_open

    def state(self) -> FollowerState | None:
        """Return what another follower needs to go on here; None where ``resume`` says enough, or is better."""
        self._take_held()
        runs, epochs = self._runs.state(), self._epochs.state() if self._epochs else None
        if runs is None or (epochs is None and not self._was_led):
            return None
        job_state = self._jobs.states.state(self._state_key) if epochs else ""
        return FollowerState(self._agent_id, self._gpu_uuid, self._policy, self._reached, runs, epochs, job_state)

    @property
    def has_changes(self) -> bool:
        """Whether the open run's epochs, or what its job does, have changed since they were last asked for."""
        states = self._epochs is not None and self._jobs.states.has_news(self._state_key)
        return states or self._is_news(self._known())

    def advance(self, stop: Callable[[], bool] = lambda: False, *, exhaustive: bool = True) -> Iterator[RunUpdate]:
        """Track everything that has arrived, or until ``stop()``, and yield the runs that ended.

        Args:
            stop: Asked after each piece.
            exhaustive: See ``gpusonde.epoch_detect.EpochTracker.update``.

        Raises:
            UnusableStateError: The follower went on from a state, and its epoch tracker fails.
            RunLeftAloneError: The run that led this one is over, this one is not: it has to be read again.
            StoreError: The store cannot be read. After each of them the follower cannot be used any more.
        """
        for entry in self._store.samples.read_feed(self._agent_id, self._gpu_uuid, self._reached):
            if isinstance(entry, TicksEntry):
                events = self._runs.ticks(entry.samples)
                self._reached = entry.samples.last_position
            elif isinstance(entry, BindingEntry):
                events = self._runs.binding(entry.position, entry.binding)
                self._reached = entry.position
                if run := self._runs.run:
                    self._note_job(run)
            elif isinstance(entry, ActivityEntry):
                events = []
                self._note_activity(entry)
                self._reached = entry.position
            else:
                events = self._runs.source_ended(entry.position)
                self._reached = entry.position
            yield from self._apply(events, exhaustive=exhaustive)
            if stop():
                return

    def settle(self) -> None:
        """Find out what the run's job does, once all of its GPUs have been read."""
        self._jobs.states.settle(self._state_key)
        found = self._epochs.detection if self._epochs else None
        if self._epochs and found is not None and found is not self._noted:
            self._jobs.states.note_detection(self._state_key, found, self._epochs.origin_unix_nano)
        self._noted = found
        if self._epochs:
            self._jobs.states.note_pace(self._state_key, self._epochs.slower, self._epochs.origin_unix_nano)

    def drain(self) -> None:
        """Take what the ticks so far have led to meanwhile.

        Raises:
            UnusableStateError: As for ``advance``.
        """
        if self._epochs:
            self._epochs.drain()

    def finish_look(self) -> None:
        """Have the look at the run finished that is going on, as no ticks come for now.

        Raises:
            UnusableStateError: As for ``advance``.
        """
        self._take_held()
        if self._epochs:
            self._epochs.finish_look()

    def end(self, reason: str) -> list[RunUpdate]:
        """End the open run for a reason outside of the ticks.

        Raises:
            UnusableStateError: As for ``advance``.
        """
        return self._apply(self._runs.end(reason))

    def current(self) -> RunUpdate | None:
        """Return the open run as it stands."""
        run = self._runs.run
        return self._row(run) if run and (self._epochs or self._was_led) else None

    def abandon(self) -> None:
        """Let no other run wait for this one: nobody follows it here any more."""
        if self._job:
            self._job.row = replace(self._job.row, ended=True)
        self._jobs.states.end(self._state_key, self._gpu_uuid, leads=False)

    def forget_job(self) -> None:
        """Know nothing of what the run's job does: what a state said of it leads to faults."""
        self._jobs.states.forget(self._state_key)

    def _apply(self, events: Sequence[RunEvent], *, exhaustive: bool = True) -> list[RunUpdate]:
        ended: list[RunUpdate] = []
        for event in events:
            if isinstance(event, RunStarted):
                self._epochs, self._job, self._was_led = None, None, False
                self._run_id = event.run.run_id
                self._compare_from = 0
                self._note_job(event.run)
            elif isinstance(event, RunTicks):
                self._track(event.samples, exhaustive=exhaustive)
            elif isinstance(event, RunEnded):
                ended += self._end(event.run)
        return ended

    def _note_job(self, run: RunRow) -> None:
        """Note the run's job, which may become known while it goes on."""
        key = job_of(run)
        names: tuple[str, ...] = (run.run_id,) if key is None else (key.agent_id, str(key.scheduler), key.job_id)
        if names != self._state_key:
            self._jobs.states.end(self._state_key, self._gpu_uuid, leads=False)
            self._state_key = names
        if key != (job_of(self._job.row) if self._job else None):
            self._job = self._jobs.enter(key, run, self._runs.last_active) if key else None
            if self._job:
                self._job.epochs = self._epochs

    def _restore_job(self, state: str) -> None:
        try:
            self._jobs.states.restore(self._state_key, state)
        except ValueError as error:
            raise UnusableStateError(f"what its job did cannot be read: {error}") from error

    def _track(self, samples: Samples, *, exhaustive: bool) -> None:
        """Take ticks of the run."""
        self._jobs.states.take(self._state_key, self._gpu_uuid, samples)
        job = self._job
        if job:
            job.row = self._runs.run or job.row
            job.last_active = max(job.last_active, self._runs.last_active)
            if self._jobs.leader(job) is not job:
                self._epochs, self._was_led, job.epochs, self._held = None, True, None, []
                return
            if self._was_led and self._runs.is_open:
                raise RunLeftAloneError(self._run_id)
        if self._was_led:
            return
        if self._epochs is None:
            offered = set(self._store.facts.metrics(self._gpu_uuid))
            metrics = [name for name in samples.columns if name in offered]
            self._epochs = RunEpochTracker(self._run_id, metrics, self._jobs.make_tracker)
            for entry in self._early:
                if entry.position > self._runs.resume.position:
                    self._epochs.note_activity(entry.activity)
            self._early = []
        if job is None or not len(samples):
            self._epochs.update(samples, exhaustive=exhaustive)
            return
        job.epochs = self._epochs
        self._held.append(samples)
        self._is_exhaustive = exhaustive
        length_ns = int(samples.time_unix_nano[-1]) - int(self._held[0].time_unix_nano[0])
        if length_ns >= _HELD_NS or not self._jobs.has_others(job):
            self._take_held()

    def _note_activity(self, entry: ActivityEntry) -> None:
        """Give the tracker what the job's processes did, behind the ticks that arrived before it."""
        self._jobs.states.note_activity(self._state_key, entry.activity)
        if self._epochs:
            self._take_held()
            self._epochs.note_activity(entry.activity)
        elif not self._runs.is_open:
            self._early = [e for e in (*self._early, entry) if e.position > self._runs.resume.position]

    def _take_held(self) -> None:
        """Give the tracker what waits for the other GPUs of the job to be read with it."""
        held, self._held = self._held, []
        if not held or self._epochs is None or self._job is None:
            return
        metrics = list(dict.fromkeys(name for samples in held for name in samples.columns))
        samples = self._jobs.average(self._job, concatenate(held, metrics))
        self._epochs.update(samples, exhaustive=self._is_exhaustive)
        self._compare(self._job, int(samples.time_unix_nano[-1]))

    def _end(self, run: RunRow) -> list[RunUpdate]:
        """Take the end of the run; return it, and the others that it has led."""
        self._take_held()
        job, self._job = self._job, None
        others: list[JobRun] = []
        if job:
            job.row, job.last_active = run, run.end_unix_nano
            if self._jobs.leader(job) is job:
                if self._was_led:
                    raise RunLeftAloneError(self._run_id)
                others = self._jobs.led_by(job)
            else:
                self._epochs = None
        if self._epochs:
            self._epochs.finish()
            if job:
                self._compare(job, run.end_unix_nano, at_once=True)
        known = self._epochs or (self._jobs.leader(job).epochs if job else None) or self._told[0]
        rows = [run, *(other.row for other in others)]
        updates = [RunUpdate(run, None)] if known is None else [known.row(row, whole=True) for row in rows]
        states = self._jobs.states.end(self._state_key, self._gpu_uuid, leads=self._epochs is not None)
        updates[0] = replace(updates[0], states=states)
        self._epochs, self._was_led, self._restored = None, False, False
        self._told = (None, 0)
        return updates

    def _compare(self, job: JobRun, now: int, *, at_once: bool = False) -> None:
        """Name the GPUs that do otherwise than the others, less and less often as the run goes on."""
        if self._epochs is None or (not at_once and now < self._compare_from):
            return
        start = job.row.start_unix_nano
        if not at_once and now - start < _LEAST_COMPARE_NS:
            return
        self._compare_from = now + max(round((now - start) * _COMPARE_GROWTH), _LEAST_COMPARE_NS)
        found = self._epochs.detection
        if found is not None:
            longest_s = max((cycle.period_s for cycle in found.cycles), default=found.period_s)
            period_s = found.period_s if math.isfinite(found.period_s) else longest_s
            self._epochs.name_deviations(self._jobs.deviations(job, period_s, now))

    def _known(self) -> EpochsOfRun | None:
        """Return what knows of the epochs of the open run."""
        led = self._jobs.leader(self._job).epochs if self._job and self._was_led else None
        # One that is to lead from now on has nothing to tell at first.
        return self._epochs or led or self._told[0]

    def _is_news(self, known: EpochsOfRun | None) -> bool:
        return known is not None and known.version > 0 and (known, known.version) != self._told

    def _row(self, run: RunRow) -> RunUpdate:
        known = self._known()
        if known is None:
            return RunUpdate(run, None)
        whole = self._is_news(known)
        self._told = (known, known.version)
        update = known.row(run, whole=whole)
        return replace(update, states=self._jobs.states.news(self._state_key)) if self._epochs else update


FollowerFactory = Callable[[str, str, Resume, FollowerState | None], GpuFollower]
