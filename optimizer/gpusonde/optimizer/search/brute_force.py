"""Every plan, one by one: the oracle that the other searches are tested against, for small problems."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpusonde.optimizer.evaluate import estimate_plan, rank, satisfies
from gpusonde.optimizer.plan import Group, Plan
from gpusonde.optimizer.problem import Problem, ProblemError
from gpusonde.optimizer.solution import Proof, Solution, Status
from gpusonde.optimizer.steps import StepTimes

_MOST_COMBINATIONS = 20_000_000


def every_plan(problem: Problem) -> Iterator[Plan]:
    """Yield every plan that keeps quotas, memory limits and the global batch.

    Raises:
        ProblemError: There are too many combinations.
    """
    samples = np.zeros(1, dtype=np.int64)
    chosen = np.zeros((1, 0), dtype=np.int32)
    choices: list[list[Group | None]] = []
    for offer in problem.offers:
        groups: list[Group | None] = [None]
        for batch in problem.candidates(offer):
            most = min(offer.quota, problem.global_batch // (batch * offer.devices))
            groups += [Group(offer.name, machines, batch) for machines in range(1, most + 1)]
        choices.append(groups)
        added = np.array([group.machines * group.batch_size * offer.devices if group else 0 for group in groups])
        if samples.size * added.size > _MOST_COMBINATIONS:
            raise ProblemError("the problem is too large for brute force: take the exact search")
        total = samples[:, None] + added[None, :]
        kept, taken = np.nonzero(total <= problem.global_batch)
        samples = total[kept, taken]
        chosen = np.concatenate([chosen[kept], taken[:, None].astype(np.int32)], axis=1)
    for row in chosen[samples == problem.global_batch]:
        yield Plan(tuple(group for place, groups in zip(row, choices, strict=True) if (group := groups[place])))


def brute_force(problem: Problem, steps: StepTimes) -> Solution:
    """Return the best of all plans.

    Raises:
        ProblemError: There are too many combinations.
    """
    best, explored = None, 0
    for plan in every_plan(problem):
        explored += 1
        estimate = estimate_plan(problem, plan, steps)
        if satisfies(problem, estimate) and (best is None or rank(problem, estimate) < rank(problem, best[1])):
            best = plan, estimate
    words = f"All {explored} plans that keep quotas, memory limits and the global batch were estimated."
    if best is None:
        proof = Proof("brute_force", True, None, None, words)
        return Solution(Status.INFEASIBLE, None, None, proof, "No plan keeps all limits.", explored=explored)
    plan, estimate = best
    proof = Proof("brute_force", True, rank(problem, estimate)[0], 0.0, words)
    why = f"{plan} is the best of {explored} plans."
    return Solution(Status.OPTIMAL, plan, estimate, proof, why, explored=explored)
