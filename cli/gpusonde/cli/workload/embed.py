"""``gpusonde workload embed``: networks as vectors, and the known networks most like them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from gpusonde import formatting
from gpusonde.cli.connection import add_collector_options
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser, whole_number
from gpusonde.cli.workload.remote import open_client, take_answers, to_sent
from gpusonde.cli.workload.sources import read_graphs
from gpusonde.errors import CommandError, UsageError

if TYPE_CHECKING:
    from gpusonde.predictor.workload.embedding import EncoderWeights
    from gpusonde.predictor.workload.graph import WorkloadGraph

_SUFFIXES = (".safetensors", ".npz")


class EmbeddedNearestPayload(TypedDict):
    """A known network near another one."""

    architecture: str
    family: str
    similarity: Annotated[float, JsonKey("cosine after centring, at most 1")]


class EmbeddedGraphPayload(TypedDict):
    """One network as a vector."""

    graph: str
    embedding: list[float]
    nearest: Annotated[list[EmbeddedNearestPayload], JsonKey("known networks, the most alike first")]


class EmbedPayload(TypedDict):
    """What ``gpusonde workload embed`` prints."""

    dataset_type: str
    encoder_sha256: Annotated[str, JsonKey("embeddings of different encoders cannot be compared")]
    trained_steps: int | None
    graphs: list[EmbeddedGraphPayload]


def load_encoder(name: str) -> EncoderWeights:
    """Return the encoder that an option names: ``NAME`` shipped, ``DIR/NAME`` of a registry, or a checkpoint's file.

    Raises:
        UsageError: There is no such registry.
        CommandError: The registry has none of this name, or the file's encoder is an untrained one.
        gpusonde.errors.EncoderError: None of this name is shipped, or its file is damaged.
        OSError: The file cannot be read.
    """
    from gpusonde.predictor.workload.embedding import EncoderWeights, Registry

    folder, slash, dataset_type = name.rpartition("/")
    if name.endswith(_SUFFIXES):
        weights = EncoderWeights.load(name)
        if not weights.description.dataset_type:
            raise CommandError(f"{name} holds an encoder that was never trained; 'gpusonde workload train' makes one")
        return weights
    if not slash:
        return Registry().get(name).weights
    if not Path(folder or slash).is_dir():
        raise UsageError(f"--encoder {name}: no such folder; 'gpusonde workload train --out' makes one")
    registered = Registry(folder or slash).get(dataset_type)
    if registered.is_shipped:
        # Nothing else would say that it is not the user's.
        raise CommandError(f"{folder} has no encoder for {dataset_type!r}; the shipped one is --encoder {dataset_type}")
    return registered.weights


_DEFAULT_TYPE = "digits"
_DEFAULT_NEAREST = 5


def add_embed_options(parser: Parser) -> None:
    """Declare ``gpusonde workload embed``."""
    parser.description = (
        "Turn networks into vectors, with the encoder that was trained for a type of data, and name the known networks "
        "most like them. Where the encoder says nothing of training times, it still says what a network resembles."
    )
    parser.add_argument("graphs", nargs="+", metavar="GRAPH", help="as for 'predict'")
    parser.add_argument(
        "--encoder",
        default=_DEFAULT_TYPE,
        metavar="[DIR/]NAME",
        help="by the type of data that it was trained for, shipped or of a registry made by 'workload train', or its "
        f"file (default: {_DEFAULT_TYPE})",
    )
    parser.add_argument(
        "--nearest",
        type=whole_number,
        default=_DEFAULT_NEAREST,
        metavar="N",
        help="known networks to name (default: 5)",
    )
    add_collector_options(parser, default=None, otherwise="embedding here")


def run_embed(args: argparse.Namespace) -> int:
    """Embed, compare and print."""
    output = Output(as_json=args.json)
    if args.collector is not None and ("/" in args.encoder or args.encoder.endswith(_SUFFIXES)):
        raise UsageError(
            f"--encoder {args.encoder} and --collector exclude each other: a collector has its own, by name"
        )
    graphs = read_graphs(args.graphs)
    here = args.collector is None
    payload = _embed_here(args, graphs, output) if here else _embed_there(args, graphs, args.nearest)
    output.result(payload, lambda screen: _render(screen, payload))
    return 0


def _embed_there(args: argparse.Namespace, graphs: Sequence[WorkloadGraph], nearest: int) -> EmbedPayload:
    """Return a collector's embeddings of graphs, and the known networks most like them, as they are printed.

    Raises:
        CommandError: It has no encoder for this type of data, or refuses a graph.
    """
    sent = [to_sent(graph) for graph in graphs]
    with open_client(args) as client:
        embedded = client.embed(sent, args.encoder, nearest)
    return {
        "dataset_type": args.encoder,
        "encoder_sha256": embedded["encoder_sha256"],
        "trained_steps": embedded["trained_steps"],
        "graphs": [
            {
                "graph": graph.name,
                "embedding": found["values"],
                "nearest": [
                    {"architecture": each["name"], "family": each["family"], "similarity": each["similarity"]}
                    for each in found["nearest"]
                ],
            }
            for graph, found in zip(graphs, take_answers(embedded["answers"], graphs, "embedding"), strict=True)
        ],
    }


def _embed_here(args: argparse.Namespace, graphs: Sequence[WorkloadGraph], output: Output) -> EmbedPayload:
    from gpusonde.predictor.workload.embedding import Encoder, find_nearest

    weights = load_encoder(args.encoder)
    encoder = Encoder(weights)
    with output.progress(f"embedding {formatting.count(len(graphs), 'network')}"):
        vectors = encoder.embed(graphs)
        alike = [find_nearest(graph, encoder, args.nearest) if args.nearest else [] for graph in graphs]
    return {
        "dataset_type": weights.description.dataset_type,
        "encoder_sha256": weights.sha256,
        "trained_steps": weights.description.training_steps,
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


def _render(screen: Screen, payload: EmbedPayload) -> None:
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
