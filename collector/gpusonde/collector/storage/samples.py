"""Columns of samples of one GPU, as read from the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusonde.collector.records.model import Block, Float64Array, Int64Array, Position
from gpusonde.telemetry import MetricKind, metric

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
        return self.take((spool > position.spool) | ((spool == position.spool) & (sequence > position.sequence)))

    def through(self, position: Position) -> Samples:
        """Return the ticks of records up to and including ``position``."""
        spool, sequence = self.spool, self.sequence
        return self.take((spool < position.spool) | ((spool == position.spool) & (sequence <= position.sequence)))

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


def samples_of(blocks: Sequence[StoredBlock], metrics: Sequence[str] | None = None) -> Samples:
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


def in_order_of_time(samples: Samples) -> Samples:
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
    return np.full(len(samples), np.nan, dtype=column_type(name)) if column is None else column


def _join(blocks: Sequence[StoredBlock], metrics: Sequence[str]) -> Samples:
    """Join blocks of one layout."""
    layout = blocks[0].block.layout
    ticks = [stored.block.time_unix_nano.size for stored in blocks]
    values = np.concatenate([stored.block.values for stored in blocks], axis=1)
    missed = np.zeros(sum(ticks), dtype=np.int64)
    missed[np.cumsum([0, *ticks[:-1]])] = [stored.block.missed_ticks for stored in blocks]
    columns: dict[str, Column] = {}
    for name in metrics:
        if name not in layout.metrics:
            columns[name] = np.full(sum(ticks), np.nan, dtype=column_type(name))
            continue
        index = layout.metrics.index(name)
        if index in layout.counters:
            counter = layout.counters.index(index)
            bases = np.repeat([stored.block.counter_bases[counter] for stored in blocks], ticks)
            columns[name] = bases + values[index]
        else:
            columns[name] = values[index]
    return Samples(
        np.concatenate([stored.block.time_unix_nano for stored in blocks]),
        np.repeat(np.array([stored.position.spool for stored in blocks], dtype=np.int64), ticks),
        np.repeat(np.array([stored.position.sequence for stored in blocks], dtype=np.int64), ticks),
        missed,
        columns,
    )
