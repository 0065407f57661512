"""``SimulatedSteps``: step times of a job from its compute curves, its gradients and its networks.

Bounds ask no simulator: they are means over classes of placements, from below what it would draw.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from gpusonde.errors import ProblemError
from gpusonde.optimizer.problem import Group, MachineOffer, Plan
from gpusonde.optimizer.step_times import FloatArray, StepEstimate, least_quantile
from gpusonde.simulator.calibration import SmoothCorrection
from gpusonde.simulator.communication import BandwidthSharing
from gpusonde.simulator.compute import ComputeCurve
from gpusonde.simulator.gradients import GradientTrace
from gpusonde.simulator.iteration import (
    INTERVAL_END,
    PLAIN_STEPS,
    BusBandwidth,
    DeviceGroup,
    IterationSimulator,
    Moved,
    NetworkModel,
    Sharding,
    StepMode,
    even_levels,
    expect_slowest,
    gather_s,
    mean_slowest,
)

# World sizes at which networks are put into order: the first that is known. Only the order matters, and only to find
# bounds early.
_REFERENCE_WORLDS = (16, 8, 4)
# Standard deviation of measured iterations around the simulated ones, relative: 1.25 times the mean error of 8 % that
# was found end to end (docs/results/planning.md).
DEFAULT_MODEL_SPREAD = 0.1
# NCCL runs one allreduce of a communicator at a time. Without any limit the transfers of a job would not slow down
# each other, and plans with slow networks would look far too good.
DEFAULT_SHARING = BandwidthSharing(max_in_flight=1)
# Medians of iteration times of one configuration differ by so much from one launch to the next.
_LAUNCH_NOISE = 0.05
# Bounds are means over so many classes of placements, the slowest ones apart: shares of all placements up to each.
_PLACEMENTS = (
    0.006, 0.018, 0.04, 0.07, 0.11, 0.16, 0.22, 0.3, 0.38, 0.47, 0.56, 0.65, 0.74, 0.82, 0.89, 0.94, 0.98, 1.0,
)  # fmt: skip
# How far the logarithm of a bandwidth scatters over placements as a rule.
_USUAL_LOG_SPREAD = 0.2
# Traces with more buckets than this get one class: tables of bandwidths grow with both.
_MOST_CLASSED_BUCKETS = 256
# The mean of a maximum of two that scatter is above the larger mean by 0.4 of their deviation at most; what lies in an
# interval deviates by half of it at most.
_KINK = 0.2
# Latencies are no shorter than so many standard deviations below their mean.
_SURE_DEVIATIONS = 3.0
# What a run keeps grows with its latency, which bounds of it rely on, up to this quantile at these shares of a forward
# pass: beyond, the shorter scatter of a slower GPU may outweigh its time.
_MOST_QUANTILE, _LEAST_FORWARD_SHARE = 2.0, 0.3
_LISTED_MACHINES = 16
# Tables of how many GPUs reach a limit (``LatencyLimit.load``) are off by less than this share of a GPU's scatter.
_TABLED = 4e-4


class SimulatedSteps:
    """Step times of a job: its compute curves, its gradients and its networks, through ``IterationSimulator``.

    Results are kept, so that asking again costs nothing.

    Args:
        offers: The offers.
        curves: Compute curve of a GPU, by name of the offer.
        networks: What allreduces reach, by name of the fabric (an offer's ``fabric`` or ``machine_fabric``). A plan on
            machines with different fabrics gets the slower of them for every transfer.
        trace: The job's gradients.
        sharing: How concurrent transfers share a link; None for one at a time, as with NCCL.
        optimizer_s: Seconds of the optimizer step, 0 when it is in the curves already.
        samples: Iterations to draw per estimate.
        model_spread: Relative standard deviation of the simulator's own error, shared by all iterations of a run.
            It only widens the margin of a deadline.
        corrections: What timed iterations take beyond the simulated ones, by name of the offer. Of several in a plan
            the largest counts, as the slowest decides, and the largest doubt; what was not timed has no correction.
        mode: How iterations are run.

    Raises:
        ProblemError: An offer without a curve or whose fabric is not known.
    """

    def __init__(
        self,
        offers: Sequence[MachineOffer],
        curves: Mapping[str, ComputeCurve],
        networks: Mapping[str, NetworkModel],
        trace: GradientTrace,
        *,
        sharing: BandwidthSharing | None = None,
        optimizer_s: float = 0.0,
        samples: int = 256,
        model_spread: float = DEFAULT_MODEL_SPREAD,
        corrections: Mapping[str, SmoothCorrection] | None = None,
        mode: StepMode = PLAIN_STEPS,
    ) -> None:
        for offer in offers:
            if offer.name not in curves:
                raise ProblemError(f"offer {offer.name} has no compute curve: probe or predict its GPU first")
            for fabric in {offer.fabric, _machine_fabric(offer)}:
                if fabric not in networks:
                    raise ProblemError(f"offer {offer.name}: nothing is known about the fabric {fabric!r}")
        if not 0 <= model_spread < math.inf:
            raise ProblemError(f"model_spread {model_spread} must be 0 or more")
        self._offers = {offer.name: offer for offer in offers}
        self._plain_curves = {offer.name: curves[offer.name] for offer in offers}
        self._networks = dict(networks)
        self._trace = trace
        self._sharing = sharing or DEFAULT_SHARING
        self._optimizer_s = optimizer_s
        self._samples = samples
        self._model_spread = model_spread
        self._corrections = {
            offer.name: _CorrectionTable.of(corrections[offer.name], offer)
            for offer in offers
            if corrections and offer.name in corrections and offer.quota
        }
        everywhere = len(self._corrections) == len(offers)
        least = min((table.least for table in self._corrections.values()), default=0.0)
        self._least_factor = math.exp(least if everywhere else min(least, 0.0))
        # Shares of all placements that every class of them has, from the slowest on.
        is_classed = trace.bucket_bytes.size <= _MOST_CLASSED_BUCKETS
        ends = _class_ends(samples) if is_classed else np.array([samples])
        self._weights = np.diff(ends, prepend=0) / samples
        self._slowness = _slowness(samples, ends.size)
        # The class of placements that are just slower than usual.
        self._slower = max(0, int(np.searchsorted(ends, samples // 2, side="right")) - 1)
        self._classes: dict[str, float] = {}
        # Of every class of network: transfers by world size, NaN where nobody asked yet.
        self._known_transfers: dict[float, FloatArray] = {}
        # Of every class of network: what ``_may_be_steadier`` said of world sizes.
        self._steadier: dict[float, dict[int, bool]] = {}
        self._modes: dict[StepMode, SimulatedSteps] = {}
        self._set_mode(mode)

    def _set_mode(self, mode: StepMode) -> None:
        self._mode = mode
        self._modes[mode] = self
        curves = self._plain_curves
        self._curves = {name: each.checkpointed() for name, each in curves.items()} if mode.checkpointing else curves
        self._shares = [curve.forward_share for curve in self._curves.values()]
        self._usual: dict[tuple[str, int], tuple[float, float, float]] = {}
        self._ends: tuple[int, FloatArray, FloatArray, float] | None = None
        self._latencies_s: dict[tuple[str, int, int], float] = {}
        self._device_groups: dict[Group, DeviceGroup] = {}
        self._simulators: dict[tuple[str, ...], IterationSimulator] = {}
        self._estimates: dict[Plan, StepEstimate] = {}

    def in_mode(self, mode: StepMode) -> SimulatedSteps:
        """Return the same for iterations that are run another way."""
        if mode not in self._modes:
            copy.copy(self)._set_mode(mode)
        return self._modes[mode]

    @property
    def exact(self) -> bool:
        """False: the slowest of several GPUs depends on how many of each kind there are."""
        return False

    @property
    def least_spread(self) -> float:
        """The simulator's own error, or what timed iterations leave of it."""
        return min([self._model_spread, *(table.noise for table in self._corrections.values())])

    def latency_s(self, offer: MachineOffer, batch_size: int, machines: int = 1) -> float:
        """Return the mean computation of the slowest GPU among ``machines`` of an offer."""
        key = offer.name, batch_size, machines
        if key not in self._latencies_s:
            usual_s, spread, _ = self._usual_step(offer.name, batch_size)
            self._latencies_s[key] = usual_s * mean_slowest(spread, machines * offer.devices, self._samples)
        return self._latencies_s[key]

    def gpu_s(self, offer: MachineOffer, batch_size: int) -> tuple[float, float]:
        """Return the mean computation of one GPU, less what tables of loads are off by, and its relative spread."""
        usual_s, spread, _ = self._usual_step(offer.name, batch_size)
        return usual_s / (1.0 + _TABLED * spread), spread

    def slowest_s(self, groups: Sequence[Group], plans: npt.NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
        """Return the mean computation of the slowest GPU of plans, no shorter than of one group, and its spread.

        Args:
            groups: What plans are made of.
            plans: Shape (n, m), which of these each has, by name of the offer, -1 where it has fewer.
        """
        # The last one is none.
        each = [(*self._usual_step(group.offer, group.batch_size)[:2], self._devices(group)) for group in groups]
        of_groups = np.array([*each, (0.0, 0.0, 0)])
        return expect_slowest(*np.moveaxis(of_groups[plans], -1, 0))

    def _devices(self, group: Group) -> int:
        return group.machines * self._offers[group.offer].devices

    def _usual_step(self, name: str, batch_size: int) -> tuple[float, float, float]:
        """Return both passes on one GPU of an offer, seconds, their relative spread, and how well they are known."""
        key = name, batch_size
        if key not in self._usual:
            latency = self._curves[name].predict(batch_size)
            usual_s = float(latency.forward_s[0] + latency.backward_s[0])
            self._usual[key] = usual_s, float(latency.spread[0]), float(latency.uncertainty[0])
        return self._usual[key]

    def network(self, offer: MachineOffer) -> float:
        """Return the class of an offer's network: what it reaches among some GPUs, one number per fabric."""
        if not self._classes:
            size = np.array([self._trace.total_bytes])
            for fabric in sorted({each.fabric for each in self._offers.values()}):
                value = _reached(self._networks[fabric], size)
                while value in self._classes.values():
                    value = math.nextafter(value, math.inf)
                self._classes[fabric] = value
        return self._classes[offer.fabric]

    def bound_s(self, latency_s: float | FloatArray, world_sizes: npt.NDArray[np.int64], network: float) -> FloatArray:
        """Return a lower bound of the mean iteration, shape of ``world_sizes``.

        It is the iteration at mean latencies and mean durations of transfers in every class of placements: iterations
        are convex in both, so that scatter makes their mean longer and never shorter.
        """
        worlds, places = world_sizes, np.arange(world_sizes.size)
        if np.ndim(latency_s) == 0:
            worlds, places = np.unique(world_sizes, return_inverse=True)
        # A longer forward pass shifts all else; the least share of it gives the shortest iteration of this latency.
        # Where weights are gathered beside the forward pass, that one need not count, and the largest share does.
        weights = self._weights
        bound_s = self._bounds_s(latency_s, min(self._shares), worlds, network, gathers=False) @ weights
        if self._mode.sharding is Sharding.ZERO3:
            gathered_s = self._bounds_s(latency_s, max(self._shares), worlds, network, gathers=True) @ weights
            bound_s = np.maximum(bound_s, gathered_s)
        return np.asarray(self._least_factor * (bound_s + self._optimizer_s)[places])

    def kept_s(
        self,
        latency_s: float | FloatArray,
        world_sizes: npt.NDArray[np.int64],
        network: float,
        confidence: float,
        spread: float | FloatArray | None = None,
        most_s: float = math.inf,
    ) -> FloatArray:
        """Return a lower bound of what an iteration takes at a confidence, per iteration of a run, shape (n,).

        Where transfers go one after the other, iterations follow from latency and placement, and so does how far
        placements scatter; what is subtracted is what the scatter of latencies may hide of it. Elsewhere it is what
        the least spread makes of the mean. ``most_s`` is what the slowest GPU is known to take at most.
        """
        share = min(self._shares)
        # How much of a change of latency the iteration follows on usual placements, at least.
        slope = np.where(world_sizes > 1, share, 1.0)
        is_plain = self._mode.sharding is Sharding.NONE and not self._corrections and self._is_queue
        if is_plain and ndtri(confidence) <= _MOST_QUANTILE and share >= _LEAST_FORWARD_SHARE:
            times_s = self._bounds_s(latency_s, share, world_sizes, network, gathers=False)
            weights = self._weights
            mean_s = times_s @ weights + self._optimizer_s
            apart = (times_s - (times_s @ weights)[:, None]) / mean_s[:, None]
            placed = apart**2 @ weights
            of_latency = spread
            if of_latency is None:
                offers = self._offers.items()
                of_latency = max(self._usual_step(name, 1)[1] for name, each in offers if self.network(each) >= network)
            scatter = of_latency * self._mode.accumulation_steps * latency_s / mean_s
            # How much of a change of latency the iteration follows in each class, at least: all of it where only the
            # last transfer is waited for. Then time of latency and time of placement just add up.
            low_s = latency_s * np.maximum(1.0 - _SURE_DEVIATIONS * of_latency, 0.0) + 1e-6 * latency_s
            at = [self._bounds_s(each, share, world_sizes, network, gathers=False) for each in (low_s, 0.9 * low_s)]
            change_s = np.expand_dims(0.1 * low_s * self._mode.accumulation_steps, -1)
            follows = ((at[0] - at[1]) / change_s).clip(0.0, 1.0)
            if share == max(self._shares):
                # It grows with the latency, and is no less than on slower placements; nor should the mean follow less.
                slope = np.maximum(slope, np.minimum(follows[:, self._slower], follows @ weights))
            kinked = 2.0 * _KINK * (1.0 - follows)
            hidden = np.minimum(np.sqrt(kinked**2 @ weights), 0.5 * kinked.max(axis=1)) * scatter
            # Scatter only makes a class slower: those that are slower than the mean are no nearer to it.
            nearer = 2.0 * (np.minimum(apart, 0.0) * kinked @ weights) * scatter
            own = np.maximum(np.maximum(np.sqrt(placed) - hidden, 0.0) ** 2, placed + nearer)
            own -= (1.0 - follows**2 @ weights) * scatter**2
            # Draws of latencies and of placements are not quite independent.
            own += 2.0 * (apart * follows @ (weights * self._slowness)) * scatter
            several = np.flatnonzero(world_sizes > 1)
            if several.size:
                own[several[self._may_be_steadier(network, world_sizes[several])]] = 0.0
            of_run = np.hypot(np.sqrt(np.maximum(own, 0.0)), self._model_spread)
        else:
            mean_s = self.bound_s(latency_s, world_sizes, network)
            of_run = np.full(mean_s.shape, self.least_spread)
        kept_s = mean_s * least_quantile(of_run, confidence)
        if not is_plain:
            return kept_s
        # Where the slowest GPU's curve lies at the upper end of its interval, the iteration takes so much longer at
        # least, and a part of that at a lesser confidence.
        beyond_s = np.maximum(self._least_end_s(latency_s, world_sizes, most_s) - latency_s, 0.0)
        high_s = mean_s + slope * self._mode.accumulation_steps * beyond_s
        part = min(float(ndtri(confidence)) / INTERVAL_END, 1.0)
        return np.asarray(np.maximum(kept_s, mean_s * (high_s / mean_s) ** part))

    def _least_end_s(
        self, latency_s: float | FloatArray, world_sizes: npt.NDArray[np.int64], most_s: float
    ) -> FloatArray:
        """Return the least upper end of the curves of GPUs that may be the slowest of so many, shape (n,).

        The slowest takes ``latency_s`` and less than ``most_s``. Of all batch sizes that anybody asked for, which are
        those that plans are made of.
        """
        if self._ends is None or self._ends[0] != len(self._usual):
            usual_s, spread, doubt = np.array(sorted(self._usual.values())).T
            self._ends = len(self._usual), usual_s, usual_s * np.exp(INTERVAL_END * doubt), float(spread.max())
        _, usual_s, ends_s, spread = self._ends
        some = slice(int(np.searchsorted(usual_s, most_s * (1.0 + 1e-9))))
        least_s = np.minimum.accumulate(ends_s[some][::-1])[::-1]
        least_s = np.append(least_s, least_s[-1:] if least_s.size else 0.0)
        # It takes no longer than if all GPUs, and up to twice as many, were those of the longest curve.
        doublings = np.ceil(np.log2(world_sizes)).astype(np.int64)
        longer = np.array([mean_slowest(spread, 1 << k, self._samples) for k in range(doublings.max(initial=0) + 1)])
        return np.asarray(least_s[np.searchsorted(usual_s[some], latency_s / longer[doublings] * (1.0 - 1e-9))])

    def _may_be_steadier(self, network: float, worlds: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return for which world sizes of 2 or more a faster class may be the slower network and scatter less."""
        known = self._steadier.setdefault(network, {})
        asked = np.array([world for world in worlds.tolist() if world not in known], dtype=np.int64)
        if asked.size:
            known |= zip(asked.tolist(), self._find_steadier(network, asked).tolist(), strict=True)
        return np.array([known[world] for world in worlds.tolist()])

    def _find_steadier(self, network: float, worlds: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        weights = self._weights
        duration, _ = self._transfers(network, worlds)
        found = np.zeros(worlds.shape, dtype=np.bool_)
        for other in (each for each in self._classes.values() if each > network):
            try:
                of_other, _ = self._transfers(other, worlds)
            except ProblemError:  # nobody measured it among so many
                return np.ones(worlds.shape, dtype=np.bool_)
            slower = np.tensordot(of_other - duration, weights, (1, 0)) > 0
            found |= (slower & (of_other[:, 0] < duration[:, 0])).any(axis=1)
        return found

    @property
    def _is_queue(self) -> bool:
        """Whether transfers go one after the other, each as fast as its link."""
        return self._sharing.max_in_flight == 1 and math.isinf(self._sharing.capacity_bytes_per_second)

    def _bounds_s(
        self,
        latency_s: float | FloatArray,
        share: float,
        worlds: npt.NDArray[np.int64],
        network: float,
        *,
        gathers: bool,
    ) -> FloatArray:
        """Return the iteration with such a share of forward pass; with sharded weights one of two relaxations of it.

        Shape (n, c), for every class of placements.

        Args:
            latency_s: Of both passes, one of each world size or one of all.
            share: Of the forward pass.
            worlds: Shape (n,).
            network: Class of the network.
            gathers: With sharded weights the forward pass lasts as long as they are gathered, else as it computes.
        """
        passes_s = np.repeat(np.broadcast_to(latency_s, worlds.shape)[:, None], self._weights.size, axis=1)
        forward_s = passes_s * share
        backward_s = passes_s - forward_s
        moved = Moved(*np.zeros((3, *forward_s.shape)))
        several = worlds > 1
        if several.any():
            duration, left = self._transfers(network, worlds[several])
            traffic = self._trace.bucket_bytes * (2.0 * (worlds[several] - 1) / worlds[several])[:, None, None]
            moved.exchange_s[several] = self._exchange_bound_s(backward_s[several, :1], traffic, duration, left)
            if self._mode.sharding is not Sharding.NONE:
                gathered = gather_s(traffic, traffic / duration, self._sharing)
                moved.gather_s[several], moved.first_s[several] = gathered
        if self._mode.sharding is Sharding.ZERO3:
            nothing = np.zeros(forward_s.shape)
            moved = replace(moved, first_s=nothing) if gathers else replace(moved, gather_s=nothing)
            forward_s = nothing if gathers else forward_s
        return self._mode.iteration_s(forward_s, backward_s, moved)

    def estimate(self, plan: Plan) -> StepEstimate:
        """Return the duration of an iteration of a plan."""
        if plan.mode != self._mode:
            return self.in_mode(plan.mode).estimate(plan)
        if plan not in self._estimates:
            self._estimates[plan] = self._simulate(plan)
        return self._estimates[plan]

    def _simulate(self, plan: Plan) -> StepEstimate:
        found = self._simulator(plan).estimate([self._device_group(group) for group in plan.groups])
        # What is left when the network does not scatter differs from one iteration to the next; the rest is where the
        # machines happen to stand, which stays the same for the whole run. So does the model's own error; a curve of
        # some probes is part of it, one that was predicted or is followed far beyond its probes is off by more.
        steady_sd_s = found.steady_sd_s
        placement_variance = max(found.sd_s**2 - steady_sd_s**2, 0.0)
        tables = [(self._corrections.get(group.offer), group) for group in plan.groups]
        corrected = [(0.0, 1.0, 0.0) if each is None else each.at(group) for each, group in tables]
        beyond, _, noise = max(corrected)
        left = max(share for _, share, _ in corrected)
        factor = math.exp(beyond)
        doubt = math.sqrt(left) * math.log1p(found.uncertainty_s / found.mean_s) / INTERVAL_END
        model_variance = max(left * self._model_spread**2, doubt**2) + noise**2
        shared_variance = left * placement_variance + model_variance * found.mean_s**2
        return StepEstimate(
            mean_s=factor * found.mean_s,
            sd_s=factor * math.sqrt(min(found.sd_s, steady_sd_s) ** 2 + shared_variance),
            p95_s=factor * found.p95_s,
            shared_sd_s=factor * math.sqrt(shared_variance),
            doubt=doubt,
        )

    def _device_group(self, group: Group) -> DeviceGroup:
        if group not in self._device_groups:
            curve = self._curves[group.offer]
            self._device_groups[group] = DeviceGroup(curve, self._devices(group), group.batch_size)
        return self._device_groups[group]

    def _simulator(self, plan: Plan) -> IterationSimulator:
        """Return the one of the plan's networks."""
        inside = plan.machines == 1
        offers = [self._offers[group.offer] for group in plan.groups]
        fabrics = tuple(sorted({_machine_fabric(offer) if inside else offer.fabric for offer in offers}))
        if fabrics not in self._simulators:
            self._simulators[fabrics] = IterationSimulator(
                self._trace,
                _SlowestNetwork([self._networks[fabric] for fabric in fabrics], self._samples),
                self._sharing,
                optimizer_s=self._optimizer_s,
                mode=self._mode,
                samples=self._samples,
            )
        return self._simulators[fabrics]

    def _transfers(self, network: float, world_sizes: npt.NDArray[np.int64]) -> FloatArray:
        """Mean seconds of each allreduce in a class of placements, and from its start to the end of all, one by one.

        Shape (2, n, c, buckets).
        """
        sizes, classes = self._trace.bucket_bytes, self._weights.size
        known = self._known_transfers.get(network, np.empty((2, 0, classes, sizes.size)))
        if known.shape[1] <= world_sizes.max():
            more = int(world_sizes.max()) + 1 - known.shape[1]
            known = np.concatenate([known, np.full((2, more, classes, sizes.size), np.nan)], axis=1)
            self._known_transfers[network] = known
        fabric = next(name for name, value in self._classes.items() if value == network)
        for world in np.unique(world_sizes[np.isnan(known[0, world_sizes, 0, 0])]).tolist():
            bandwidth = self._networks[fabric].bus_bandwidth(sizes, world)
            spreads = bandwidth.log_spread.tolist()
            slowed = np.array([_mean_durations(spread, self._samples, classes) for spread in spreads]).T
            duration = sizes * (2.0 * (world - 1) / world) / bandwidth.bytes_per_second * slowed
            known[:, world] = duration, np.cumsum(duration[:, ::-1], axis=1)[:, ::-1]
        return np.asarray(known[:, world_sizes])

    def _exchange_bound_s(
        self, backward_s: FloatArray, traffic: FloatArray, duration: FloatArray, left: FloatArray
    ) -> FloatArray:
        """Lower bound of the mean end of the exchange, shape (n, c).

        Args:
            backward_s: Shape (n, 1).
            traffic: Of each allreduce, shape (n, 1, buckets).
            duration: Shape (n, c, buckets).
            left: Likewise, from the start of each to the end of all.
        """
        ready = self._trace.ready_fractions * backward_s[:, :, None]
        in_flight, capacity = self._sharing.max_in_flight, self._sharing.capacity_bytes_per_second
        share = self._mode.exchanged_share
        if self._is_queue:
            # The last of the transfers ends when some one and all after it have gone through without a pause.
            return np.asarray((ready + share * left).max(axis=-1))
        # Queues of several servers and shared links are not convex; these three relaxations of them are.
        alone = (ready + share * duration).max(axis=-1)
        servers = ready.size if in_flight is None else in_flight
        queue = ready[..., 0] + share * duration.sum(axis=-1) / servers
        link = ready[..., 0] + share * traffic.sum(axis=-1) / capacity
        return np.asarray(np.maximum(np.maximum(alone, queue), link))


# Batch sizes at which corrections are computed; between them their logarithm runs straight over that of the batch.
_TABLED_BATCHES = 2.0 ** np.arange(0.0, 24.5, 0.5)


@dataclass(frozen=True)
class _CorrectionTable:
    """Corrections of an offer by machines and batch, of which the search knows the least.

    Attributes:
        machines: Shape (m,), ascending; between them the nearest counts.
        beyond: Shape (m, batches), natural logarithm of factors.
        left: Likewise, the share of doubt that is left.
        noise: Standard deviation of a measurement, relative.
    """

    machines: FloatArray
    beyond: FloatArray
    left: FloatArray
    noise: float

    @classmethod
    def of(cls, correction: SmoothCorrection, offer: MachineOffer) -> _CorrectionTable:
        """Return the table: every number of machines up to some, then ever fewer."""
        spaced = np.unique(np.round(2.0 ** np.arange(0.0, math.log2(offer.quota) + 0.25, 0.25)).astype(int))
        machines = np.union1d(spaced, np.arange(1, min(offer.quota, _LISTED_MACHINES) + 1))
        found = [correction.predict((offer.devices,) * int(count), _TABLED_BATCHES) for count in machines]
        beyond, left = np.stack([each[0] for each in found]), np.stack([each[1] for each in found])
        return cls(machines, beyond, left, math.hypot(float(found[0][2][0]), _LAUNCH_NOISE))

    @property
    def least(self) -> float:
        """Natural logarithm of the smallest factor."""
        return float(self.beyond.min())

    def at(self, group: Group) -> tuple[float, float, float]:
        """Return the natural logarithm of the factor, the share of doubt that is left, and the noise."""
        row = int(np.abs(np.log(self.machines / group.machines)).argmin())
        batch = math.log(group.batch_size), np.log(_TABLED_BATCHES)
        return float(np.interp(*batch, self.beyond[row])), float(np.interp(*batch, self.left[row])), self.noise


@dataclass(frozen=True)
class _SlowestNetwork:
    """Every transfer as slow as on the slowest of some networks, by the mean duration of a transfer."""

    networks: Sequence[NetworkModel]
    samples: int

    def bus_bandwidth(self, transfer_bytes: FloatArray, world_size: int) -> BusBandwidth:
        found = [network.bus_bandwidth(transfer_bytes, world_size) for network in self.networks]
        reached = np.stack([each.bytes_per_second for each in found])
        slowest = np.stack([_effective(each, self.samples) for each in found]).argmin(axis=0)[None]
        spread = np.stack([each.log_spread for each in found])
        return BusBandwidth(
            np.take_along_axis(reached, slowest, axis=0)[0], np.take_along_axis(spread, slowest, axis=0)[0]
        )


def _reached(network: NetworkModel, size: FloatArray) -> float:
    """Bus bandwidth among some GPUs; a network that was measured inside of one machine only has few."""
    for world_size in _REFERENCE_WORLDS:
        with contextlib.suppress(ProblemError):
            return float(network.bus_bandwidth(size, world_size).bytes_per_second[0])
    return float(network.bus_bandwidth(size, 2).bytes_per_second[0])


def _effective(bandwidth: BusBandwidth, samples: int) -> FloatArray:
    """The bandwidth at which a transfer takes its mean duration, over the placements that the simulator draws."""
    spreads, places = np.unique(bandwidth.log_spread, return_inverse=True)
    slowed = np.array([_mean_durations(spread, samples, 1)[0] for spread in spreads.tolist()])
    return np.asarray(bandwidth.bytes_per_second / slowed[places])


@functools.lru_cache(maxsize=1024)
def _mean_durations(log_spread: float, samples: int, classes: int) -> FloatArray:
    """Mean duration of a transfer in every class of placements, as a multiple of the typical one, shape (classes,)."""
    durations = np.exp(-ndtri((np.arange(samples) + 0.5) / samples) * log_spread)
    ends = _class_ends(samples) if classes > 1 else np.array([samples])
    return np.asarray(np.diff(np.cumsum(durations)[ends - 1], prepend=0.0) / np.diff(ends, prepend=0))


@functools.lru_cache(maxsize=16)
def _class_ends(samples: int) -> npt.NDArray[np.int64]:
    """Numbers of placements up to the end of each class, of all from the slowest on, ascending."""
    return np.unique(np.maximum(np.round(samples * np.array(_PLACEMENTS)).astype(np.int64), 1))


@functools.lru_cache(maxsize=16)
def _slowness(samples: int, classes: int) -> FloatArray:
    """What is drawn for the slowest of a dozen GPUs in every class of placements, in standard deviations.

    Shape (classes,). Placements and GPUs go together within classes, too: that is added in proportion to durations, so
    that with them it is as together as the draws are.
    """
    drawn = np.stack(
        [
            np.exp(-_USUAL_LOG_SPREAD * ndtri((np.arange(samples) + 0.5) / samples)),
            ndtri(even_levels(samples, 1)[even_levels(samples, 0).argsort()] ** (1.0 / 16)),
        ]
    )
    drawn = (drawn - drawn.mean(axis=1, keepdims=True)) / drawn.std(axis=1, keepdims=True)
    ends = _class_ends(samples) if classes > 1 else np.array([samples])
    counts = np.diff(ends, prepend=0)
    durations, slowness = np.diff(np.cumsum(drawn, axis=1)[:, ends - 1], prepend=0.0) / counts
    if classes == 1:
        return np.asarray(slowness)
    within = (drawn[0] @ drawn[1] - durations @ (counts * slowness)) / samples
    return np.asarray(slowness + within / (durations**2 @ counts / samples) * durations)


def _machine_fabric(offer: MachineOffer) -> str:
    return offer.machine_fabric or offer.fabric
