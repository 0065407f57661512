"""Iterations on several GPUs say what one GPU computes and what the exchange takes."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

from gpusonde.catalog import load_gpus, load_offers
from gpusonde.documents import to_plain
from gpusonde.errors import DocumentError, ProblemError
from gpusonde.optimizer.documents.problem import ProblemDocument, parse_problem
from gpusonde.optimizer.problem import Group, Objective, Plan
from gpusonde.optimizer.simulated_steps import DEFAULT_MODEL_SPREAD
from gpusonde.optimizer.solution import rank
from gpusonde.optimizer.solve import solve
from gpusonde.simulator.calibration import TimedIteration, calibrate
from gpusonde.simulator.communication import BandwidthSharing
from gpusonde.simulator.compute import ComputeCurve, CurveOrigin
from gpusonde.simulator.compute.fitting import USUAL_SPREAD
from gpusonde.simulator.gradients import assumed_trace
from gpusonde.simulator.iteration import DeviceGroup, IterationSimulator, StepMode
from gpusonde.simulator.links import RatedNetwork, inner_link

GPUS, OFFERS = load_gpus(), load_offers()
T4, TRACE = GPUS.get("T4"), assumed_trace(4e8)
PASSES_S = {8: 0.10, 16: 0.19}


def timed(batch: int, gpus: int, steps: int, factor: float, optimizer_s: float = 0.0) -> TimedIteration:
    """What the simulator says of a job, on a network slower than rated by a factor."""
    knots = np.array(sorted(PASSES_S), dtype=float)
    curve = ComputeCurve(knots, np.array([PASSES_S[int(b)] for b in knots]), np.full(2, USUAL_SPREAD), 1 / 3,
                         CurveOrigin.PROBES, 8, 16)  # fmt: skip
    network = RatedNetwork(inner_link(T4), gpus, factor=factor)
    simulator = IterationSimulator(TRACE, network, BandwidthSharing(max_in_flight=1), optimizer_s=optimizer_s,
                                   mode=StepMode(steps), samples=501)  # fmt: skip
    found = simulator.estimate([DeviceGroup(curve, gpus, batch)])
    return TimedIteration(batch, found.p50_s, gpus, accumulation_steps=steps)


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("optimizer_s", [0.0, 0.03])
def test_micro_batches_tell_passes_and_exchange_apart(factor: float, optimizer_s: float) -> None:
    rows = [timed(batch, 4, steps, factor, optimizer_s) for batch in (8, 16) for steps in (1, 4)]
    found = calibrate(rows, TRACE, T4, optimizer_s=optimizer_s)
    assert [probe.batch_size for probe in found.probes] == [8, 16]
    assert [probe.total_s for probe in found.probes] == pytest.approx([0.10, 0.19], rel=0.06)
    assert found.exchange_factor == pytest.approx(factor, rel=0.15)


def test_the_rating_holds_where_nothing_says_otherwise() -> None:
    found = calibrate([timed(8, 4, 1, 1.0)], TRACE, T4)
    assert found.exchange_factor == pytest.approx(1.0, rel=0.06)
    assert found.probes[0].total_s == pytest.approx(0.10, rel=0.2)


def test_one_gpu_needs_no_exchange() -> None:
    (probe,) = calibrate([TimedIteration(8, 0.5, accumulation_steps=2)], TRACE, T4).probes
    assert probe.total_s == pytest.approx(0.25)


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ProblemError, match="as many on each"):
        TimedIteration(8, 1.0, 4, machines=3)
    with pytest.raises(ProblemError, match="give the network's rating"):
        TimedIteration(8, 1.0, 4, machines=2)
    with pytest.raises(ProblemError, match="shorter than its optimizer_s"):
        calibrate([TimedIteration(8, 1.0, 4)], TRACE, T4, optimizer_s=2.0)
    with pytest.raises(ProblemError, match="shorter than what they exchange"):
        calibrate([TimedIteration(8, 1e-6, 4)], TRACE, T4)


def uneven(gpus: int, machines: int, batch: int) -> TimedIteration:
    """An iteration that no straight line and no rating explains: large batches swap, two machines share a switch."""
    seconds = 5 * (0.02 + 0.002 * batch + 0.004 * batch * (batch > 64)) * (1.0 + 0.3 * (machines > 1) + 0.02 * gpus)
    return TimedIteration(batch, seconds, gpus, machines, 5e9 if machines > 1 else None)


TIMED = [uneven(gpus, machines, batch) for gpus, machines in ((2, 1), (4, 1), (8, 2), (16, 4))
         for batch in (8, 16, 32, 128, 256)]  # fmt: skip
ASKED = [(4, 1, 24), (8, 2, 20), (8, 2, 200), (16, 4, 180), (12, 3, 32)]


DOCUMENT = {
    "format": "gpusonde.problem/1",
    "global_batch": 64,
    "iterations": 1000,
    "job": {
        "gradients": {"parameter_bytes": 4e8},
        "curves": [
            {
                "device": "T4",
                "iterations": [
                    {"batch_size": 8, "seconds": 0.5, "gpus": 4},
                    {"batch_size": 8, "seconds": 0.8, "gpus": 4, "accumulation_steps": 4},
                    {"batch_size": 16, "seconds": 0.6, "gpus": 4},
                ],
            }
        ],
    },
    "offers": [
        {"name": "g4", "device": "T4", "devices": 4, "quota": 2, "usd_per_hour": 4.0, "network_bytes_per_second": 1e9}
    ],
}


def test_a_problem_is_planned_from_iterations_on_several_gpus() -> None:
    found = parse_problem(deepcopy(DOCUMENT), GPUS, OFFERS)
    assert found.job.curves["T4"].predict(8).total_s == pytest.approx(0.1, rel=0.1)
    factor = found.job.calibrations["T4"].exchange_factor
    assert factor > 1
    (network,) = found.rated_fabrics.values()
    assert network.factor == factor
    assert any("times as long as rated" in note for note in found.notes)


def test_iterations_that_cannot_be_are_refused_with_their_key() -> None:
    document = deepcopy(DOCUMENT)
    document["job"]["curves"][0]["iterations"][0]["machines"] = 2
    with pytest.raises(DocumentError, match="give the network's rating") as error:
        parse_problem(document, GPUS, OFFERS)
    assert error.value.field.startswith("job.curves[0].iterations[0]")


def planned(rows: list[TimedIteration], quota: int = 4) -> ProblemDocument:
    document = deepcopy(DOCUMENT)
    document["job"]["curves"][0]["iterations"] = [to_plain(row) for row in rows]
    document["offers"][0] |= {"quota": quota, "network_bytes_per_second": 5e9}
    return parse_problem(document, GPUS, OFFERS)


def said_s(rows: list[TimedIteration], gpus: int, machines: int, batch: int) -> float:
    return planned(rows).step_times().estimate(Plan((Group("g4", machines, batch),))).mean_s


def test_what_neither_line_nor_rating_explains_is_corrected_near_what_was_timed() -> None:
    off = [said_s(TIMED, *asked) / uneven(*asked).seconds - 1 for asked in ASKED]
    assert np.abs(off).max() < 0.12
    correction = calibrate(TIMED, TRACE, T4).correction
    near, far = correction.predict((4, 4), [32.0]), correction.predict((8,) * 64, [1e6])
    assert near[1][0] < 0.2
    assert (abs(far[0][0]) < 0.01, far[1][0] > 0.95) == (True, True)


def test_two_iterations_are_enough_for_a_wide_answer_and_more_narrow_it() -> None:
    few, many = [
        planned(rows).step_times().estimate(Plan((Group("g4", 2, 32),))) for rows in ([TIMED[0], TIMED[13]], TIMED)
    ]
    assert few.shared_sd_s / few.mean_s > 0.1 > many.shared_sd_s / many.mean_s
    assert abs(few.mean_s - uneven(8, 2, 32).seconds) < 2 * few.shared_sd_s


def test_what_was_timed_on_one_gpu_takes_no_doubt_from_another_in_the_same_plan() -> None:
    document = deepcopy(DOCUMENT)
    document["job"]["curves"][0]["iterations"] = [to_plain(row) for row in TIMED]
    probes = [{"batch_size": batch, "total_s": 0.02 + 0.002 * batch} for batch in (8, 32, 128)]
    document["job"]["curves"].append({"device": "V100-SXM2-16GB", "probes": probes})
    other = {"name": "v4", "device": "V100-SXM2-16GB"}
    document["offers"] = [{**document["offers"][0], **each, "network_bytes_per_second": 5e9} for each in ({}, other)]
    steps = parse_problem(document, GPUS, OFFERS).step_times()
    timed, both, probed = [
        steps.estimate(Plan(tuple(Group(name, 1, 32) for name in names)))
        for names in (("g4",), ("g4", "v4"), ("v4",))
    ]  # fmt: skip
    assert timed.shared_sd_s / timed.mean_s < 0.08
    assert min(each.shared_sd_s / each.mean_s for each in (both, probed)) >= DEFAULT_MODEL_SPREAD


@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize("deadline_s", [None, 120.0, 400.0])
def test_the_search_is_exact_with_corrections(objective: Objective, deadline_s: float | None) -> None:
    found = planned(TIMED, quota=8)
    steps = found.step_times()
    for batch in (64, 96, 256, 1024):
        problem = replace(found.problem, global_batch=batch, objective=objective, deadline_s=deadline_s)
        exact, brute = (solve(problem, steps, method=method, explain=False) for method in ("exact", "brute_force"))
        assert exact.status == brute.status
        assert (exact.plan is None) == (brute.plan is None)
        if exact.plan is not None:
            assert rank(problem, exact.estimate) == pytest.approx(rank(problem, brute.estimate), rel=1e-9)
