"""The seed's approximation where its exhaustive search would take too long: Banchor and an integer programme.

Srifty, section 4.4: the slowest device decides, so that a good plan gives all devices about the same latency. For every
latency that some offer has at some batch size (the anchor), each offer takes its largest batch that is not slower, and
an integer programme finds the fewest machines whose batches sum to the global batch. The simulator is asked once per
anchor. Fewest machines is a proxy: neither the cheapest nor the fastest plan need be among those it gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from gpusonde.optimizer.paper.space import paper_batches
from gpusonde.optimizer.plan import Group, Plan
from gpusonde.optimizer.problem import Offer, Problem
from gpusonde.optimizer.steps import StepTimes

_MOST_SECONDS = 5.0  # of one integer programme; they take milliseconds


def anchors(problem: Problem, steps: StepTimes) -> list[float]:
    """Return the latencies to anchor at, seconds, increasing."""
    latencies = {steps.latency_s(offer, batch) for offer in problem.offers for batch in paper_batches(problem, offer)}
    return sorted(latency for latency in latencies if math.isfinite(latency))


def banchor_plans(problem: Problem, steps: StepTimes) -> Iterator[Plan | None]:
    """Give the plan of each anchor, fastest anchor first; None for one that has none."""
    for anchor_s in anchors(problem, steps):
        yield anchored_plan(problem, steps, anchor_s)


def anchored_plan(problem: Problem, steps: StepTimes, anchor_s: float) -> Plan | None:
    """Return the plan of one anchor: fewest machines, none slower than the anchor; None when there is none.

    Deadline and budget are asked of the anchor's latency, which is all that an integer programme knows of the
    iteration.
    """
    if problem.deadline_s is not None and problem.iterations * anchor_s + problem.overhead_s > problem.deadline_s:
        return None
    chosen: list[tuple[Offer, int]] = []
    for offer in problem.offers:
        fitting = [batch for batch in paper_batches(problem, offer) if steps.latency_s(offer, batch) <= anchor_s]
        if fitting:
            chosen.append((offer, max(fitting)))
    samples = np.array([offer.devices * batch for offer, batch in chosen], dtype=np.float64)
    quotas = np.array([offer.quota for offer, _ in chosen], dtype=np.float64)
    if not chosen or float(samples @ quotas) < problem.global_batch:
        return None
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
