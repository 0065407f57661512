"""From the configuration to the options of the collector's parts, at the start and again at every reload."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable

from gpusonde.collector.config import CollectorConfig
from gpusonde.collector.ingest.admission import PaceOptions
from gpusonde.collector.ingest.service import StreamOptions
from gpusonde.collector.planning.processes import ProcessOptions
from gpusonde.collector.planning.watch import WatchOptions
from gpusonde.collector.tracking.pipeline import PipelineOptions
from gpusonde.collector.tracking.runs import RunPolicy
from gpusonde.predictor.crossgpu import LatencyModel
from gpusonde.predictor.crossgpu.learning import MODELS, ModelInService, ModelVersions
from gpusonde.service.wire import Limits


def record_limits(config: CollectorConfig) -> Limits:
    """Caps on records."""
    ingest = config.ingest
    return Limits(
        record_bytes=ingest.max_record_bytes,
        agents=ingest.max_agents,
        gpus=ingest.max_gpus,
        metrics=ingest.max_metrics,
    )


def stream_options(config: CollectorConfig) -> StreamOptions:
    """What agents are told."""
    return StreamOptions(
        collector_id=config.server.id or socket.gethostname(),
        pace=pace_options(config),
        drain_grace_ms=round(config.server.drain_grace_s * 1e3),
        host_load_interval_ms=round(config.workload.host_load_interval_s * 1e3),
    )


def pace_options(config: CollectorConfig) -> PaceOptions:
    """Return how fast agents may send."""
    ingest = config.ingest
    return PaceOptions(
        records_per_s=ingest.max_records_per_second,
        bytes_per_s=ingest.max_bytes_per_second,
        max_unacked_records=ingest.max_unacked_records,
        waiting_bytes=ingest.max_waiting_bytes,
        lag_s=max(2.0, 4.0 * config.commit_interval_s),
    )


def pipeline_options(config: CollectorConfig) -> PipelineOptions:
    """How often tracking works."""
    return PipelineOptions(
        interval_s=config.runs.track_interval_s,
        silence_end_s=config.runs.silence_end_s,
        summary_time_s=config.runs.summary_time_s,
    )


def planning_options(config: CollectorConfig) -> ProcessOptions:
    """Bounds of the processes that plan."""
    planning = config.planning
    return ProcessOptions(
        processes=planning.processes,
        waiting=planning.max_waiting,
        watches=planning.max_watches,
        time_limit_s=planning.time_limit_s,
        memory_bytes=planning.memory_bytes,
    )


def watch_options(config: CollectorConfig) -> WatchOptions:
    """How jobs are watched."""
    return WatchOptions(config.planning.watch_interval_s, config.planning.max_request_bytes)


def run_policy(config: CollectorConfig) -> RunPolicy:
    """When a run begins and ends."""
    runs = config.runs
    return RunPolicy(
        activity_threshold=runs.activity_threshold,
        min_active_s=runs.min_active_s,
        idle_end_s=runs.idle_end_s,
        held_end_s=runs.held_end_s,
        gap_end_s=runs.gap_end_s,
    )


def model_source(config: CollectorConfig) -> Callable[[], LatencyModel]:
    """The configured file, read once; else whatever is in service in the data directory when a question comes."""
    if not config.prediction.model:
        return ModelInService(ModelVersions(config.directory / MODELS)).model
    return functools.cache(lambda: LatencyModel.load(config.prediction.model))
