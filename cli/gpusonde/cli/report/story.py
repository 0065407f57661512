"""``RunStory``: all that is known of one run, out of trace files or from a collector, on one axis of time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpusonde import formatting
from gpusonde.cli.measuring import Predictions, from_answer, from_traces
from gpusonde.cli.runs_view import Progress, summarise_trace
from gpusonde.cli.trace_states import follow_states, on_one_axis
from gpusonde.epoch_detect import EpochDetection, detect
from gpusonde.epoch_detect.progress import JobState, StateSpan
from gpusonde.errors import CollectorError, CommandError, GpusondeError
from gpusonde.telemetry import Trace

if TYPE_CHECKING:
    from gpusonde.collector.client import Client, JobInfo, RunInfo

_MOST_GPUS = 64
# Of all GPUs together, that are read from a collector: a day of one at 10 Hz.
_MOST_TICKS = 864_000
_MOST_EVENTS = 1000
_STARTING_NS = 60_000_000_000
_GOOD = frozenset({JobState.TRAINING, JobState.EVALUATING, JobState.SLOWER})


@dataclass(frozen=True)
class StoryEvent:
    """Something at one moment.

    Attributes:
        time_s: When.
        text: What.
        gpu: Place of the GPU in ``RunStory.gpus``; None for the whole run.
    """

    time_s: float
    text: str
    gpu: int | None = None


@dataclass(frozen=True)
class RunStory:
    """One run, or the traces of one job.

    Attributes:
        title: What it is, in one line.
        facts: What else is known of it, by name.
        gpus: Ticks of each GPU, all with the same origin.
        detection: Cycles and epochs.
        progress: What the epochs tell together.
        states: What the job did, in order of time.
        events: What happened, in order of time.
        goodput_ratio: Share of the GPUs' time in which the job made progress, holes left out; NaN where no state is.
        predictions: Epoch latency elsewhere; None where there is none.
        prediction_reason: Why there is none.
        notes: What was left out or repaired.
    """

    title: str
    facts: Mapping[str, str]
    gpus: Sequence[Trace]
    detection: EpochDetection
    progress: Progress
    states: Sequence[StateSpan]
    events: Sequence[StoryEvent]
    goodput_ratio: float
    predictions: Predictions | None
    prediction_reason: str
    notes: Sequence[str]

    @property
    def end_s(self) -> float:
        """Time of the last tick of all GPUs."""
        return max(float(trace.time_s[-1]) for trace in self.gpus)


def story_of_traces(title: str, traces: Sequence[Trace], *, with_predictions: bool) -> RunStory:
    """Tell of the traces of one job; its states are those that a collector would have told while it ran.

    Args:
        title: What it is.
        traces: Of each of its GPUs.
        with_predictions: Whether to predict its epochs on other GPUs.
    """
    gpus = on_one_axis(traces)
    detection = detect(gpus)
    states = follow_states(gpus, detection)
    predictions, reason = _predict(gpus, detection) if with_predictions else (None, "")
    first = gpus[0]
    facts = {
        "GPUs": f"{len(gpus)} ({', '.join(sorted({trace.gpu_model or 'model unknown' for trace in gpus}))})",
        "ticks": f"{sum(map(len, gpus)):,}, every {formatting.seconds(first.interval_s)}",
        "duration": formatting.seconds(first.duration_s),
    }
    if first.origin_unix_s is not None:
        facts["first tick"] = formatting.iso_time(round((first.origin_unix_s + float(first.time_s[0])) * 1e9))
    if "generated" in first.attributes:
        facts["generated"] = first.attributes["generated"]
    return _told(title, facts, gpus, detection, states, _goodput(states), predictions, reason, [], ())


def story_of_run(client: Client, run: RunInfo, *, with_predictions: bool) -> RunStory:
    """Tell of a run that a collector has seen, with all GPUs of its job; states and alerts are the collector's.

    Args:
        client: Asks the collector.
        run: The run.
        with_predictions: Whether to ask for its epochs on other GPUs.

    Raises:
        CommandError: No tick of it is left.
        CollectorError: There is no answer.
    """
    jobs = client.list_jobs(job_id=run.job_id or run.run_id)
    job = next((job for job in jobs if any(member.run_id == run.run_id for member in job.members)), None)
    gpus, notes = _read_gpus(client, run, job)
    detection = detect(gpus, running=run.active)
    origin_ns = round((gpus[0].origin_unix_s or 0.0) * 1e9)
    states = [] if job is None else _told_states(job, run, origin_ns)
    events = [
        StoryEvent((at - origin_ns) / 1e9, text)
        for alert in (job.alerts if job else ())
        for at, text in (
            (alert.start_unix_nano, f"alert {alert.state}: {alert.reason}"),
            (alert.end_unix_nano, f"alert {alert.state} is over"),
        )
        if at and run.start_unix_nano - _STARTING_NS < alert.start_unix_nano <= run.end_unix_nano
    ]
    predictions, reason = None, ""
    if with_predictions:
        try:
            predictions = from_answer(client.predict_run(run.run_id))
        except CollectorError as error:
            reason = str(error)
    facts = {
        "run": run.run_id,
        "job": " ".join(filter(None, (run.scheduler, run.job_id))) or "none",
        "host": run.host_name or run.agent_id,
        "GPUs": f"{len(gpus)} ({run.product_name or run.gpu_uuid})",
        "began": formatting.local_time(run.start_unix_nano),
        "ended": "it goes on" if run.active else formatting.local_time(run.end_unix_nano),
        "duration": formatting.seconds((run.end_unix_nano - run.start_unix_nano) / 1e9),
    }
    if job is not None:
        facts["state"] = f"{job.state}: {job.reason}"
        for number, device in enumerate(job.slow_devices, start=1):
            named = "/".join(filter(None, (device.host_name or device.agent_id, device.gpu_uuid)))
            facts[f"drags {number}"] = f"{named}, p {formatting.probability(device.probability)}: {device.evidence}"
    if run.replayed:
        facts["replayed"] = "from a trace"
    goodput = math.nan if job is None else job.goodput_ratio
    title = f"run {run.run_id}" + (f" of job {run.job_id}" if run.job_id else "")
    return _told(title, facts, gpus, detection, states, goodput, predictions, reason, events, notes)


def _told(
    title: str,
    facts: Mapping[str, str],
    gpus: Sequence[Trace],
    detection: EpochDetection,
    states: Sequence[StateSpan],
    goodput_ratio: float,
    predictions: Predictions | None,
    prediction_reason: str,
    events: Sequence[StoryEvent],
    notes: Sequence[str],
) -> RunStory:
    progress = summarise_trace(gpus, detection, None)
    found = sorted([*events, *_errors(gpus), *_changes(detection, progress)], key=lambda event: event.time_s)
    left_out = [f"the first {_MOST_EVENTS} of {len(found)} events are told"] if len(found) > _MOST_EVENTS else []
    warnings = [warning for trace in gpus for warning in trace.warnings]
    return RunStory(
        title, facts, gpus, detection, progress, states, found[:_MOST_EVENTS], goodput_ratio, predictions,
        prediction_reason, list(dict.fromkeys([*notes, *warnings, *detection.warnings, *left_out])),
    )  # fmt: skip


def _read_gpus(client: Client, run: RunInfo, job: JobInfo | None) -> tuple[list[Trace], list[str]]:
    """Read the ticks of a run, and of the other GPUs of its job meanwhile."""
    # One that was put back into the queue had other GPUs before, and others have those meanwhile.
    members = {member.run_id for member in (job.members if job else ())}
    beside = [
        each
        for each in (client.list_runs(job_id=run.job_id) if len(members) > 1 else ())
        if each.run_id in members and each.start_unix_nano <= run.end_unix_nano
        and each.end_unix_nano >= run.start_unix_nano
    ]  # fmt: skip
    uuids = list(dict.fromkeys([run.gpu_uuid, *(each.gpu_uuid for each in reversed(beside))]))
    notes = []
    if len(uuids) > _MOST_GPUS:
        notes.append(f"{_MOST_GPUS} of {len(uuids)} GPUs of the job are told")
        uuids = uuids[:_MOST_GPUS]
    start, end = run.start_unix_nano, run.end_unix_nano + 1
    ticks = run.tick_count * len(uuids)
    if ticks > _MOST_TICKS:
        start = round(end - (end - start) * _MOST_TICKS / ticks)
        notes.append(
            f"the run has about {ticks:,} ticks; those since {formatting.local_time(start)} are told, which leaves"
            f" {formatting.seconds((end - start) / 1e9)}"
        )
    read = [client.read_samples(uuid, start_unix_nano=start, end_unix_nano=end) for uuid in uuids]
    read = [replace(trace, gpu_model=run.product_name) for trace in read if len(trace)]
    if not read:
        raise CommandError("the collector has no tick of that run any more; store.raw_retention says for how long")
    return on_one_axis(read), notes


def _told_states(job: JobInfo, run: RunInfo, origin_ns: int) -> list[StateSpan]:
    """Return what a job did while a run of it went on, and just before: its GPUs begin one after the other.

    What begins where the job's last run ends, with its last activity, is what it ended with.
    """
    first, last = run.start_unix_nano - _STARTING_NS, run.end_unix_nano
    job_last = job.end_unix_nano - _STARTING_NS  # its GPUs end one after the other, too
    spans = [(span.state, span.start_unix_nano, span.end_unix_nano, "", math.nan) for span in job.history]
    if job.end_unix_nano > job.state_unix_nano:
        spans.append((job.state, job.state_unix_nano, job.end_unix_nano, job.reason, job.confidence))
    return [
        StateSpan(
            JobState(state),
            (max(start, first) - origin_ns) / 1e9,
            (max(min(end, last), start) - origin_ns) / 1e9,
            reason,
            confidence,
        )
        for state, start, end, reason, confidence in spans
        if max(start, first) < min(end, last) or (state != JobState.ENDED and start >= last >= job_last)
    ]


def _goodput(states: Sequence[StateSpan]) -> float:
    total = sum(span.end_s - span.start_s for span in states)
    return sum(span.end_s - span.start_s for span in states if span.state in _GOOD) / total if total else math.nan


def _predict(gpus: Sequence[Trace], detection: EpochDetection) -> tuple[Predictions | None, str]:
    """Predict the epochs on as many of each other GPU, or say why not."""
    from gpusonde.catalog import load_gpus, load_offers
    from gpusonde.predictor.crossgpu import LatencyModel
    from gpusonde.simulator.parallel import ParallelPredictor, Placement

    catalog = load_gpus()
    try:
        source = from_traces(gpus, None, None, catalog, detect=lambda: detection)
    except GpusondeError as error:
        return None, str(error)
    measurement, model = source.measurement, LatencyModel.shipped()
    here = source.here or Placement(measurement.gpu)
    targets = [Placement(spec, counted=False) for spec in catalog.specs]
    rows = ParallelPredictor(load_offers().all if here.gpu_count > 1 else ()).predict(model, measurement, here, targets)
    return (
        Predictions(
            measurement.gpu.name,
            measurement.epoch_latency_s,
            rows,
            model.version,
            source.notes,
            source_gpu_count=here.gpu_count,
            source_host_count=here.host_count,
        ),
        "",
    )


def _errors(gpus: Sequence[Trace]) -> list[StoryEvent]:
    """XID errors, as their counter grows."""
    found = []
    for number, trace in enumerate(gpus):
        count = trace.values.get("xid_count")
        if count is None:
            continue
        known = np.flatnonzero(np.isfinite(count))
        grown = np.diff(count[known])
        for place in np.flatnonzero(grown > 0):
            text = f"{formatting.count(int(grown[place]), 'XID error')}"
            found.append(StoryEvent(float(trace.time_s[known[place + 1]]), text, number))
    return found


def _changes(detection: EpochDetection, progress: Progress) -> list[StoryEvent]:
    """Lasting changes of the duration of the epochs."""
    changes = progress.trend["change_points"] if progress.trend else []
    return [
        StoryEvent(
            float(detection.epoch_starts_s[point["epoch"] - 1]),
            f"cycles take {formatting.percent(abs(point['change']))} {'longer' if point['change'] > 0 else 'less'}:"
            f" {formatting.seconds(point['before_s'])} before, {formatting.seconds(point['after_s'])} from here on",
        )
        for point in changes
    ]
