"""Parquet segments: a wide table, one column per metric, written once and never changed.

Layout, encodings and their measured size are those of docs/collector.md: rows ordered by GPU and arrival, row groups of
whole GPUs, pages with checksums, zstd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gpusonde.collector.storage.disk.encoding import open_writer, quantised_by_count
from gpusonde.collector.storage.samples import Samples, StoredBlock, column_type, samples_of

# Small row groups pay a footer each, large ones are read for the sake of one GPU; 60 s of 8 GPUs at 10 Hz fit.
_ROWS_PER_GROUP = 4800


@dataclass(frozen=True)
class SegmentPart:
    """The rows of one GPU and spool in one row group of a segment.

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
    sink = pa.BufferOutputStream()
    with open_writer(sink, groups[0].schema, quantised_by_count(groups, metrics)) as writer:
        for table in groups:
            writer.write_table(table, row_group_size=table.num_rows)
    return bytes(sink.getvalue())
