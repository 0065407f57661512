"""Parquet segments: a wide table, one column per metric, written once and never changed.

Layout, encodings and their measured size are those of docs/collector.md: rows ordered by GPU and arrival, row groups of
whole GPUs, pages with checksums, zstd. A column is encoded as split bytes where it is noise, with a dictionary where
few values recur, as deltas where it counts; a writer has to be told once for the whole file, so the choice is made on
rows of several GPUs. ``StoreLayout`` says where everything in a data directory lies, ``SegmentFiles`` reads the rows of
one GPU and only the columns that are asked for, ``ByteCache`` keeps what was used last.
"""

from __future__ import annotations

import base64
import errno
import json
import sqlite3
import threading
import zlib
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from gpusonde.collector.storage.samples import Samples, StoredBlock, column_type, join_blocks
from gpusonde.errors import StoreCorruptError, StoreError, StoreFullError

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# For the footers of segments, and as much for columns where nothing else is said.
_CACHE_BYTES = 64 << 20
_V = TypeVar("_V")


class ByteCache(Generic[_V]):
    """A mapping that forgets what was not used for longest; may be used from any thread.

    Args:
        capacity_bytes: Sum of the sizes that are kept; 0 keeps nothing.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._entries: OrderedDict[Hashable, tuple[_V, int]] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of what is kept."""
        return self._size_bytes

    def get(self, key: Hashable) -> _V | None:
        """Return what is kept for a key, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, value: _V, size_bytes: int) -> None:
        """Keep a value; one larger than the whole cache is not kept."""
        if size_bytes > self._capacity_bytes:
            return
        with self._lock:
            if older := self._entries.pop(key, None):
                self._size_bytes -= older[1]
            self._entries[key] = (value, size_bytes)
            self._size_bytes += size_bytes
            while self._size_bytes > self._capacity_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self._size_bytes -= freed


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


_SPOOLS_KEY = "gpusonde.spools"


@dataclass(frozen=True)
class SpoolNote:
    """What a segment says of a spool in it, so that the catalogue can be made anew.

    Attributes:
        spool: The number that its rows carry.
        agent_id: Whose spool it is.
        spool_id: The agent's name of it.
        inventory_sequence: Sequence of the inventory that holds for the last of its records; 0 when there is none.
        inventory: That inventory as it came.
    """

    spool: int
    agent_id: str
    spool_id: str
    inventory_sequence: int = 0
    inventory: bytes = b""


def write_notes(writer: pq.ParquetWriter, notes: Iterable[SpoolNote]) -> None:
    """Put what is known of the spools into the file's footer."""
    rows = [
        [note.spool, note.agent_id, note.spool_id, note.inventory_sequence, base64.b64encode(note.inventory).decode()]
        for note in notes
    ]
    # Inventories of a fleet are much alike.
    packed = zlib.compress(json.dumps(rows).encode())
    writer.add_key_value_metadata({_SPOOLS_KEY: base64.b64encode(packed).decode()})


def read_notes(metadata: pq.FileMetaData) -> list[SpoolNote]:
    """Return what a file says of its spools; older ones say nothing.

    Raises:
        ValueError: It is damaged.
    """
    packed = (metadata.metadata or {}).get(_SPOOLS_KEY.encode())
    if packed is None:
        return []
    try:
        rows = json.loads(zlib.decompress(base64.b64decode(packed)))
        return [
            SpoolNote(spool, agent_id, spool_id, sequence, base64.b64decode(inventory))
            for spool, agent_id, spool_id, sequence, inventory in rows
        ]
    except (zlib.error, LookupError, TypeError) as error:
        raise ValueError(f"what it says of its spools is damaged ({error})") from error


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
    """Return the columns in which few distinct values recur, going by some rows of some groups: quick, for flushing."""
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


class SegmentKind(Enum):
    """What a segment file holds; the members' values are kept in the catalogue."""

    MINUTE = "minute"  # ticks as flushed: all GPUs, a minute or so
    HOUR = "hour"  # ticks after compaction: an hour of arrivals, row groups of one GPU each
    SECOND = "second"  # averages over seconds of the ticks of one hour file


@dataclass(frozen=True)
class StoreLayout:
    """The folders of a data directory.

    Attributes:
        directory: The data directory.
    """

    directory: Path

    @property
    def catalog(self) -> Path:
        """The SQLite catalogue."""
        return self.directory / "catalog.sqlite"

    @property
    def log(self) -> Path:
        """Log parts."""
        return self.directory / "log"

    @property
    def quarantine(self) -> Path:
        """Bytes of refused records."""
        return self.directory / "quarantine"

    @property
    def backup_mark(self) -> Path:
        """Says of a directory that it is the backup of another one, until a collector uses it."""
        return self.directory / "backup.json"

    @property
    def lost_found(self) -> Path:
        """Segments that the catalogue does not know, by the folder in which they were found."""
        return self.directory / "lost+found"

    @property
    def segment_folders(self) -> tuple[Path, ...]:
        """The folders of all kinds of segments."""
        return tuple(self.folder(kind) for kind in SegmentKind)

    def folder(self, kind: SegmentKind) -> Path:
        """Return the folder of one kind of segments."""
        return self.directory / _FOLDERS[kind]

    def path(self, kind: SegmentKind, file_name: str) -> Path:
        """Return where a segment lies."""
        return self.folder(kind) / file_name

    def unused_segment(self, now_unix_nano: int, part: int) -> Path:
        """Return where to put a new segment: a clock that was set back must not lead to a name that is in use."""
        while (path := self.path(SegmentKind.MINUTE, f"{now_unix_nano:020d}-{part:08d}.parquet")).exists():
            now_unix_nano += 1
        return path


_FOLDERS = {SegmentKind.MINUTE: "segments", SegmentKind.HOUR: "hours", SegmentKind.SECOND: "seconds"}

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


def encode_segment(
    blocks: Mapping[str, Sequence[StoredBlock]], notes: Iterable[SpoolNote] = ()
) -> tuple[bytes, list[SegmentPart]]:
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
            samples = join_blocks(stored)
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
    return _write([pa.concat_tables(tables) for tables in groups], metrics, notes), parts


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


def _write(groups: Sequence[pa.Table], metrics: Sequence[str], notes: Iterable[SpoolNote]) -> bytes:
    sink = pa.BufferOutputStream()
    with open_writer(sink, groups[0].schema, quantised_by_count(groups, metrics)) as writer:
        for table in groups:
            writer.write_table(table, row_group_size=table.num_rows)
        write_notes(writer, notes)
    return bytes(sink.getvalue())


_MEBIBYTE = 1 << 20
# Parsed footers take several times their bytes in the file.
_FOOTER_FACTOR = 4

Array = npt.NDArray[Any]


@contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """Turn the errors that mean "no space" into ``StoreFullError``, everything else into ``StoreError``.

    Raises:
        StoreFullError: The file system or SQLite is out of space.
        StoreError: Any other I/O error.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise StoreFullError(f"no space left for {path}; free some") from error
        raise StoreError(f"{path}: {error.strerror or error}") from error
    except sqlite3.OperationalError as error:
        if "full" in str(error):
            raise StoreFullError(f"no space left for {path}; free some") from error
        raise StoreError(f"{path}: {error}") from error


@contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Turn the errors of a segment that cannot be read into ``StoreCorruptError``, which names it."""
    try:
        yield
    except FileNotFoundError as error:
        raise StoreCorruptError(path, "is not there") from error
    except (OSError, IndexError, pa.ArrowException) as error:
        raise StoreCorruptError(path, f"cannot be read ({error})") from error


@dataclass(frozen=True)
class _Footer:
    metadata: pq.FileMetaData
    names: frozenset[str]


class SegmentFiles:
    """Reads parts of segments. Files never change, so what was read stays right; may be used from any thread.

    Args:
        column_bytes: Memory for columns that were read last.
    """

    def __init__(self, column_bytes: int = _CACHE_BYTES) -> None:
        self._footers: ByteCache[_Footer] = ByteCache(_CACHE_BYTES)
        self._columns: ByteCache[Array] = ByteCache(column_bytes)

    def read(
        self, path: Path, segment: int, part: SegmentPart, columns: Sequence[str], *, keep: bool = False
    ) -> dict[str, Array]:
        """Return columns of one GPU in order of arrival; one that the segment does not have is left out.

        Args:
            path: The file.
            segment: Its number in the catalogue, which no other segment ever has.
            part: Where the rows are.
            columns: Names.
            keep: Whether the same columns are likely to be read again soon.

        Raises:
            StoreCorruptError: The file is not there, is no Parquet file, or a page fails its checksum.
        """
        key = (segment, part.row_group, part.first_row)
        found = {name: kept for name in columns if (kept := self._columns.get((*key, name))) is not None}
        missing = [name for name in columns if name not in found]
        if missing:
            for name, column in self._read(path, segment, part, missing).items():
                # A view would keep the columns of all the GPUs in the row group.
                found[name] = np.array(column) if keep else column
                if keep:
                    found[name].flags.writeable = False
                    self._columns.put((*key, name), found[name], found[name].nbytes)
        # Null where this GPU does not measure what another one of the segment does.
        return {name: found[name] for name in columns if name in found and (found[name].size or not part.row_count)}

    def _read(self, path: Path, segment: int, part: SegmentPart, columns: Sequence[str]) -> dict[str, Array]:
        with read_errors(path):
            footer = self._footer(path, segment)
            present = [name for name in columns if name in footer.names]
            with pq.ParquetFile(path, metadata=footer.metadata, page_checksum_verification=True) as file:
                table = file.read_row_group(part.row_group, present or ["time_unix_nano"], use_threads=False)
            table = table.slice(part.first_row, part.row_count)
        if table.num_rows != part.row_count:
            raise StoreCorruptError(path, f"row group {part.row_group} has too few rows")
        arrays = {name: _array(table.column(name)) for name in present}
        return arrays | {name: np.empty(0) for name in columns if name not in arrays}

    def _footer(self, path: Path, segment: int) -> _Footer:
        footer = self._footers.get(segment)
        if footer is None:
            metadata = pq.read_metadata(path)
            footer = _Footer(metadata, frozenset(metadata.schema.names))
            self._footers.put(segment, footer, _FOOTER_FACTOR * metadata.serialized_size)
        return footer


def _array(column: pa.ChunkedArray) -> Array:
    if column.null_count == len(column):
        return np.empty(0)
    array: Array = column.to_numpy()
    return array
