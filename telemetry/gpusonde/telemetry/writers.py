"""Writing trace files: whole traces at once, or ticks as they come."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpusonde.errors import TraceError, TraceFormatError
from gpusonde.telemetry.metrics import metric
from gpusonde.telemetry.trace import CSV_KEY, PARQUET_KEY, FloatArray, Trace, TraceMetadata, no_parquet

_TIME = "time_s"
_GPU = "gpu_uuid"
_ROW_GROUP_ROWS = 65_536


def write_trace(traces: Trace | Iterable[Trace], path: str | os.PathLike[str]) -> None:
    """Write one or several traces to a CSV or Parquet file, as the name's ending says (``.csv``, ``.parquet``).

    The file appears whole or not at all: it is written beside its place, synced and then renamed. ``read_traces``
    gives the same traces back, every float64 exactly; ``warnings`` are not written.

    Raises:
        TraceError: No trace, one without ticks, two with the same ``gpu_uuid``, or another ending of the name.
        TraceFormatError: Parquet, and pyarrow is not installed.
        OSError: The file cannot be written; an older file of that name is left as it was.
    """
    given = [traces] if isinstance(traces, Trace) else list(traces)
    empty = next((trace for trace in given if not len(trace)), None)
    if empty is not None:
        raise TraceError(f"{os.fspath(path)}: the trace of GPU {empty.gpu_uuid!r} has no ticks; leave it out")
    names = list(dict.fromkeys(name for trace in given for name in trace.metrics))
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    with _errors_naming(target):
        sink = _sink(target, temporary, names, [_metadata(trace, names) for trace in given])
        try:
            for trace in given:
                missing = np.full(len(trace), np.nan)
                sink.write(trace.gpu_uuid, trace.time_s, [trace.values.get(name, missing) for name in names])
            sink.finish()
            temporary.replace(target)
            _sync_folder(target.parent)
        except BaseException:
            sink.abandon()
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def _metadata(trace: Trace, columns: Sequence[str]) -> TraceMetadata:
    known = TraceMetadata.from_trace(trace)
    # Only where the file has columns of other traces: a column that someone adds later belongs to all.
    return replace(known, metrics=None) if list(trace.metrics) == list(columns) else known


class TraceWriter:
    """Writes the ticks of one or several GPUs to a file as they come.

    A CSV file is there from the first tick, and each ``append`` is flushed: a crash costs at most the line being
    written. A Parquet file gets its name only in ``close``; until then it is a hidden file beside it, which a crash
    leaves unreadable and a full disk makes useless, so prefer CSV for recordings that must survive.

    ``with TraceWriter(...) as writer`` closes the file in the end, also after an error: what was recorded is kept.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        metrics: Sequence[str],
        gpus: Sequence[TraceMetadata] = (TraceMetadata(),),
    ) -> None:
        """Take the file (an older one of that name is replaced), its metrics and what is known of each GPU.

        Args:
            path: Ends with ``.csv`` or ``.parquet``.
            metrics: Names of the catalogue, in the order of the rows of ``append``.
            gpus: One entry per GPU; ``gpu_uuid`` tells them apart.

        Raises:
            TraceError: Another ending, no metric, no GPU or two of the same ``gpu_uuid``.
            gpusonde.telemetry.UnknownMetricError: A metric is not in the catalogue.
        """
        self._path = Path(path)
        self._metrics = tuple(metrics)
        self._gpus = tuple(gpus)
        self._last: dict[str, float] = {}
        self._sink: _Sink | None = None
        self._closed = False
        _check(self._path, self._metrics, self._gpus)

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, time_s: npt.ArrayLike, values: npt.ArrayLike, gpu_uuid: str = "") -> None:
        """Write some ticks of one GPU.

        Args:
            time_s: Shape (n,), seconds after the GPU's ``origin_unix_s``, later than all before.
            values: Shape (metrics, n), NaN for no value.
            gpu_uuid: The GPU, one of those given to the constructor.

        Raises:
            TraceError: The shapes do not fit, the GPU is unknown, the times do not increase, or the writer is closed.
            TraceFormatError: Parquet, and pyarrow is not installed.
            OSError: The file cannot be written.
        """
        if self._closed:
            raise TraceError(f"{self._path}: the writer is closed")
        times = np.atleast_1d(np.asarray(time_s, dtype=np.float64))
        block = np.asarray(values, dtype=np.float64)
        if times.ndim != 1 or block.shape != (len(self._metrics), len(times)):
            raise TraceError(
                f"{self._path}: values have shape {block.shape}; {len(times)} ticks of {len(self._metrics)} metrics "
                f"need {(len(self._metrics), len(times))}"
            )
        if gpu_uuid not in {gpu.gpu_uuid for gpu in self._gpus}:
            raise TraceError(f"{self._path}: no GPU {gpu_uuid!r} was announced when the writer was made")
        if not len(times):
            return
        last = self._last.get(gpu_uuid, -math.inf)
        if not np.isfinite(times).all() or (np.diff(times, prepend=last) <= 0).any():
            raise TraceError(f"{self._path}: the times of GPU {gpu_uuid!r} do not increase after {last} s")
        with _errors_naming(self._path):
            self._open().write(gpu_uuid, times, list(block))
        self._last[gpu_uuid] = float(times[-1])

    def close(self) -> None:
        """Finish the file and sync it. A writer without ticks leaves no file. Closing twice does nothing.

        Raises:
            OSError: The file cannot be finished; ticks that reached a CSV file are kept.
        """
        if self._closed:
            return
        self._closed = True
        if self._sink is None:
            return
        with _errors_naming(self._path):
            try:
                self._sink.finish()
                if self._sink.path != self._path:
                    self._sink.path.replace(self._path)
                _sync_folder(self._path.parent)
            except BaseException:
                self._sink.abandon()
                self._remove_useless(self._sink.path)
                raise

    def _remove_useless(self, place: Path) -> None:
        """Remove what nobody can read: a Parquet file without its end, or a file without a byte."""
        with contextlib.suppress(OSError):
            if place != self._path or (place.is_file() and not place.stat().st_size):
                place.unlink()

    def _open(self) -> _Sink:
        if self._sink is None:
            streams = self._path.suffix.lower() == ".csv"
            place = self._path if streams else self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}.tmp")
            self._sink = _sink(self._path, place, self._metrics, self._gpus)
        return self._sink


class _Sink(Protocol):
    """A file that is being written."""

    @property
    def path(self) -> Path:
        """Where it is."""

    def write(self, gpu_uuid: str, time_s: FloatArray, columns: Sequence[FloatArray]) -> None:
        """Write ticks of one GPU."""

    def finish(self) -> None:
        """Write what is held, sync and close."""

    def abandon(self) -> None:
        """Close without finishing."""


def _check(path: Path, metrics: Sequence[str], gpus: Sequence[TraceMetadata]) -> None:
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise TraceError(f"{path}: a trace file ends with .csv or .parquet; choose one of them")
    for name in metrics:
        metric(name)
    uuids = [gpu.gpu_uuid for gpu in gpus]
    if not uuids or len(set(uuids)) != len(uuids):
        raise TraceError(f"{path}: {'two traces have the same gpu_uuid' if uuids else 'no trace'}; give each its own")
    if not metrics:
        raise TraceError(f"{path}: a trace file needs at least one metric")
    if len(set(metrics)) != len(metrics):
        raise TraceError(f"{path}: a metric is named twice")
    for uuid in uuids:
        if uuid != uuid.strip() or not all(character.isprintable() for character in uuid):
            raise TraceError(f"{path}: gpu_uuid {uuid!r} has blanks around it or control characters")


def _sink(target: Path, place: Path, metrics: Sequence[str], gpus: Sequence[TraceMetadata]) -> _Sink:
    _check(target, metrics, gpus)
    if target.suffix.lower() == ".csv":
        return _CsvSink(place, metrics, gpus)
    try:
        return _ParquetSink(place, metrics, gpus)
    except TraceFormatError:
        # The hidden file beside the target is our own affair.
        raise no_parquet(target) from None


class _CsvSink:
    def __init__(self, path: Path, metrics: Sequence[str], gpus: Sequence[TraceMetadata]) -> None:
        self.path = path
        self._named = len(gpus) > 1 or bool(gpus[0].gpu_uuid)
        self._file = path.open("w", encoding="utf-8", newline="")
        for gpu in gpus:
            self._file.write(f"# {CSV_KEY}: {json.dumps(gpu.to_json())}\n")
        self._file.write(",".join([_TIME, *([_GPU] if self._named else []), *metrics]) + "\n")

    def write(self, gpu_uuid: str, time_s: FloatArray, columns: Sequence[FloatArray]) -> None:
        # repr of a Python float is the shortest text that reads back as the same float64.
        texts = [["" if math.isnan(value) else repr(value) for value in column.tolist()] for column in columns]
        times = map(repr, time_s.tolist())
        named = [[_quoted(gpu_uuid)] * len(time_s)] if self._named else []
        self._file.write("".join(",".join(row) + "\n" for row in zip(times, *named, *texts, strict=True)))
        self._file.flush()

    def finish(self) -> None:
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


def _quoted(text: str) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow([text])
    return "" if not text else line.getvalue()


def parquet_schema(metrics: Sequence[str], gpus: Sequence[TraceMetadata] = ()) -> Any:
    """Return the ``pyarrow.Schema`` of a Parquet file of these metrics; it does not change from release to release."""
    import pyarrow as pa  # noqa: PLC0415 - optional, and slow to import

    fields = [(_TIME, pa.float64()), (_GPU, pa.string()), *((name, pa.float64()) for name in metrics)]
    stored = json.dumps([gpu.to_json() for gpu in gpus])
    return pa.schema(fields, metadata={PARQUET_KEY: stored.encode()})


class _ParquetSink:
    def __init__(self, path: Path, metrics: Sequence[str], gpus: Sequence[TraceMetadata]) -> None:
        try:
            import pyarrow as pa  # noqa: PLC0415 - optional, and slow to import
            import pyarrow.parquet as pq  # noqa: PLC0415
        except ImportError:
            raise no_parquet(path) from None
        self.path = path
        self._pa: Any = pa
        self._held: list[Any] = []
        self._held_rows = 0
        self._schema = parquet_schema(metrics, gpus)
        self._file = path.open("wb")
        self._writer = pq.ParquetWriter(self._file, self._schema, compression="zstd")

    def write(self, gpu_uuid: str, time_s: FloatArray, columns: Sequence[FloatArray]) -> None:
        arrays = [self._pa.array(time_s), self._pa.array([gpu_uuid] * len(time_s), self._pa.string())]
        self._held.append(
            self._pa.record_batch([*arrays, *(self._pa.array(column) for column in columns)], schema=self._schema)
        )
        self._held_rows += len(time_s)
        if self._held_rows >= _ROW_GROUP_ROWS:
            self._write_row_group()

    def _write_row_group(self) -> None:
        if self._held:
            self._writer.write_table(self._pa.Table.from_batches(self._held).combine_chunks())
        self._held, self._held_rows = [], 0

    def finish(self) -> None:
        with self._file:
            self._write_row_group()
            self._writer.close()
            self._file.flush()
            os.fsync(self._file.fileno())

    def abandon(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._writer.close()
        with contextlib.suppress(OSError):
            self._file.close()


@contextlib.contextmanager
def _errors_naming(path: Path) -> Iterator[None]:
    """Name the file that the user asked for: a failed write names none, and a temporary file is our own affair."""
    try:
        yield
    except OSError as error:
        error.filename = os.fspath(path)
        raise


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
