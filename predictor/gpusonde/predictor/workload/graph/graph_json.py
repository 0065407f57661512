"""A graph as JSON text: what the user's side sends instead of code and weights.

One object: ``format``, ``name``, ``batch_size``, ``front_end``, ``notes``, ``operations`` (objects with the fields of
``Operation``; those that have their default value are left out; a parameter is ``[name, shape]``) and ``edges`` (pairs
of positions).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from gpusonde.errors import GraphLimitError, MalformedGraphError
from gpusonde.predictor.workload.graph.ir import Operation, Parameter, Primitive, Shape, WorkloadGraph
from gpusonde.predictor.workload.graph.limits import GraphLimits

FORMAT = "gpusonde.workload_graph/1"

_GRAPH_KEYS = frozenset({"format", "name", "batch_size", "front_end", "notes", "operations", "edges"})
_REQUIRED_GRAPH_KEYS = frozenset({"format", "name", "batch_size", "operations", "edges"})
_OPERATION_KEYS = frozenset({"primitive", "name", "output", "inputs", "weight", "parameters", "groups", "source"})
_REQUIRED_OPERATION_KEYS = frozenset({"primitive", "name", "output"})
_PRIMITIVES = {each.value: each for each in Primitive}
_LONGEST_INTEGER = 18


def dump_graph(graph: WorkloadGraph) -> str:
    """Write a graph as compact JSON text, the same text for the same graph."""
    document = {
        "format": FORMAT,
        "name": graph.name,
        "batch_size": graph.batch_size,
        "front_end": graph.front_end,
        "notes": list(graph.notes),
        "operations": [dict(_list_fields(each)) for each in graph.operations],
        "edges": graph.edges,
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def load_graph(data: bytes | str, limits: GraphLimits | None = None) -> WorkloadGraph:
    """Read a graph from JSON text that may come from anybody.

    Args:
        data: The text; bytes are UTF-8.
        limits: What is accepted; None means the defaults.

    Returns:
        The graph.

    Raises:
        MalformedGraphError: Not this format; the text names the place.
        GraphLimitError: Larger than the limits; found before anything is built from it.
    """
    limits = limits or GraphLimits()
    return read_document(parse_json(data, limits), limits)


def read_document(document: Any, limits: GraphLimits) -> WorkloadGraph:
    """Read a graph from what ``parse_json`` returned; errors as of ``load_graph``."""
    _check_keys("the document", document, _GRAPH_KEYS, _REQUIRED_GRAPH_KEYS)
    if document["format"] != FORMAT:
        raise MalformedGraphError(f'format: it must be "{FORMAT}"')
    operations = _list("operations", document["operations"], limits.operations)
    edges = _list("edges", document["edges"], limits.edges)
    notes = _list("notes", document.get("notes", []), limits.notes)
    graph = WorkloadGraph(
        name=limits.check_text("name", document["name"]),
        operations=tuple(_read_operation(f"operations[{at}]", each, limits) for at, each in enumerate(operations)),
        edges=tuple(_read_edge(f"edges[{at}]", each) for at, each in enumerate(edges)),
        batch_size=limits.check_batch_size(document["batch_size"]),
        front_end=limits.check_text("front_end", document.get("front_end", "")),
        notes=tuple(limits.check_text(f"notes[{at}]", each, limits.note_text) for at, each in enumerate(notes)),
    )
    return limits.check_totals(graph)


def parse_json(data: bytes | str, limits: GraphLimits, most_bytes: int | None = None) -> Any:
    """Parse JSON text from anybody within bounded time and memory.

    Objects must not repeat a key. An integer of more than 18 digits becomes one that is beyond every limit.

    Args:
        data: The text; bytes are UTF-8.
        limits: Bytes, values and containers that are accepted.
        most_bytes: Bytes instead of ``limits.json_bytes``.

    Returns:
        What the text stands for.

    Raises:
        MalformedGraphError: No JSON.
        GraphLimitError: More than is accepted; counted in the text, before it is parsed.
    """
    limits.check_size("the JSON text", len(data), limits.json_bytes if most_bytes is None else most_bytes)
    if isinstance(data, bytes):
        try:
            data = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise MalformedGraphError(f"no UTF-8 text: {error.reason} at byte {error.start}") from None
    _count_before_parsing(data, limits)
    try:
        return json.loads(data, parse_int=_read_integer, object_pairs_hook=_refuse_repeated_keys)
    except RecursionError:
        raise MalformedGraphError("no JSON of a graph: it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise MalformedGraphError(f"no JSON: {error}") from None


def _count_before_parsing(text: str, limits: GraphLimits) -> None:
    """Count values and containers first: a million empty lists are 3 MB of text, but more than 100 MB of memory."""
    if _count_values(text) > limits.values or _count_containers(text) > limits.containers:
        # Commas and brackets in names do not count; leaving those out takes longer and is seldom needed.
        text = text.replace("\\\\", "").replace('\\"', "")
        limits.check_count("quotation marks in the JSON text", text.count('"'), 4 * limits.values)
        text = "".join(text.split('"')[::2])
        limits.check_count("values in the JSON text", _count_values(text), limits.values)
        limits.check_count("lists and objects in the JSON text", _count_containers(text), limits.containers)


def _count_values(text: str) -> int:
    return text.count(",") + text.count(":") + 1


def _count_containers(text: str) -> int:
    return text.count("[") + text.count("{")


def _read_integer(text: str) -> int:
    # Converting a million digits takes minutes where the interpreter does not refuse.
    if len(text) > _LONGEST_INTEGER:
        return -(1 << 62) if text.startswith("-") else 1 << 62
    return int(text)


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        # Readers that take the first and readers that take the last would see two graphs.
        counts = Counter(key for key, _ in pairs)
        repeated = counts.most_common(1)[0][0]
        raise MalformedGraphError(f"an object repeats the key {repeated[:100]!r}")
    return found


def _list_fields(operation: Operation) -> Iterator[tuple[str, Any]]:
    yield "primitive", operation.primitive.value
    yield "name", operation.name
    yield "output", operation.output
    if operation.inputs:
        yield "inputs", operation.inputs
    if operation.weight:
        yield "weight", operation.weight
    if operation.parameters:
        yield "parameters", [(each.name, each.shape) for each in operation.parameters]
    if operation.groups != 1:
        yield "groups", operation.groups
    if operation.source:
        yield "source", operation.source


def _read_operation(place: str, given: object, limits: GraphLimits) -> Operation:
    fields = _check_keys(place, given, _OPERATION_KEYS, _REQUIRED_OPERATION_KEYS)
    kind = fields["primitive"]
    primitive = _PRIMITIVES.get(kind) if isinstance(kind, str) else None
    if primitive is None:
        raise MalformedGraphError(f"{place}.primitive: no such kind of operation")
    groups = fields.get("groups", 1)
    limits.check_shape(f"{place}.groups", (groups,))
    return Operation(
        primitive=primitive,
        name=limits.check_text(f"{place}.name", fields["name"]),
        output=_read_shape(f"{place}.output", fields["output"], limits),
        inputs=tuple(
            _read_shape(f"{place}.inputs[{at}]", each, limits)
            for at, each in enumerate(_list(f"{place}.inputs", fields.get("inputs", []), limits.inputs))
        ),
        weight=_read_shape(f"{place}.weight", fields.get("weight", []), limits),
        parameters=tuple(
            _read_parameter(f"{place}.parameters[{at}]", each, limits)
            for at, each in enumerate(_list(f"{place}.parameters", fields.get("parameters", []), limits.tensors))
        ),
        groups=groups,
        source=limits.check_text(f"{place}.source", fields.get("source", "")),
    )


def _read_parameter(place: str, given: object, limits: GraphLimits) -> Parameter:
    if not isinstance(given, list) or len(given) != 2:
        raise MalformedGraphError(f"{place}: it must be a list of name and shape")
    return Parameter(limits.check_text(f"{place}[0]", given[0]), _read_shape(f"{place}[1]", given[1], limits))


def _read_shape(place: str, given: object, limits: GraphLimits) -> Shape:
    if not isinstance(given, list):
        raise MalformedGraphError(f"{place}: it must be a list of extents")
    return limits.check_shape(place, given)


def _read_edge(place: str, given: object) -> tuple[int, int]:
    if not isinstance(given, list) or len(given) != 2 or type(given[0]) is not int or type(given[1]) is not int:
        raise MalformedGraphError(f"{place}: it must be a list of two positions")
    return given[0], given[1]


def _list(place: str, given: object, most: int) -> list[Any]:
    if not isinstance(given, list):
        raise MalformedGraphError(f"{place}: it must be a list")
    if len(given) > most:
        raise GraphLimitError(f"{place}: {len(given)} entries, at most {most} are accepted")
    return given


def _check_keys(place: str, given: object, known: frozenset[str], required: frozenset[str]) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise MalformedGraphError(f"{place}: it must be an object")
    if unknown := given.keys() - known:
        raise MalformedGraphError(f"{place}: unknown key {min(unknown)[:100]!r}")
    if missing := required - given.keys():
        raise MalformedGraphError(f"{place}: {min(missing)} is missing")
    return given
