"""The largest batch that fits: found in few tries, safe on memory that runs out, and clear where nothing fits."""

from __future__ import annotations

import math

import pytest

from gpusonde.errors import MeasurementError
from gpusonde.simulator.compute import batches_to_probe, largest_batch


class OutOfMemoryError(RuntimeError):
    """Stands for torch's, which is recognised by its name."""


class Device:
    """A device whose memory holds so many samples; it remembers what was tried."""

    def __init__(self, holds, error=None):
        self.holds, self.error, self.tried, self.released = holds, error, [], 0

    def step(self, batch_size):
        self.tried.append(batch_size)
        if batch_size > self.holds and self.error is not None:
            raise self.error
        return batch_size <= self.holds

    def release(self):
        self.released += 1


@pytest.mark.parametrize("holds", [1, 2, 3, 7, 8, 9, 100, 1000, 4097])
def test_the_largest_batch_is_found_in_two_tries_per_binary_digit(holds):
    device = Device(holds)
    found = largest_batch(device.step)
    assert (found.batch_size, found.smallest_failed) == (holds, holds + 1)
    assert list(found.tried) == device.tried
    assert len(device.tried) == len(set(device.tried)) <= 2 * math.floor(math.log2(holds)) + 2
    assert max(device.tried) <= 2 * holds


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    ],
)
def test_memory_that_runs_out_ends_a_try_and_not_the_search(error):
    device = Device(100, error)
    found = largest_batch(device.step, release=device.release)
    assert found.batch_size == 100
    assert device.released == sum(batch_size > 100 for batch_size in device.tried) > 0


def test_other_errors_are_the_callers():
    with pytest.raises(ValueError, match="bad shape"):
        largest_batch(Device(4, ValueError("bad shape")).step)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        largest_batch(Device(4, RuntimeError("an illegal memory access was encountered")).step)


def test_a_step_that_just_returns_has_fitted():
    assert largest_batch(lambda batch_size: None, at_most=64).batch_size == 64


def test_the_search_ends_at_its_upper_limit():
    found = largest_batch(Device(10**9).step, at_most=1000)
    assert (found.batch_size, found.smallest_failed) == (1000, None)
    assert len(found.tried) == 11
    only = largest_batch(Device(8).step, at_least=8, at_most=8)
    assert (only.batch_size, only.tried) == (8, (8,))


def test_a_tolerance_saves_tries():
    exact, rough = largest_batch(Device(4000).step), largest_batch(Device(4000).step, tolerance=0.1)
    assert 0.9 * 4000 <= rough.batch_size <= 4000
    assert len(rough.tried) < len(exact.tried) - 5


def test_a_model_larger_than_the_device_is_said():
    with pytest.raises(MeasurementError, match=r"a batch of 1 does not fit .* smaller model"):
        largest_batch(Device(0, MemoryError()).step)


@pytest.mark.parametrize("limits", [{"at_least": 0}, {"at_least": 9, "at_most": 8}, {"tolerance": -0.1}])
def test_limits_that_make_no_search_are_refused(limits):
    with pytest.raises(ValueError, match=r"at_least|tolerance"):
        largest_batch(Device(8).step, **limits)


def test_four_batch_sizes_are_spread_over_the_logarithm():
    assert batches_to_probe(512) == [1, 8, 64, 512]
    assert batches_to_probe(100, 10, 3) == [10, 32, 100]
    assert batches_to_probe(2) == [1, 2]
    for largest, smallest, count in ((1, 1, 4), (8, 16, 4), (8, 1, 1)):
        with pytest.raises(ValueError, match="two batch sizes"):
            batches_to_probe(largest, smallest, count)
