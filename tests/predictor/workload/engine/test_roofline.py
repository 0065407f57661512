"""Counts of a step, and what they would take at the peaks of a data sheet."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import numpy as np
import pytest
from support.measured_workloads import chain

from gpusonde.catalog import Precision
from gpusonde.predictor.workload.engine import Cluster, Parallelism
from gpusonde.predictor.workload.engine.feature_counts import CountsCache, GraphCounts, OperationClass
from gpusonde.predictor.workload.engine.features import (
    ANALYTIC,
    CLUSTER_COLUMNS,
    ROOFLINE_COLUMNS,
    DeviceRates,
    Encoding,
    FeatureBuilder,
    StepPart,
    add_up_networks,
    compute_roofline_parts,
)
from gpusonde.predictor.workload.engine.request import WorkloadRequest
from gpusonde.predictor.workload.graph import Operation, Parameter, Primitive, WorkloadGraph

IMAGE, HIDDEN, FILTERS = (2, 3, 8, 8), (2, 16, 8, 8), (16, 3, 3, 3)
ONE_CONVOLUTION = WorkloadGraph(
    "one",
    (
        Operation(Primitive.INPUT, "x", IMAGE),
        Operation(Primitive.CONVOLUTION, "c", HIDDEN, (IMAGE,), FILTERS, (Parameter("w", FILTERS),)),
        Operation(Primitive.ACTIVATION, "r", HIDDEN, (HIDDEN,)),
    ),
    ((0, 1), (1, 2)),
    2,
)


def parts(graph, batch, cluster, catalog):
    rates = DeviceRates.of(catalog.get(cluster.device), cluster.precision)
    return compute_roofline_parts(GraphCounts.of(graph), batch, cluster, rates)


def test_a_step_is_three_forward_passes_of_a_convolution_and_two_of_the_rest():
    counts = GraphCounts.of(ONE_CONVOLUTION)
    forward = 2 * 16 * 8 * 8 * 3 * 9  # per sample, a multiply-add is two
    assert counts.flops(5)[0] == 3 * 5 * forward
    assert counts.bytes(5)[0] == 3 * 4 * (5 * (3 + 16) * 64 + 16 * 27)
    assert counts.bytes(5)[1] == 2 * 4 * 5 * 2 * 16 * 64
    assert counts.launches == 3 + 2 + 1
    assert (counts.input_bytes, counts.weight_bytes, counts.layers) == (4 * 3 * 64, 4 * 16 * 27, 1)
    assert counts.classes.tolist() == [OperationClass.CONVOLUTION, OperationClass.ACTIVATION]


def test_a_forward_pass_reads_and_writes_each_activation_once():
    step, forward = (GraphCounts.of(ONE_CONVOLUTION, each) for each in (False, True))
    convolution, activation = (forward.bytes(5) / step.bytes(5)).tolist()
    assert convolution == pytest.approx(1 / 3)
    assert activation == pytest.approx(2 / 5)
    # One kernel each; a step has those of gradients and of the update besides.
    assert forward.launches == 2


def test_a_forward_pass_pays_a_third_of_what_a_step_pays_once(catalog):
    rates = DeviceRates.of(catalog.get("T4"), Precision.FP32)
    counts = [GraphCounts.of(ONE_CONVOLUTION, only) for only in (False, True)]
    step, forward = (compute_roofline_parts(each, 16, Cluster("T4"), rates) for each in counts)
    assert forward[StepPart.FIXED] == pytest.approx(step[StepPart.FIXED] / 3)
    assert forward[StepPart.LAUNCH] == pytest.approx(step[StepPart.LAUNCH] / 3)


def test_an_executor_of_graphs_starts_kernels_in_half_the_time_and_changes_nothing_else(catalog):
    two = Cluster("T4", 2, parallelism=Parallelism.DATA_PARALLEL)
    eager = parts(ONE_CONVOLUTION, 16, two, catalog)
    graph = parts(ONE_CONVOLUTION, 16, dataclasses.replace(two, graph_launch=True), catalog)
    launches = [StepPart.LAUNCH, StepPart.REPLICAS]
    np.testing.assert_allclose(graph[launches], eager[launches] / 2)
    np.testing.assert_array_equal(np.delete(graph, launches), np.delete(eager, launches))


def test_a_part_that_is_next_to_nothing_of_a_step_is_as_good_as_none_to_a_regressor(catalog):
    table = FeatureBuilder(catalog).table([WorkloadRequest(ONE_CONVOLUTION, 64, Cluster("T4"))] * 2)
    table.parts[0, StepPart.SOFTMAX] *= 100
    assert table.parts[0, StepPart.SOFTMAX] < 1e-4 * table.parts[0].sum()
    columns = Encoding.of(table, ANALYTIC).columns(table)
    np.testing.assert_allclose(columns[0], columns[1], rtol=1e-5)
    table.parts[0, StepPart.SOFTMAX] = table.parts[0].sum() / 100
    assert not np.allclose(*Encoding.of(table, ANALYTIC).columns(table), rtol=1e-2)


def test_products_of_matrices_run_at_base_clock_and_convolutions_at_the_peak(catalog):
    for name, base, boost in (("T4", 585, 1590), ("A100-SXM4-40GB", 1095, 1410)):
        rates = DeviceRates.of(catalog.get(name), Precision.FP16)
        peak = 1e12 * catalog.get(name).tensor_fp16_tflops
        assert rates.matrix_flops == pytest.approx(peak * base / boost)
        assert rates.convolution_flops == pytest.approx(peak)


def test_the_batch_that_shapes_were_taken_with_does_not_matter():
    def doubled(shape):
        return (2 * shape[0], *shape[1:])

    larger = dataclasses.replace(
        ONE_CONVOLUTION,
        batch_size=4,
        operations=tuple(
            dataclasses.replace(each, output=doubled(each.output), inputs=tuple(map(doubled, each.inputs)))
            for each in ONE_CONVOLUTION.operations
        ),
    )
    one, other = GraphCounts.of(ONE_CONVOLUTION), GraphCounts.of(larger)
    np.testing.assert_array_equal(one.flops(3), other.flops(3))
    np.testing.assert_array_equal(one.bytes(3), other.bytes(3))


def test_only_convolutions_of_stride_1_with_3_by_3_kernels_have_faster_algorithms():
    def has(kernel, extent):
        shape = (1, 8, extent, extent)
        convolution = Operation(Primitive.CONVOLUTION, "c", shape, ((1, 8, 8, 8),), (8, 8, *kernel))
        graph = WorkloadGraph("g", (Operation(Primitive.INPUT, "x", (1, 8, 8, 8)), convolution), ((0, 1),), 1)
        return bool(GraphCounts.of(graph).dense_kernel[0])

    assert has((3, 3), 8)
    assert has((3, 3), 6)
    assert not has((3, 3), 4)
    assert not has((1, 1), 8)
    assert not has((5, 5), 8)


def convolution_of(read, written):
    before, after, weight = (2, read, 8, 8), (2, written, 8, 8), (written, read, 1, 1)
    convolution = Operation(Primitive.CONVOLUTION, "c", after, (before,), weight, (Parameter("w", weight),))
    return WorkloadGraph("g", (Operation(Primitive.INPUT, "x", before), convolution), ((0, 1),), 2)


@pytest.mark.parametrize(
    ("read", "written", "times"), [(64, 32, 1.0), (64, 48, (2 * 64 / 48 + 1) / 3), (3, 32, (1 + 1 + 32 / 3) / 3)]
)
def test_channels_that_do_not_fill_their_last_tile_cost_as_much_as_if_they_did(read, written, times):
    assert GraphCounts.of(convolution_of(read, written)).padding[0] == pytest.approx(times)


def test_only_channels_innermost_in_half_precision_are_copied_to_fill_up_eights(catalog):
    fast = Cluster("T4", precision=Precision.MIXED, channels_last=True)
    odd, even = (parts(convolution_of(64, written), 16, fast, catalog) for written in (60, 64))
    assert odd[StepPart.UNALIGNED] > 100 * even[StepPart.UNALIGNED]
    for other in (Cluster("T4", precision=Precision.MIXED), Cluster("T4", channels_last=True)):
        assert parts(convolution_of(64, 60), 16, other, catalog)[StepPart.UNALIGNED] == even[StepPart.UNALIGNED]


def grouped_of(primitive, groups, kernel):
    shape, weight = (2, 64, 8, 8), (64, 64 // groups, kernel, kernel)
    convolution = Operation(primitive, "c", shape, (shape,), weight, (Parameter("w", weight),))
    return WorkloadGraph("g", (Operation(Primitive.INPUT, "x", shape), convolution), ((0, 1),), 2)


@pytest.mark.parametrize(
    ("primitive", "groups", "kernel", "own", "otherwise"),
    [
        (Primitive.GROUPED_CONVOLUTION, 1, 3, StepPart.WIDE, StepPart.GROUPED),
        (Primitive.GROUPED_CONVOLUTION, 2, 3, StepPart.GROUPED, StepPart.GROUPED),
        (Primitive.DEPTHWISE_CONVOLUTION, 64, 9, StepPart.UNTUNED, StepPart.DEPTHWISE),
        (Primitive.DEPTHWISE_CONVOLUTION, 64, 7, StepPart.DEPTHWISE, StepPart.DEPTHWISE),
    ],
)
def test_wide_groups_and_large_depthwise_kernels_have_factors_of_their_own(
    catalog, primitive, groups, kernel, own, otherwise
):
    graph = grouped_of(primitive, groups, kernel)
    for last, part in ((True, own), (False, otherwise)):
        found = parts(graph, 512, Cluster("T4", precision=Precision.MIXED, channels_last=last), catalog)
        convolutions = (StepPart.GROUPED, StepPart.WIDE, StepPart.UNTUNED, StepPart.DEPTHWISE)
        assert max(convolutions, key=lambda each: found[each]) == part


def test_fused_attention_in_single_precision_makes_three_products_in_tf32_for_each(catalog):
    for precision in (Precision.FP32, Precision.TF32):
        ampere = DeviceRates.of(catalog.get("A100-SXM4-40GB"), precision)
        tf32 = DeviceRates.of(catalog.get("A100-SXM4-40GB"), Precision.TF32)
        assert ampere.attention_flops == pytest.approx(tf32.matrix_flops / 3)
    for name, precision in (("A100-SXM4-40GB", Precision.FP16), ("T4", Precision.FP32), ("T4", Precision.MIXED)):
        rates = DeviceRates.of(catalog.get(name), precision)
        assert rates.attention_flops == rates.matrix_flops


def one_of(primitive, inputs, output):
    operation = Operation(primitive, "o", output, inputs)
    return WorkloadGraph("g", (Operation(Primitive.INPUT, "x", inputs[0]), operation), ((0, 1),), inputs[0][0])


@pytest.mark.parametrize(("channels", "times"), [(64, 1.0), (40, 64 / 40), (80, 96 / 80), (160, 1.0)])
def test_fused_attention_fills_the_channels_of_a_head(channels, times):
    heads = (2, 8, 256, channels)
    assert GraphCounts.of(one_of(Primitive.ATTENTION, (heads,) * 3, heads)).padding[0] == pytest.approx(times)


@pytest.mark.parametrize(
    ("tokens", "precision", "part"),
    [
        (197, Precision.MIXED, StepPart.UNEVEN),
        (196, Precision.FP16, StepPart.UNEVEN),
        (200, Precision.MIXED, StepPart.THIN),
        (197, Precision.FP32, StepPart.LINEAR),
    ],
)
def test_scores_of_rows_that_are_no_multiple_of_eight_are_apart_in_half_precision(catalog, tokens, precision, part):
    inputs, scores = ((2, 12, tokens, 64), (2, 12, 64, tokens)), (2, 12, tokens, tokens)
    found = parts(one_of(Primitive.MATRIX_PRODUCT, inputs, scores), 64, Cluster("T4", precision=precision), catalog)
    assert max((StepPart.LINEAR, StepPart.THIN, StepPart.UNEVEN), key=lambda each: found[each]) == part


def test_norms_of_groups_bring_channels_into_order_where_these_are_innermost(catalog):
    image = (2, 64, 16, 16)
    graph = one_of(Primitive.OTHER_NORM, (image,), image)
    last, first = (
        parts(graph, 64, Cluster("T4", precision=Precision.FP16, channels_last=each), catalog) for each in (True, False)
    )
    assert last[StepPart.LAYOUT] == pytest.approx(last[StepPart.GROUPWISE])
    assert last[StepPart.LAYOUT] > 1000 * first[StepPart.LAYOUT]


def test_norms_of_rows_softmax_and_norms_of_groups_are_one_kind_of_network_with_times_of_their_own(catalog):
    image = (2, 64, 16, 16)
    kinds = (Primitive.LAYER_NORM, Primitive.SOFTMAX, Primitive.OTHER_NORM)
    requests = [WorkloadRequest(one_of(each, (image,), image), 16, Cluster("T4")) for each in kinds]
    table = FeatureBuilder(catalog).table(requests)
    assert (table.network == table.network[0]).all()
    slowest = table.parts[:, [StepPart.ROWWISE, StepPart.SOFTMAX, StepPart.GROUPWISE]].argmax(axis=1)
    assert slowest.tolist() == [0, 1, 2]


def test_a_regressor_is_told_of_a_network_whatever_its_batch_and_of_the_batch_apart(catalog):
    image = (2, 64, 16, 16)
    graph = one_of(Primitive.LAYER_NORM, (image,), image)
    table = FeatureBuilder(catalog).table([WorkloadRequest(graph, batch, Cluster("T4")) for batch in (1, 64)])
    encoding = Encoding.of(table, ANALYTIC)
    differ = np.flatnonzero(np.ptp(encoding.columns(table), axis=0) > 0)
    first = len(CLUSTER_COLUMNS) + len(ROOFLINE_COLUMNS)
    assert CLUSTER_COLUMNS.index("log_batch") in differ
    assert differ.max() < first < encoding.columns(table).shape[1] - encoding.names


def test_matrix_products_use_tensor_cores_where_the_framework_does(catalog):
    turing, ampere = catalog.get("T4"), catalog.get("A100-SXM4-40GB")
    turing_held, ampere_held = (1e12 * each.base_clock_mhz / each.boost_clock_mhz for each in (turing, ampere))
    by_default = DeviceRates.of(ampere, Precision.FP32)
    assert by_default.matrix_flops == pytest.approx(ampere_held * ampere.fp32_tflops)
    assert by_default.convolution_flops == pytest.approx(1e12 * ampere.tensor_tf32_tflops)
    assert DeviceRates.of(ampere, Precision.TF32).matrix_flops == pytest.approx(ampere_held * ampere.tensor_tf32_tflops)
    assert DeviceRates.of(turing, Precision.BF16).matrix_flops <= turing_held * turing.fp32_tflops * 1.001
    assert DeviceRates.of(turing, Precision.FP32).matrix_flops <= turing_held * turing.fp32_tflops * 1.001
    assert DeviceRates.of(turing, Precision.FP16).matrix_flops == pytest.approx(turing_held * turing.tensor_fp16_tflops)
    assert DeviceRates.of(ampere, Precision.FP64).vector_flops == pytest.approx(1e12 * ampere.fp64_tflops)


def test_sockets_exchange_over_nvlink_and_cards_over_the_bus(catalog):
    socket = DeviceRates.of(catalog.get("A100-SXM4-40GB"), Precision.FP32)
    card = DeviceRates.of(catalog.get("RTX 2080 Ti"), Precision.FP32)
    assert socket.link_bytes > 5 * socket.host_bytes
    assert card.link_bytes == card.host_bytes


def test_parts_follow_the_batch_the_precision_and_the_devices(catalog):
    graph, alone = chain(64, 8), Cluster("T4")
    one = parts(graph, 16, alone, catalog)
    assert (one > 0).all()
    twice = parts(graph, 32, alone, catalog)
    assert twice[StepPart.MEMORY] == pytest.approx(2 * one[StepPart.MEMORY])
    assert twice[StepPart.LAUNCH] == one[StepPart.LAUNCH]
    assert twice[StepPart.UPDATE] == one[StepPart.UPDATE]
    half = parts(graph, 16, Cluster("T4", precision=Precision.FP16), catalog)
    assert half[StepPart.MEMORY] == pytest.approx(one[StepPart.MEMORY] / 2)
    several = parts(graph, 16, Cluster("T4", 4, parallelism=Parallelism.DATA_PARALLEL), catalog)
    assert several[StepPart.REPLICAS] == pytest.approx(3 * one[StepPart.LAUNCH])
    assert several[StepPart.INPUT] == pytest.approx(4 * one[StepPart.INPUT])
    assert several[StepPart.EXCHANGE] > 1000 * one[StepPart.EXCHANGE]
    spread = parts(graph, 16, Cluster("T4", 4, 2, parallelism=Parallelism.DISTRIBUTED), catalog)
    assert spread[StepPart.EXCHANGE] > several[StepPart.EXCHANGE]
    assert spread[StepPart.REPLICAS] == one[StepPart.REPLICAS]


def test_a_graph_is_counted_once_while_it_lives():
    cache = CountsCache(GraphCounts.of, limit=2)
    graphs = [chain(8, depth) for depth in (1, 2, 3)]
    first = cache.get(graphs[0])
    assert cache.get(graphs[0]) is first
    cache.get(graphs[1])
    cache.get(graphs[2])
    assert cache.get(graphs[0]) is not first  # the oldest made room
    del graphs
    gc.collect()
    again = chain(8, 5)
    assert len(cache.get(again).classes) == len(GraphCounts.of(again).classes)


def test_counts_of_graphs_that_nobody_holds_do_not_pile_up():
    kept = []

    def count(graph):
        counts = GraphCounts.of(graph)
        kept.append(weakref.ref(counts))
        return counts

    cache = CountsCache(count, limit=100)
    for depth in range(1, 10):
        cache.get(chain(8, depth))
        gc.collect()
    assert sum(each() is not None for each in kept) == 1


def test_totals_of_a_network_are_those_of_its_graph(catalog):
    graph = chain(64, 8)
    table = FeatureBuilder(catalog).table([WorkloadRequest(graph, 16, Cluster("T4"))])
    weights = np.expm1(add_up_networks(table.network)[0, 2]) * 1e5
    assert weights == pytest.approx(4 * graph.parameter_count)
