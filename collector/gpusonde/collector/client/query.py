"""``Client``: questions to a collector, answered in plain Python types."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from gpusonde.collector.client.connection import ServiceClient
from gpusonde.collector.client.results import (
    CycleInfo,
    DurationChange,
    DurationTrend,
    EpochInfo,
    GpuDeviation,
    GpuPlacement,
    HostDeviation,
    JobAlert,
    JobInfo,
    JobMember,
    JobProcessesInfo,
    JobSpan,
    Measurement,
    Prediction,
    PredictionSet,
    RunEndEstimate,
    RunEpochs,
    RunInfo,
    SampleBounds,
    SlowDevice,
)
from gpusonde.collector.messages import enum_text
from gpusonde.errors import CollectorError
from gpusonde.query.v1 import query_pb2, query_pb2_grpc
from gpusonde.telemetry import Trace

_PAGE_SIZE = 1000
_ESTIMATED_AT_ONCE = 100  # jobs, whose answer is to come before the deadline


class Client(ServiceClient):
    """Asks one collector; reading samples may take ten times as long as an answer."""

    _stub_type = query_pb2_grpc.QueryServiceStub

    def list_runs(self, *, gpu_uuid: str = "", job_id: str = "", limit: int | None = None) -> list[RunInfo]:
        """Return runs, newest first.

        Args:
            gpu_uuid: Only of this GPU; empty means every one.
            job_id: Only of this job; empty means every one.
            limit: At most so many; None means all.

        Raises:
            CollectorError: There is no answer.
        """
        request = query_pb2.ListRunsRequest(gpu_uuid=gpu_uuid, job_id=job_id)
        return self._list(self._stub.ListRuns, request, "runs", _run, limit=limit)

    def list_epochs(
        self,
        run_id: str,
        *,
        include_withdrawn: bool = False,
        include_provisional: bool = False,
        total_epochs: int | None = None,
    ) -> RunEpochs:
        """Return the epochs of a run by start, and what they tell together.

        Args:
            run_id: The run.
            include_withdrawn: Also epochs that a later revision withdrew.
            include_provisional: Also epochs and levels that the tracker is not sure of yet.
            total_epochs: Epochs that the job is to run for, for an estimate of its end.

        Raises:
            CollectorError: There is no such run, more epochs are over than ``total_epochs``, or no answer.
        """
        epochs: list[EpochInfo] = []
        request = query_pb2.ListEpochsRequest(
            run_id=run_id,
            include_withdrawn=include_withdrawn,
            include_provisional=include_provisional,
            page_size=_PAGE_SIZE,
            total_epochs=total_epochs,
        )
        while True:
            with self._errors():
                response = self._stub.ListEpochs(request, timeout=self._timeout_s, metadata=self._metadata)
                epochs += [_epoch(epoch) for epoch in response.epochs]
                request.page_token = response.next_page_token
                if not response.next_page_token:
                    return _run_epochs(response, epochs)

    def list_jobs(
        self,
        *,
        job_id: str = "",
        active_only: bool = False,
        limit: int | None = None,
        total_cycles: int | None = None,
        total_role: str = "",
        like_job_id: str = "",
        process_window_s: float | None = None,
        estimates: bool = False,
    ) -> list[JobInfo]:
        """Return jobs with what they do, newest first.

        Args:
            job_id: Only this one; empty means every one.
            active_only: Only those of which a run goes on.
            limit: At most so many; None means all.
            total_cycles: How many cycles the job is to run for, for its progress and its end; only with ``job_id``.
            total_role: Role of the level that they are counted in; empty means the one that measures the progress.
            like_job_id: A job that is over, and tells the end of this one where no total is given; empty means earlier
                jobs of the same name; only with ``job_id``.
            process_window_s: Say what the processes of the job did in the latest time of this length, a day at most;
                only with ``job_id``.
            estimates: Say of every job how far it is and when it ends, as of one that is named by ``job_id``.

        Raises:
            CollectorError: A total comes without ``job_id``, or there is no answer.
            ValueError: There is no such role.
        """
        request = query_pb2.ListJobsRequest(
            job_id=job_id,
            active_only=active_only,
            total_cycles=total_cycles,
            total_role=f"CYCLE_ROLE_{total_role.upper()}" if total_role else None,
            like_job_id=like_job_id,
            process_window=None if process_window_s is None else _to_duration(process_window_s),
            estimates=estimates,
        )
        most = _ESTIMATED_AT_ONCE if estimates else _PAGE_SIZE

        def read(job: query_pb2.Job) -> JobInfo:
            if estimates and _lacks_estimate(job):
                raise self._too_old("does not tell the ends of all jobs at once")
            return job_info(job)

        return self._list(self._stub.ListJobs, request, "jobs", read, page_size=most, limit=limit)

    def list_alerts(self, *, job_id: str = "", open_only: bool = False, limit: int | None = None) -> list[JobAlert]:
        """Return alerts about jobs, those of jobs that are over included, newest first.

        Args:
            job_id: Only of this job; empty means every one.
            open_only: Only those that are not over.
            limit: At most so many; None means all.

        Raises:
            CollectorError: There is no answer.
        """
        request = query_pb2.ListAlertsRequest(job_id=job_id, open_only=open_only)
        return self._list(self._stub.ListAlerts, request, "alerts", _alert, limit=limit)

    def predict_run(
        self,
        run_id: str,
        targets: Sequence[str] = (),
        precision: str = "",
        *,
        here: GpuPlacement | None = None,
        placements: Sequence[GpuPlacement] = (),
    ) -> PredictionSet:
        """Predict the epoch latency of a stored run on other GPUs.

        Args:
            run_id: The run.
            targets: Names of GPUs; empty means every one of the catalogue.
            precision: What its products are computed in, as ``Measurement.precision``.
            here: What is known of the job's GPUs besides what the collector knows.
            placements: One for all targets or one for each; none for as many GPUs as the job has.

        Raises:
            CollectorError: No such run or GPU, the run has no epochs yet, or there is no answer.
        """
        request = query_pb2.PredictEpochLatencyRequest(run_id=run_id, target_gpu_models=targets, precision=precision)
        return self._predict(request, here, placements)

    def predict_measurement(
        self,
        measurement: Measurement,
        targets: Sequence[str] = (),
        *,
        here: GpuPlacement | None = None,
        placements: Sequence[GpuPlacement] = (),
    ) -> PredictionSet:
        """Predict the epoch latency of what the caller measured on other GPUs; arguments as of ``predict_run``.

        Raises:
            CollectorError: No such GPU, an impossible measurement, or no answer.
        """
        message = query_pb2.SourceMeasurement(
            gpu_model=measurement.gpu_model,
            epoch_latency=_to_duration(measurement.epoch_latency_s),
            metrics=[
                query_pb2.MetricDistribution(
                    metric=name,
                    mean=d.mean,
                    standard_deviation=d.standard_deviation,
                    minimum=d.minimum,
                    quartile_1=d.quartile_1,
                    median=d.median,
                    quartile_3=d.quartile_3,
                    maximum=d.maximum,
                )
                for name, d in measurement.metrics.items()
            ],
            framebuffer_bytes=measurement.framebuffer_bytes,
            epoch_latency_relative_error=measurement.epoch_latency_relative_error,
            static_attributes=dict(measurement.static_attributes),
            precision=measurement.precision,
        )
        request = query_pb2.PredictEpochLatencyRequest(measurement=message, target_gpu_models=targets)
        return self._predict(request, here, placements)

    def read_samples(
        self,
        gpu_uuid: str,
        *,
        metrics: Sequence[str] = (),
        start_unix_nano: int | None = None,
        end_unix_nano: int | None = None,
    ) -> Trace:
        """Return the samples of a GPU as a trace whose time 0 is its first tick.

        Where ticks are older than the collector keeps them and averages are left, the trace says so: a warning, and
        the attribute ``resolution_s``.

        Args:
            gpu_uuid: The GPU.
            metrics: Names; empty means all.
            start_unix_nano: Earliest time; None means from the beginning.
            end_unix_nano: Time after the latest; None means to the end.

        Raises:
            CollectorError: No such GPU or metric, or no answer.
        """
        request = query_pb2.ReadSamplesRequest(gpu_uuid=gpu_uuid, metrics=metrics)
        if start_unix_nano is not None:
            request.start_time.FromNanoseconds(start_unix_nano)
        if end_unix_nano is not None:
            request.end_time.FromNanoseconds(end_unix_nano)
        stream = io.BytesIO()
        resolution_s = 0.0
        with self._errors():
            for response in self._stub.ReadSamples(request, timeout=10 * self._timeout_s, metadata=self._metadata):
                stream.write(response.arrow_ipc)
                resolution_s = max(resolution_s, response.resolution.ToNanoseconds() / 1e9)
            return _trace(gpu_uuid, stream.getvalue(), resolution_s)

    def read_bounds(self, run_id: str, bins: int) -> SampleBounds:
        """Return the bounds of the metric that tells best how busy a run's GPU is, from its start to its latest tick.

        Args:
            run_id: The run.
            bins: How many, at most 4000.

        Raises:
            CollectorError: There is no such run, or no answer.
        """
        request = query_pb2.DecimateSamplesRequest(run_id=run_id, bin_count=bins)
        response = self._ask(self._stub.DecimateSamples, request)
        start, end = response.start_time.ToNanoseconds(), response.end_time.ToNanoseconds()
        (found,) = response.metrics
        minimums, maximums = np.full(bins, np.nan), np.full(bins, np.nan)
        places = (np.array(response.offset_seconds) / ((end - start) / 1e9) * bins).astype(int).clip(0, bins - 1)
        minimums[places], maximums[places] = found.minimums, found.maximums
        return SampleBounds(found.metric, start, end, minimums, maximums)

    def _too_old(self, what: str) -> CollectorError:
        details = f"the collector at {self._target} is an older one, which {what}"
        return CollectorError("UNIMPLEMENTED", details, "update it")

    def _predict(
        self,
        request: query_pb2.PredictEpochLatencyRequest,
        here: GpuPlacement | None,
        placements: Sequence[GpuPlacement],
    ) -> PredictionSet:
        if here is not None:
            request.source_placement.CopyFrom(query_pb2.Placement(**asdict(here)))
        request.target_placements.extend(query_pb2.Placement(**asdict(each)) for each in placements)
        with self._errors():
            response = self._stub.PredictEpochLatency(request, timeout=self._timeout_s, metadata=self._metadata)
            if not response.source_gpu_count and any(each != GpuPlacement() for each in (here, *placements) if each):
                raise self._too_old("answers for one GPU only, whatever number of them is asked for")
            return PredictionSet(
                tuple(_prediction(prediction) for prediction in response.predictions),
                response.model_version,
                response.source_gpu_model,
                response.source_epoch_latency.ToNanoseconds() / 1e9,
                max(response.source_gpu_count, 1),
                max(response.source_host_count, 1),
            )


def _run(run: query_pb2.Run) -> RunInfo:
    return RunInfo(
        run_id=run.run_id,
        agent_id=run.agent_id,
        gpu_uuid=run.gpu_uuid,
        product_name=run.product_name,
        framebuffer_bytes=run.framebuffer_bytes,
        host_name=run.host_name,
        job_id=run.job_id,
        scheduler=enum_text(run, "scheduler") or "",
        active=run.status == query_pb2.RUN_STATUS_ACTIVE,
        start_unix_nano=run.start_time.ToNanoseconds(),
        end_unix_nano=run.end_time.ToNanoseconds(),
        tick_count=run.tick_count,
        missed_ticks=run.missed_ticks,
        verdict=enum_text(run, "verdict") or "",
        epoch_count=run.epoch_count,
        period_s=_seconds(run, "epoch_period"),
        period_low_s=_seconds(run, "epoch_period_lower"),
        period_high_s=_seconds(run, "epoch_period_upper"),
        confidence=run.confidence,
        replayed=run.replayed,
    )


def job_info(job: query_pb2.Job) -> JobInfo:
    """Return a job as plain values."""
    return JobInfo(
        job_id=job.job_id,
        scheduler=enum_text(job, "scheduler") or "",
        active=job.active,
        start_unix_nano=job.start_time.ToNanoseconds(),
        end_unix_nano=job.end_time.ToNanoseconds(),
        members=tuple(
            JobMember(m.run_id, m.agent_id, m.host_name, m.gpu_uuid, m.product_name, m.active) for m in job.members
        ),
        state=enum_text(job, "state") or "unknown",
        state_unix_nano=job.state_time.ToNanoseconds(),
        reason=job.reason,
        confidence=job.confidence,
        history=tuple(
            JobSpan(
                enum_text(span, "state") or "unknown",
                span.start_time.ToNanoseconds(),
                span.end_time.ToNanoseconds(),
            )
            for span in job.history
        ),
        level=_cycle(job.level) if job.HasField("level") else None,
        progress_ratio=job.progress_ratio if job.HasField("progress_ratio") else math.nan,
        estimate=_estimate(job.estimate) if job.HasField("estimate") else None,
        estimate_reason=job.estimate_reason,
        goodput_ratio=job.goodput_ratio if job.HasField("goodput_ratio") else math.nan,
        gpu_s=job.gpu_time.ToNanoseconds() / 1e9,
        deviations=tuple(GpuDeviation(each.gpu_uuid, each.kind, each.amount) for each in job.deviations),
        alerts=tuple(_alert(alert) for alert in job.alerts),
        slow_devices=tuple(
            SlowDevice(each.agent_id, each.host_name, each.gpu_uuid, each.probability, each.evidence)
            for each in job.slow_devices
        ),
        longest_pause_s=job.longest_pause.ToNanoseconds() / 1e9,
        processes=_processes(job.processes) if job.HasField("processes") else None,
    )


def _lacks_estimate(job: query_pb2.Job) -> bool:
    return job.active and job.HasField("level") and not job.HasField("estimate") and not job.estimate_reason


def _processes(processes: query_pb2.JobProcesses) -> JobProcessesInfo:
    return JobProcessesInfo(
        processes.seen.ToNanoseconds() / 1e9,
        processes.processors if processes.HasField("processors") else math.nan,
        processes.bytes_per_second if processes.HasField("bytes_per_second") else math.nan,
        processes.on_gpus or not processes.HasField("on_gpus"),
    )


def _alert(alert: query_pb2.JobAlert) -> JobAlert:
    return JobAlert(
        enum_text(alert, "state") or "unknown",
        alert.start_time.ToNanoseconds(),
        alert.end_time.ToNanoseconds() if alert.HasField("end_time") else 0,
        alert.reason,
        alert.job_id,
        enum_text(alert, "scheduler") or "",
    )


def _run_epochs(response: query_pb2.ListEpochsResponse, epochs: Sequence[EpochInfo]) -> RunEpochs:
    return RunEpochs(
        verdict=enum_text(response, "verdict") or "",
        reason=response.reason,
        epochs=tuple(epochs),
        trend=_trend(response.trend) if response.HasField("trend") else None,
        idle_share=response.idle_share if response.HasField("idle_share") else math.nan,
        stalled_share=response.stalled_share if response.HasField("stalled_share") else math.nan,
        estimate=_estimate(response.estimate) if response.HasField("estimate") else None,
        estimate_reason=response.estimate_reason,
        pending_summaries=response.pending_summaries,
        provisional_epochs=response.provisional_epochs,
        cycles=tuple(_cycle(cycle) for cycle in response.cycles),
        level=response.level if response.HasField("level") else None,
        role=enum_text(response, "role") or "unknown",
        deviations=tuple(GpuDeviation(d.gpu_uuid, d.kind, d.amount) for d in response.deviations),
        run_state=response.run_state,
        run_state_confidence=response.run_state_confidence,
        tree_agent_id=response.tree_agent_id,
        disagreeing_agents=tuple(response.disagreeing_agents),
        host_deviations=tuple(HostDeviation(d.agent_id, d.kind, d.amount) for d in response.host_deviations),
        provisional_cycles=response.provisional_cycles,
    )


def _cycle(cycle: query_pb2.Cycle) -> CycleInfo:
    return CycleInfo(
        _seconds(cycle, "period"),
        _seconds(cycle, "period_lower"),
        _seconds(cycle, "period_upper"),
        cycle.count,
        cycle.confidence,
        enum_text(cycle, "role") or "unknown",
        cycle.role_confidence,
        cycle.parent if cycle.HasField("parent") else None,
        tuple(start.ToNanoseconds() for start in cycle.latest_start_times),
        cycle.provisional,
    )


def _epoch(epoch: query_pb2.Epoch) -> EpochInfo:
    summary = epoch.summary
    return EpochInfo(
        epoch.index,
        epoch.start_time.ToNanoseconds(),
        epoch.end_time.ToNanoseconds(),
        epoch.confidence,
        enum_text(epoch, "status") or "",
        epoch.revision,
        seen_share=summary.seen_share if epoch.HasField("summary") else math.nan,
        energy_joules=summary.energy_joules if summary.HasField("energy_joules") else math.nan,
        mean_metrics={item.metric: item.mean for item in summary.mean_metrics},
    )


def _trend(trend: query_pb2.DurationTrend) -> DurationTrend:
    return DurationTrend(
        tuple(
            DurationChange(c.epoch, c.before.ToNanoseconds() / 1e9, c.after.ToNanoseconds() / 1e9, c.change)
            for c in trend.changes
        ),
        trend.recent.ToNanoseconds() / 1e9,
        trend.change_per_epoch,
        trend.change_per_epoch_lower,
        trend.change_per_epoch_upper,
    )


def _estimate(estimate: query_pb2.EndEstimate) -> RunEndEstimate:
    return RunEndEstimate(
        estimate.epochs_done,
        estimate.epochs_left,
        estimate.end_time.ToNanoseconds(),
        estimate.end_time_lower.ToNanoseconds(),
        estimate.end_time_upper.ToNanoseconds(),
        estimate.interval_coverage,
        estimate.basis,
    )


def _prediction(prediction: query_pb2.EpochLatencyPrediction) -> Prediction:
    return Prediction(
        prediction.gpu_model,
        _seconds(prediction, "epoch_latency"),
        _seconds(prediction, "epoch_latency_lower"),
        _seconds(prediction, "epoch_latency_upper"),
        prediction.interval_coverage,
        enum_text(prediction, "status") or "",
        prediction.extrapolated,
        prediction.method,
        prediction.reason,
        max(prediction.gpu_count, 1),
        max(prediction.host_count, 1),
        prediction.communication_ratio,
        enum_text(prediction, "fits") or "unknown",
        prediction.link,
        prediction.network_bytes_per_second,
        prediction.usd_per_hour if prediction.HasField("usd_per_hour") else math.nan,
        prediction.offer,
    )


def _trace(gpu_uuid: str, stream: bytes, resolution_s: float) -> Trace:
    # Reading samples needs Arrow; listing runs must not wait for its import.
    import pyarrow as pa  # noqa: PLC0415

    try:
        table = pa.ipc.open_stream(stream).read_all()
        # Whose lengths are those of its buffers: what reads it trusts them.
        table.validate(full=True)
        time_ns = table.column("time_unix_nano").to_numpy()
        values = {name: table.column(name).to_numpy().astype(np.float64) for name in table.column_names[1:]}
        origin = int(time_ns[0]) if time_ns.size else 0
    except (OSError, TypeError, pa.ArrowException) as error:  # so Arrow calls damage, and kinds that are no numbers
        raise ValueError(str(error)) from error
    trace = Trace((time_ns - origin) / 1e9, values, gpu_uuid=gpu_uuid, origin_unix_s=origin / 1e9 if origin else None)
    if not resolution_s:
        return trace
    warning = f"the oldest ticks are deleted: of them averages over {resolution_s:g} s are left"
    return replace(trace, attributes={"resolution_s": f"{resolution_s:g}"}, warnings=(warning,))


def _seconds(message: query_pb2.Run | query_pb2.Cycle | query_pb2.EpochLatencyPrediction, name: str) -> float:
    value: Duration | Timestamp = getattr(message, name)
    return value.ToNanoseconds() / 1e9 if message.HasField(name) else math.nan


def _to_duration(seconds: float) -> Duration:
    message = Duration()
    if math.isfinite(seconds):
        message.FromNanoseconds(round(seconds * 1e9))
    return message
