"""What a trace file says about a trace beside its ticks, as one JSON object that CSV and Parquet both carry."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpusonde.telemetry.metrics import METRIC_BY_NAME
from gpusonde.telemetry.trace import FloatArray, Trace

# CSV: a comment line "# gpusonde-trace: {...}" for each trace. Parquet: schema metadata, a JSON list under this key.
CSV_KEY = "gpusonde-trace"
PARQUET_KEY = b"gpusonde.traces"


class MetadataError(ValueError):
    """A metadata object that is damaged; the message says how."""


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
    def of(cls, trace: Trace) -> TraceMetadata:
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
        MetadataError: It is no JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MetadataError(f"damaged metadata: {type(error).__name__}; delete it to read the ticks alone") from None


def from_json(data: object) -> TraceMetadata:
    """Return the metadata that ``to_json`` wrote.

    Raises:
        MetadataError: A value has the wrong type.
    """
    if not isinstance(data, dict):
        raise MetadataError("damaged metadata: not a JSON object; delete it to read the ticks alone")
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
        raise MetadataError(f"damaged metadata: {', '.join(wrong)}; delete it to read the ticks alone")
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
