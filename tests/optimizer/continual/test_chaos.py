"""A controller among a cloud, a clock and a job that all make no sense."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from gpusonde.optimizer import Billing, MachineOffer, Objective, Problem, TableSteps
from gpusonde.optimizer.continual import Controller, DecisionKind, Machine, Notice, NoticeKind

OFFERS = (
    MachineOffer("a", "A", 1, 3, 1.0, Billing.SPOT, largest_batch=64, region="x"),
    MachineOffer("b", "A", 1, 2, 1.1, Billing.SPOT, largest_batch=64, region="y"),
    MachineOffer("sure", "A", 1, 2, 3.0, largest_batch=64, region="x"),
)
STEPS = TableSteps(OFFERS, {(o.name, b): s for o in OFFERS for b, s in ((64, 1.0), (32, 0.55))})


class MadCloud:
    """Machines come, go, forget what they were, and are spoken of by any name."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.there: dict[str, Machine] = {}
        self.orders: Counter[str] = Counter()

    def launch(self, offer: str, machines: int) -> Sequence[str]:
        names = [f"{offer}/{self.draw.randrange(10**9)}" for _ in range(self.draw.randint(0, machines + 1))]
        for name in names:
            if self.draw.random() < 0.7:
                self.there[name] = Machine(name, offer, ready=self.draw.random() < 0.5)
        return names

    def terminate(self, identifiers: Sequence[str]) -> None:
        for identifier in identifiers:
            if self.draw.random() < 0.8:
                self.there.pop(identifier, None)

    def machines(self) -> Sequence[Machine]:
        for name in list(self.there):
            chance = self.draw.random()
            if chance < 0.05:
                del self.there[name]
            elif chance < 0.6:
                self.there[name] = Machine(name, self.there[name].offer, ready=self.draw.random() < 0.9)
        ghosts = [Machine("ghost", self.draw.choice(["a", "sure", "never heard of"]), ready=True)]
        return [*self.there.values(), *(ghosts if self.draw.random() < 0.1 else [])]

    def notices(self) -> Sequence[Notice]:
        names = [*self.there, "ghost", "", "a/1"]
        return [
            Notice(self.draw.choice(list(NoticeKind)), self.draw.choice(names), self.draw.choice(["a", "b", "?"]))
            for _ in range(self.draw.choice([0, 0, 0, 1, 3]))
        ]


@pytest.mark.parametrize("seed", range(12))
def test_nothing_that_comes_in_makes_it_fail_or_rent_more_than_the_quota(seed: int) -> None:
    draw = random.Random(seed)
    cloud = MadCloud(draw)
    objective = draw.choice(list(Objective))
    limits = {"deadline_s": draw.choice([None, 600.0, 30_000.0]), "budget_usd": draw.choice([None, 0.5, 50.0])}
    problem = Problem(64, 5000, OFFERS, objective, batch_sizes=(32, 64), **limits)  # type: ignore[arg-type]
    controller = Controller(problem, STEPS, cloud)
    quota = {offer.name: offer.quota for offer in OFFERS}
    now_s = 0.0
    for _ in range(250):
        now_s += draw.choice([0.0, 1.0, 60.0, 900.0, -500.0])
        controller.observe(draw.choice([now_s, math.nan, -1.0]), draw.choice([now_s / 3, 0.0, math.nan, -5.0, 1e300]))
        decision = controller.step(now_s)
        held = controller.fleet.held()
        for offer, machines in decision.recommendation.launch:
            assert machines >= 1
            assert held[offer] + machines <= quota[offer]
            controller.ordered(offer, cloud.launch(offer, machines), now_s)
        cloud.terminate(decision.terminate)
        assert len(set(decision.terminate)) == len(decision.terminate)
        assert "never heard of" not in decision.terminate
        assert decision.next_step_s > decision.at_s
        assert decision.recommendation.why
        assert decision.recommendation.spent_usd >= 0
        if decision.kind is DecisionKind.RUN:
            assert decision.recommendation.plan is not None
            assert len(decision.machines) == decision.recommendation.plan.machines
        if decision.kind is DecisionKind.DONE:
            assert decision.recommendation.remaining_iterations == 0
