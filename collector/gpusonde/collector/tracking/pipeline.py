"""``EpochPipeline``: keeps the runs and epochs of all GPUs up to date while records arrive."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from gpusonde.collector.config import RunsConfig
from gpusonde.collector.metrics import CollectorCounters
from gpusonde.collector.storage.model import RunUpdate
from gpusonde.collector.storage.store import ResultStore, UnusableStateError
from gpusonde.collector.tracking.follower import FollowerFactory, GpuFollower, RunLeftAloneError
from gpusonde.collector.tracking.run_state import Resume
from gpusonde.collector.tracking.state_keeper import StateKeeper
from gpusonde.collector.tracking.summaries import EpochSummaries
from gpusonde.errors import ChildLostError, StoreError
from gpusonde.service.process import within

_LOG = logging.getLogger(__name__)

_Key = tuple[str, str]
# Of the time that tracking took: where rounds are long there are many epochs to summarise in each.
_SUMMARY_SHARE = 0.25
# How long answers of other processes wait at most while a long round goes on.
_DRAIN_S = 2.0
# After so long without records a look at a run is finished that would go on in parts while its ticks come.
_QUIET_S = 5.0
# How old the stored state of an unchanged run may become.
_SAVE_INTERVAL_S = 5.0
# Of each round for mean metrics and energy of epochs, or a quarter of what tracking took where that is more.
_SUMMARY_TIME_S = 0.2
# Length of a round after which the next one looks at each run once at most, however many moments to do so it has
# missed, and later when it is young. What is found at the end of a run is the same.
_BEHIND_S = 5.0


class EpochPipeline:
    """Follows every GPU.

    What waits is a set of GPUs, not of ticks: it cannot outgrow their number however far tracking falls behind, and the
    ticks wait in the store.

    Args:
        results: Where runs and epochs are kept.
        make_follower: Makes the follower of an (agent, GPU).
        summaries: Works out mean metrics and energy.
        states: Stores what the followers know, for the next start.
        executor: Runs the rounds; they compute and block.
        config: How often, when a silent run ends, and how long epochs are summarised in each round; at most one piece
            goes beyond.
        clock: Monotonic seconds.
        counters: Filled with the time of rounds and the number of epochs.
    """

    def __init__(
        self,
        results: ResultStore,
        make_follower: FollowerFactory,
        summaries: EpochSummaries,
        states: StateKeeper,
        executor: Executor,
        config: RunsConfig,
        clock: Callable[[], float],
        counters: CollectorCounters | None = None,
    ) -> None:
        self._counters = counters or CollectorCounters()
        self._epoch_counts: dict[str, int] = {}
        self._results = results
        self._make_follower = make_follower
        self._summaries = summaries
        self._states = states
        self._executor = executor
        self._config = config
        self._clock = clock
        self._resumes: dict[_Key, Resume] = {}
        self._followers: dict[_Key, GpuFollower] = {}
        self._heard_at: dict[_Key, float] = {}
        self._quiet: set[_Key] = set()
        self._unsaved: dict[_Key, None] = {}
        self._pending: list[RunUpdate] = []
        self._broken: set[_Key] = set()
        self._saved_at = 0.0
        self._drained_at = 0.0
        self._is_behind = False
        self._summarise_from = 0.0
        self._deadline: float | None = None
        self._notified: set[_Key] = set()
        self._moved: set[str] = set()
        self._elsewhere: set[str] = set()
        # Looked at after a while although no records come.
        self._waiting: set[_Key] = set()
        self._look_from = 0.0
        self._lock = threading.Lock()
        self._wake: Callable[[], None] | None = None

    def configure(self, config: RunsConfig) -> None:
        """Work more or less often from the next round on; callable from any thread."""
        self._config = config

    def restore(self, known: list[_Key]) -> None:
        """Begin where the stored state says, with every GPU that the store knows."""
        self._resumes = {key: Resume(*stored) for key, stored in self._results.resumes().items()}
        self._summaries.restore()
        self._states.restore(known)
        self.notify(frozenset(known))

    def notify(self, keys: frozenset[_Key]) -> None:
        """Note that there is something new; may be called from any thread."""
        with self._lock:
            self._notified |= keys
        if self._wake:
            self._wake()

    def move(self, agents: frozenset[str], came: bool) -> None:
        """Drop what is known of agents that another collector has followed, or does now; may be called from any thread.

        Args:
            agents: The agents.
            came: Whether they are to be followed here from now on: what the store has of them is looked at even if
                nothing more comes, as the other one may not have got to its end.
        """
        with self._lock:
            self._moved |= agents
            self._elsewhere = self._elsewhere - agents if came else self._elsewhere | agents
        if self._wake:
            self._wake()

    async def run(self) -> None:
        """Work until cancelled; a round that is under way is finished first."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        self._wake = wake
        try:
            while True:
                await asyncio.shield(loop.run_in_executor(self._executor, self.round))
                if not self._notified and not self._may_summarise():
                    await _wait(woken, _SAVE_INTERVAL_S)
                woken.clear()
                await asyncio.sleep(self._config.track_interval_s)
        finally:
            self._wake = None

    def round(self) -> None:
        """Track what is new and store what has changed."""
        began_at = self._clock()
        notified = self._take_notified()
        if notified is None:
            return
        # In order, as then the run that leads a job is mostly looked at before those it leads.
        for key in sorted(notified - self._broken):
            if self._is_late():
                break
            self._heard_at[key] = self._clock()
            self._quiet.discard(key)
            self._waiting.discard(key)
            self._follow(key)
            self._drain()
            if self._clock() - self._saved_at >= _SAVE_INTERVAL_S:
                self._save()
        for key in sorted(notified & self._followers.keys()):
            self._attempt(key, self._settle)
        self._note_round(self._clock() - began_at)
        self._finish_looks()
        self._end_silent_runs()
        if self._pending or self._clock() - self._saved_at >= _SAVE_INTERVAL_S:
            self._save()
        self._counters.tracking_round_s = self._clock() - began_at
        self._summarise(self._counters.tracking_round_s)

    @property
    def backlog(self) -> int:
        """GPUs with something new that no round has begun with yet."""
        return len(self._notified)

    def set_deadline(self, within_s: float) -> None:
        """Have rounds, one under way included, stop where they are after a time; may be called from any thread.

        What they leave is not lost: the next start goes on from what is stored.
        """
        self._deadline = self._clock() + within_s

    def finish(self) -> None:
        """Track what the deadline allows and store how far everything is."""
        self.round()
        if self._save():
            self._states.keep_all(self._followers)

    def _take_notified(self) -> set[_Key] | None:
        """Return the GPUs to look at, or None while it is not known where tracking of some begins."""
        with self._lock:
            moved, self._moved = self._moved, set()
            notified, self._notified = self._notified, set()
            elsewhere = self._elsewhere
        if self._clock() >= self._look_from:
            notified |= self._waiting
            self._waiting.clear()
        try:
            self._begin_anew(moved)
            if came := moved - elsewhere:
                # Of runs that are over, too: the collector before may not have got to all of their epochs.
                self._summaries.restore(came)
        except StoreError as error:
            with self._lock:
                self._moved |= moved
                self._notified |= notified
            _LOG.error("where tracking of agents from another collector begins cannot be read now: %s", error)
            return None
        return {key for key in notified if key[0] not in elsewhere}

    def _begin_anew(self, agents: set[str]) -> None:
        """Drop what is known of agents; what they bring now is stored before it is tracked."""
        if not agents:
            return
        for key in [key for key in {*self._followers, *self._heard_at, *self._broken} if key[0] in agents]:
            if follower := self._followers.get(key):
                follower.abandon()
            self._drop(key)
            self._heard_at.pop(key, None)
            self._broken.discard(key)
            self._states.release(key)
        self._pending = [update for update in self._pending if update.run.agent_id not in agents]
        found = {key: Resume(*stored) for key, stored in self._results.begin(agents).items()}
        self._resumes = {key: resume for key, resume in self._resumes.items() if key[0] not in agents} | found
        self._look_later(found)

    def _look_later(self, keys: Iterable[_Key]) -> None:
        if not self._waiting:
            self._look_from = self._clock() + _SAVE_INTERVAL_S
        self._waiting.update(keys)

    def _note_round(self, took_s: float) -> None:
        """Decide how thorough the next round may be."""
        behind = took_s > _BEHIND_S
        if behind and not self._is_behind:
            _LOG.info("tracking takes %.0f s for a round: runs are looked at less often until it takes less", took_s)
        self._is_behind = behind

    def _is_late(self) -> bool:
        return self._deadline is not None and self._clock() >= self._deadline

    def _follow(self, key: _Key) -> None:
        self._attempt(key, self._advance)

    def _drain(self) -> None:
        """Take what other processes have found meanwhile: a GPU's next turn may come much later."""
        if self._clock() - self._drained_at < _DRAIN_S:
            return
        for key in list(self._followers):
            self._attempt(key, self._drain_follower)
        self._drained_at = self._clock()

    def _advance(self, key: _Key) -> None:
        follower = self._followers.get(key)
        if follower is None:
            follower = self._followers[key] = self._begin(key)
        self._unsaved[key] = None
        self._states.notify(key)
        for update in follower.advance(self._is_late, exhaustive=not self._is_behind):
            self._pending.append(update)
        self._note_changes(key, follower)

    def _settle(self, key: _Key) -> None:
        # All GPUs of a job have been read by now.
        follower = self._followers[key]
        follower.settle()
        self._note_changes(key, follower)

    def _drain_follower(self, key: _Key) -> None:
        follower = self._followers[key]
        follower.drain()
        self._note_changes(key, follower)

    def _note_changes(self, key: _Key, follower: GpuFollower) -> None:
        if follower.has_changes and (current := follower.current()):
            self._unsaved[key] = None
            self._pending.append(current)

    def _attempt(self, key: _Key, work: Callable[[_Key], None]) -> None:
        """Do something for one GPU; a fault of its leaves the others alone."""
        try:
            work(key)
        except UnusableStateError as error:
            self._begin_again(key, error)
        except RunLeftAloneError:
            self._states.discard(key)
            self._drop(key)
            self.notify(frozenset([key]))
        except (StoreError, ChildLostError) as error:
            # Tried again from where the catalogue stands, even if no more records come.
            _LOG.error("GPU %s of agent %s cannot be tracked now: %s", key[1], key[0], error)
            self._drop(key)
            self._look_later([key])
        except Exception as error:  # a fault in tracking one GPU leaves the others and the samples alone
            if (follower := self._followers.get(key)) and follower.restored:
                self._begin_again(key, error)
                return
            _LOG.exception("GPU %s of agent %s is not tracked until the next start", key[1], key[0])
            if follower:
                follower.abandon()
            self._broken.add(key)
            self._unsaved.pop(key, None)
            self._states.discard(key)

    def _begin(self, key: _Key) -> GpuFollower:
        """Make the follower of a GPU, of its stored state where that can be used."""
        resume = self._resumes.get(key, Resume())
        if state := self._states.load(key, resume):
            try:
                return self._make_follower(*key, resume, state)
            except UnusableStateError as error:
                self._states.refuse(key, error)
        return self._make_follower(*key, resume, None)

    def _begin_again(self, key: _Key, error: Exception) -> None:
        """Let a state be that leads to faults."""
        self._states.refuse(key, error)
        if follower := self._followers.get(key):
            follower.forget_job()
        self._drop(key)
        self.notify(frozenset([key]))

    def _drop(self, key: _Key) -> None:
        """Forget a follower that stopped in the middle of something; another one begins at what is stored."""
        self._followers.pop(key, None)
        self._unsaved.pop(key, None)

    def _finish_looks(self) -> None:
        """Have looks at runs finished that have fallen silent, and take what they lead to."""
        now = self._clock()
        silent = (key for key, heard_at in self._heard_at.items() if now - heard_at >= _QUIET_S)
        for key in [key for key in silent if key in self._followers]:
            self._attempt(key, self._drain_follower if key in self._quiet else self._finish_look)
            self._quiet.add(key)

    def _finish_look(self, key: _Key) -> None:
        follower = self._followers[key]
        follower.finish_look()
        self._note_changes(key, follower)

    def _end_silent_runs(self) -> None:
        now = self._clock()
        for key, heard_at in list(self._heard_at.items()):
            if now - heard_at < self._config.silence_end_s:
                continue
            del self._heard_at[key]
            if key not in self._followers:
                continue
            self._attempt(key, self._end_silent)
            if key not in self._followers:
                # No record will bring it back.
                self.notify(frozenset([key]))

    def _end_silent(self, key: _Key) -> None:
        self._pending += self._followers[key].end(f"no records for {self._config.silence_end_s:.0f} s")
        self._unsaved[key] = None

    def _may_summarise(self) -> bool:
        return self._summaries.waiting and self._clock() >= self._summarise_from

    def _summarise(self, tracked_s: float) -> None:
        """Work out mean metrics and energy, for so long that no GPU waits noticeably."""
        if not self._may_summarise():
            return
        until = self._clock() + max(_SUMMARY_TIME_S, tracked_s * _SUMMARY_SHARE)
        try:
            self._summaries.work(lambda: self._clock() >= until or self._is_late())
        except StoreError as error:
            self._summarise_from = self._clock() + _SAVE_INTERVAL_S
            _LOG.error("mean metrics and energy of epochs cannot be stored now: %s", error)

    def _look_up_epochs(self, updates: list[RunUpdate]) -> None:
        """Know of runs that an earlier process has begun how many epochs were found before."""
        for update in updates:
            if update.run.epoch_count and update.run.run_id not in self._epoch_counts:
                with contextlib.suppress(StoreError):
                    stored = self._results.run(update.run.run_id)
                    self._epoch_counts[update.run.run_id] = stored.epoch_count if stored else 0

    def _count_epochs(self, updates: list[RunUpdate]) -> None:
        """Count each epoch once, although the number of a run's epochs may shrink and grow again."""
        for update in updates:
            run = update.run
            before = self._epoch_counts.get(run.run_id, 0)
            if run.epoch_count > before:
                self._counters.epochs += run.epoch_count - before
                self._epoch_counts[run.run_id] = run.epoch_count
            if run.ended:
                self._epoch_counts.pop(run.run_id, None)

    def _save(self) -> bool:
        """Store what has changed; return whether the catalogue now has all that the followers know."""
        updates = list(self._pending)
        updates += [update for key in self._unsaved if (update := self._followers[key].current())]
        resumes = {key: self._followers[key].resume for key in self._unsaved}
        if not updates and not resumes:
            self._states.keep(self._followers)
            return True
        self._look_up_epochs(updates)
        try:
            self._results.save(updates, resumes)
        except StoreError as error:
            # Runs that ended stay pending; the state of the others is taken anew when there is room.
            self._pending = _latest(updates)
            _LOG.error("runs and epochs cannot be stored now: %s", error)
            return False
        self._resumes.update(resumes)
        self._count_epochs(updates)
        for update in updates:
            if update.epochs is not None:
                self._summaries.add(update.run.run_id)
        self._pending = []
        self._unsaved.clear()
        self._saved_at = self._clock()
        self._states.keep(self._followers)
        return True


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(asyncio.TimeoutError):
        await within(event.wait(), timeout_s)


def _latest(updates: list[RunUpdate]) -> list[RunUpdate]:
    """Keep one update per run: its latest state, and the latest epochs and tree that came with any."""
    latest: dict[str, RunUpdate] = {}
    for update in updates:
        older = latest.get(update.run.run_id)
        if older and update.epochs is None:
            latest[update.run.run_id] = RunUpdate(update.run, older.epochs, update.tree or older.tree)
        else:
            latest[update.run.run_id] = update
    return list(latest.values())
