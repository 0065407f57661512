"""The configurations that the seed's exhaustive search looks at, and how many there are (Srifty, section 4.4).

Three rules prune them: batch sizes are powers of two, unless the problem names others; a device's batch is large
enough to saturate it (an offer's ``smallest_batch``, see ``saturating_batch``); all machines of one offer have the same
batch size (a ``Plan`` knows nothing else).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from gpusonde.optimizer.plan import Group, Plan
from gpusonde.optimizer.problem import Offer, Problem

# Configurations of one offer: (samples per iteration, machines, batch per device).
_Part = tuple[int, int, int]


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


def paper_batches(problem: Problem, offer: Offer) -> tuple[int, ...]:
    """Return the batches per device that the seed would consider, ascending."""
    sizes = problem.candidates(offer)
    return sizes if problem.batch_sizes is not None else tuple(size for size in sizes if size & (size - 1) == 0)


def count_plans(problem: Problem) -> float:
    """Return how many plans ``plans`` gives, exactly up to 2 ** 53, without making them."""
    total = problem.global_batch
    ways = np.zeros(total + 1)
    ways[0] = 1.0
    for _, parts in _parts(problem):
        added = ways.copy()
        for samples, _, _ in parts:
            added[samples:] += ways[: total + 1 - samples]
        ways = added
    return float(ways[total])


def plans(problem: Problem) -> Iterator[Plan]:
    """Give every plan whose batches sum to the global batch, within quotas and batch limits."""
    offers = _parts(problem)
    reachable = _reachable([parts for _, parts in offers], problem.global_batch)
    yield from _complete(offers, reachable, 0, problem.global_batch, ())


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


def _reachable(parts: Sequence[Sequence[_Part]], total: int) -> list[npt.NDArray[np.bool_]]:
    """For every offer, which sums it and those behind it can make, shape (total + 1,)."""
    reachable = [np.zeros(total + 1, dtype=bool)]
    reachable[0][0] = True
    for each in reversed(parts):
        behind = reachable[-1]
        sums = behind.copy()
        for samples in {part[0] for part in each}:
            sums[samples:] |= behind[: total + 1 - samples]
        reachable.append(sums)
    return reachable[::-1]


def _complete(
    offers: Sequence[tuple[str, list[_Part]]],
    reachable: Sequence[npt.NDArray[np.bool_]],
    place: int,
    left: int,
    groups: tuple[Group, ...],
) -> Iterator[Plan]:
    if place == len(offers):
        yield Plan(groups)
        return
    if reachable[place + 1][left]:
        yield from _complete(offers, reachable, place + 1, left, groups)
    name, parts = offers[place]
    for samples, machines, batch in parts:
        if samples <= left and reachable[place + 1][left - samples]:
            group = Group(name, machines, batch)
            yield from _complete(offers, reachable, place + 1, left - samples, (*groups, group))
