"""``GpuFollower``: runs and epochs of one GPU, as far as the store has got."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gpusonde.collector.config import RunsConfig
from gpusonde.collector.storage.model import RunUpdate
from gpusonde.collector.storage.samples import BindingEntry, TicksEntry
from gpusonde.collector.storage.store import Store, UnusableStateError
from gpusonde.collector.tracking.epochs import RunEpochTracker, TrackerFactory, TrackerRestorer
from gpusonde.collector.tracking.run_state import FollowerState, Resume
from gpusonde.collector.tracking.runs import (
    RunEnded,
    RunEvent,
    RunStarted,
    RunTicks,
    RunTracker,
    has_activity,
)
from gpusonde.epoch_detect import EpochTracker


class GpuFollower:
    """Reads what arrived for one GPU since it last looked, and tracks it.

    Because it reads the store, it works the same for ticks of this second, for a backlog, and after a restart.

    Args:
        agent_id: The agent.
        gpu_uuid: The GPU.
        store: Where the ticks are.
        config: When runs begin and end.
        make_tracker: Makes epoch trackers.
        resume: Where to begin.
        state: What an earlier follower knew; this one goes on there instead.
        restore_tracker: Makes an epoch tracker of its state.

    Raises:
        UnusableStateError: The state was made under other rules, or the epoch tracker cannot be rebuilt.
    """

    def __init__(
        self,
        agent_id: str,
        gpu_uuid: str,
        store: Store,
        config: RunsConfig,
        make_tracker: TrackerFactory,
        resume: Resume,
        state: FollowerState | None = None,
        restore_tracker: TrackerRestorer = EpochTracker.restore,
    ) -> None:
        self._agent_id = agent_id
        self._gpu_uuid = gpu_uuid
        self._store = store
        self._make_tracker = make_tracker
        self._policy = config.policy
        self._run_id = ""
        self._epochs: RunEpochTracker | None = None
        self._reached = resume.position
        self._restored = state is not None
        if state:
            if state.policy != config.policy:
                raise UnusableStateError("the options that say when runs begin and end have changed")
            self._reached = state.reached
            self._run_id = state.run_id
            self._epochs = RunEpochTracker.restored(state.run_id, state.epochs, make_tracker, restore_tracker)
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
        runs, epochs = self._runs.state(), self._epochs.state() if self._epochs else None
        if runs is None or epochs is None:
            return None
        return FollowerState(self._agent_id, self._gpu_uuid, self._policy, self._reached, runs, epochs)

    @property
    def has_changes(self) -> bool:
        """Whether the open run's epochs have changed since they were last asked for."""
        return self._epochs is not None and self._epochs.changed

    def advance(self, stop: Callable[[], bool] = lambda: False, *, exhaustive: bool = True) -> Iterator[RunUpdate]:
        """Track everything that has arrived, or until ``stop()``, and yield the runs that ended.

        Args:
            stop: Asked after each piece.
            exhaustive: See ``gpusonde.epoch_detect.EpochTracker.update``.

        Raises:
            UnusableStateError: The follower went on from a state, and its epoch tracker fails.
            StoreError: The store cannot be read. After either one the follower cannot be used any more.
        """
        for entry in self._store.samples.read_feed(self._agent_id, self._gpu_uuid, self._reached):
            if isinstance(entry, TicksEntry):
                events = self._runs.ticks(entry.samples)
                self._reached = entry.samples.last_position
            elif isinstance(entry, BindingEntry):
                events = self._runs.binding(entry.position, entry.binding)
                self._reached = entry.position
            else:
                events = self._runs.source_ended(entry.position)
                self._reached = entry.position
            yield from self._apply(events, exhaustive=exhaustive)
            if stop():
                return

    def drain(self) -> None:
        """Take what the ticks so far have led to meanwhile.

        Raises:
            UnusableStateError: As for ``advance``.
        """
        if self._epochs:
            self._epochs.drain()

    def end(self, reason: str) -> list[RunUpdate]:
        """End the open run for a reason outside of the ticks.

        Raises:
            UnusableStateError: As for ``advance``.
        """
        return self._apply(self._runs.end(reason))

    def current(self) -> RunUpdate | None:
        """Return the open run as it stands."""
        run = self._runs.run
        return self._epochs.row(run) if run and self._epochs else None

    def _apply(self, events: Sequence[RunEvent], *, exhaustive: bool = True) -> list[RunUpdate]:
        ended: list[RunUpdate] = []
        for event in events:
            if isinstance(event, RunStarted):
                self._epochs = None
                self._run_id = event.run.run_id
            elif isinstance(event, RunTicks):
                if self._epochs is None:
                    offered = set(self._store.facts.metrics(self._gpu_uuid))
                    metrics = [name for name in event.samples.columns if name in offered]
                    self._epochs = RunEpochTracker(self._run_id, metrics, self._make_tracker)
                self._epochs.update(event.samples, exhaustive=exhaustive)
            elif isinstance(event, RunEnded) and self._epochs:
                self._epochs.finish()
                ended.append(self._epochs.row(event.run))
                self._epochs = None
                self._restored = False
        return ended


FollowerFactory = Callable[[str, str, Resume, FollowerState | None], GpuFollower]
