"""``gpusonde workload fit --encoder``: columns of an embedding, where they help, and the encoder that they need."""

from __future__ import annotations

import json

import pytest
from support.measured_workloads import chain
from support.timed_networks import write_timed_networks
from support.trained_encoders import add_encoder, encoder_weights
from support.wired_networks import SLOWER, turned, write_pairs

from gpusonde.cli.main import main
from gpusonde.predictor.workload.embedding import EncoderWeights
from gpusonde.predictor.workload.embedding.registry import name_checkpoint
from gpusonde.predictor.workload.graph import dump_graph

FIT = ("workload", "fit", "pairs.csv", "--regressor", "linear")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tables, graphs, a registry and a model that needs its encoder."""
    found = tmp_path_factory.mktemp("encoders")
    write_pairs(found)
    write_timed_networks(found)
    add_encoder(found / "registry", "tiny")
    for graph in (chain(48, 6, name="new"), turned(chain(48, 6, name="new"))):
        (found / f"{graph.name}.json").write_text(dump_graph(graph))
    return found


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.fixture(scope="module")
def model(folder):
    registry = str(folder / "registry")
    table = str(folder / "pairs.csv")
    offer = ("--regressor", "linear", "--encoder", f"{registry}/tiny")
    (folder / "models").mkdir()
    assert main(["workload", "fit", table, *offer, "--out", str(folder / "models" / "own")]) == 0
    return str(folder / "models" / "own")


def ask(capsys, *words, exit_code=0):
    capsys.readouterr()
    assert main([*words, "--json"]) == exit_code
    return json.loads(capsys.readouterr().out)


def test_an_embedding_that_helps_stays_and_the_model_needs_its_encoder(model, capsys):
    offer = ("--encoder", "registry/tiny")
    found = ask(capsys, *FIT, *offer, "--out", "m1")
    encoder = found["encoder"]
    assert (encoder["dataset_type"], encoder["sha256"]) == ("tiny", encoder_weights().sha256)
    assert encoder["kept"]
    assert encoder["error"] < 0.1
    assert encoder["error_without"] > 0.5
    assert [each["features"] for each in found["regressors"]] == ["roofline+analytic+embedding"]
    assert main([*FIT, *offer, "--out", "m1"]) == 0
    said = capsys.readouterr().out
    assert "the embedding of tiny stays: an error of" in said
    name = name_checkpoint("tiny", encoder_weights().sha256)
    assert found["encoder_file"] == name
    assert f"its encoder is in {name}: keep the two files together" in said
    place = ("--target-gpus", "T4", "--environment", "here/T4", "--model", model)
    one, other = ask(capsys, "workload", "predict", "new.json", "newturned.json", *place)["predictions"]
    assert one["features"] == "roofline+analytic+embedding"
    assert other["step_s"] / one["step_s"] == pytest.approx(SLOWER, rel=0.3)


def test_an_embedding_that_does_not_help_is_left_out_and_that_is_said(capsys):
    offer = ("--encoder", "digits", "--out", "m2")
    assert main(["workload", "fit", "timed.csv", "--regressor", "linear", *offer]) == 0
    said = capsys.readouterr().out
    assert "the embedding of digits is left out" in said
    assert "keep the two files together" not in said
    found = ask(capsys, "workload", "predict", "new.json", "--target-gpus", "T4", "--model", "m2")
    assert found["predictions"][0]["features"] == "roofline+analytic"


def test_a_checkpoint_s_file_is_as_good_as_a_name_and_the_model_needs_it_beside_itself(folder, capsys):
    name = name_checkpoint("tiny", encoder_weights().sha256)
    (folder / "elsewhere").mkdir()
    found = ask(capsys, *FIT, "--encoder", f"registry/{name}", "--out", "elsewhere/m3")
    assert found["encoder"]["sha256"] == encoder_weights().sha256
    asked = ("workload", "predict", "new.json", "--target-gpus", "T4", "--model", "elsewhere/m3")
    assert ask(capsys, *asked)["predictions"][0]["step_s"] > 0
    (folder / "elsewhere" / name).unlink()
    refused = ask(capsys, *asked, exit_code=1)
    assert f"put its file {name} into that folder" in refused["error"]["message"]


def test_the_shipped_encoder_is_found_by_itself(capsys):
    assert main([*FIT, "--encoder", "digits", "--out", "m4"]) == 0
    assert "keep the two files together" not in capsys.readouterr().out
    found = ask(capsys, "workload", "predict", "new.json", "--target-gpus", "T4", "--model", "m4")
    assert found["predictions"][0]["error"] is None


@pytest.mark.parametrize(
    ("words", "exit_code", "said"),
    [
        (("--encoder", "voices"), 1, "no encoder for dataset type 'voices'"),
        (("--encoder", "absent/voices"), 2, "no such folder"),
        (("--encoder", "registry/voices"), 1, "no encoder for dataset type 'voices'"),
        (("--encoder", "registry/digits"), 1, "the shipped one is --encoder digits"),
        (("--encoder", "x.safetensors"), 1, "No such file"),
        (("--encoder", "damaged.safetensors"), 1, "not a file of an encoder's weights"),
        (("--encoder", "untrained.safetensors"), 1, "never trained"),
        (("--encoder", "registry/Up"), 1, "names no dataset type"),
    ],
)
def test_encoders_that_cannot_be_had_are_said_in_a_line(folder, capsys, words, exit_code, said):
    (folder / "damaged.safetensors").write_bytes(b"damaged")
    EncoderWeights.random(0).save(folder / "untrained.safetensors")
    assert main([*FIT, *words, "--out", "m5"]) == exit_code
    error = capsys.readouterr().err
    assert said in error
    assert "fault in gpusonde" not in error
    assert not (folder / "m5").exists()
