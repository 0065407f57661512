"""How columns of segments are encoded: split bytes for noise, dictionaries for what recurs, deltas for what counts.

A writer has to be told once for the whole file, so the choice is made on rows of several GPUs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA_VERSION = 1
VERSION_KEY = b"gpusonde.schema_version"
KEY_COLUMNS = ("gpu_uuid", "time_unix_nano", "spool", "sequence", "missed_ticks")

# A column with fewer distinct values than this share of its rows is quantised.
_QUANTISED_SHARE = 0.25
_PROBE_ROWS = 1024
_MOST_PROBED_GROUPS = 4
_DELTA = "DELTA_BINARY_PACKED"
_SPLIT = "BYTE_STREAM_SPLIT"
_COMPRESSION: dict[str, Any] = {"compression": "zstd", "compression_level": 3}


def open_writer(sink: Any, schema: pa.Schema, quantised: Collection[str]) -> pq.ParquetWriter:
    """Open a Parquet file for rows with the key columns and one column per metric.

    Args:
        sink: Where the bytes go.
        schema: Its columns.
        quantised: Columns to be encoded with a dictionary; the other values are split into bytes.
    """
    values = [name for name in schema.names if name not in KEY_COLUMNS]
    return pq.ParquetWriter(
        sink,
        schema.with_metadata({VERSION_KEY: str(SCHEMA_VERSION)}),
        use_dictionary=["gpu_uuid", "missed_ticks", *(name for name in values if name in quantised)],
        column_encoding={
            "time_unix_nano": _DELTA,
            "spool": _DELTA,
            "sequence": _DELTA,
            **{name: _SPLIT for name in values if name not in quantised},
        },
        # Reading goes by the catalogue; these are for others who read the file.
        write_statistics=["gpu_uuid", "time_unix_nano"],
        write_page_checksum=True,
        **_COMPRESSION,
    )


def quantised_by_count(groups: Sequence[pa.Table], names: Sequence[str]) -> set[str]:
    """Return the columns in which few distinct values recur, going by some rows of some groups: quick, for sealing."""
    step = max(1, len(groups) // _MOST_PROBED_GROUPS)
    probed = groups[::step][:_MOST_PROBED_GROUPS]
    return {name for name in names if all(_has_few_values(group.column(name)) for group in probed)}


def quantised_by_size(samples: Sequence[pa.Table], names: Sequence[str]) -> set[str]:
    """Return the columns that come out smaller with a dictionary, going by whole row groups of several GPUs."""
    if not samples:
        return set()
    split = _column_sizes(samples, names, ())
    dictionary = _column_sizes(samples, names, names)
    return {name for name in names if dictionary[name] < split[name]}


def _has_few_values(column: pa.ChunkedArray) -> bool:
    probe = column.slice(0, _PROBE_ROWS)
    return bool(len(probe.unique()) <= max(16, _QUANTISED_SHARE * len(probe)))


def _column_sizes(samples: Sequence[pa.Table], names: Sequence[str], quantised: Collection[str]) -> dict[str, int]:
    sink = pa.BufferOutputStream()
    schema = samples[0].schema
    with open_writer(sink, schema, quantised) as writer:
        for table in samples:
            writer.write_table(table, row_group_size=table.num_rows)
    metadata = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    sizes = dict.fromkeys(names, 0)
    for group in range(metadata.num_row_groups):
        for index, name in enumerate(schema.names):
            if name in sizes:
                sizes[name] += metadata.row_group(group).column(index).total_compressed_size
    return sizes
