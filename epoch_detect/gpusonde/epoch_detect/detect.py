"""``detect``: the cycles and the epochs of a job, from the traces of its GPUs, by any of the detectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from gpusonde.epoch_detect.cycles.analysis import analyse, name_anew
from gpusonde.epoch_detect.cycles.marks import Marks
from gpusonde.epoch_detect.cycles.roles import Told
from gpusonde.epoch_detect.history import CAPACITY, CELLS_TO_SEE, History
from gpusonde.epoch_detect.result import EpochDetection, Verdict, shifted
from gpusonde.epoch_detect.ticks import IntArray, Ticks, average_ticks, select_values, warn_of_holes
from gpusonde.epoch_detect.tracker import EpochTracker
from gpusonde.telemetry import FloatArray, Trace, as_traces

if TYPE_CHECKING:
    from pandas import DataFrame

Mode = Literal["default", "paper", "notebook"]
Engine = Literal["port", "luminol"]
_WATCHED_AT_ONCE = 600  # ticks


def detect(
    traces: Trace | Sequence[Trace] | DataFrame,
    *,
    columns: Sequence[str] | Mapping[str, str] = (),
    told: Told | None = None,
    marks: Marks | None = None,
    running: bool = False,
    mode: Mode = "default",
    metrics: Sequence[str] | None = None,
    engine: Engine = "port",
) -> EpochDetection:
    """Find the cycles of a job, and which of them are its epochs.

    Values are rounded to float32 and times to whole microseconds after the first tick, as they are on the wire, so that
    a file and the same ticks out of the collector give the same answer. Idle around the activity does not matter.

    Args:
        traces: The ticks of one GPU, or of each GPU of one job, whose times count from the same moment unless each says
            from which; or a table of them (``gpusonde.telemetry.as_traces``).
        columns: What columns of other names of such a table are: ``{"util": "gpu_utilization:percent"}``.
        told: What is known of the job; it refutes levels before one of them is chosen.
        marks: What the job's processes did meanwhile, in the first trace's own time; it settles names, and with it the
            framebuffer in the first trace does.
        running: Whether the job goes on; a cycle that the end of the traces cuts off is not counted then.
        mode: ``default`` for our detector; ``paper`` for the published one as its text has it; ``notebook`` for the
            variant in its authors' notebook. The published ones look at the first trace only.
        metrics: Which metrics to use; None for all that tell what the GPU is doing. The published detectors look at
            one metric only: the first one here, or DRAM activity or the nearest thing the trace has.
        engine: For the published detectors: our exact port of Luminol, or the package ``luminol`` itself.

    Returns:
        The detection, in the first trace's own time. Its warnings name a long stretch without ticks.

    Raises:
        gpusonde.telemetry.TraceError: A trace does not hold one of ``metrics``.
        gpusonde.errors.MissingExtraError: The engine ``luminol`` is not installed.
        ValueError: An unknown mode or engine, or no trace.
    """
    if engine not in ("port", "luminol"):
        raise ValueError(f"unknown engine {engine!r}; choose port or luminol")
    job = as_traces(traces, columns)
    if not job:
        raise ValueError("no trace was given; give that of each GPU of the job")
    if mode in ("paper", "notebook"):
        # Its signal processing is slow to import, and most who detect epochs never ask for it.
        from gpusonde.epoch_detect.published.paper import NOTEBOOK, PAPER, detect_with_luminol  # noqa: PLC0415

        found = detect_with_luminol(job[0], PAPER if mode == "paper" else NOTEBOOK, metrics=metrics, engine=engine)
    elif mode == "default":
        found = _detect_cycles(job, metrics, told or Told(), marks, ended=not running)
    else:
        raise ValueError(f"unknown mode {mode!r}; choose default, paper or notebook")
    return replace(found, warnings=(*found.warnings, *warn_of_holes(job[0].time_s)))


def _detect_cycles(
    job: Sequence[Trace], metrics: Sequence[str] | None, told: Told, marks: Marks | None, *, ended: bool
) -> EpochDetection:
    whole, devices, origin = _gather(job, metrics)
    if marks is not None:
        if "framebuffer_used_bytes" in job[0].metrics and not marks.memory_bytes.size:
            marks = marks.with_memory(job[0].time_s, job[0].values["framebuffer_used_bytes"])
        marks = marks.shifted(-origin)
    found = analyse(whole, devices=devices, ended=ended, told=told, marks=marks)
    if ended and whole.merged > 1 and told == Told() and not _is_seen_finely(found, whole):
        found = _watch(job, metrics, marks) or found
    return shifted(found, origin)


def _is_seen_finely(found: EpochDetection, ticks: Ticks) -> bool:
    """Whether no cycle is known of which merged ticks may hide some, or with which they may beat."""
    coarse_s = CELLS_TO_SEE * 1e-6 * float(np.median(np.diff(ticks.time_us)))
    shortest_s = min((cycle.period_s for cycle in found.cycles), default=0.0)
    return found.verdict == Verdict.EPOCHS and (found.period_s < coarse_s or shortest_s > coarse_s)


def _watch(job: Sequence[Trace], metrics: Sequence[str] | None, marks: Marks | None) -> EpochDetection | None:
    """Find the cycles of a long run as one does who watched it: what is short is seen before its ticks are merged."""
    ticks, _, _ = _gather(job, metrics, capacity=None)
    tracker = EpochTracker(ticks.names)
    for begin in range(0, len(ticks), _WATCHED_AT_ONCE):
        part = ticks.slice(begin, begin + _WATCHED_AT_ONCE)
        tracker.update(part.time_us * 1e-6, part.values)
    tracker.finish()
    found = tracker.detection
    if found is None or found.verdict != Verdict.EPOCHS:
        return None
    return found if marks is None else name_anew(found, marks)


def gather_ticks(job: Sequence[Trace], metrics: Sequence[str] | None = None) -> tuple[Ticks, dict[str, Ticks]]:
    """Return the ticks of a job, of several GPUs their mean, and those of each by its name where there are several."""
    return _gather(job, metrics)[:2]


def _gather(
    job: Sequence[Trace], metrics: Sequence[str] | None, capacity: int | None = CAPACITY
) -> tuple[Ticks, dict[str, Ticks], float]:
    if len(job) == 1:
        times = [job[0].time_s]
    else:
        known = [trace.origin_unix_s for trace in job if trace.origin_unix_s is not None]
        later = [(trace.origin_unix_s or 0.0) - known[0] if len(known) == len(job) else 0.0 for trace in job]
        times = [trace.time_s + by for trace, by in zip(job, later, strict=True)]
    origin = min((float(time_s[0]) for time_s in times if time_s.size), default=0.0)
    devices = [_remember(trace, time_s - origin, metrics, capacity) for trace, time_s in zip(job, times, strict=True)]
    if len(devices) == 1:
        return devices[0], {}, origin
    names = [trace.gpu_uuid for trace in job]
    if len(set(names)) < len(names) or not all(names):
        names = [str(number) for number in range(len(job))]
    return average_ticks(devices), dict(zip(names, devices, strict=True)), origin


def _remember(trace: Trace, time_s: FloatArray, metrics: Sequence[str] | None, capacity: int | None) -> Ticks:
    names, values = select_values(trace, metrics)
    if capacity is None:
        return Ticks(_to_microseconds(time_s), values.astype(np.float32), names)
    history = History(names, capacity)
    history.append(_to_microseconds(time_s), values)
    return history.ticks()


def round_to_wire_times(time_s: FloatArray) -> IntArray:
    """Whole microseconds after the first tick, shape (n,)."""
    return _to_microseconds(time_s - time_s[:1])


def _to_microseconds(time_s: FloatArray) -> IntArray:
    times: IntArray = np.round(time_s * 1e6).astype(np.int64)
    return times
