"""``GradientTrace``: when in the backward pass each bucket of gradients is ready, and how large it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from gpusonde.documents import ListOf, Number, Whole
from gpusonde.errors import DocumentError, ProblemError

FloatArray = npt.NDArray[np.float64]

# torch's DistributedDataParallel: bucket_cap_mb, and the smaller first bucket that lets the exchange begin early.
DEFAULT_BUCKET_BYTES = 25 * 1024 * 1024
DEFAULT_FIRST_BUCKET_BYTES = 1024 * 1024
_MOST_BUCKETS = 100_000
# Devices that a document may speak of.
LARGEST_WORLD = 1_000_000
# What a document may hold; a trace of so many takes about 400 kB.
MOST_LISTED_BUCKETS = 10_000
_Bytes = Annotated[float, Number(most=1e15)]


@dataclass(frozen=True)
class GradientTrace:
    """Buckets of gradients in the order in which they become ready.

    Attributes:
        ready_fractions: Shape (n,), when, as a share of the backward pass, 0..1, not decreasing. Shares and not
            seconds, so that one trace serves every batch size (Srifty, section 4.1).
        bucket_bytes: Shape (n,), size of each.
        assumed: True when nobody recorded it: the times follow from sizes alone.

    Raises:
        ProblemError: The arrays do not satisfy the above.
    """

    ready_fractions: Annotated[FloatArray, ListOf(MOST_LISTED_BUCKETS, element=Number(least=0.0))]
    bucket_bytes: Annotated[FloatArray, ListOf(MOST_LISTED_BUCKETS, element=Number())]
    assumed: bool = False

    def __post_init__(self) -> None:
        fractions = np.ascontiguousarray(self.ready_fractions, dtype=np.float64)
        sizes = np.ascontiguousarray(self.bucket_bytes, dtype=np.float64)
        if fractions.ndim != 1 or fractions.shape != sizes.shape or fractions.size == 0:
            raise ProblemError("a gradient trace needs one time and one size per bucket, and a bucket at least")
        if fractions.size > _MOST_BUCKETS:
            raise ProblemError(f"{fractions.size} buckets are too many; {_MOST_BUCKETS} is the limit")
        if not ((fractions >= 0).all() and (fractions <= 1).all() and (np.diff(fractions) >= 0).all()):
            raise ProblemError("ready_fractions must lie between 0 and 1 and not decrease")
        if not (np.isfinite(sizes).all() and (sizes > 0).all()):
            raise ProblemError("bucket_bytes must be finite and above zero")
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
            ProblemError: A limit that is not above zero.
        """
        if bucket_bytes < 1 or first_bucket_bytes < 1:
            raise ProblemError("the size of a bucket is above zero")
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
        """Return the trace as plain values, which ``gpusonde.documents.parse`` reads."""
        return {
            "ready_fractions": self.ready_fractions.tolist(),
            "bucket_bytes": self.bucket_bytes.tolist(),
            "assumed": self.assumed,
        }


@dataclass(frozen=True)
class Gradients:
    """What is known of a job's gradients: when each bucket is ready, or only how many bytes there are.

    Attributes:
        ready_fractions: When each bucket is ready, as a share of the backward pass, not decreasing; with
            ``bucket_bytes``.
        bucket_bytes: Size of each bucket.
        assumed: True when nobody recorded ``ready_fractions``.
        parameter_bytes: Bytes of all gradients; they are assumed to become ready evenly.
        traffic_bytes_per_step: Bytes that one device sends per step, with ``traffic_world_size``; the gradients follow.
        traffic_world_size: Devices among which the traffic was seen.

    Raises:
        DocumentError: Not exactly one of the three forms.
    """

    ready_fractions: Annotated[tuple[float, ...], ListOf(MOST_LISTED_BUCKETS, element=Number(least=0.0))] | None = None
    bucket_bytes: Annotated[tuple[float, ...], ListOf(MOST_LISTED_BUCKETS, element=Number())] | None = None
    assumed: bool = False
    parameter_bytes: _Bytes | None = None
    traffic_bytes_per_step: _Bytes | None = None
    traffic_world_size: Annotated[int, Whole(least=2, most=LARGEST_WORLD)] | None = None

    def __post_init__(self) -> None:
        forms = ("parameter_bytes", "ready_fractions", "traffic_bytes_per_step")
        given = [form for form in forms if getattr(self, form) is not None]
        if len(given) != 1:
            got = " and ".join(given) or "none"
            raise DocumentError("", f"gradients: give exactly one of {', '.join(forms)}; got {got}")
        if self.ready_fractions is not None and self.bucket_bytes is None:
            raise DocumentError("bucket_bytes", "is missing; give the size of every bucket")
        if self.traffic_bytes_per_step is not None and self.traffic_world_size is None:
            raise DocumentError("traffic_world_size", "is missing; give the devices among which the traffic was seen")

    def trace(self) -> GradientTrace:
        """Return the trace to plan with.

        Raises:
            ProblemError: Figures that are no trace.
        """
        if self.ready_fractions is not None:
            return GradientTrace(np.array(self.ready_fractions), np.array(self.bucket_bytes), self.assumed)
        if self.parameter_bytes is not None:
            return assumed_trace(self.parameter_bytes)
        assert self.traffic_bytes_per_step is not None  # noqa: S101 - as __post_init__ has it
        assert self.traffic_world_size is not None  # noqa: S101
        return assumed_trace(bytes_from_traffic(self.traffic_bytes_per_step, self.traffic_world_size))


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
        ProblemError: Bytes that are not finite and above zero, or a size of a bucket that is not.
    """
    if not (math.isfinite(parameter_bytes) and parameter_bytes > 0):
        raise ProblemError(f"parameter_bytes {parameter_bytes} must be finite and above zero")
    if bucket_bytes < 1 or first_bucket_bytes < 1:
        raise ProblemError("the size of a bucket is above zero")
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
        ProblemError: A world of one, which exchanges nothing, or traffic that is not above zero.
    """
    if world_size < 2:
        raise ProblemError("a world of one exchanges no gradients; measure the traffic with two devices or more")
    if not (math.isfinite(traffic_bytes_per_step) and traffic_bytes_per_step > 0):
        raise ProblemError("traffic_bytes_per_step must be finite and above zero")
    return traffic_bytes_per_step * world_size / (2.0 * (world_size - 1))


def ring_traffic_bytes(bucket_bytes: Sequence[float] | FloatArray, world_size: int) -> FloatArray:
    """Return the bytes that every bucket moves over a device's bus, shape (n,); zero in a world of one."""
    return np.asarray(bucket_bytes, dtype=np.float64) * (2.0 * (world_size - 1) / world_size)
