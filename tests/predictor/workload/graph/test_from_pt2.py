from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import subprocess
import sys
import time
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.hostile_graphs import archive, program, program_node, pt2

from gpusonde.errors import GraphError, GraphLimitError, MalformedGraphError, UnsupportedGraphError
from gpusonde.predictor.workload.graph import GraphLimits, WorkloadGraph, load_graph
from gpusonde.predictor.workload.graph.pt2 import from_pt2

FILES = Path(__file__).parents[3] / "data" / "graph_files"


def read(content: bytes, **keywords: Any) -> WorkloadGraph:
    return from_pt2(io.BytesIO(content), **keywords)


@pytest.mark.parametrize(
    ("file", "network"),
    [
        ("convolutions", "convolutions"), ("convolutions_old", "convolutions"), ("convolutions_open", "convolutions"),
        ("text", "text"), ("transformer", "transformer"),
    ],
)  # fmt: skip
def test_an_archive_gives_the_graph_that_torch_export_gave(file: str, network: str) -> None:
    expected = load_graph((FILES / f"{network}.json").read_bytes())
    found = read((FILES / f"{file}.pt2").read_bytes(), name=network)
    assert replace(found, front_end="export", notes=()) == expected
    assert found.front_end == "pt2"


def test_sizes_that_are_open_are_those_of_the_example() -> None:
    found = read((FILES / "convolutions_open.pt2").read_bytes())
    assert found.batch_size == 2
    assert found.notes == ("the program leaves sizes open: shapes are those of the example",)


def test_a_weight_with_two_names_counts_once() -> None:
    found = read((FILES / "text.pt2").read_bytes())
    assert found.parameter_count == 20 * 8 + 2 * (2 * 8 * 32 + 2 * 32) + 72


def test_reading_needs_no_torch_and_loads_no_pickle() -> None:
    code = (
        "import sys, pickle; pickle.Unpickler = pickle.load = pickle.loads = None\n"
        "from gpusonde.predictor.workload.graph.pt2 import from_pt2\n"
        "print(len(from_pt2(open(sys.argv[1], 'rb')).operations), 'torch' in sys.modules, '_pickle' in sys.modules)"
    )
    path = FILES / "convolutions.pt2"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.split()[:2] == ["12", "False"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: d.pop("graph_module"), "graph_module"),
        (lambda d: d["graph_module"].pop("signature"), "signature"),
        (lambda d: d["graph_module"]["graph"].update(nodes={}), "nodes"),
        (lambda d: d["graph_module"]["graph"].update(nodes=[3]), "a node"),
        (lambda d: d["graph_module"]["graph"]["nodes"][0].update(target=None), "target"),
        (lambda d: d["graph_module"]["graph"]["nodes"][0].update(inputs=None), "inputs"),
        (lambda d: d["graph_module"]["graph"].update(tensor_values=[]), "tensor_values"),
        (lambda d: d["graph_module"]["graph"]["tensor_values"].update(h={"sizes": [{"as_int": True}]}), "integer"),
        (lambda d: d["graph_module"]["graph"]["tensor_values"].update(h={"sizes": [{"as_int": 2.0}]}), "integer"),
        (lambda d: d["graph_module"]["graph"]["tensor_values"].update(h={"sizes": [7]}), "dict"),
        (lambda d: d["graph_module"]["graph"]["nodes"].reverse(), "reads"),
        (lambda d: d["graph_module"]["signature"].update(input_specs=[[]]), "an input"),
    ],
)
def test_what_is_no_program_is_refused_with_the_place(change: Callable[[Any], None], text: str) -> None:
    document = program()
    change(document)
    with pytest.raises(MalformedGraphError, match=text):
        read(pt2(document))


def test_sizes_known_only_at_run_time_are_refused() -> None:
    size = {"as_expr": {"expr_str": "u0", "hint": None}}
    document = program()
    document["graph_module"]["graph"]["tensor_values"]["h"]["sizes"] = [size]
    with pytest.raises(UnsupportedGraphError, match="only when the network runs"):
        read(pt2(document))


def test_operators_that_nobody_knows_are_counted_as_others_and_noted() -> None:
    node = program_node("relu.default", ["x"], "h")
    nodes = [{**node, "target": "torch.ops.mine.twist.default"}, program_node("relu.default", ["h"], "y")]
    found = read(pt2(program(nodes)))
    assert [each.primitive.value for each in found.operations] == ["input", "other", "activation", "output"]
    assert "mine::twist (1)" in found.notes[0]


def test_graphs_within_graphs_are_read_in_place_and_not_without_end() -> None:
    inner: dict[str, Any] = program([program_node("relu.default", ["h"], "y")])["graph_module"]["graph"]
    inner["inputs"] = [{"as_tensor": {"name": "h"}}]
    for _ in range(30):
        node = program_node("relu.default", [], "y")
        graph = {"name": "", "arg": {"as_graph": {"name": "g", "graph": inner}}}
        given = {"name": "", "arg": {"as_tensor": {"name": "h"}}}
        node = {**node, "target": "torch.ops.higher_order.wrap_with_set_grad_enabled", "inputs": [graph, given]}
        inner = {**inner, "nodes": [node]}
    document = program([program_node("linear.default", ["x", "p_w"], "h"), *inner["nodes"]])
    assert len(read(pt2(document)).operations) == 4
    many = program([program_node("linear.default", ["x", "p_w"], "h"), *inner["nodes"] * 4])
    with pytest.raises(GraphLimitError, match="graphs within"):
        read(pt2(many))


@pytest.mark.parametrize("depth", [100, 900, 960, 990, 2000])
def test_weights_that_are_nested_deeply_end_in_an_error_of_ours(depth: int) -> None:
    weights = b'{"config": {"fc.weight": ' + b"[" * depth + b"]" * depth + b"}}"
    with contextlib.suppress(MalformedGraphError):
        assert read(pt2(None, **{"small/data/weights/model_weights_config.json": weights})).operations


def test_archives_without_exactly_one_program_are_refused() -> None:
    text = json.dumps(program())
    with pytest.raises(UnsupportedGraphError, match="2 programs"):
        read(archive({"a/models/one.json": text, "a/models/two.json": text}))
    with pytest.raises(MalformedGraphError, match=r"no exported program$"):
        read(archive({"a/other.json": text}))
    with pytest.raises(MalformedGraphError, match=r"torch.save and of TorchScript hold pickled code"):
        read(archive({"a/data.pkl": b"\x80\x02N."}))


def test_damaged_and_encrypted_archives_are_refused() -> None:
    sound = pt2()
    for content in (sound[:-30], sound[40:], b"PK\x03\x04", sound.replace(b"relu", b"RELU")):
        with pytest.raises(MalformedGraphError):
            read(content)
    encrypted = bytearray(sound)
    encrypted[encrypted.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(MalformedGraphError):
        read(bytes(encrypted))


def test_compressed_archives_are_read() -> None:
    assert read(archive({"m/models/model.json": json.dumps(program())}, zipfile.ZIP_DEFLATED)).name == "m"


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_what_is_packed_as_torch_never_packs_is_not_unpacked_to_look_for_attacks(method: int) -> None:
    content = io.BytesIO(pt2())
    with zipfile.ZipFile(content, "a") as file:
        file.writestr("small/data/sample_inputs/model.pt", b"\x80\x02N." * 200, method)
        packed = file.getinfo("small/data/sample_inputs/model.pt")
    damaged = bytearray(content.getvalue())
    end = packed.header_offset + 30 + len(packed.filename) + packed.compress_size
    damaged[end - 20 : end] = bytes(20)
    assert read(bytes(damaged)).name == "small"


@pytest.mark.parametrize(
    "limits",
    [
        GraphLimits(archive_bytes=1000), GraphLimits(program_bytes=1000), GraphLimits(archive_entries=2),
        GraphLimits(operations=5), GraphLimits(tensors=5), GraphLimits(inputs=5), GraphLimits(values=100),
        GraphLimits(containers=100), GraphLimits(edges=5), GraphLimits(extent=9),
    ],
)  # fmt: skip
def test_every_limit_holds(limits: GraphLimits) -> None:
    with pytest.raises(GraphLimitError):
        read((FILES / "convolutions.pt2").read_bytes(), limits=limits)


def test_many_nodes_of_one_name_take_no_longer_than_others() -> None:
    same = [{**program_node("relu.default", ["x"], f"t{at}"), "name": "a"} for at in range(12_000)]
    document = program([*same, program_node("relu.default", ["x"], "y")])
    for at in range(12_000):
        document["graph_module"]["graph"]["tensor_values"][f"t{at}"] = {"sizes": []}
    content = pt2(document)
    started = time.process_time()
    assert len(read(content).operations) == 12_003
    assert time.process_time() - started < 10


def _same(module: Any, *example: Any) -> None:
    """What torch hands over directly and what comes out of the file are one graph."""
    torch = pytest.importorskip("torch")
    from gpusonde.predictor.workload.graph import dump_graph
    from gpusonde.predictor.workload.graph.torch.export import read_program

    file = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        exported = torch.export.export(module.eval(), example, strict=False)
        torch.export.save(exported, file)
    expected = read_program(exported, module, name="n", batch_size=example[0].shape[0])
    found = from_pt2(file, name="n")
    assert replace(found, front_end="export") == expected
    assert found.parameter_count == sum(
        each.numel() for name, each in module.named_parameters() if name in _used(found)
    )
    assert load_graph(dump_graph(found)) == found


def _used(graph: WorkloadGraph) -> set[str]:
    return {each.name for operation in graph.operations for each in operation.parameters}


def test_files_of_torch_give_the_same_graph_as_torch_itself() -> None:
    torch = pytest.importorskip("torch")
    from torch import nn

    class InPlace(nn.Module):
        def forward(self, x: Any) -> Any:
            y = torch.zeros(2, 4)
            y[:, 0] = x[:, 0]
            y[:, 1:3] += x[:, 1:3]
            return torch.einsum("ij,kj->ik", y, x).softmax(-1)

    class Keywords(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose2d(3, 4, 2, 2)
            self.bias = nn.Parameter(torch.zeros(4, 1, 1))
            self.table = nn.Buffer(torch.ones(4, 1, 1)) if hasattr(nn, "Buffer") else None

        def forward(self, x: Any) -> Any:
            y = torch.nn.functional.interpolate(self.up(x) + self.bias, scale_factor=2.0)
            values, _ = torch.topk(y.flatten(1), 5)
            return values, torch.addmm(values[:, :4].sum(1)[:, None], values, values.t())

    _same(InPlace(), torch.zeros(2, 4))
    _same(Keywords(), torch.zeros(2, 3, 4, 4))
    _same(nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128), 2), torch.zeros(2, 16, 64))


@pytest.mark.parametrize(
    "name", ["resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_0", "vit_b_32", "swin_t"]
)
def test_networks_of_torchvision_give_the_same_graph_as_torch_itself(name: str) -> None:
    torch = pytest.importorskip("torch")
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    _same(getattr(_torchvision_models(), name)(), torch.zeros(2, 3, 224, 224))


def _torchvision_models() -> Any:
    sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks" / "workload"))
    try:
        from torchvision_networks import torchvision_models
    finally:
        sys.path.pop(0)
    return torchvision_models()


def test_any_error_is_one_of_ours() -> None:
    document = json.dumps(program())
    for at in range(0, len(document), 7):
        for damage in ("", "[", "1", '"', "null", "-"):
            with contextlib.suppress(GraphError):
                read(archive({"m/models/model.json": document[:at] + damage + document[at + 3 :]}))
