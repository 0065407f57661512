"""``gpusonde workload embed``: networks as vectors, and the known networks most like them.

Encoders on the command line: by the type of data that they were trained for, in a registry, or as a file.

``NetworksBeside``: networks that a table of measurements names by a graph file.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from gpusonde.cli import formatting
from gpusonde.cli.connection import add_collector_options
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser, whole_number
from gpusonde.cli.workload.remote import embedded_there
from gpusonde.cli.workload.sources import read_graphs
from gpusonde.errors import CommandError, UsageError
from gpusonde.predictor.workload.engine.measurements import KnownNetworks, Network, UnknownNetworkError
from gpusonde.predictor.workload.graph import GraphError
from gpusonde.predictor.workload.graph.reading import read_graph

if TYPE_CHECKING:
    from gpusonde.predictor.workload.embedding.registry import Registry
    from gpusonde.predictor.workload.engine import EncoderEmbedder
    from gpusonde.predictor.workload.graph import WorkloadGraph

_SUFFIXES_OF_ENCODERS = (".safetensors", ".npz")


class EmbeddedNearestPayload(TypedDict):
    """A known network near another one."""

    architecture: Annotated[str, JsonKey("its name")]
    family: Annotated[str, JsonKey("what family it is of")]
    similarity: Annotated[float, JsonKey("cosine after centring, at most 1", "ratio")]


class EmbeddedGraphPayload(TypedDict):
    """One network as a vector."""

    graph: Annotated[str, JsonKey("name of the network")]
    embedding: Annotated[list[float], JsonKey("its vector")]
    nearest: Annotated[list[EmbeddedNearestPayload], JsonKey("known networks, the most alike first")]


class EmbedPayload(TypedDict):
    """What ``gpusonde workload embed`` prints."""

    dataset_type: Annotated[str, JsonKey("type of data that the encoder was trained for")]
    encoder_sha256: Annotated[str, JsonKey("of its weights; embeddings of different encoders cannot be compared")]
    trained_steps: Annotated[
        int | None, JsonKey("steps that it was trained for; null where a collector has replaced it meanwhile")
    ]
    graphs: Annotated[list[EmbeddedGraphPayload], JsonKey("the networks")]


def add_registry_option(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Declare ``--registry``."""
    parser.add_argument(
        "--registry", type=Path, metavar="DIR", help="encoders of 'gpusonde workload train', besides the shipped ones"
    )


def registry_of(args: argparse.Namespace) -> Registry | None:
    """The registry that was named; None where none was.

    Raises:
        UsageError: It is no folder.
    """
    from gpusonde.predictor.workload.embedding.registry import Registry

    if args.registry is None:
        return None
    if not args.registry.is_dir():
        # The shipped encoder would answer, and nothing would say that it is not the user's.
        raise UsageError(f"--registry {args.registry}: no such folder; 'gpusonde workload train --out' makes one")
    return Registry(args.registry)


def named_encoder(name: str, registry: Registry | None) -> EncoderEmbedder:
    """The encoder of a dataset type, or of a checkpoint's file.

    Raises:
        UsageError: A registry is given beside a file.
        CommandError: The file's encoder is an untrained one.
        gpusonde.predictor.workload.embedding.EmbeddingError: There is none of this name, or its file is damaged.
        OSError: The file cannot be read.
    """
    from gpusonde.predictor.workload.embedding import EncoderWeights
    from gpusonde.predictor.workload.embedding.registry import Registry
    from gpusonde.predictor.workload.engine import EncoderEmbedder

    if not name.endswith(_SUFFIXES_OF_ENCODERS):
        return EncoderEmbedder((registry or Registry()).get(name).weights)
    if registry is not None:
        raise UsageError("--registry belongs to --encoder with the name of a dataset type, not with a file")
    weights = EncoderWeights.load(name)
    if not weights.description.dataset_type:
        raise CommandError(f"{name} holds an encoder that was never trained; 'gpusonde workload train' makes one")
    return EncoderEmbedder(weights)


def where_to_have(embedder: EncoderEmbedder) -> str:
    """What predicting with a model of this encoder needs, in words; nothing where the encoder is shipped."""
    from gpusonde.predictor.workload.embedding.registry import Registry, UnknownEncoderError, checkpoint_name

    reference = embedder.reference
    try:
        Registry().exact(reference.dataset_type, reference.sha256)
    except UnknownEncoderError:
        return (
            f"predictions need its encoder: 'predict --registry DIR' with the registry that has it, or its file"
            f" {checkpoint_name(reference.dataset_type, reference.sha256)} beside the model"
        )
    return ""


_SUFFIXES = frozenset({".json", ".onnx", ".pt2"})


class NetworksBeside(KnownNetworks):
    """Finds graph files beside the table, and known networks.

    Args:
        folder: Names of files are relative to it.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._read: dict[str, Network] = {}

    def find(self, name: str, image_size: int | None, description: str = "") -> Network:
        """The network of a row.

        Raises:
            UnknownNetworkError: Its graph is not known, or its file holds none.
        """
        if Path(name).suffix not in _SUFFIXES:
            return super().find(name, image_size, description)
        if name not in self._read:
            try:
                graph = read_graph(self._folder / name)
            except (GraphError, OSError) as error:
                raise UnknownNetworkError(f"{name}: {getattr(error, 'strerror', None) or error}") from error
            # Networks of one name in several files are one architecture at several sizes.
            self._read[name] = Network(graph, graph.name, graph.name)
        return self._read[name]


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
    graphs = read_graphs(args.graphs)
    if args.collector is None:
        payload = _embedded_here(args, graphs, registry, output)
    else:
        payload = embedded_there(args, graphs, args.nearest)
    output.result(payload, lambda screen: _render(screen, payload))
    return 0


def _embedded_here(
    args: argparse.Namespace, graphs: Sequence[WorkloadGraph], registry: Registry | None, output: Output
) -> EmbedPayload:
    from gpusonde.predictor.workload.embedding.encoder import Encoder
    from gpusonde.predictor.workload.embedding.nearest import nearest
    from gpusonde.predictor.workload.embedding.registry import Registry

    registered = (registry or Registry()).get(args.dataset_type)
    encoder = Encoder(registered.weights)
    with output.progress(f"embedding {formatting.count(len(graphs), 'network')}"):
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
