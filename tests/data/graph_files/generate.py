"""Makes the .pt2, ONNX and JSON files beside it: ``python tests/data/graph_files/generate.py``.

Needs the extra ``torch``, onnx and onnxscript; made with torch 2.13.0 and onnx 1.22.0. The archives are as
``torch.export.save`` writes them, without the stack traces, which name files of the machine that they were made on.
"""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gpusonde.predictor.workload.graph import dump_graph
from gpusonde.predictor.workload.graph.torch.export import read_program

HERE = Path(__file__).parent


class Convolutions(nn.Module):
    """A residual block with a depthwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.pool = nn.MaxPool2d(2)
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False), nn.BatchNorm2d(8), nn.SiLU())
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.stem(x))
        x = x + self.block(x)
        return self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Text(nn.Module):
    """Shared weights, a recurrent layer, a part without gradients, a split."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.recurrent = nn.LSTM(8, 8, 2, batch_first=True)
        self.gate = nn.Linear(8, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.recurrent(self.embedding(tokens))
        with torch.no_grad():
            gate = self.gate(states) * 2
        left, right = gate.split(4, -1)
        return self.head(states + torch.cat([right, left], -1))


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def pt2(program: torch.export.ExportedProgram) -> dict[str, bytes]:
    made = io.BytesIO()
    torch.export.save(program, made)
    with zipfile.ZipFile(made) as archive:
        files = {each: archive.read(each) for each in archive.namelist()}
    name = next(each for each in files if each.endswith("models/model.json"))
    document = json.loads(files[name])
    _forget_where(document)
    return {**files, name: json.dumps(document).encode()}


def _forget_where(part: Any) -> None:
    if isinstance(part, dict):
        for key in ("stack_trace", "nn_module_stack", "source_fn_stack"):
            part.pop(key, None)
        part = list(part.values())
    if isinstance(part, list):
        for each in part:
            _forget_where(each)


def write_archive(path: Path, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            # A date that is always the same.
            archive.writestr(zipfile.ZipInfo(name), content)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)
    networks = {
        "convolutions": (Convolutions(), torch.zeros(2, 3, 16, 16)),
        "text": (Text(), torch.zeros(2, 5, dtype=torch.long)),
        "transformer": (transformer(), torch.zeros(2, 6, 16)),
    }
    for name, (network, example) in networks.items():
        network.eval()
        for parameter in network.parameters():
            # Exporters merge weights with equal values.
            nn.init.normal_(parameter)
        with torch.no_grad():
            program = torch.export.export(network, (example,), strict=False)
        graph = read_program(program, network, name=name, batch_size=2)
        (HERE / f"{name}.json").write_text(dump_graph(graph) + "\n", encoding="utf-8")
        files = pt2(program)
        write_archive(HERE / f"{name}.pt2", files)
        torch.onnx.export(
            network, (example,), HERE / f"{name}.onnx", dynamo=False, input_names=["x"],
            output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
        )  # fmt: skip
    network, example = networks["convolutions"]
    torch.onnx.export(
        network, (example,), HERE / "convolutions_trained.onnx", dynamo=False, do_constant_folding=False,
        training=torch.onnx.TrainingMode.TRAINING,
    )  # fmt: skip
    program = torch.onnx.export(networks["transformer"][0], (networks["transformer"][1],), dynamo=True)
    program.save(HERE / "transformer_dynamo.onnx")
    _remove_places(HERE / "transformer_dynamo.onnx")
    batch = torch.export.Dim("batch")
    with torch.no_grad():
        open_program = torch.export.export(network, (example,), dynamic_shapes=({0: batch},), strict=False)
    write_archive(HERE / "convolutions_open.pt2", pt2(open_program))
    _write_old_archive(HERE / "convolutions_old.pt2", HERE / "convolutions.pt2")


def _remove_places(path: Path) -> None:
    import onnx

    model = onnx.load(path)
    for part in (*model.graph.node, *model.graph.value_info, *model.graph.initializer, model.graph, model):
        del part.metadata_props[:]
    onnx.save(model, path)


def _write_old_archive(path: Path, new: Path) -> None:
    """As torch wrote it until 2.6, and still reads it: the program at the top, weights and constants as pickles."""
    with zipfile.ZipFile(new) as archive:
        program = archive.read("archive/models/model.json")
    state = io.BytesIO()
    torch.save({}, state)
    files = {"version": b"8.1", "serialized_exported_program.json": program}
    pickles = ("serialized_state_dict.json", "serialized_constants.json", "serialized_example_inputs.pt")
    write_archive(path, files | dict.fromkeys(pickles, state.getvalue()))


if __name__ == "__main__":
    main()
