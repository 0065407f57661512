"""A trace for ui.perfetto.dev: cycles and states as slices, metrics as counters, events as instants.

The run is a process: its states are a track, and so is each level of the tree of cycles, below the track of the level
that it is nested in. Each GPU is a process with a counter for each metric. A counter keeps its value until the next
one, so values that repeat the one before are left out. It keeps its value also where ticks or values are missing: such
stretches are instants on a track of the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from gpusonde import formatting
from gpusonde.cli.report.story import RunStory
from gpusonde.epoch_detect import Cycle, EpochDetection
from gpusonde.epoch_detect.ticks import holes
from gpusonde.formats.v1 import perfetto_pb2 as pb
from gpusonde.service.durable_files import write_durably
from gpusonde.telemetry import FloatArray, MetricKind, Trace, Unit, metric

# About 30 bytes each.
MOST_VALUES = 1_000_000
_MOST_TEXT = 300
_SEQUENCE = 1
# A cycle without a next one within this many periods ends by itself: a hole or a stall follows.
_LONGEST_CYCLE = 1.5
_UNITS = {
    Unit.RATIO: "ratio",
    Unit.BYTES: "B",
    Unit.BYTES_PER_SECOND: "B/s",
    Unit.WATTS: "W",
    Unit.JOULES: "J",
    Unit.CELSIUS: "°C",
    Unit.MEGAHERTZ: "MHz",
    Unit.COUNT: "",
    Unit.BITS: "",
}


def write_perfetto(story: RunStory, path: Path) -> list[str]:
    """Write the trace and return what was left out of it.

    Raises:
        OSError: The file cannot be written.
    """
    counters, notes = _thinned(story.gpus)
    tracks = _Tracks(story.gpus[0].origin_unix_s)
    packets = [*_run_packets(story, tracks), *_gpu_packets(story, tracks, counters)]
    write_durably(path, pb.PerfettoTrace(packet=packets).SerializeToString())
    return notes


class _Tracks:
    """Makes tracks and what lies on them; times are nanoseconds, since 1970 where that is known."""

    def __init__(self, origin_unix_s: float | None) -> None:
        self._origin_ns = round((origin_unix_s or 0.0) * 1e9)
        self._tracks = 0

    def process(self, name: str) -> tuple[int, pb.TracePacket]:
        self._tracks += 1
        process = pb.ProcessDescriptor(pid=self._tracks, process_name=_cut(name))
        return self._tracks, _packet(pb.TrackDescriptor(uuid=self._tracks, process=process))

    def track(self, name: str, parent: int, unit: str | None = None) -> tuple[int, pb.TracePacket]:
        self._tracks += 1
        counter = None if unit is None else pb.CounterDescriptor(unit_name=unit)
        track = pb.TrackDescriptor(uuid=self._tracks, name=_cut(name), parent_uuid=parent, counter=counter)
        return self._tracks, _packet(track)

    def slice(self, track: int, begin_s: float, end_s: float, name: str, **told: str) -> Iterator[pb.TracePacket]:
        notes = [pb.DebugAnnotation(name=key, string_value=_cut(value)) for key, value in told.items() if value]
        begin = pb.TRACK_EVENT_TYPE_SLICE_BEGIN
        yield self._event(begin_s, type=begin, track_uuid=track, name=_cut(name), debug_annotations=notes)
        yield self._event(end_s, type=pb.TRACK_EVENT_TYPE_SLICE_END, track_uuid=track)

    def instant(self, track: int, time_s: float, name: str) -> pb.TracePacket:
        return self._event(time_s, type=pb.TRACK_EVENT_TYPE_INSTANT, track_uuid=track, name=_cut(name))

    def values(self, track: int, time_s: FloatArray, values: FloatArray) -> Iterator[pb.TracePacket]:
        counter = pb.TRACK_EVENT_TYPE_COUNTER
        for at, value in zip(time_s.tolist(), values.tolist(), strict=True):
            yield self._event(at, type=counter, track_uuid=track, double_counter_value=value)

    def _event(self, time_s: float, **fields: object) -> pb.TracePacket:
        # Perfetto's times have no sign: what a run without a clock had before its time 0 stands at 0.
        at = max(self._origin_ns + round(time_s * 1e9), 0)
        event = pb.TrackEvent(**fields)  # type: ignore[arg-type]
        return pb.TracePacket(timestamp=at, track_event=event, trusted_packet_sequence_id=_SEQUENCE)


def _packet(track: pb.TrackDescriptor) -> pb.TracePacket:
    return pb.TracePacket(track_descriptor=track, trusted_packet_sequence_id=_SEQUENCE)


def _cut(text: str) -> str:
    text = formatting.printable(text)
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"


def _run_packets(story: RunStory, tracks: _Tracks) -> Iterator[pb.TracePacket]:
    run, packet = tracks.process(story.title)
    yield packet
    states, packet = tracks.track("states", run)
    yield packet
    for span in story.states:
        yield from tracks.slice(states, span.start_s, span.end_s, str(span.state), reason=span.reason)
    events, packet = tracks.track("events", run)
    yield packet
    for event in story.events:
        where = "" if event.gpu is None else f"{_gpu_name(story.gpus, event.gpu)}: "
        yield tracks.instant(events, event.time_s, f"{where}{event.text}")
    # Longer levels first: a track is described before those below it.
    ids: dict[int, int] = {}
    levels = story.detection.cycles
    for index in sorted(range(len(levels)), key=lambda i: -levels[i].period_s):
        level = levels[index]
        name = "cycle" if level.role == "unknown" else str(level.role)
        parent = run if level.parent is None else ids.get(level.parent, run)
        ids[index], packet = tracks.track(f"{name}, {formatting.seconds(level.period_s)}", parent)
        yield packet
        told = {"confidence": formatting.probability(level.confidence)}
        for number, (begin, end) in enumerate(_cycles(story.detection, index, level, story.end_s), start=1):
            yield from tracks.slice(ids[index], begin, end, f"{name} {number}", **told)


def _cycles(detection: EpochDetection, index: int, level: Cycle, end_s: float) -> Iterator[tuple[float, float]]:
    """Begin and end of each cycle of a level; those of the one that is told are the epochs."""
    if index == detection.level and detection.epoch_starts_s.size:
        yield from zip(detection.epoch_starts_s.tolist(), detection.epoch_ends_s.tolist(), strict=True)
        return
    starts = level.starts_s.tolist()
    for begin, following in zip(starts, [*starts[1:], np.inf], strict=True):
        end = following if following - begin <= _LONGEST_CYCLE * level.period_s else begin + level.period_s
        if min(end, end_s) > begin:
            yield begin, min(end, end_s)


def _gpu_name(gpus: Sequence[Trace], number: int) -> str:
    return gpus[number].gpu_uuid or f"GPU {number}"


_Counter = tuple[int, str, FloatArray, FloatArray]  # place of the GPU, metric, times, values


def _gpu_packets(story: RunStory, tracks: _Tracks, counters: Sequence[_Counter]) -> Iterator[pb.TracePacket]:
    for number, trace in enumerate(story.gpus):
        model = f" ({trace.gpu_model})" if trace.gpu_model else ""
        gpu, packet = tracks.process(f"{_gpu_name(story.gpus, number)}{model}")
        yield packet
        missing, packet = tracks.track("no value", gpu)
        yield packet
        for at, text in sorted(_missing(trace)):
            yield tracks.instant(missing, at, text)
        for name, time_s, values in [of[1:] for of in counters if of[0] == number]:
            counter, packet = tracks.track(name, gpu, _UNITS[metric(name).unit])
            yield packet
            yield from tracks.values(counter, time_s, values)


def _missing(trace: Trace) -> Iterator[tuple[float, str]]:
    """When ticks, or values of one metric, begin to be missing for longer than usual, and for how long."""
    without_ticks = {begin for begin, _ in _holes(trace.time_s)}
    for begin, length in _holes(trace.time_s):
        yield begin, f"no tick for {length}"
    for name, values in trace.values.items():
        for begin, length in _holes(trace.time_s[np.isfinite(values)]):
            if begin not in without_ticks:
                yield begin, f"{name}: no value for {length}"


def _holes(time_s: FloatArray) -> list[tuple[float, str]]:
    steps = np.diff(time_s)
    if not steps.size:
        return []
    return [(float(time_s[at]), formatting.duration(float(steps[at]))) for at in np.flatnonzero(holes(steps)).tolist()]


def _thinned(gpus: Sequence[Trace]) -> tuple[list[_Counter], list[str]]:
    """What changes in every metric; where that is too much, what changes in means over several ticks."""
    width, changes = 1, _changes_of(gpus, 1)
    total = sum(values.size for *_, values in changes)
    if total <= MOST_VALUES:
        return changes, []
    width = -(-total // MOST_VALUES)
    changes = _changes_of(gpus, width)
    kept = sum(values.size for *_, values in changes)
    return changes, [f"{kept:,} of {total:,} values of metrics are in the file: means over {width} ticks"]


def _changes_of(gpus: Sequence[Trace], width: int) -> list[_Counter]:
    found = []
    for number, trace in enumerate(gpus):
        for name, values in trace.values.items():
            known = np.isfinite(values)
            time_s, told = trace.time_s[known][::width], values[known]
            # What only grows is as it stood.
            told = told[::width] if metric(name).kind is MetricKind.COUNTER else _means(told, width)
            news = np.append(True, told[1:] != told[:-1])[: told.size]
            found.append((number, name, time_s[news], told[news]))
    return found


def _means(values: FloatArray, width: int) -> FloatArray:
    """Means of each ``width`` values, the last of which may be fewer."""
    begins = np.arange(0, values.size, width)
    sums: FloatArray = np.add.reduceat(values, begins) if values.size else values
    return sums / np.diff(np.append(begins, values.size))
