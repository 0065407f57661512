"""``ReadSamples``: one Arrow IPC stream, cut into messages. ``DecimateSamples``: what a picture needs of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from gpusonde.collector.query.runs import END_OF_TIME, find_run, time_range, timestamp
from gpusonde.collector.storage.samples import Samples, column_type
from gpusonde.collector.storage.store import Store, read_windows
from gpusonde.errors import RequestError
from gpusonde.query.v1 import query_pb2
from gpusonde.telemetry import UnknownMetricError, metric

LARGEST_PIECE_BYTES = 1 << 20
# Read at a time: about a megabyte, which is 15 minutes of 27 metrics at 10 Hz; of few metrics some hours.
_WINDOW_NS = 900 * 1_000_000_000
_METRICS_PER_WINDOW = 27
_MOST_WINDOWS = 12
_MOST_DECIMATED = 16
_MOST_BINS = 4000
# Those that say best how busy a GPU is, the best first.
_TELL_LOAD = ("sm_active", "graphics_active", "gpu_utilization", "dram_active", "power_watts")
_LONGEST_DECIMATED_NS = 31 * 86_400 * 1_000_000_000


def stream_samples(store: Store, request: query_pb2.ReadSamplesRequest) -> Iterator[tuple[bytes, float]]:
    """Yield the answer to ``ReadSamples`` in pieces of at most a mebibyte; memory stays bounded however long the range.

    Beside each piece stands the resolution of its samples in seconds, 0 when they are as sampled.

    Raises:
        RequestError: No such GPU, or it has no such metric (``NOT_FOUND``).
        RequestError: No such metric anywhere, or the end comes before the start (``INVALID_ARGUMENT``).
    """
    start, end = time_range(request)
    metrics = _choose_metrics(store, request.gpu_uuid, request.metrics)
    window_ns = _window_ns(len(metrics))
    sink = _StreamBuffer()
    schema = pa.schema(
        [("time_unix_nano", pa.int64()), *((name, pa.from_numpy_dtype(column_type(name))) for name in metrics)]
    )
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema) as writer:
        for window in read_windows(store.samples, request.gpu_uuid, start, end, metrics, window_ns):
            writer.write_batch(_record_batch(window, schema))
            yield from ((piece, window.resolution_s) for piece in sink.take())
    yield from ((piece, 0.0) for piece in sink.take())


def decimate_samples(store: Store, request: query_pb2.DecimateSamplesRequest) -> query_pb2.DecimateSamplesResponse:
    """Answer ``DecimateSamples``; memory stays bounded however long the range.

    Raises:
        RequestError: No such run or GPU, or it has no such metric (``NOT_FOUND``).
        RequestError: No such metric anywhere, none or too many, or times that cannot be (``INVALID_ARGUMENT``).
    """
    gpu_uuid, (start, end) = request.gpu_uuid, time_range(request)
    if request.WhichOneof("subject") == "run_id":
        run = find_run(store.results, request.run_id)
        gpu_uuid = run.gpu_uuid
        start = start if request.HasField("start_time") else run.start_unix_nano
        end = end if request.HasField("end_time") else run.end_unix_nano + 1
    if len(request.metrics) > _MOST_DECIMATED:
        raise RequestError("INVALID_ARGUMENT", f"field 'metrics': at most {_MOST_DECIMATED} are taken at a time")
    metrics = _choose_metrics(store, gpu_uuid, request.metrics)
    if not request.metrics:
        metrics = [next((name for name in _TELL_LOAD if name in metrics), metrics[0])]
    if not 0 < end - start <= _LONGEST_DECIMATED_NS:
        raise RequestError(
            "INVALID_ARGUMENT", "field 'end_time': comes after start_time, by 31 days at most; give both of a GPU"
        )
    count = min(request.bin_count or 1000, _MOST_BINS)
    bins = _Bins(start, end, count, metrics)
    for window in read_windows(store.samples, gpu_uuid, start, end, metrics, _window_ns(len(metrics))):
        bins.add(window)
    response = bins.response(gpu_uuid)
    response.available_metrics.extend(store.facts.metrics(gpu_uuid))
    return response


class _Bins:
    """Least and greatest values in equal bins of time."""

    def __init__(self, start: int, end: int, count: int, metrics: Sequence[str]) -> None:
        self._start, self._end, self._count = start, end, count
        self._first = np.full(count, END_OF_TIME, np.int64)
        self._least = {name: np.full(count, np.nan) for name in metrics}
        self._greatest = {name: np.full(count, np.nan) for name in metrics}
        self._resolution_s = 0.0
        self._interval_ns = 0

    def add(self, window: Samples) -> None:
        """Add ticks, in order of time."""
        time = window.time_unix_nano
        index = np.clip((time - self._start) / (self._end - self._start) * self._count, 0, self._count - 1).astype(int)
        # One slice for each bin that has any tick: the ticks are in order.
        begins = np.flatnonzero(np.diff(index, prepend=-1))
        at = index[begins]
        self._first[at] = np.minimum(self._first[at], time[begins])
        for name, column in window.columns.items():
            self._least[name][at] = np.fmin(self._least[name][at], np.fmin.reduceat(column, begins))
            self._greatest[name][at] = np.fmax(self._greatest[name][at], np.fmax.reduceat(column, begins))
        self._resolution_s = max(self._resolution_s, window.resolution_s)
        if len(time) > 1:
            self._interval_ns = int(np.median(np.diff(time)))

    def response(self, gpu_uuid: str) -> query_pb2.DecimateSamplesResponse:
        """Return the answer, without bins that hold no tick."""
        held = np.flatnonzero(self._first < END_OF_TIME)
        response = query_pb2.DecimateSamplesResponse(
            gpu_uuid=gpu_uuid,
            start_time=timestamp(self._start),
            end_time=timestamp(self._end),
            offset_seconds=(self._first[held] - self._start) / 1e9,
            metrics=[
                query_pb2.MetricExtremes(metric=name, minimums=least[held], maximums=self._greatest[name][held])
                for name, least in self._least.items()
            ],
        )
        if self._resolution_s:
            response.resolution.FromNanoseconds(round(self._resolution_s * 1e9))
        if self._interval_ns:
            response.interval.FromNanoseconds(self._interval_ns)
        return response


def _window_ns(metric_count: int) -> int:
    return _WINDOW_NS * min(max(1, _METRICS_PER_WINDOW // metric_count), _MOST_WINDOWS)


def _choose_metrics(store: Store, gpu_uuid: str, metrics: Sequence[str]) -> list[str]:
    if not gpu_uuid:
        raise RequestError("INVALID_ARGUMENT", "field 'gpu_uuid': is empty; ListRuns ('gpusonde runs') names GPUs")
    available = store.facts.metrics(gpu_uuid)
    if not available:
        raise RequestError("NOT_FOUND", f"no samples of a GPU {gpu_uuid[:80]!r}; ListRuns ('gpusonde runs') names GPUs")
    for name in metrics:
        try:
            metric(name)
        except UnknownMetricError as error:
            raise RequestError("INVALID_ARGUMENT", f"field 'metrics': {error}") from None
        if name not in available:
            raise RequestError("NOT_FOUND", f"GPU {gpu_uuid!r} has no metric {name!r}; it has {', '.join(available)}")
    return list(dict.fromkeys(metrics)) or available


class _StreamBuffer:
    """Collects what Arrow writes."""

    def __init__(self) -> None:
        self.closed = False
        self._buffer = bytearray()

    def write(self, data: bytes) -> int:
        self._buffer += data
        return len(data)

    def flush(self) -> None:
        """Do nothing: the bytes are taken by hand."""

    def close(self) -> None:
        self.closed = True

    def take(self) -> Iterator[bytes]:
        buffer, self._buffer = self._buffer, bytearray()
        for i in range(0, len(buffer), LARGEST_PIECE_BYTES):
            yield bytes(buffer[i : i + LARGEST_PIECE_BYTES])


def _record_batch(samples: Samples, schema: pa.Schema) -> pa.RecordBatch:
    columns = [samples.time_unix_nano, *(samples.columns[name] for name in schema.names[1:])]
    return pa.record_batch(
        [pa.array(column, field.type, from_pandas=False) for column, field in zip(columns, schema, strict=True)],
        schema=schema,
    )
