import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sequential_encoder import embed_in_sequence
from support.embedding_graphs import any_graph, chain, graph_of

from gpusonde.errors import GraphLimitError
from gpusonde.predictor.workload.embedding import (
    EmbeddingLimits,
    Encoder,
    EncoderDescription,
    EncoderWeights,
    VirtualEdgeRule,
)
from gpusonde.predictor.workload.embedding.structure import (
    GraphBatch,
    GraphStructure,
    compute_shape_features,
    virtual_edges,
)
from gpusonde.predictor.workload.graph import Primitive

RESIDUAL = graph_of([(0, 1), (1, 2), (2, 3), (0, 3), (3, 4)])


def shortest_paths(graph):
    """Steps between all connected pairs, by breadth-first search from every node."""
    found = {}
    for source in range(len(graph.operations)):
        steps, front = 0, {source}
        seen = {source}
        while front:
            steps += 1
            front = {reader for writer in front for reader in graph.successors[writer]} - seen
            seen |= front
            found.update({(source, reader): steps for reader in front})
    return found


@settings(max_examples=80, deadline=None)
@given(
    st.lists(any_graph(), min_size=1, max_size=4),
    st.sampled_from(VirtualEdgeRule),
    st.sampled_from([1, 2, 3, 50]),
    st.sampled_from([1, 2]),
)
def test_batched_message_passing_is_the_sequential_equations(graphs, rule, maximum_steps, passes):
    description = EncoderDescription(hidden_size=8, virtual_edges=rule, maximum_steps=maximum_steps, passes=passes)
    encoder = Encoder(EncoderWeights.random(3, description))
    expected = np.array([embed_in_sequence(encoder, graph) for graph in graphs])
    np.testing.assert_allclose(encoder.embed(graphs), expected, rtol=0, atol=1e-9)


def test_batched_message_passing_is_the_sequential_equations_in_a_long_and_dense_graph():
    dense = graph_of([(writer, reader) for reader in range(60) for writer in range(reader) if (writer * reader) % 3])
    encoder = Encoder(EncoderWeights.random(0))
    graphs = [chain(300), dense]
    expected = np.array([embed_in_sequence(encoder, graph) for graph in graphs])
    np.testing.assert_allclose(encoder.embed(graphs), expected, rtol=0, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(any_graph(), st.integers(1, 5), st.booleans())
def test_virtual_edges_are_the_shortest_paths_within_reach(graph, maximum_steps, from_one_step):
    found = virtual_edges(graph, maximum_steps, from_one_step=from_one_step)
    fewest = 1 if from_one_step else 2
    expected = {pair: steps for pair, steps in shortest_paths(graph).items() if fewest <= steps <= maximum_steps}
    pairs = zip(found.writers.tolist(), found.readers.tolist(), strict=True)
    assert dict(zip(pairs, found.steps.tolist(), strict=True)) == expected
    assert len(found.steps) == len(expected)


def test_virtual_edges_of_a_graph_larger_than_one_block_of_distances(monkeypatch):
    graph = graph_of([(0, 2), *((position, position + 1) for position in range(39)), (5, 20)])
    whole = virtual_edges(graph, 10)
    monkeypatch.setattr("gpusonde.predictor.workload.embedding.structure._PAIRS_AT_ONCE", 7 * 40)
    blocks = virtual_edges(graph, 10)
    for one, other in zip(dataclasses.astuple(whole), dataclasses.astuple(blocks), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_level_that_hears_much_is_visited_in_several_steps_with_the_same_result(monkeypatch):
    wide = graph_of([(0, 1), *((1, reader) for reader in range(2, 40)), *((reader, 40) for reader in range(2, 40))])
    encoder = Encoder(EncoderWeights.random(1))
    whole = GraphBatch.of([encoder.structure(wide)])
    monkeypatch.setattr("gpusonde.predictor.workload.embedding.structure._MESSAGES_AT_ONCE", 5)
    parts = GraphBatch.of([encoder.structure(wide)])
    assert len(parts.forward) > len(whole.forward)
    np.testing.assert_allclose(encoder.node_states(parts), encoder.node_states(whole), atol=1e-12)


def test_the_published_code_hears_neighbours_twice():
    paper, code = (GraphStructure.of(RESIDUAL, 50, from_one_step=published).virtual for published in (False, True))
    assert len(code.steps) - len(paper.steps) == len(RESIDUAL.edges)
    assert paper.steps.min() == 2
    arrays = EncoderWeights.random(0).arrays
    one, other = (
        Encoder(EncoderWeights(EncoderDescription(virtual_edges=rule), arrays)).embed([RESIDUAL])
        for rule in VirtualEdgeRule
    )
    assert np.abs(one - other).max() > 1e-3


def test_an_embedding_does_not_depend_on_what_else_is_in_the_batch(monkeypatch):
    encoder = Encoder(EncoderWeights.random(0))
    graphs = [chain(count) for count in (1, 9, 30, 4)] + [RESIDUAL]
    together = encoder.embed(graphs)
    assert together.shape == (5, 32)
    monkeypatch.setattr("gpusonde.predictor.workload.embedding.encoder._BATCH_NODES", 10)
    np.testing.assert_allclose(encoder.embed(graphs), together, atol=1e-12)
    assert encoder.embed([]).shape == (0, 32)


def test_the_order_of_independent_operations_does_not_matter():
    kinds = [Primitive.INPUT, Primitive.CONVOLUTION, Primitive.ACTIVATION, Primitive.SUM]
    one = graph_of([(0, 1), (0, 2), (1, 3), (2, 3)], primitives=kinds, weights=[()])
    other = graph_of(
        [(0, 1), (0, 2), (1, 3), (2, 3)], primitives=[kinds[0], kinds[2], kinds[1], kinds[3]], weights=[()]
    )
    first, second = Encoder(EncoderWeights.random(0)).embed([one, other])
    np.testing.assert_allclose(first, second, atol=1e-12)


def test_kinds_that_an_older_encoder_does_not_know_are_other_to_it():
    names = tuple(each.value for each in Primitive if each is not Primitive.ATTENTION)
    encoder = Encoder(EncoderWeights.random(0, EncoderDescription(primitives=names)))
    attention, other = (
        graph_of([(0, 1)], primitives=[Primitive.INPUT, kind], weights=[()])
        for kind in (Primitive.ATTENTION, Primitive.OTHER)
    )
    first, second = encoder.embed([attention, other])
    np.testing.assert_array_equal(first, second)


def test_shape_features_tell_shapes_apart_and_stay_small():
    shapes = [(), (1,), (8,), (8, 8), (8, 8, 3, 3), (8, 8, 3, 5), (8, 8, 1, 1), (8, 1, 3, 3), (8, 8, 3, 3, 3)]
    features = {shape: compute_shape_features(shape) for shape in shapes}
    # A matrix is a convolution of extent one, as it is to GHN-2's decoder.
    assert features[(8, 8)] == features[(8, 8, 1, 1)]
    assert len(set(features.values())) == len(shapes) - 1
    assert max(compute_shape_features((1 << 16, 1 << 16, 11, 11))) < 3
    assert np.isfinite(compute_shape_features((0, 10**400, 3))).all()


def test_a_graph_with_too_many_operations_is_refused_at_once():
    encoder = Encoder(EncoderWeights.random(0), EmbeddingLimits(nodes=100))
    with pytest.raises(GraphLimitError, match="101 operations"):
        encoder.embed([chain(101)])


def test_a_graph_with_too_many_edges_is_refused_at_once():
    encoder = Encoder(EncoderWeights.random(0), EmbeddingLimits(edges=20))
    with pytest.raises(GraphLimitError, match="21 edges"):
        encoder.embed([graph_of([(writer, reader) for reader in range(7) for writer in range(reader)])])


def test_a_graph_with_too_many_virtual_edges_is_refused():
    encoder = Encoder(EncoderWeights.random(0), EmbeddingLimits(virtual_edges=1000))
    encoder.embed([chain(25)])
    with pytest.raises(GraphLimitError, match="1000 pairs"):
        encoder.embed([chain(200)])
