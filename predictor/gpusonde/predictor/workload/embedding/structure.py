"""What message passing needs of a graph: features of the nodes, virtual edges, and the order of the traversal.

Nodes of one depth never read each other, directly or along a longer path, so they can be visited together, and so can
those of several graphs. That visits every node after all that it hears from, as the equations ask, but in as many steps
as the deepest graph has levels and not in as many as there are nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gpusonde.errors import GraphLimitError
from gpusonde.predictor.workload.graph.ir import Primitive, Shape, WorkloadGraph

Floats = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]

SHAPE_FEATURE_COUNT = 8
"""Figures that describe the weight of a node."""

MAXIMUM_REACH = 200
"""Largest number of edges that a virtual edge may stand for: steps are kept as bytes."""

_PRIMITIVE_POSITIONS = {primitive: position for position, primitive in enumerate(Primitive)}
# Distances of this many pairs are held at once, whatever the size of the graph.
_PAIRS_AT_ONCE = 1 << 22
# Messages that one step gathers; a level that receives more is visited in several steps.
_MESSAGES_AT_ONCE = 1 << 15


@dataclass(frozen=True)
class EmbeddingLimits:
    """How large a graph may be to be embedded. Virtual edges may grow with the square of the nodes.

    Attributes:
        nodes: Operations.
        edges: Who reads whose output.
        virtual_edges: Pairs of operations that a path of at most s_max edges connects.
    """

    nodes: int = 8192
    edges: int = 65_536
    virtual_edges: int = 4_000_000


@dataclass(frozen=True)
class VirtualEdges:
    """Pairs of nodes with a path from one to the other.

    Attributes:
        writers: Where the path starts.
        readers: Where it ends.
        steps: Edges of the shortest such path.
    """

    writers: Positions
    readers: Positions
    steps: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class GraphStructure:
    """One graph, ready for message passing.

    Attributes:
        primitives: Of each node, the position of its kind in ``Primitive``.
        shapes: Of each node, ``SHAPE_FEATURE_COUNT`` figures on its weight.
        writers: Of each edge, who writes.
        readers: Of each edge, who reads.
        virtual: Paths of more than one edge, or of one too (``from_one_step``).
        depths: Of each node, the edges of the longest path that leads to it.
        heights: Of each node, the edges of the longest path that starts at it.
    """

    primitives: Positions
    shapes: Floats
    writers: Positions
    readers: Positions
    virtual: VirtualEdges
    depths: Positions
    heights: Positions

    @staticmethod
    def of(
        graph: WorkloadGraph,
        maximum_steps: int,
        *,
        from_one_step: bool = False,
        limits: EmbeddingLimits | None = None,
    ) -> GraphStructure:
        """Prepare a graph.

        Args:
            graph: The graph.
            maximum_steps: s_max of Eq. 4: the longest shortest path that becomes a virtual edge; 1 for none.
            from_one_step: Whether edges of the graph are virtual edges too, as in the published code.
            limits: How large it may be.

        Raises:
            GraphLimitError: It is larger.
        """
        limits = limits or EmbeddingLimits()
        count = len(graph.operations)
        if count > limits.nodes:
            raise GraphLimitError(f"the graph has {count} operations; at most {limits.nodes} can be embedded")
        if len(graph.edges) > limits.edges:
            raise GraphLimitError(f"the graph has {len(graph.edges)} edges; at most {limits.edges} can be embedded")
        edges = np.array(graph.edges, dtype=np.int64).reshape(-1, 2)
        depths, heights = [0] * count, [0] * count
        for writer, reader in graph.edges:
            # Edges ascend by writer, so everything that leads to the writer has been seen.
            depths[reader] = max(depths[reader], depths[writer] + 1)
        for writer, reader in reversed(graph.edges):
            heights[writer] = max(heights[writer], heights[reader] + 1)
        return GraphStructure(
            primitives=np.array([_PRIMITIVE_POSITIONS[each.primitive] for each in graph.operations], dtype=np.int64),
            shapes=np.array([compute_shape_features(each.weight) for each in graph.operations]),
            writers=edges[:, 0],
            readers=edges[:, 1],
            virtual=virtual_edges(graph, maximum_steps, from_one_step=from_one_step, limits=limits),
            depths=np.array(depths, dtype=np.int64),
            heights=np.array(heights, dtype=np.int64),
        )

    @property
    def node_count(self) -> int:
        """Operations."""
        return len(self.primitives)


def compute_shape_features(weight: Shape) -> tuple[float, ...]:
    """Return figures on the shape of a node's weight, of the order of one: logarithms, so that all widths are in range.

    GHN-2's own code looks a shape up in a table. The rows of widths that no training network had stay random there.

    Args:
        weight: The shape; () if the node has no weight.
    """
    if not weight:
        return (0.0,) * SHAPE_FEATURE_COUNT
    extents = [max(1, extent) for extent in weight]
    extents = [*extents, 1, 1, 1][: max(4, len(extents))]
    extents = [*extents[:3], math.prod(extents[3:])]
    logarithms = [math.log2(extent) for extent in extents]
    return (
        *(each / 8 for each in logarithms),
        sum(logarithms) / 20,
        1.0,
        float(extents[2] == 1),
        float(extents[1] == 1),
    )


def virtual_edges(
    graph: WorkloadGraph, maximum_steps: int, *, from_one_step: bool = False, limits: EmbeddingLimits | None = None
) -> VirtualEdges:
    """Find all pairs of nodes whose shortest path has 2 to ``maximum_steps`` edges, ascending by writer.

    Args:
        graph: The graph.
        maximum_steps: At most ``MAXIMUM_REACH``.
        from_one_step: Whether paths of one edge count too.
        limits: How many there may be.

    Raises:
        GraphLimitError: There are more.
    """
    limits = limits or EmbeddingLimits()
    if not 1 <= maximum_steps <= MAXIMUM_REACH:
        raise ValueError(f"virtual edges over {maximum_steps} steps: it must be 1 to {MAXIMUM_REACH}")
    count = len(graph.operations)
    fewest = 1 if from_one_step else 2
    together = max(1, min(count, _PAIRS_AT_ONCE // count))
    found: list[tuple[Positions, Positions, npt.NDArray[np.uint8]]] = []
    total = 0
    for first in range(0, count if fewest <= maximum_steps else 0, together):
        steps = _count_steps_from(graph, first, min(first + together, count))
        readers, writers = np.nonzero((steps >= fewest) & (steps <= maximum_steps))
        total += len(writers)
        if total > limits.virtual_edges:
            raise GraphLimitError(
                f"more than {limits.virtual_edges} pairs of the graph's operations are within {maximum_steps} steps "
                "of each other: it is too large to be embedded"
            )
        order = np.argsort(writers, kind="stable")
        found.append((writers[order] + first, readers[order] + first, steps[readers, writers][order]))
    if not found:
        return VirtualEdges(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8))
    writers, readers, lengths = (np.concatenate(part) for part in zip(*found, strict=True))
    return VirtualEdges(writers, readers, lengths)


def _count_steps_from(graph: WorkloadGraph, first: int, end: int) -> npt.NDArray[np.uint8]:
    """Count edges of the shortest path to each node from ``first`` on (rows) from those before ``end`` (columns).

    255 stands for more than 254, and for no path.
    """
    count = len(graph.operations)
    steps = np.full((count - first, end - first), 255, dtype=np.uint8)
    for reader in range(first, count):
        row = steps[reader - first]
        before = [writer - first for writer in graph.predecessors[reader] if writer >= first]
        if before:
            nearest = steps[before].min(axis=0)
            np.minimum(nearest, 254, out=nearest)
            np.add(nearest, 1, out=row)
        if reader < end:
            row[reader - first] = 0
    return steps


@dataclass(frozen=True)
class Messages:
    """What the nodes of a step hear.

    Attributes:
        senders: Of each message, the node that it comes from.
        receivers: Of each message, the position in the step of the node that hears it; ascending.
        starts: Position of the first message of every node that hears any.
        scales: Of each message, its factor.
    """

    senders: Positions
    receivers: Positions
    starts: Positions
    scales: Floats


@dataclass(frozen=True)
class Step:
    """Nodes that are visited together.

    Attributes:
        nodes: Their positions.
        direct: What they hear along edges: the first sum of Eq. 4, all factors 1.
        virtual: What they hear along virtual edges: its second sum, with factors 1/s.
    """

    nodes: Positions
    direct: Messages
    virtual: Messages


@dataclass(frozen=True)
class GraphBatch:
    """Several graphs side by side, in the order in which their nodes are visited.

    Attributes:
        primitives: As in ``GraphStructure``.
        shapes: As there.
        starts: Position of each graph's first node, and the number of all nodes.
        forward: Visits from the input to the output.
        backward: Visits from the output to the input.
    """

    primitives: Positions
    shapes: Floats
    starts: Positions
    forward: tuple[Step, ...]
    backward: tuple[Step, ...]

    @staticmethod
    def of(structures: Sequence[GraphStructure]) -> GraphBatch:
        """Put graphs side by side; there must be at least one."""
        starts = np.concatenate([[0], np.cumsum([each.node_count for each in structures])]).astype(np.int64)
        shifted = list(zip(structures, starts[:-1], strict=True))
        writers = np.concatenate([each.writers + start for each, start in shifted])
        readers = np.concatenate([each.readers + start for each, start in shifted])
        far_writers = np.concatenate([each.virtual.writers + start for each, start in shifted])
        far_readers = np.concatenate([each.virtual.readers + start for each, start in shifted])
        factors = 1.0 / np.concatenate([each.virtual.steps for each in structures])
        ones = np.ones(len(writers))
        depths = np.concatenate([each.depths for each in structures])
        heights = np.concatenate([each.heights for each in structures])
        return GraphBatch(
            primitives=np.concatenate([each.primitives for each in structures]),
            shapes=np.concatenate([each.shapes for each in structures]),
            starts=starts,
            forward=_order_steps(depths, (writers, readers, ones), (far_writers, far_readers, factors)),
            backward=_order_steps(heights, (readers, writers, ones), (far_readers, far_writers, factors)),
        )


_Edges = tuple[Positions, Positions, Floats]


def _order_steps(levels: Positions, direct: _Edges, virtual: _Edges) -> tuple[Step, ...]:
    """Order the visits of all nodes by ascending level; edges are senders, receivers and factors."""
    order = np.argsort(levels, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    heard = np.bincount(virtual[1], minlength=len(levels))[order]
    bounds = _find_bounds(levels[order], heard)
    parts = [_group_by_receiver(edges, rank, bounds) for edges in (direct, virtual)]
    return tuple(
        Step(order[first:end], near, far)
        for first, end, near, far in zip(bounds[:-1], bounds[1:], parts[0], parts[1], strict=True)
    )


def _find_bounds(levels: Positions, heard: Positions) -> list[int]:
    """Find where steps begin, and the end: at every new level, and within one where too much would be heard at once."""
    bounds, messages = [0], 0
    for position, (level, count) in enumerate(zip(levels.tolist(), heard.tolist(), strict=True)):
        if position > bounds[-1] and (level != levels[position - 1] or messages + count > _MESSAGES_AT_ONCE):
            bounds.append(position)
            messages = 0
        messages += count
    return [*bounds, len(levels)]


def _group_by_receiver(edges: _Edges, rank: Positions, bounds: Sequence[int]) -> list[Messages]:
    senders, receivers, factors = edges
    places = rank[receivers]
    order = np.argsort(places, kind="stable")
    senders, places, factors = senders[order], places[order], factors[order]
    cuts = np.searchsorted(places, bounds)
    messages = []
    for bound, (first, end) in zip(bounds, pairwise(cuts.tolist()), strict=False):
        local = places[first:end] - bound
        starts = np.flatnonzero(np.diff(local, prepend=-1))
        messages.append(Messages(senders[first:end], local, starts, factors[first:end]))
    return messages
