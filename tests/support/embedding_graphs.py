"""Graphs of operations for tests: any that hypothesis thinks of, and a few with a known shape."""

from __future__ import annotations

from hypothesis import strategies

from gpusonde.predictor.workload.graph import Operation, Primitive, WorkloadGraph

WEIGHTS = ((), (8,), (10, 64), (16, 3, 3, 3), (64, 1, 5, 5), (2048, 512, 1, 1), (4, 2, 3, 3, 3))


def graph_of(edges, count=None, name="graph", primitives=None, weights=None):
    """A graph with these edges; node i has the i-th primitive and weight, each list repeated as needed."""
    count = count or max(reader for _, reader in edges) + 1
    primitives = primitives or list(Primitive)
    weights = weights or WEIGHTS
    operations = tuple(
        Operation(
            primitives[position % len(primitives)],
            f"operation_{position}",
            (1, 8),
            weight=weights[position % len(weights)],
        )
        for position in range(count)
    )
    return WorkloadGraph(name, operations, tuple(sorted(set(edges))), batch_size=1)


def chain(count, name="chain"):
    """A graph whose every operation reads the one before."""
    return graph_of([(position, position + 1) for position in range(count - 1)], count, name)


@strategies.composite
def any_graph(draw, most_operations=24):
    """Any directed acyclic graph: also unconnected ones, and such with many edges."""
    count = draw(strategies.integers(1, most_operations))
    possible = [(writer, reader) for reader in range(count) for writer in range(reader)]
    edges = (
        draw(strategies.lists(strategies.sampled_from(possible), unique=True, max_size=3 * count)) if possible else []
    )
    primitives = draw(strategies.lists(strategies.sampled_from(list(Primitive)), min_size=1, max_size=count))
    weights = draw(strategies.lists(strategies.sampled_from(WEIGHTS), min_size=1, max_size=count))
    return graph_of(edges, count, primitives=primitives, weights=weights)
