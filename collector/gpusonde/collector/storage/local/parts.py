"""From parts of segments to samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusonde.collector.storage.disk.layout import SegmentKind, StoreLayout
from gpusonde.collector.storage.disk.segment_files import SegmentFiles
from gpusonde.collector.storage.errors import StoreCorruptError
from gpusonde.collector.storage.samples import Column, Samples, column_type, concatenate
from gpusonde.collector.storage.seconds import RESOLUTION_S, count_of, joined
from gpusonde.collector.storage.tables.segment_catalog import PartRow
from gpusonde.telemetry import METRIC_BY_NAME, MetricKind

_KEYS = ("time_unix_nano", "spool", "sequence", "missed_ticks")

Array = npt.NDArray[Any]


def read_ticks(
    files: SegmentFiles, layout: StoreLayout, row: PartRow, metrics: Sequence[str], *, keep: bool = False
) -> Samples:
    """Read the rows of one part in order of arrival; a metric that the segment does not have is left out.

    Args:
        files: Reads segments.
        layout: Where they lie.
        row: The part.
        metrics: Columns.
        keep: Whether the same columns are likely to be read again soon.

    Raises:
        SegmentGoneError: The file is not there.
        StoreCorruptError: It does not hold what was written.
    """
    path = layout.path(row.kind, row.file_name)
    found = files.read(path, row.segment, row.part, [*_KEYS, *metrics], keep=keep)
    return _samples(path, found, metrics, RESOLUTION_S if row.kind is SegmentKind.SECOND else 0.0)


def read_averages(files: SegmentFiles, layout: StoreLayout, rows: Sequence[PartRow], metrics: Sequence[str]) -> Samples:
    """Read averages over seconds of one GPU, each second once.

    Raises:
        SegmentGoneError: A file is not there.
        StoreCorruptError: One does not hold what was written.
    """
    gauges = [name for name in metrics if METRIC_BY_NAME[name].kind is MetricKind.GAUGE]
    pieces: list[Samples] = []
    counts: dict[str, list[Array]] = {name: [] for name in gauges}
    for row in rows:
        path = layout.path(row.kind, row.file_name)
        found = files.read(path, row.segment, row.part, [*_KEYS, *metrics, *map(count_of, gauges)], keep=True)
        pieces.append(_samples(path, found, metrics, RESOLUTION_S))
        for name in gauges:
            counts[name].append(found.get(count_of(name), np.zeros(row.part.row_count, dtype=np.int64)))
    return joined(concatenate(pieces, metrics), {name: np.concatenate(counts[name]) for name in gauges})


def _samples(path: Path, found: dict[str, Array], metrics: Sequence[str], resolution_s: float) -> Samples:
    if any(key not in found for key in _KEYS):
        raise StoreCorruptError(path, f"lacks one of the columns {', '.join(_KEYS)}")
    time, spool, sequence, missed = (found[key].astype(np.int64, copy=False) for key in _KEYS)
    columns: dict[str, Column] = {
        name: found[name].astype(column_type(name), copy=False) for name in metrics if name in found
    }
    return Samples(time, spool, sequence, missed, columns, resolution_s)
