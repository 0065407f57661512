"""Replays a cloud's recorded capacity: what would have become of a job, its deadline and its cost.

A trace of capacity is JSON: ``{"metadata": {"gap_seconds": 195}, "data": [1, 1, 0, ...]}``, the number of machines that
can be had, every ``gap_seconds``. Jobs run in simulated time against it, under the controller or another rule.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from simulated_cloud import Capacity, SimulatedCloud, SimulatedJob, SimulatedWorld, StepCapacity

from gpusonde.optimizer.continual.candidates import Solver
from gpusonde.optimizer.continual.controller import Controller, DecisionKind
from gpusonde.optimizer.continual.options import ContinualOptions
from gpusonde.optimizer.continual.runtime import Runtime
from gpusonde.optimizer.preemptions import PreemptionRates
from gpusonde.optimizer.problem import Billing, Plan, Problem
from gpusonde.optimizer.step_times import StepTimes

_MOST_BYTES = 64 << 20
_LONGEST_GAP_S = 1e9
_MOST_STEPS = 1_000_000


class TraceError(ValueError):
    """A file that is no trace of capacity; the message names it and says what is wrong."""


@dataclass(frozen=True)
class CapacityTrace:
    """Recorded capacity of an offer.

    Attributes:
        gap_s: Seconds between two counts.
        counts: Machines that could be had.
    """

    gap_s: float
    counts: tuple[int, ...]

    @property
    def duration_s(self) -> float:
        """Seconds that the trace covers."""
        return self.gap_s * len(self.counts)

    def from_moment(self, start_s: float) -> StepCapacity:
        """Return the capacity on a clock that shows zero at ``start_s`` of the trace; none after its end."""
        first = min(max(0, int(start_s // self.gap_s)), len(self.counts) - 1)
        times_s = [self.gap_s * i - start_s for i in range(first, len(self.counts) + 1)]
        return StepCapacity(times_s, [*self.counts[first:], 0])


def read_capacity(path: Path | str) -> CapacityTrace:
    """Read a trace of capacity.

    Raises:
        TraceError: The file cannot be read or is no such trace.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise TraceError(f"{path}: larger than {_MOST_BYTES >> 20} MiB")
        content = json.loads(data.decode("utf-8"))
        gap_s, counts = content["metadata"]["gap_seconds"], content["data"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"{path}: is no trace of capacity ({type(error).__name__}: {error})") from error
    if not isinstance(gap_s, int | float) or isinstance(gap_s, bool) or not 0 < gap_s <= _LONGEST_GAP_S:
        raise TraceError(f"{path}: gap_seconds must be above zero and at most {_LONGEST_GAP_S:g}")
    if not isinstance(counts, list) or not counts:
        raise TraceError(f"{path}: data must be a list of counts")
    if not all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in counts):
        raise TraceError(f"{path}: data must hold whole numbers of zero or more")
    return CapacityTrace(float(gap_s), tuple(counts))


@dataclass(frozen=True)
class Truth:
    """What the controller does not know.

    Attributes:
        factor: True iterations by estimated ones, for the whole job.
        placement_spread: Standard deviation of the natural logarithm of a further factor, drawn at every start.
        launch_s: Shortest and longest boot of a machine, drawn evenly.
        seed: Of these draws.
    """

    factor: float = 1.0
    placement_spread: float = 0.0
    launch_s: tuple[float, float] = (150.0, 150.0)
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Attributes:
        end_s: When it was done; infinite when it was not by the end of the replay.
        usd: What it cost.
        preemptions: Machines that were taken away.
        starts: How often the job was started.
        lost: Iterations that had to be done again.
        spot_share: Share of the machine hours on spot machines.
        steps: Steps of the controller.
        searches: Searches for plans.
        promised: Whether the first plan was to keep the deadline with confidence.
    """

    end_s: float
    usd: float
    preemptions: int
    starts: int
    lost: float
    spot_share: float
    steps: int
    searches: int
    promised: bool

    def met(self, deadline_s: float) -> bool:
        """Whether a deadline was kept."""
        return self.end_s <= deadline_s


def replay(
    problem: Problem,
    steps: StepTimes,
    capacity: Mapping[str, Capacity],
    truth: Truth,
    options: ContinualOptions | None = None,
    *,
    until_s: float,
    rates: PreemptionRates | None = None,
    solver: Solver | None = None,
) -> Outcome:
    """Run a job to its end under the controller, in simulated time.

    Args:
        problem: The job.
        steps: What the controller believes of iterations.
        capacity: What the cloud has, by offer; offers on demand that are missing have their quota at any time.
        truth: What happens.
        options: Times and rules of the controller.
        until_s: When to give up.
        rates: Preemptions as learned before.
        solver: Finds the best plan; None for the exact search.
    """
    options = options or ContinualOptions()
    random = np.random.default_rng(truth.seed)
    always = {o.name: StepCapacity([0.0], [o.quota]) for o in problem.offers if o.billing is Billing.ON_DEMAND}
    cloud = SimulatedCloud(
        {**always, **capacity},
        {offer.name: offer.usd_per_hour for offer in problem.offers},
        lambda _: float(random.uniform(*truth.launch_s)),
        detect_s=options.detect_s,
        release_s=options.release_s,
    )
    world = SimulatedWorld(cloud, SimulatedJob(
        problem.iterations,
        _true_step(steps, truth, random),
        save_s=options.save_s,
        restore_s=options.restore_s,
    ))  # fmt: skip
    controller = Controller(problem, steps, cloud, solver, options, rates)
    runtime = Runtime(controller, cloud, world, world, solve_s=options.solve_s)
    promised, count = None, 0
    while world.now_s() < until_s and count < _MOST_STEPS:
        decision = runtime.step()
        count += 1
        if promised is None:
            promised = not decision.recommendation.at_risk
        if decision.kind is DecisionKind.DONE:
            break
        world.wait_for_event(min(decision.next_step_s, until_s))
    cloud.terminate([machine.identifier for machine in cloud.machines()])
    spot = {offer.name for offer in problem.offers if offer.billing is Billing.SPOT}
    hours = sum(cloud.machine_hours.values())
    return Outcome(
        end_s=world.job.finished_s if world.job.finished_s is not None else math.inf,
        usd=cloud.spent_usd,
        preemptions=cloud.preempted,
        starts=world.job.starts,
        lost=world.job.lost,
        spot_share=sum(cloud.machine_hours.get(name, 0.0) for name in spot) / hours if hours > 0 else 0.0,
        steps=count,
        searches=controller.searches,
        promised=bool(promised),
    )


def only(problem: Problem, billing: Billing, *, deadline: bool = True) -> Problem:
    """Return a problem with the offers of one billing."""
    offers = tuple(offer for offer in problem.offers if offer.billing is billing)
    return replace(problem, offers=offers, deadline_s=problem.deadline_s if deadline else None)


def _true_step(steps: StepTimes, truth: Truth, random: np.random.Generator) -> Callable[[Plan], float]:
    def true_step_s(plan: Plan) -> float:
        placement = math.exp(random.normal(0.0, truth.placement_spread))
        return steps.estimate(plan).mean_s * truth.factor * placement

    return true_step_s
