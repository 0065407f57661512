"""What a controller answers: a ``Recommendation`` for people, a ``Decision`` for the runtime that carries it out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gpusonde.optimizer.continual.progress import Projection
from gpusonde.optimizer.plan import Plan


class DecisionKind(str, Enum):
    """What is to be done now."""

    LAUNCH = "launch"  # order machines; what runs goes on meanwhile
    WAIT = "wait"  # for machines that boot, or for a volume
    RUN = "run"  # every machine is there: start the job on the plan
    KEEP = "keep"  # the running plan stays
    IDLE = "idle"  # nothing runs, and waiting for cheaper capacity is the best there is
    NO_PLAN = "no_plan"  # nothing that can be had does the job
    DONE = "done"  # every iteration is done

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Recommendation:
    """What to rent from now on, and what comes of it. Times count on the job's clock.

    Attributes:
        plan: The plan to run, or that runs; None when there is none.
        launch: Machines to launch now, by offer.
        end: Machines to end now, by offer.
        projection: When the job will end on the plan; None without a plan.
        remaining_iterations: Iterations that are left.
        spent_usd: Spent so far.
        expected_usd: Spent when the job ends, in the mean; None without a plan.
        checkpoint_interval_s: Seconds of work between two checkpoints; infinite when none are needed.
        at_risk: True when deadline or budget cannot be kept with confidence.
        fallback: The on-demand plan that keeps the deadline if all spot machines go; None when not needed or none does.
        fallback_before_s: Latest time at which spot machines can still be left for it; None likewise.
        why: The reasons, for people.
    """

    plan: Plan | None
    launch: tuple[tuple[str, int], ...]
    end: tuple[tuple[str, int], ...]
    projection: Projection | None
    remaining_iterations: float
    spent_usd: float
    expected_usd: float | None
    checkpoint_interval_s: float
    at_risk: bool
    fallback: Plan | None
    fallback_before_s: float | None
    why: str


@dataclass(frozen=True)
class Decision:
    """One step's outcome.

    Attributes:
        kind: What is to be done.
        at_s: When it was decided, on the job's clock.
        recommendation: The same for people.
        machines: With ``RUN``: machines to start the job on.
        terminate: Machines to end.
        next_step_s: When to look again at the latest.
        solved: True when plans were searched for, which takes time.
    """

    kind: DecisionKind
    at_s: float
    recommendation: Recommendation
    machines: tuple[str, ...] = ()
    terminate: tuple[str, ...] = ()
    next_step_s: float = 0.0
    solved: bool = False
