"""``Space``: everything that can be chosen, as arrays; which world sizes reach the global batch, and every plan.

The world sizes follow by arithmetic without prices, for all of them at once. ``every_plan`` lists the plans of small
problems one by one, the oracle that the searches are tested against.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpusonde.errors import ProblemError
from gpusonde.optimizer.problem import Group, MachineOffer, Plan, Problem
from gpusonde.optimizer.solution import Proof, Solution, Status, estimate_plan, rank, satisfies
from gpusonde.optimizer.step_times import StepTimes, steps_in_mode

_MOST_COMBINATIONS = 20_000_000


def with_spare_modes(problem: Problem) -> Problem:
    """Return a problem that may run iterations in the modes that are meant for want of another plan."""
    return replace(problem, modes=tuple(dict.fromkeys((*problem.modes, *problem.spare_modes))), spare_modes=())


def count_combinations(problem: Problem) -> int:
    """Return how many choices of machines and batches a part has, whatever their samples."""
    count = 1
    for offer in problem.offers:
        batches = problem.candidates(offer)
        count *= 1 + sum(min(offer.quota, problem.samples // (batch * offer.devices)) for batch in batches)
    return count


def every_plan(problem: Problem) -> Iterator[Plan]:
    """Yield every plan of a part that keeps quotas, memory limits and the global batch.

    Raises:
        ProblemError: There are too many combinations.
    """
    samples = np.zeros(1, dtype=np.int64)
    chosen = np.zeros((1, 0), dtype=np.int32)
    choices: list[list[Group | None]] = []
    for offer in problem.offers:
        groups: list[Group | None] = [None]
        for batch in problem.candidates(offer):
            most = min(offer.quota, problem.samples // (batch * offer.devices))
            groups += [Group(offer.name, machines, batch) for machines in range(1, most + 1)]
        choices.append(groups)
        added = np.array([group.machines * group.batch_size * offer.devices if group else 0 for group in groups])
        if samples.size * added.size > _MOST_COMBINATIONS:
            raise ProblemError("the problem is too large for brute force: take the exact search")
        total = samples[:, None] + added[None, :]
        kept, taken = np.nonzero(total <= problem.samples)
        samples = total[kept, taken]
        chosen = np.concatenate([chosen[kept], taken[:, None].astype(np.int32)], axis=1)
    for row in chosen[samples == problem.samples][: None if problem.samples else 0]:
        found = (group for place, of_offer in zip(row, choices, strict=True) if (group := of_offer[place]))
        plan = Plan(tuple(found), problem.mode)
        devices = plan.devices(problem.offers)
        fits = all(problem.least_devices(problem.offer(g.offer), g.batch_size) <= devices for g in plan.groups)
        if fits and problem.broken_quota(plan) is None:
            yield plan


def brute_force(problem: Problem, steps: StepTimes) -> Solution:
    """Return the best of all plans.

    Raises:
        ProblemError: There are too many combinations.
    """
    best, explored = None, 0
    for plan in itertools.chain.from_iterable(map(every_plan, problem.parts())):
        explored += 1
        estimate = estimate_plan(problem, plan, steps)
        if satisfies(problem, estimate) and (best is None or rank(problem, estimate) < rank(problem, best[1])):
            best = plan, estimate
    words = f"All {explored} plans that keep quotas, memory limits and the global batch were estimated."
    if best is None and problem.spare_modes:
        return brute_force(with_spare_modes(problem), steps)
    if best is None:
        proof = Proof("brute_force", True, None, None, words)
        return Solution(Status.INFEASIBLE, None, None, proof, "No plan keeps all limits.", explored=explored)
    plan, estimate = best
    proof = Proof("brute_force", True, rank(problem, estimate)[0], 0.0, words)
    why = f"{plan} is the best of {explored} plans."
    return Solution(Status.OPTIMAL, plan, estimate, proof, why, explored=explored)


FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_MOST_OPTIONS = 2_000_000
# Numbers of machines whose latencies are asked for have this many significant bits.
_LEADING_BITS = 4


@dataclass(frozen=True)
class Options:
    """What can be taken of one offer: some machines with one batch size, by latency.

    Attributes:
        offer: The offer.
        network: Class of its network.
        machines: Shape (n,).
        batch_sizes: Shape (n,), samples per GPU.
        devices: Shape (n,), GPUs of all machines.
        samples: Shape (n,), samples of all machines per iteration, in units of the space.
        usd_per_hour: Shape (n,), of all machines.
        toll_usd: Shape (n,), what all machines cost besides, however long they run.
        latency_s: Shape (n,), of the slowest GPU, ascending.
        gpu_s: Shape (n,), of one GPU; 0 where its scatter is not known.
        gpu_spread: Shape (n,), relative standard deviation of that.
        least_devices: Shape (n,), GPUs that a plan with it must have, so that the job fits into memory.
    """

    offer: MachineOffer
    network: float
    machines: IntArray
    batch_sizes: IntArray
    devices: IntArray
    samples: IntArray
    usd_per_hour: FloatArray
    toll_usd: FloatArray
    latency_s: FloatArray
    gpu_s: FloatArray
    gpu_spread: FloatArray
    least_devices: IntArray

    def group(self, place: int) -> Group:
        """Return one option as a group."""
        return Group(self.offer.name, int(self.machines[place]), int(self.batch_sizes[place]))


@dataclass(frozen=True)
class Space:
    """All options of a problem for one global batch.

    Attributes:
        options: One entry per offer that can take part.
        unit: Samples that all options and, where a plan exists, the global batch are multiples of.
        samples: The global batch in units.
        exact: Iterations follow from latency, GPUs and network, and what counts follows from them and the price.
        single: Plans on one machine only. They are no options: their network is the machine's own, so they are
            estimated one by one.
        overhead_s: Seconds of a run before and after its iterations.
        iterations: Iterations of a run.
        kept_s: Lower bound of an iteration at the problem's confidence, of latency, world sizes and network; None where
            there is no deadline, or only the mean is known.
    """

    options: tuple[Options, ...]
    unit: int
    samples: int
    exact: bool
    single: tuple[Plan, ...]
    overhead_s: float
    iterations: int
    kept_s: Callable[..., FloatArray] | None

    def hourly(self, step_s: FloatArray) -> FloatArray:
        """Return which share of a toll falls on an hour of runs with such iterations, shape of ``step_s``."""
        return np.asarray(3600.0 / (self.overhead_s + self.iterations * step_s))


def make_space(problem: Problem, steps: StepTimes, tolls: Mapping[str, float] | None = None) -> Space | None:
    """Return what can be chosen; None when no offer can take part.

    Args:
        problem: A part of a problem.
        steps: Durations of iterations.
        tolls: What a machine costs besides its price, USD by name of the offer.

    Raises:
        ProblemError: There are too many options.
    """
    steps = steps_in_mode(steps, problem.mode)
    groups = []
    single = []
    for offer in problem.offers:
        counted: list[tuple[int, int]] = []
        for batch in problem.candidates(offer):
            most = min(offer.quota, problem.samples // (batch * offer.devices))
            if most and math.isfinite(steps.latency_s(offer, batch)):
                counted.append((batch, most))
                if batch * offer.devices == problem.samples and problem.least_devices(offer, batch) <= offer.devices:
                    single.append(Plan((Group(offer.name, 1, batch),), problem.mode))
        if counted:
            groups.append((offer, counted))
    if not groups:
        return None
    if sum(most for _, counted in groups for _, most in counted) > _MOST_OPTIONS:
        raise ProblemError("there are too many ways to choose: give fewer batch_sizes, or quotas that are needed")
    unit = math.gcd(*(batch * offer.devices for offer, counted in groups for batch, _ in counted))
    if problem.samples % unit:
        return None
    tolls = tolls or {}
    found = tuple(
        _options(problem, offer, counted, unit, steps, tolls.get(offer.name, 0.0)) for offer, counted in groups
    )
    # The cheapest plan with tolls may break a budget that dearer ones with fewer tolls keep.
    exact = steps.exact and not problem.needs_every_plan and (problem.budget_usd is None or not any(tolls.values()))
    samples = problem.samples // unit
    kept_s = None
    if problem.deadline_s is not None and hasattr(steps, "kept_s"):
        kept_s = functools.partial(steps.kept_s, confidence=problem.confidence)
    return Space(found, unit, samples, exact, tuple(single), problem.overhead_s, problem.iterations, kept_s)


def _options(
    problem: Problem,
    offer: MachineOffer,
    counted: list[tuple[int, int]],
    unit: int,
    steps: StepTimes,
    toll_usd: float,
) -> Options:
    machines = np.concatenate([np.arange(1, most + 1) for _, most in counted])
    batches = np.repeat([batch for batch, _ in counted], [most for _, most in counted])
    if steps.exact:
        of_batch = {batch: steps.latency_s(offer, batch) for batch, _ in counted}
        latency = np.array([of_batch[batch] for batch in batches.tolist()])
    else:
        # The slowest of somewhat fewer machines is a bound as good, and there are far fewer such numbers.
        dropped = np.maximum(np.floor(np.log2(machines)).astype(np.int64) - _LEADING_BITS + 1, 0)
        pairs, which = np.unique(np.stack([batches, machines >> dropped << dropped]), axis=1, return_inverse=True)
        each = [steps.latency_s(offer, batch, count) for batch, count in pairs.T.tolist()]
        latency = np.array(each)[which.ravel()]
    # A single machine with the whole batch is a plan of its own, and cannot be part of another one.
    kept = (machines > 1) | (batches * offer.devices < problem.samples)
    order = np.flatnonzero(kept)[np.argsort(latency[kept], kind="stable")]
    machines, batches = machines[order], batches[order]
    devices = machines * offer.devices
    least = {batch: problem.least_devices(offer, batch) for batch, _ in counted}
    of_gpu = getattr(steps, "gpu_s", lambda offer, batch: (0.0, 0.0))
    gpu = {batch: of_gpu(offer, batch) for batch, _ in counted}
    return Options(
        offer=offer,
        network=steps.network(offer),
        machines=machines,
        batch_sizes=batches,
        devices=devices,
        samples=devices * batches // unit,
        usd_per_hour=machines * offer.usd_per_hour,
        toll_usd=machines * toll_usd,
        latency_s=latency[order],
        gpu_s=np.array([gpu[batch][0] for batch in batches.tolist()]),
        gpu_spread=np.array([gpu[batch][1] for batch in batches.tolist()]),
        least_devices=np.array([least[batch] for batch in batches.tolist()], dtype=np.int64),
    )


BoolArray = npt.NDArray[np.bool_]

# Tables of more entries than this are not made.
_MOST_ENTRIES = 64_000_000


def reachable_worlds(
    options: Sequence[Options],
    counts: Sequence[int],
    world_sizes: IntArray,
    samples: int,
    check_time: Callable[[], None],
) -> BoolArray:
    """Return for which world sizes some machines make exactly that many GPUs and samples, shape of ``world_sizes``.

    Args:
        options: Of every offer.
        counts: How many of them, from the first on, may be taken.
        world_sizes: Ascending.
        samples: The global batch, in units.
        check_time: Called now and then.

    Returns:
        All true where the tables would be too large to find out.
    """
    unit = math.gcd(*(each.offer.devices for each in options))
    most = int(world_sizes[-1]) // unit
    if (most + 1) * (samples + 1) > _MOST_ENTRIES:
        return np.ones(world_sizes.shape, dtype=np.bool_)
    # One number holds the table, a bit for each entry: a row of samples for every number of GPUs. A row is twice as
    # long as is needed, so that sums of two entries of it do not reach the next one.
    row = 2 * (samples + 1)
    entries = np.zeros((most + 1, row), dtype=np.bool_)
    entries[:, : samples + 1] = True
    valid = int.from_bytes(np.packbits(entries, bitorder="little").tobytes(), "little")
    table = 1
    for each, count in zip(options, counts, strict=True):
        with_offer = table
        for batch in np.unique(each.batch_sizes[:count]).tolist():
            check_time()
            first = int(np.flatnonzero(each.batch_sizes[:count] == batch)[0])
            devices = each.offer.devices // unit
            per_machine = int(each.samples[first] // each.machines[first])
            machines = int(each.machines[:count][each.batch_sizes[:count] == batch].max())
            left, step, reached = min(machines, most // devices, samples // per_machine), 1, table
            # Doubling reaches every number of machines up to the most.
            while left > 0:
                taken = min(step, left)
                reached |= reached << taken * (devices * row + per_machine) & valid
                left -= taken
                step *= 2
            with_offer |= reached
        table = with_offer
    found = np.frombuffer(table.to_bytes((entries.size + 7) // 8, "little"), dtype=np.uint8)
    places = world_sizes // unit * row + samples
    return np.asarray(found[places // 8] >> (places % 8) & 1, dtype=np.bool_)
