"""``Solution``: the plan that was chosen, and why it is the right one."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from gpusonde.optimizer.plan import Plan
from gpusonde.optimizer.steps import StepEstimate


class Status(Enum):
    """What a search found out."""

    OPTIMAL = "optimal"  # no plan is better, and that is proven
    FEASIBLE = "feasible"  # the plan satisfies everything; a better one may exist
    INFEASIBLE = "infeasible"  # no plan satisfies everything
    UNKNOWN = "unknown"  # the search ended at its limit before it found a plan, or that none exists


@dataclass(frozen=True)
class PlanEstimate:
    """What a plan takes and costs until the job is done.

    Attributes:
        time_s: Mean time, overhead included.
        time_at_confidence_s: Time that is kept with the problem's confidence.
        cost_usd: Mean cost.
        cost_at_confidence_usd: Cost when it takes ``time_at_confidence_s``.
        usd_per_hour: Price of its machines.
        step: One iteration.
    """

    time_s: float
    time_at_confidence_s: float
    cost_usd: float
    cost_at_confidence_usd: float
    usd_per_hour: float
    step: StepEstimate


@dataclass(frozen=True)
class Proof:
    """What was searched.

    Attributes:
        method: ``exact``, ``paper`` or ``brute_force``.
        complete: True when every plan was looked at or excluded by a bound.
        bound: No plan that satisfies everything has a lower objective, seconds or USD; None when there is no such plan
            or the method proves nothing.
        gap: How far the plan may be from the optimum, relative; 0 when it is one; None likewise.
        words: The same for people.
    """

    method: str
    complete: bool
    bound: float | None
    gap: float | None
    words: str


@dataclass(frozen=True)
class Relaxation:
    """What giving way at one limit buys.

    Attributes:
        limit: ``budget_usd``, ``deadline_s`` or ``quota of NAME``.
        change: In words, such as "+10 %".
        plan: Best plan then; None when there is still none.
        time_s: Its mean time; None likewise.
        cost_usd: Its mean cost; None likewise.
        words: The same for people.
    """

    limit: str
    change: str
    plan: Plan | None
    time_s: float | None
    cost_usd: float | None
    words: str


@dataclass(frozen=True)
class Nearest:
    """The plan that violates the limits least, when none satisfies them.

    Attributes:
        plan: The plan.
        estimate: What it takes and costs.
        global_batch: Its samples per iteration; another one than asked for when that one cannot be split.
        words: What it violates, and by how much.
    """

    plan: Plan
    estimate: PlanEstimate
    global_batch: int
    words: str


@dataclass(frozen=True)
class Solution:
    """Answer to a problem.

    Attributes:
        status: What the search found out.
        plan: The plan; None when there is none.
        estimate: What it takes and costs; None likewise.
        proof: What was searched.
        why: Why this plan, or why none, for people.
        binding: Limits that keep the objective from being lower: ``deadline_s``, ``budget_usd``, ``quota of NAME``,
            ``memory of NAME``, ``smallest batch of NAME``.
        relaxations: What giving way at these buys.
        nearest: When there is no plan: the one that violates least; None when there is not even such a one.
        explored: Plans or states that were looked at.
    """

    status: Status
    plan: Plan | None
    estimate: PlanEstimate | None
    proof: Proof
    why: str
    binding: tuple[str, ...] = ()
    relaxations: tuple[Relaxation, ...] = field(default=())
    nearest: Nearest | None = None
    explored: int = 0
