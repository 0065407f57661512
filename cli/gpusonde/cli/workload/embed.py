"""``gpusonde workload embed``: networks as vectors, and the known networks most like them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpusonde.cli import wording
from gpusonde.cli.connection import add_collector_options
from gpusonde.cli.output import Output, Screen
from gpusonde.cli.parsing import Parser, Subparsers, UsageError, add_command, whole_number
from gpusonde.cli.workload.encoders import add_registry_option, registry_of
from gpusonde.cli.workload.remote import embedded_there
from gpusonde.cli.workload.sources import named_graphs

if TYPE_CHECKING:
    from gpusonde.predictor.workload.embedding.registry import Registry
    from gpusonde.predictor.workload.graph import WorkloadGraph

_DEFAULT_TYPE = "digits"
_DEFAULT_NEAREST = 5


def add_embed_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde workload embed``."""
    parser = add_command(
        subparsers,
        common,
        "embed",
        "turn networks into vectors and name the known networks most like them",
        "Turn networks into vectors, with the encoder that was trained for a type of data, and name the known networks "
        "most like them. Where the encoder says nothing of training times, it still says what a network resembles.",
    )
    parser.add_argument("graphs", nargs="+", metavar="GRAPH", help="as for 'predict'")
    parser.add_argument(
        "--dataset-type", default=_DEFAULT_TYPE, metavar="NAME", help=f"whose encoder (default: {_DEFAULT_TYPE})"
    )
    parser.add_argument(
        "--nearest",
        type=whole_number,
        default=_DEFAULT_NEAREST,
        metavar="N",
        help="known networks to name (default: 5)",
    )
    add_registry_option(parser)
    add_collector_options(parser, default=None, otherwise="embedding here")


def run_embed(args: argparse.Namespace) -> int:
    """Embed, compare and print."""
    if args.registry is not None and args.collector is not None:
        raise UsageError("--registry and --collector exclude each other: a collector has its own")
    output = Output(as_json=args.json)
    registry = registry_of(args)
    graphs = named_graphs(args.graphs)
    if args.collector is None:
        payload = _embedded_here(args, graphs, registry, output)
    else:
        payload = embedded_there(args, graphs, args.nearest)
    output.result(payload, lambda screen: _render(screen, payload))
    return 0


def _embedded_here(
    args: argparse.Namespace, graphs: Sequence[WorkloadGraph], registry: Registry | None, output: Output
) -> dict[str, Any]:
    from gpusonde.predictor.workload.embedding.encoder import Encoder
    from gpusonde.predictor.workload.embedding.nearest import nearest
    from gpusonde.predictor.workload.embedding.registry import Registry

    registered = (registry or Registry()).get(args.dataset_type)
    encoder = Encoder(registered.weights)
    with output.progress(f"embedding {wording.count(len(graphs), 'network')}"):
        vectors = encoder.embed(graphs)
        alike = [nearest(graph, encoder, args.nearest) if args.nearest else [] for graph in graphs]
    return {
        "dataset_type": registered.dataset_type,
        "encoder_sha256": registered.sha256,
        "trained_steps": registered.trained_steps,
        "graphs": [
            {
                "graph": graph.name,
                "embedding": [float(value) for value in vector],
                "nearest": [
                    {"architecture": name, "family": family, "similarity": similarity}
                    for name, family, similarity in found
                ],
            }
            for graph, vector, found in zip(graphs, vectors, alike, strict=True)
        ],
    }


def _render(screen: Screen, payload: dict[str, Any]) -> None:
    for graph in payload["graphs"]:
        screen.heading(f"{graph['graph']}: {len(graph['embedding'])} numbers (--json prints them)")
        if not graph["nearest"]:
            continue
        screen.table(
            ("most alike", "family", "similarity"),
            [(near["architecture"], near["family"], f"{near['similarity']:.2f}") for near in graph["nearest"]],
            numeric=("similarity",),
        )
    steps = "" if payload["trained_steps"] is None else f"{payload['trained_steps']} steps, "
    screen.line(
        f"encoder of {payload['dataset_type']}, {steps}{payload['encoder_sha256'][:12]};"
        " similarity is the cosine after centring, at most 1"
    )
