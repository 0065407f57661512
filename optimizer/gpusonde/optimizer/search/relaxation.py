"""Lower bounds of the price of plans with a given number of GPUs, for all numbers at once.

Machines are taken as divisible, and the GPUs of an offer may have any mean batch between its smallest and largest one.
What remains is a linear programme in the GPUs taken of each offer: their sum is the world size, their batches cover the
global batch. Its dual has one price ``per sample``; for a fixed one, GPUs are filled up from the cheapest. The dual's
optimum lies where two offers swap places or at zero, so trying these gives the exact value of the programme, and any of
them a valid bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_MOST_PRICES_PER_SAMPLE = 48


@dataclass(frozen=True)
class Kinds:
    """GPUs that may take part, one entry per offer.

    Attributes:
        devices: Shape (k,), most GPUs.
        usd_per_device_hour: Shape (k,).
        smallest: Shape (k,), smallest batch per GPU.
        largest: Shape (k,), largest one.
    """

    devices: IntArray
    usd_per_device_hour: FloatArray
    smallest: FloatArray
    largest: FloatArray

    def reachable(self, world_sizes: IntArray, samples: float) -> npt.NDArray[np.bool_]:
        """Return for which world sizes the global batch lies between what they can run at least and at most."""
        least = self._sums(world_sizes, self.smallest)
        most = -self._sums(world_sizes, -self.largest)
        enough = world_sizes <= self.devices.sum()
        return np.asarray(enough & (least <= samples + 1e-6) & (most >= samples - 1e-6))

    def quick_bound(self, world_sizes: IntArray, samples: float) -> FloatArray:
        """Return a lower bound of the price that takes little time, USD per hour, shape of ``world_sizes``."""
        # Cover the samples from the cheapest per sample on; take the GPUs from the cheapest on.
        per_sample = self.usd_per_device_hour / self.largest
        order = np.argsort(per_sample)
        covered = np.minimum(np.cumsum(self.devices[order] * self.largest[order]), samples)
        cover = float(covered[0] * per_sample[order[0]] + (covered[1:] - covered[:-1]) @ per_sample[order[1:]])
        return np.asarray(np.maximum(self._sums(world_sizes, self.usd_per_device_hour), cover))

    def bound(self, world_sizes: IntArray, samples: float) -> PriceBound:
        """Return the linear programme's bound for world sizes, shape (n,)."""
        per_sample = self._prices_per_sample()
        reduced = self._reduced(per_sample)
        values = per_sample[:, None] * samples + _fill(world_sizes, self.devices, reduced)
        best = values.argmax(axis=0)
        return PriceBound(values[best, np.arange(world_sizes.size)], per_sample[best])

    def price_per_device(self, world_size: int, per_sample: float) -> float:
        """Return the dual price of a GPU at a world size: the reduced price of the last GPU taken."""
        reduced = self._reduced(np.array([per_sample]))[0]
        order = np.argsort(reduced)
        place = int(np.searchsorted(np.cumsum(self.devices[order]), world_size))
        return float(reduced[order[min(place, order.size - 1)]])

    def _sums(self, world_sizes: IntArray, each: FloatArray) -> FloatArray:
        """Least sum of a figure of so many GPUs, shape of ``world_sizes``."""
        order = np.argsort(each)
        devices = np.concatenate([[0], np.cumsum(self.devices[order])])
        sums = np.concatenate([[0.0], np.cumsum(self.devices[order] * each[order])])
        return np.asarray(np.interp(world_sizes, devices, sums))

    def _reduced(self, per_sample: FloatArray) -> FloatArray:
        """Price of a GPU less the worth of its samples, shape (m, k)."""
        worth = np.where(
            per_sample[:, None] >= 0, per_sample[:, None] * self.largest, per_sample[:, None] * self.smallest
        )
        return np.asarray(self.usd_per_device_hour - worth)

    def _prices_per_sample(self) -> FloatArray:
        """Where two offers swap places, shape (m,), zero among them."""
        first, second = np.triu_indices(self.devices.size, 1)
        price = self.usd_per_device_hour[first] - self.usd_per_device_hour[second]
        found = [np.zeros(1)]
        for batch, sign in ((self.largest, 1.0), (self.smallest, -1.0)):
            step = batch[first] - batch[second]
            with np.errstate(divide="ignore", invalid="ignore"):
                swap = price / step
            found.append(swap[np.isfinite(swap) & (swap * sign > 0)])
        every = np.unique(np.concatenate(found))
        if every.size > _MOST_PRICES_PER_SAMPLE:
            every = every[np.linspace(0, every.size - 1, _MOST_PRICES_PER_SAMPLE).round().astype(int)]
        return np.asarray(every)


@dataclass(frozen=True)
class PriceBound:
    """Bounds for some world sizes.

    Attributes:
        usd_per_hour: Shape (n,), no plan is cheaper.
        usd_per_sample_hour: Shape (n,), the dual price of a sample that shows it.
    """

    usd_per_hour: FloatArray
    usd_per_sample_hour: FloatArray


def _fill(world_sizes: IntArray, devices: IntArray, prices: FloatArray) -> FloatArray:
    """Sum of the prices of the cheapest GPUs, shape (m, n), from prices of shape (m, k)."""
    order = np.argsort(prices, axis=1)
    sorted_prices = np.take_along_axis(prices, order, axis=1)
    sorted_devices = devices[order]
    ends = np.cumsum(sorted_devices, axis=1)
    total = np.zeros((prices.shape[0], world_sizes.size))
    for place in range(prices.shape[1]):
        begin = (ends[:, place] - sorted_devices[:, place])[:, None]
        taken = np.clip(world_sizes[None, :] - begin, 0, sorted_devices[:, place][:, None])
        total += taken * sorted_prices[:, place][:, None]
    return total
