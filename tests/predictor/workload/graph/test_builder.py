import pytest

from gpusonde.errors import MalformedGraphError
from gpusonde.predictor.workload.graph import Parameter, Primitive
from gpusonde.predictor.workload.graph.builder import GraphBuilder
from gpusonde.predictor.workload.graph.cost import count_graph_cost
from gpusonde.predictor.workload.graph.op_registry import find_onnx_op_type, find_torch_op_type

IMAGE = (1, 8, 4, 4)


@pytest.fixture
def builder():
    made = GraphBuilder("small", "fx")
    made.add_input("x", IMAGE)
    return made


def add(builder, key, operator, arguments, output=IMAGE, **keywords):
    builder.add_operator(key, find_torch_op_type(operator), arguments, output, source=f"aten.{operator}", **keywords)


def primitives(graph):
    return [each.primitive for each in graph.operations]


def test_views_are_contracted_and_edges_lead_through_them(builder):
    add(builder, "relu", "relu", ["x"])
    add(builder, "flat", "flatten", ["relu"], (1, 128))
    add(builder, "dropped", "dropout", ["flat"], (1, 128))
    builder.add_parameter("w", "fc.weight", (10, 128))
    add(builder, "fc", "linear", ["dropped", "w", None], (1, 10))
    graph = builder.build(["fc"], 1)
    assert primitives(graph) == [Primitive.INPUT, Primitive.ACTIVATION, Primitive.LINEAR, Primitive.OUTPUT]
    assert graph.edges == ((0, 1), (1, 2), (2, 3))
    assert graph.operations[2].inputs == ((1, 128),)


def test_what_depends_on_no_data_is_no_operation(builder):
    add(builder, "zeros", "new_zeros", ["x"], (4, 4))
    add(builder, "mask", "sub", ["zeros", "zeros"], (4, 4))
    add(builder, "masked", "add", ["x", "mask"])
    graph = builder.build(["masked"], 1)
    assert primitives(graph) == [Primitive.INPUT, Primitive.SUM, Primitive.OUTPUT]
    assert graph.operations[1].inputs == (IMAGE,)


@pytest.mark.parametrize(
    ("groups", "weight", "primitive"),
    [
        (1, (16, 8, 1, 1), Primitive.CONVOLUTION),
        (2, (16, 4, 1, 1), Primitive.GROUPED_CONVOLUTION),
        (8, (16, 1, 1, 1), Primitive.DEPTHWISE_CONVOLUTION),
    ],
)
def test_groups_decide_the_kind_of_convolution(builder, groups, weight, primitive):
    builder.add_parameter("w", "conv.weight", weight)
    add(builder, "conv", "conv2d", ["x", "w"], (1, 16, 4, 4), groups=groups)
    operation = builder.build(["conv"], 1).operations[1]
    assert (operation.primitive, operation.weight, operation.groups) == (primitive, weight, groups)


@pytest.mark.parametrize(
    ("arguments", "output", "primitive", "weight"),
    [
        (["tokens", "two"], (1, 5, 3), Primitive.LINEAR, (3, 8)),
        (["left", "tokens"], (1, 7, 8), Primitive.LINEAR, (7, 5)),
        (["tokens", "three"], (1, 5, 3), Primitive.MATRIX_PRODUCT, (1, 3, 8)),
        (["tokens", "vector"], (1, 5), Primitive.LINEAR, (1, 8)),
        (["tokens", "turned"], (1, 5, 5), Primitive.MATRIX_PRODUCT, ()),
    ],
)
def test_a_product_with_a_weight_is_told_from_one_of_activations(builder, arguments, output, primitive, weight):
    builder.add_input("tokens", (1, 5, 8))
    add(builder, "turned", "transpose", ["tokens"], (1, 8, 5))
    for key, shape in {"two": (8, 3), "left": (7, 5), "three": (1, 8, 3), "vector": (8,)}.items():
        builder.add_parameter(key, key, shape)
    add(builder, "product", "matmul", arguments, output)
    graph = builder.build(["product"], 1)
    found = graph.operations[2]
    assert (found.primitive, found.weight) == (primitive, weight)
    inner = weight[-1] if weight else 8
    numbers = 1
    for extent in output:
        numbers *= extent
    assert count_graph_cost(graph).total.matrix_flops == 2 * numbers * inner


def test_a_weight_used_twice_is_counted_once_and_stands_at_both(builder):
    for key in ("first", "second"):
        builder.add_parameter(key, "shared.weight", (8, 8, 1, 1))
    add(builder, "a", "conv2d", ["x", "first"])
    add(builder, "b", "conv2d", ["a", "second"])
    graph = builder.build(["b"], 1)
    assert graph.parameter_count == 64
    assert [each.weight for each in graph.operations[1:3]] == [(8, 8, 1, 1)] * 2
    assert [each.parameters for each in graph.operations[1:3]] == [(Parameter("shared.weight", (8, 8, 1, 1)),), ()]


def test_a_view_of_a_weight_is_that_weight(builder):
    builder.add_parameter("w", "scale", (8,))
    add(builder, "wide", "unsqueeze", ["w"], (8, 1, 1))
    add(builder, "scaled", "mul", ["x", "wide"])
    operation = builder.build(["scaled"], 1).operations[1]
    assert (operation.primitive, operation.weight) == (Primitive.PRODUCT, (8, 1, 1))
    assert operation.parameters == (Parameter("scale", (8,)),)


def test_a_class_token_is_an_operation_of_its_own(builder):
    builder.add_parameter("token", "class_token", (1, 8, 1, 4))
    add(builder, "wide", "expand", ["token"], (1, 8, 1, 4))
    add(builder, "joined", "cat", ["wide", "x"], (1, 8, 5, 4))
    graph = builder.build(["joined"], 1)
    assert primitives(graph) == [Primitive.INPUT, Primitive.PARAMETER, Primitive.CONCATENATION, Primitive.OUTPUT]
    assert graph.edges == ((0, 2), (1, 2), (2, 3))
    assert graph.parameter_count == 32


def test_a_number_added_to_a_tensor_makes_no_sum(builder):
    builder.add_constant("three", ())
    add(builder, "shifted", "add", ["x", "three"])
    add(builder, "summed", "add", ["x", "shifted"])
    assert primitives(builder.build(["summed"], 1))[1:3] == [Primitive.ACTIVATION, Primitive.SUM]


def test_who_reads_a_tensor_after_it_was_overwritten_reads_the_new_one(builder):
    add(builder, "relu", "relu", ["x"])
    add(builder, "part", "select", ["relu"], (1, 8, 4))
    add(builder, "written", "mul_", ["part", "part"], (1, 8, 4), overwrites=True)
    add(builder, "sum", "add", ["relu", "x"])
    graph = builder.build(["sum"], 1)
    assert graph.edges == ((0, 1), (0, 3), (1, 2), (2, 3), (3, 4))


def test_a_tensor_written_in_very_many_parts_does_not_multiply_the_edges(builder):
    add(builder, "target", "relu", ["x"])
    for number in range(200):
        add(builder, f"value{number}", "tanh", ["x"], (1, 8, 4))
        add(builder, f"part{number}", "select", ["target"], (1, 8, 4))
        add(builder, f"copy{number}", "copy_", [f"part{number}", f"value{number}"], (1, 8, 4), overwrites=True)
    add(builder, "read", "relu", ["target"])
    graph = builder.build(["read"], 1)
    assert len(graph.edges) < 3 * len(graph.operations)
    assert all(graph.sees_input)


def test_pooling_to_one_pixel_is_global(builder):
    add(builder, "part", "adaptive_avg_pool2d", ["x"], (1, 8, 2, 2))
    add(builder, "whole", "adaptive_avg_pool2d", ["part"], (1, 8, 1, 1))
    found = primitives(builder.build(["whole"], 1))[1:3]
    assert found == [Primitive.AVERAGE_POOL, Primitive.GLOBAL_AVERAGE_POOL]


def test_all_matrices_of_a_recurrent_layer_stand_side_by_side(builder):
    builder.add_input("steps", (7, 3, 10))
    for key, shape in {"ih": (80, 10), "hh": (80, 20), "b": (80,)}.items():
        builder.add_parameter(key, key, shape)
    add(builder, "lstm", "lstm", ["steps", "ih", "hh", "b"], (7, 3, 20))
    graph = builder.build(["lstm"], 3)
    assert graph.operations[2].weight == (80, 30)
    assert count_graph_cost(graph).total.matrix_flops == 2 * 7 * 3 * 80 * 30


def test_unknown_operators_are_named_in_the_notes(builder):
    for number in range(2):
        add(builder, f"odd{number}", "frobnicate", ["x"])
    graph = builder.build(["odd1"], 1)
    assert primitives(graph)[1:3] == [Primitive.OTHER] * 2
    assert graph.notes == ("unknown operators, counted as elementwise: aten.frobnicate (2)",)


def test_names_stay_unique(builder):
    for key in ("a", "b"):
        add(builder, key, "relu", ["x"], name="relu")
    assert [each.name for each in builder.build(["b"], 1).operations] == ["x", "relu", "relu_1", "output"]


def test_reading_what_nothing_wrote_is_refused(builder):
    with pytest.raises(MalformedGraphError, match="reads nowhere"):
        add(builder, "relu", "relu", ["nowhere"])


def test_operators_of_onnx_are_assembled_alike(builder):
    builder.add_operator(
        "pooled", find_onnx_op_type("GlobalAveragePool"), ["x"], (1, 8, 1, 1), source="GlobalAveragePool"
    )
    assert builder.build(["pooled"], 1).operations[1].primitive is Primitive.GLOBAL_AVERAGE_POOL


def test_tensors_without_elements_are_constants(builder):
    builder.add_input("cache", (1, 0, 4, 4))
    builder.add_parameter("prefix", "prefix", (1, 0, 4, 4))
    add(builder, "cut", "relu", ["x"], (1, 0, 4, 4))
    add(builder, "joined", "cat", ["cache", "prefix", "cut", "x"])
    graph = builder.build(["joined", "cut"], 1)
    assert primitives(graph) == [Primitive.INPUT, Primitive.CONCATENATION, Primitive.OUTPUT]
    assert graph.operations[1].inputs == (IMAGE,)
    assert graph.operations[-1].inputs == (IMAGE,)


def test_an_einstein_sum_of_three_is_two_products(builder):
    builder.add_input("left", (2, 6, 8))
    for key, shape in (("middle", (8, 3)), ("right", (3, 20))):
        builder.add_parameter(key, key, shape)
    add(builder, "sum", "einsum", ["left", "middle", "right"], (2, 6, 20), equation="bnd,dr,rt->bnt")
    graph = builder.build(["sum"], 2)
    assert count_graph_cost(graph).total.matrix_flops == 2 * 2 * 6 * (8 * 3 + 3 * 20)
    assert graph.parameter_count == 8 * 3 + 3 * 20


def test_a_recurrent_layer_whose_weights_are_computed_is_noted(builder):
    builder.add_input("steps", (5, 1, 8))
    for name in ("here", "there"):
        builder.add_parameter(name, name, (12, 8))
    add(builder, "weights", "cat", ["here", "there"], (24, 8))
    add(builder, "lstm", "lstm", ["steps", "weights"], (5, 1, 4))
    graph = builder.build(["lstm"], 1)
    assert any("recurrent layers whose weights are computed" in note for note in graph.notes)
