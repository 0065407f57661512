from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpusonde.errors import GraphError, GraphLimitError, MalformedGraphError
from gpusonde.predictor.workload.graph import (
    GraphLimits,
    Operation,
    Parameter,
    Primitive,
    WorkloadGraph,
    dump_graph,
    load_graph,
)


def small_graph() -> WorkloadGraph:
    return WorkloadGraph(
        name="small",
        operations=(
            Operation(Primitive.INPUT, "x", (2, 3, 8, 8)),
            Operation(
                Primitive.DEPTHWISE_CONVOLUTION, "conv {1}, [a]", (2, 3, 8, 8), ((2, 3, 8, 8),), (3, 1, 3, 3),
                (Parameter("conv.weight", (3, 1, 3, 3)), Parameter("conv.bias", (3,))), 3, "aten.conv2d",
            ),
            Operation(Primitive.SUM, "add", (2, 3, 8, 8), ((2, 3, 8, 8), (2, 3, 8, 8)), source="aten.add"),
            Operation(Primitive.OTHER, "scalar", (), ((2, 3, 8, 8),)),
        ),
        edges=((0, 1), (0, 2), (1, 2), (2, 3)),
        batch_size=2, front_end="export", notes=("one", "two: \u00e9"),
    )  # fmt: skip


def document() -> dict[str, Any]:
    return json.loads(dump_graph(small_graph()))


@contextlib.contextmanager
def digits_without_limit() -> Iterator[None]:
    """Let Python write numbers of any length, as a stranger's program would."""
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(limit)


def test_what_is_written_is_read_back_the_same() -> None:
    text = dump_graph(small_graph())
    assert load_graph(text) == load_graph(text.encode()) == small_graph()
    assert dump_graph(load_graph(text)) == text


def test_defaults_are_left_out() -> None:
    assert document()["operations"][0] == {"primitive": "input", "name": "x", "output": [2, 3, 8, 8]}


def _set(*path: Any) -> Callable[[dict[str, Any]], None]:
    *way, last, value = path

    def change(given: Any) -> None:
        for step in way:
            given = given[step]
        given[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (_set("format", "gpusonde.workload_graph/2"), "format"),
        (_set("colour", 1), "unknown key 'colour'"),
        (_set("operations", 0, "flops", 1), r"operations\[0\]: unknown key 'flops'"),
        (_set("operations", 1, "output", 0, 1.0), r"operations\[1\].output\[0\]"),
        (_set("operations", 1, "output", 0, True), r"operations\[1\].output\[0\]"),
        (_set("operations", 1, "output", 0, float("nan")), r"operations\[1\].output\[0\]"),
        (_set("operations", 1, "output", 0, float("inf")), r"operations\[1\].output\[0\]"),
        (_set("operations", 1, "output", 0, None), r"operations\[1\].output\[0\]"),
        (_set("operations", 1, "output", 0, "2"), r"operations\[1\].output\[0\]"),
        (_set("operations", 1, "output", 0, 0), r"operations\[1\].output\[0\]"),
        (_set("operations", 1, "output", 0, -2), r"operations\[1\].output\[0\]"),
        (_set("operations", 1, "output", 0, -(10**30)), r"operations\[1\].output\[0\]"),
        (_set("operations", 1, "inputs", [3]), r"operations\[1\].inputs\[0\]"),
        (_set("operations", 1, "inputs", {}), r"operations\[1\].inputs"),
        (_set("operations", 1, "parameters", [["w", [1], 2]]), r"operations\[1\].parameters\[0\]"),
        (_set("operations", 1, "parameters", [["w", [0]]]), r"operations\[1\].parameters\[0\]\[1\]"),
        (_set("operations", 1, "groups", 0), r"operations\[1\].groups"),
        (_set("operations", 1, "groups", 1.5), r"operations\[1\].groups"),
        (_set("operations", 1, "primitive", "Convolution"), r"operations\[1\].primitive"),
        (_set("operations", 1, "primitive", ["input"]), r"operations\[1\].primitive"),
        (_set("operations", 1, "name", 7), r"operations\[1\].name"),
        (_set("operations", 1, "name", "x"), r"operations\[1\].name: an earlier"),
        (_set("operations", 1, "name", "a\x1b[2J"), r"operations\[1\].name"),
        (_set("operations", 1, "name", "\ud800"), r"operations\[1\].name"),
        (_set("operations", 1, 5), r"operations\[1\]: it must be an object"),
        (_set("operations", []), "no operation"),
        (_set("operations", {}), "operations"),
        (_set("edges", 0, [0]), r"edges\[0\]"),
        (_set("edges", 0, [0, 1.0]), r"edges\[0\]"),
        (_set("edges", 0, [False, True]), r"edges\[0\]"),
        (_set("edges", 0, [1, 0]), "edge"),
        (_set("edges", 0, [1, 1]), "edge"),
        (_set("edges", 0, [-1, 1]), "edge"),
        (_set("edges", 3, [2, 4]), "edge"),
        (_set("edges", 1, [0, 1]), "ascend"),
        (_set("batch_size", 0), "batch_size"),
        (_set("batch_size", 2.0), "batch_size"),
        (_set("notes", "n"), "notes"),
        (_set("notes", 0, 3), r"notes\[0\]"),
        (_set("name", None), "name"),
    ],
)
def test_what_is_no_graph_is_refused_with_its_place(change: Callable[[Any], None], place: str) -> None:
    given = document()
    change(given)
    with pytest.raises(MalformedGraphError, match=place):
        load_graph(json.dumps(given))


@pytest.mark.parametrize("key", ["format", "name", "batch_size", "operations", "edges"])
def test_what_is_missing_is_named(key: str) -> None:
    given = document()
    del given[key]
    with pytest.raises(MalformedGraphError, match=f"{key} is missing"):
        load_graph(json.dumps(given))


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (_set("operations", 1, "output", 0, 1 << 31), r"operations\[1\].output\[0\]"),
        (_set("operations", 1, "output", 0, 10**5000), r"operations\[1\].output\[0\]"),
        (_set("operations", 1, "output", [1 << 30, 1 << 30]), r"operations\[1\].output"),
        (_set("operations", 1, "output", [1] * 9), r"operations\[1\].output"),
        (_set("operations", 1, "groups", 10**12), r"operations\[1\].groups"),
        (_set("operations", 1, "name", "x" * 401), r"operations\[1\].name"),
        (_set("batch_size", 1 << 21), "batch_size"),
        (_set("notes", ["n"] * 33), "notes"),
        (_set("notes", ["n" * 1001]), r"notes\[0\]"),
        (_set("operations", [{"primitive": "input", "name": "x", "output": []}] * 20_001), "operations"),
        (_set("operations", 1, "inputs", [[]] * 100_001), "inputs"),
    ],
)
def test_what_is_too_large_is_refused_with_its_place(change: Callable[[Any], None], place: str) -> None:
    given = document()
    change(given)
    with digits_without_limit():
        text = json.dumps(given)
    with pytest.raises(GraphLimitError, match=place):
        load_graph(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "3", '"x"', "NaN", "[" * 100_000, '{"a":' * 100_000, b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}", "\ufeff{}", '{"format": "gpusonde.workload_graph/1", "format": "gpusonde.workload_graph/1"}',
    ],
)  # fmt: skip
def test_other_text_is_refused(text: str | bytes) -> None:
    with pytest.raises(MalformedGraphError):
        load_graph(text)


def test_a_repeated_key_is_refused_wherever_it_stands() -> None:
    text = dump_graph(small_graph()).replace('"groups":3', '"groups":3,"groups":1')
    with pytest.raises(MalformedGraphError, match="repeats the key 'groups'"):
        load_graph(text)


def test_brackets_and_commas_in_names_are_not_counted_as_structure() -> None:
    given = document()
    given["operations"][1]["name"] = '[{,:"' * 60
    limits = GraphLimits(values=200, containers=60)
    assert load_graph(json.dumps(given), limits).operations[1].name == '[{,:"' * 60


FLOODS = {
    "spaces": lambda: b" " * 100_000_000,
    "long text": lambda: '{"format":"gpusonde.workload_graph/1","name":"' + "x" * 100_000_000 + '"}',
    "empty operations": lambda: '{"operations":[' + "{}," * 1_000_000 + "{}]}",
    "small operations": lambda: '{"operations":[' + '{"primitive":"sum"},' * 800_000 + "{}]}",
    "operations": lambda: '{"operations":[' + '{"primitive":"sum","name":"a","output":[1,1,1]},' * 80_000 + "{}]}",
    "edges": lambda: '{"edges":[' + "[0,1]," * 1_000_000 + "[0,1]]}",
    "zeros": lambda: '{"operations":[' + "0," * 8_000_000 + "0]}",
    "empty texts": lambda: '{"operations":[' + '"",' * 5_000_000 + '""]}',
    "quotation marks": lambda: '"' * 16_000_000,
    "escaped quotation marks": lambda: '["[[' + '\\"' * 8_000_000,
    "backslashes": lambda: '"[' + "\\" * 16_000_000,
    "digits": lambda: '{"operations":[' + "9" * 16_000_000 + "]}",
    "escapes": lambda: '{"operations":["' + "\\u0041" * 2_600_000 + '"]}',
    "brackets in a text": lambda: '{"operations":["' + "[" * 16_000_000 + '"]}',
    "a repeated key among many": lambda: "{" + ",".join(f'"{at}":0' for at in range(400_000)) + ',"399999":0}',
    "brackets": lambda: "[" * 16_000_000,
}


@pytest.mark.parametrize("make", FLOODS.values(), ids=FLOODS)
def test_a_flood_is_refused_within_seconds(make: Callable[[], bytes | str]) -> None:
    data = make()
    started = time.process_time()
    with pytest.raises(GraphError):
        load_graph(data)
    # The benchmark holds it to one second; a machine under load takes some three times as long.
    assert time.process_time() - started < 5


def test_a_flood_costs_little_memory() -> None:
    code = (
        "import resource; from gpusonde.predictor.workload.graph import load_graph\n"
        "from gpusonde.errors import GraphError\n"
        "data = '{\"operations\":[' + '{\"a\":0},' * 490_000 + '0]}'\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: load_graph(data)\n"
        "except GraphError as error: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    grown_kib, said = done.stdout.split(" ", 1)
    assert "batch_size is missing" in said
    assert int(grown_kib) < 512 << 10


def test_limits_hold_for_graphs_from_elsewhere() -> None:
    assert GraphLimits().check_graph(small_graph()) == small_graph()
    with pytest.raises(GraphLimitError, match="4 operations"):
        GraphLimits(operations=3).check_graph(small_graph())
    with pytest.raises(GraphLimitError, match="4 edges"):
        GraphLimits(edges=3).check_graph(small_graph())
