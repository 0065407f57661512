"""The collector: store, ingest, tracking and queries wired together, from start to a clean end.

What surrounds a running collector: threads, who tracks epochs, what tells it to stop, the file with its address.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from gpusonde.catalog import load_gpus
from gpusonde.collector.config import CollectorConfig
from gpusonde.collector.engines import configure_store, make_store
from gpusonde.collector.ingest.admin import AdminService
from gpusonde.collector.ingest.agents import Agents
from gpusonde.collector.ingest.committer import Committer, Quarantine
from gpusonde.collector.ingest.pacing import Pressure
from gpusonde.collector.ingest.service import IngestService
from gpusonde.collector.ingest.session import Gate
from gpusonde.collector.metrics import CollectorCounters
from gpusonde.collector.options import (
    model_source,
    pipeline_options,
    planning_options,
    record_limits,
    run_policy,
    stream_options,
    watch_options,
)
from gpusonde.collector.planning.processes import PlanningProcesses
from gpusonde.collector.planning.service import PlanningService
from gpusonde.collector.query.prediction import Predictor
from gpusonde.collector.query.service import QueryService
from gpusonde.collector.security.authentication import Access, pace_options
from gpusonde.collector.server import Health, bind, build_server
from gpusonde.collector.storage.errors import StoreError
from gpusonde.collector.storage.store import Store
from gpusonde.collector.supervisor import Supervision, Watched
from gpusonde.collector.tracking.epochs import TrackerFactory, TrackerRestorer
from gpusonde.collector.tracking.follower import GpuFollower
from gpusonde.collector.tracking.pipeline import EpochPipeline
from gpusonde.collector.tracking.remote import TrackerProcesses
from gpusonde.collector.tracking.run_state import FollowerState, Resume
from gpusonde.collector.tracking.state_keeper import StateKeeper, StateOptions
from gpusonde.collector.tracking.summaries import EpochSummaries
from gpusonde.collector.workload.service import Controller
from gpusonde.epoch_detect import EpochTracker
from gpusonde.service.durable_files import FileLayer, write_durably
from gpusonde.service.health import notify
from gpusonde.service.process import allow_open_files, end
from gpusonde.service.reload import ConfigSource
from gpusonde.service.tls import is_loopback

_ADDRESS_FILE = "address"
_POLL_S = 0.05


@contextlib.contextmanager
def executors(*names: str) -> Iterator[dict[str, Executor]]:
    """Make one thread per name: each kind of work is done in order and does not wait for the others."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix=name)) for name in names}


@contextlib.contextmanager
def trackers(config: CollectorConfig, make_tracker: TrackerFactory) -> Iterator[tuple[TrackerFactory, TrackerRestorer]]:
    """Say where trackers come from: this process, or others."""
    if not config.runs.processes:
        yield make_tracker, EpochTracker.restore
        return
    with contextlib.closing(TrackerProcesses(config.runs.processes)) as processes:
        yield processes.make, processes.restore


@contextlib.contextmanager
def stop_signals(stopping: asyncio.Event, hurrying: asyncio.Event) -> Iterator[None]:
    """Have SIGTERM and SIGINT set the first event, and when they come again the second, in the main thread."""

    def stop() -> None:
        if stopping.is_set():
            hurrying.set()
        stopping.set()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def told_to_stop(stopping: asyncio.Event, stop: threading.Event | None) -> None:
    """Return when a signal has set the one event, or another thread the other."""
    while not (stop and stop.is_set()):
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stopping.wait(), _POLL_S if stop else None)
            return


@contextlib.contextmanager
def address_file(directory: Path) -> Iterator[Path]:
    """The file that holds the collector's address while it serves; ``announce`` writes it."""
    path = directory / _ADDRESS_FILE
    path.unlink(missing_ok=True)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def announce(path: Path, address: str) -> None:
    """Write the file as a whole: who finds it finds an address."""
    write_durably(path, f"{address}\n".encode())


_LOG = logging.getLogger(__name__)
_READERS = 512  # connections beside those of agents
_OWN_FILES = 256  # log, segments being read, catalogue, libraries


@dataclass(frozen=True)
class CollectorReport:
    """How a collector ended.

    Attributes:
        address: Where it listened.
        counts: What happened, by name: records, repetitions, refusals, gaps, quarantined.
    """

    address: str
    counts: dict[str, int]


def run_collector(
    config: CollectorConfig,
    *,
    on_ready: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
    files: FileLayer | None = None,
    make_tracker: TrackerFactory = EpochTracker,
    config_source: ConfigSource[CollectorConfig] | None = None,
) -> CollectorReport:
    """Run a collector until it is told to stop (SIGTERM, SIGINT or ``stop``).

    It then asks its agents to go elsewhere, makes everything received durable and ends; a second signal gives the
    agents no more time. While it serves, the file ``address`` in the data directory holds its address.

    Args:
        config: Where to listen and what to keep.
        on_ready: Called with the address once it serves.
        stop: Stops the collector like a signal, for callers outside of the main thread.
        files: The file operations of the store.
        make_tracker: Makes epoch trackers.
        config_source: Where SIGHUP finds a new configuration; None leaves that signal alone.

    Raises:
        DirectoryLockedError: Another collector uses the data directory.
        StoreError: The data directory cannot be used.
        AddressInUseError: The address is taken.
        TlsError: Certificate, key, authority or tokens cannot be used.
        ModelFileError: A configured model cannot be used, or lacks its encoder.
    """
    store = make_store(config, files)
    store.open()
    try:
        with (
            executors("commit", "flush", "track", "query", "control", "maintain") as threads,
            trackers(config, make_tracker) as (make, restore),
        ):
            collector = _Collector(config, store, threads, make, restore, config_source)
            return asyncio.run(collector.run(stop, on_ready))
    finally:
        store.close()


class _Collector:
    """The parts of one running collector."""

    def __init__(
        self,
        config: CollectorConfig,
        store: Store,
        executors: dict[str, Executor],
        make_tracker: TrackerFactory,
        restore_tracker: TrackerRestorer,
        config_source: ConfigSource[CollectorConfig] | None,
    ) -> None:
        self._store = store
        self._executors = executors
        self._counters = CollectorCounters()
        self._access = Access(config, self._counters.refused)
        samples, results = store.samples, store.results
        ingest = config.ingest
        control = executors["control"]
        self._health = Health()
        self._health_changes: set[asyncio.Future[None]] = set()
        self._gate = Gate(samples, control, ingest.probe_interval_s, self._gate_changed)
        pace = pace_options(config)
        self._agents = Agents(samples, control, ingest.max_agents, ingest.identity_hold_s, time.monotonic, pace)
        self._committer = Committer(
            samples,
            executors["commit"],
            config.commit_interval_s,
            self._gate.store_failed,
            latency=self._counters.ack_latency,
        )
        self._quarantine = Quarantine(samples, control, ingest.poison_attempts)
        self._pressure = Pressure(
            pace, lambda: self._committer.lag_s, lambda: self._committer.waiting_bytes, store.memory_share
        )
        self._ingest = IngestService(
            store.facts,
            self._agents,
            self._committer,
            self._quarantine,
            self._gate,
            control,
            self._access.guard,
            self._pressure,
            record_limits(config),
            stream_options(config),
            counters=self._counters,
        )
        policy = run_policy(config)

        def follow(agent_id: str, gpu_uuid: str, resume: Resume, state: FollowerState | None) -> GpuFollower:
            return GpuFollower(agent_id, gpu_uuid, store, policy, make_tracker, resume, state, restore_tracker)

        self._pipeline = EpochPipeline(
            results,
            follow,
            EpochSummaries(store),
            StateKeeper(
                store,
                StateOptions(interval_s=config.runs.state_interval_s, shutdown_s=config.server.drain_grace_s),
                time.monotonic,
            ),
            executors["track"],
            pipeline_options(config),
            time.monotonic,
            self._counters,
        )
        self._predictor = Predictor(store, load_gpus(), model_source(config), self._counters)
        self._query = QueryService(store, self._predictor, executors["query"])
        self._planning = PlanningProcesses(planning_options(config))
        self._planning_service = PlanningService(
            self._planning,
            results,
            executors["query"],
            self._access.guard,
            lambda: watch_options(self._config),
            self._counters.refused,
        )
        self._controller = Controller(config, store, self._agents, executors["query"], self._counters)
        self._supervision = Supervision(
            config,
            config_source,
            Watched(store, self._gate, self._agents, self._pipeline, self._access),
            self._counters,
            executors,
            self._adjust,
        )

    @property
    def _config(self) -> CollectorConfig:
        return self._supervision.config

    async def _adjust(self, config: CollectorConfig, changed: frozenset[str]) -> None:
        """Make the parts as a new configuration says; only the models can fail, and they come first."""
        # Also when its name has not changed: it may be another file by now.
        await self._controller.check_model(config)
        if "prediction.model" in changed:
            model = model_source(config)
            if config.prediction.model:
                await asyncio.get_running_loop().run_in_executor(self._executors["query"], model)
            self._predictor.model = model
        configure_store(self._store, config)
        self._gate.configure(config.ingest.probe_interval_s)
        self._agents.configure(config.ingest.identity_hold_s, pace_options(config))
        self._committer.configure(config.commit_interval_s)
        self._quarantine.configure(config.ingest.poison_attempts)
        self._pressure.configure(pace_options(config))
        self._ingest.configure(record_limits(config), stream_options(config))
        self._access.configure(config)
        self._pipeline.configure(pipeline_options(config))
        self._planning.configure(planning_options(config))
        self._controller.configure(config)

    async def run(self, stop: threading.Event | None, on_ready: Callable[[str], None] | None) -> CollectorReport:
        """Serve until told to stop."""
        stopping, hurrying = asyncio.Event(), asyncio.Event()
        with stop_signals(stopping, hurrying), address_file(self._config.directory) as path:
            if self._config.prediction.model:
                await asyncio.get_running_loop().run_in_executor(self._executors["query"], self._predictor.model)
            await self._controller.check_model(self._config)
            self._agents.restore(self._store.facts.agents())
            loop = asyncio.get_running_loop()
            self._store.subscribe_to_owners(functools.partial(self._owners_changed, loop))
            if self._config.runs.track:
                self._store.samples.subscribe(self._pipeline.touch)
                self._pipeline.restore(self._store.followed())
            listen = self._config.server.listen
            reflect = self._config.server.reflection
            server = build_server(
                self._ingest,
                self._query,
                AdminService(self._agents),
                self._planning_service,
                self._controller.service,
                self._health,
                [self._access.interceptor],
                max_record_bytes=self._config.ingest.max_record_bytes,
                max_question_bytes=self._config.workload.max_request_bytes,
                most_connections=self._most_connections(),
                share_port=self._config.server.share_port,
                with_reflection=reflect == "on" or (reflect == "loopback" and is_loopback(listen)),
            )
            address = bind(server, listen, self._access.open(), share_port=self._config.server.share_port)
            self._access.warn_of_openness(address)
            committing = asyncio.ensure_future(self._committer.run())
            others = [
                asyncio.ensure_future(self._gate.run()),
                *map(asyncio.ensure_future, self._store.run_in_background(self._executors)),
                asyncio.ensure_future(self._access.watch_streams(self._ingest)),
                asyncio.ensure_future(self._controller.run()),
            ]
            if self._config.runs.track:
                others.append(asyncio.ensure_future(self._pipeline.run()))
            await server.start()
            await self._health.set_ingest(True)
            await self._health.set_query(True)
            supervising = asyncio.ensure_future(self._supervision.run())
            # It begins now: a SIGHUP that follows the news of the start is heard.
            await asyncio.sleep(0)
            announce(path, address)
            _LOG.info("collecting on %s into %s", address, self._store.place)
            notify("READY=1", f"STATUS={self._supervision.status()}")
            if on_ready:
                on_ready(address)
            told = asyncio.ensure_future(told_to_stop(stopping, stop))
            done, _ = await asyncio.wait({told, committing, *others}, return_when=asyncio.FIRST_COMPLETED)
            told.cancel()
            notify("STOPPING=1", "STATUS=asking agents to go elsewhere, making everything durable")
            self._pipeline.hurry(self._config.server.drain_grace_s)
            self._ingest.drain()
            self._planning_service.drain()
            await self._health.set_query(False)
            await self._stop_serving(server, hurrying)
            await self._planning.close()
            await self._controller.close()
            self._committer.close()
            for task in others:
                task.cancel()
            await asyncio.wait([committing, *others])
            await self._finish()
            await end(supervising)
            for task in done:
                if not task.cancelled() and (fault := task.exception()):
                    raise fault
        _LOG.info("stopped; everything received is durable")
        refused = {f"refused_{reason}": count for reason, count in self._counters.refused.items()}
        return CollectorReport(address, {**+self._counters.ingest, **refused})

    async def _stop_serving(self, server: grpc.aio.Server, hurrying: asyncio.Event) -> None:
        """Give open streams their time to end, or none after a second signal."""
        stopping = asyncio.ensure_future(server.stop(self._config.server.drain_grace_s))
        hurried = asyncio.ensure_future(hurrying.wait())
        await asyncio.wait({stopping, hurried}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            _LOG.warning("a second signal: open streams are cut")
            self._pipeline.hurry(0.0)
            await server.stop(0)
        await stopping
        hurried.cancel()

    def _most_connections(self) -> int:
        """Make room for a connection per agent and as many readers as may be; warn where the system gives less."""
        agents = self._config.ingest.max_agents
        limit = allow_open_files(agents + _READERS + _OWN_FILES)
        most = max(limit - _OWN_FILES, limit // 2)
        if most < agents:
            _LOG.warning(
                "the limit of %d open files leaves room for %d connections, ingest.max_agents is %d: raise LimitNOFILE"
                " of the unit (or 'ulimit -Hn')", limit, most, agents,
            )  # fmt: skip
        return most

    async def _finish(self) -> None:
        """Bring runs up to date and have the engine do what makes the next start quick."""
        loop = asyncio.get_running_loop()
        if self._config.runs.track:
            await loop.run_in_executor(self._executors["track"], self._pipeline.finish)
        try:
            await loop.run_in_executor(self._executors["flush"], self._store.flush)
        except StoreError as error:
            _LOG.error("the log stays as it is, the next start reads it: %s", error)

    def _owners_changed(self, loop: asyncio.AbstractEventLoop, agents: frozenset[str], came: bool) -> None:
        """Forget what was known of agents that another collector has followed or does now; runs on any thread."""
        self._pipeline.forget(agents)
        if not came:
            loop.call_soon_threadsafe(self._ingest.end_moved, agents)

    def _gate_changed(self, serving: bool) -> None:
        task = asyncio.ensure_future(self._health.set_ingest(serving))
        # The loop alone would not keep the task alive.
        self._health_changes.add(task)
        task.add_done_callback(self._health_changes.discard)
