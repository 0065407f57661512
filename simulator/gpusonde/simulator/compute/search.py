"""The largest batch that fits into a device's memory, found by trying, and the batch sizes to time then."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpusonde.errors import MeasurementError

_OUT_OF_MEMORY_NAMES = ("OutOfMemoryError", "ResourceExhaustedError")
_OUT_OF_MEMORY_TEXTS = ("out of memory", "alloc_failed", "resource_exhausted")
_MOST_BATCH = 1 << 20


@dataclass(frozen=True)
class LargestBatch:
    """Outcome of a search.

    Attributes:
        batch_size: Largest batch size that was tried and fitted.
        smallest_failed: Smallest that was tried and did not; None when the search ended at its upper limit.
        tried: Batch sizes in the order in which they were tried.
    """

    batch_size: int
    smallest_failed: int | None
    tried: tuple[int, ...]


def looks_out_of_memory(error: BaseException) -> bool:
    """Say whether an error means that memory ran out: Python's own, torch's, TensorFlow's, JAX's and the libraries'."""
    if isinstance(error, MemoryError) or type(error).__name__ in _OUT_OF_MEMORY_NAMES:
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(each in text for each in _OUT_OF_MEMORY_TEXTS)


def largest_batch(
    try_batch: Callable[[int], bool | None],
    *,
    at_least: int = 1,
    at_most: int = _MOST_BATCH,
    tolerance: float = 0.0,
    release: Callable[[], object] | None = None,
    is_out_of_memory: Callable[[BaseException], bool] = looks_out_of_memory,
) -> LargestBatch:
    """Find the largest batch size that fits: doubled until one does not, then halved in between.

    Starting low, no try asks for more than twice of what is known to fit: far too large a batch can take the host down
    with it. A result needs two tries per binary digit at most.

    Args:
        try_batch: Runs a step, forward and backward, with so many samples. It returns False, or raises an error of
            memory, when that does not fit; other errors are the caller's and end the search.
        at_least: Smallest batch size to try.
        at_most: Largest one.
        tolerance: Ends the search once the result is known to so much of itself; 0.05 saves some tries.
        release: Frees what a failed try left behind, such as ``torch.cuda.empty_cache``.
        is_out_of_memory: Tells errors of memory from others.

    Raises:
        MeasurementError: Not even ``at_least`` fits.
        ValueError: Limits in the wrong order, below one, or a negative tolerance.
    """
    if not 1 <= at_least <= at_most:
        raise ValueError(f"batch sizes from {at_least} to {at_most}: give 1 <= at_least <= at_most")
    if not tolerance >= 0:
        raise ValueError(f"tolerance {tolerance} must not be negative")
    tried: list[int] = []

    def fits(batch_size: int) -> bool:
        tried.append(batch_size)
        fitted = _fits(try_batch, batch_size, is_out_of_memory)
        if not fitted:
            # Behind the error: its traceback held the step's tensors.
            gc.collect()
            if release is not None:
                release()
        return fitted

    if not fits(at_least):
        raise MeasurementError(
            f"a batch of {at_least} does not fit into the device's memory: take a device with more of it, a smaller "
            "model, gradient checkpointing or lower precision"
        )
    low, failed = at_least, None
    while failed is None and low < at_most:
        following = min(2 * low, at_most)
        if fits(following):
            low = following
        else:
            failed = following
    while failed is not None and failed - low > max(1.0, tolerance * low):
        middle = (low + failed) // 2
        if fits(middle):
            low = middle
        else:
            failed = middle
    return LargestBatch(low, failed, tuple(tried))


def batches_to_probe(largest: int, smallest: int = 1, count: int = 4) -> list[int]:
    """Return batch sizes to time for a curve: evenly spread over the logarithm, increasing, ends included.

    Raises:
        ValueError: No room for two different ones, or fewer than two asked for.
    """
    if not 1 <= smallest < largest or count < 2:
        raise ValueError(f"a curve needs two batch sizes between {smallest} and {largest}, and a count of 2 or more")
    return sorted({round(each) for each in np.geomspace(smallest, largest, count)})


def _fits(
    try_batch: Callable[[int], bool | None], batch_size: int, is_out_of_memory: Callable[[BaseException], bool]
) -> bool:
    try:
        # A step that just returns has fitted.
        return try_batch(batch_size) is not False
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    return False
