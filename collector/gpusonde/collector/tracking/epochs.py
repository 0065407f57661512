"""``RunEpochTracker``: the epochs of one run, kept up to date by an epoch tracker."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gpusonde.collector.storage.model import (
    MOST_STARTS,
    CycleRow,
    CycleTree,
    DeviationRow,
    EpochRow,
    RunRow,
    RunUpdate,
)
from gpusonde.collector.storage.samples import Samples
from gpusonde.collector.storage.store import UnusableStateError
from gpusonde.collector.tracking.run_state import EpochsState, number, text, whole
from gpusonde.epoch_detect import EpochDetection, EpochEvent, EpochStatus, TrackedEpoch
from gpusonde.epoch_detect.progress import PaceChange, PaceWatch, Shares
from gpusonde.errors import ChildLostError
from gpusonde.service.wire import JobActivity

_LOG = logging.getLogger(__name__)


class Tracker(Protocol):
    """What is needed of ``gpusonde.epoch_detect.EpochTracker``."""

    @property
    def epochs(self) -> tuple[TrackedEpoch, ...]:
        """Every epoch ever reported."""

    @property
    def detection(self) -> EpochDetection | None:
        """The latest analysis."""

    def update(self, time_s: npt.ArrayLike, values: npt.ArrayLike, *, exhaustive: bool = True) -> list[EpochEvent]:
        """Take ticks, or none; return what they, or earlier ones, have led to."""

    def note_marks(self, time_s: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Take what the processes of the run's job did."""

    def finish_look(self) -> list[EpochEvent]:
        """Do all that is left of a look."""

    def finish(self) -> list[EpochEvent]:
        """Analyse all ticks once more."""

    def shares(self) -> Shares:
        """Idle and stalled share of the time."""

    def state(self) -> bytes:
        """Return everything that another tracker needs to go on here."""


TrackerFactory = Callable[[Sequence[str]], Tracker]
TrackerRestorer = Callable[[bytes], Tracker]


class RunEpochTracker:
    """Feeds a tracker and turns its answers into rows.

    A tracker that fails costs its own run the epochs, nothing else.

    Args:
        run_id: The run.
        metrics: Names of the rows that the tracker gets.
        make_tracker: Makes the tracker.
    """

    def __init__(self, run_id: str, metrics: Sequence[str], make_tracker: TrackerFactory) -> None:
        self._run_id = run_id
        self._metrics = list(metrics)
        self._make_tracker = make_tracker
        self._tracker: Tracker | None = None
        self._origin: int | None = None
        self._failure = ""
        self._version = 0
        self._shares = Shares(math.nan, math.nan)
        self._restored = False
        self._pace = PaceWatch(metrics)
        self._deviations: tuple[DeviationRow, ...] = ()
        # Of looks that came before the run's first tick.
        self._early: list[JobActivity] = []

    @classmethod
    def restored(
        cls, run_id: str, state: EpochsState, make_tracker: TrackerFactory, restore_tracker: TrackerRestorer
    ) -> RunEpochTracker:
        """Go on where another one stood.

        Raises:
            UnusableStateError: The tracker cannot be rebuilt.
            ChildLostError: The process that was to hold it is gone.
        """
        try:
            epochs = cls(run_id, state.metrics, make_tracker)
            epochs._origin = state.origin_unix_nano
            epochs._tracker = restore_tracker(state.tracker)
            # A release before did not follow it.
            epochs._pace = PaceWatch.from_state(state.pace.encode()) if state.pace else PaceWatch(state.metrics)
            epochs._check()
        except ChildLostError:
            raise
        except Exception as error:  # whatever the bytes are, the samples are still there
            raise UnusableStateError(str(error) or repr(error)) from error
        epochs._shares = state.shares
        # The catalogue may be of a later moment, and samples since then unreadable by now.
        epochs._version, epochs._restored = 1, True
        return epochs

    def _check(self) -> None:
        """Raise unless what the tracker says can be stored."""
        for epoch in self._epochs():
            for count in (epoch.index, epoch.start_unix_nano, epoch.end_unix_nano, epoch.revision):
                whole(count)
            number(epoch.confidence)
            text(epoch.status)
        if found := self._tracker.detection if self._tracker else None:
            for value in (found.period_s, found.period_low_s, found.period_high_s, found.confidence):
                number(value)
            for cycle in self._tree().cycles:
                for value in (cycle.period_s, cycle.period_low_s, cycle.period_high_s, cycle.confidence):
                    number(value)
                for count in (cycle.count, *cycle.starts_unix_nano):
                    whole(count)
            text(found.verdict), text(found.reason)

    def state(self) -> EpochsState | None:
        """Return what another one needs to go on here; None where it is better to begin again."""
        if self._failure or self._tracker is None or self._origin is None:
            return None
        pace = self._pace.state().decode()
        return EpochsState(tuple(self._metrics), self._origin, self._shares, self._tracker.state(), pace)

    def update(self, samples: Samples, *, exhaustive: bool = True) -> None:
        """Take ticks of the run, its lead-in first.

        Args:
            samples: The ticks.
            exhaustive: See ``gpusonde.epoch_detect.EpochTracker.update``.

        Raises:
            UnusableStateError: The tracker was made of a state, and fails.
        """
        if self._failure or not len(samples):
            return
        if self._origin is None:
            self._origin = int(samples.time_unix_nano[0])
            early, self._early = self._early, []
            for activity in early:
                self.note_activity(activity)
        # Seconds after the first tick: float64 holds those to the nanosecond, Unix seconds only to about a microsecond.
        time_s = (samples.time_unix_nano - self._origin) / 1e9
        values = samples.matrix(self._metrics)

        def update(tracker: Tracker) -> list[EpochEvent]:
            events = tracker.update(time_s, values, exhaustive=exhaustive)
            if tracker.detection is not None:
                self._pace.note_detection(tracker.detection)
            self._pace.update(time_s, values)
            return events

        self._attempt(update)

    def note_activity(self, activity: JobActivity) -> None:
        """Take what the processes of the run's job did, as far as the run had begun.

        Raises:
            UnusableStateError: As for ``update``.
        """
        if self._failure:
            return
        if self._origin is None:
            self._early.append(activity)
            return
        within = activity.time_unix_nano >= self._origin
        if within.any():
            time_s, values = (activity.time_unix_nano[within] - self._origin) / 1e9, activity.values[:, within]
            self._attempt(lambda tracker: tracker.note_marks(time_s, values))

    def drain(self) -> None:
        """Take what earlier ticks have led to meanwhile, from a tracker that does not answer at once.

        Raises:
            UnusableStateError: As for ``update``.
        """
        if self._tracker is not None and not self._failure:
            self._attempt(lambda tracker: tracker.update(np.empty(0), np.empty((len(self._metrics), 0))))

    def finish_look(self) -> None:
        """Have a look that is going on finished, as no ticks come for now.

        Raises:
            UnusableStateError: As for ``update``.
        """
        if self._tracker is not None and not self._failure:
            self._attempt(lambda tracker: tracker.finish_look())

    def finish(self) -> None:
        """Take the end of the run.

        Raises:
            UnusableStateError: As for ``update``.
        """
        if not self._failure and self._origin is not None:
            self._attempt(lambda tracker: tracker.finish())
            self._version += 1

    @property
    def version(self) -> int:
        """Grows whenever the epochs change."""
        return self._version

    @property
    def detection(self) -> EpochDetection | None:
        """The latest analysis."""
        return self._tracker.detection if self._tracker else None

    @property
    def slower(self) -> PaceChange | None:
        """By how much the run's cycles take longer than before; None if they do not."""
        return self._pace.change

    @property
    def origin_unix_nano(self) -> int:
        """Time 0 of its time axis; 0 before the first tick."""
        return self._origin or 0

    def name_deviations(self, deviations: Sequence[DeviationRow]) -> None:
        """Take the GPUs of the run's job that do otherwise than the others."""
        if tuple(deviations) != self._deviations:
            self._deviations = tuple(deviations)
            self._version += 1

    def row(self, run: RunRow, *, whole: bool) -> RunUpdate:
        """Return a run with what is known of its epochs.

        Args:
            run: The run, or another one of its job.
            whole: Whether with the epochs and the tree themselves.
        """
        epochs, tree = (self._epochs(), self._tree()) if whole else (None, None)
        if self._failure:
            return RunUpdate(replace(run, verdict="none", reason=self._failure), epochs, tree)
        found = self._tracker.detection if self._tracker else None
        if self._tracker is None or found is None:
            return RunUpdate(run, epochs, tree)
        standing = [epoch.status for epoch in self._tracker.epochs if epoch.stands]
        return RunUpdate(
            replace(
                run,
                verdict=str(found.verdict),
                reason=found.reason,
                period_s=found.period_s,
                period_low_s=found.period_low_s,
                period_high_s=found.period_high_s,
                confidence=found.confidence,
                # The newest ones count once there are some that the tracker is sure of.
                epoch_count=len(standing) if EpochStatus.CONFIRMED in standing else 0,
                idle_share=self._shares.idle,
                stalled_share=self._shares.stalled,
            ),
            epochs,
            tree,
        )

    def _epochs(self) -> list[EpochRow]:
        if self._failure or self._tracker is None:
            return []
        return [
            EpochRow(
                epoch.index,
                self._unix_nano(epoch.start_s),
                self._unix_nano(epoch.end_s),
                epoch.confidence,
                str(epoch.status),
                epoch.revision,
            )
            for epoch in self._tracker.epochs
        ]

    def _tree(self) -> CycleTree:
        found = None if self._failure or self._tracker is None else self._tracker.detection
        if found is None:
            return CycleTree()
        cycles = (
            CycleRow.of(
                cycle,
                tuple(self._unix_nano(float(start_s)) for start_s in cycle.starts_s[-MOST_STARTS:]),
                confirmed=cycle.confirmed,
            )
            for cycle in found.cycles
        )
        state = "" if found.run_state is None else str(found.run_state)
        return CycleTree(tuple(cycles), found.level, self._deviations, state, found.run_state_confidence)

    def _unix_nano(self, time_s: float) -> int:
        return (self._origin or 0) + round(time_s * 1e6) * 1000

    def _attempt(self, call: Callable[[Tracker], list[EpochEvent] | None]) -> None:
        try:
            if self._tracker is None:
                self._tracker = self._make_tracker(self._metrics)
            before = self._tracker.detection
            events = call(self._tracker)
            news = bool(events) or self._tracker.detection is not before
            if news:
                self._shares = self._tracker.shares()
        except ChildLostError:
            raise
        except Exception as error:  # whatever it is, the other runs go on
            if self._restored:
                # Perhaps it is the state that is at fault: the run deserves a tracker that has seen all of it.
                raise UnusableStateError(f"the tracker made of it fails: {error!r}") from error
            _LOG.exception("epochs of run %s are no longer tracked", self._run_id)
            self._failure = f"epoch tracking failed: {error!r}; see the collector's log"
            self._tracker = None
            self._version += 1
            return
        self._version += news
