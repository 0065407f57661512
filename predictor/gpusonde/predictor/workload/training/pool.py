"""Random architectures to train on, and others, held out, to test with."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.func import functional_call

from gpusonde.errors import EncoderError
from gpusonde.predictor.workload.graph.ir import WorkloadGraph
from gpusonde.predictor.workload.graph.torch import from_torch
from gpusonde.predictor.workload.training.architectures import ArchitectureSpace, ArchitectureSpec, sample
from gpusonde.predictor.workload.training.datasets import ImageDataset
from gpusonde.predictor.workload.training.hypernetwork import GraphHyperNetwork, PreparedGraph
from gpusonde.predictor.workload.training.networks import GeneratedNetwork
from gpusonde.predictor.workload.training.options import TrainingOptions

# Numbers of the random streams of a seed.
_TRAINED_STREAM, _HELD_OUT_STREAM = "trained", "held out"
_TRACED_BATCH = 2


@dataclass(frozen=True)
class Architecture:
    """A random network.

    Attributes:
        spec: Its description.
        network: It as a module; its own weights are never used.
        graph: Its graph.
        prepared: The same, as the hypernetwork reads it.
    """

    spec: ArchitectureSpec
    network: Any
    graph: WorkloadGraph
    prepared: PreparedGraph

    def classify(self, parameters: Mapping[str, torch.Tensor], images: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes with given weights."""
        scores: torch.Tensor = functional_call(self.network, dict(parameters), (images,))
        return scores


def digest_content(graph: WorkloadGraph) -> str:
    """Digest of what a graph says of the network, whatever its parts are called."""
    operations = [
        (each.primitive.value, each.weight, each.output, each.groups, each.source) for each in graph.operations
    ]
    return hashlib.sha256(repr((operations, graph.edges)).encode()).hexdigest()


@dataclass(frozen=True)
class Pool:
    """The architectures of a training. No two of them have the same graph.

    Attributes:
        trained: To train on.
        held_out: To test with.
    """

    trained: tuple[Architecture, ...]
    held_out: tuple[Architecture, ...]

    @staticmethod
    def of(
        dataset: ImageDataset,
        options: TrainingOptions,
        hypernetwork: GraphHyperNetwork,
        document: Mapping[str, Any] | None,
        tell: Callable[[int, int], None],
    ) -> Pool:
        """Make architectures that suit a dataset.

        Args:
            dataset: The images.
            options: How many, and the seed.
            hypernetwork: What their graphs are prepared for.
            document: Those of :meth:`as_document`, or None for new ones.
            tell: Told how many are made, of how many.

        Raises:
            EncoderError: ``document`` holds no architectures, or other ones than its digest says.
        """
        space = ArchitectureSpace.for_images(dataset.side)
        wanted = options.architectures, options.held_out_architectures
        parts = [] if document is None else _read_specs(document, wanted)
        seen: set[str] = set()
        made: list[list[Architecture]] = []
        for number, stream in enumerate((_TRAINED_STREAM, _HELD_OUT_STREAM)):
            generator = random.Random(f"{options.seed} {stream}")  # noqa: S311 - nothing secret
            part: list[Architecture] = []
            made.append(part)
            while len(part) < wanted[number]:
                tell(sum(map(len, made)), sum(wanted))
                spec = parts[number][len(part)] if parts else sample(generator, space)
                network = GeneratedNetwork(spec, dataset.channels, dataset.side, len(dataset.classes))
                graph = _read_graph(network, dataset)
                content = digest_content(graph)
                if content in seen:
                    if parts:
                        raise EncoderError("the checkpoint holds an architecture twice; remove it to train anew")
                    continue
                seen.add(content)
                part.append(Architecture(spec, network, graph, hypernetwork.prepare(graph)))
        tell(sum(wanted), sum(wanted))
        return Pool(*map(tuple, made))

    def as_document(self) -> dict[str, Any]:
        """Return the descriptions of the architectures, for JSON."""
        return {
            "trained": [each.spec.to_json() for each in self.trained],
            "held_out": [each.spec.to_json() for each in self.held_out],
        }


def _read_graph(network: Any, dataset: ImageDataset) -> WorkloadGraph:
    images = torch.zeros(_TRACED_BATCH, dataset.channels, dataset.side, dataset.side)
    return from_torch(network, images)


def _read_specs(document: Mapping[str, Any], wanted: tuple[int, int]) -> list[list[ArchitectureSpec]]:
    try:
        parts = [[ArchitectureSpec.from_json(text) for text in document[name]] for name in ("trained", "held_out")]
    except (KeyError, TypeError, ValueError) as error:
        raise EncoderError(f"the checkpoint's architectures are damaged ({error}); remove it to train anew") from error
    if tuple(map(len, parts)) != wanted:
        raise EncoderError("the checkpoint holds other numbers of architectures; remove it to train anew")
    return parts
