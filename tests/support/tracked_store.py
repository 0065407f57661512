"""A store and the tracking of its runs, driven by hand."""

from __future__ import annotations

from gpusonde.collector import LocalStore
from gpusonde.collector.config import RunsConfig, StoreConfig
from gpusonde.collector.metrics import CollectorCounters
from gpusonde.collector.storage.local.results import LocalResults
from gpusonde.collector.tracking.follower import GpuFollower
from gpusonde.collector.tracking.jobs import Jobs
from gpusonde.collector.tracking.pipeline import EpochPipeline
from gpusonde.collector.tracking.state_keeper import StateKeeper
from gpusonde.collector.tracking.summaries import EpochSummaries
from gpusonde.epoch_detect import EpochTracker


class TrackedStore:
    """A store and a pipeline that a test drives by hand; ``restart`` makes new ones on the same data.

    They are local ones in ``directory``, or those of an ``engine`` of ``support.store_engines``.
    """

    def __init__(
        self,
        directory=None,
        make_tracker=EpochTracker,
        results=LocalResults,
        silence_end_s=86_400.0,
        state_interval_s=300.0,
        engine=None,
    ):
        self._directory = directory
        self._engine = engine
        self._make_tracker = make_tracker
        self._make_results = results
        self._silence_end_s = silence_end_s
        self._state_interval_s = state_interval_s
        self.restore_tracker = EpochTracker.restore
        self.now = 0.0
        self.store = None
        self.restart()

    def restart(self):
        if self.store:
            self.store.close()
        if self._engine:
            self.store = self._engine.open()
        else:
            self.store = LocalStore(self._directory, StoreConfig(reserve_bytes=0))
            self.store.open()
            self.store.results = self._make_results(self.store.database)
        self.results = self.store.results
        self.jobs = Jobs(self.store, self._make_tracker, self._restore)
        self.counters = CollectorCounters()
        self.states = StateKeeper(
            self.store, lambda: self.now, interval_s=self._state_interval_s, counters=self.counters
        )
        self.summaries = EpochSummaries(self.store)
        self.pipeline = EpochPipeline(
            self.results,
            self.follow,
            self.summaries,
            self.states,
            None,
            RunsConfig(silence_end_s=self._silence_end_s),
            lambda: self.now,
        )
        self.store.samples.subscribe(self.pipeline.notify)
        self.store.subscribe_to_owners(self.pipeline.move)
        self.pipeline.restore(self.store.followed())

    def _restore(self, state):
        return self.restore_tracker(state)

    def follow(self, agent, gpu, resume, state):
        config = RunsConfig()
        return GpuFollower(agent, gpu, self.store, config, self.jobs, resume, state)

    def feed(self, records, group):
        for i in range(0, len(records), group):
            self.store.samples.append(records[i : i + group])
            self.now += 1.0
            self.pipeline.round()

    def runs(self):
        return self.results.runs(limit=100)
