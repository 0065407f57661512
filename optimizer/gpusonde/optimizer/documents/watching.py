"""``JobWatch``: recommendations for a job whose machines somebody else starts and ends."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gpusonde.optimizer.continual.cloud import Machine, Notice, NoticeKind, ReportedCloud
from gpusonde.optimizer.continual.controller import Controller
from gpusonde.optimizer.continual.decision import Decision, DecisionKind
from gpusonde.optimizer.continual.epochs import EpochProgress
from gpusonde.optimizer.continual.progress import ProgressWindow
from gpusonde.optimizer.documents.fields import DocumentError
from gpusonde.optimizer.documents.problem import ProblemDocument
from gpusonde.optimizer.documents.solution import plain_fields
from gpusonde.optimizer.documents.steps import simulated_steps
from gpusonde.optimizer.evaluate import check_plan
from gpusonde.optimizer.plan import Plan
from gpusonde.optimizer.problem import Problem
from gpusonde.optimizer.solution import Solution
from gpusonde.optimizer.solve import solve
from gpusonde.optimizer.steps import StepTimes

# Of older epochs only their number matters.
MOST_EPOCHS = 512
_SEARCH_S = 3.0
_TOLERANCE = 1e-3


class JobWatch:
    """Follows one job. Times are seconds on the job's clock, which begins with the job.

    Args:
        document: The whole job, from its start.
        plan: What runs; None for nothing.
        now_s: What the job's clock shows.
        spent_usd: Spent up to now.
        completed_iterations: Done up to now; where epochs tell the progress, before the first of them.
    """

    def __init__(
        self,
        document: ProblemDocument,
        plan: Plan | None = None,
        *,
        now_s: float = 0.0,
        spent_usd: float = 0.0,
        completed_iterations: float = 0.0,
    ) -> None:
        self._per_epoch = document.iterations_per_epoch
        self._cloud = ReportedCloud()
        self._controller = Controller(document.problem, simulated_steps(document), self._cloud, _solve)
        self._controller.fleet.spent_usd = spent_usd
        self._before = completed_iterations
        self._completed = completed_iterations
        self._standing: dict[str, Any] | None = None
        self._machines: dict[str, Machine] = {}
        self._launched: Counter[str] = Counter()
        self.machines(plan, now_s)
        if completed_iterations > 0:
            self.progress(now_s, completed_iterations)

    @property
    def problem(self) -> Problem:
        """The whole job."""
        return self._controller.problem

    def progress(self, now_s: float, completed_iterations: float) -> bool:
        """Take what the job says of itself; False for what cannot be, such as a time that was reported already."""
        return self._controller.observe(now_s, completed_iterations)

    def epochs(self, ends_s: Sequence[float], older: int = 0) -> None:
        """Take the epochs that stand, in place of those taken before.

        Args:
            ends_s: When the latest ended.
            older: Epochs before these.

        Raises:
            DocumentError: The problem does not say how many iterations an epoch has.
        """
        if self._per_epoch is None:
            raise DocumentError(
                "samples_per_epoch", "is missing; without it epochs do not say how many iterations are done"
            )
        self._controller.observe_epochs(_Epochs(self._per_epoch, ends_s, older, self._before))

    def machines(
        self,
        plan: Plan | None,
        now_s: float,
        *,
        rented: Mapping[str, int] | None = None,
        preempted: Mapping[str, int] | None = None,
        refused: Mapping[str, int] | None = None,
    ) -> None:
        """Take what is there now, in place of what was there before.

        Args:
            plan: What the job runs on; None while it stands.
            now_s: Since when.
            rented: Machines that are there, by offer; None for those of the plan.
            preempted: Machines that were taken away, by offer; others that are gone were ended by their owner.
            refused: Machines that were ordered and could not be had, by offer.

        Raises:
            ProblemError: The plan does not share out the global batch, or breaks another rule of the problem.
        """
        if plan is not None:
            check_plan(self.problem, plan)
        fleet = self._controller.fleet
        fleet.update(now_s)
        self._standing = None
        wanted = {group.offer: group.machines for group in plan.groups} if plan else {}
        for offer, machines in (rented or {}).items():
            wanted[offer] = max(machines, wanted.get(offer, 0))
        running: dict[str, Machine] = {}
        notices: list[Notice] = []
        for offer in {machine.offer for machine in self._machines.values()} | set(wanted):
            names = [name for name, machine in self._machines.items() if machine.offer == offer]
            lost = min((preempted or {}).get(offer, 0), len(names))
            notices += [Notice(NoticeKind.PREEMPTED, name, offer) for name in names[len(names) - lost :]]
            left = names[: len(names) - lost]
            kept = left[: wanted.get(offer, 0)]
            fleet.ended(left[len(kept) :])
            for _ in range(wanted.get(offer, 0) - len(kept)):
                self._launched[offer] += 1
                kept.append(f"{offer}/{self._launched[offer]}")
            running |= {name: Machine(name, offer, ready=True) for name in kept}
        for offer, machines in (refused or {}).items():
            names = [f"{offer}/refused-{number}" for number in range(min(machines, 1000))]
            self._controller.ordered(offer, names, now_s)
            notices += [Notice(NoticeKind.REFUSED, name, offer) for name in names]
        self._machines = running
        self._cloud.report(running.values(), notices)
        if plan is None:
            self._controller.detach()
        elif plan != self._controller.running:
            self._controller.attach(plan, self._for_plan(plan))
            self._controller.window.clear()

    def recommend(self, now_s: float) -> dict[str, Any]:
        """Return what to do now, as plain values.

        Raises:
            ValueError: The time is not finite.
        """
        standing = self._standing
        if standing is not None and now_s < standing["at_s"] + self._controller.options.review_s:
            return self._still(standing, now_s)
        decision = self._controller.step(now_s)
        if standing is not None and decision.kind is DecisionKind.KEEP and not decision.solved:
            # The controller takes what it says once for done or refused; a person may need longer.
            return self._still(standing, now_s)
        found = self._document(decision)
        self._standing = found if decision.kind is DecisionKind.LAUNCH else None
        return found

    def _still(self, standing: dict[str, Any], now_s: float) -> dict[str, Any]:
        """What was recommended before, with the progress of now."""
        return {**standing, **self._progress(), "at_s": now_s}

    def _for_plan(self, plan: Plan) -> list[str]:
        """Machines that make up a plan."""
        names: list[str] = []
        for group in plan.groups:
            names += [name for name, machine in self._machines.items() if machine.offer == group.offer][
                : group.machines
            ]
        return names

    def _document(self, decision: Decision) -> dict[str, Any]:
        found = plain_fields(decision.recommendation)
        for key in ("launch", "end"):
            found[key] = [{"offer": offer, "machines": machines} for offer, machines in found[key]]
        return {
            "kind": str(decision.kind),
            "at_s": decision.at_s,
            "plan": found.pop("plan"),
            **found,
            **self._progress(),
        }

    def _progress(self) -> dict[str, Any]:
        window, iterations = self._controller.window, self.problem.iterations
        throughput = window.throughput()
        # After a change of machines the window is empty, but what is done is done.
        completed = min(window.completed if len(window) else self._completed, float(iterations))
        self._completed = completed
        return {
            "completed_iterations": completed,
            "remaining_iterations": iterations - completed,
            "throughput": None if throughput is None else plain_fields(throughput),
        }


class _Epochs(EpochProgress):
    """Epochs that all stand as they are."""

    def __init__(self, per_epoch: float, ends_s: Sequence[float], older: int, before: float) -> None:
        super().__init__(per_epoch)
        self._before = before + older * per_epoch
        self._ends = sorted(end_s for end_s in ends_s[-MOST_EPOCHS:] if math.isfinite(end_s))

    @property
    def completed(self) -> float:
        return self._before + len(self._ends) * self._per_epoch

    def window(self, window_s: float = 300.0, *, confidence: float = 0.95) -> ProgressWindow:
        window = ProgressWindow(window_s, confidence=confidence)
        for number, end_s in enumerate(self._ends, start=1):
            window.observe(end_s, self._before + number * self._per_epoch)
        return window


def _solve(problem: Problem, steps: StepTimes) -> Solution:
    # Some searches make one recommendation, and the job waits for none of them.
    return solve(problem, steps, explain=False, tolerance=_TOLERANCE, time_limit_s=_SEARCH_S)
