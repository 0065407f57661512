import pytest

from gpusonde.predictor.workload.graph import Operation, Parameter, Primitive, WorkloadGraph
from gpusonde.predictor.workload.graph.cost import MATRIX_PRIMITIVES, count_graph_cost, count_operation_cost


def matrix_flops(primitive, output, inputs, weight=(), groups=1):
    return count_operation_cost(Operation(primitive, "it", output, inputs, weight, groups=groups)).matrix_flops


def test_a_convolution_counts_two_operations_for_each_multiply_add():
    # The stem of ResNet-50: 118,013,952 multiply-adds.
    found = matrix_flops(Primitive.CONVOLUTION, (1, 64, 112, 112), ((1, 3, 224, 224),), (64, 3, 7, 7))
    assert found == 2 * 118_013_952


def test_groups_cost_what_they_save():
    whole = matrix_flops(Primitive.CONVOLUTION, (1, 64, 8, 8), ((1, 64, 8, 8),), (64, 64, 3, 3))
    grouped = matrix_flops(Primitive.GROUPED_CONVOLUTION, (1, 64, 8, 8), ((1, 64, 8, 8),), (64, 2, 3, 3), groups=32)
    assert whole == 32 * grouped


def test_a_transposed_convolution_works_once_per_input():
    found = matrix_flops(Primitive.TRANSPOSED_CONVOLUTION, (1, 8, 16, 16), ((1, 4, 8, 8),), (4, 8, 2, 2))
    assert found == 2 * 4 * 64 * 8 * 4


@pytest.mark.parametrize(
    ("output", "inputs", "weight", "expected"),
    [
        ((5, 7), ((5, 3), (3, 7)), (), 2 * 5 * 7 * 3),
        ((2, 5, 7), ((2, 5, 3), (2, 3, 7)), (), 2 * 2 * 5 * 7 * 3),
        ((2, 5, 7), ((2, 5, 3),), (2, 7, 3), 2 * 2 * 5 * 7 * 3),
        ((), ((9,), (9,)), (), 2 * 9),
    ],
)
def test_a_product_of_matrices_counts_the_contracted_extent(output, inputs, weight, expected):
    assert matrix_flops(Primitive.MATRIX_PRODUCT, output, inputs, weight) == expected


def test_attention_is_two_products_with_as_many_keys_as_given():
    query, key = (2, 4, 10, 16), (2, 4, 30, 16)
    found = matrix_flops(Primitive.ATTENTION, query, (query, key, key))
    assert found == 2 * (2 * 4) * (10 * 16 * 30) * 2


def test_a_recurrent_layer_multiplies_all_its_matrices_at_each_step():
    # LSTM(10, 20) over 7 steps of 3 samples: 80 x 10 and 80 x 20.
    found = matrix_flops(Primitive.RECURRENT, (7, 3, 20), ((7, 3, 10),), (80, 30))
    assert found == 2 * 7 * 3 * 80 * 30


def test_bytes_are_those_of_fp32():
    parameters = (Parameter("fc.weight", (4, 3)), Parameter("fc.bias", (4,)))
    cost = count_operation_cost(Operation(Primitive.LINEAR, "fc", (2, 4), ((2, 3),), (4, 3), parameters))
    assert (cost.input_bytes, cost.output_bytes, cost.weight_bytes) == (24, 32, 64)
    assert cost.bytes == 120


def test_a_weight_used_a_second_time_is_read_again():
    again = count_operation_cost(Operation(Primitive.LINEAR, "head", (2, 4), ((2, 3),), (4, 3)))
    assert again.weight_bytes == 48


def test_a_lookup_reads_the_rows_that_it_needs():
    table = Parameter("table", (50_000, 8))
    cost = count_operation_cost(Operation(Primitive.LOOKUP, "table", (1, 5, 8), ((1, 5),), (50_000, 8), (table,)))
    assert cost.flops == 0
    assert (cost.input_bytes, cost.output_bytes, cost.weight_bytes) == (4 * 45, 160, 0)


def test_elementwise_operations_are_kept_apart():
    cost = count_operation_cost(Operation(Primitive.ACTIVATION, "relu", (2, 8), ((2, 8),)))
    assert (cost.matrix_flops, cost.elementwise_flops, cost.flops) == (0, 16, 16)


@pytest.mark.parametrize("primitive", list(Primitive))
def test_every_primitive_has_a_cost_whatever_its_shapes(primitive):
    bare = count_operation_cost(Operation(primitive, "it", ()))
    assert bare.flops >= 0
    assert primitive in MATRIX_PRIMITIVES or bare.matrix_flops == 0


@pytest.fixture
def graph():
    weight, table = Parameter("weight", (4, 3)), Parameter("bias_table", (9, 4))
    return WorkloadGraph(
        "small",
        (
            Operation(Primitive.INPUT, "x", (2, 3)),
            Operation(Primitive.LINEAR, "fc", (2, 4), ((2, 3),), (4, 3), (weight,)),
            Operation(Primitive.ACTIVATION, "scale", (4,), (), (9, 4), (table,)),
            Operation(Primitive.SUM, "add", (2, 4), ((2, 4), (4,))),
            Operation(Primitive.OUTPUT, "output", (2, 4), ((2, 4),)),
        ),
        ((0, 1), (1, 3), (2, 3), (3, 4)),
        batch_size=2,
    )


def test_only_what_sees_an_input_grows_with_the_batch(graph):
    cost = count_graph_cost(graph)
    small, large = cost.at(2), cost.at(200)
    assert small == cost.total
    assert large.matrix_flops == 100 * small.matrix_flops
    assert large.weight_bytes == small.weight_bytes == 4 * (12 + 36)
    assert large.elementwise_flops == 100 * 8 + 4
    assert cost.per_sample.matrix_flops == 24


def test_costs_of_some_primitives_add_up_to_that_of_all(graph):
    parts = [count_graph_cost(graph, [primitive]).at(3) for primitive in Primitive]
    whole = count_graph_cost(graph).at(3)
    assert sum(part.flops for part in parts) == whole.flops
    assert sum(part.bytes for part in parts) == whole.bytes
