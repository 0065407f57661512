"""``Trace``: the ticks of one GPU, and what a file says of it beside them, as one JSON object."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from gpusonde.errors import TraceError, TraceFormatError
from gpusonde.telemetry.metrics import METRIC_BY_NAME, metric

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Trace:
    """The ticks of one GPU.

    Attributes:
        time_s: Shape (n,), strictly increasing, finite seconds after ``origin_unix_s`` (or any origin if that is None).
        values: Metric name -> shape (n,), NaN where the source gave no value. Units are the catalogue's.
        gpu_uuid: Identifies the GPU inside the file or fleet; may be empty.
        gpu_model: Product name as the driver spells it; empty when the file does not tell.
        origin_unix_s: Unix time of ``time_s == 0``, or None when the file has no wall clock.
        attributes: Free facts carried along with the trace, for example ``{"generated": "..."}``.
        warnings: What the reader left out or repaired, for the user to see.

    Raises:
        TraceError: The arrays do not satisfy the above.
        gpusonde.telemetry.UnknownMetricError: A key of ``values`` is not in the catalogue.
    """

    time_s: FloatArray
    values: Mapping[str, FloatArray]
    gpu_uuid: str = ""
    gpu_model: str = ""
    origin_unix_s: float | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        time_s = np.ascontiguousarray(self.time_s, dtype=np.float64)
        if time_s.ndim != 1:
            raise TraceError(f"time_s has shape {time_s.shape}; a trace needs one time per tick, shape (n,)")
        if not np.isfinite(time_s).all():
            raise TraceError(f"time_s[{int(np.argmin(np.isfinite(time_s)))}] is not a finite number")
        backward = np.flatnonzero(np.diff(time_s) <= 0)
        if backward.size:
            i = int(backward[0]) + 1
            raise TraceError(f"time_s[{i}] = {time_s[i]} does not come after time_s[{i - 1}] = {time_s[i - 1]}")
        values: dict[str, FloatArray] = {}
        for name, column in self.values.items():
            metric(name)
            array = np.ascontiguousarray(column, dtype=np.float64)
            if array.shape != time_s.shape:
                raise TraceError(f"{name} has shape {array.shape}, time_s has {time_s.shape}")
            values[name] = array
        object.__setattr__(self, "time_s", time_s)
        object.__setattr__(self, "values", MappingProxyType(values))
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))

    def __len__(self) -> int:
        return int(self.time_s.size)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics the trace holds, in the file's order."""
        return tuple(self.values)

    @property
    def duration_s(self) -> float:
        """Seconds from the first tick to the last; 0 for fewer than two ticks."""
        return float(self.time_s[-1] - self.time_s[0]) if len(self) > 1 else 0.0

    @property
    def interval_s(self) -> float:
        """Median seconds between ticks; NaN for fewer than two ticks."""
        return float(np.median(np.diff(self.time_s))) if len(self) > 1 else float("nan")

    def select(self, names: Iterable[str]) -> Trace:
        """Return the trace with only the named metrics, in that order.

        Raises:
            TraceError: The trace does not hold one of them; its ``field`` is that metric.
        """
        chosen = list(names)
        for name in chosen:
            metric(name)
            if name not in self.values:
                held = ", ".join(self.values) or "none"
                raise TraceError(f"the trace has no metric {name!r}; it has {held}", field=name)
        return replace(self, values={name: self.values[name] for name in chosen})

    def window(self, start_s: float, end_s: float) -> Trace:
        """Return the ticks with ``start_s <= time_s < end_s``."""
        i, j = np.searchsorted(self.time_s, [start_s, end_s])
        return replace(self, time_s=self.time_s[i:j], values={k: v[i:j] for k, v in self.values.items()})


def too_large(size: int, limit: int, unit: str = "bytes") -> str:
    """Say that a file is over the size limit of its reader."""
    return (
        f"{size:,} {unit}, more than the limit of {limit:,}; cut the file into parts, "
        "or raise max_bytes of read_traces if the memory is there"
    )


def no_parquet(path: str | os.PathLike[str]) -> TraceFormatError:
    """Make the error for a Parquet file where pyarrow is not installed."""
    return TraceFormatError(path, "Parquet files need pyarrow: pip install pyarrow, or use a .csv file")


# CSV: a comment line "# gpusonde-trace: {...}" for each trace. Parquet: schema metadata, a JSON list under this key.
CSV_KEY = "gpusonde-trace"
PARQUET_KEY = b"gpusonde.traces"


@dataclass(frozen=True)
class TraceMetadata:
    """What is known of one trace of a file.

    Attributes:
        gpu_uuid: As in ``Trace``.
        gpu_model: As in ``Trace``.
        origin_unix_s: As in ``Trace``.
        attributes: As in ``Trace``.
        metrics: The metrics that this trace holds, where the file has columns of others as well; None for all columns.
    """

    gpu_uuid: str = ""
    gpu_model: str = ""
    origin_unix_s: float | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[str, ...] | None = None

    @classmethod
    def from_trace(cls, trace: Trace) -> TraceMetadata:
        """Return the metadata of a trace."""
        return cls(trace.gpu_uuid, trace.gpu_model, trace.origin_unix_s, dict(trace.attributes), trace.metrics)

    def trace(self, time_s: FloatArray, values: Mapping[str, FloatArray], warnings: Sequence[str] = ()) -> Trace:
        """Return the trace with these ticks.

        Raises:
            gpusonde.telemetry.TraceError: The ticks are no trace.
        """
        names = values if self.metrics is None else [name for name in self.metrics if name in values]
        return Trace(
            time_s,
            {name: values[name] for name in names},
            gpu_uuid=self.gpu_uuid,
            gpu_model=self.gpu_model,
            origin_unix_s=self.origin_unix_s,
            attributes=self.attributes,
            warnings=tuple(warnings),
        )

    def to_json(self) -> dict[str, object]:
        """Return the object that files carry; what is not known is left out."""
        known: dict[str, object] = {"gpu_uuid": self.gpu_uuid}
        if self.gpu_model:
            known["gpu_model"] = self.gpu_model
        if self.origin_unix_s is not None:
            known["origin_unix_s"] = self.origin_unix_s
        if self.metrics is not None:
            known["metrics"] = list(self.metrics)
        if self.attributes:
            known["attributes"] = dict(self.attributes)
        return known


def parse_json(text: str | bytes) -> object:
    """Parse JSON of a file that nobody vouches for.

    Raises:
        ValueError: It is no JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"damaged metadata: {type(error).__name__}; delete it to read the ticks alone") from None


def from_json(data: object) -> TraceMetadata:
    """Return the metadata that ``to_json`` wrote.

    Raises:
        ValueError: A value has the wrong type.
    """
    if not isinstance(data, dict):
        raise ValueError("damaged metadata: not a JSON object; delete it to read the ticks alone")  # noqa: TRY004
    texts = {key: data.get(key, "") for key in ("gpu_uuid", "gpu_model")}
    attributes = data.get("attributes", {})
    metrics = data.get("metrics")
    wrong = [key for key, value in texts.items() if not isinstance(value, str)]
    if not isinstance(attributes, dict) or not all(isinstance(v, str) for v in attributes.values()):
        wrong.append("attributes")
    if metrics is not None and not (isinstance(metrics, list) and all(_is_metric(name) for name in metrics)):
        wrong.append("metrics")
    origin = data.get("origin_unix_s")
    if origin is not None:
        origin = finite(origin)
        if origin is None:
            wrong.append("origin_unix_s")
    if wrong:
        raise ValueError(f"damaged metadata: {', '.join(wrong)}; delete it to read the ticks alone")
    return TraceMetadata(
        texts["gpu_uuid"], texts["gpu_model"], origin, attributes, None if metrics is None else tuple(metrics)
    )


def finite(value: object) -> float | None:
    """Return a number, or a text that is one, as a finite float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _is_metric(name: object) -> bool:
    return isinstance(name, str) and name in METRIC_BY_NAME
