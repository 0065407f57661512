from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.hostile_graphs import onnx_file, onnx_integer, onnx_node, onnx_text, onnx_value, onnx_weight, small_onnx

from gpusonde.errors import (
    DataDependentGraphError,
    GraphError,
    GraphLimitError,
    MalformedGraphError,
    UnsupportedGraphError,
)
from gpusonde.predictor.workload.graph import GraphLimits, Primitive, WorkloadGraph, load_graph
from gpusonde.predictor.workload.graph.cost import count_graph_cost
from gpusonde.predictor.workload.graph.onnx import from_onnx
from gpusonde.predictor.workload.graph.onnx import shapes as shapes_module
from gpusonde.predictor.workload.graph.onnx.model import encode_bytes, encode_varint

FILES = Path(__file__).parents[3] / "data" / "graph_files"

needs_onnx = pytest.mark.skipif(importlib.util.find_spec("onnx") is None, reason="needs onnx (extra collector)")


def onnx_operators() -> set[str]:
    return {"Identity", "Gather", "Add", "MatMul", "Gemm", "Mul", "Softmax", "Erf", "Sigmoid", "Dropout", "LSTM",
            "Conv", "Transpose", "Shape", "Constant", "BatchNormalization", "Einsum", "Concat", "ConvTranspose",
            "PRelu", "Attention", "Twist"}  # fmt: skip


def of_torch(name: str) -> WorkloadGraph:
    return load_graph((FILES / f"{name}.json").read_bytes())


def of_onnx(name: str, batch_size: int = 2, **keywords: Any) -> WorkloadGraph:
    return from_onnx((FILES / f"{name}.onnx").read_bytes(), batch_size=batch_size, **keywords)


def kinds(graph: WorkloadGraph) -> Counter[str]:
    return Counter(each.primitive.value for each in graph.operations)


def matrix_flops(graph: WorkloadGraph) -> int:
    return count_graph_cost(graph).total.matrix_flops


@needs_onnx
def test_an_export_in_training_mode_is_torchs_own_graph() -> None:
    expected, found = of_torch("convolutions"), of_onnx("convolutions_trained")
    assert kinds(found) == kinds(expected)
    assert found.parameter_count == expected.parameter_count
    assert matrix_flops(found) == matrix_flops(expected)
    assert not any("batch normalisation" in note for note in found.notes)


@needs_onnx
def test_an_export_for_inference_says_that_its_batch_normalisation_may_be_gone() -> None:
    found = of_onnx("convolutions")
    assert Primitive.BATCH_NORM.value not in kinds(found)
    assert matrix_flops(found) == matrix_flops(of_torch("convolutions"))
    assert any("no batch normalisation" in note and "training mode" in note for note in found.notes)


@needs_onnx
@pytest.mark.parametrize("name", ["transformer", "text"])
def test_sequences_have_torchs_layers_weights_and_costs(name: str) -> None:
    expected, found = of_torch(name), of_onnx(name)
    assert found.layer_count == expected.layer_count
    assert found.edges == expected.edges or name == "text"
    assert kinds(found) == kinds(expected) or name == "text"
    # The exporter writes a shared weight twice, once for each use.
    assert found.parameter_count == expected.parameter_count + (160 if name == "text" else 0)
    assert matrix_flops(found) == matrix_flops(expected)


def test_a_file_that_says_all_shapes_is_read_without_onnx() -> None:
    code = (
        "import sys; from gpusonde.predictor.workload.graph.onnx import from_onnx\n"
        "graph = from_onnx(open(sys.argv[1], 'rb').read()); print(graph.layer_count, 'onnx' in sys.modules)"
    )
    path = str(FILES / "transformer_dynamo.onnx")
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["8", "False"]
    assert kinds(of_onnx("transformer_dynamo")) == kinds(of_torch("transformer"))
    assert matrix_flops(of_onnx("transformer_dynamo")) == matrix_flops(of_torch("transformer"))
    assert of_onnx("transformer_dynamo").parameter_count == of_torch("transformer").parameter_count


@needs_onnx
def test_a_batch_that_is_left_open_is_the_one_that_is_asked_for() -> None:
    one, eight = of_onnx("transformer", 1), of_onnx("transformer", 8)
    assert (one.batch_size, eight.batch_size) == (1, 8)
    assert matrix_flops(eight) == 8 * matrix_flops(one)
    assert "the file leaves the batch open: shapes are those of a batch of 8" in eight.notes


def test_a_batch_with_a_name_is_known_where_its_name_is_without_inference() -> None:
    graph = from_onnx(small_onnx(batch="N"), batch_size=5)
    assert graph.batch_size == 5
    assert graph.operations[1].output == (5, 4)


def test_a_batch_that_is_fixed_stays() -> None:
    assert from_onnx(small_onnx(batch=3), batch_size=5).batch_size == 3


@pytest.mark.parametrize(("batch", "error"), [(0, MalformedGraphError), (1 << 30, GraphLimitError)])
def test_a_batch_out_of_range_is_refused(batch: int, error: type[GraphError]) -> None:
    with pytest.raises(error):
        from_onnx(small_onnx(batch="N"), batch_size=batch)


def test_a_product_and_its_bias_are_one_linear_layer() -> None:
    given = (onnx_weight("b", [4]), onnx_node("Add", ["b", "h"], ["s"]), onnx_value(13, "s", [1, 4]))
    fields = [onnx_node("MatMul", ["x", "w"], ["h"]), onnx_weight("w", [8, 4]), onnx_value(11, "x", [1, 8])]
    graph = from_onnx(onnx_file(*fields, *given, onnx_value(13, "h", [1, 4]), onnx_value(12, "s", [1, 4])))
    assert [each.primitive for each in graph.operations] == [Primitive.INPUT, Primitive.LINEAR, Primitive.OUTPUT]
    assert graph.operations[1].weight == (4, 8)
    assert graph.parameter_count == 36
    turned = [onnx_weight("t", [4, 8]), onnx_node("Transpose", ["t"], ["w"]), onnx_weight("i", [4]),
              onnx_node("MatMul", ["x", "w"], ["h"]), onnx_node("Identity", ["i"], ["b"]), *given[1:], fields[2],
              *(onnx_value(13, each, shape) for each, shape in (("w", [8, 4]), ("b", [4]), ("h", [1, 4])))]  # fmt: skip
    graph = from_onnx(onnx_file(*turned, onnx_value(12, "s", [1, 4])))
    assert [each.primitive for each in graph.operations] == [Primitive.INPUT, Primitive.LINEAR, Primitive.OUTPUT]
    assert (graph.operations[1].weight, graph.parameter_count) == ((4, 8), 36)
    read_elsewhere = onnx_file(
        *fields, *given, onnx_value(13, "h", [1, 4]), onnx_value(12, "s", [1, 4]), onnx_value(12, "h", [1, 4])
    )
    assert Primitive.SUM in [each.primitive for each in from_onnx(read_elsewhere).operations]


_GELU = [
    onnx_node("Div", ["x", "root"], ["d"]), onnx_node("Erf", ["d"], ["e"]), onnx_node("Add", ["e", "one"], ["a"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "is_one"),
    [
        ([*_GELU, onnx_node("Mul", ["x", "a"], ["m"]), onnx_node("Mul", ["m", "half"], ["y"])], True),
        ([*_GELU, onnx_node("Mul", ["half", "a"], ["m"]), onnx_node("Mul", ["m", "x"], ["y"])], True),
        ([onnx_node("Mul", ["x", "half"], ["h"]), *_GELU, onnx_node("Mul", ["h", "a"], ["y"])], True),
        ([*_GELU, onnx_node("Mul", ["x", "a"], ["m"]), onnx_node("Mul", ["m", "x"], ["y"])], False),
        ([*_GELU, onnx_node("Mul", ["x", "a"], ["m"]), onnx_node("Mul", ["m", "e"], ["y"])], False),
        ([*_GELU, onnx_node("Mul", ["x", "a"], ["y"])], False),
        ([onnx_node("Sigmoid", ["x"], ["a"]), onnx_node("Mul", ["x", "a"], ["y"])], True),
        ([onnx_node("HardSigmoid", ["x"], ["a"]), onnx_node("Mul", ["a", "x"], ["y"])], True),
        ([onnx_node("Sigmoid", ["x"], ["a"]), onnx_node("Mul", ["a", "a"], ["y"])], False),
        ([onnx_node("Sigmoid", ["x"], ["d"]), onnx_node("Abs", ["x"], ["a"]), onnx_node("Mul", ["a", "d"], ["y"])],
         False),
    ],
)  # fmt: skip
def test_activations_of_several_nodes_are_one_operation(nodes: list[bytes], is_one: bool) -> None:
    constants = [onnx_weight(each, []) for each in ("root", "one", "half")]
    between = [onnx_value(13, each, [1, 8]) for each in ("d", "e", "a", "m", "h")]
    ends = [onnx_value(11, "x", [1, 8]), onnx_value(12, "y", [1, 8])]
    graph = from_onnx(onnx_file(*nodes, *constants, *between, *ends))
    primitives = [each.primitive for each in graph.operations]
    assert (primitives == [Primitive.INPUT, Primitive.ACTIVATION, Primitive.OUTPUT]) is is_one
    # One whose part is read elsewhere stays as it is.
    part = onnx_value(12, "a", [1, 8])
    assert len(from_onnx(onnx_file(*nodes, *constants, *between, *ends, part)).operations) > 3


@pytest.mark.parametrize(
    ("scaled", "masked", "is_one"), [("qk", False, True), ("qk", True, True), ("q", False, False), ("", True, False)]
)
def test_attention_is_one_operation_as_pytorch_exports_it_and_none_as_a_network_spells_it(
    scaled: str, masked: bool, is_one: bool
) -> None:
    nodes = [onnx_node("Abs", ["x"], ["q"]), onnx_node("Abs", ["x"], ["v"]), onnx_node("Transpose", ["x"], ["k"])]
    nodes += [onnx_node("Mul", [each, "scale"], [f"{each}s"]) for each in scaled]
    operands = [f"{each}s" if each in scaled else each for each in "qk"]
    nodes += [onnx_node("MatMul", operands, ["p"]), onnx_node("Add", ["p", "mask"], ["a"])][: 1 + masked]
    nodes += [onnx_node("Softmax", ["a" if masked else "p"], ["s"]), onnx_node("Dropout", ["s", "scale"], ["d"])]
    nodes += [onnx_node("MatMul", ["d", "v"], ["y"])]
    shapes = {"k": [2, 4, 6], "ks": [2, 4, 6], "p": [2, 6, 6], "a": [2, 6, 6], "s": [2, 6, 6], "d": [2, 6, 6]}
    between = [onnx_value(13, each, shapes.get(each, [2, 6, 4])) for each in ("q", "v", "k", "qs", "ks", *"pasd")]
    ends = [onnx_value(11, "x", [2, 6, 4]), onnx_value(11, "mask", [6, 6]), onnx_value(12, "y", [2, 6, 4])]
    graph = from_onnx(onnx_file(*nodes, onnx_weight("scale", []), *between, *ends))
    attentions = [each for each in graph.operations if each.primitive is Primitive.ATTENTION]
    assert bool(attentions) is is_one
    for each in attentions:
        assert each.inputs == ((2, 6, 4), (2, 6, 4), (2, 6, 4), *([(6, 6)] * masked))
    assert matrix_flops(graph) == 2 * 2 * 2 * 6 * 6 * 4


def test_statistics_and_settings_are_no_weights() -> None:
    graph = from_onnx(
        onnx_file(
            onnx_node("BatchNormalization", ["x", "scale", "bias", "mean", "var"], ["n"]),
            onnx_node("Clip", ["n", "low", "high"], ["c"]), onnx_node("Gather", ["table", "c"], ["g"]),
            onnx_node("PRelu", ["g", "slope"], ["y"]),
            *(onnx_weight(each, [4]) for each in ("scale", "bias", "mean", "var", "slope")),
            onnx_weight("low", []), onnx_weight("high", [1]), onnx_weight("table", [100, 4]),
            onnx_value(11, "x", [1, 4]), onnx_value(12, "y", [1, 4]),
            *(onnx_value(13, each, [1, 4]) for each in ("n", "c", "g")),
        )
    )  # fmt: skip
    owned = {each.name for operation in graph.operations for each in operation.parameters}
    assert owned == {"scale", "bias", "slope", "table"}


@pytest.mark.parametrize("operator", sorted(onnx_operators()))
@pytest.mark.parametrize("inputs", [[], [""], ["w"], ["y"], ["y", "w"], ["w", "", "y", "y"]])
def test_any_number_of_arguments_is_taken_or_refused_in_words(operator: str, inputs: list[str]) -> None:
    for outputs in (["z"], ["", "z"], ["z", "z2"]):
        node = onnx_node(operator, inputs, outputs)
        with contextlib.suppress(GraphError):
            from_onnx(small_onnx(node, onnx_value(13, "z", [1, 4])), limits=GraphLimits(inference_s=0))


def test_a_sum_of_einstein_costs_what_its_product_costs() -> None:
    equation = onnx_text(1, "equation") + onnx_text(4, "bij,bkj->bik") + onnx_integer(20, 3)
    ends = [onnx_value(11, "x", [2, 3, 5]), onnx_value(11, "z", [2, 7, 5]), onnx_value(12, "y", [2, 3, 7])]
    graph = from_onnx(onnx_file(onnx_node("Einsum", ["x", "z"], ["y"], equation), *ends))
    assert matrix_flops(graph) == 2 * 2 * 3 * 7 * 5


def test_a_file_as_large_as_is_accepted_takes_seconds() -> None:
    count = 15_000
    fields = [onnx_node("Mul", [f"t{at}", f"w{at}"], [f"t{at + 1}"]) for at in range(count)]
    fields += [onnx_weight(f"w{at}", [2]) for at in range(count)]
    fields += [onnx_value(13, f"t{at}", [2]) for at in range(1, count)]
    data = onnx_file(*fields, onnx_value(11, "t0", [2]), onnx_value(12, f"t{count}", [2]))
    started = time.process_time()
    with contextlib.suppress(GraphLimitError):
        assert len(from_onnx(data).operations) == count + 2
    assert time.process_time() - started < 10


def test_operators_of_other_domains_are_counted_as_others_and_noted() -> None:
    node = onnx_node("Twist", ["y"], ["z"]).replace(onnx_text(4, "Twist"), onnx_text(4, "Twist") + onnx_text(7, "me"))
    length = encode_varint(len(node) - 2)
    node = encode_varint(1 << 3 | 2) + length + node[2:]
    graph = from_onnx(small_onnx(node, onnx_value(12, "z", [1, 4])))
    assert [each.primitive for each in graph.operations].count(Primitive.OTHER) == 1
    assert any("Twist (1)" in note for note in graph.notes)


def test_an_operator_that_nobody_knows_needs_a_shape() -> None:
    with pytest.raises(UnsupportedGraphError, match=r"shape of tensor 'z'|cannot infer|not installed"):
        from_onnx(small_onnx(onnx_node("Twist", ["y"], ["z"]), onnx_value(12, "z", None)))


@needs_onnx
def test_a_size_that_is_an_attribute_of_a_constant_is_known() -> None:
    def integers(name: str, *values: int) -> bytes:
        one = len(values) == 1
        packed = b"".join(onnx_integer(3 if one else 8, each) for each in values)
        return onnx_text(1, name) + packed + onnx_integer(20, 2 if one else 7)

    sizes = onnx_node("Constant", [], ["sizes"], integers("value_ints", 2, -1))
    last = onnx_node("Constant", [], ["last"], integers("value_int", 1))
    part = onnx_node("Gather", ["whole", "last"], ["part"])
    graph = from_onnx(
        small_onnx(
            sizes, onnx_node("Reshape", ["y", "sizes"], ["r"]), onnx_node("Relu", ["r"], ["whole"]), last, part,
            onnx_node("Relu", ["part"], ["z"]), onnx_value(12, "z", None),
        )
    )  # fmt: skip
    assert [each.output for each in graph.operations if each.primitive is Primitive.ACTIVATION] == [
        (1, 4),
        (2, 2),
        (2,),
    ]


def test_without_onnx_a_missing_shape_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedGraphError, match=r"not installed \(extra 'collector'\)"):
        of_onnx("convolutions")


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ([onnx_value(11, "x", None)], UnsupportedGraphError, "has no shape"),
        ([onnx_value(11, "x", [1, "length"])], UnsupportedGraphError, r"extent 1 \('length'\) open"),
        ([onnx_value(11, "x", [1] * 9)], GraphLimitError, "dimensions"),
        ([], MalformedGraphError, "no input"),
        ([onnx_value(11, "x", [1]), onnx_node("Relu", ["x"], [])], MalformedGraphError, "writes nothing"),
        ([onnx_value(11, "x", [1]), onnx_node("Relu", ["x"], ["x"])], MalformedGraphError, "twice"),
        ([onnx_value(11, "x", [1]), onnx_node("", ["x"], ["y"])], MalformedGraphError, "without an operator"),
        ([onnx_weight("w", [2]), onnx_weight("w", [2])], MalformedGraphError, "two initialisers"),
        ([onnx_weight("w", [-2])], MalformedGraphError, "at least 1"),
        ([encode_bytes(15, b"")], UnsupportedGraphError, "sparse"),
        ([onnx_node("If", ["x"], ["y"])], DataDependentGraphError, "If"),
        ([onnx_node("Scan", ["x"], ["y"])], DataDependentGraphError, "Scan"),
        ([onnx_node("Other", ["x"], ["y"], encode_bytes(11, b""))], DataDependentGraphError, "Other"),
        ([onnx_node("Relu", ["x\x1b[2J"], ["y"])], MalformedGraphError, "cannot be printed"),
        ([onnx_node("Relu", ["x" * 1000], ["y"])], GraphLimitError, "characters"),
        ([encode_bytes(1, encode_bytes(1, b"\xff"))], MalformedGraphError, "UTF-8"),
        ([encode_bytes(5, encode_bytes(1, b"\xff"))], MalformedGraphError, "does not end"),
        ([b"\x0b"], MalformedGraphError, "kind 3"),
        ([b"\x02"], MalformedGraphError, "field 0"),
    ],
)  # fmt: skip
def test_what_is_no_network_is_refused_with_the_reason(fields: list[bytes], error: type[GraphError], text: str) -> None:
    with pytest.raises(error, match=text):
        from_onnx(onnx_file(*fields))


def test_external_data_is_refused_wherever_it_stands() -> None:
    tensor = onnx_integer(1, 4) + onnx_integer(2, 1) + onnx_integer(14, 1)
    for field in (encode_bytes(5, tensor), onnx_node("Constant", [], ["c"], encode_bytes(5, tensor))):
        with pytest.raises(UnsupportedGraphError, match="another file"):
            from_onnx(small_onnx(field))


def test_functions_of_the_file_are_refused_where_they_are_used() -> None:
    function = encode_bytes(25, onnx_text(1, "Twist") + onnx_text(10, ""))
    assert from_onnx(small_onnx() + function).operations
    with pytest.raises(UnsupportedGraphError, match="inline_local_functions"):
        from_onnx(small_onnx(onnx_node("Twist", ["y"], ["z"])) + function)


@pytest.mark.parametrize(
    "limits",
    [
        GraphLimits(onnx_bytes=1000), GraphLimits(onnx_fields=500), GraphLimits(operations=10), GraphLimits(edges=5),
        GraphLimits(tensors=5), GraphLimits(inputs=5), GraphLimits(extent=9),
    ],
)  # fmt: skip
def test_every_limit_holds(limits: GraphLimits) -> None:
    with pytest.raises(GraphLimitError):
        of_onnx("transformer_dynamo", limits=limits)


@needs_onnx
def test_what_is_inferred_from_has_no_weights_and_a_limit_of_its_own() -> None:
    with pytest.raises(GraphLimitError, match="without its weights"):
        of_onnx("convolutions", limits=GraphLimits(onnx_structure_bytes=1000))
    # The values of the weights are no part of what is inferred from.
    large = small_onnx(onnx_weight("big", [1 << 20], encode_bytes(9, bytes(4 << 20))), onnx_node("Abs", ["y"], ["z"]))
    graph = from_onnx(large + b"", limits=GraphLimits(onnx_structure_bytes=2000))
    assert graph.operations


@needs_onnx
def test_inference_that_goes_wrong_is_an_error_like_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    programs = {
        "crashes": "import os; os.abort()",
        "talks": "import sys\nwhile True: sys.stdout.write('x' * 65536)",
        "hangs": "import time; time.sleep(100)",
        "lies": "print('{}')",
    }
    for name, text in programs.items():
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        monkeypatch.setattr(shapes_module, "_INFER_SHAPES", path)
        with pytest.raises(GraphError):
            of_onnx("convolutions", limits=GraphLimits(inference_s=1.0))


def test_where_nothing_may_be_inferred_a_file_without_shapes_is_refused() -> None:
    with pytest.raises(UnsupportedGraphError, match="not inferred here"):
        of_onnx("convolutions", limits=GraphLimits(inference_s=0))
