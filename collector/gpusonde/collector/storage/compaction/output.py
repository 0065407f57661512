"""``SegmentOutput``: writes a segment row group by row group, so that memory holds one GPU and not a file."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from gpusonde.collector.storage.disk.encoding import open_writer
from gpusonde.collector.storage.disk.files import FileLayer, OutputFile
from gpusonde.collector.storage.disk.segments import SegmentPart
from gpusonde.collector.storage.errors import naming_full_disks


class SegmentOutput:
    """One new segment file. Nothing of it is seen before ``finish``; without that nothing of it stays.

    Args:
        files: The file layer.
        path: Where the file will be.
        schema: Its columns.
        quantised: Columns to be encoded with a dictionary.
    """

    def __init__(self, files: FileLayer, path: Path, schema: pa.Schema, quantised: Collection[str]) -> None:
        self.parts: list[SegmentPart] = []
        self.row_count = 0
        self._files = files
        self._path = path
        self._temporary = path.with_name(path.name + ".tmp")
        with naming_full_disks(path):
            files.remove(self._temporary)
            self._sink = _Sink(files.create(self._temporary))
        self._writer = open_writer(pa.PythonFile(self._sink, mode="w"), schema, quantised)
        self._row_groups = 0

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._sink.size_bytes

    def write(self, table: pa.Table, parts: Collection[SegmentPart]) -> None:
        """Write a row group.

        Args:
            table: Its rows.
            parts: Whose rows are where in it; their ``row_group`` is filled in here.

        Raises:
            StoreError: The disk refused.
        """
        with naming_full_disks(self._path):
            self._writer.write_table(table, row_group_size=table.num_rows)
        self.parts += [replace(part, row_group=self._row_groups) for part in parts]
        self._row_groups += 1
        self.row_count += table.num_rows

    def finish(self) -> None:
        """Return once the file is there under its name and survives a power loss.

        Raises:
            StoreError: The disk refused; ``abandon`` then tidies up.
        """
        with naming_full_disks(self._path):
            self._writer.close()
            self._sink.file.sync()
            self._sink.close_file()
            self._files.rename(self._temporary, self._path)
            self._files.sync_directory(self._path.parent)

    def abandon(self) -> None:
        """Throw away what was written, also after ``finish``.

        Raises:
            StoreError: The disk refused; the next start removes it.
        """
        self._sink.discard = True
        with contextlib.suppress(pa.ArrowException):  # of a file that is thrown away
            self._writer.close()
        self._sink.close_file()
        with naming_full_disks(self._path):
            self._files.remove(self._temporary)
            self._files.remove(self._path)


@dataclass
class _Sink:
    """What Arrow writes to."""

    file: OutputFile
    size_bytes: int = 0
    closed: bool = False
    discard: bool = False
    is_open: bool = True

    def write(self, data: bytes) -> int:
        if not self.discard:
            self.file.write(data)
        self.size_bytes += len(data)
        return len(data)

    def flush(self) -> None:
        """Nothing to do: nothing is buffered."""

    def close(self) -> None:
        """Arrow's word that it has written all; the file is still to be synced."""
        self.closed = True

    def close_file(self) -> None:
        if self.is_open:
            self.is_open = False
            self.file.close()
