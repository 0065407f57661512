"""The problem of a run: what other runs of the same job say of it."""

from types import SimpleNamespace

import pytest

from gpusonde.catalog import load_gpus, load_offers
from gpusonde.optimizer.documents.posing import JobTerms, OtherRun, PosedProblem
from gpusonde.optimizer.documents.problem import parse_plan, parse_problem
from gpusonde.optimizer.documents.watching import estimate_plan
from gpusonde.predictor.crossgpu import LatencyModel, SourceMeasurement
from gpusonde.simulator.parallel import ParallelPredictor, Placement

GPUS = load_gpus()
OFFERS = load_offers(gpus=GPUS)
TERMS = JobTerms(epochs=100, providers=("aws",), gpus=("T4", "A10G"), batch_size=32, steps_per_epoch=1000, quota=8)
T4, A10G = (GPUS.resolve(name).spec for name in ("T4", "A10G"))
# Of 1,000 steps on 4 x T4.
EPOCH_S = 400.0


def steps_of(period_s):
    return (SimpleNamespace(role="step", role_confidence=0.95, period_s=period_s),)


def posed(*others, cycles=(), gpu=T4):
    source = SourceMeasurement(gpu, EPOCH_S, {}, epoch_count=20)
    here = Placement(gpu, 4)
    rows = ParallelPredictor(OFFERS.all).predict(
        LatencyModel.shipped(), source, here, [Placement(spec) for spec in GPUS.specs]
    )
    return PosedProblem.of_run("job", rows, source, here, TERMS, cycles=cycles, others=others)


def curve(problem, device):
    (found,) = [each for each in problem.document["job"]["curves"] if each["device"] == device]
    return found


def iteration_s(problem, offer, machines, batch_size):
    document = parse_problem(problem.document, GPUS, OFFERS)
    groups = [{"offer": f"aws/us-east-1/{offer}", "machines": machines, "batch_size": batch_size}]
    found = estimate_plan(document, parse_plan({"groups": groups}, document.problem, "plan"))
    return found["estimate"]["step"]["mean_s"]


def test_the_file_of_a_run_keeps_what_the_run_itself_is_told():
    """Which speeds nobody measured, and what products were taken for, was lost on the way through the file."""
    plain = posed()
    assert "note" not in curve(plain, "T4")
    assert plain.toml().count('note = "extrapolated: ') == 1
    document = parse_problem(plain.document, GPUS, OFFERS)
    (said,) = [note for note in document.notes if "extrapolated: nobody measured such a run there" in note]
    assert said.startswith("the compute curve of A10G is ")
    assert "TF32" not in plain.assumed[0]  # of little weight there
    there = posed(gpu=GPUS.get("A100-SXM4-40GB"))
    assert "products in TF32 where a GPU has it" in there.assumed[0]
    assert "precision can be told" in there.assumed[0]


def test_runs_on_other_numbers_of_gpus_take_the_place_of_what_is_predicted():
    """One GPU takes 1,250 s for what four take 400 s for."""
    plain, told = posed(), posed(OtherRun(Placement(T4, 1), 1250.0))
    assert "epochs" in curve(plain, "T4")
    assert curve(told, "T4")["iterations"] == [
        {"batch_size": 32.0, "seconds": 0.3125, "gpus": 1, "machines": 1},
        {"batch_size": 32.0, "seconds": 0.4, "gpus": 4, "machines": 1},
    ]
    assert curve(told, "A10G") == curve(plain, "A10G")
    note = "other runs of the job tell what its iterations take on 1 x T4, taken to have had the run's batch per GPU"
    assert note in told.assumed
    assert note not in plain.assumed
    assert iteration_s(told, "g4dn.12xlarge", 1, 32) == pytest.approx(0.4, rel=0.08)


def test_runs_on_another_gpu_are_what_is_known_of_it():
    told = posed(OtherRun(Placement(A10G, 4), 160.0))
    assert curve(told, "A10G")["iterations"] == [{"batch_size": 32.0, "seconds": 0.16, "gpus": 4, "machines": 1}]
    assert "epochs" in curve(told, "T4")
    assert iteration_s(told, "g5.12xlarge", 1, 32) == pytest.approx(0.16, rel=0.08)
    assert not any(
        "extrapolated" in note for note in told.notes_on({"groups": [{"offer": "aws/us-east-1/g5.12xlarge"}]})
    )


def test_steps_that_both_runs_show_tell_the_other_batch():
    """Twice the steps of the same epoch are half the batch."""
    told = posed(OtherRun(Placement(T4, 4), 500.0, steps_of(0.25)), cycles=steps_of(0.4))
    assert curve(told, "T4")["iterations"] == [
        {"batch_size": 16.0, "seconds": 0.25, "gpus": 4, "machines": 1},
        {"batch_size": 32.0, "seconds": 0.4, "gpus": 4, "machines": 1},
    ]
    assert "other runs of the job tell what its iterations take on 4 x T4" in told.assumed


def test_runs_that_cannot_be_the_same_job_are_left_out_and_said_to_be():
    told = posed(OtherRun(Placement(T4, 1), 60.0), OtherRun(Placement(T4, 4), 390.0))
    assert told.document == posed().document
    assert "runs of the same name on 1 x T4 are left out: their epochs are more than 3 times off" in told.assumed


def test_hosts_that_share_gpus_unevenly_are_left_out_and_several_hosts_have_a_network():
    told = posed(OtherRun(Placement(T4, 3, 2), 530.0), OtherRun(Placement(T4, 8, 2), 230.0))
    assert curve(told, "T4")["iterations"][0] == {
        "batch_size": 32.0,
        "seconds": 0.46,
        "gpus": 8,
        "machines": 2,
        "network_bytes_per_second": 12.5e9,
    }
    assert len(curve(told, "T4")["iterations"]) == 2
    assert "iterations = [{ batch_size = 32.0" in told.toml()
