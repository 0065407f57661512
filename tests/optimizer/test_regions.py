"""A plan stays in one region, unless the problem says otherwise."""

from __future__ import annotations

import dataclasses
import random

import pytest

from gpusonde.errors import ProblemError
from gpusonde.optimizer import Group, MachineOffer, Objective, Plan, Problem, TableSteps, pareto, solve
from gpusonde.optimizer.solution import check_plan, objective_value


def in_regions(draw: random.Random, count: int) -> tuple[MachineOffer, ...]:
    regions = ("aws/us-east-1", "gcp/us-east1")
    return tuple(
        MachineOffer(f"offer {n}", "A", draw.choice((1, 2)), draw.randint(0, 3), draw.uniform(0.2, 3.0),
                     largest_batch=64, region=draw.choice(regions))
        for n in range(count)
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_a_plan_stays_in_one_region_unless_told(seed: int) -> None:
    draw = random.Random(seed)
    offers = in_regions(draw, 4)
    latencies = {(o.name, b): draw.uniform(0.5, 2.0) * (0.1 + b / 64) for o in offers for b in (8, 16, 32, 64)}
    steps = TableSteps(offers, latencies)
    asked = Problem(
        128, 1000, offers, draw.choice(list(Objective)), deadline_s=draw.choice((None, 900.0, 1500.0)),
        batch_sizes=(8, 16, 32, 64),
    )  # fmt: skip
    for problem in (asked, dataclasses.replace(asked, across_regions=True)):
        best, found = solve(problem, steps, method="brute_force"), solve(problem, steps)
        assert found.status is best.status
        if found.estimate is not None and best.estimate is not None:
            assert objective_value(problem, found.estimate) == pytest.approx(objective_value(problem, best.estimate))
        points = [point.plan for point in pareto(problem, steps).points]
        nearest = [found.nearest.plan] if found.nearest else []
        for plan in [*points, *nearest, *([found.plan] if found.plan else [])]:
            spans = {problem.offer(group.offer).region for group in plan.groups}
            assert len(spans) <= 1 or problem.across_regions


def test_a_given_plan_that_spans_regions_is_refused_with_the_key() -> None:
    offers = tuple(MachineOffer(region, "A", 1, 1, 1.0, largest_batch=64, region=region) for region in ("east", "west"))
    plan = Plan(tuple(Group(offer.name, 1, 64) for offer in offers))
    with pytest.raises(ProblemError, match=r"east and west.*across_regions = true"):
        check_plan(Problem(128, 10, offers), plan)
    check_plan(Problem(128, 10, offers, across_regions=True), plan)
