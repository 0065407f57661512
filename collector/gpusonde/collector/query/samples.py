"""Samples as one Arrow IPC stream, cut into messages."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from gpusonde.collector.query.runs import nanoseconds
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
_END_OF_TIME = 1 << 62


def stream_samples(store: Store, request: query_pb2.ReadSamplesRequest) -> Iterator[tuple[bytes, float]]:
    """Yield the answer to ``ReadSamples`` in pieces of at most a mebibyte; memory stays bounded however long the range.

    Beside each piece stands the resolution of its samples in seconds, 0 when they are as sampled.

    Raises:
        RequestError: No such GPU, or it has no such metric (``NOT_FOUND``).
        RequestError: No such metric anywhere, or the end comes before the start (``INVALID_ARGUMENT``).
    """
    start = nanoseconds(request.start_time, "start_time") if request.HasField("start_time") else 0
    end = nanoseconds(request.end_time, "end_time") if request.HasField("end_time") else _END_OF_TIME
    # Such a message holds the year 9999, and a store's 64 bits of nanoseconds do not.
    start, end = (min(max(time, 0), _END_OF_TIME) for time in (start, end))
    if end < start:
        raise RequestError("INVALID_ARGUMENT", "field 'end_time': comes before start_time")
    metrics = _choose_metrics(store, request)
    window_ns = _WINDOW_NS * min(max(1, _METRICS_PER_WINDOW // len(metrics)), _MOST_WINDOWS)
    sink = _StreamBuffer()
    schema = pa.schema(
        [("time_unix_nano", pa.int64()), *((name, pa.from_numpy_dtype(column_type(name))) for name in metrics)]
    )
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema) as writer:
        for window in read_windows(store.samples, request.gpu_uuid, start, end, metrics, window_ns):
            writer.write_batch(_record_batch(window, schema))
            yield from ((piece, window.resolution_s) for piece in sink.take())
    yield from ((piece, 0.0) for piece in sink.take())


def _choose_metrics(store: Store, request: query_pb2.ReadSamplesRequest) -> list[str]:
    gpu_uuid = request.gpu_uuid
    available = store.facts.metrics(gpu_uuid)
    if not available:
        raise RequestError("NOT_FOUND", f"no samples of a GPU {gpu_uuid[:80]!r}; ListRuns ('gpusonde runs') names GPUs")
    for name in request.metrics:
        try:
            metric(name)
        except UnknownMetricError as error:
            raise RequestError("INVALID_ARGUMENT", f"field 'metrics': {error}") from None
        if name not in available:
            raise RequestError("NOT_FOUND", f"GPU {gpu_uuid!r} has no metric {name!r}; it has {', '.join(available)}")
    return list(dict.fromkeys(request.metrics)) or available


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
