"""``gpusonde workload predict`` gets the same answers from a collector as it computes itself with the same model."""

from __future__ import annotations

import json

import pytest
from support.collector_process import ask, running_collector
from support.timed_networks import write_timed_networks


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted")
    ask("workload", "fit", str(write_timed_networks(folder)), "--out", str(folder / "own.model"))
    return folder


@pytest.fixture(scope="module")
def collector(fitted, tmp_path_factory):
    with running_collector(
        tmp_path_factory.mktemp("collector"), "--set", f"workload.model={fitted / 'own.model'}"
    ) as running:
        yield running


def test_the_collector_says_what_the_same_model_says_here(fitted, collector):
    graphs = [str(fitted / "chain16x4.json"), "zoo:resnet18"]
    question = ["workload", "predict", *graphs, "--target-gpus", "T4,H100-SXM5-80GB", "--gpus", "1,2"]
    question += ["--batch-size", "16,64", "--samples-per-epoch", "1000"]
    here = ask(*question, "--model", str(fitted / "own.model"))
    there = ask(*question, "--collector", collector.address)
    assert len(there["predictions"]) == 16
    for own, other in zip(here["predictions"], there["predictions"], strict=True):
        nearest = own.pop("nearest"), other.pop("nearest")
        assert [each["architecture"] for each in nearest[0]] == [each["architecture"] for each in nearest[1]]
        assert own.pop("reasons") == other.pop("reasons")
        numbers = {key for key, value in own.items() if isinstance(value, float)}
        assert {key: own[key] for key in numbers} == pytest.approx({key: other[key] for key in numbers}, rel=1e-6)
        assert {key: own[key] for key in own.keys() - numbers} == {key: other[key] for key in own.keys() - numbers}


def test_a_dataset_type_without_an_encoder_is_answered_and_its_training_is_queued(fitted, collector):
    question = ["workload", "predict", "zoo:resnet18", "--target-gpus", "T4", "--dataset-type", "landscapes"]
    found = ask(*question, "--collector", collector.address)
    assert found["predictions"][0]["step_s"] > 0
    assert any("landscapes" in note for note in found["notes"])


def test_a_collector_plans_a_job_that_never_ran_without_seeing_its_graph(fitted, collector, tmp_path):
    problem = {
        "format": "gpusonde.problem/1",
        "global_batch": 256,
        "iterations": 10_000,
        "job": {"graph": {"file": str(fitted / "chain64x8.json"), "largest_batch": 128}},
        "catalog": [{"providers": ["aws"], "regions": ["us-east-1"], "gpus": ["T4"], "quota": 4}],
    }
    (tmp_path / "cold.json").write_text(json.dumps(problem))
    here = ask("plan", "solve", str(tmp_path / "cold.json"))
    there = ask("plan", "solve", str(tmp_path / "cold.json"), "--collector", collector.address)
    assert here["status"] == there["status"] == "optimal"
    assert here["plan"] == there["plan"]
    assert any("curve of T4 is estimated from the network's graph" in note for note in there["notes"])
