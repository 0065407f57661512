"""How much of an exchange hides behind the backward pass, both ways: to iteration times, and back from them.

Buckets move one after another, each no earlier than it is ready. If all of them take ``x`` seconds together, the last
one is through at ``max over k of (ready k + x * share of the bytes from bucket k on)``: a straight line in ``x`` per
bucket, so that the exchange behind a measured iteration follows without a search.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpusonde.simulator.compute import ComputeLatency
from gpusonde.simulator.gradients import FloatArray, GradientTrace, GradientTraceError


def even_trace(buckets: int) -> GradientTrace:
    """Return the trace of equal buckets that become ready evenly over the backward pass, marked as assumed.

    Raises:
        GradientTraceError: Fewer than one bucket.
    """
    if buckets < 1:
        raise GradientTraceError("the gradients of a step are one bucket or more")
    return GradientTrace(np.arange(1, buckets + 1) / buckets, np.full(buckets, 1.0 / buckets), assumed=True)


@dataclass(frozen=True)
class Overlap:
    """The overlap that a trace of gradients allows.

    Attributes:
        trace: The gradients.
    """

    trace: GradientTrace

    def iteration_s(self, compute: ComputeLatency, exchange_s: FloatArray) -> FloatArray:
        """Return seconds of iterations, shape (n,).

        Args:
            compute: Forward and backward pass of the slowest device, n of each.
            exchange_s: Shape (n,), what all transfers of the iteration take together, one after another.
        """
        ready = compute.backward_s[:, None] * self.trace.ready_fractions
        through = (ready + exchange_s[:, None] * self._remaining()).max(axis=1)
        return np.asarray(compute.forward_s + np.where(exchange_s > 0, np.maximum(compute.backward_s, through),
                                                       compute.backward_s))  # fmt: skip

    def exchange_s(self, compute: ComputeLatency, iteration_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the exchange behind measured iterations, and how many seconds of it a second of theirs stands for.

        Both of shape (n,). An iteration that is no longer than its computation has an exchange of 0: it hid behind the
        backward pass, however long it took.

        Args:
            compute: Forward and backward pass of the slowest device, n of each.
            iteration_s: Shape (n,), what was measured.
        """
        ready = compute.backward_s[:, None] * self.trace.ready_fractions
        each = (iteration_s[:, None] - compute.forward_s[:, None] - ready) / self._remaining()
        binding = np.argmin(each, axis=1)
        found = np.take_along_axis(each, binding[:, None], axis=1)[:, 0]
        return np.maximum(found, 0.0), 1.0 / self._remaining()[binding]

    def _remaining(self) -> FloatArray:
        """Share of the bytes from each bucket on, shape (buckets,)."""
        return np.asarray(np.cumsum(self.trace.bucket_bytes[::-1])[::-1] / self.trace.total_bytes)
