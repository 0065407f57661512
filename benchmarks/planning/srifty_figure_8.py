"""The seed's time line of a service interrupt (Srifty, section 5.4 and figure 8), played in simulated time.

The seed published what its optimizer projected and what then happened on EC2. The world is made from the latter, the
controller gets the former; what is compared is when it does what.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulated_cloud import SimulatedCloud, SimulatedJob, SimulatedWorld, StepCapacity

from gpusonde.optimizer.continual.candidates import Solver
from gpusonde.optimizer.continual.controller import Controller, Decision, DecisionKind
from gpusonde.optimizer.continual.options import ContinualOptions
from gpusonde.optimizer.continual.runtime import Runtime
from gpusonde.optimizer.problem import Billing, MachineOffer, Objective, Plan, Problem
from gpusonde.optimizer.step_times import TableSteps

# Machines with 4, 2 and 1 GPU; the seed's "512 on a p3.8xl" is 128 on each of its GPUs. Prices and quotas are its own.
OFFERS = (
    MachineOffer("p3.8xl", "V100", 4, 2, 3.68, Billing.SPOT, largest_batch=128),
    MachineOffer("g3.8xl", "M60", 2, 8, 0.69, Billing.SPOT, largest_batch=32),
    MachineOffer("g4dn.8xl", "T4", 1, 8, 0.72, Billing.SPOT, largest_batch=128),
)
# Iterations as projected: 152 s / 400 on two p3, 101 s / 200 with g3, and those of the T4 in case study 1.
PROJECTED_S = {
    ("p3.8xl", 128): 152 / 400,
    ("g3.8xl", 32): 101 / 200,
    ("g4dn.8xl", 64): 0.58,
    ("g4dn.8xl", 128): 1.1,
}
PROBLEM = Problem(1024, 400, OFFERS, Objective.COST, deadline_s=500.0, batch_sizes=(32, 64, 128))
_BOOT_S = {"p3.8xl": 138.0, "g3.8xl": 95.0, "g4dn.8xl": 95.0}
_INTERRUPT_S = 222.0
_GIVE_UP_S = 1000.0


@dataclass(frozen=True)
class Event:
    """An event of the figure.

    Attributes:
        name: What happens.
        published_s: When, in the seed.
        happened_s: When it happened here.
    """

    name: str
    published_s: float
    happened_s: float


@dataclass(frozen=True)
class Played:
    """The whole time line.

    Attributes:
        decisions: When each was carried out, and the decision.
        world: The world at the end.
    """

    decisions: tuple[tuple[float, Decision], ...]
    world: SimulatedWorld

    def events(self) -> tuple[Event, ...]:
        """Return the figure's events; one that did not happen is infinitely late."""
        return tuple(
            Event(name, published_s, self._times().get(name, float("inf"))) for name, published_s in _PUBLISHED
        )

    def _times(self) -> dict[str, float]:
        return dict(reversed(list(self._all())))

    def _all(self) -> Iterator[tuple[str, float]]:
        """Yield what happened, in order."""
        for carried_out_s, decision in self.decisions:
            projection = decision.recommendation.projection
            second = decision.at_s > _INTERRUPT_S
            if decision.kind is DecisionKind.LAUNCH and projection is not None:
                yield ("projected end with g3.8xl" if second else "first projected end"), projection.end_s
                if second:
                    yield "volume is free, another plan is searched for", decision.at_s
                    yield "8 g3.8xl are launched", carried_out_s
            elif decision.kind is DecisionKind.RUN:
                yield ("g3.8xl have booted, training goes on" if second else "p3.8xl have booted"), carried_out_s
            elif decision.kind is DecisionKind.WAIT and projection is None:
                yield "interrupt is detected", decision.at_s
        if self.world.job.finished_s is not None:
            yield "training is done", self.world.job.finished_s


# 227 = 223 + 4 s until the volume is free, 228 = 227 + 1 s of solving, 323 = 228 + 95 s of boot.
_PUBLISHED = (
    ("first projected end", 302.0),
    ("p3.8xl have booted", 138.0),
    ("interrupt is detected", 223.0),
    ("volume is free, another plan is searched for", 227.0),
    ("8 g3.8xl are launched", 228.0),
    ("projected end with g3.8xl", 479.0),
    ("g3.8xl have booted, training goes on", 323.0),
    ("training is done", 419.0),
)


def play(options: ContinualOptions | None = None, solver: Solver | None = None) -> Played:
    """Play the time line; by default under the seed's rules."""
    capacity = {
        "p3.8xl": StepCapacity([0.0, _INTERRUPT_S], [2, 1]),
        "g3.8xl": StepCapacity([0.0], [8]),
        "g4dn.8xl": StepCapacity([0.0], [8]),
    }
    prices = {offer.name: offer.usd_per_hour for offer in OFFERS}
    cloud = SimulatedCloud(capacity, prices, lambda offer: _BOOT_S[offer], detect_s=1.0, release_s=4.0)
    world = SimulatedWorld(cloud, SimulatedJob(PROBLEM.iterations, _true_step_s, survivors_hold_state=True))
    options = options or ContinualOptions.paper()
    controller = Controller(PROBLEM, TableSteps(OFFERS, PROJECTED_S), cloud, solver, options)
    runtime = Runtime(controller, cloud, world, world, solve_s=1.0)
    seen: list[tuple[float, Decision]] = []
    while world.now_s() < _GIVE_UP_S:
        decision = runtime.step()
        seen.append((world.now_s(), decision))
        if decision.kind is DecisionKind.DONE:
            break
        world.wait_for_event(decision.next_step_s)
    return Played(tuple(seen), world)


def _true_step_s(plan: Plan) -> float:
    return 84 / 200 if plan.machines == 2 else 96 / 200
