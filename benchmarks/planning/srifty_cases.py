"""The seed's case studies 1-7 as problems that can be solved (Srifty, section 5.2).

What the seed measured stands here as a table: configurations, seconds and prices. Only these configurations can be
chosen in a case, for nobody knows what others would have taken. A machine counts as one device, as in the seed, whose
batch sizes are those of a machine.

The seed's text contradicts itself in places; ``Row.note`` says where, and the figures that cannot be right are left
out:

* case 4: "4gdn@64" sums to 256 samples, not to 1024; it is no answer to the problem;
* case 5: 0.223 / 0.174 is 1.28, the text says 1.26;
* case 6: FGF's "$6.74" is twice what 787 s of its machines cost; CGF's batches sum to 2560, not to 2176.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.optimizer.problem import Billing, Group, MachineOffer, Objective, Plan, Problem
from gpusonde.optimizer.step_times import StepEstimate

# USD per machine and hour, spot (Srifty, table 3), and the GPUs of a machine.
PRICES = {"p3.8xl": 3.68, "g3.8xl": 0.69, "g4dn.8xl": 0.72}
_DEVICES = {"p3.8xl": "4 x Tesla V100", "g3.8xl": "2 x Tesla M60", "g4dn.8xl": "Tesla T4"}
# Fastest GPU first, as FGF takes them.
SPEED_ORDER = ("p3.8xl", "g4dn.8xl", "g3.8xl")


@dataclass(frozen=True)
class Row:
    """A configuration that the seed measured.

    Attributes:
        plan: The configuration.
        step_s: Seconds of an iteration.
        chosen_by: Who chose it.
        published_usd: Cost of the whole job (cases 6 and 7) that stands in the text; None where there is none.
        note: What is wrong with the row in the text; empty when nothing is.
    """

    plan: Plan
    step_s: float
    chosen_by: tuple[str, ...]
    published_usd: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Case:
    """A case study.

    Attributes:
        number: Its number in the seed.
        network: What is trained.
        problem: What is asked for; its batch sizes are those that occur in the rows.
        rows: What was measured.
    """

    number: int
    network: str
    problem: Problem
    rows: tuple[Row, ...]

    def chosen_by(self, who: str) -> Plan | None:
        """Return the plan that someone chose, "Srifty" for the seed itself; None when they chose none."""
        return next((row.plan for row in self.rows if who in row.chosen_by), None)

    @property
    def steps(self) -> PublishedSteps:
        """Seconds of an iteration of every configuration that answers the problem."""
        offers, wanted = self.problem.offers, self.problem.global_batch
        return PublishedSteps({row.plan: row.step_s for row in self.rows if row.plan.global_batch(offers) == wanted})


class PublishedSteps:
    """Step times of some plans, looked up; all others take for ever (implements ``StepTimes``).

    Args:
        step_s: Seconds of an iteration by plan.
    """

    exact = False

    def __init__(self, step_s: Mapping[Plan, float]) -> None:
        self._step_s = dict(step_s)

    def latency_s(self, offer: MachineOffer, batch_size: int, machines: int = 1) -> float:
        """Return the shortest iteration of a plan in which the offer has this batch; infinite when there is none."""
        return min(
            (
                seconds
                for plan, seconds in self._step_s.items()
                for group in plan.groups
                if (group.offer, group.batch_size) == (offer.name, batch_size)
            ),
            default=math.inf,
        )

    def network(self, offer: MachineOffer) -> float:
        """Return one class for all offers: what a network does is in the iterations already."""
        return 0.0

    def bound_s(self, latency_s: float, world_sizes: npt.NDArray[np.int64], network: float) -> npt.NDArray[np.float64]:
        """Return ``latency_s``, below which no plan with that latency lies."""
        return np.full(np.shape(world_sizes), latency_s)

    def estimate(self, plan: Plan) -> StepEstimate:
        """Return what was published; infinite for a plan that was not."""
        seconds = self._step_s.get(plan, math.inf)
        return StepEstimate(seconds, 0.0, seconds)


def cases() -> tuple[Case, ...]:
    """Return the case studies 1-7."""
    return (
        _case(1, "ResNet50", 128, {"g4dn.8xl": (64, 128)}, Objective.TIME, [
            _row("16 g4dn.8xl @ 8", 0.13, "Srifty"),
            _row("8 g4dn.8xl @ 16", 0.17, "Oracle-BO", "Paleo"),
            _row("32 g4dn.8xl @ 4", 0.17, "APM"),
            _row("2 g4dn.8xl @ 64", 0.58, "FGF"),
            _row("1 g4dn.8xl @ 128", 1.1, "CGF"),
        ]),
        _case(2, "Vgg16", 512, {"g3.8xl": (64, 64)}, Objective.TIME, [
            _row("32 g3.8xl @ 16", 1.03, "Srifty"),
            _row("8 g3.8xl @ 64", 1.11, "Paleo", "APM", "FGF", "CGF", "Oracle-BO"),
        ]),
        _case(3, "AlexNet", 1024, {"g3.8xl": (64, 2048)}, Objective.TIME, [
            _row("2 g3.8xl @ 512", 0.415, "Srifty", "Paleo", "APM"),
            _row("16 g3.8xl @ 64", 0.425, "Oracle-BO", "FGF"),
            _row("1 g3.8xl @ 1024", 0.535, "CGF"),
        ], smallest_batch=64),
        # "-" in table 3: DLRM does not run on g3 machines.
        _case(4, "DLRM", 1024, {"g4dn.8xl": (32, 131072), "g3.8xl": (32, 0)}, Objective.COST, [
            _cost_row("1 g4dn.8xl @ 1024", 0.0024, "Srifty", "APM", "CGF"),
            _cost_row("16 g4dn.8xl @ 64", 0.601, "FGF"),
            _cost_row("4 g4dn.8xl @ 64", 0.130, "Oracle-BO", note="sums to 256 samples, not to 1024"),
        ]),
        _case(5, "XLM", 512, {"g4dn.8xl": (32, 128), "g3.8xl": (32, 64)}, Objective.COST, [
            _cost_row("4 g4dn.8xl @ 128", 0.174, "Srifty"),
            _cost_row("8 g3.8xl @ 64", 0.223, "APM", "CGF"),
            _cost_row("8 g4dn.8xl @ 64", 0.197, "FGF", "Oracle-BO"),
        ]),
        _case(5, "BERT", 1024, {"g4dn.8xl": (32, 64), "g3.8xl": (32, 64)}, Objective.COST, [
            _cost_row("16 g3.8xl @ 64", 0.343, "Srifty", "APM", "CGF", "Oracle-BO"),
            _cost_row("16 g4dn.8xl @ 64", 0.416, "FGF"),
        ]),
        _case(6, "Inception v3", 2176, {"p3.8xl": (4, 512), "g3.8xl": (8, 128), "g4dn.8xl": (8, 128)},
              Objective.TIME, [
            _job_row("4 p3.8xl @ 512 + 4 g4dn.8xl @ 32", 259, 500, 1.26, "Srifty"),
            _job_row("4 p3.8xl @ 512 + 8 g4dn.8xl @ 16", 260, 500, 1.47, "APM"),
            _job_row("4 p3.8xl @ 512 + 1 g4dn.8xl @ 128", 787, 500, None, "FGF",
                     note="the text says 6.74 USD, twice what these machines cost in that time"),
            _job_row("1 p3.8xl @ 512 + 8 g3.8xl @ 128 + 8 g4dn.8xl @ 128", 787, 500, 3.26, "CGF",
                     note="sums to 2560 samples, not to 2176"),
        ], iterations=500, deadline_s=300.0, budget_usd=1.3),
        _case(7, "ShuffleNet", 6144, {"p3.8xl": (4, 1024), "g3.8xl": (8, 256), "g4dn.8xl": (8, 256)},
              Objective.TIME, [
            _job_row("4 p3.8xl @ 1024 + 8 g3.8xl @ 128 + 8 g4dn.8xl @ 128", 381, 1000, 2.74, "APM"),
            _job_row("4 p3.8xl @ 1024 + 8 g4dn.8xl @ 256", 759, 1000, 4.31, "FGF"),
            _job_row("2 p3.8xl @ 1024 + 8 g3.8xl @ 256 + 8 g4dn.8xl @ 256", 761, 1000, 3.93, "CGF"),
        ], iterations=1000, deadline_s=360.0, budget_usd=2.5),
    )  # fmt: skip


def _case(
    number: int,
    network: str,
    global_batch: int,
    limits: dict[str, tuple[int, int]],
    objective: Objective,
    rows: list[Row],
    *,
    iterations: int = 1,
    deadline_s: float | None = None,
    budget_usd: float | None = None,
    smallest_batch: int = 1,
) -> Case:
    """Make a case; ``limits`` gives quota and largest batch of each offer."""
    offers = tuple(
        MachineOffer(
            name=name,
            device=_DEVICES[name],
            devices=1,
            quota=quota,
            usd_per_hour=PRICES[name],
            billing=Billing.SPOT,
            smallest_batch=smallest_batch,
            largest_batch=largest,
        )
        for name, (quota, largest) in limits.items()
    )
    problem = Problem(
        global_batch=global_batch,
        iterations=iterations,
        offers=offers,
        objective=objective,
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        batch_sizes=tuple({group.batch_size for row in rows for group in row.plan.groups}),
    )
    return Case(number, network, problem, tuple(rows))


def _row(plan: str, step_s: float, *chosen_by: str) -> Row:
    return Row(_plan(plan), step_s, chosen_by)


def _cost_row(plan: str, cents: float, *chosen_by: str, note: str = "") -> Row:
    """Make a row of the seconds that cost so many US cents."""
    parsed = _plan(plan)
    usd_per_hour = sum(group.machines * PRICES[group.offer] for group in parsed.groups)
    return Row(parsed, cents / 100.0 * 3600.0 / usd_per_hour, chosen_by, note=note)


def _job_row(plan: str, seconds: float, iterations: int, usd: float | None, *chosen_by: str, note: str = "") -> Row:
    return Row(_plan(plan), seconds / iterations, chosen_by, usd, note)


def _plan(text: str) -> Plan:
    groups = []
    for part in text.split(" + "):
        machines, offer, _, batch = part.split()
        groups.append(Group(offer, int(machines), int(batch)))
    return Plan(tuple(groups))
