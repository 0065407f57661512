"""Reader of our own Parquet files. pyarrow is imported only here and in the writer, and only when it is needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from gpusonde.errors import TraceError, TraceFormatError, shown
from gpusonde.telemetry.readers.delimited import (
    DEFAULT_MAX_BYTES,
    TimestampParser,
    open_regular,
    unix_scale,
)
from gpusonde.telemetry.readers.records import Records, check_cells
from gpusonde.telemetry.readers.table import (
    TIME_S,
    GpuLabels,
    IntArray,
    Numbers,
    Rows,
    find_columns,
    join_metadata,
    split_by_gpu,
)
from gpusonde.telemetry.trace import (
    PARQUET_KEY,
    FloatArray,
    Trace,
    TraceMetadata,
    from_json,
    no_parquet,
    parse_json,
    too_large,
)

_ROW = "row "
_BATCH_ROWS = 65_536
_PANDAS_INDEX = "__index_level_"


def read_own_parquet(path: str | os.PathLike[str], *, max_bytes: int = DEFAULT_MAX_BYTES) -> list[Trace]:
    """Read the traces of a Parquet file of ours, in the order in which their GPUs first appear.

    Raises:
        OSError: The file cannot be opened.
        TraceFormatError: The file is damaged or not a trace (``line`` is the row, counted from 1), the file or what it
            unpacks to is larger than ``max_bytes``, or pyarrow is not installed.
    """
    return _open(path, max_bytes, _read)


def read_parquet_columns(path: str | os.PathLike[str], *, max_bytes: int = DEFAULT_MAX_BYTES) -> Records:
    """Read all columns of a Parquet file as text under their own names.

    Raises:
        OSError: The file cannot be opened.
        TraceFormatError: As ``read_own_parquet``.
    """
    return _open(path, max_bytes, _read_columns)


def _read_columns(path: str | os.PathLike[str], parquet: Any, max_bytes: int) -> Records:
    check_cells(path, parquet.metadata.num_rows * parquet.metadata.num_columns, max_bytes)
    table = parquet.read()
    cells = {
        name: table.column(name).cast("string").fill_null("").to_pylist()
        for name in table.schema.names
        if not name.startswith(_PANDAS_INDEX)
    }
    if not table.num_rows:
        raise TraceFormatError(path, "the file has no rows; a trace needs at least one tick")
    return Records(path, cells, list(range(1, table.num_rows + 1)))


_Answer = TypeVar("_Answer")


def _open(
    path: str | os.PathLike[str], max_bytes: int, read: Callable[[str | os.PathLike[str], Any, int], _Answer]
) -> _Answer:
    try:
        import pyarrow as pa  # noqa: PLC0415 - optional, and slow to import
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ImportError:
        raise no_parquet(path) from None
    file, _ = open_regular(path, max_bytes)
    with file:
        try:
            return read(path, pq.ParquetFile(file), max_bytes)
        except TraceError:
            raise
        # What pyarrow raises on a damaged file depends on where the damage is.
        except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
            raise TraceFormatError(
                path, f"the Parquet file cannot be read, it is damaged or was cut: {shown(str(error))}"
            ) from None
        except MemoryError:
            raise TraceFormatError(path, "the Parquet file unpacks to more than the memory holds") from None


def _read(path: str | os.PathLike[str], parquet: Any, max_bytes: int) -> list[Trace]:
    schema = parquet.schema_arrow
    header = [name for name in schema.names if not name.startswith(_PANDAS_INDEX)]
    columns = find_columns(path, header, None)
    chosen = [header[index] for index in (columns.time, *columns.keys, *columns.metrics.values())]
    unpacked = parquet.metadata.num_rows * len(chosen) * np.dtype(np.float64).itemsize
    if unpacked > max_bytes:
        raise TraceFormatError(path, too_large(unpacked, max_bytes, "bytes when unpacked"))
    metrics = [columns.column(name, header) for name in columns.metrics]
    for column in metrics:
        _check_numeric(path, schema.field(column.header).type, column.header)
    described = _metadata(path, schema)
    times = _ParquetTimes(path, columns.time_field, schema.field(columns.time_field).type)
    labels = GpuLabels(path)
    codes: list[IntArray] = []
    row = 1
    for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, columns=chosen):
        if not batch.num_rows:
            continue
        rows = range(row, row + batch.num_rows)
        times.add(_column(batch, columns.time_field), rows)
        for column in metrics:
            column.take(Numbers(_floats(_column(batch, column.header)), column.factor, column.divisor), rows)
        codes.append(_codes(labels, [_column(batch, header[index]) for index in columns.keys], rows))
        row += batch.num_rows
    if row == 1:
        raise TraceFormatError(path, "the file has no rows; a trace needs at least one tick")
    time_s, origin_unix_s, attributes = times.finish()
    return split_by_gpu(
        Rows(
            path,
            time_s,
            np.arange(1, row, dtype=np.int64),
            np.concatenate(codes),
            join_metadata(list(labels.codes) or [()], columns, described, origin_unix_s, attributes),
            metrics,
            columns.time_field,
            place=_ROW,
            warnings=columns.warnings,
            exact=bool(described),
        )
    )


def _column(batch: Any, name: str) -> Any:
    return batch.column(batch.schema.get_field_index(name))


def _floats(column: Any) -> FloatArray:
    """Return numbers as float64, nulls as NaN."""
    return np.array(column.cast("float64", safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)


def _check_numeric(path: str | os.PathLike[str], kind: Any, name: str) -> None:
    import pyarrow as pa  # noqa: PLC0415

    types = pa.types
    if not (types.is_floating(kind) or types.is_integer(kind) or types.is_decimal(kind) or types.is_null(kind)):
        raise TraceFormatError(path, f"the column holds {kind}, not numbers; convert it first", field=name)


def _codes(labels: GpuLabels, keys: list[Any], rows: range) -> IntArray:
    """Return the number of the GPU of each row; the keys are strings, or numbers taken as such."""
    if not keys:
        return np.zeros(len(rows), dtype=np.int64)
    texts = [column.cast("string").fill_null("") for column in keys]
    if len(texts) > 1:
        return labels.add(list(zip(*(column.to_pylist() for column in texts), strict=True)), rows)
    # One conversion per GPU instead of per row.
    encoded = texts[0].dictionary_encode()
    numbers = labels.add([(text,) for text in encoded.dictionary.to_pylist()], rows)
    return np.asarray(numbers[encoded.indices.to_numpy(zero_copy_only=False)], dtype=np.int64)


def _metadata(path: str | os.PathLike[str], schema: Any) -> dict[str | None, TraceMetadata]:
    stored = (schema.metadata or {}).get(PARQUET_KEY)
    if stored is None:
        return {}
    try:
        data = parse_json(stored)
        found = [from_json(item) for item in data] if isinstance(data, list) else [from_json(data)]
    except ValueError as error:
        raise TraceFormatError(path, str(error), field=PARQUET_KEY.decode()) from None
    return {one.gpu_uuid: one for one in found}


class _ParquetTimes:
    """Collects the time column, as seconds or as nanoseconds since 1970."""

    def __init__(self, path: str | os.PathLike[str], name: str, kind: Any) -> None:
        import pyarrow as pa  # noqa: PLC0415

        self._path = path
        self._name = name
        self._kind = kind
        self._types = pa.types
        self._scale: int | None = None
        self._parts: list[Any] = []
        self._text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if name == TIME_S or not (self._text or pa.types.is_timestamp(kind)):
            _check_numeric(path, kind, name)
        self._parser = TimestampParser(
            zoned=kind.tz is not None if pa.types.is_timestamp(kind) else not self._text,
        )

    def add(self, column: Any, rows: range) -> None:
        """Take one batch.

        Raises:
            TraceFormatError: A time is missing, not finite or no time stamp.
        """
        if column.null_count:
            first = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise self._error(rows[first], "no time; complete or delete the row")
        if self._name == TIME_S:
            self._parts.append(self._finite(_floats(column), rows))
        elif self._types.is_timestamp(self._kind):
            self._parts.append(column.cast(_timestamp_ns(self._kind)).cast("int64").to_numpy(zero_copy_only=False))
        elif self._text:
            texts = [text.strip() for text in column.to_pylist()]
            self._parts.append(self._parser.parse(texts, self._path, rows, self._name, _ROW))
        else:
            self._parts.append(self._unix(column, rows))

    def _finite(self, values: FloatArray, rows: range) -> FloatArray:
        if not np.isfinite(values).all():
            raise self._error(
                rows[int(np.argmin(np.isfinite(values)))], "not a finite time; complete or delete the row"
            )
        return values

    def _unix(self, column: Any, rows: range) -> IntArray:
        values = self._finite(_floats(column), rows)
        if self._scale is None:
            self._scale = unix_scale(int(abs(values[0])))
        wrong = (values < 0) | (values * self._scale >= float(1 << 63))
        if wrong.any():
            raise self._error(rows[int(np.argmax(wrong))], "not a Unix time between 1970 and 2262")
        if self._types.is_integer(self._kind):
            return np.asarray(column.cast("int64").to_numpy(zero_copy_only=False) * self._scale, dtype=np.int64)
        return np.asarray(np.round(values * self._scale), dtype=np.int64)

    def _error(self, row: int, what: str) -> TraceFormatError:
        return TraceFormatError(self._path, what, line=row, field=self._name, place=_ROW)

    def finish(self) -> tuple[FloatArray, float | None, dict[str, str]]:
        """Return seconds, the Unix time of their origin, and what to say of them."""
        times = np.concatenate(self._parts)
        return (times, None, {}) if self._name == TIME_S else self._parser.seconds(times)


def _timestamp_ns(kind: Any) -> Any:
    import pyarrow as pa  # noqa: PLC0415

    return pa.timestamp("ns", tz=kind.tz)
