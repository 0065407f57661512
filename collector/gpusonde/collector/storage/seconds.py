"""Averages over seconds: what is left of ticks once they are deleted.

A row is a second of one GPU in which at least one tick lies. A gauge has its mean, and for how many ticks it is one,
because the values of a second may be spread over two files; those that are sampled at every tick also have the least
and the largest value. A counter has its last value. NaN means that no tick of the second had a value.

Ratios, rates and watts are noise in their last digits, which no compression can make smaller: of them thirteen binary
digits are kept, one part in 8,192.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusonde.collector.records.model import Int64Array
from gpusonde.collector.storage.samples import Column, Samples, column_type
from gpusonde.telemetry import METRIC_BY_NAME, MetricKind, SamplingClass, Unit

_ROUNDED_UNITS = (Unit.RATIO, Unit.BYTES_PER_SECOND, Unit.WATTS)
# Of the 23 digits of a float32 behind the first one.
_DROPPED_DIGITS = 11
SECOND_NS = 1_000_000_000
RESOLUTION_S = 1.0
TICK_COUNT = "tick_count"

Array = npt.NDArray[Any]


def count_of(metric: str) -> str:
    """Return the column that says how many ticks of a second had a value of a gauge."""
    return f"{metric}_ticks"


def least_of(metric: str) -> str:
    """Return the column of the least value."""
    return f"{metric}_min"


def largest_of(metric: str) -> str:
    """Return the column of the largest value."""
    return f"{metric}_max"


def columns_of(metric: str) -> list[str]:
    """Return the columns that averages of a metric have."""
    known = METRIC_BY_NAME[metric]
    if known.kind is MetricKind.COUNTER:
        return [metric]
    if known.sampling_class is SamplingClass.SLOW:
        return [metric, count_of(metric)]
    return [metric, count_of(metric), least_of(metric), largest_of(metric)]


def averages(samples: Samples) -> tuple[Samples, dict[str, Array]]:
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
            columns[name] = _last(column, valid, begins)
            continue
        count = np.add.reduceat(valid, begins, dtype=np.int64)
        with np.errstate(invalid="ignore"):
            total = np.add.reduceat(np.where(valid, column, 0.0), begins, dtype=np.float64)
            columns[name] = _rounded(name, (total / np.where(count, count, np.nan)).astype(column_type(name)))
        beside[count_of(name)] = count.astype(np.int32)
        if METRIC_BY_NAME[name].sampling_class is SamplingClass.FAST:
            beside[least_of(name)] = _rounded(name, np.fmin.reduceat(column, begins))
            beside[largest_of(name)] = _rounded(name, np.fmax.reduceat(column, begins))
    rows = Samples(
        second[begins] * SECOND_NS,
        samples.spool[begins],
        samples.sequence[ends],
        np.add.reduceat(samples.missed_ticks, begins),
        columns,
        RESOLUTION_S,
    )
    return rows, beside


def joined(samples: Samples, counts: Mapping[str, Array]) -> Samples:
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


def _rounded(metric: str, column: Column) -> Column:
    if METRIC_BY_NAME[metric].unit not in _ROUNDED_UNITS:
        return column
    digits = column.astype(np.float32).view(np.int32)
    half = np.int32(1 << (_DROPPED_DIGITS - 1))
    kept = ((digits + half) & np.int32(-1 << _DROPPED_DIGITS)).view(np.float32)
    return np.where(np.isfinite(column), kept, np.float32(np.nan))


def _last(column: Column, valid: npt.NDArray[np.bool_], begins: Sequence[int] | Int64Array) -> Column:
    """Return the last value of each group that is one."""
    index = np.maximum.reduceat(np.where(valid, np.arange(column.size), -1), begins)
    # A group without any has an index of another group, or -1.
    return np.where(index >= np.asarray(begins), column[index], np.nan).astype(column.dtype)
