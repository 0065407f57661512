"""``GradientTrace``: when in the backward pass each bucket of gradients is ready, and how large it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

# torch's DistributedDataParallel: bucket_cap_mb, and the smaller first bucket that lets the exchange begin early.
DEFAULT_BUCKET_BYTES = 25 * 1024 * 1024
DEFAULT_FIRST_BUCKET_BYTES = 1024 * 1024
_MOST_BUCKETS = 100_000


class GradientTraceError(ValueError):
    """Figures that are no gradient trace; the message says what is wrong."""


@dataclass(frozen=True)
class GradientTrace:
    """Buckets of gradients in the order in which they become ready.

    Attributes:
        ready_fractions: Shape (n,), when, as a share of the backward pass, 0..1, not decreasing. Shares and not
            seconds, so that one trace serves every batch size (Srifty, section 4.1).
        bucket_bytes: Shape (n,), size of each.
        assumed: True when nobody recorded it: the times follow from sizes alone.

    Raises:
        GradientTraceError: The arrays do not satisfy the above.
    """

    ready_fractions: FloatArray
    bucket_bytes: FloatArray
    assumed: bool = False

    def __post_init__(self) -> None:
        fractions = np.ascontiguousarray(self.ready_fractions, dtype=np.float64)
        sizes = np.ascontiguousarray(self.bucket_bytes, dtype=np.float64)
        if fractions.ndim != 1 or fractions.shape != sizes.shape or fractions.size == 0:
            raise GradientTraceError("a gradient trace needs one time and one size per bucket, and a bucket at least")
        if fractions.size > _MOST_BUCKETS:
            raise GradientTraceError(f"{fractions.size} buckets are too many; {_MOST_BUCKETS} is the limit")
        if not ((fractions >= 0).all() and (fractions <= 1).all() and (np.diff(fractions) >= 0).all()):
            raise GradientTraceError("ready_fractions must lie between 0 and 1 and not decrease")
        if not (np.isfinite(sizes).all() and (sizes > 0).all()):
            raise GradientTraceError("bucket_bytes must be finite and above zero")
        object.__setattr__(self, "ready_fractions", fractions)
        object.__setattr__(self, "bucket_bytes", sizes)

    @property
    def total_bytes(self) -> float:
        """Bytes of all gradients."""
        return float(self.bucket_bytes.sum())

    def bucketed(
        self, bucket_bytes: int = DEFAULT_BUCKET_BYTES, first_bucket_bytes: int = DEFAULT_FIRST_BUCKET_BYTES
    ) -> GradientTrace:
        """Return the trace of the buckets that a trace of single gradients is gathered into.

        Gradients fill a bucket in their order; it closes once it holds its limit or more, as torch does, and is ready
        with its last gradient.

        Raises:
            GradientTraceError: A limit that is not above zero.
        """
        if bucket_bytes < 1 or first_bucket_bytes < 1:
            raise GradientTraceError("the size of a bucket is above zero")
        fractions, sizes, held, limit = [], [], 0.0, first_bucket_bytes
        for fraction, size in zip(self.ready_fractions, self.bucket_bytes, strict=True):
            held += size
            if held >= limit:
                fractions.append(fraction)
                sizes.append(held)
                held, limit = 0.0, bucket_bytes
        if held:
            fractions.append(self.ready_fractions[-1])
            sizes.append(held)
        return GradientTrace(np.array(fractions), np.array(sizes), self.assumed)

    def as_json(self) -> dict[str, Any]:
        """Return the trace as plain values, for ``from_json``."""
        return {
            "ready_fractions": self.ready_fractions.tolist(),
            "bucket_bytes": self.bucket_bytes.tolist(),
            "assumed": self.assumed,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> GradientTrace:
        """Return the trace of ``as_json``.

        Raises:
            GradientTraceError: A key is missing or holds something else.
        """
        try:
            fractions, sizes = (
                np.asarray(values[key], dtype=np.float64) for key in ("ready_fractions", "bucket_bytes")
            )
        except KeyError as error:
            raise GradientTraceError(f"a gradient trace needs {error.args[0]}") from None
        except (TypeError, ValueError, OverflowError) as error:
            raise GradientTraceError(f"ready_fractions and bucket_bytes must be lists of numbers ({error})") from error
        return cls(fractions, sizes, bool(values.get("assumed", False)))


def assumed_trace(
    parameter_bytes: float,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    first_bucket_bytes: int = DEFAULT_FIRST_BUCKET_BYTES,
) -> GradientTrace:
    """Return the trace to assume for a job that nobody may look into: bytes become ready evenly over the backward pass.

    Args:
        parameter_bytes: Bytes of all gradients.
        bucket_bytes: Size of a bucket.
        first_bucket_bytes: Size of the first one.

    Raises:
        GradientTraceError: Bytes that are not finite and above zero, or a size of a bucket that is not.
    """
    if not (math.isfinite(parameter_bytes) and parameter_bytes > 0):
        raise GradientTraceError(f"parameter_bytes {parameter_bytes} must be finite and above zero")
    if bucket_bytes < 1 or first_bucket_bytes < 1:
        raise GradientTraceError("the size of a bucket is above zero")
    first = min(float(first_bucket_bytes), parameter_bytes)
    # Very large networks use larger buckets than this; the limit only keeps the simulation small.
    others = math.ceil((parameter_bytes - first) / max(float(bucket_bytes), parameter_bytes / 1000))
    sizes = np.full(1 + others, (parameter_bytes - first) / max(others, 1))
    sizes[0] = first
    return GradientTrace(np.minimum(np.cumsum(sizes) / parameter_bytes, 1.0), sizes, assumed=True)


def bytes_from_traffic(traffic_bytes_per_step: float, world_size: int) -> float:
    """Return the bytes of gradients behind the traffic of one device in one step.

    A ring allreduce of ``s`` bytes sends ``2 (world - 1) / world * s`` from every device; NVLink and NIC counters see
    that.

    Args:
        traffic_bytes_per_step: Bytes sent by one device per step.
        world_size: Number of devices.

    Raises:
        GradientTraceError: A world of one, which exchanges nothing, or traffic that is not above zero.
    """
    if world_size < 2:
        raise GradientTraceError("a world of one exchanges no gradients; measure the traffic with two devices or more")
    if not (math.isfinite(traffic_bytes_per_step) and traffic_bytes_per_step > 0):
        raise GradientTraceError("traffic_bytes_per_step must be finite and above zero")
    return traffic_bytes_per_step * world_size / (2.0 * (world_size - 1))


def ring_traffic_bytes(bucket_bytes: Sequence[float] | FloatArray, world_size: int) -> FloatArray:
    """Return the bytes that every bucket moves over a device's bus, shape (n,); zero in a world of one."""
    return np.asarray(bucket_bytes, dtype=np.float64) * (2.0 * (world_size - 1) / world_size)
