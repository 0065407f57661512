"""Samples of one GPU as columns, the feed of what an agent said about it, and rollups of ticks to seconds.

``FeedEntry``: ticks, bindings, what processes did and the end of a source, in the order in which the agent said them.

A row of a rollup is a second of one GPU in which at least one tick lies; rollups are left when the ticks are deleted. A
gauge has its mean, and for how many ticks it is one, because the values of a second may be spread over two files; those
that are sampled at every tick also have the least and the largest value. A counter has its last value. NaN means that
no tick of the second had a value. Ratios, rates and watts are noise in their last digits, which no compression can make
smaller: of them thirteen binary digits are kept, one part in 8,192.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gpusonde.collector.storage.model import Position
from gpusonde.service.wire import Binding, Block, Float64Array, Int64Array, JobActivity
from gpusonde.telemetry import METRIC_BY_NAME, MetricKind, SamplingClass, Unit, metric

Column = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Samples:
    """Ticks of one GPU, column by column.

    Attributes:
        time_unix_nano: Shape (n,).
        spool: Shape (n,); with ``sequence`` the record each tick came in.
        sequence: Shape (n,).
        missed_ticks: Shape (n,); ticks the sampler skipped just before this one.
        columns: Metric -> shape (n,), float32 for gauges and float64 for counters, NaN where there is no value.
        resolution_s: 0 where every tick is as it was sampled; else the width of the widest average among them, in
            seconds, the time being that of its beginning: older ticks are kept as such averages only.
    """

    time_unix_nano: Int64Array
    spool: Int64Array
    sequence: Int64Array
    missed_ticks: Int64Array
    columns: Mapping[str, Column]
    resolution_s: float = 0.0

    def __len__(self) -> int:
        return int(self.time_unix_nano.size)

    def take(self, index: slice | npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Samples:
        """Return the ticks that ``index`` selects."""
        return Samples(
            self.time_unix_nano[index],
            self.spool[index],
            self.sequence[index],
            self.missed_ticks[index],
            {name: column[index] for name, column in self.columns.items()},
            self.resolution_s,
        )

    def between(self, start_unix_nano: int, end_unix_nano: int) -> Samples:
        """Return the ticks with ``start <= time < end``."""
        time = self.time_unix_nano
        if not len(self) or (time.min() >= start_unix_nano and time.max() < end_unix_nano):
            return self
        return self.take((time >= start_unix_nano) & (time < end_unix_nano))

    def after(self, position: Position) -> Samples:
        """Return the ticks of records behind ``position``."""
        spool, sequence = self.spool, self.sequence
        index = (spool > position.spool) | ((spool == position.spool) & (sequence > position.sequence))
        return self if index.all() else self.take(index)

    def through(self, position: Position) -> Samples:
        """Return the ticks of records up to and including ``position``."""
        spool, sequence = self.spool, self.sequence
        index = (spool < position.spool) | ((spool == position.spool) & (sequence <= position.sequence))
        return self if index.all() else self.take(index)

    def matrix(self, metrics: Sequence[str]) -> Float64Array:
        """Return the named columns, shape (metrics, n), NaN for a metric the samples do not have."""
        matrix = np.full((len(metrics), len(self)), np.nan)
        for row, name in zip(matrix, metrics, strict=True):
            if name in self.columns:
                row[:] = self.columns[name]
        return matrix

    @property
    def last_position(self) -> Position:
        """Record of the last tick in order of arrival."""
        return Position(int(self.spool[-1]), int(self.sequence[-1]))


@dataclass(frozen=True)
class StoredBlock:
    """A block and the record it came in."""

    position: Position
    block: Block


def column_type(name: str) -> type[np.float32] | type[np.float64]:
    """Return the type a metric is stored in: float32 does not hold a 64-bit counter."""
    return np.float64 if metric(name).kind is MetricKind.COUNTER else np.float32


def empty_samples(metrics: Iterable[str] = ()) -> Samples:
    """Return no ticks of the named metrics."""
    none = np.empty(0, dtype=np.int64)
    return Samples(none, none, none, none, {name: np.empty(0, dtype=column_type(name)) for name in metrics})


def join_blocks(blocks: Sequence[StoredBlock], metrics: Sequence[str] | None = None) -> Samples:
    """Join blocks of one GPU in their order; ``metrics`` None means every column that any of them has."""
    if not blocks:
        return empty_samples(metrics or ())
    if metrics is None:
        metrics = list(dict.fromkeys(name for stored in blocks for name in stored.block.layout.metrics))
    pieces = [_join(list(same), metrics) for _, same in groupby(blocks, key=lambda stored: stored.block.layout)]
    return concatenate(pieces, metrics)


def concatenate(pieces: Sequence[Samples], metrics: Sequence[str]) -> Samples:
    """Join samples in their order; a metric that a piece does not have is NaN there."""
    if len(pieces) == 1 and all(name in pieces[0].columns for name in metrics):
        return pieces[0]
    if not pieces:
        return empty_samples(metrics)
    return Samples(
        np.concatenate([piece.time_unix_nano for piece in pieces]),
        np.concatenate([piece.spool for piece in pieces]),
        np.concatenate([piece.sequence for piece in pieces]),
        np.concatenate([piece.missed_ticks for piece in pieces]),
        {name: np.concatenate([_column(piece, name) for piece in pieces]) for name in metrics},
        max(piece.resolution_s for piece in pieces),
    )


def sort_by_time(samples: Samples) -> Samples:
    """Sort ticks by time; of several at the same instant the first to arrive stays.

    They are in order already unless a host's clock was set back.
    """
    time = samples.time_unix_nano
    if time.size < 2 or (np.diff(time) > 0).all():
        return samples
    order = np.lexsort((samples.sequence, samples.spool, time))
    ordered = time[order]
    first = np.concatenate(([True], np.diff(ordered) > 0))
    return samples.take(order[first])


def split_by_position(samples: Samples, positions: Sequence[Position]) -> Iterator[Samples]:
    """Cut samples, which are in order of arrival, behind each of the positions; one more piece than positions."""
    rest = samples
    for position in positions:
        yield rest.through(position)
        rest = rest.after(position)
    yield rest


def _column(samples: Samples, name: str) -> Column:
    column = samples.columns.get(name)
    return _nothing(name, len(samples)) if column is None else column


def _nothing(name: str, ticks: int) -> Column:
    return np.full(ticks, np.nan, dtype=column_type(name))


def _join(blocks: Sequence[StoredBlock], metrics: Sequence[str]) -> Samples:
    """Join blocks of one layout."""
    layout = blocks[0].block.layout
    ticks = [stored.block.time_unix_nano.size for stored in blocks]
    values = np.concatenate([stored.block.values for stored in blocks], axis=1)
    missed = np.zeros(sum(ticks), dtype=np.int64)
    missed[np.cumsum([0, *ticks[:-1]])] = [stored.block.missed_ticks for stored in blocks]
    known: dict[str, Column] = dict(zip(layout.metrics, values, strict=True))
    for counter, index in enumerate(layout.counters):
        bases = np.repeat([stored.block.counter_bases[counter] for stored in blocks], ticks)
        known[layout.metrics[index]] = bases + values[index]
    positions = np.array([stored.position for stored in blocks], dtype=np.int64)
    spool, sequence = np.repeat(positions.T, ticks, axis=1)
    return Samples(
        np.concatenate([stored.block.time_unix_nano for stored in blocks]),
        spool,
        sequence,
        missed,
        {name: known[name] if name in known else _nothing(name, sum(ticks)) for name in metrics},
    )


@dataclass(frozen=True)
class TicksEntry:
    """Ticks, in order of arrival."""

    samples: Samples


@dataclass(frozen=True)
class BindingEntry:
    """A job took the GPU or left it."""

    position: Position
    binding: Binding


@dataclass(frozen=True)
class SourceEndEntry:
    """The finite source behind the GPU is exhausted."""

    position: Position


@dataclass(frozen=True)
class ActivityEntry:
    """What the processes on the GPU did, up to about now."""

    position: Position
    activity: JobActivity


Marker: TypeAlias = BindingEntry | SourceEndEntry | ActivityEntry
FeedEntry: TypeAlias = TicksEntry | Marker


def merge_feed(pieces: Iterable[Samples], markers: Iterable[Marker]) -> Iterator[FeedEntry]:
    """Merge ticks with the markers between them; both are in order of arrival, and taken when they are needed."""
    waiting = iter(markers)
    upcoming = next(waiting, None)
    for piece in pieces:
        if not len(piece):
            continue
        due: list[Marker] = []
        while upcoming is not None and upcoming.position <= piece.last_position:
            due.append(upcoming)
            upcoming = next(waiting, None)
        for part, mark in zip(split_by_position(piece, [m.position for m in due]), [*due, None], strict=True):
            if len(part):
                yield TicksEntry(part)
            if mark:
                yield mark
    if upcoming is not None:
        yield upcoming
    yield from waiting


# Drivers count thousandths of a joule; no job shows the same share twice to one part in 8,192.
_STEPS_OF_ONE = {Unit.RATIO: 8192.0, Unit.JOULES: 1024.0}
_BINARY_UNITS = (Unit.BYTES_PER_SECOND, Unit.WATTS)
# Of the 23 digits of a float32 behind the first one.
_DROPPED_DIGITS = 11
SECOND_NS = 1_000_000_000
RESOLUTION_S = 1.0
TICK_COUNT = "tick_count"

Array = npt.NDArray[Any]


def count_column(metric: str) -> str:
    """Return the column that says how many ticks of a second had a value of a gauge."""
    return f"{metric}_ticks"


def min_column(metric: str) -> str:
    """Return the column of the least value."""
    return f"{metric}_min"


def max_column(metric: str) -> str:
    """Return the column of the largest value."""
    return f"{metric}_max"


def rollup_columns(metric: str) -> list[str]:
    """Return the columns that averages of a metric have."""
    known = METRIC_BY_NAME[metric]
    if known.kind is MetricKind.COUNTER:
        return [metric]
    if known.sampling_class is SamplingClass.SLOW:
        return [metric, count_column(metric)]
    return [metric, count_column(metric), min_column(metric), max_column(metric)]


def roll_up(samples: Samples) -> tuple[Samples, dict[str, Array]]:
    """Return one row for every second of ticks in order of arrival, and the columns beside the averages themselves.

    Ticks of a second that other ticks came between (a host's clock was set back) make two rows; reading joins them.
    """
    second = samples.time_unix_nano // SECOND_NS
    begins = np.flatnonzero(np.concatenate(([True], (np.diff(second) != 0) | (np.diff(samples.spool) != 0))))
    ends = np.concatenate((begins[1:], [len(samples)])) - 1
    columns: dict[str, Column] = {}
    beside: dict[str, Array] = {TICK_COUNT: (ends - begins + 1).astype(np.int32)}
    for name, column in samples.columns.items():
        valid = ~np.isnan(column)
        if METRIC_BY_NAME[name].kind is MetricKind.COUNTER:
            columns[name] = round_values(name, _last(column, valid, begins))
            continue
        count = np.add.reduceat(valid, begins, dtype=np.int64)
        with np.errstate(invalid="ignore"):
            total = np.add.reduceat(np.where(valid, column, 0.0), begins, dtype=np.float64)
            columns[name] = round_values(name, (total / np.where(count, count, np.nan)).astype(column_type(name)))
        beside[count_column(name)] = count.astype(np.int32)
        if METRIC_BY_NAME[name].sampling_class is SamplingClass.FAST:
            beside[min_column(name)] = round_values(name, np.fmin.reduceat(column, begins))
            beside[max_column(name)] = round_values(name, np.fmax.reduceat(column, begins))
    rows = Samples(
        second[begins] * SECOND_NS,
        samples.spool[begins],
        samples.sequence[ends],
        np.add.reduceat(samples.missed_ticks, begins),
        columns,
        RESOLUTION_S,
    )
    return rows, beside


def merge_rollups(samples: Samples, counts: Mapping[str, Array]) -> Samples:
    """Join the rows of the same second, which several files may have.

    Args:
        samples: Rows in order of arrival.
        counts: Gauge -> ticks behind each of its averages.
    """
    time = samples.time_unix_nano
    if time.size < 2 or (np.diff(time) > 0).all():
        return samples
    order = np.lexsort((samples.sequence, samples.spool, time))
    ordered = samples.take(order)
    begins = np.flatnonzero(np.concatenate(([True], np.diff(ordered.time_unix_nano) > 0)))
    columns: dict[str, Column] = {}
    for name, column in ordered.columns.items():
        if name not in counts:
            columns[name] = _last(column, ~np.isnan(column), begins)
            continue
        count = counts[name][order]
        weighted = np.add.reduceat(np.where(count > 0, column.astype(np.float64) * count, 0.0), begins)
        total = np.add.reduceat(count, begins)
        columns[name] = (weighted / np.where(total, total, np.nan)).astype(column_type(name))
    return Samples(
        ordered.time_unix_nano[begins],
        ordered.spool[begins],
        ordered.sequence[begins],
        np.add.reduceat(ordered.missed_ticks, begins),
        columns,
        RESOLUTION_S,
    )


def round_values(metric: str, column: Column) -> Column:
    """Round away the digits that are noise, which no compression can make smaller.

    Ratios keep whole percents as they are and else multiples of 1/8,192, joules multiples of 1/1,024, rates and watts
    thirteen binary digits. All others stay.
    """
    unit, exact = METRIC_BY_NAME[metric].unit, column.dtype.type
    if steps := _STEPS_OF_ONE.get(unit):
        rounded: Column = np.round(column * exact(steps)) / exact(steps)
        if unit is Unit.RATIO:
            percent = np.round(column * exact(100)) / exact(100)
            rounded = np.where(column == percent, column, rounded)
    elif unit in _BINARY_UNITS:
        digits = column.astype(np.float32).view(np.int32)
        half = np.int32(1 << (_DROPPED_DIGITS - 1))
        rounded = ((digits + half) & np.int32(-1 << _DROPPED_DIGITS)).view(np.float32)
    else:
        return column
    return np.where(np.isfinite(column), rounded, exact(np.nan))


def _last(column: Column, valid: npt.NDArray[np.bool_], begins: Sequence[int] | Int64Array) -> Column:
    """Return the last value of each group that is one."""
    index = np.maximum.reduceat(np.where(valid, np.arange(column.size), -1), begins)
    # A group without any has an index of another group, or -1.
    return np.where(index >= np.asarray(begins), column[index], np.nan).astype(column.dtype)
