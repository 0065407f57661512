"""Lower bounds of the price of plans of so many GPUs and samples (``Kinds``, ``Lots``) whose slowest GPU keeps a limit.

``Kinds`` bounds all world sizes at once: machines are taken as divisible, and the GPUs of an offer may have any mean
batch between its smallest and largest one. What remains is a linear programme in the GPUs taken of each offer: their
sum is the world size, their batches cover the global batch. Its dual has one price ``per sample``; for a fixed one,
GPUs are filled up from the cheapest. The dual's optimum lies where two offers swap places or at zero, so trying these
gives the exact value of the programme, and any of them a valid bound. ``Lots`` bounds one world size: every offer runs
with one batch, and what groups take together (``LatencyLimit.load``) is a third row of the programme.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# Dual prices of a sample that are tried for all world sizes at once, from pairs of so many kinds at most, and steps
# towards the best ones for one world size.
_MOST_PRICES_PER_SAMPLE, _MOST_PAIRED, _MOST_STEPS = 48, 128, 40
# GPUs that nobody has cost so many times a plan of the dearest; prices closer together, relative, are the same.
_DEAR, _SAME_PRICE, _SMALL = 100.0, 1e-9, 1e-12
# Levels over which the slowest of many is averaged.
_EVEN_LEVELS = 256


@dataclass(frozen=True)
class LatencyLimit:
    """Mean of the slowest GPU beyond which plans are of no use; it grows with the variance of the slowest.

    Attributes:
        most_s: Seconds, where it scatters most.
        steady_s: Seconds, where it does not.
        spread: Relative standard deviation of the slowest where it scatters most.
    """

    most_s: float = math.inf
    steady_s: float = math.inf
    spread: float = 1.0

    def at(self, spread: float | FloatArray) -> FloatArray:
        """Return the limit with such a relative standard deviation of the slowest, seconds, shape of ``spread``."""
        # Both may be infinite.
        more_s = self.most_s - self.steady_s if self.most_s > self.steady_s else 0.0
        return np.asarray(self.steady_s + more_s * (spread / self.spread) ** 2)

    def load(self, gpu_s: FloatArray, spread: FloatArray) -> FloatArray:
        """Return one over the number of GPUs alike whose slowest reaches the limit, shape of ``gpu_s``.

        Over all GPUs of a plan that keeps the limit it sums to one at most. Where the sum is one, the distribution of
        the slowest is a geometric mean of those of such GPUs alike, weighted by what each kind adds, and so nowhere
        above the arithmetic one: its mean is no shorter than theirs. Its variance exceeds theirs by what their means
        lie apart, which is little, as it is what little their variances make of the limit.

        Args:
            gpu_s: Mean of one GPU, seconds, 0 for GPUs that take up nothing.
            spread: Relative standard deviation of that.
        """
        slowest, variance, numbers = _slowest_of_many()
        with np.errstate(divide="ignore", invalid="ignore"):
            deviations = np.nan_to_num((self.steady_s / gpu_s - 1.0) / spread, nan=np.inf)
        if self.most_s > self.steady_s:
            more = (self.most_s - self.steady_s) / (self.spread * self.steady_s) ** 2 * gpu_s * spread
            # The more GPUs alike, the less their slowest scatters: too many first, then too few.
            too_many = deviations + more
            too_few = deviations + more * np.interp(too_many, slowest, variance)
            deviations = deviations + more * np.interp(too_few, slowest, variance)
        return np.asarray(np.interp(deviations, slowest, 1.0 / numbers, right=0.0))


@functools.cache
def _slowest_of_many() -> tuple[FloatArray, FloatArray, FloatArray]:
    """Mean, ascending, and variance of the largest of so many standard normal variables, and these numbers."""
    numbers = 1.05 ** np.arange(500.0)
    levels = (np.arange(_EVEN_LEVELS) + 0.5) / _EVEN_LEVELS
    largest = [-ndtri(-np.expm1(np.log(levels) / number)) for number in numbers.tolist()]
    return np.array([each.mean() for each in largest]), np.array([each.var() for each in largest]), numbers


@dataclass(frozen=True)
class DualPrices:
    """What a GPU, a sample and the load that a plan may have are worth, USD per hour; together they bound prices."""

    per_device: float
    per_sample: float
    per_load: float


@dataclass(frozen=True)
class Kinds:
    """GPUs that may take part; an offer has an entry for each batch with which it runs more of them.

    Attributes:
        devices: Shape (k,), most GPUs.
        usd_per_device_hour: Shape (k,).
        toll_usd_per_device: Shape (k,), what a GPU costs besides, however long it runs.
        smallest: Shape (k,), smallest batch per GPU.
        largest: Shape (k,), samples that a GPU adds at most, which falls from one entry of an offer to the next.
    """

    devices: IntArray
    usd_per_device_hour: FloatArray
    toll_usd_per_device: FloatArray
    smallest: FloatArray
    largest: FloatArray

    def with_tolls(self, hourly: float) -> Kinds:
        """Return the same with such a share of the tolls in the prices."""
        return replace(self, usd_per_device_hour=self.usd_per_device_hour + hourly * self.toll_usd_per_device)

    def reachable(self, world_sizes: IntArray, samples: float) -> npt.NDArray[np.bool_]:
        """Return for which world sizes the global batch lies between what they can run at least and at most."""
        least = self._sums(world_sizes, self.smallest)
        most = -self._sums(world_sizes, -self.largest)
        enough = world_sizes <= self.devices.sum()
        return np.asarray(enough & (least <= samples + 1e-6) & (most >= samples - 1e-6))

    def quick_bound(self, world_sizes: IntArray, samples: float) -> FloatArray:
        """Return a lower bound of the price that takes little time, USD per hour, shape of ``world_sizes``."""
        # Cover the samples from the cheapest per sample on; take the GPUs from the cheapest on.
        adding = self.largest > 0
        largest = self.largest[adding]
        per_sample = self.usd_per_device_hour[adding] / largest
        order = np.argsort(per_sample)
        covered = np.minimum(np.cumsum(self.devices[adding][order] * largest[order]), samples)
        cover = float(covered[0] * per_sample[order[0]] + (covered[1:] - covered[:-1]) @ per_sample[order[1:]])
        return np.asarray(np.maximum(self._sums(world_sizes, self.usd_per_device_hour), cover))

    def bound(self, world_sizes: IntArray, samples: float) -> PriceBound:
        """Return the best of some bounds of the linear programme for world sizes, shape (n,)."""
        per_sample = self._prices_per_sample()
        values = np.stack([each * samples + self._sums(world_sizes, self._reduced(each)) for each in per_sample])
        best = values.argmax(axis=0)
        return PriceBound(values[best, np.arange(world_sizes.size)], per_sample[best])

    def _sums(self, world_sizes: IntArray, each: FloatArray) -> FloatArray:
        """Least sum of a figure of so many GPUs, shape of ``world_sizes``."""
        order = np.argsort(each)
        devices = np.concatenate([[0], np.cumsum(self.devices[order])])
        sums = np.concatenate([[0.0], np.cumsum(self.devices[order] * each[order])])
        return np.asarray(np.interp(world_sizes, devices, sums))

    def _reduced(self, per_sample: float) -> FloatArray:
        """Price of a GPU less the worth of its samples, shape (k,)."""
        return np.asarray(self.usd_per_device_hour - per_sample * (self.largest if per_sample >= 0 else self.smallest))

    def _prices_per_sample(self) -> FloatArray:
        """Where two kinds swap places, shape (m,), zero among them."""
        some = np.linspace(0, self.devices.size - 1, min(self.devices.size, _MOST_PAIRED)).round().astype(int)
        first, second = (some[each] for each in np.triu_indices(some.size, 1))
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


@dataclass(frozen=True)
class Lots:
    """GPUs that may take part, by offer and batch; of an offer all run with one batch.

    Attributes:
        devices: Shape (k, b), most GPUs.
        usd_per_device_hour: Shape (k,).
        batches: Shape (k, b), samples per GPU.
        loads: Shape (k, b), of one GPU.
    """

    devices: IntArray
    usd_per_device_hour: FloatArray
    batches: FloatArray
    loads: FloatArray

    def bounds(self, world_size: int, samples: float, near: DualPrices) -> Iterator[tuple[float, DualPrices]]:
        """Yield bounds of the linear programme for a world size, less what GPUs are worth, and their dual prices.

        The best choice of every offer at some dual prices is a column of the programme (Dantzig and Wolfe); a mixture
        of four reaches GPUs, samples and load, and its dual prices give the next one.

        Args:
            world_size: The world size.
            samples: The global batch.
            near: Dual prices that are good already.
        """
        scale = np.array([world_size, samples, 1.0])
        dear = _DEAR * world_size * float(self.usd_per_device_hour.max())
        # GPUs and samples that nobody has, load that is left, and no GPU at all.
        basis, costs = np.eye(4), np.array([dear, dear, 0.0, 0.0])
        prices = np.array([near.per_device, near.per_sample, -near.per_load]) * scale
        for _ in range(_MOST_STEPS):
            per_device, per_sample, per_load = (prices / scale).tolist()
            reduced = self.usd_per_device_hour[:, None] - per_device - per_sample * self.batches
            values = self.devices * (reduced - per_load * self.loads)
            rows, best = np.arange(len(values)), values.argmin(axis=1)
            useful = values[rows, best] < 0
            rows, best = rows[useful], best[useful]
            found = float(prices[1:].sum() + values[rows, best].sum())
            # Where prices are large, rounding is, too.
            yield found - _SMALL * float(np.abs(prices).sum()), DualPrices(per_device, per_sample, -per_load)
            taken = self.devices[rows, best]
            amounts = [taken.sum(), taken @ self.batches[rows, best], taken @ self.loads[rows, best]]
            column, cost = np.append(amounts / scale, 1.0), float(taken @ self.usd_per_device_hour[rows])
            solved = np.linalg.solve(basis.T, costs)
            is_better = cost - solved @ column < -_SAME_PRICE * abs(solved.sum())
            if is_better:
                solved = _entered(basis, costs, column, cost)
            if solved[2] > _SAME_PRICE * dear:
                solved = _entered(basis, costs, np.array([0.0, 0.0, 1.0, 0.0]), 0.0)
            following = np.append(solved[:2], min(solved[2], 0.0))
            if not is_better and np.array_equal(following, prices):
                return
            prices = following


def _entered(basis: FloatArray, costs: FloatArray, column: FloatArray, cost: float) -> FloatArray:
    """Put a column in the place of the one that it drives out first; return the dual prices."""
    weights, change = np.linalg.solve(basis, np.stack([np.ones(4), column], axis=1)).T
    with np.errstate(divide="ignore", invalid="ignore"):
        place = int(np.where(change > _SMALL, weights / change, np.inf).argmin())
    basis[:, place], costs[place] = column, cost
    return np.asarray(np.linalg.solve(basis.T, costs))
