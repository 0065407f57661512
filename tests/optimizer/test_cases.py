"""The seed's case studies: its choice from its own measurements (Srifty, section 5.2)."""

from __future__ import annotations

import pytest
from baseline_apm import cheapest_first, fastest_first
from srifty_cases import PRICES, SPEED_ORDER, Case, Row, cases

from gpusonde.optimizer.solution import Status
from gpusonde.optimizer.solve import Method, solve

ALL = cases()
ANSWERED = [case for case in ALL if case.number != 7]


def name(case: Case) -> str:
    return f"{case.number} {case.network}"


def test_the_cases_are_those_of_the_text():
    assert [(case.number, case.network) for case in ALL] == [
        (1, "ResNet50"), (2, "Vgg16"), (3, "AlexNet"), (4, "DLRM"), (5, "XLM"), (5, "BERT"), (6, "Inception v3"),
        (7, "ShuffleNet"),
    ]  # fmt: skip


@pytest.mark.parametrize("case", ANSWERED, ids=name)
@pytest.mark.parametrize("method", ["paper", "exact", "brute_force"])
def test_every_search_makes_the_seeds_choice(case: Case, method: Method):
    solution = solve(case.problem, case.steps, method=method)
    assert solution.plan == case.chosen_by("Srifty")
    assert solution.status is Status.OPTIMAL


@pytest.mark.parametrize("method", ["paper", "exact"])
def test_case_7_has_no_plan_and_the_nearest_one_is_said(method: Method):
    case = ALL[-1]
    solution = solve(case.problem, case.steps, method=method)
    assert solution.status is Status.INFEASIBLE
    assert solution.plan is None
    assert case.chosen_by("Srifty") is None
    assert solution.nearest is not None
    assert solution.nearest.plan == case.chosen_by("APM")
    assert solution.nearest.estimate.time_s == pytest.approx(381.0)
    assert solution.nearest.estimate.cost_usd == pytest.approx(2.75, abs=0.01)


@pytest.mark.parametrize("case", ALL, ids=name)
def test_the_greedy_policies_choose_what_the_text_says(case: Case):
    cheapest, fastest = case.chosen_by("CGF"), case.chosen_by("FGF")
    assert fastest_first(case.problem, SPEED_ORDER) == fastest
    if case.number == 6:
        # The text's batches sum to 2560 instead of 2176.
        assert cheapest is not None
        assert cheapest.global_batch(case.problem.offers) == 2560
        found = cheapest_first(case.problem)
        assert found is not None
        assert str(found) == "8 x g3.8xl @ 128 + 8 x g4dn.8xl @ 128 + 1 x p3.8xl @ 128"
    else:
        assert cheapest_first(case.problem) == cheapest


def rows_with_cost() -> list[tuple[Case, Row]]:
    return [(case, row) for case in ALL for row in case.rows if row.published_usd is not None]


@pytest.mark.parametrize(
    ("case", "row"), rows_with_cost(), ids=lambda each: each.network if isinstance(each, Case) else str(each.plan)
)
def test_published_costs_follow_from_prices_and_seconds(case: Case, row: Row):
    usd_per_hour = sum(group.machines * PRICES[group.offer] for group in row.plan.groups)
    cost_usd = row.step_s * case.problem.iterations * usd_per_hour / 3600.0
    assert cost_usd == pytest.approx(row.published_usd, rel=0.011)


def test_a_row_that_answers_another_problem_cannot_be_chosen():
    left_out = {
        str(row.plan)
        for case in ALL
        for row in case.rows
        if row.plan.global_batch(case.problem.offers) != case.problem.global_batch
    }
    assert left_out == {"4 x g4dn.8xl @ 64", "8 x g3.8xl @ 128 + 8 x g4dn.8xl @ 128 + 1 x p3.8xl @ 512"}
    assert all(row.note for case in ALL for row in case.rows if str(row.plan) in left_out and case.number in {4, 6})
