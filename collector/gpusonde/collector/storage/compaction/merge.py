"""From the rows of one GPU in many segments to row groups of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpusonde.collector.storage.disk.encoding import KEY_COLUMNS
from gpusonde.collector.storage.disk.layout import StoreLayout
from gpusonde.collector.storage.disk.segment_files import SegmentGoneError
from gpusonde.collector.storage.disk.segments import SegmentPart
from gpusonde.collector.storage.errors import StoreCorruptError
from gpusonde.collector.storage.samples import Samples, column_type
from gpusonde.collector.storage.seconds import TICK_COUNT, averages, columns_of, count_of
from gpusonde.collector.storage.tables.segment_catalog import PartRow

_TYPES = {"missed_ticks": pa.int32(), "gpu_uuid": pa.string()}


def tick_schema(metrics: Sequence[str]) -> pa.Schema:
    """Return the columns of a segment of ticks."""
    keys = [(name, _TYPES.get(name, pa.int64())) for name in KEY_COLUMNS]
    return pa.schema([*keys, *((name, pa.from_numpy_dtype(column_type(name))) for name in metrics)])


def second_schema(metrics: Sequence[str]) -> pa.Schema:
    """Return the columns of a segment of averages."""
    keys = [(name, _TYPES.get(name, pa.int64())) for name in KEY_COLUMNS]
    values = [
        (name, pa.int32() if name == count_of(metric) else pa.from_numpy_dtype(column_type(metric)))
        for metric in metrics
        for name in columns_of(metric)
    ]
    return pa.schema([*keys, (TICK_COUNT, pa.int32()), *values])


def metrics_of(paths: Iterable[Path]) -> list[str]:
    """Return the metrics of some segments.

    Raises:
        StoreCorruptError: A segment cannot be read.
    """
    names: set[str] = set()
    for path in paths:
        with _naming(path):
            names.update(pq.read_schema(path).names)
    return sorted(names.difference(KEY_COLUMNS))


def gather(layout: StoreLayout, rows: Sequence[PartRow]) -> dict[str, pa.Table]:
    """Return the rows of these parts by GPU, in order of arrival; each file is opened and each row group read once.

    Raises:
        StoreCorruptError: A segment cannot be read, or does not hold what the catalogue says.
    """
    wanted: dict[Path, dict[int, list[int]]] = {}
    for i, row in enumerate(rows):
        wanted.setdefault(layout.path(row.kind, row.file_name), {}).setdefault(row.part.row_group, []).append(i)
    found: list[pa.Table] = [None] * len(rows)
    for path, row_groups_of_file in sorted(wanted.items()):
        with _naming(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
            columns = [name for name in file.schema_arrow.names if name != "gpu_uuid"]
            for row_group, members in row_groups_of_file.items():
                table = file.read_row_group(row_group, columns, use_threads=False)
                for i in members:
                    part = rows[i].part
                    found[i] = table.slice(part.first_row, part.row_count)
                    if found[i].num_rows != part.row_count:
                        raise StoreCorruptError(path, f"row group {row_group} has too few rows")
    by_gpu: dict[str, list[pa.Table]] = {}
    for row, table in zip(rows, found, strict=True):
        by_gpu.setdefault(row.part.gpu_uuid, []).append(table)
    return {
        gpu_uuid: pa.concat_tables(tables, promote_options="default").combine_chunks()
        for gpu_uuid, tables in by_gpu.items()
    }


def fit(gpu_uuid: str, table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a GPU's rows with the columns of a schema, null where they have none."""
    count = table.num_rows
    name_of_all = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, dtype=np.int32)), [gpu_uuid])
    columns = {name: table.column(name) for name in table.column_names} | {"gpu_uuid": name_of_all.cast(pa.string())}
    return pa.table(
        [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in schema],
        schema=schema,
    )


def row_groups(gpu_uuid: str, table: pa.Table, most_rows: int) -> Iterator[tuple[pa.Table, list[SegmentPart]]]:
    """Cut a GPU's rows into pieces of about so many, between records, and say which spool's rows are where."""
    spool, sequence, time = (table.column(name).to_numpy() for name in ("spool", "sequence", "time_unix_nano"))
    changes = np.flatnonzero((np.diff(spool) != 0) | (np.diff(sequence) != 0)) + 1
    begin = 0
    while begin < len(time):
        end = len(time)
        if end - begin > most_rows:
            # The last record that ends within, or the first one where that is longer than all that.
            later = changes[changes > begin]
            within = later[later <= begin + most_rows]
            end = int(within[-1] if within.size else later[0] if later.size else end)
        borders = [begin, *(int(i) for i in np.flatnonzero(np.diff(spool[begin:end])) + begin + 1), end]
        parts = [
            SegmentPart(
                gpu_uuid,
                int(spool[first]),
                0,
                first - begin,
                last - first,
                int(sequence[first:last].min()),
                int(sequence[first:last].max()),
                int(time[first:last].min()),
                int(time[first:last].max()),
            )
            for first, last in pairwise(borders)
        ]
        yield table.slice(begin, end - begin), parts
        begin = end


def averages_of(gpu_uuid: str, table: pa.Table, metrics: Sequence[str], schema: pa.Schema) -> pa.Table:
    """Return the averages over seconds of a GPU's ticks."""
    present = [name for name in metrics if table.column(name).null_count < table.num_rows]
    time, spool, sequence, missed = (
        table.column(name).to_numpy().astype(np.int64) for name in KEY_COLUMNS if name != "gpu_uuid"
    )
    samples = Samples(time, spool, sequence, missed, {name: table.column(name).to_numpy() for name in present})
    rows, beside = averages(samples)
    columns = {
        "time_unix_nano": rows.time_unix_nano,
        "spool": rows.spool,
        "sequence": rows.sequence,
        "missed_ticks": rows.missed_ticks,
        **rows.columns,
        **beside,
    }
    arrays = {name: pa.array(column, schema.field(name).type, from_pandas=False) for name, column in columns.items()}
    return fit(gpu_uuid, pa.table(arrays), schema)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn the errors of a segment that cannot be read into ones that name it."""
    try:
        yield
    except FileNotFoundError as error:
        raise SegmentGoneError(path, "is not there") from error
    except (OSError, IndexError, pa.ArrowException) as error:
        raise StoreCorruptError(path, f"cannot be read ({error})") from error
