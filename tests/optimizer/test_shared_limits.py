"""Quotas that offers share, and data that lie in one region: both count, and are named."""

from __future__ import annotations

from copy import deepcopy

import pytest

from gpusonde.catalog import load_gpus, load_offers
from gpusonde.errors import DocumentError, ProblemError
from gpusonde.optimizer import Billing, Group, MachineOffer, Objective, Plan, Problem, Status, TableSteps, solve
from gpusonde.optimizer.documents.problem import parse_problem
from gpusonde.optimizer.problem import DataCosts, SharedQuota
from gpusonde.optimizer.solution import check_plan, estimate_plan

GPUS, OFFERS = load_gpus(), load_offers()
EAST, WEST, FAR = "aws/us-east-1", "aws/us-west-2", "gcp/us-east1"


def offer(name: str, region: str, devices: int = 1, price: float = 1.0, billing: Billing = Billing.ON_DEMAND):
    return MachineOffer(name, "T4", devices, 8, price * devices, billing, largest_batch=32, region=region)


def ask(*offers: MachineOffer, **more) -> tuple[Problem, TableSteps]:
    steps = TableSteps(offers, {(each.name, 32): 1.0 for each in offers})
    return Problem(256, 3600, offers, batch_sizes=(32,), **more), steps


def test_a_shared_quota_counts_machines_of_all_kinds_and_is_named_when_it_binds() -> None:
    offers = offer("one", EAST), offer("two", EAST, 2), offer("dear", WEST, 1, 5.0)
    problem, steps = ask(*offers, quotas=(SharedQuota(6, "T4", "us-east-1"),), objective=Objective.COST)
    found = solve(problem, steps)
    assert found.status is Status.OPTIMAL
    assert found.plan == Plan((Group("dear", 8, 32),))
    # No machine of the east is taken, for six GPUs are too few.
    assert found.binding == ("quota of 6 T4 in us-east-1",)
    with pytest.raises(ProblemError, match="8 GPUs, more than the quota of 6 T4 in us-east-1"):
        check_plan(problem, Plan((Group("one", 4, 32), Group("two", 2, 32))))

    tight, steps = ask(*offers, quotas=(SharedQuota(8, "T4", "us-east-1"),), objective=Objective.TIME)
    steps = TableSteps(offers, {(each.name, batch): batch / 32 for each in offers for batch in (16, 32)})
    faster = solve(Problem(256, 3600, offers[:2], batch_sizes=(16, 32), quotas=tight.quotas), steps)
    assert faster.plan is not None
    assert faster.plan.devices(offers) == 8
    assert "quota of 8 T4 in us-east-1" in faster.binding
    assert faster.relaxations[0].limit == "quota of 8 T4 in us-east-1"


def test_a_quota_without_a_region_holds_in_each() -> None:
    spot = offer("spot", EAST, 1, 0.3, Billing.SPOT)
    problem, steps = ask(spot, offer("sure", WEST), quotas=(SharedQuota(4, billing=Billing.SPOT),))
    assert solve(problem, steps).plan == Plan((Group("sure", 8, 32),))
    none, steps = ask(spot, quotas=(SharedQuota(0),))
    assert solve(none, steps).status is Status.INFEASIBLE


def test_data_are_paid_for_where_the_machines_are_elsewhere() -> None:
    data = DataCosts(1000, EAST, egress_usd_per_gb=0.1, transfer_usd_per_gb=0.02, storage_usd_per_gb_month=0.73)
    offers = offer("home", EAST), offer("near", WEST), offer("far", FAR)
    problem, steps = ask(*offers, data=data)
    costs = [estimate_plan(problem, Plan((Group(each.name, 8, 32),)), steps) for each in offers]
    # 3600 iterations of a second on eight machines at a dollar; a TB costs a dollar an hour to keep elsewhere.
    assert [found.cost_usd for found in costs] == pytest.approx([8.0, 8.0 + 20.0 + 1.0, 8.0 + 100.0 + 1.0])
    assert [found.data_usd for found in costs] == pytest.approx([0.0, 21.0, 101.0])


def test_a_cheaper_region_must_be_worth_the_move() -> None:
    offers = offer("home", EAST, price=1.0), offer("near", WEST, price=0.5)
    cheap, steps = ask(*offers, objective=Objective.COST, data=DataCosts(100, EAST, 0.03))
    dear, _ = ask(*offers, objective=Objective.COST, data=DataCosts(100, EAST, 0.05))
    assert solve(cheap, steps).plan == Plan((Group("near", 8, 32),))
    assert solve(dear, steps).plan == Plan((Group("home", 8, 32),))


DOCUMENT = {
    "format": "gpusonde.problem/1",
    "global_batch": 64,
    "iterations": 1000,
    "job": {
        "gradients": {"parameter_bytes": 1e8},
        "curves": [{"device": "T4", "epochs": [{"batch_size": size, "samples_per_epoch": 1e4, "epoch_latency_s": 100}
                                               for size in (32, 64)]}],
    },
    "offers": [{"name": "aws/us-east-1/g4dn.xlarge", "device": "T4", "quota": 4, "usd_per_hour": 0.5,
                "region": "aws/us-east-1", "network_bytes_per_second": 1e9}],
}  # fmt: skip
DATA = {"gigabytes": 10, "region": "us-east-1", "egress_usd_per_gb": 0.09}


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"quotas": [{"gpus": 4, "gpu": "A100"}]}, "quotas[0]", "limits no offer; offers have T4 in aws/us-east-1"),
        ({"quotas": [{"gpus": 4, "region": "us-east-2"}]}, "quotas[0]", "limits no offer"),
        ({"quotas": [{"gpus": -1}]}, "quotas[0].gpus", "from 0"),
        ({"quotas": [{}]}, "quotas[0].gpus", "missing"),
        ({"data": {"gigabytes": 10, "region": "us-east-1"}}, "data.egress_usd_per_gb", "missing"),
        ({"data": DATA | {"region": "aws/us-eats-1"}}, "data.region", "did you mean 'aws/us-east-1'"),
        ({"data": DATA | {"region": "us-east-2"}}, "data.region", "with its cloud it is taken, such as aws/us-east-2"),
        ({"data": DATA | {"gigabytes": 0}}, "data.gigabytes", "above 0"),
    ],
)
def test_what_cannot_be_is_refused_with_its_key(changes, field, words) -> None:
    with pytest.raises(DocumentError, match=words) as error:
        parse_problem(deepcopy(DOCUMENT) | changes, GPUS, OFFERS)
    assert error.value.field == field


def test_quotas_and_data_take_the_names_that_offers_have() -> None:
    document = deepcopy(DOCUMENT) | {"quotas": [{"gpus": 4, "gpu": "Tesla T4"}], "data": DATA}
    problem = parse_problem(document, GPUS, OFFERS).problem
    assert problem.quotas == (SharedQuota(4, "T4"),)
    assert problem.data is not None
    assert problem.data.region == "aws/us-east-1"


def test_data_may_lie_where_no_offer_stands() -> None:
    """Regions of one coast differ in their number: the other one is no slip."""
    document = deepcopy(DOCUMENT) | {"data": DATA | {"region": "aws/us-east-2"}}
    problem = parse_problem(document, GPUS, OFFERS).problem
    assert problem.data is not None
    assert problem.data.fees(["aws/us-east-1"])[0] == pytest.approx(0.9)
