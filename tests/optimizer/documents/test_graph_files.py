"""A problem file that names the graph of a network: every GPU on offer gets a curve that the model estimates."""

import json
from dataclasses import replace

import pytest
from support.problem_documents import small_problem
from support.workload_graphs import StraightLines, small_network

from gpusonde.catalog import load_gpus, load_offers
from gpusonde.errors import DocumentError
from gpusonde.optimizer.documents.problem import parse_problem
from gpusonde.optimizer.documents.references import read_problem
from gpusonde.optimizer.documents.watching import solve_problem
from gpusonde.optimizer.solve import solve
from gpusonde.predictor.workload.graph import dump_graph, read_graph
from gpusonde.simulator.compute import CurveOrigin

GPUS, OFFERS = load_gpus(), load_offers()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "net.json").write_text(dump_graph(small_network(channels=64)))
    return tmp_path


def problem(folder, model=None, graph=None, job=None, **changes):
    document = small_problem(job={"graph": {"file": "net.json"} | (graph or {})} | (job or {}), **changes)
    for offer in document.get("offers", []):
        offer |= {"network_bytes_per_second": 1e9}
        offer.pop("fabric", None)
    (folder / "problem.json").write_text(json.dumps(document))
    predictor = model or StraightLines()
    return read_problem(folder / "problem.json", workload_model=lambda path: predictor)


def test_a_job_that_never_ran_is_planned_from_its_graph_and_the_answer_says_what_was_estimated(folder):
    document = problem(folder)
    assert "graph" not in json.dumps(document)
    found = parse_problem(document, GPUS, OFFERS)
    assert {curve.origin for curve in found.job.curves.values()} == {CurveOrigin.GRAY_BOX}
    solution = solve_problem(found)
    assert solution["status"] == "optimal"
    (estimated,) = [note for note in solution["notes"] if "estimated from the network's graph" in note]
    assert estimated.startswith("the compute curves of T4 and V100-SXM2-16GB are ")
    assert "90 % of such estimates lie within -17 % and +20 %" in estimated
    assert any("when gradients are ready is assumed" in note for note in solution["notes"])


def test_gradients_are_those_of_the_network_unless_the_job_says_otherwise(folder):
    count = small_network(channels=64).parameter_count
    assert problem(folder)["job"]["gradients"] == {"parameter_bytes": 4 * count}
    own = {"gradients": {"parameter_bytes": 5e6}}
    assert problem(folder, job=own)["job"]["gradients"] == own["gradients"]


def test_a_measured_curve_is_kept_and_only_the_others_are_estimated(folder):
    measured = {"curves": small_problem()["job"]["curves"][:1]}
    found = parse_problem(problem(folder, job=measured), GPUS, OFFERS)
    assert {name: curve.origin for name, curve in found.job.curves.items()} == {
        "T4": CurveOrigin.PROBES,
        "V100-SXM2-16GB": CurveOrigin.GRAY_BOX,
    }


def test_what_the_model_has_never_seen_is_said_of_the_gpu_in_question_only(folder):
    notes = parse_problem(problem(folder, StraightLines(unknown=["T4"])), GPUS, OFFERS).notes
    strange = [note for note in notes if "unlike what the model has seen: the GPU was never measured" in note]
    assert len(strange) == 1
    assert "curve of T4" in strange[0]
    same = parse_problem(problem(folder, StraightLines(unknown=["T4", "V100-SXM2-16GB"])), GPUS, OFFERS).notes
    assert sum("the GPU was never measured" in note for note in same) == 1


def test_the_largest_batch_is_estimated_from_memory_and_said_unless_it_is_given(folder):
    (folder / "net.json").write_text(dump_graph(small_network(channels=100_000)))
    found = parse_problem(problem(folder), GPUS, OFFERS)
    (t4, v100) = (found.job.curves[name].largest_batch for name in ("T4", "V100-SXM2-16GB"))
    assert 1 < t4 < 256
    assert any("which batches fit into the memory is estimated too" in note for note in found.notes)
    given = parse_problem(problem(folder, graph={"largest_batch": 48}), GPUS, OFFERS)
    assert given.job.curves["T4"].largest_batch == 48
    assert not any("fit into the memory" in note for note in given.notes)
    assert v100 == t4  # 16 GB both


def test_queries_to_the_catalogue_name_the_gpus_too(folder):
    document = problem(
        folder,
        offers=None,
        catalog=[{"providers": ["aws"], "regions": ["us-east-1"], "quota": 4}],
        graph={"largest_batch": 64},
    )
    devices = {curve["device"] for curve in document["job"]["curves"]}
    assert {"T4", "A10G", "V100-SXM2-16GB"} <= devices
    assert "RTX A6000" not in devices
    assert parse_problem(document, GPUS, OFFERS).problem.offers
    named = problem(folder, offers=None, catalog=[{"gpus": ["Tesla T4"], "quota": 4, "largest_batch": 64}])
    assert [curve["device"] for curve in named["job"]["curves"]] == ["T4"]
    several = problem(folder, offers=None, catalog=[{"gpus": ["A100 SXM4"], "quota": 4, "largest_batch": 64}])
    forms = ["A100-SXM4-40GB", "A100-SXM4-80GB"]
    assert [curve["device"] for curve in several["job"]["curves"]] == forms
    assert {offer.device for offer in parse_problem(several, GPUS, OFFERS).problem.offers} == set(forms)


def test_batch_sizes_to_estimate_at_can_be_given(folder):
    document = problem(folder, graph={"batch_sizes": [16, 128]})
    assert [row["batch_size"] for row in document["job"]["curves"][0]["gray_box"]] == [16, 128]


@pytest.mark.parametrize(
    ("graph", "field", "words"),
    [
        ({"file": "absent.json"}, "job.graph.file", "No such file"),
        ({"file": "problem.json"}, "job.graph.file", "problem.json"),
        ({"precision": "int4"}, "job.graph.precision", "fp64 or fp32 or tf32"),
        ({"precison": "fp16"}, "job.graph.precison", "did you mean 'precision'"),
        ({"batch_sizes": [32]}, "job.graph.batch_sizes", "two batch sizes"),
        ({"batch_sizes": [0, 32]}, "job.graph.batch_sizes[0]", "whole number"),
        ({"devices": ["T4000000"]}, "job.graph.devices", "T4000000"),
        ({"devices": []}, "job.graph.devices", "at least 1"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_key(graph, field, words, folder):
    (folder / "problem.json").write_text("{}")
    with pytest.raises(DocumentError, match=words) as error:
        problem(folder, graph=graph)
    assert error.value.field == field


def test_a_network_that_no_gpu_on_offer_can_hold_is_refused(folder):
    (folder / "net.json").write_text(dump_graph(small_network(channels=2**31 - 1)))
    with pytest.raises(DocumentError, match="more memory than any of these GPUs has; sharding lets several share"):
        problem(folder)


def test_weights_that_are_sharded_out_are_gathered_block_by_block(folder):
    """So no plan had weights larger than a GPU, although its users gather one block of many at a time."""
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 512,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "net.json").write_text(dump_graph(read_graph(folder / "config.json")))
    asked = {
        "graph": {"precision": "bf16"},
        "job": {"sharding": ["none", "zero3"], "checkpointing": True},
        "offers": None,
        "global_batch": 64,
        "deadline_s": None,
    }
    catalog = {"providers": ["aws"], "gpus": ["A10G"], "quota": 8}
    found = parse_problem(problem(folder, **asked, catalog=[catalog]), GPUS, OFFERS)
    memory = found.problem.memory
    assert memory.unit_bytes == pytest.approx(memory.weights_bytes / 32, rel=0.2)
    solution = solve_problem(found)
    assert solution["plan"]["mode"]["sharding"] == "zero3"
    assert not any("no batch of" in note for note in solution["notes"])
    # Where even that is too much, memory is named, once, with some of the offers.
    small = parse_problem(problem(folder, **asked, catalog=[catalog | {"gpus": ["M60", "T4", "K80"]}]), GPUS, OFFERS)
    whole = replace(small.problem, memory=replace(memory, unit_bytes=None))
    why = solve(whole, small.step_times(), explain=False).why
    assert "what the job holds does not fit into" in why
    assert why.count("aws/") == 5
    assert "unit_bytes" in why
