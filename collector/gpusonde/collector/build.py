"""The parts of a collector, made of its configuration: the store, and everything that works on it."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

from gpusonde.catalog import load_gpus, load_offers
from gpusonde.collector.alerts import JobAlerts
from gpusonde.collector.config import CollectorConfig
from gpusonde.collector.ingest.admission import AdmissionControl, Backpressure
from gpusonde.collector.ingest.agents import Agents
from gpusonde.collector.ingest.committer import Committer, Quarantine
from gpusonde.collector.ingest.intake import Intake
from gpusonde.collector.ingest.service import IngestService
from gpusonde.collector.metrics import CollectorCounters
from gpusonde.collector.planning.processes import PlanningProcesses, RunProblems
from gpusonde.collector.planning.service import PlanningService
from gpusonde.collector.query.jobs import JobView
from gpusonde.collector.query.prediction import LatencyPredictor
from gpusonde.collector.query.service import QueryService
from gpusonde.collector.query.slow_jobs import SlowJobs
from gpusonde.collector.security.interceptor import AccessControl
from gpusonde.collector.server import Health
from gpusonde.collector.storage.clickhouse.facts import Ownership
from gpusonde.collector.storage.clickhouse.sql import ClickHouseSql
from gpusonde.collector.storage.clickhouse.store import ClickHouseStore
from gpusonde.collector.storage.local.store import LocalStore
from gpusonde.collector.storage.store import Store
from gpusonde.collector.tracking.epochs import TrackerFactory, TrackerRestorer
from gpusonde.collector.tracking.follower import GpuFollower
from gpusonde.collector.tracking.jobs import Jobs
from gpusonde.collector.tracking.pipeline import EpochPipeline
from gpusonde.collector.tracking.run_state import FollowerState, Resume
from gpusonde.collector.tracking.state_keeper import StateKeeper
from gpusonde.collector.tracking.summaries import EpochSummaries
from gpusonde.collector.workload.service import WorkloadService
from gpusonde.errors import StoreError
from gpusonde.predictor.crossgpu import LatencyModel
from gpusonde.predictor.crossgpu.learning import MODELS, ModelInService, ModelVersions
from gpusonde.service.durable_files import FileLayer

# One thread each: a kind of work is done in order and does not wait for the others.
THREADS = ("commit", "flush", "track", "query", "control", "maintain", "alerts")


@dataclass
class CollectorParts:
    """The parts of one collector, which know each other and nothing of how it starts and ends.

    Attributes:
        config: The configuration that they follow.
        store: Keeps everything.
        executors: A thread for each of ``THREADS``.
        counters: What happened.
        health: What ``grpc.health.v1`` answers.
        access: Who may connect.
        admission: Whether records are taken at all.
        agents: Who streams.
        committer: Makes records durable.
        quarantine: Takes records that can never be stored.
        backpressure: Whether the collector falls behind.
        ingest: Takes the streams.
        pipeline: Tracks runs and epochs.
        alerts: Tells what jobs want a person.
        predictor: Predicts epoch latencies.
        query: Answers questions about runs and samples.
        planning: The processes that plan.
        planning_service: Answers planning questions.
        workload: Answers questions about graphs of networks.
    """

    config: CollectorConfig
    store: Store
    executors: Mapping[str, Executor]
    counters: CollectorCounters
    health: Health
    access: AccessControl
    admission: AdmissionControl
    agents: Agents
    committer: Committer
    quarantine: Quarantine
    backpressure: Backpressure
    ingest: IngestService
    pipeline: EpochPipeline
    alerts: JobAlerts
    predictor: LatencyPredictor
    query: QueryService
    planning: PlanningProcesses
    planning_service: PlanningService
    workload: WorkloadService

    async def check_models(self) -> None:
        """Read the configured models.

        Raises:
            ModelFileError: One of them cannot be used.
        """
        if self.config.prediction.model:
            await asyncio.get_running_loop().run_in_executor(self.executors["query"], self.predictor.model)
        await self.workload.check_model(self.config)

    async def configure(self, config: CollectorConfig, changed: frozenset[str]) -> None:
        """Have the parts follow a new configuration; only the models can fail, and they come first."""
        # Also when its name has not changed: it may be another file by now.
        await self.workload.check_model(config)
        if "prediction.model" in changed:
            model = _model_source(config)
            if config.prediction.model:
                await asyncio.get_running_loop().run_in_executor(self.executors["query"], model)
            self.predictor.model = model
        self.store.configure(config.store)
        self.agents.configure(config.ingest)
        self.committer.configure(config.commit_interval_s)
        self.backpressure.configure(config.ingest, config.commit_interval_s)
        self.ingest.configure(config)
        self.access.configure(config)
        self.pipeline.configure(config.runs)
        self.alerts.configure(config.alerts)
        self.planning.configure(config.planning, config.workers)
        self.workload.configure(config)
        self.config = config


def build_parts(
    config: CollectorConfig,
    store: Store,
    executors: Mapping[str, Executor],
    make_tracker: TrackerFactory,
    restore_tracker: TrackerRestorer,
) -> CollectorParts:
    """Make the parts of a collector; none of them does anything yet.

    Args:
        config: What they follow.
        store: Where everything is kept.
        executors: A thread for each of ``THREADS``.
        make_tracker: Makes epoch trackers.
        restore_tracker: Makes them of their states.
    """
    counters, health = CollectorCounters(), Health()
    control = executors["control"]
    access = AccessControl(config, counters.refused)
    admission = AdmissionControl(store.samples, control, health.note_ingest)
    agents = Agents(store.samples, control, config.ingest, time.monotonic)
    committer = Committer(
        store.samples,
        executors["commit"],
        config.commit_interval_s,
        admission.store_failed,
        latency=counters.ack_latency,
    )
    quarantine = Quarantine(store.samples, control)
    backpressure = Backpressure(
        config.ingest,
        config.commit_interval_s,
        lambda: committer.lag_s,
        lambda: committer.waiting_bytes,
        store.memory_share,
    )
    intake = Intake(committer, quarantine, config.ingest, counters=counters)
    predictor = LatencyPredictor(store, load_gpus(), _model_source(config), counters, offers=load_offers())
    planning = PlanningProcesses(config.planning, config.workers)
    view = JobView(SlowJobs(store), config.runs.activity_threshold)
    parts = CollectorParts(
        config=config,
        store=store,
        executors=executors,
        counters=counters,
        health=health,
        access=access,
        admission=admission,
        agents=agents,
        committer=committer,
        quarantine=quarantine,
        backpressure=backpressure,
        ingest=IngestService(agents, intake, admission, backpressure, access.guard, config, counters=counters),
        pipeline=_build_pipeline(config, store, executors["track"], counters, make_tracker, restore_tracker),
        alerts=JobAlerts(store, executors["alerts"], config.alerts, time.time_ns, view),
        predictor=predictor,
        query=QueryService(store, predictor, executors["query"], view, access.guard),
        planning=planning,
        planning_service=PlanningService(
            planning,
            RunProblems(predictor, store.results),
            store.results,
            executors["query"],
            access.guard,
            lambda: parts.config.planning,
            counters.refused,
        ),
        workload=WorkloadService(config, store, agents, executors["query"], counters),
    )
    return parts


def _build_pipeline(
    config: CollectorConfig,
    store: Store,
    executor: Executor,
    counters: CollectorCounters,
    make_tracker: TrackerFactory,
    restore_tracker: TrackerRestorer,
) -> EpochPipeline:
    jobs = Jobs(store, make_tracker, restore_tracker)

    def follow(agent_id: str, gpu_uuid: str, resume: Resume, state: FollowerState | None) -> GpuFollower:
        return GpuFollower(agent_id, gpu_uuid, store, config.runs, jobs, resume, state)

    states = StateKeeper(
        store,
        time.monotonic,
        interval_s=config.runs.state_interval_s,
        shutdown_s=config.server.drain_grace_s,
        counters=counters,
    )
    return EpochPipeline(
        store.results,
        follow,
        EpochSummaries(store),
        states,
        executor,
        config.runs,
        time.monotonic,
        counters,
    )


def make_store(config: CollectorConfig, files: FileLayer | None = None) -> Store:
    """Return the configured store, not open yet.

    Args:
        config: Which engine, and how.
        files: The file operations of the local one.

    Raises:
        StoreError: The database cannot be reached, its client is not installed, or the password cannot be read.
    """
    if config.store.engine != "clickhouse":
        return LocalStore(config.directory, config.store, hold_untracked=config.runs.track, files=files)
    options = config.clickhouse
    try:
        # Only for the file with the address, and for models.
        config.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{config.directory}: {error.strerror or error}") from error
    return ClickHouseStore(
        ClickHouseSql(options),
        Ownership(config.collector_id),
        config.store,
        place=f"{options.url}, database {options.database}",
    )


def _model_source(config: CollectorConfig) -> Callable[[], LatencyModel]:
    """Return what gives the model: the configured file, or whatever is in service when a question comes."""
    if not config.prediction.model:
        return ModelInService(ModelVersions(config.directory / MODELS)).model
    return functools.cache(lambda: LatencyModel.load(config.prediction.model))
