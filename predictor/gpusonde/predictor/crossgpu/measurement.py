"""What goes into a prediction and what comes out: a run's measurement on its source GPU, one prediction per target."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from gpusonde.catalog import GpuSpec, Precision
from gpusonde.errors import MeasurementError
from gpusonde.telemetry import METRIC_BY_NAME, Trace, metric

# Distributions come from many hands (pandas, Arrow, float32 on the wire): an order that is off by rounding is no fault.
_ROUNDING = 1e-4
# A slice of a GPU may have an eighth of its parts; what differs by more is in another unit.
_LARGEST_DIFFERENCE = 10.0


@dataclass(frozen=True)
class MetricDistribution:
    """Distribution of one metric over a run, in the metric catalogue's unit.

    These seven numbers are the aggregation of the hardware-metrics paper, section III-C 1.

    Attributes:
        mean: Arithmetic mean.
        standard_deviation: Sample standard deviation (n - 1), 0 for a single value.
        minimum: Smallest value.
        quartile_1: 25 % quantile, linear interpolation.
        median: 50 % quantile.
        quartile_3: 75 % quantile.
        maximum: Largest value.
    """

    mean: float
    standard_deviation: float
    minimum: float
    quartile_1: float
    median: float
    quartile_3: float
    maximum: float

    @classmethod
    def from_values(cls, values: npt.ArrayLike) -> MetricDistribution:
        """Summarise samples; NaN (a value the driver did not give) is left out.

        Args:
            values: Shape (n,), in the metric's unit.

        Raises:
            MeasurementError: No finite value is left.
        """
        array = np.asarray(values, dtype=np.float64).ravel()
        array = array[np.isfinite(array)]
        if array.size == 0:
            raise MeasurementError("no finite value to summarise; leave the metric out instead")
        minimum, quartile_1, median, quartile_3, maximum = np.percentile(array, (0, 25, 50, 75, 100)).tolist()
        deviation = float(array.std(ddof=1)) if array.size > 1 else 0.0
        return cls(float(array.mean()), deviation, minimum, quartile_1, median, quartile_3, maximum)

    def fault(self, maximum: float | None = None) -> str | None:
        """Say what is impossible about the numbers (``field 'mean': ...``), or None when nothing is.

        Args:
            maximum: Largest plausible value of the metric, from the metric catalogue.
        """
        values = vars(self)
        for name, value in values.items():
            if not math.isfinite(value):
                return f"{name} is {value}, not a finite number"
            if value < 0:
                return f"{name} is negative ({value:g})"
        if maximum is not None and self.maximum > maximum:
            return f"maximum is {self.maximum:g}, above the largest plausible value {maximum:g}: another unit?"
        order = ("minimum", "quartile_1", "median", "quartile_3", "maximum")
        slack = _ROUNDING * max(self.maximum, 1e-12)
        for low, high in itertools.pairwise(order):
            if values[low] > values[high] + slack:
                return f"{low} ({values[low]:g}) lies above {high} ({values[high]:g})"
        if not self.minimum - slack <= self.mean <= self.maximum + slack:
            return f"mean ({self.mean:g}) lies outside of minimum..maximum ({self.minimum:g}..{self.maximum:g})"
        return None


@dataclass(frozen=True)
class SourceMeasurement:
    """One run as it was measured on its source GPU.

    The shipped model was fitted on aggregates over the whole run, start-up idle included, so ``metrics`` should be
    that too (:func:`summarise_metrics`), not those of single epochs.

    Attributes:
        gpu: The source GPU.
        epoch_latency_s: Mean seconds of one epoch, > 0.
        metrics: Metric name -> distribution over the run. Metrics the model does not know how to use are ignored;
            those it wants but does not get make it fall back, openly, to a simpler level.
        epoch_latency_relative_error: Standard error of ``epoch_latency_s`` as a ratio of it; 0 when it is exact.
        static_attributes: Figures read on the device itself, named as ``GpuSpec``'s; they take precedence over it.
        epoch_count: Whole epochs behind ``epoch_latency_s``, None when not known.
        precision: Of the job's matrix products and convolutions; None where nobody says. It is then taken for TF32,
            as the fitted runs had it, and an answer for which that matters says so.

    Raises:
        MeasurementError: A value is impossible; the message names it.
    """

    gpu: GpuSpec
    epoch_latency_s: float
    metrics: Mapping[str, MetricDistribution] = field(default_factory=dict)
    epoch_latency_relative_error: float = 0.0
    static_attributes: Mapping[str, float] = field(default_factory=dict)
    epoch_count: int | None = None
    precision: Precision | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epoch_latency_s) and self.epoch_latency_s > 0):
            raise MeasurementError(
                f"epoch_latency_s is {self.epoch_latency_s}; it must be a positive number of seconds: "
                "measure at least one whole epoch first"
            )
        if not (math.isfinite(self.epoch_latency_relative_error) and 0 <= self.epoch_latency_relative_error < 1):
            raise MeasurementError(
                f"epoch_latency_relative_error is {self.epoch_latency_relative_error}; it must be a ratio in 0..1"
            )
        for name, distribution in self.metrics.items():
            if name not in METRIC_BY_NAME:
                raise MeasurementError(f"metrics: {_explain_unknown(name)}")
            if problem := distribution.fault(METRIC_BY_NAME[name].maximum):
                raise MeasurementError(f"metrics[{name!r}]: {problem}")
        for name, value in self.static_attributes.items():
            if not (math.isfinite(value) and value >= 0):
                raise MeasurementError(f"static_attributes[{name!r}] is {value}; it must be a finite number >= 0")
            known = getattr(self.gpu, name, None)
            if value and isinstance(known, int | float) and known and not _is_same_magnitude(value, known):
                raise MeasurementError(
                    f"static_attributes[{name!r}] is {value:g} where {self.gpu.name} has {known:g}: "
                    "another unit, or another GPU?"
                )
        object.__setattr__(self, "metrics", MappingProxyType(dict(self.metrics)))
        object.__setattr__(self, "static_attributes", MappingProxyType(dict(self.static_attributes)))

    def figure(self, attribute: str) -> float | None:
        """Return a static attribute of the source GPU: as the device has it where known, else the catalogue's."""
        value = self.static_attributes.get(attribute)
        if value is not None and value > 0:
            return value
        known = getattr(self.gpu, attribute, None)
        return None if known is None else float(known)


@dataclass(frozen=True)
class LatencyPrediction:
    """Epoch latency on one target GPU.

    Attributes:
        target_gpu: Canonical name of the target GPU.
        epoch_latency_s: Predicted seconds of one epoch; NaN when ``status`` is ``unsupported_gpu``.
        epoch_latency_low_s: Lower end of the interval.
        epoch_latency_high_s: Upper end of the interval.
        interval_coverage: Share of such intervals that should hold the true latency, for example 0.9.
        status: ``ok``, ``extrapolated``, ``insufficient_epochs`` or ``unsupported_gpu``.
        extrapolated: True when the target, the source or the run lies outside of what the model was fitted on.
        method: How the number came about, for example ``prior + residual`` or ``prior only``.
        reason: Why ``status`` is not ``ok``, and what was missing, for a human reader; empty when nothing is to say.
        model_version: Version of the model that answered.
        gpu_count: GPUs of the job on the target.
        host_count: Hosts that they are spread over.
        communication_ratio: Share of the epoch in which the target's GPUs only wait for gradients; 0 on one GPU.
        fits: Whether what the run holds of its GPU's memory fits into the target's: ``yes``, ``likely``, ``no``, or
            ``unknown`` where nobody measured it, or all memory was taken, as some frameworks do.
        link: What joins the GPUs of a host, ``nvlink`` or ``pcie``; empty where each host has one.
        network_bytes_per_second: Of one host, as told or assumed; 0 on one host.
    """

    target_gpu: str
    epoch_latency_s: float
    epoch_latency_low_s: float
    epoch_latency_high_s: float
    interval_coverage: float
    status: str
    extrapolated: bool
    method: str
    reason: str
    model_version: str
    gpu_count: int = 1
    host_count: int = 1
    communication_ratio: float = 0.0
    fits: str = "unknown"
    link: str = ""
    network_bytes_per_second: float = 0.0


def summarise_metrics(trace: Trace) -> dict[str, MetricDistribution]:
    """Return the distributions of every metric over the whole of a trace, as the shipped model was fitted on them.

    Metrics without a single value, and those beyond the plausible range of the catalogue, are left out.
    """
    found: dict[str, MetricDistribution] = {}
    for name, values in trace.values.items():
        limit = metric(name).maximum
        usable = values[np.isfinite(values) & (values >= 0) & (values <= (math.inf if limit is None else limit))]
        if usable.size:
            found[name] = MetricDistribution.from_values(usable)
    return found


def _is_same_magnitude(a: float, b: float) -> bool:
    return 1 / _LARGEST_DIFFERENCE <= a / b <= _LARGEST_DIFFERENCE


def _explain_unknown(name: str) -> str:
    try:
        metric(name)
    except KeyError as error:
        return str(error)
    return name
