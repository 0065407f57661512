"""``Compactor``: an hour of small segments becomes a few files with row groups of one GPU each.

One step writes one file, row group by row group, so that memory holds one GPU and not a file. Until the catalogue names
it nothing has changed; the transaction that names it takes the rows from the small segments; a small segment without
rows is then removed. A crash at any point leaves one state or the other, and files that the next start removes.
``CpuShare`` keeps the work to its share of a core. Averages are of the ticks as they came; the ticks themselves are
then rounded, unless the store is to be lossless.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.local.catalog import NewSegment, PartRow, SegmentCatalog, SegmentFile
from gpusonde.collector.storage.local.segments import (
    KEY_COLUMNS,
    SegmentKind,
    SegmentPart,
    SpoolNote,
    StoreLayout,
    open_writer,
    quantised_by_size,
    read_errors,
    store_errors,
    write_notes,
)
from gpusonde.collector.storage.samples import (
    TICK_COUNT,
    Samples,
    column_type,
    count_column,
    roll_up,
    rollup_columns,
    round_values,
)
from gpusonde.collector.storage.store import StoreCounters
from gpusonde.errors import StoreCorruptError, StoreError
from gpusonde.service.durable_files import File, FileLayer

_TYPES = {"missed_ticks": pa.int32(), "gpu_uuid": pa.string()}


def tick_schema(metrics: Sequence[str]) -> pa.Schema:
    """Return the columns of a segment of ticks."""
    keys = [(name, _TYPES.get(name, pa.int64())) for name in KEY_COLUMNS]
    return pa.schema([*keys, *((name, pa.from_numpy_dtype(column_type(name))) for name in metrics)])


def second_schema(metrics: Sequence[str]) -> pa.Schema:
    """Return the columns of a segment of averages."""
    keys = [(name, _TYPES.get(name, pa.int64())) for name in KEY_COLUMNS]
    values = [
        (name, pa.int32() if name == count_column(metric) else pa.from_numpy_dtype(column_type(metric)))
        for metric in metrics
        for name in rollup_columns(metric)
    ]
    return pa.schema([*keys, (TICK_COUNT, pa.int32()), *values])


def list_metrics(paths: Iterable[Path]) -> list[str]:
    """Return the metrics of some segments.

    Raises:
        StoreCorruptError: A segment cannot be read.
    """
    names: set[str] = set()
    for path in paths:
        with read_errors(path):
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
        with read_errors(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
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


def roll_up_table(gpu_uuid: str, table: pa.Table, metrics: Sequence[str], schema: pa.Schema) -> pa.Table:
    """Return the averages over seconds of a GPU's ticks."""
    present = [name for name in metrics if table.column(name).null_count < table.num_rows]
    time, spool, sequence, missed = (
        table.column(name).to_numpy().astype(np.int64) for name in KEY_COLUMNS if name != "gpu_uuid"
    )
    samples = Samples(time, spool, sequence, missed, {name: table.column(name).to_numpy() for name in present})
    rows, beside = roll_up(samples)
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


def round_table(table: pa.Table, metrics: Sequence[str]) -> pa.Table:
    """Return a GPU's ticks rounded; null stays null."""
    for name in metrics:
        column = table.column(name)
        if column.null_count < len(column):
            values = round_values(name, column.to_numpy())
            array = pa.array(values, column.type, mask=column.is_null().to_numpy(), from_pandas=False)
            table = table.set_column(table.schema.get_field_index(name), name, array)
    return table


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
        with store_errors(path):
            files.remove(self._temporary)
            self._sink = _SegmentSink(files.create(self._temporary))
        self._writer = open_writer(pa.PythonFile(self._sink, mode="w"), schema, quantised)
        self._row_groups = 0

    @property
    def last_sequences(self) -> dict[int, int]:
        """Spool -> highest sequence written so far."""
        return dict(sorted((part.spool, part.last_sequence) for part in self.parts))

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
        with store_errors(self._path):
            self._writer.write_table(table, row_group_size=table.num_rows)
        self.parts += [replace(part, row_group=self._row_groups) for part in parts]
        self._row_groups += 1
        self.row_count += table.num_rows

    def finish(self, notes: Iterable[SpoolNote]) -> None:
        """Return once the file is there under its name and survives a power loss.

        Args:
            notes: What is known of the spools in it.

        Raises:
            StoreError: The disk refused; ``abandon`` then tidies up.
        """
        with store_errors(self._path):
            write_notes(self._writer, notes)
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
        with store_errors(self._path):
            self._files.remove(self._temporary)
            self._files.remove(self._path)


@dataclass
class _SegmentSink:
    """What Arrow writes to."""

    file: File
    size_bytes: int = 0
    closed: bool = False
    discard: bool = False
    is_open: bool = True

    def write(self, data: bytes) -> int:
        if not self.discard:
            self.file.write(data, self.size_bytes)
        self.size_bytes += len(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def close(self) -> None:
        """Arrow's word that it has written all; the file is still to be synced."""
        self.closed = True

    def close_file(self) -> None:
        if self.is_open:
            self.is_open = False
            self.file.close()


_LOG = logging.getLogger(__name__)
_HOUR_NS = 3600 * 1_000_000_000
# Of one step, where segments are flushed far more often than once a minute.
_MOST_INPUTS = 1000
# GPUs whose way of encoding speaks for all of a file.
_PROBED_GPUS = 3


@dataclass(frozen=True)
class CompactionSizes:
    """How much compaction does at once.

    Attributes:
        file_bytes: Size at which a file is full.
        batch_gpus: GPUs whose rows are in memory together; row groups of flushed segments hold about eight.
        batch_rows: Rows beyond which there are fewer of them.
        step_rows: Rows of one GPU in one file, at most: a backlog that arrived at once is more than an hour of ticks.
        group_rows: Rows of a row group; an hour at 10 Hz fits.
    """

    file_bytes: int = 128 << 20
    batch_gpus: int = 8
    batch_rows: int = 320_000
    step_rows: int = 1_000_000
    group_rows: int = 48_000


class Compactor:
    """Compacts what is due, one file at a time. One thread.

    Args:
        segments: The catalogue of segments.
        layout: Where they lie.
        files: The file layer.
        config: How long after an hour.
        check_space: Raises ``StoreFullError`` when the disk has no room beyond its reserve.
        counters: Counts files and failures.
        wall_clock_ns: Unix time in nanoseconds.
        sizes: How much at once.
    """

    def __init__(
        self,
        segments: SegmentCatalog,
        layout: StoreLayout,
        files: FileLayer,
        config: StoreConfig,
        check_space: Callable[[], None],
        counters: StoreCounters,
        wall_clock_ns: Callable[[], int],
        sizes: CompactionSizes | None = None,
    ) -> None:
        self._segments = segments
        self._layout = layout
        self._files = files
        self._config = config
        self._sizes = sizes or CompactionSizes()
        self._check_space = check_space
        self._counters = counters
        self._wall_clock_ns = wall_clock_ns
        self._unreadable: set[int] = set()

    def configure(self, config: StoreConfig) -> None:
        """Wait as long as a new configuration says from the next file on; callable from any thread."""
        self._config = config

    def step(self, pace: CpuShare, *, everything: bool = False) -> bool:
        """Write one file if anything is due.

        Args:
            pace: Rests between GPUs.
            everything: Compact segments of the current hour too.

        Returns:
            Whether there may be more to do.

        Raises:
            StoreFullError: No room; nothing has changed.
            StoreError: Any other failure, likewise.
            CancelledError: The pace says so; nothing has changed.
        """
        inputs = self._due(everything)
        if not inputs:
            return False
        began = time.monotonic()
        try:
            self._compact(inputs, pace)
        except StoreCorruptError as error:
            self._counters.compaction_failed()
            bad = [s for s in inputs if self._layout.path(s.kind, s.file_name) == error.path]
            if not bad:
                raise
            self._unreadable.update(segment.segment for segment in bad)
            _LOG.error("this segment is not compacted, the others are: %s", error)
        except CancelledError:
            raise
        except Exception:
            self._counters.compaction_failed()
            raise
        else:
            self._counters.compacted(time.monotonic() - began)
        finally:
            # Arrow would keep it for the next hour.
            pa.default_memory_pool().release_unused()
        return True

    def _due(self, everything: bool) -> list[SegmentFile]:
        """Return the small segments of the earliest hour that is over for long enough."""
        waiting = [s for s in self._segments.files(SegmentKind.MINUTE) if s.segment not in self._unreadable]
        if not waiting:
            return []
        hour = waiting[0].created_unix_nano // _HOUR_NS
        due = (hour + 1) * _HOUR_NS + round(self._config.compact_after_s * 1e9)
        if not everything and self._wall_clock_ns() < due:
            return []
        return [segment for segment in waiting if segment.created_unix_nano // _HOUR_NS == hour][:_MOST_INPUTS]

    def _compact(self, inputs: Sequence[SegmentFile], pace: CpuShare) -> None:
        numbers = [segment.segment for segment in inputs]
        gpus = self._segments.gpus_in(numbers)
        if not gpus:
            # Somebody has been at the catalogue; 'gpusonde store fsck' finds it.
            self._unreadable.update(numbers)
            _LOG.error("nothing is known of the rows of %s and others; they are not compacted", inputs[0].file_name)
            return
        metrics = list_metrics(self._layout.path(segment.kind, segment.file_name) for segment in inputs)
        output = _Output(
            self._layout,
            self._files,
            self._new_stem(inputs),
            metrics,
            self._sizes.group_rows,
            lossless=self._config.lossless,
        )
        taken: list[PartRow] = []
        pace.begin()
        try:
            output.open(self._probe(numbers, gpus))
            for batch in self._batches(numbers, gpus):
                tables = gather(self._layout, batch)
                while tables:
                    gpu_uuid = min(tables)
                    output.write(gpu_uuid, tables.pop(gpu_uuid))
                    pace.rest()
                    self._check_space()
                taken += batch
                if output.size_bytes >= self._sizes.file_bytes:
                    break
            ticks, seconds = output.finish(
                min(segment.created_unix_nano for segment in inputs),
                max(s.created_unix_nano for s in inputs),
                self._segments.spool_notes,
            )
        except BaseException:
            output.abandon()
            raise
        try:
            emptied = self._segments.replace(taken, ticks, seconds)
        except StoreError:
            # A commit that failed may have succeeded; while the catalogue does not tell, both sides stay.
            if not self._segments.is_registered(ticks.file_name):
                output.abandon()
            raise
        for kind, file_name in emptied:
            path = self._layout.path(kind, file_name)
            with store_errors(path):
                self._files.remove(path)
        _LOG.debug("%s holds what %d segments held", ticks.file_name, len(emptied))

    def _probe(self, segments: Sequence[int], gpus: Sequence[str]) -> dict[str, pa.Table]:
        """Return the rows of a few GPUs from all over the file to be, to choose encodings by."""
        step = max(1, len(gpus) // _PROBED_GPUS)
        chosen = gpus[step // 2 :: step][:_PROBED_GPUS]
        most = self._sizes.group_rows
        rows = [row for gpu in chosen for row in _limited(self._segments.parts_in(segments, gpu), most)]
        return gather(self._layout, rows)

    def _batches(self, segments: Sequence[int], gpus: Sequence[str]) -> Iterator[list[PartRow]]:
        batch: list[PartRow] = []
        for i, gpu_uuid in enumerate(gpus):
            # The rest of a backlog waits for the next step.
            batch += _limited(self._segments.parts_in(segments, gpu_uuid), self._sizes.step_rows)
            is_full = sum(row.part.row_count for row in batch) >= self._sizes.batch_rows
            if is_full or (i + 1) % self._sizes.batch_gpus == 0:
                yield batch
                batch = []
        if batch:
            yield batch

    def _new_stem(self, inputs: Sequence[SegmentFile]) -> str:
        """Return a name that no file has; steps of the same hour differ in the time at which they are taken."""
        now = self._wall_clock_ns()
        while True:
            stem = f"{inputs[0].created_unix_nano:020d}-{now:020d}"
            made = ((SegmentKind.HOUR, "hour"), (SegmentKind.SECOND, "second"))
            if not any(self._layout.path(kind, f"{stem}.{word}.parquet").exists() for kind, word in made):
                return stem
            now += 1


def _limited(rows: Sequence[PartRow], most_rows: int) -> list[PartRow]:
    """Return the first parts of a GPU, with so many rows at most, but at least one part."""
    limited: list[PartRow] = []
    total = 0
    for row in rows:
        total += row.part.row_count
        if limited and total > most_rows:
            break
        limited.append(row)
    return limited


class _Output:
    """The file of ticks and the file of their averages."""

    def __init__(
        self,
        layout: StoreLayout,
        files: FileLayer,
        stem: str,
        metrics: Sequence[str],
        group_rows: int,
        *,
        lossless: bool,
    ) -> None:
        self._files = files
        self._metrics = metrics
        self._rounded = () if lossless else metrics
        self._group_rows = group_rows
        self._tick_schema = tick_schema(metrics)
        self._second_schema = second_schema(metrics)
        self._names = {SegmentKind.HOUR: f"{stem}.hour.parquet", SegmentKind.SECOND: f"{stem}.second.parquet"}
        self._paths = {kind: layout.path(kind, name) for kind, name in self._names.items()}
        self._outputs: dict[SegmentKind, SegmentOutput] = {}

    @property
    def size_bytes(self) -> int:
        """Bytes of ticks so far."""
        return self._outputs[SegmentKind.HOUR].size_bytes

    def open(self, probed: dict[str, pa.Table]) -> None:
        """Begin both files, encoded as suits the rows of some GPUs."""
        ticks = [fit(gpu_uuid, table, self._tick_schema) for gpu_uuid, table in probed.items()]
        seconds = [
            roll_up_table(gpu_uuid, table, self._metrics, self._second_schema)
            for gpu_uuid, table in zip(probed, ticks, strict=True)
        ]
        for kind, schema, samples in (
            (SegmentKind.HOUR, self._tick_schema, [round_table(table, self._rounded) for table in ticks]),
            (SegmentKind.SECOND, self._second_schema, seconds),
        ):
            values = [name for name in schema.names if name not in KEY_COLUMNS]
            splittable = [name for name in values if pa.types.is_floating(schema.field(name).type)]
            quantised = set(values).difference(splittable) | quantised_by_size(samples, splittable)
            self._outputs[kind] = SegmentOutput(self._files, self._paths[kind], schema, quantised)

    def write(self, gpu_uuid: str, table: pa.Table) -> None:
        """Write the rows of one GPU."""
        fitting = fit(gpu_uuid, table, self._tick_schema)
        for piece, parts in row_groups(gpu_uuid, round_table(fitting, self._rounded), self._group_rows):
            self._outputs[SegmentKind.HOUR].write(piece, parts)
        seconds = roll_up_table(gpu_uuid, fitting, self._metrics, self._second_schema)
        for piece, parts in row_groups(gpu_uuid, seconds, self._group_rows):
            self._outputs[SegmentKind.SECOND].write(piece, parts)

    def finish(
        self,
        created_unix_nano: int,
        newest_unix_nano: int,
        notes_of: Callable[[Mapping[int, int]], Iterable[SpoolNote]],
    ) -> tuple[NewSegment, NewSegment]:
        """Return both files once they survive a power loss; ``notes_of`` tells what they say of their spools."""
        made = []
        for kind, output in self._outputs.items():
            output.finish(notes_of(output.last_sequences))
            made.append(
                NewSegment(
                    self._names[kind],
                    output.size_bytes,
                    output.row_count,
                    created_unix_nano,
                    output.parts,
                    kind,
                    newest_unix_nano,
                )
            )
        ticks, seconds = made
        return ticks, seconds

    def abandon(self) -> None:
        """Throw both away."""
        for output in self._outputs.values():
            output.abandon()


class CpuShare:
    """Rests so long after each piece of work that the work keeps to its share.

    Args:
        share: Share of a core, above 0; 1 never rests.
        stop: Ends the work.
        clock: CPU seconds of the working thread, or whatever else is to be shared.
    """

    def __init__(
        self,
        share: float,
        stop: threading.Event | None = None,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._share = share
        self._stop = stop or threading.Event()
        self._clock = clock
        self._worked_from = clock()

    def begin(self) -> None:
        """Note that work begins now."""
        self._worked_from = self._clock()

    def rest(self) -> None:
        """Rest for what was done since the last rest.

        Raises:
            CancelledError: The work is to end; what is half done is thrown away.
        """
        worked_s = max(0.0, self._clock() - self._worked_from)
        if self._stop.wait(worked_s * (1.0 / self._share - 1.0)):
            raise CancelledError
        self._worked_from = self._clock()


def step_back() -> None:
    """Let the kernel prefer every other thread of the process to the calling one, where it can tell them apart."""
    with contextlib.suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
