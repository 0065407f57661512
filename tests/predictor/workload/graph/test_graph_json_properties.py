"""What holds of every graph and of every document, however odd."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.hostile_graphs import HOSTILE, json_graph, program, pt2

from gpusonde.errors import GraphError
from gpusonde.predictor.workload.graph import Operation, Parameter, Primitive, WorkloadGraph, dump_graph, load_graph
from gpusonde.predictor.workload.graph.cost import count_graph_cost
from gpusonde.predictor.workload.graph.reading import read_graph

_SETTINGS = settings(max_examples=100, deadline=None, derandomize=True, database=None,
                     suppress_health_check=list(HealthCheck))  # fmt: skip
_NAMES = st.text(st.characters(categories=("L", "N", "P", "S")), max_size=6)
_EXTENTS = st.one_of(st.integers(1, 8), st.integers(1, 2**16))
_SHAPES = st.lists(_EXTENTS, max_size=2).map(tuple)
_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)


@st.composite
def graphs(draw: st.DrawFn) -> WorkloadGraph:
    """Any graph: shapes need not fit, names may hold what JSON has to escape."""
    count = draw(st.integers(1, 8))
    operations = tuple(
        Operation(
            draw(st.sampled_from(Primitive)), f"{draw(_NAMES)}{position}", draw(_SHAPES),
            tuple(draw(st.lists(_SHAPES, max_size=3))), draw(_SHAPES),
            tuple(Parameter(draw(_NAMES), draw(_SHAPES)) for _ in range(draw(st.integers(0, 2)))),
            draw(st.integers(1, 64)), draw(_NAMES),
        )
        for position in range(count)
    )  # fmt: skip
    pairs = [(writer, reader) for reader in range(count) for writer in range(reader)]
    edges = draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    notes = tuple(draw(st.lists(_NAMES, max_size=2)))
    return WorkloadGraph(draw(_NAMES), operations, tuple(sorted(edges)), draw(st.integers(1, 99)), draw(_NAMES), notes)


@_SETTINGS
@given(graphs())
def test_every_graph_comes_back_as_it_was_and_can_be_counted(graph: WorkloadGraph) -> None:
    assert load_graph(dump_graph(graph)) == graph
    cost = count_graph_cost(graph)
    assert cost.total.flops >= 0
    assert cost.at(graph.batch_size).bytes >= 0


def _places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [path, *(each for key, value in inner for each in _places(value, (*path, key)))]


def _with(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = _with(document[path[0]], path[1:], value)
    return copy


@_SETTINGS
@given(st.data(), _VALUES)
def test_any_value_anywhere_in_a_graph_is_taken_or_refused_in_words(data: st.DataObject, value: Any) -> None:
    document = json.loads(json_graph(notes=["n"], front_end="fx"))
    changed = _with(document, data.draw(st.sampled_from(_places(document))), value)
    with contextlib.suppress(GraphError):
        graph = load_graph(json.dumps(changed))
        assert load_graph(dump_graph(graph)) == graph


@_SETTINGS
@given(st.data(), _VALUES)
def test_any_value_anywhere_in_a_program_is_taken_or_refused_in_words(data: st.DataObject, value: Any) -> None:
    document = program()
    changed = _with(document, data.draw(st.sampled_from(_places(document))), value)
    with contextlib.suppress(GraphError):
        graph = read_graph(pt2(changed))
        assert load_graph(dump_graph(graph)) == graph


def test_every_kind_of_harm_comes_in_every_format() -> None:
    for kind in ("a million nodes", "a cycle", "a negative extent"):
        for form in ("JSON", "ONNX", ".pt2"):
            assert f"{kind}, {form}" in HOSTILE
