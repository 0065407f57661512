"""Which known architectures a network resembles most.

Similarity is the cosine between embeddings after the mean embedding of all known architectures was taken from both:
all networks have a direction in common, and with it every cosine is near one.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.embedding.encoder import Encoder
from gpusonde.predictor.workload.embedding.structure import Floats
from gpusonde.predictor.workload.graph.ir import WorkloadGraph

DEFAULT_COUNT = 3
_INDEXES_KEPT = 8


@dataclass(frozen=True)
class KnownArchitecture:
    """An architecture that others are compared with."""

    name: str
    family: str
    graph: WorkloadGraph


def list_zoo_architectures() -> tuple[KnownArchitecture, ...]:
    """Return the networks that are shipped as graphs."""
    return tuple(KnownArchitecture(name, zoo.family(name), zoo.load(name)) for name in zoo.names())


class ArchitectureIndex:
    """Known architectures as one encoder sees them.

    Args:
        names: Their names.
        families: The family of each.
        embeddings: A row for each.
    """

    def __init__(self, names: Sequence[str], families: Sequence[str], embeddings: Floats) -> None:
        self.names, self.families = tuple(names), tuple(families)
        self._centre = embeddings.mean(axis=0)
        self._directions = self._normalise(embeddings)

    @staticmethod
    def of(architectures: Sequence[KnownArchitecture], encoder: Encoder) -> ArchitectureIndex:
        """Embed architectures; there must be at least one.

        Raises:
            GraphLimitError: One is larger than the encoder's limits.
        """
        return ArchitectureIndex(
            [each.name for each in architectures],
            [each.family for each in architectures],
            encoder.embed(each.graph for each in architectures),
        )

    def nearest(
        self, embedding: Floats, count: int = DEFAULT_COUNT, *, without: Collection[str] = ()
    ) -> list[tuple[str, str, float]]:
        """Return the architectures most similar to an embedding, the most similar first.

        Args:
            embedding: An embedding by the same encoder.
            count: How many to tell at most.
            without: Names to leave out.

        Returns:
            Name, family and similarity, -1..1, of each.
        """
        similarities = self._directions @ self._normalise(embedding[None])[0]
        order = np.argsort(-similarities, kind="stable")
        told = [position for position in order if self.names[position] not in without][: max(0, count)]
        return [(self.names[each], self.families[each], float(similarities[each])) for each in told]

    def _normalise(self, embeddings: Floats) -> Floats:
        centred = embeddings - self._centre
        lengths = np.linalg.norm(centred, axis=1, keepdims=True)
        # What lies at the centre resembles nothing: similarity 0.
        directions: Floats = np.divide(centred, lengths, out=np.zeros_like(centred), where=lengths > 0)
        return directions


class NearestArchitectures:
    """Finds nearest architectures; embeds the known ones once per encoder. Threads may share it.

    Args:
        known: Gives the architectures to compare with, when they are first needed.
        kept: Encoders whose embeddings of them are kept.
    """

    def __init__(
        self, known: Callable[[], Sequence[KnownArchitecture]] = list_zoo_architectures, kept: int = _INDEXES_KEPT
    ) -> None:
        self._known, self._most = known, kept
        self._indexes: OrderedDict[str, ArchitectureIndex] = OrderedDict()
        self._lock = threading.Lock()

    def index(self, encoder: Encoder) -> ArchitectureIndex:
        """Return the known architectures as an encoder sees them."""
        sha256 = encoder.weights.sha256
        # Whoever asks meanwhile waits: embedding them all takes seconds, and twice at once is no faster.
        with self._lock:
            found = self._indexes.get(sha256)
            if found is None:
                found = self._indexes[sha256] = ArchitectureIndex.of(self._known(), encoder)
                if len(self._indexes) > self._most:
                    self._indexes.popitem(last=False)
            self._indexes.move_to_end(sha256)
            return found

    def nearest(
        self, graph: WorkloadGraph, encoder: Encoder, count: int = DEFAULT_COUNT
    ) -> list[tuple[str, str, float]]:
        """Return the known architectures most similar to a network, the most similar first.

        Args:
            graph: The network.
            encoder: What embeds it and them.
            count: How many to tell at most.

        Returns:
            Name, family and similarity, -1..1, of each.

        Raises:
            GraphLimitError: The graph is larger than the encoder's limits.
        """
        return self.index(encoder).nearest(encoder.embed([graph])[0], count)


def find_nearest(graph: WorkloadGraph, encoder: Encoder, count: int = DEFAULT_COUNT) -> list[tuple[str, str, float]]:
    """Return the networks of the zoo most similar to a network; see :meth:`NearestArchitectures.nearest`."""
    return _search_in_zoo().nearest(graph, encoder, count)


@functools.cache
def _search_in_zoo() -> NearestArchitectures:
    return NearestArchitectures()
