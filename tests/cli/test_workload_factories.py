"""``gpusonde workload graph`` of networks that a function of the user's makes, in the user's own process."""

from __future__ import annotations

import json
import sys

import pytest

from gpusonde.cli.main import main
from gpusonde.predictor.workload.graph import load_graph

torch = pytest.importorskip("torch", reason="needs torch (extra torch)")

CODE = """
import torch
from torch import nn

print("the user's code prints")


def images():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))


def plain():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


def words():
    return nn.Sequential(nn.Embedding(100, 16), nn.Linear(16, 4))


def enormous():
    return nn.Sequential(nn.Flatten(), nn.Linear(150528, 10_000_000))


def looks_at_its_weights():
    network = plain()
    network.note = float(network[0].weight.abs().sum().item())
    return network


class Choosing(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


def number():
    return 3


def failing():
    raise RuntimeError("no luck today")


def needing(size):
    return plain()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "networks_of_mine.py").write_text(CODE)
    (tmp_path / "does_not_import.py").write_text("raise OSError('the disk is on fire')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("networks_of_mine", "does_not_import"):
        sys.modules.pop(name, None)


def graph(capsys, source, *arguments):
    assert main(["workload", "graph", source, *arguments, "--out", "net.json", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_graph_of_an_own_network_holds_its_shapes_and_nothing_else(folder, capsys):
    found = graph(capsys, "networks_of_mine.py:plain", "--input", "3x32x32", "--batch-size", "4")
    assert (found["name"], found["batch_size"]) == ("networks_of_mine.plain", 4)
    assert found["inputs"] == [[4, 3, 32, 32]]
    assert found["parameters"] == 8 * 27 + 8 + 80 + 10
    written = (folder / "net.json").read_text()
    assert load_graph(written).parameter_count == found["parameters"]
    assert str(folder) not in written
    assert len(written) < 2_000


def test_a_module_on_the_path_is_imported(capsys):
    assert graph(capsys, "networks_of_mine:plain")["name"] == "plain"


def test_inputs_may_be_indices(capsys):
    assert graph(capsys, "networks_of_mine:words", "--input", "int64:12")["parameters"] == 1600 + 68


def test_a_network_larger_than_any_memory_has_a_graph(capsys):
    assert graph(capsys, "networks_of_mine:enormous")["parameter_bytes"] > 6e12


def test_a_factory_that_looks_at_weights_gets_some(capsys):
    assert graph(capsys, "networks_of_mine:looks_at_its_weights")["layers"] == 2


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("networks_of_mine:Choosing", "depends on the values of its data"),
        ("networks_of_mine:images", "call it once on an example"),
        ("networks_of_mine:number", "returned int; it must return a torch.nn.Module"),
        ("networks_of_mine:failing", "no luck today"),
        ("networks_of_mine:needing", "missing 1 required positional argument"),
        ("networks_of_mine:absent", "no function absent"),
        ("networks_of_mine:words", "--input says another shape"),
        ("no_such_package.at_all:net", "there is no module"),
        ("does_not_import:net", "the disk is on fire"),
        ("networks_of_mine:", "must be FILE.py:FUNCTION or MODULE:FUNCTION"),
    ],
)
def test_what_gives_no_graph_is_said_in_a_line(source, words, folder, capsys):
    assert main(["workload", "graph", source, "--out", "net.json"]) == 1
    printed = capsys.readouterr()
    (said,) = [line for line in printed.err.splitlines() if line.startswith("gpusonde:")]
    assert words in said
    assert printed.out == ""
    assert not (folder / "net.json").exists()


def test_a_torchvision_of_another_torch_is_named_with_the_way_around(folder, capsys):
    (folder / "does_not_import.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    assert main(["workload", "graph", "does_not_import:resnet18", "--out", "net.json"]) == 1
    said = capsys.readouterr().err
    assert "does not belong to this torch" in said
    assert "zoo:resnet18" in said
    assert main(["workload", "graph", "does_not_import:resnet5", "--out", "net.json"]) == 1
    assert "zoo:" not in capsys.readouterr().err
