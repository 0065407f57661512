"""``Trace``: the ticks of one GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from gpusonde.telemetry.metrics import metric

FloatArray = npt.NDArray[np.float64]


class TraceError(ValueError):
    """Arrays that are not a trace: wrong shapes, times that do not increase, unknown metrics."""


class MissingMetricError(TraceError):
    """A metric was asked for that the trace does not hold.

    Attributes:
        field: Its name.
    """

    def __init__(self, name: str, available: tuple[str, ...]) -> None:
        """Say which metrics there are."""
        self.field = name
        super().__init__(f"the trace has no metric {name!r}; it has {', '.join(available) or 'none'}")


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
            MissingMetricError: The trace does not hold one of them.
        """
        chosen = list(names)
        for name in chosen:
            metric(name)
            if name not in self.values:
                raise MissingMetricError(name, tuple(self.values))
        return replace(self, values={name: self.values[name] for name in chosen})

    def window(self, start_s: float, end_s: float) -> Trace:
        """Return the ticks with ``start_s <= time_s < end_s``."""
        i, j = np.searchsorted(self.time_s, [start_s, end_s])
        return replace(self, time_s=self.time_s[i:j], values={k: v[i:j] for k, v in self.values.items()})
