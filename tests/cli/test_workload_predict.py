"""``gpusonde workload fit`` and ``predict``: a model of the user's own, and what it says of networks that never ran."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
from support.measured_workloads import PLACES, chain, true_seconds
from support.timed_networks import COLUMNS, NETWORKS, write_timed_networks

from gpusonde.catalog import load_gpus
from gpusonde.cli.main import main
from gpusonde.cli.output import Screen
from gpusonde.cli.workload.answers import render_predictions, unanswered
from gpusonde.predictor.workload.engine import Cluster, WorkloadRequest
from gpusonde.predictor.workload.graph import Operation, Parameter, Primitive, WorkloadGraph, dump_graph

GPUS = load_gpus()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A folder with networks, measurements and the model of them, and what fitting printed."""
    folder = tmp_path_factory.mktemp("fitted")
    write_timed_networks(folder)
    assert main(["workload", "fit", str(folder / "timed.csv"), "--out", str(folder / "own.model")]) == 0
    return folder


@pytest.fixture(autouse=True)
def here(fitted, monkeypatch):
    monkeypatch.chdir(fitted)


def predict(capsys, *arguments, exit_code=0):
    capsys.readouterr()
    assert main(["workload", "predict", *arguments, "--model", "own.model", "--json"]) == exit_code
    return json.loads(capsys.readouterr().out)


def test_own_measurements_make_a_model_whose_choice_is_said(capsys):
    assert main(["workload", "fit", "timed.csv", "--out", "again.model", "--regressor", "linear", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["measurements"] == len(NETWORKS) * len(PLACES) * 2
    assert found["left_out"] == []
    assert len(found["networks"]) == len(NETWORKS)
    assert found["gpus"] == ["T4", "V100-SXM2-16GB"]
    assert [each["regressor"] for each in found["regressors"]] == ["linear"]
    assert found["model_bytes"] > 0


def test_rows_without_a_graph_are_counted_and_named(fitted, capsys):
    (fitted / "more.csv").write_text((fitted / "timed.csv").read_text() + "absent.json,T4,16,0.5,fp32,here/T4\n")
    assert main(["workload", "fit", "more.csv", "--out", "m.model", "--regressor", "linear", "--json"]) == 0
    (left,) = json.loads(capsys.readouterr().out)["left_out"]
    assert (left["reason"], left["measurements"]) == ("absent.json: No such file or directory", 1)


def test_a_step_of_a_network_that_was_never_timed_lies_in_its_interval(fitted, capsys):
    new = chain(48, 6, name="new")
    (fitted / "new.json").write_text(dump_graph(new))
    (found,) = predict(
        capsys, "new.json", "--target-gpus", "Tesla T4", "--batch-size", "32", "--environment", "here/T4"
    )["predictions"]
    truth = true_seconds([WorkloadRequest(new, 32, Cluster("T4", environment="here/T4"))], GPUS)[0]
    assert found["step_low_s"] < truth < found["step_high_s"]
    assert found["step_s"] == pytest.approx(truth, rel=0.15)
    assert (found["gpu_model"], found["error"], found["out_of_distribution"]) == ("T4", None, False)


def test_every_combination_is_answered_at_once_in_the_order_of_the_questions(capsys):
    sizes, devices = ("16", "64"), ("T4", "V100-SXM2-16GB")
    found = predict(
        capsys, "chain16x4.json", "chain64x8.json", "--target-gpus", ",".join(devices), "--batch-size", ",".join(sizes)
    )["predictions"]
    asked = [(name, gpu, int(size)) for name in ("chain16x4", "chain64x8") for gpu in devices for size in sizes]
    assert [(each["graph"], each["gpu_model"], each["batch_size"]) for each in found] == asked


def test_gpus_are_placed_as_those_of_epochs_are(capsys):
    places = "T4,8xV100-SXM2-16GB,8xV100-SXM2-16GB@pcie,2x4xV100-SXM2-16GB@25gbit"
    rows = predict(capsys, "chain16x4.json", "--target-gpus", places)["predictions"]
    assert [(each["gpu_count"], each["node_count"], each["link"]) for each in rows] == [
        (1, 1, None), (8, 1, None), (8, 1, "pcie"), (8, 2, None),
    ]  # fmt: skip
    assert rows[3]["network_bytes_per_second"] == 25e9 / 8
    waits = [each["communication_ratio"] for each in rows]
    assert waits[0] is None
    assert 0 < waits[1] < waits[2] < 1
    assert main(["workload", "predict", "chain16x4.json", "--target-gpus", places, "--wide"]) == 0
    shown = capsys.readouterr().out
    assert "8 x V100-SXM2-16GB@pcie" in shown
    assert "in 2 hosts@25gbit" in shown


def test_an_epoch_is_its_steps_the_last_of_which_may_hold_fewer_samples(capsys):
    arguments = ("chain16x4.json", "--target-gpus", "T4", "--batch-size", "32", "--gpus", "1,4")
    one, four = predict(capsys, *arguments, "--samples-per-epoch", "1001")["predictions"]
    assert (one["steps_per_epoch"], four["steps_per_epoch"]) == (32, math.ceil(1001 / 128))
    assert one["epoch_s"] == pytest.approx(32 * one["step_s"])
    assert one["epoch_low_s"] < one["epoch_s"] < one["epoch_high_s"]
    assert (four["gpu_count"], four["parallelism"], four["global_batch_size"]) == (4, "distributed", 128)
    assert predict(capsys, *arguments)["predictions"][0]["epoch_s"] is None


def test_what_is_unlike_everything_measured_is_flagged_with_the_reason_and_widens_the_interval(capsys):
    known, unknown = predict(capsys, "chain16x4.json", "--target-gpus", "T4,H100-SXM5-80GB")["predictions"]
    assert unknown["out_of_distribution"]
    assert any("H100-SXM5-80GB" in reason for reason in unknown["reasons"])
    assert unknown["step_high_s"] / unknown["step_low_s"] > known["step_high_s"] / known["step_low_s"]
    assert (
        main(["workload", "predict", "chain16x4.json", "--target-gpus", "H100-SXM5-80GB", "--model", "own.model"]) == 0
    )
    assert "unlike all known" in capsys.readouterr().out


def test_two_networks_of_one_name_are_told_apart(capsys):
    found = predict(capsys, "chain16x4.json", "./chain16x4.json", "--target-gpus", "T4")["predictions"]
    assert [each["graph"] for each in found] == ["chain16x4", "chain16x4 (./chain16x4.json)"]


def test_the_reader_is_told_which_batches_memory_and_which_names_are_in_doubt(capsys):
    found = predict(capsys, "zoo:vgg16", "--target-gpus", "V100", "--batch-size", "32,4096", "--environment", "mars")
    notes = found["notes"]
    small, large = found["predictions"]
    assert (small["fits"], large["fits"]) == ("yes", "no")
    assert small["memory"]["largest_batch"] == large["memory"]["largest_batch"] < 4096
    assert sum("probably do not fit into the memory of V100" in reason for reason in large["reasons"]) == 1
    assert not any("into the memory" in reason for reason in small["reasons"])
    assert any(note.startswith("V100: taken for") for note in notes)
    assert "environments that the model knows: here/T4, here/V100, there/T4" in notes


def test_a_network_that_no_batch_of_fits_is_named(capsys):
    wide = (60_000, 60_000)
    operations = (
        Operation(Primitive.INPUT, "x", (1, 60_000)),
        Operation(Primitive.LINEAR, "wide", (1, 60_000), ((1, 60_000),), wide, (Parameter("weight", wide),)),
        Operation(Primitive.OUTPUT, "output", (1, 60_000), ((1, 60_000),)),
    )
    Path("wide.json").write_text(dump_graph(WorkloadGraph("wide", operations, ((0, 1), (1, 2)), 1)), encoding="utf-8")
    (found,) = predict(capsys, "wide.json", "--target-gpus", "T4")["predictions"]
    assert (found["fits"], found["memory"]["largest_batch"]) == ("no", 0)
    assert any(reason.startswith("no batch of wide probably fits into the memory of T4") for reason in found["reasons"])


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (["chain16x4.json"], 2, "--target-gpus"),
        (["chain16x4.json", "--target-gpus", "T40"], 1, "unknown GPU"),
        (["absent.json", "--target-gpus", "T4"], 1, "No such file"),
        (["zoo:resnet5", "--target-gpus", "T4"], 1, "did you mean resnet50"),
        (["timed.csv", "--target-gpus", "T4"], 1, "neither a graph"),
        (["some.module:net", "--target-gpus", "T4"], 2, "'gpusonde workload graph' makes a file"),
        (["chain16x4.json", "--target-gpus", "T4", "--batch-size", "0"], 2, "not above zero"),
        (["chain16x4.json", "--target-gpus", "T4", "--batch-size", "8,8"], 2, "twice"),
        (["chain16x4.json", "--target-gpus", "T4", "--batch-size", "1048577"], 2, "at most 1048576"),
        (["chain16x4.json", "--target-gpus", "T4", "--gpus", "99999999999"], 2, "at most 100000"),
        (["chain16x4.json", "--target-gpus", "T4", "--samples-per-epoch", str(1 << 51)], 2, "--samples-per-epoch"),
        (["chain16x4.json", "--target-gpus", "T4", "--machines", "2"], 2, "--machines 2"),
        (["chain16x4.json", "--target-gpus", "T4", "--parallelism", "distributed"], 2, "several GPUs"),
        (["chain16x4.json", "--target-gpus", "T4", "--model", "timed.csv"], 1, "timed.csv"),
        (
            ["chain16x4.json", "--target-gpus", "T4", "--model", "m", "--collector", "127.0.0.1:1"],
            2,
            "exclude each other",
        ),
        (["chain16x4.json", "--target-gpus", "T4", "--collector", "127.0.0.1:1"], 1, "no collector answers"),
    ],
)
def test_what_cannot_be_answered_is_said_in_a_line(arguments, exit_code, words, capsys):
    assert main(["workload", "predict", *arguments]) == exit_code
    said = capsys.readouterr().err
    assert words in said
    assert "fault in gpusonde" not in said


@pytest.mark.parametrize("registry", ["absent", "timed.csv"])
def test_the_shipped_encoder_does_not_stand_in_for_a_registry_that_is_not_there(registry, capsys):
    assert main(["workload", "embed", "zoo:resnet18", "--encoder", f"{registry}/digits"]) == 2
    assert f"--encoder {registry}/digits: no such folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "empty"),
        ("a,b\n1,2\n", "model"),
        (",".join(COLUMNS) + "\nchain16x4.json,T4,16,fast,fp32,here/T4\n", "bad.csv:2"),
        (",".join(COLUMNS) + "\nchain16x4.json,T4,16,0.1,fp32,here/T4\n", "measurement"),
        (",".join(COLUMNS) + "\nnet,T4,16,0.1,fp32,here/T4\n", "left out: 1 row: net: "),
        (",".join(COLUMNS) + "\nchain16x4.json,T40,16,0.1,fp32,here/T4\n", "left out: 1 row: unknown GPU 'T40'"),
    ],
)
def test_a_table_that_nothing_can_be_fitted_on_is_named(content, words, fitted, capsys):
    (fitted / "bad.csv").write_text(content)
    assert main(["workload", "fit", "bad.csv", "--out", "bad.model"]) == 1
    said = capsys.readouterr().err
    assert "bad.csv" in said
    assert words in said
    assert not (fitted / "bad.model").exists()


def test_a_matrix_of_a_graph_is_one_of_its_samples_per_second(capsys):
    question = ["chain16x4.json", "--target-gpus", "T4,V100", "--batch-size", "8", "--matrix"]
    found = predict(capsys, *question)
    t4, v100 = (row["step_s"] for row in found["predictions"])
    assert found["exchange_rates"]["own_gpu_model"] == "T4"
    assert found["exchange_rates"]["rates"]["V100-SXM2-16GB"]["rate"] == pytest.approx(t4 / v100, rel=0.01)
    vast = [*question[:-2], "1048576", "--matrix"]
    assert "the memory does not hold the job" in str(predict(capsys, *vast, exit_code=1)["error"])
    several = [*question[:-2], "8,16", "--matrix"]
    assert "ask for one" in str(predict(capsys, *several, exit_code=1)["error"])


def test_memory_that_nobody_reckoned_is_not_said_to_be_none():
    answer = {**unanswered("net", 1, "fp32", None), "gpu_model": "T4", "gpu_count": 1, "node_count": 1}
    answer |= dict.fromkeys(("step_s", "step_low_s", "step_high_s", "interval_coverage"), 0.5)
    shown = io.StringIO()
    render_predictions(Screen(shown), {"notes": [], "predictions": [answer], "model_version": None})
    (line,) = [line for line in shown.getvalue().splitlines() if line.split()[:2] == ["net", "T4"]]
    assert "-" in line.split()
    assert "0" not in line.split()
