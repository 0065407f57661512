"""Replays of recorded capacity: made ones here, real ones where the measurement files are."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_cloud import StepCapacity
from spot_replay import CapacityTrace, TraceError, Truth, only, read_capacity, replay

from gpusonde.optimizer import Billing, MachineOffer, Objective, Problem, TableSteps
from gpusonde.optimizer.continual import ContinualOptions

HOUR = 3600.0
TRACES = Path(__file__).resolve().parents[4] / "shared" / "data" / "distributed" / "spot_traces"
OFFERS = (
    MachineOffer("spot a", "A", 1, 2, 1.0, Billing.SPOT, largest_batch=64, region="r"),
    MachineOffer("spot b", "A", 1, 2, 1.1, Billing.SPOT, largest_batch=64, region="r"),
    MachineOffer("sure", "A", 1, 4, 3.0, Billing.ON_DEMAND, largest_batch=64, region="r"),
)
LATENCIES = {(o.name, b): s for o in OFFERS for b, s in ((64, 2.0), (32, 1.1), (16, 0.6))}
STEPS = TableSteps(OFFERS, LATENCIES)


def job(deadline_h: float, hours: float = 3.0) -> Problem:
    return Problem(
        64, round(hours * 1800), OFFERS, Objective.COST, deadline_s=deadline_h * HOUR, batch_sizes=(16, 32, 64)
    )


def flapping(seed: int, mean_up_s: float, mean_down_s: float) -> StepCapacity:
    draw = random.Random(seed)
    times, counts, now_s = [0.0], [2], 0.0
    while now_s < 16 * HOUR:
        now_s += 1.0 + draw.expovariate(1 / (mean_up_s if counts[-1] else mean_down_s))
        times.append(now_s)
        counts.append(0 if counts[-1] else draw.randint(1, 2))
    return StepCapacity(times, counts)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    up_s=st.floats(60, 20_000),
    down_s=st.floats(60, 20_000),
    deadline_h=st.floats(1.4, 12),
    factor=st.floats(0.85, 1.12),
)
def test_whatever_the_spot_machines_do_the_deadline_is_kept_where_on_demand_machines_could(
    seed: int, up_s: float, down_s: float, deadline_h: float, factor: float
) -> None:
    capacity = {"spot a": flapping(seed, up_s, down_s), "spot b": flapping(seed + 1, up_s, down_s)}
    outcome = replay(job(deadline_h), STEPS, capacity, Truth(factor, 0.02, (60.0, 300.0), seed), until_s=16 * HOUR)
    # Four machines on demand take 0.9 h; 14 % above is what the estimates leave open, and a slow boot costs 0.1 h.
    assert outcome.met(deadline_h * HOUR)
    assert outcome.usd < 4 * 3.0 * 1.5
    assert outcome.searches < 5000


def test_the_cheapest_spot_machines_alone_cost_less_and_miss_what_the_controller_keeps() -> None:
    capacity = {"spot a": StepCapacity([0.0, HOUR], [2, 0]), "spot b": StepCapacity([0.0, 1.5 * HOUR], [2, 0])}
    ours = replay(job(4.0), STEPS, capacity, Truth(), until_s=24 * HOUR)
    spot = only(job(4.0), Billing.SPOT, deadline=False)
    alone = replay(spot, STEPS, capacity, Truth(), ContinualOptions(guard=False), until_s=24 * HOUR)
    assert ours.met(4 * HOUR)
    assert not alone.met(4 * HOUR)
    assert 0 < ours.spot_share < 1
    assert ours.preemptions >= 1


def test_the_same_seed_gives_the_same_outcome() -> None:
    capacity = {"spot a": flapping(1, 3000.0, 3000.0), "spot b": flapping(2, 3000.0, 3000.0)}
    truth = Truth(1.05, 0.03, (90.0, 210.0), 5)
    first, second = (replay(job(5.0), STEPS, capacity, truth, until_s=24 * HOUR) for _ in range(2))
    assert first == second


def test_a_trace_counts_from_any_moment_and_ends_with_nothing() -> None:
    capacity = CapacityTrace(100.0, (1, 1, 0, 2)).from_moment(150.0)
    assert [capacity.at(t) for t in (0.0, 49.0, 50.0, 149.0, 150.0, 249.0, 250.0, 1e9)] == [1, 1, 0, 0, 2, 2, 0, 0]
    assert capacity.next_change_s(0.0) == 50.0
    assert CapacityTrace(100.0, (1,)).from_moment(5000.0).at(0.0) == 0


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{}", "[" * 100_000, '{"metadata": {"gap_seconds": 0}, "data": [1]}',
        '{"metadata": {"gap_seconds": NaN}, "data": [1]}', '{"metadata": {"gap_seconds": 5}, "data": []}',
        '{"metadata": {"gap_seconds": 5}, "data": [1, -1]}', '{"metadata": {"gap_seconds": 5}, "data": [1.5]}',
        '{"metadata": {"gap_seconds": true}, "data": [1]}', '{"metadata": {"gap_seconds": 5}, "data": "11"}',
        '{"metadata": {"gap_seconds": 1' + "0" * 400 + '}, "data": [1]}',
    ],
)  # fmt: skip
def test_a_file_that_is_no_trace_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(TraceError, match=r"odd\.json"):
        read_capacity(path)


def test_a_trace_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": 195}, "data": [0, 1, 1]}), encoding="utf-8")
    trace = read_capacity(path)
    assert trace == CapacityTrace(195.0, (0, 1, 1))
    assert trace.duration_s == 585.0
    with pytest.raises(TraceError, match="missing"):
        read_capacity(tmp_path / "missing.json")


@pytest.mark.shared_data
@pytest.mark.skipif(not TRACES.is_dir(), reason="needs the measurement files in ../shared/data")
def test_on_real_traces_of_spot_capacity_no_deadline_is_missed() -> None:
    traces = [read_capacity(path) for path in sorted(TRACES.glob("availability_1-node_aws-02-15-2023_us-west-2*"))]
    assert len(traces) == 2
    for number in range(5):
        start_s = number * 8 * 24 * HOUR
        capacity = {name: t.from_moment(start_s) for name, t in zip(("spot a", "spot b"), traces, strict=True)}
        truth = Truth(0.9 + 0.04 * number, 0.02, (90.0, 210.0), number)
        outcome = replay(job(4.0), STEPS, capacity, truth, until_s=24 * HOUR)
        assert outcome.met(4 * HOUR), f"start on day {8 * number}"
