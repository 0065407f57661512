"""``SegmentFiles``: reads the rows of one GPU out of segments, and only the columns that are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from gpusonde.collector.storage.disk.byte_cache import ByteCache
from gpusonde.collector.storage.disk.segments import SegmentPart
from gpusonde.collector.storage.errors import StoreCorruptError

_MEBIBYTE = 1 << 20
# Parsed footers take several times their bytes in the file.
_FOOTER_FACTOR = 4

Array = npt.NDArray[Any]


class SegmentGoneError(StoreCorruptError):
    """A segment is not there: compaction or retention has just removed it, or somebody else has."""


@dataclass(frozen=True)
class CacheOptions:
    """How much memory reading may keep.

    Attributes:
        footer_bytes: For the footers of segments.
        column_bytes: For columns that were read last.
    """

    footer_bytes: int = 64 * _MEBIBYTE
    column_bytes: int = 64 * _MEBIBYTE


@dataclass(frozen=True)
class _Footer:
    metadata: pq.FileMetaData
    names: frozenset[str]


class SegmentFiles:
    """Reads parts of segments. Files never change, so what was read stays right; may be used from any thread.

    Args:
        options: Memory for what was read last.
    """

    def __init__(self, options: CacheOptions | None = None) -> None:
        options = options or CacheOptions()
        self._footers: ByteCache[_Footer] = ByteCache(options.footer_bytes)
        self._columns: ByteCache[Array] = ByteCache(options.column_bytes)

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
            SegmentGoneError: The file is not there.
            StoreCorruptError: It is no Parquet file, or a page fails its checksum.
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
        try:
            footer = self._footer(path, segment)
            present = [name for name in columns if name in footer.names]
            with pq.ParquetFile(path, metadata=footer.metadata, page_checksum_verification=True) as file:
                table = file.read_row_group(part.row_group, present or ["time_unix_nano"], use_threads=False)
            table = table.slice(part.first_row, part.row_count)
        except FileNotFoundError as error:
            raise SegmentGoneError(path, "is not there") from error
        except (OSError, IndexError, pa.ArrowException) as error:
            raise StoreCorruptError(path, f"cannot be read ({error})") from error
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
