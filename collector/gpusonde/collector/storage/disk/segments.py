"""Parquet segments: a wide table, one column per metric, written once and never changed.

Layout, encodings and their measured size are those of docs/collector.md: rows ordered by GPU and arrival, row groups of
whole GPUs, byte-stream split for noisy columns, dictionaries for quantised ones, deltas for times and sequences, zstd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpusonde.collector.storage.errors import StoreCorruptError
from gpusonde.collector.storage.samples import (
    Column,
    Samples,
    StoredBlock,
    column_type,
    empty_samples,
    samples_of,
)

SCHEMA_VERSION = 1
_VERSION_KEY = b"gpusonde.schema_version"
# Small row groups pay a footer each, large ones are read for the sake of one GPU; 60 s of 8 GPUs at 10 Hz fit.
_ROWS_PER_GROUP = 4800
# A column with fewer distinct values than this share of its rows is quantised.
_QUANTISED_SHARE = 0.25
_PROBE_ROWS = 1024
_DELTA = "DELTA_BINARY_PACKED"


@dataclass(frozen=True)
class SegmentPart:
    """The rows of one GPU and spool in a segment.

    Attributes:
        gpu_uuid: The GPU.
        spool: The spool.
        row_group: Row group that holds all the rows.
        first_row: First row inside the row group.
        row_count: Number of rows.
        first_sequence: Lowest record sequence.
        last_sequence: Highest record sequence.
        start_unix_nano: Earliest tick.
        end_unix_nano: Latest tick.
    """

    gpu_uuid: str
    spool: int
    row_group: int
    first_row: int
    row_count: int
    first_sequence: int
    last_sequence: int
    start_unix_nano: int
    end_unix_nano: int


def encode_segment(blocks: Mapping[str, Sequence[StoredBlock]]) -> tuple[bytes, list[SegmentPart]]:
    """Return the Parquet file of these blocks (GPU -> blocks in order of arrival) and where each GPU's rows are."""
    metrics = sorted({name for stored in blocks.values() for item in stored for name in item.block.layout.metrics})
    parts: list[SegmentPart] = []
    groups: list[list[pa.Table]] = [[]]
    rows = 0
    for gpu_uuid in sorted(blocks):
        for spool, stored in _by_spool(blocks[gpu_uuid]).items():
            if rows >= _ROWS_PER_GROUP:
                groups.append([])
                rows = 0
            samples = samples_of(stored)
            parts.append(
                SegmentPart(
                    gpu_uuid,
                    spool,
                    len(groups) - 1,
                    rows,
                    len(samples),
                    stored[0].position.sequence,
                    stored[-1].position.sequence,
                    int(samples.time_unix_nano.min()),
                    int(samples.time_unix_nano.max()),
                )
            )
            groups[-1].append(_table(gpu_uuid, samples, metrics))
            rows += len(samples)
    return _write([pa.concat_tables(tables) for tables in groups], metrics), parts


def read_segment_part(path: Path, part: SegmentPart, metrics: Sequence[str]) -> Samples:
    """Read the rows of one GPU in order of arrival; a metric that the segment does not have is left out.

    Raises:
        StoreCorruptError: The file is gone, is no Parquet file, or a page fails its checksum.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            present = [name for name in metrics if name in file.schema_arrow.names]
            table = file.read_row_group(
                part.row_group, ["time_unix_nano", "spool", "sequence", "missed_ticks", *present]
            ).slice(part.first_row, part.row_count)
    except (OSError, pa.ArrowException) as error:
        raise StoreCorruptError(path, f"cannot be read ({error})") from error
    if table.num_rows != part.row_count:
        raise StoreCorruptError(path, f"row group {part.row_group} has too few rows")
    if part.row_count == 0:
        return empty_samples(present)
    columns: dict[str, Column] = {}
    for name in present:
        column = table.column(name)
        # Null where this GPU does not measure what another one of the segment does.
        if column.null_count < len(column):
            columns[name] = column.to_numpy().astype(column_type(name), copy=False)
    time, spool, sequence, missed = (
        table.column(name).to_numpy().astype(np.int64)
        for name in ("time_unix_nano", "spool", "sequence", "missed_ticks")
    )
    return Samples(time, spool, sequence, missed, columns)


def _by_spool(blocks: Sequence[StoredBlock]) -> dict[int, list[StoredBlock]]:
    grouped: dict[int, list[StoredBlock]] = {}
    for stored in blocks:
        grouped.setdefault(stored.position.spool, []).append(stored)
    return dict(sorted(grouped.items()))


def _table(gpu_uuid: str, samples: Samples, metrics: Sequence[str]) -> pa.Table:
    count = len(samples)
    columns = {
        "gpu_uuid": pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, dtype=np.int32)), [gpu_uuid]).cast(
            pa.string()
        ),
        "time_unix_nano": pa.array(samples.time_unix_nano),
        "spool": pa.array(samples.spool),
        "sequence": pa.array(samples.sequence),
        "missed_ticks": pa.array(samples.missed_ticks.astype(np.int32)),
    }
    for name in metrics:
        column = samples.columns.get(name)
        kind = pa.from_numpy_dtype(column_type(name))
        # NaN is "no value this time", null is "this GPU does not have the metric".
        columns[name] = pa.nulls(count, kind) if column is None else pa.array(column, kind, from_pandas=False)
    return pa.table(columns)


def _write(groups: Sequence[pa.Table], metrics: Sequence[str]) -> bytes:
    quantised = [name for name in metrics if _is_quantised(groups[0].column(name))]
    noisy = [name for name in metrics if name not in quantised]
    schema = groups[0].schema.with_metadata({_VERSION_KEY: str(SCHEMA_VERSION)})
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=3,
        use_dictionary=["gpu_uuid", "missed_ticks", *quantised],
        column_encoding={
            "time_unix_nano": _DELTA,
            "spool": _DELTA,
            "sequence": _DELTA,
            **dict.fromkeys(noisy, "BYTE_STREAM_SPLIT"),
        },
        write_page_checksum=True,
    ) as writer:
        for table in groups:
            writer.write_table(table.replace_schema_metadata(schema.metadata), row_group_size=table.num_rows)
    return bytes(sink.getvalue())


def _is_quantised(column: pa.ChunkedArray) -> bool:
    """Whether few distinct values recur: then a dictionary is far smaller than the split bytes of the floats."""
    probe = column.slice(0, _PROBE_ROWS)
    return bool(len(probe.unique()) <= max(16, _QUANTISED_SHARE * len(probe)))
