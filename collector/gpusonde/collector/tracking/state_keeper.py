"""``StateKeeper``: stores what tracking knows now and then, so that a restart goes on instead of starting over."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Collection, Mapping

from gpusonde.collector.metrics import CollectorCounters
from gpusonde.collector.storage.store import Store, UnusableStateError
from gpusonde.collector.tracking.follower import GpuFollower
from gpusonde.collector.tracking.run_state import FollowerState, Resume
from gpusonde.errors import ChildLostError, StoreError

_LOG = logging.getLogger(__name__)
# Of the content; another number makes the states of other releases count as missing.
_VERSION = 1

Key = tuple[str, str]


class StateKeeper:
    """Stores the states of GPUs with an open run, spread over the interval, and judges them at the next start.

    A state may always be missing: then the run is read again from its start.

    Args:
        store: Keeps the states, the samples that they must not be ahead of, the runs that they must agree with.
        clock: Monotonic seconds.
        interval_s: Time between two states of one GPU; as much has to be read again after a crash, at most.
        round_s: Time of each round of tracking for it, beyond which at most one state goes.
        shutdown_s: Time for the states of all GPUs when the collector stops; the others keep an older state.
        counters: Counts the states that cannot be used.
    """

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float],
        *,
        interval_s: float = 300.0,
        round_s: float = 0.1,
        shutdown_s: float = 5.0,
        counters: CollectorCounters | None = None,
    ) -> None:
        self._states = store.states
        self._samples = store.samples
        self._results = store.results
        self._clock = clock
        self._interval_s = interval_s
        self._round_s = round_s
        self._shutdown_s = shutdown_s
        self._counters = counters or CollectorCounters()
        self._due: dict[Key, float] = {}
        self._changed: set[Key] = set()
        self._stored: set[Key] = set()
        self._paused_until = 0.0

    def restore(self, known: Collection[Key]) -> None:
        """Drop files that belong to no GPU of the store, and those half written."""
        try:
            self._states.keep_only(known)
        except StoreError as error:
            _LOG.warning("old states of tracking cannot be removed: %s", error)

    def load(self, key: Key, resume: Resume) -> FollowerState | None:
        """Return the state from which a GPU's tracking goes on, or None if its open run is to be read again.

        Args:
            key: Agent and GPU.
            resume: Where the catalogue says that tracking begins without a state.

        Raises:
            StoreError: The catalogue cannot be read.
        """
        try:
            data = self._states.read(key, _VERSION)
            if data is None:
                if open_run := self._results.open_run(*key):
                    _LOG.info("run %s has no stored state and is read again from its start", open_run)
                return None
            state = FollowerState.decode(data)
            self._check(state, key, resume)
        except UnusableStateError as error:
            self.refuse(key, error)
            return None
        self._stored.add(key)
        return state

    def refuse(self, key: Key, error: Exception) -> None:
        """Note that the state of a GPU cannot be used."""
        self._counters.states_refused += 1
        _LOG.warning(
            "the stored state of GPU %s of agent %s is left out, an open run is read again from its start: %s",
            key[1],
            key[0],
            error if isinstance(error, UnusableStateError) else repr(error),
        )
        self._stored.add(key)
        self._remove(key)

    def _check(self, state: FollowerState, key: Key, resume: Resume) -> None:
        if (state.agent_id, state.gpu_uuid) != key:
            raise UnusableStateError("it is that of another GPU")
        run = self._results.run(state.run_id)
        if run is None or run.ended or (run.agent_id, run.gpu_uuid) != key:
            raise UnusableStateError(f"it is that of run {state.run_id:.80}, which is not open")
        if state.runs.run.resume != resume:
            raise UnusableStateError("it begins elsewhere than the catalogue says")
        if not self._samples.contains(state.agent_id, state.reached):
            raise UnusableStateError("it is ahead of the samples in the store")

    def notify(self, key: Key) -> None:
        """Note that the tracking of a GPU has gone on."""
        self._changed.add(key)

    def discard(self, key: Key) -> None:
        """Store no state of a GPU whose tracking has failed, and none that would lead there again."""
        self._changed.discard(key)
        self._remove(key)

    def release(self, key: Key) -> None:
        """Forget a GPU whose state is another collector's from now on."""
        self._changed.discard(key)
        self._due.pop(key, None)
        self._stored.discard(key)

    def keep(self, followers: Mapping[Key, GpuFollower]) -> None:
        """Store the states that are due; call it when the catalogue has what the followers know."""
        now = self._clock()
        for key in [key for key in self._stored if key in followers and not followers[key].has_run]:
            self._remove(key)
        for key in self._changed:
            if key not in self._due:
                # Spread evenly, in the same way after every start: all GPUs at once would be a burst.
                share = zlib.crc32("\n".join(key).encode()) / (1 << 32)
                self._due[key] = now + share * self._interval_s
        due = sorted((time, key) for key, time in self._due.items() if time <= now and key in self._changed)
        self._write([key for _, key in due], followers, now + self._round_s)

    def keep_all(self, followers: Mapping[Key, GpuFollower]) -> None:
        """Store every state that has changed, for as long as a shutdown may take."""
        self._paused_until = 0.0
        oldest_first = sorted(self._changed, key=lambda key: self._due.get(key, 0.0))
        self._write(oldest_first, followers, self._clock() + self._shutdown_s)

    def _write(self, keys: Collection[Key], followers: Mapping[Key, GpuFollower], until: float) -> None:
        for key in keys:
            if self._clock() < self._paused_until or self._clock() > until:
                return
            self._due[key] = self._clock() + self._interval_s
            self._changed.discard(key)
            try:
                state = followers[key].state() if key in followers else None
                if state is None:
                    continue
                self._states.write(key, _VERSION, state.encode())
            except (StoreError, ChildLostError) as error:
                self._paused_until = self._clock() + self._interval_s / 5
                self._changed.add(key)
                _LOG.error("states of tracking cannot be stored now: %s", error)
            except Exception:  # a fault in the state of one GPU costs that GPU its quick restart, nothing else
                _LOG.exception("the state of GPU %s of agent %s cannot be stored", key[1], key[0])
            else:
                self._stored.add(key)

    def _remove(self, key: Key) -> None:
        try:
            self._states.remove(key)
        except StoreError as error:
            _LOG.warning("an old state of tracking cannot be removed: %s", error)
        self._stored.discard(key)
