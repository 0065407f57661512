"""What a process answers: each question by itself, and nothing in common but the time."""

import pytest
from support.layered_graphs import graph_json, small_graph
from support.workload_parts import CountingModel, make_parts

from gpusonde.collector.workload.answering import Answers
from gpusonde.predictor.workload.embedding import Encoder, EncoderDescription, EncoderWeights
from gpusonde.predictor.workload.embedding.registry import Registry
from gpusonde.service.child import pack, unpack

CLUSTER = {
    "device": "V100-SXM2-16GB", "device_count": 2, "node_count": 1, "precision": "fp32", "parallelism": "distributed",
    "environment": None, "link": "", "network_bytes_per_second": 0.0, "agent_ids": [], "host": None, "notes": [],
}  # fmt: skip


def row(graph, **more):
    return {
        "graph": graph, "batch_size": 8, "cluster": CLUSTER, "dataset_type": None, "regressor": "",
        "optimizer": "adamw",
        "samples_per_epoch": None, **more,
    }  # fmt: skip


def question(contents, rows, kind="predict", **more):
    return {
        "kind": kind, "graphs": [{"format": "", "name": ""} for _ in contents], "rows": rows, "model": "",
        "embeddings": more.pop("embeddings", ""), "max_operations": 1000, "graph_time_limit_s": 0.2, **more,
    }  # fmt: skip


def ask(contents, rows, model=None, kind="predict", **more):
    return Answers(make_parts(model)).answer(question(contents, rows, kind, **more), contents)["answers"]


def kinds(answers):
    return [answer["error"]["kind"] if "error" in answer else "ok" for answer in answers]


def test_what_goes_over_the_pipe_comes_back():
    document, contents = {"a": [1, None, "ü"]}, [b"", b"\x00\xff" * 1000, b"x"]
    assert unpack(pack(document, contents)) == (document, contents)


def test_an_answer_holds_iteration_epoch_graph_and_cluster():
    (answer,) = ask([graph_json()], [row(0, samples_per_epoch=1000)])
    found = answer["prediction"]
    assert found["iteration_seconds"] == {"value": 4e-3, "low": 2e-3, "high": 8e-3}
    # 63 iterations of 16 samples, the last of them with 8.
    assert found["epoch_seconds"]["value"] == pytest.approx(63 * 4e-3)
    assert found["graph"]["name"] == "small"
    assert (found["graph"]["operations"], found["graph"]["parameters"]) == (10, 5200)
    assert found["graph"]["flops_per_sample"] > 1e6
    assert found["cluster"]["device"] == "V100-SXM2-16GB"
    assert found["embedding"] is None
    assert found["nearest"] == [{"name": "small", "family": "smalls", "similarity": 0.75}]


def test_all_questions_of_one_regressor_are_asked_at_once():
    model = CountingModel()
    rows = [row(0), row(1), row(0, regressor="mlp"), row(1), row(1, regressor="mlp")]
    answers = ask([graph_json(), graph_json("other", layers=5)], rows, model)
    assert sorted(model.calls, key=str) == [(2, "mlp"), (3, None)]
    assert [a["prediction"]["regressor"] for a in answers] == ["svr", "svr", "mlp", "svr", "mlp"]
    assert [a["prediction"]["graph"]["name"] for a in answers] == ["small", "other", "small", "other", "other"]


def test_one_bad_graph_leaves_the_others_their_answers():
    contents = [
        graph_json(), b"{}", b"", b"eat", b"fault", b"spin", graph_json("large", layers=600), b"[" * 100_000,
        graph_json("unpredictable"), graph_json("infinite"), graph_json("last"),
    ]  # fmt: skip
    answers = ask(contents, [row(place) for place in range(len(contents))])
    assert kinds(answers) == [
        "ok", "malformed_graph", "malformed_graph", "out_of_memory", "internal", "out_of_time", "graph_too_large",
        "malformed_graph", "invalid_request", "internal", "ok",
    ]  # fmt: skip
    assert answers[1]["error"]["field"] == "graph"
    assert "more than 0.2 s" in answers[5]["error"]["text"]
    # What is our own fault is for our log, not for strangers.
    assert "a fault of ours" not in answers[4]["error"]["text"]


def test_a_name_that_was_given_replaces_the_one_in_the_graph():
    asked = question([graph_json()], [row(0)])
    asked["graphs"][0]["name"] = "mine"
    (answer,) = Answers(make_parts()).answer(asked, [graph_json()])["answers"]
    assert answer["prediction"]["graph"]["name"] == "mine"


def test_what_is_out_of_distribution_says_so():
    (answer,) = ask([graph_json("deep", layers=60)], [row(0)])
    assert answer["prediction"]["out_of_distribution"]
    assert answer["prediction"]["reasons"] == ["it has more layers than any that was fitted on"]


@pytest.fixture
def registry(tmp_path):
    weights = EncoderWeights(
        EncoderDescription(dataset_type="scenes", training_steps=7), EncoderWeights.random(1).arrays
    )
    registered = Registry(tmp_path / "embeddings").add(weights)
    return tmp_path / "embeddings", registered


def test_an_embedding_that_there_is_is_named_and_said_to_be_unused_and_one_that_there_is_not_is_said(registry):
    folder, registered = registry
    rows = [row(0, dataset_type="scenes"), row(0, dataset_type="voices")]
    there, missing = (answer["prediction"] for answer in ask([graph_json()], rows, embeddings=str(folder)))
    assert (there["embedding"]["available"], there["embedding"]["encoder_sha256"]) == (True, registered.sha256)
    assert (
        there["embedding"]["note"] == "the embedding for scenes is not used: predicted from counts of the graph alone"
    )
    assert missing["embedding"]["available"] is False
    assert "no embedding for voices" in missing["embedding"]["note"]


def test_embeddings_are_the_encoder_s_and_a_bad_graph_has_none(registry):
    folder, registered = registry
    contents = [graph_json(), b"{}", graph_json("other", layers=9)]
    found = Answers(make_parts()).answer(
        question(
            contents,
            [{"graph": at} for at in (2, 1, 0)],
            "embed",
            dataset_type="scenes",
            nearest_count=0,
            embeddings=str(folder),
        ),
        contents,
    )
    assert (found["encoder_sha256"], found["trained_steps"]) == (registered.sha256, registered.trained_steps)
    assert found["answers"][0]["embedding"]["nearest"] == []
    assert kinds(found["answers"]) == ["ok", "malformed_graph", "ok"]
    expected = Encoder(registered.weights).embed([small_graph("other", layers=9)])[0]
    assert found["answers"][0]["embedding"]["values"] == pytest.approx(expected.tolist())


def test_neighbours_come_best_first_and_without_an_encoder_there_are_none(registry):
    folder, _ = registry
    more = {"kind": "embed", "nearest_count": 2, "embeddings": str(folder)}
    near, bad = ask([graph_json(), b"{"], [{"graph": 0}, {"graph": 1}], dataset_type="scenes", **more)
    assert [each["name"] for each in near["embedding"]["nearest"]] == ["small-0", "small-1"]
    assert bad["error"]["kind"] == "malformed_graph"
    (none,) = ask([graph_json()], [{"graph": 0}], dataset_type="voices", **more)
    assert (none["error"]["kind"], none["error"]["field"]) == ("no_embedding", "dataset_type")
