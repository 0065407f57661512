"""SkyPilot's optimizer chooses by how long the job takes, not by the price of an hour."""

import importlib.util
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpusonde.errors import ProblemError
from gpusonde.optimizer.problem import Billing, MachineOffer, Problem
from gpusonde.optimizer.skypilot import SkyTimeEstimator, set_time_estimator
from gpusonde.optimizer.step_times import TableSteps

SCRIPT = Path(__file__).parents[1] / "support" / "skypilot_choice.py"
V100, A100 = "V100-SXM2-16GB", "A100-SXM4-40GB"


@dataclass(frozen=True)
class Resources:
    """The part of ``sky.Resources`` that is read."""

    accelerators: dict | None
    use_spot: bool = False
    instance_type: str | None = None
    region: str | None = None
    zone: str | None = None


class Task:
    """The part of ``sky.Task`` that is used."""

    def __init__(self, *resources, num_nodes=1):
        self.resources, self.num_nodes, self.estimator = resources, num_nodes, None

    def set_time_estimator(self, func):
        self.estimator = func
        return self


def offer(name, device, devices=1, **more):
    return MachineOffer(name=name, device=device, devices=devices, quota=8, usd_per_hour=1.0, **more)


def problem(*offers, **more):
    return Problem(global_batch=512, iterations=100, offers=offers, **more)


def seconds_per_sample(offers, rates):
    """One iteration takes the batch of a GPU times a rate."""
    sizes = [2**power for power in range(11)]
    return TableSteps(offers, {(name, size): rate * size for name, rate in rates.items() for size in sizes})


def test_the_estimate_is_overhead_and_iterations_of_the_share_of_every_gpu():
    offers = [offer("aws/us-east-1/p3.8xlarge", V100, 4)]
    steps = seconds_per_sample(offers, {offers[0].name: 0.001})
    estimator = SkyTimeEstimator(problem(*offers, overhead_s=150.0), steps, machines=2)
    # 512 samples over 8 GPUs, 100 iterations; whole seconds, rounded up.
    assert estimator(Resources({"V100": 4})) == math.ceil(150 + 100 * 0.064)


@pytest.mark.parametrize("spelling", ["V100", "v100", "Tesla V100-SXM2-16GB", V100])
def test_a_gpu_is_found_by_any_of_its_names(spelling):
    offers = [offer("one", V100), offer("other", A100)]
    steps = seconds_per_sample(offers, {"one": 0.002, "other": 0.001})
    assert SkyTimeEstimator(problem(*offers), steps)(Resources({spelling: 1})) == 103


def test_a_gpu_that_the_catalogue_does_not_know_is_named_by_the_user():
    offers = [offer("one", "Trainium")]
    steps = seconds_per_sample(offers, {"one": 0.01})
    assert SkyTimeEstimator(problem(*offers), steps, devices={"trn1": "Trainium"})(Resources({"trn1": 1})) == 512
    with pytest.raises(ProblemError, match="no offer has 1 trn1"):
        SkyTimeEstimator(problem(*offers), steps)(Resources({"trn1": 1}))


def test_a_variant_is_preferred_to_its_relatives():
    offers = [offer("small", "A100-SXM4-40GB"), offer("large", "A100-SXM4-80GB")]
    steps = seconds_per_sample(offers, {"small": 0.02, "large": 0.01})
    estimator = SkyTimeEstimator(problem(*offers), steps)
    assert estimator(Resources({"A100": 1})) == 1024
    assert estimator(Resources({"A100-80GB": 1})) == 512


def test_complete_resources_pick_their_own_offer_and_incomplete_ones_the_slowest():
    offers = [
        offer("aws/us-east-1/p3.2xlarge", V100, region="us-east-1"),
        offer("aws/us-west-2/p3.2xlarge", V100, region="us-west-2"),
        offer("aws/us-east-1/p3.2xlarge/spot", V100, region="us-east-1", billing=Billing.SPOT),
        offer("gcp/us-east1/n1-v100", V100, region="us-east1"),
    ]
    rates = dict(zip((each.name for each in offers), (0.01, 0.02, 0.03, 0.04), strict=True))
    estimator = SkyTimeEstimator(problem(*offers), seconds_per_sample(offers, rates))
    assert estimator(Resources({"V100": 1})) == 2048
    assert estimator(Resources({"V100": 1}, use_spot=True)) == 1536
    assert estimator(Resources({"V100": 1}, instance_type="p3.2xlarge")) == 1024
    assert estimator(Resources({"V100": 1}, instance_type="p3.2xlarge", region="us-east-1")) == 512


@pytest.mark.parametrize(
    ("limits", "machines"),
    [({"largest_batch": 64}, 1), ({"smallest_batch": 300}, 2), ({"largest_batch": 0}, 1), ({}, 3)],
)
def test_where_the_job_cannot_run_it_takes_for_ever(limits, machines):
    offers = [offer("one", V100, **limits)]
    steps = seconds_per_sample(offers, {"one": 0.01})
    assert SkyTimeEstimator(problem(*offers), steps, machines)(Resources({"V100": 1})) == math.inf
    with pytest.raises(ProblemError, match="runs on none"):
        set_time_estimator(Task(Resources({"V100": 1}), num_nodes=machines), problem(*offers), steps)


def test_resources_that_no_offer_describes_are_refused_before_the_task_is_touched():
    offers = [offer("one", V100, 4)]
    steps = seconds_per_sample(offers, {"one": 0.01})
    for unknown in (Resources({"V100": 1}), Resources({"H100": 4}), Resources(None), Resources({})):
        task = Task(Resources({"V100": 4}), unknown)
        with pytest.raises(ProblemError):
            set_time_estimator(task, problem(*offers), steps)
        assert task.estimator is None


def test_the_task_gets_the_estimator_for_its_number_of_nodes():
    offers = [offer("one", V100, 4)]
    task = Task(Resources({"V100": 4}), num_nodes=2)
    estimator = set_time_estimator(task, problem(*offers), seconds_per_sample(offers, {"one": 0.01}))
    assert task.estimator is estimator
    assert task.estimator(task.resources[0]) == 64


def test_a_task_on_no_machine_is_refused():
    with pytest.raises(ValueError, match="one machine or more"):
        SkyTimeEstimator(problem(offer("one", V100)), TableSteps([], {}), 0)


@pytest.mark.skipif(importlib.util.find_spec("sky") is None, reason="the package skypilot is not installed")
def test_the_real_optimizer_of_skypilot_chooses_by_our_durations(tmp_path):
    own = {"HOME": str(tmp_path), "SKY_RUNTIME_DIR": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    roots = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)],
        env={**os.environ, **own, "PYTHONPATH": roots},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("CHOICES ")]
    found = json.loads(line.removeprefix("CHOICES "))
    # One hour each: the cheaper hour wins.
    assert found["alone"] == ["gpu_1x_v100", None]
    # Three times the time at half the price is no bargain; one and a half times is one.
    assert found["cost, V100 3 times as slow"] == ["gpu_1x_a100", 7200]
    assert found["cost, V100 1.5 times as slow"] == ["gpu_1x_v100", 10800]
    assert found["time, V100 1.5 times as slow"] == ["gpu_1x_a100", 7200]
    assert found["cost, V100 3 times as slow, 2 nodes"] == ["gpu_1x_a100", 3600]
