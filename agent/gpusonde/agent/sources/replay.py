"""``ReplaySource``: recorded traces instead of hardware, in real time or faster."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpusonde.agent.sources.base import (
    GpuDescription,
    GpuTicks,
    Reading,
    SourceInventory,
    SourceStatistics,
    StaticAttribute,
    StaticOrigin,
    TimeArray,
)
from gpusonde.errors import SourceUnavailableError
from gpusonde.telemetry import METRICS, FloatArray, Metric, MissingReason, Trace

_MAX_TICKS_PER_READ = 500


@dataclass
class _Track:
    """One trace on the replay's axis."""

    due_s: FloatArray  # seconds after the first tick of all traces, divided by the speed
    stamp_ns: TimeArray
    values: FloatArray
    blanks: dict[int, MissingReason]
    position: int = 0


class ReplaySource:
    """Plays traces, each as one GPU.

    The ticks keep the trace's own spacing at every speed. Unless ``keep_time`` is set, the wall-clock stamps are
    rebased so that the last tick of all traces falls on the moment at which it is due: nothing lies in the future, and
    a fast replay looks like a job that has just ended. (Below real time that is impossible; then the first tick is
    now.)

    Args:
        traces: One trace per GPU, on a common time axis.
        speed: Trace seconds per second; ``math.inf`` plays as fast as the spool takes it.
        keep_time: Keep the recorded wall-clock times; every trace must have ``origin_unix_s``.
        monotonic: Seconds; the clock of the deadlines given to :meth:`read`.
        wall_ns: Unix time in nanoseconds.
        new_uuid: Makes the UUID of a trace that has none. It differs per replay, so that two replays are two GPUs.
    """

    name = "replay"

    def __init__(
        self,
        traces: Sequence[Trace],
        *,
        speed: float = 1.0,
        keep_time: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
        new_uuid: Callable[[], str] = lambda: f"REPLAY-{uuid.uuid4()}",
    ) -> None:
        self._traces = tuple(traces)
        self._speed = speed
        self._keep_time = keep_time
        self._monotonic = monotonic
        self._wall_ns = wall_ns
        self._new_uuid = new_uuid
        self.statistics = SourceStatistics()
        self._tracks: list[_Track] = []
        self._start_s = 0.0

    def open(self) -> SourceInventory:
        """Lay the traces on one axis that starts now.

        Raises:
            SourceUnavailableError: No trace, an empty one, a speed that is not positive, or ``keep_time`` without
                recorded wall-clock times.
        """
        self._check()
        columns = tuple(m for m in METRICS if any(m.name in trace.values for trace in self._traces))
        shared_clock = all(trace.origin_unix_s is not None for trace in self._traces)
        origins = [trace.origin_unix_s or 0.0 if shared_clock else 0.0 for trace in self._traces]
        # Differences first: a float64 of Unix seconds holds a quarter of a microsecond at best.
        reference = origins[0]
        first_s = [float(t.time_s[0]) + (o - reference) for t, o in zip(self._traces, origins, strict=True)]
        last_s = [float(t.time_s[-1]) + (o - reference) for t, o in zip(self._traces, origins, strict=True)]
        start_s, duration_s = min(first_s), max(last_s) - min(first_s)
        self._start_s = self._monotonic()
        if self._keep_time:
            base_us = round(reference * 1e6) + round(start_s * 1e6)
        else:
            base_us = self._wall_ns() // 1000 + min(0, math.floor((duration_s / self._speed - duration_s) * 1e6))
        self._tracks = [
            _lay_track(trace, columns, first - start_s, base_us, self._speed)
            for trace, first in zip(self._traces, first_s, strict=True)
        ]
        return SourceInventory(
            source=self.name,
            gpus=tuple(self._describe(index, trace, columns) for index, trace in enumerate(self._traces)),
            metrics=columns,
            interval_s=self._interval_s(),
            can_wait=True,
        )

    def read(self, deadline_s: float) -> Reading | None:
        """Return the ticks due at ``deadline_s``, at most 500 per GPU; None once every trace was played to its end."""
        if all(track.position == track.due_s.size for track in self._tracks):
            return None
        elapsed_s = deadline_s - self._start_s
        ticks: list[GpuTicks] = []
        more = False
        for gpu, track in enumerate(self._tracks):
            due = int(np.searchsorted(track.due_s, elapsed_s, side="right"))
            end = min(due, track.position + _MAX_TICKS_PER_READ)
            if end > track.position:
                part = slice(track.position, end)
                ticks.append(GpuTicks(gpu, track.stamp_ns[part], track.values[:, part], track.blanks))
                track.position = end
            more = more or end < due or (math.isinf(self._speed) and end < track.due_s.size)
        return Reading(tuple(ticks), more=more)

    def progress(self) -> float:
        """Return the share of all ticks that was read."""
        total = sum(track.due_s.size for track in self._tracks)
        return sum(track.position for track in self._tracks) / total if total else 0.0

    def close(self) -> None:
        """Forget the laid-out traces."""
        self._tracks = []

    def _check(self) -> None:
        if not self._traces:
            raise SourceUnavailableError("there is no trace to replay; name a trace file")
        if not self._speed > 0:
            raise SourceUnavailableError(
                f"replay speed {self._speed} is not positive; 1 is real time, 10 ten times faster"
            )
        named = [trace.gpu_uuid for trace in self._traces if trace.gpu_uuid]
        if len(set(named)) < len(named):
            raise SourceUnavailableError("two traces have the same gpu_uuid; give each GPU its own")
        for index, trace in enumerate(self._traces):
            if len(trace) == 0:
                raise SourceUnavailableError(f"trace {index} has no ticks, so there is nothing to replay")
            if self._keep_time and trace.origin_unix_s is None:
                raise SourceUnavailableError(
                    f"trace {index} has no wall-clock times to keep; replay it without keep_time to stamp it now"
                )

    def _interval_s(self) -> float:
        intervals = [trace.interval_s for trace in self._traces if len(trace) > 1]
        return float(np.median(intervals)) if intervals else 0.1

    def _describe(self, index: int, trace: Trace, columns: tuple[Metric, ...]) -> GpuDescription:
        figures = _figures(trace.attributes)
        return GpuDescription(
            gpu_uuid=trace.gpu_uuid or self._new_uuid(),
            gpu_index=index,
            product_name=trace.gpu_model,
            framebuffer_bytes=round(figures.get("memory_bytes", 0.0)),
            static_attributes=tuple(
                StaticAttribute(name, value, StaticOrigin.RECORDED) for name, value in figures.items()
            ),
            missing_metrics={m.name: MissingReason.NOT_FOUND for m in columns if m.name not in trace.values},
            replayed=True,
        )


def _figures(attributes: Mapping[str, str]) -> dict[str, float]:
    """Return the attributes of a trace that are numbers: what a recording kept of the GPU's inventory."""
    figures = {}
    for name, text in attributes.items():
        try:
            value = float(text)
        except ValueError:
            continue
        if math.isfinite(value):
            figures[name] = value
    return figures


def _lay_track(trace: Trace, columns: tuple[Metric, ...], lead_s: float, base_us: int, speed: float) -> _Track:
    relative_s = trace.time_s - trace.time_s[0]
    # Whole microseconds relative to the trace's own first tick: the epoch detector rounds the same way, so that a trace
    # gives the same epochs from its file and through the collector.
    offset_us = np.rint(relative_s * 1e6).astype(np.int64)
    stamp_ns = (base_us + round(lead_s * 1e6) + offset_us) * 1000
    absent = np.full(len(trace), np.nan)
    values = np.stack([trace.values.get(m.name, absent) for m in columns]) if columns else np.empty((0, len(trace)))
    blanks = {i: MissingReason.NOT_FOUND for i, m in enumerate(columns) if m.name not in trace.values}
    return _Track((lead_s + relative_s) / speed, stamp_ns, values, blanks)
