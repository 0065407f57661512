"""``gpusonde workload graph`` without torch: known networks and files, and what is refused."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.workload_graphs import small_network

from gpusonde.cli.main import main
from gpusonde.predictor.workload.graph import dump_graph, load_graph

DATA = Path(__file__).parents[1] / "data" / "graph_files"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.json").write_text(dump_graph(small_network()))
    (tmp_path / "net.py").write_text("open('ran', 'w')\ndef network():\n    raise SystemExit(3)\n")
    return tmp_path


def answer(capsys, *arguments, exit_code=0):
    assert main(["workload", *arguments, "--json"]) == exit_code
    return json.loads(capsys.readouterr().out)


def test_a_graph_is_written_and_what_is_in_it_is_said(folder, capsys):
    found = answer(capsys, "graph", "net.json", "--out", "copy.json", "--name", "mine")
    assert (found["name"], found["front_end"], found["operations"], found["edges"]) == ("mine", "fx", 6, 5)
    assert found["parameters"] == 8 * 27 + 8 * 10 + 10
    assert found["parameter_bytes"] == 4 * found["parameters"]
    assert found["inputs"] == [[1, 3, 16, 16]]
    assert found["forward_matrix_flops_per_sample"] == 2 * (8 * 27 * 256 + 80)
    assert sum(kind["forward_flops_per_sample"] for kind in found["kinds"]) == found["forward_flops_per_sample"]
    written = (folder / "copy.json").read_bytes()
    assert found["graph_file_bytes"] == len(written)
    assert load_graph(written).operations == small_network().operations


def test_the_summary_is_for_people_too(capsys):
    assert main(["workload", "graph", "net.json", "--out", "copy.json"]) == 0
    said = capsys.readouterr().out
    assert "small, read by fx, input 1x3x16x16" in said
    assert "no weights, no code" in said


def test_a_keras_network_is_a_source_at_the_sizes_that_are_shipped(capsys):
    small, large = (answer(capsys, "graph", f"keras:VGG16@{size}", "--out", "vgg.json") for size in (64, 128))
    assert small["front_end"] == "keras"
    assert large["activation_bytes_per_sample"] > 3 * small["activation_bytes_per_sample"]


@pytest.mark.parametrize("file", ["convolutions_trained.onnx", "convolutions.pt2"])
def test_files_of_other_formats_give_the_same_network_without_their_weights(file, folder, capsys):
    own = answer(capsys, "graph", str(DATA / "convolutions.json"), "--out", "own.json")
    found = answer(capsys, "graph", str(DATA / file), "--out", "net.json")
    assert (found["name"], found["front_end"]) == tuple(file.split("."))
    for key in ("parameters", "layers", "inputs", "forward_matrix_flops_per_sample"):
        assert found[key] == own[key]
    assert len((folder / "net.json").read_bytes()) < 3_000


def test_an_onnx_file_may_leave_its_batch_open(capsys):
    found = answer(capsys, "graph", str(DATA / "convolutions.onnx"), "--batch-size", "4", "--out", "net.json")
    assert found["inputs"] == [[4, 3, 16, 16]]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (["keras:VGG17@64"], 1, "did you mean VGG19"),
        (["keras:VGG16"], 2, "keras:VGG16@224"),
        (["keras:VGG16@100"], 1, "32, 64, 128, 224, 256 pixels, not 100"),
        (["keras:InceptionV3@64"], 1, "128, 224, 256 pixels, not 64"),
        (["absent.json"], 1, "absent.json: No such file"),
        (["."], 1, "directory"),
        (["net.py"], 2, "net.py:FACTORY"),
        (["absent.py:network"], 1, "no file absent.py"),
        (["net.json", "--input", "3x8x8"], 2, "belongs to factories"),
        (["net.json", "--batch-size", "4"], 2, "belongs to factories"),
        (["net.json", "--name", "a\nb"], 2, "characters that can be printed"),
        (["net.json", "--name", ""], 2, "1 to 400 characters"),
        (["net.json", "--name", 401 * "x"], 2, "1 to 400 characters"),
        (["x:y", "--input", "3x0x8"], 2, "no shape"),
        (["x:y", "--input", "int7:3"], 2, "no type"),
        (["x:y", "--input", "1x1x1x1x1x1x1x1x1"], 2, "no shape"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line_that_says_what_to_do(arguments, exit_code, words, folder, capsys):
    assert main(["workload", "graph", *arguments, "--out", "x.json"]) == exit_code
    said = capsys.readouterr().err.strip()
    assert words in said
    assert "Traceback" not in said
    assert "fault in gpusonde" not in said
    assert not (folder / "x.json").exists()


@pytest.mark.parametrize(
    "rubbish",
    [b"", b"{}", b"\x00" * 100, b"PK\x03\x04rest", b"[1,2", b'{"format": "gpusonde.problem/1"}', b"\x08\x07\x12\xff"],
)
@pytest.mark.parametrize("suffix", [".json", ".onnx", ".pt2"])
def test_rubbish_under_any_name_is_refused_with_the_file_s_name(rubbish, suffix, folder, capsys):
    (folder / f"bad{suffix}").write_bytes(rubbish)
    error = answer(capsys, "graph", f"bad{suffix}", "--out", "x.json", exit_code=1)["error"]
    assert error["file"] == f"bad{suffix}"
    assert error["type"].endswith("Error")
    assert not (folder / "x.json").exists()


def test_a_place_that_cannot_be_written_leaves_nothing_behind(folder, capsys):
    assert main(["workload", "graph", "net.json", "--out", "absent/x.json"]) == 1
    assert "absent" in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == ["net.json", "net.py"]


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["graph", "net.py:network", "--out", "x.json"], "torch"),
        (["graph", "some.package:network", "--out", "x.json"], "torch"),
        (["train", "--dataset", "digits", "--out", "encoders"], "training"),
    ],
)
def test_without_torch_the_extra_that_brings_it_is_named_and_nothing_runs(arguments, extra, folder, capsys):
    assert main(["workload", *arguments]) == 1
    assert f"pip install 'gpusonde[{extra}]'" in capsys.readouterr().err
    assert not (folder / "ran").exists()
