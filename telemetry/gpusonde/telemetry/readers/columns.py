"""Which columns of our own CSV and Parquet files mean what."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpusonde.telemetry.errors import TraceFormatError, shown
from gpusonde.telemetry.metadata import TraceMetadata
from gpusonde.telemetry.metrics import METRIC_BY_NAME

TIME_S = "time_s"
TIMESTAMP = "timestamp"
GPU_UUID = "gpu_uuid"
TRACE_ID = "trace_id"
_KNOWN = (TIME_S, TIMESTAMP, GPU_UUID, TRACE_ID)
_SHOWN_COLUMNS = 8


@dataclass(frozen=True)
class Layout:
    """Positions of the columns that matter.

    Attributes:
        time: Position of the time column.
        time_field: Its name, ``time_s`` or ``timestamp``.
        keys: Positions of the columns that tell traces apart: ``trace_id`` and ``gpu_uuid``, where they are there.
        has_gpu_uuid: Whether the last of the keys is ``gpu_uuid``.
        metrics: Metric name to position, in the file's order.
        warnings: Columns left out.
    """

    time: int
    time_field: str
    keys: tuple[int, ...]
    has_gpu_uuid: bool
    metrics: dict[str, int]
    warnings: tuple[str, ...]


def layout(path: str | os.PathLike[str], header: Sequence[str], line: int | None) -> Layout:
    """Find the columns of a trace in a header.

    Raises:
        TraceFormatError: A name stands twice, or there is no time or no metric.
    """
    positions: dict[str, int] = {}
    unknown = []
    for index, name in enumerate(header):
        if name in METRIC_BY_NAME or name in _KNOWN:
            if name in positions:
                raise TraceFormatError(path, "the column is there twice; rename or remove one", line=line, field=name)
            positions[name] = index
        else:
            unknown.append(name)
    time_field = TIME_S if TIME_S in positions else TIMESTAMP
    if time_field not in positions:
        raise TraceFormatError(
            path,
            "no time column; a trace needs time_s (seconds) or timestamp (ISO 8601 or Unix time), "
            f"this header begins with {shown(', '.join(header))}",
            line=line,
        )
    metrics = {name: index for name, index in positions.items() if name in METRIC_BY_NAME}
    if not metrics:
        raise TraceFormatError(
            path,
            f"no column is a metric (found {shown(', '.join(header))}); name columns as in the catalogue, "
            "such as gpu_utilization or power_watts",
            line=line,
        )
    warnings = []
    if unknown:
        warnings.append(left_out(unknown))
    if time_field == TIME_S and TIMESTAMP in positions:
        warnings.append("the column timestamp was left out: time_s gives the times")
    return Layout(
        positions[time_field],
        time_field,
        tuple(positions[name] for name in (TRACE_ID, GPU_UUID) if name in positions),
        GPU_UUID in positions,
        metrics,
        tuple(warnings),
    )


def gpus_of(
    keys: Sequence[tuple[str, ...]],
    columns: Layout,
    described: Mapping[str | None, TraceMetadata],
    origin_unix_s: float | None,
    attributes: Mapping[str, str],
) -> list[TraceMetadata]:
    """Join what the rows' keys and the file's metadata (by ``gpu_uuid``; None: of all) say of each trace."""
    gpus = []
    for key in keys:
        uuid = key[-1] if key else ""
        known = described.get(uuid)
        if known is None:
            common = described.get(None, TraceMetadata())
            # A file of one trace needs no gpu_uuid column.
            if not key and len(described) == 1:
                common = next(iter(described.values()))
            known = common if not key else replace(common, gpu_uuid=uuid)
        extra = dict(attributes)
        if len(key) > (1 if columns.has_gpu_uuid else 0):
            extra["trace_id"] = key[0]
        gpus.append(
            replace(
                known,
                origin_unix_s=known.origin_unix_s if origin_unix_s is None else origin_unix_s,
                attributes={**extra, **known.attributes},
            )
        )
    return gpus


def left_out(names: Sequence[str]) -> str:
    """Return the warning that names unknown columns and, for each, a metric it may be meant to be."""
    described = []
    for name in names[:_SHOWN_COLUMNS]:
        nearest = difflib.get_close_matches(name[:100], METRIC_BY_NAME, n=1, cutoff=0.75)
        described.append(f"{shown(name)}{f' (did you mean {nearest[0]}?)' if nearest else ''}")
    more = len(names) - _SHOWN_COLUMNS
    return f"columns left out, as they are no metrics: {', '.join(described)}{f' and {more} more' if more > 0 else ''}"
