"""``gpusonde workload graph``: the graph of a network as one file without weights and without code."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from gpusonde import formatting
from gpusonde.cli.errors import check_writable
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser, positive_integer
from gpusonde.cli.workload.sources import parse_input_shape, take_graph

if TYPE_CHECKING:
    from gpusonde.predictor.workload.graph import WorkloadGraph

_SHOWN_KINDS = 8
# As GraphLimits.text, which would have to be imported.
_LONGEST_NAME = 400
_ENDS = ("input", "output")


class KindPayload(TypedDict):
    """The operations of one kind."""

    kind: str
    operations: int
    parameters: int
    forward_flops_per_sample: float


class GraphPayload(TypedDict):
    """What ``gpusonde workload graph`` prints."""

    source: str
    graph_file: str
    graph_file_bytes: int
    name: str
    front_end: Annotated[str, JsonKey("`fx`, `export`, `onnx`, `pt2`, `config` or `keras`")]
    batch_size: int
    inputs: Annotated[list[list[int]], JsonKey("extents, batch included")]
    operations: int
    edges: Annotated[int, JsonKey("of operations that read what others wrote")]
    layers: Annotated[int, JsonKey("convolutions and linear layers")]
    parameters: int
    parameter_bytes: Annotated[int, JsonKey("in single precision")]
    forward_flops_per_sample: Annotated[float, JsonKey("a multiply-add is two")]
    forward_matrix_flops_per_sample: Annotated[
        float, JsonKey("of convolutions, linear layers and products of matrices")
    ]
    activation_bytes_per_sample: Annotated[float, JsonKey("in single precision")]
    kinds: Annotated[list[KindPayload], JsonKey("of operations, the most expensive first")]
    notes: Annotated[list[str], JsonKey("such as that batch normalisation was folded away")]


def add_graph_options(parser: Parser) -> None:
    """Declare ``gpusonde workload graph``."""
    parser.description = (
        "Write the graph of a network to a JSON file that holds neither weights nor code. SOURCE is a file (.onnx, "
        ".pt2, the config.json of a transformer, or a graph written before), zoo:NAME or keras:NAME@SIZE "
        "(networks that are known), FILE.py:FACTORY, or "
        "PACKAGE.MODULE:FACTORY of an installed package such as torchvision.models:resnet18. A FACTORY is called "
        "without arguments and returns a torch.nn.Module; its weights are never made. Its code runs in this process "
        "with your rights, as your training would: run only what you would train. docs/workload.md shows how to read "
        "somebody else's in a container. Files and known networks run nothing."
    )
    parser.add_argument("source", metavar="SOURCE", help="what to take the graph of")
    parser.add_argument("--out", type=Path, required=True, metavar="GRAPH.json", help="file to write")
    parser.add_argument(
        "--input",
        type=parse_input_shape,
        action="append",
        metavar="SHAPE",
        help="shape of one sample of an input, as in 3x224x224, or int64:128 for indices; repeatable, for factories; "
        "of a config.json the sequence (default: the longest)",
    )
    parser.add_argument(
        "--lora-rank",
        type=positive_integer,
        metavar="N",
        help="of a config.json: freeze it but for adapters of this rank",
    )
    parser.add_argument(
        "--batch-size", type=positive_integer, metavar="N", help="samples that the graph is taken with (default: 1)"
    )
    parser.add_argument("--name", type=_name, help="what to call the network (default: as the source does)")


def _name(text: str) -> str:
    """Argument type: a name that readers of graphs take."""
    if not 0 < len(text) <= _LONGEST_NAME or not text.isprintable():
        raise argparse.ArgumentTypeError(f"write 1 to {_LONGEST_NAME} characters that can be printed")
    return text


def run_graph(args: argparse.Namespace) -> int:
    """Take the graph, write it and say what is in it."""
    from gpusonde.predictor.workload.graph import dump_graph
    from gpusonde.service.durable_files import write_durably

    output = Output(as_json=args.json)
    check_writable(args.out)
    with output.progress("reading the network"):
        graph = take_graph(args.source, args.input or (), args.batch_size, args.name, args.lora_rank)
    write_durably(args.out, f"{dump_graph(graph)}\n".encode())
    found = payload(graph, args.source, args.out)
    output.result(found, lambda screen: _render(screen, found))
    return 0


def payload(graph: WorkloadGraph, source: str, path: Path) -> GraphPayload:
    """Return what is printed of a graph."""
    from gpusonde.predictor.workload.graph import BYTES_PER_NUMBER, count_graph_cost, count_operation_cost

    cost = count_graph_cost(graph).per_sample
    kinds: dict[str, KindPayload] = {}
    for operation in graph.operations:
        kind = kinds.setdefault(
            operation.primitive.value,
            {"kind": operation.primitive.value, "operations": 0, "parameters": 0, "forward_flops_per_sample": 0.0},
        )
        kind["operations"] += 1
        kind["parameters"] += sum(parameter.count for parameter in operation.parameters)
        kind["forward_flops_per_sample"] += count_operation_cost(operation).flops / graph.batch_size
    return {
        "source": source,
        "graph_file": str(path),
        "graph_file_bytes": path.stat().st_size,
        "name": graph.name,
        "front_end": graph.front_end,
        "batch_size": graph.batch_size,
        "inputs": [list(each.output) for each in graph.operations if each.primitive.value == "input"],
        "operations": len(graph.operations),
        "edges": len(graph.edges),
        "layers": graph.layer_count,
        "parameters": graph.parameter_count,
        "parameter_bytes": BYTES_PER_NUMBER * graph.parameter_count,
        "forward_flops_per_sample": cost.flops,
        "forward_matrix_flops_per_sample": cost.matrix_flops,
        "activation_bytes_per_sample": cost.output_bytes,
        "kinds": sorted(kinds.values(), key=lambda kind: -kind["forward_flops_per_sample"]),
        "notes": list(graph.notes),
    }


def _render(screen: Screen, found: GraphPayload) -> None:
    for note in found["notes"]:
        screen.note(f"note: {note}")
    inputs = " and ".join("x".join(map(str, shape)) for shape in found["inputs"])
    screen.heading(f"{found['name']}, read by {found['front_end']}, input {inputs}")
    columns = ("operations", "parameters", "forward GFLOP per sample")
    screen.table(
        ("kind", *columns),
        [
            (
                kind["kind"].replace("_", " "),
                str(kind["operations"]),
                f"{kind['parameters']:,}",
                formatting.number(kind["forward_flops_per_sample"] / 1e9),
            )
            for kind in [each for each in found["kinds"] if each["kind"] not in _ENDS][:_SHOWN_KINDS]
        ]
        + [
            (
                "all",
                str(found["operations"]),
                f"{found['parameters']:,}",
                formatting.number(found["forward_flops_per_sample"] / 1e9),
            )
        ],
        numeric=columns,
    )
    screen.line(
        f"{formatting.number(found['activation_bytes_per_sample'] / 1e6)} MB of activations per sample,"
        f" {formatting.number(found['parameter_bytes'] / 1e6)} MB of parameters in single precision;"
        " a multiply-add is two operations"
    )
    screen.line(f"written to {found['graph_file']} ({found['graph_file_bytes']:,} bytes; no weights, no code)")
