"""What a ``Client`` gives and takes: plain values with their units in their names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class RunInfo:
    """One job's stay on one GPU.

    Attributes:
        run_id: Name of the run.
        agent_id: Agent that sampled it.
        gpu_uuid: Its GPU.
        product_name: The GPU's name as the driver spells it.
        framebuffer_bytes: The GPU's memory, 0 when unknown.
        host_name: Host of the agent.
        job_id: Scheduler's job, empty when unknown.
        scheduler: ``slurm``, ``kubernetes``, ``static``, ``container``, ``systemd``, ``user`` or empty.
        active: Whether it still goes on.
        start_unix_nano: First activity.
        end_unix_nano: Latest tick while it is active, last activity when it is over.
        tick_count: Ticks from start to end.
        missed_ticks: Ticks that the sampler skipped meanwhile.
        verdict: ``epochs``, ``short_cycle``, ``none``, or empty before the first analysis.
        epoch_count: Epochs found.
        period_s: Typical epoch duration; NaN when unknown, like both bounds.
        period_low_s: Lower end of its 95 % interval.
        period_high_s: Upper end of it.
        confidence: 0..1.
        replayed: True when the samples come from a replayed or generated trace.
    """

    run_id: str
    agent_id: str
    gpu_uuid: str
    product_name: str
    framebuffer_bytes: int
    host_name: str
    job_id: str
    scheduler: str
    active: bool
    start_unix_nano: int
    end_unix_nano: int
    tick_count: int
    missed_ticks: int
    verdict: str
    epoch_count: int
    period_s: float
    period_low_s: float
    period_high_s: float
    confidence: float
    replayed: bool


@dataclass(frozen=True)
class EpochInfo:
    """One epoch.

    Attributes:
        index: Identifies it within its run; order epochs by start.
        start_unix_nano: Start.
        end_unix_nano: End.
        confidence: 0..1.
        status: ``provisional``, ``confirmed``, ``other_level`` (of another level of the tree than the one told) or
            ``withdrawn``.
        revision: Grows whenever the tracker changes its mind about the run.
        seen_share: Share of it that ticks speak for, 0..1; NaN, as all below, until the samples have been gone through.
        energy_joules: Energy used in it; NaN where neither the driver's counter nor the power tells it.
        mean_metrics: Metric -> mean over it in the metric catalogue's unit, without metrics that had no value.
    """

    index: int
    start_unix_nano: int
    end_unix_nano: int
    confidence: float
    status: str
    revision: int
    seen_share: float = math.nan
    energy_joules: float = math.nan
    mean_metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def duration_s(self) -> float:
        """Seconds from start to end."""
        return (self.end_unix_nano - self.start_unix_nano) / 1e9


@dataclass(frozen=True)
class DurationChange:
    """A lasting change of the duration from one epoch to the next.

    Attributes:
        epoch: First epoch of the new duration: its place by start, counted from 1, without withdrawn ones.
        before_s: Median duration before.
        after_s: Median duration after.
        change: Ratio: 0.25 for epochs that take a quarter longer.
    """

    epoch: int
    before_s: float
    after_s: float
    change: float


@dataclass(frozen=True)
class DurationTrend:
    """How the duration of the epochs of a run changes, the slow first epoch left out.

    Attributes:
        changes: Slow-downs and speed-ups, in order.
        recent_s: Median duration since the last change.
        change_per_epoch: Ratio by which each epoch since then takes longer than the one before.
        change_per_epoch_low: Lower end of its 95 % interval.
        change_per_epoch_high: Upper end of it.
    """

    changes: tuple[DurationChange, ...]
    recent_s: float
    change_per_epoch: float
    change_per_epoch_low: float
    change_per_epoch_high: float


@dataclass(frozen=True)
class RunEndEstimate:
    """When the last epoch ends if the run goes on as it did.

    Attributes:
        epochs_done: Epochs that are over.
        epochs_left: Epochs still to come, the one under way included; 0 where they are not what it rests on.
        end_unix_nano: Expected end.
        end_low_unix_nano: Lower end of its interval.
        end_high_unix_nano: Upper end of it.
        interval_coverage: Share of such intervals that should hold the true end.
        basis: What it rests on.
    """

    epochs_done: int
    epochs_left: int
    end_unix_nano: int
    end_low_unix_nano: int
    end_high_unix_nano: int
    interval_coverage: float
    basis: str = ""


@dataclass(frozen=True)
class CycleInfo:
    """One level of the tree of cycles of a run's job.

    Attributes:
        period_s: Typical seconds from start to start.
        period_low_s: Lower end of its 95 % interval.
        period_high_s: Upper end of it.
        count: Whole cycles seen.
        confidence: Probability, 0..1, that the job has a level within 10 % of ``period_s``.
        role: ``step``, ``evaluation``, ``checkpoint``, ``epoch``, ``trial`` or ``unknown``.
        role_confidence: Probability, 0..1, that ``role`` is right; 0 for ``unknown``.
        parent: Index of the level that this one is nested in; None for the outermost.
        latest_starts_unix_nano: The latest 64 starts at most.
        provisional: Whether the tracker is not sure of it yet.
    """

    period_s: float
    period_low_s: float
    period_high_s: float
    count: int
    confidence: float
    role: str
    role_confidence: float
    parent: int | None
    latest_starts_unix_nano: tuple[int, ...]
    provisional: bool = False


@dataclass(frozen=True)
class GpuDeviation:
    """What one GPU of a job does otherwise than the others.

    Attributes:
        gpu_uuid: The GPU.
        kind: ``idle``; ``lag``; ``missing``, without some of the cycles of the others; or ``unlike``.
        amount: Its mean load, 0..1; the seconds that it is behind; how many cycles; or its correlation with the others.
    """

    gpu_uuid: str
    kind: str
    amount: float


@dataclass(frozen=True)
class HostDeviation:
    """What the GPUs on one host of a job do otherwise than those on the others.

    Attributes:
        agent_id: The host's agent.
        kind: ``period``, another one than the job's; ``missing``, without a level that the others have; or ``lag``.
        amount: Its own period in seconds; that of the level; or the seconds that it is behind.
    """

    agent_id: str
    kind: str
    amount: float


@dataclass(frozen=True)
class RunEpochs:
    """The epochs of a run and what they tell together.

    Attributes:
        verdict: As in ``RunInfo``.
        reason: Why the verdict is what it is.
        epochs: By start.
        trend: None for fewer than two epochs.
        idle_share: Share of the time from first to last activity in which the GPU did not work; NaN when unknown.
        stalled_share: Share of it lost to idle that an epoch of this run does not usually have, or between epochs.
        estimate: When the job will be done; None unless the total number of epochs was given and enough are over.
        estimate_reason: Why there is no estimate although the total number was given.
        pending_summaries: Confirmed epochs whose metrics and energy are still to be worked out.
        provisional_epochs: Epochs that the tracker is not sure of yet, listed or not.
        cycles: Levels of the tree of cycles of the run's job, shortest first.
        level: Index in ``cycles`` of the level that period and epochs tell; None if it is none of them.
        role: What is told as the epochs: the role of that level where it is sure, else ``unknown``.
        deviations: GPUs of the job that do otherwise than the others.
        run_state: What the job does as a whole: ``training``, ``serving``, ``idle``, ``other`` or empty.
        run_state_confidence: Probability, 0..1, that ``run_state`` is right.
        tree_agent_id: In whose name ``cycles`` are told, if the job is on several hosts.
        disagreeing_agents: Agents on whose hosts another period was found for this job.
        host_deviations: Hosts of the job whose GPUs do otherwise than those of the others.
        provisional_cycles: Levels that the tracker is not sure of yet, listed or not.
    """

    verdict: str
    reason: str
    epochs: tuple[EpochInfo, ...]
    trend: DurationTrend | None = None
    idle_share: float = math.nan
    stalled_share: float = math.nan
    estimate: RunEndEstimate | None = None
    estimate_reason: str = ""
    pending_summaries: int = 0
    provisional_epochs: int = 0
    cycles: tuple[CycleInfo, ...] = ()
    level: int | None = None
    role: str = "unknown"
    deviations: tuple[GpuDeviation, ...] = ()
    run_state: str = ""
    run_state_confidence: float = 0.0
    tree_agent_id: str = ""
    disagreeing_agents: tuple[str, ...] = ()
    host_deviations: tuple[HostDeviation, ...] = ()
    provisional_cycles: int = 0


@dataclass(frozen=True)
class JobMember:
    """A run of a job, see ``RunInfo``, or a GPU that has not worked for it yet, whose ``run_id`` is empty.

    It is active while the run goes on, or the scheduler still gives the GPU to the job.
    """

    run_id: str
    agent_id: str
    host_name: str
    gpu_uuid: str
    product_name: str
    active: bool


@dataclass(frozen=True)
class JobSpan:
    """A stretch of time that a job was in a state.

    Attributes:
        state: As in ``JobInfo``.
        start_unix_nano: Its start.
        end_unix_nano: Its end.
    """

    state: str
    start_unix_nano: int
    end_unix_nano: int


@dataclass(frozen=True)
class JobAlert:
    """A state that a job was in for too long.

    Attributes:
        state: As in ``JobInfo``.
        start_unix_nano: Since when.
        end_unix_nano: When it was over; 0 while it is not.
        reason: What it rests on.
        job_id: As in ``JobInfo``.
        scheduler: As in ``RunInfo``.
    """

    state: str
    start_unix_nano: int
    end_unix_nano: int
    reason: str
    job_id: str
    scheduler: str


@dataclass(frozen=True)
class JobProcessesInfo:
    """What the processes of a job did in a time that was asked for.

    Attributes:
        seen_s: Seconds that were looked at, on the host with the least.
        processors: Mean number of processors that they took; NaN where it cannot be read.
        bytes_per_s: Mean of what they read and wrote; NaN likewise.
        on_gpus: Whether any was on its GPUs, or may have been.
    """

    seen_s: float
    processors: float
    bytes_per_s: float
    on_gpus: bool


@dataclass(frozen=True)
class SlowDevice:
    """A GPU or host that may make the others of its job wait.

    Attributes:
        agent_id: Its agent.
        host_name: Its host.
        gpu_uuid: The GPU; empty for the host as a whole.
        probability: That it is the one, 0..1.
        evidence: What speaks for it, in words.
    """

    agent_id: str
    host_name: str
    gpu_uuid: str
    probability: float
    evidence: str


@dataclass(frozen=True)
class JobInfo:
    """What a user started: its runs on all GPUs and hosts.

    Attributes:
        job_id: The scheduler's; of a run that none is known of, its run id.
        scheduler: As in ``RunInfo``.
        active: Whether a run of it goes on.
        start_unix_nano: First activity.
        end_unix_nano: Latest tick while it is active, last activity when it is over.
        members: Its runs, in order of their start.
        state: ``starting``, ``training``, ``evaluating``, ``checkpointing``, ``stalled``, ``hung``, ``serving``,
            ``idle``, ``slower``, ``ended`` or ``unknown``.
        state_unix_nano: Since when.
        reason: What that rests on.
        confidence: Probability, 0..1, that the state is right.
        history: The states before, oldest first.
        level: The level of its cycles that measures the progress; None while none is confirmed.
        progress_ratio: Share of the total that is done, 0..1; NaN where the total is not known.
        estimate: When it will be done; None where that is not known, or no one job was asked for.
        estimate_reason: Why not, where one job was asked for.
        goodput_ratio: Share of its GPUs' time in which it made progress, 0..1; NaN where no state is known.
        gpu_s: Seconds of GPUs that it is a share of.
        deviations: GPUs of the job that do otherwise than the others.
        alerts: The latest ones, newest first, where one job was asked for.
        longest_pause_s: For how long it once did not get on, and then did again; 0 where it never paused.
        processes: What its processes did, where it was asked for and is known.
        slow_devices: Of a job that is slower, those that may drag it, likeliest first; mostly none.
    """

    job_id: str
    scheduler: str
    active: bool
    start_unix_nano: int
    end_unix_nano: int
    members: tuple[JobMember, ...]
    state: str
    state_unix_nano: int
    reason: str
    confidence: float
    history: tuple[JobSpan, ...]
    level: CycleInfo | None
    progress_ratio: float
    estimate: RunEndEstimate | None
    estimate_reason: str
    goodput_ratio: float
    gpu_s: float
    deviations: tuple[GpuDeviation, ...]
    alerts: tuple[JobAlert, ...] = ()
    longest_pause_s: float = 0.0
    processes: JobProcessesInfo | None = None
    slow_devices: tuple[SlowDevice, ...] = ()

    @property
    def present(self) -> tuple[JobMember, ...]:
        """What it has now, without the GPUs that it had before it was put back into the queue; once over, all."""
        return tuple(member for member in self.members if member.active) or self.members


@dataclass(frozen=True)
class Prediction:
    """Epoch latency on one target GPU.

    Attributes:
        gpu_model: The target's canonical name.
        epoch_latency_s: Seconds of one epoch; NaN when there is no prediction, like both bounds.
        epoch_latency_low_s: Lower end of the interval.
        epoch_latency_high_s: Upper end of the interval.
        interval_coverage: Share of such intervals that should hold the true latency.
        status: ``ok``, ``extrapolated``, ``insufficient_epochs`` or ``unsupported_gpu``.
        extrapolated: True when target, source or run lie outside of what the model was fitted on.
        method: How the number came about.
        reason: Why the status is not ``ok``.
        gpu_count: GPUs of the job there.
        host_count: Hosts that they are spread over.
        communication_ratio: Share of the epoch in which they only wait for gradients; 0 on one GPU.
        fits: Whether what the run holds of memory fits: ``yes``, ``likely``, ``unknown`` or ``no``.
        link: What joins the GPUs of a host, ``nvlink`` or ``pcie``; empty where each host has one.
        network_bytes_per_second: Of one host, as told or assumed; 0 on one host.
        usd_per_hour: Of all machines that the job takes there, at the catalogue's lowest price on demand; NaN without
            an offer.
        offer: That offer with the date of its price; empty without one.
    """

    gpu_model: str
    epoch_latency_s: float
    epoch_latency_low_s: float
    epoch_latency_high_s: float
    interval_coverage: float
    status: str
    extrapolated: bool
    method: str
    reason: str
    gpu_count: int = 1
    host_count: int = 1
    communication_ratio: float = 0.0
    fits: str = "unknown"
    link: str = ""
    network_bytes_per_second: float = 0.0
    usd_per_hour: float = math.nan
    offer: str = ""


@dataclass(frozen=True)
class PredictionSet:
    """Predictions from one source.

    Attributes:
        predictions: One per target.
        model_version: Version of the model that answered.
        source_gpu_model: What the source GPU's name was taken for.
        source_epoch_latency_s: Seconds of one epoch on the source GPU.
        source_gpu_count: GPUs of the job there.
        source_host_count: Hosts that they are spread over.
    """

    predictions: tuple[Prediction, ...]
    model_version: str
    source_gpu_model: str
    source_epoch_latency_s: float
    source_gpu_count: int = 1
    source_host_count: int = 1


@dataclass(frozen=True)
class SampleBounds:
    """Least and greatest value of one metric of a run in bins of equal length, for pictures.

    Attributes:
        metric: Its name.
        start_unix_nano: Start of the first bin.
        end_unix_nano: End of the last one.
        minimums: Shape (bins,), in the metric catalogue's unit; NaN where no tick has a value.
        maximums: The same of the greatest.
    """

    metric: str
    start_unix_nano: int
    end_unix_nano: int
    minimums: npt.NDArray[np.float64]
    maximums: npt.NDArray[np.float64]


@dataclass(frozen=True)
class GpuPlacement:
    """How many GPUs of one model a job has, and how they are connected.

    Attributes:
        gpu_count: All of them; 0 for as many as the run has.
        host_count: Over so many hosts, the fullest one counting where they are unlike; 0 for one.
        link: Inside of a host: ``nvlink`` or ``pcie``; empty for the better one that joins all of them.
        network_bytes_per_second: Of one host; 0 when unknown.
        batch_per_gpu: Samples per GPU and step; 0 when unknown. It counts where source and target both say it.
    """

    gpu_count: int = 0
    host_count: int = 0
    link: str = ""
    network_bytes_per_second: float = 0.0
    batch_per_gpu: float = 0.0


@dataclass(frozen=True)
class MeasuredMetric:
    """Distribution of one metric over a run, in the metric catalogue's unit."""

    mean: float
    standard_deviation: float
    minimum: float
    quartile_1: float
    median: float
    quartile_3: float
    maximum: float


@dataclass(frozen=True)
class Measurement:
    """What a caller measured itself, as a source for predictions.

    Attributes:
        gpu_model: Name of the GPU.
        epoch_latency_s: Seconds of one epoch on it.
        metrics: Metric name -> distribution over the run.
        framebuffer_bytes: The GPU's memory, to tell variants apart; 0 when unknown.
        epoch_latency_relative_error: Standard error of the latency as a ratio of it.
        static_attributes: Figures read on the device itself.
        precision: Of the job's matrix products and convolutions, a value of ``catalog.Precision``; empty where nobody
            knows.
    """

    gpu_model: str
    epoch_latency_s: float
    metrics: Mapping[str, MeasuredMetric] = field(default_factory=dict)
    framebuffer_bytes: int = 0
    epoch_latency_relative_error: float = 0.0
    static_attributes: Mapping[str, float] = field(default_factory=dict)
    precision: str = ""
