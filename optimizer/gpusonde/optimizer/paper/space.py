"""The space of the seed's search (Srifty, section 4.4): what it looks at, and how it approximates.

Three rules prune the configurations: batch sizes are powers of two, unless the problem names others; a device's batch
is large enough to saturate it (an offer's ``smallest_batch``, see ``saturating_batch``); all machines of one offer
have the same batch size (a ``Plan`` knows nothing else).

Where the exhaustive search would take too long there is Banchor and an integer programme: the slowest device decides,
so that a good plan gives all devices about the same latency. For every latency that some offer has at some batch size
(the anchor), each offer takes its largest batch that is not slower, and an integer programme finds the fewest machines
whose batches sum to the global batch. The simulator is asked once per anchor. Fewest machines is a proxy: neither the
cheapest nor the fastest plan need be among those it gives. Where the text is silent, what favours it: the programme
knows deadline and budget at the anchor's latency, and "below 10,000 simulations" counts plans that sum to the global
batch, not all combinations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from gpusonde.errors import ProblemError
from gpusonde.optimizer.problem import Group, MachineOffer, Plan, Problem
from gpusonde.optimizer.step_times import StepTimes

# Configurations of one offer: (samples per iteration, machines, batch per device).
_Part = tuple[int, int, int]
# Steps of the count beyond which nobody waits for it; there are more plans than anyone would search then.
_MOST_STEPS = 200_000_000


def saturating_batch(batch_sizes: Sequence[int], latencies_s: Sequence[float], share: float = 0.9) -> int:
    """Return the least batch size with which a device works at ``share`` of its highest rate (Srifty, takeaway 4).

    The seed probes "the transition from latency bound to throughput bound" and does not say where it draws the line.

    Args:
        batch_sizes: Samples per device and iteration, increasing.
        latencies_s: Seconds of a step with each.
        share: Of the highest rate, samples per second.

    Raises:
        ValueError: No batch sizes, not one latency for each, or a share outside of 0..1.
    """
    if not batch_sizes or len(batch_sizes) != len(latencies_s):
        raise ValueError("saturating_batch needs one latency for each batch size, and one batch size at least")
    if not 0 < share <= 1:
        raise ValueError(f"share must lie above 0 and not above 1, not {share}")
    rates = np.asarray(batch_sizes) / np.asarray(latencies_s)
    return int(batch_sizes[int(np.argmax(rates >= share * rates.max()))])


def paper_batches(problem: Problem, offer: MachineOffer) -> tuple[int, ...]:
    """Return the batches per device that the seed would consider, ascending."""
    sizes = problem.candidates(offer)
    return sizes if problem.batch_sizes is not None else tuple(size for size in sizes if size & (size - 1) == 0)


def count_plans(problem: Problem) -> float:
    """Return how many plans ``list_plans`` gives, exactly up to 2 ** 53, without making them.

    Infinite where even the count would take too long.
    """
    unit = _unit(problem)
    if problem.global_batch % unit:
        return 0.0
    if _steps(problem, unit) > _MOST_STEPS:
        return math.inf
    total = problem.global_batch // unit
    ways = np.zeros(total + 1)
    ways[0] = 1.0
    for _, parts in _parts(problem):
        added = ways.copy()
        for samples, _, _ in parts:
            added[samples // unit :] += ways[: total + 1 - samples // unit]
        ways = added
    return float(ways[total])


def list_plans(problem: Problem) -> Iterator[Plan]:
    """Return an iterator over all plans whose batches sum to the global batch, within quotas and batch limits.

    Raises:
        ProblemError: There are too many to begin.
    """
    unit = _unit(problem)
    if problem.global_batch % unit:
        return iter(())
    if _steps(problem, unit) > _MOST_STEPS:
        raise ProblemError("the problem is too large to look at every plan: take the anchored search")
    offers = _parts(problem)
    reachable = _reachable([parts for _, parts in offers], problem.global_batch, unit)
    return _complete(offers, reachable, unit, 0, problem.global_batch, ())


def _unit(problem: Problem) -> int:
    """What the samples of all machines have in common: every sum is a multiple of it."""
    return (
        math.gcd(*(offer.devices * batch for offer in problem.offers for batch in paper_batches(problem, offer))) or 1
    )


def _steps(problem: Problem, unit: int) -> int:
    """Additions that counting takes."""
    total = problem.global_batch // unit
    return total * sum(min(offer.quota, total) * len(paper_batches(problem, offer)) for offer in problem.offers)


def _parts(problem: Problem) -> list[tuple[str, list[_Part]]]:
    found = []
    for offer in problem.offers:
        parts = [
            (machines * offer.devices * batch, machines, batch)
            for batch in paper_batches(problem, offer)
            for machines in range(1, min(offer.quota, problem.global_batch // (offer.devices * batch)) + 1)
        ]
        found.append((offer.name, parts))
    return found


def _reachable(parts: Sequence[Sequence[_Part]], global_batch: int, unit: int) -> list[npt.NDArray[np.bool_]]:
    """For every offer, which sums it and those behind it can make, in units, and after the last one."""
    total = global_batch // unit
    reachable = [np.zeros(total + 1, dtype=bool)]
    reachable[0][0] = True
    for each in reversed(parts):
        behind = reachable[-1]
        sums = behind.copy()
        for samples in {part[0] // unit for part in each}:
            sums[samples:] |= behind[: total + 1 - samples]
        reachable.append(sums)
    return reachable[::-1]


def _complete(
    offers: Sequence[tuple[str, list[_Part]]],
    reachable: Sequence[npt.NDArray[np.bool_]],
    unit: int,
    place: int,
    left: int,
    groups: tuple[Group, ...],
) -> Iterator[Plan]:
    if place == len(offers):
        yield Plan(groups)
        return
    behind = reachable[place + 1]
    if behind[left // unit]:
        yield from _complete(offers, reachable, unit, place + 1, left, groups)
    name, parts = offers[place]
    for samples, machines, batch in parts:
        if samples <= left and behind[(left - samples) // unit]:
            group = Group(name, machines, batch)
            yield from _complete(offers, reachable, unit, place + 1, left - samples, (*groups, group))


_MOST_SECONDS = 5.0  # of one integer programme; they take milliseconds


def find_anchors(problem: Problem, steps: StepTimes) -> list[float]:
    """Return the latencies to anchor at, seconds, increasing."""
    latencies = {steps.latency_s(offer, batch) for offer in problem.offers for batch in paper_batches(problem, offer)}
    return sorted(latency for latency in latencies if math.isfinite(latency))


def banchor_plans(problem: Problem, steps: StepTimes) -> Iterator[Plan | None]:
    """Give the plan of each anchor, fastest anchor first; None for one that has none."""
    for anchor_s in find_anchors(problem, steps):
        yield anchored_plan(problem, steps, anchor_s)


def anchored_plan(problem: Problem, steps: StepTimes, anchor_s: float) -> Plan | None:
    """Return the plan of one anchor: fewest machines, none slower than the anchor; None when there is none.

    Deadline and budget are asked of the anchor's latency, which is all that an integer programme knows of the
    iteration.
    """
    if problem.deadline_s is not None and problem.iterations * anchor_s + problem.overhead_s > problem.deadline_s:
        return None
    chosen: list[tuple[MachineOffer, int]] = []
    for offer in problem.offers:
        fitting = [batch for batch in paper_batches(problem, offer) if steps.latency_s(offer, batch) <= anchor_s]
        if fitting:
            chosen.append((offer, max(fitting)))
    samples = np.array([offer.devices * batch for offer, batch in chosen], dtype=np.float64)
    quotas = np.array([offer.quota for offer, _ in chosen], dtype=np.float64)
    if not chosen or float(samples @ quotas) < problem.global_batch:
        return None
    # Slow to import; a collector starts without it.
    from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415

    constraints = [LinearConstraint(samples[None, :], problem.global_batch, problem.global_batch)]
    if problem.budget_usd is not None:
        hours = (problem.iterations * anchor_s + problem.overhead_s) / 3600.0
        prices = np.array([offer.usd_per_hour for offer, _ in chosen])
        constraints.append(LinearConstraint(hours * prices[None, :], -np.inf, problem.budget_usd))
    found = milp(
        np.ones(len(chosen)),
        constraints=constraints,
        integrality=np.ones(len(chosen), dtype=np.int64),
        bounds=Bounds(0, quotas),
        options={"time_limit": _MOST_SECONDS},
    )
    # Cut short, it still has a plan if it found any; that one need not have the fewest machines.
    if found.x is None:
        return None
    counts = [round(count) for count in found.x]
    return Plan(
        tuple(
            Group(offer.name, count, batch) for (offer, batch), count in zip(chosen, counts, strict=True) if count > 0
        )
    )
