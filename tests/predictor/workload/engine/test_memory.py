"""What a training step holds, and which batches fit."""

import itertools

import pytest

from gpusonde.catalog import Precision, load_gpus
from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.engine import (
    Cluster,
    Fits,
    MemoryFit,
    Optimizer,
    Parallelism,
    StepMemory,
    WorkloadModel,
    WorkloadRequest,
)
from gpusonde.predictor.workload.graph import Operation, Parameter, Primitive, WorkloadGraph

T4 = load_gpus().get("T4").memory_bytes


def perceptron(activation="gelu", batch_size=1):
    """Two linear layers with an activation between them, 1,000 numbers each."""
    shape = (batch_size, 1000)
    weight = (1000, 1000)

    def linear(name):
        return Operation(Primitive.LINEAR, name, shape, (shape,), weight, (Parameter(f"{name}.weight", weight),))

    return WorkloadGraph(
        "perceptron",
        (
            Operation(Primitive.INPUT, "x", shape),
            linear("first"),
            Operation(Primitive.ACTIVATION, "act", shape, (shape,), source=activation),
            linear("second"),
            Operation(Primitive.OUTPUT, "output", shape, (shape,)),
        ),
        tuple((position, position + 1) for position in range(4)),
        batch_size,
    )


# A masked fill keeps nothing, but the second layer keeps what it wrote.
@pytest.mark.parametrize(
    ("activation", "tensors"),
    [("gelu", 3), ("torch.nn.ReLU", 2), ("keras.relu", 2), ("Relu", 2), ("aten.masked_fill", 2)],
)
def test_operations_keep_what_their_derivatives_need(activation, tensors):
    need = StepMemory.of(perceptron(activation), Precision.FP32, Optimizer.SGD).need(10_000)
    # The loss keeps what the network returns, and logarithms of it.
    assert need.activations_bytes == 10_000 * 1000 * 4 * (tensors + 2)
    assert need.weights_bytes == 4 * 2_000_000


def chain(*steps):
    """A network of operations on 1,000 numbers, each reading the one before or those that it names."""
    shape = (1, 1000)
    operations, edges = [Operation(Primitive.INPUT, "x", shape)], []
    for position, (primitive, source, *told) in enumerate(steps, 1):
        read = told[0] if told else (position - 1,)
        weight = told[1] if len(told) > 1 else ()
        parameters = (Parameter(f"{position}.weight", weight),) if weight else ()
        operations.append(
            Operation(primitive, str(position), shape, (shape,) * len(read), weight, parameters, source=source)
        )
        edges += [(each, position) for each in read]
    last = len(operations)
    operations.append(Operation(Primitive.OUTPUT, "output", shape, (shape,)))
    return WorkloadGraph("chain", tuple(operations), (*sorted(edges), (last - 1, last)), 1)


def kept(graph, precision=Precision.FP32):
    return StepMemory.of(graph, precision, Optimizer.SGD).need(10_000).activations_bytes / 10_000_000


def test_a_product_with_what_does_not_learn_keeps_nothing():
    linear = (Primitive.LINEAR, "aten.linear", (0,), (1000, 1000))
    by_constant = (Primitive.PRODUCT, "aten.mul.Tensor")
    assert kept(chain(linear, by_constant)) == kept(chain(linear))
    by_weight = (Primitive.PRODUCT, "aten.mul.Tensor", (1,), (1000,))
    assert kept(chain(linear, by_weight)) == kept(chain(linear)) + 4


def test_a_norm_made_by_hand_in_half_precision_keeps_one_tensor_in_single_and_one_in_half():
    linear = (Primitive.LINEAR, "aten.linear", (0,), (1000, 1000))
    norm = (
        (Primitive.ACTIVATION, "aten.pow.Tensor_Scalar", (1,)),
        (Primitive.ACTIVATION, "aten.rsqrt", (2,)),
        (Primitive.PRODUCT, "aten.mul.Tensor", (1, 3)),
        (Primitive.PRODUCT, "aten.mul.Tensor", (4,), (1000,)),
    )
    # Of x its copy in single precision, once; the root, as large here; the normalised x in half, as weights meet it.
    assert kept(chain(linear, *norm), Precision.BF16) - kept(chain(linear), Precision.BF16) == 4 + 4 + 2


def test_mixed_precision_keeps_copies_in_half_of_weights_and_of_what_products_read():
    need = StepMemory.of(perceptron("gelu"), Precision.MIXED, Optimizer.SGD).need(10_000)
    assert need.weights_bytes == (4 + 2) * 2_000_000
    # The copy of the input, what the activation read and wrote, the output and its logarithms in single precision.
    assert need.activations_bytes == 10_000 * 1000 * (2 + 2 + 2 + 2 + 4)


def test_state_is_that_of_the_optimizer_and_exchange_copies_gradients():
    graph = perceptron()
    found = {each: StepMemory.of(graph, Precision.FP32, each).need(1) for each in Optimizer}
    weights = found[Optimizer.SGD].weights_bytes
    assert [found[each].optimizer_bytes / weights for each in Optimizer] == [0, 1, 2]
    # Without activations to speak of, the update is the peak: gradients, and AdamW's roots of all second moments.
    assert found[Optimizer.ADAMW].gradients_bytes == weights
    assert found[Optimizer.ADAMW].workspace_bytes - found[Optimizer.SGD].workspace_bytes == pytest.approx(
        weights, rel=0.1
    )
    several = StepMemory.of(graph, Precision.FP32, Optimizer.SGD, buckets=True).need(1)
    assert several.weights_bytes == 2 * weights


def test_the_batch_that_the_graph_was_read_with_does_not_matter():
    one, many = (StepMemory.of(perceptron(batch_size=each), Precision.FP32, Optimizer.ADAMW) for each in (1, 8))
    assert one.need(16) == many.need(16)
    assert one.largest_batch(T4) == many.largest_batch(T4)


@pytest.mark.parametrize(
    "name", ["resnet50", "densenet121", "efficientnet_b0", "vit_b_16", "swin_t", "transformer_encoder"]
)
@pytest.mark.parametrize("precision", list(Precision))
def test_the_largest_batch_is_the_last_that_fits(name, precision):
    memory = StepMemory.of(zoo.load(name), precision, Optimizer.ADAMW)
    largest = memory.largest_batch(T4)
    beside = 0.95 * T4
    assert memory.need(largest).total_bytes <= beside < memory.need(largest + 1).total_bytes
    assert memory.largest_batch_checkpointed(T4) >= 1.5 * largest
    order = [Fits.YES, Fits.LIKELY, Fits.UNKNOWN, Fits.NO]
    words = [memory.fit(batch, T4).fits for batch in range(1, 3 * largest, max(1, largest // 7))]
    assert words == sorted(words, key=order.index)
    assert (words[0], words[-1]) == (Fits.YES, Fits.NO)
    assert memory.fit(largest, T4).fits is Fits.LIKELY
    assert memory.fit(largest + 1, T4).fits is Fits.UNKNOWN


def test_half_precision_and_lesser_optimizers_never_take_more():
    graph = zoo.load("vit_b_16")
    for optimizer, batch in itertools.product(Optimizer, (1, 32)):
        single, half = (StepMemory.of(graph, each, optimizer).need(batch) for each in (Precision.FP32, Precision.BF16))
        assert half.total_bytes < single.total_bytes
    for precision in Precision:
        totals = [StepMemory.of(graph, precision, each).need(32).total_bytes for each in Optimizer]
        assert totals == sorted(totals)


@pytest.mark.parametrize(
    ("name", "precision", "batch"),
    [
        # NVIDIA's DeepLearningExamples train ResNet-50 with 256 in mixed precision, 128 in single on cards of 16 GB.
        ("resnet50", Precision.MIXED, 256),
        ("resnet50", Precision.FP32, 128),
    ],
)
def test_batches_that_were_published_fit(name, precision, batch):
    found = StepMemory.of(zoo.load(name), precision, Optimizer.MOMENTUM).fit(batch, T4)
    assert found.fits in (Fits.YES, Fits.LIKELY)
    assert batch <= found.largest_batch <= 2 * batch


def test_nothing_fits_where_the_weights_do_not():
    memory = StepMemory.of(perceptron(), Precision.FP32, Optimizer.ADAMW)
    found = memory.fit(1, 400 * 2**20)
    assert (found.fits, found.largest_batch, found.largest_batch_checkpointed) == (Fits.NO, 0, 0)


def test_answers_tell_it_and_say_what_would_fit():
    graph = zoo.load("resnet50")
    requests = [
        WorkloadRequest(graph, batch, Cluster("T4", precision=Precision.MIXED), Optimizer.MOMENTUM)
        for batch in (32, 2048)
    ]
    good, bad = WorkloadModel.shipped().predict(requests)
    assert good.memory.fits is Fits.YES
    assert not any("memory" in reason for reason in good.reasons)
    assert bad.memory.fits is Fits.NO
    (reason,) = (each for each in bad.reasons if "memory" in each)
    assert str(bad.memory.largest_batch) in reason
    assert f"batches up to {bad.memory.largest_batch_checkpointed}" in reason
    assert MemoryFit.from_document(bad.memory.document()).document() == bad.memory.document()


def test_a_process_per_device_takes_more_than_one_device_alone():
    graph = zoo.load("vgg16")
    alone, shared = WorkloadModel.shipped().predict(
        [
            WorkloadRequest(graph, 32, Cluster("T4")),
            WorkloadRequest(graph, 32, Cluster("T4", 4, parallelism=Parallelism.DISTRIBUTED)),
        ]
    )
    assert shared.memory.need.total_bytes == alone.memory.need.total_bytes + 4 * graph.parameter_count
