"""The decoders of workload graphs."""

from __future__ import annotations

import io
import json
from pathlib import Path

from fuzz.target import Target
from support.hostile_graphs import archive, json_graph, program, pt2, small_onnx

from gpusonde.errors import GraphError
from gpusonde.predictor.workload.graph import load_graph
from gpusonde.predictor.workload.graph.limits import GraphLimits
from gpusonde.predictor.workload.graph.onnx import from_onnx
from gpusonde.predictor.workload.graph.onnx.model import read_model
from gpusonde.predictor.workload.graph.pt2 import from_pt2
from gpusonde.predictor.workload.graph.reading import GraphFormat, recognise


def _read_workload(data: bytes) -> None:
    """As ``read_graph``, but that no process is started to infer shapes: a file that needs it is refused."""
    form = recognise(data[:64])
    if form is GraphFormat.ONNX:
        _read_onnx(data)
    elif form is GraphFormat.PT2:
        from_pt2(io.BytesIO(data))
    else:
        load_graph(data)


def _read_onnx(data: bytes) -> None:
    read_model(data, GraphLimits())
    from_onnx(data, limits=GraphLimits(inference_s=0))


def _workload_files() -> list[bytes]:
    folder = Path(__file__).parents[1] / "data" / "graph_files"
    files = [
        folder / name for name in ("text.pt2", "convolutions_trained.onnx", "transformer_dynamo.onnx", "text.json")
    ]
    return [json_graph(), small_onnx(), pt2(), *(each.read_bytes() for each in files)]


WORKLOAD_TARGETS = {
    "workload_json": Target(load_graph, lambda: [json_graph(), _workload_files()[-1]], (GraphError,)),
    "workload_onnx": Target(
        _read_onnx, lambda: [small_onnx(), small_onnx(batch="N"), _workload_files()[-2]], (GraphError,)
    ),
    "workload_program": Target(
        lambda data: from_pt2(io.BytesIO(archive({"m/models/model.json": data}))),
        lambda: [json.dumps(program()).encode()], (GraphError,),
    ),
    "workload_archive": Target(
        lambda data: from_pt2(io.BytesIO(data)), lambda: [pt2(), _workload_files()[3]], (GraphError,)
    ),
    "workload_file": Target(_read_workload, _workload_files, (GraphError,)),
}  # fmt: skip
