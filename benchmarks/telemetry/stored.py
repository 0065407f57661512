"""What is in a store after a run: every tick once, and how many bytes it takes."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from workload import TICKS_PER_SECOND


@dataclass(frozen=True)
class Stored:
    """What was found.

    Attributes:
        ticks: Rows.
        missing: Records of which nothing is there.
        incomplete: Records with fewer or more ticks than were sent.
        repeated: Ticks that are there more than once.
        segment_bytes: Size of the segments.
    """

    ticks: int
    missing: int
    incomplete: int
    repeated: int
    segment_bytes: int


def examine(store: Path, sequences: dict[str, int], gpus: int) -> Stored:
    """Compare the segments of a stopped collector with what the agents sent.

    The files are read, not the collector's own reader, which would hide what is there twice.

    Args:
        store: The data directory.
        sequences: Agent -> highest sequence; all records but the first are a second of every GPU.
        gpus: GPUs of an agent.
    """
    with sqlite3.connect(store / "catalog.sqlite") as database:
        spools = dict(database.execute("SELECT agent_id, spool FROM spools").fetchall())
        named = [name for (name,) in database.execute("SELECT file_name FROM segments").fetchall()]
    files = [store / "segments" / name for name in named]
    columns = ["spool", "sequence", "gpu_uuid", "time_unix_nano"]
    table = pa.concat_tables([pq.read_table(file, columns=columns) for file in files]).combine_chunks()
    record = (table["spool"].to_numpy().astype(np.int64) << 32) + table["sequence"].to_numpy()
    gpu = table["gpu_uuid"].combine_chunks().dictionary_encode()
    gpu = (gpu.combine_chunks() if isinstance(gpu, pa.ChunkedArray) else gpu).indices.to_numpy().astype(np.int64)
    time_us = (table["time_unix_nano"].to_numpy() - table["time_unix_nano"].to_numpy().min()) // 1000
    distinct = np.unique((gpu << 40) + time_us).size
    keys, counts = np.unique(record, return_counts=True)
    expected = np.concatenate(
        [(spools[agent] << 32) + np.arange(2, last + 1, dtype=np.int64) for agent, last in sequences.items()]
    )
    place = np.minimum(np.searchsorted(keys, expected), keys.size - 1)
    held = np.where(keys[place] == expected, counts[place], 0)
    return Stored(
        ticks=record.size,
        missing=int((held == 0).sum()),
        incomplete=int(((held > 0) & (held != gpus * TICKS_PER_SECOND)).sum()),
        repeated=record.size - distinct,
        segment_bytes=sum(file.stat().st_size for file in files),
    )
