import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.embedding_graphs import any_graph

from gpusonde.predictor.workload.embedding import Encoder, EncoderDescription, EncoderWeights, VirtualEdgeRule
from gpusonde.predictor.workload.graph import Operation, Parameter, Primitive, WorkloadGraph

torch = pytest.importorskip("torch")

from gpusonde.predictor.workload.training.hypernetwork import (  # noqa: E402
    DecoderSettings,
    GraphHyperNetwork,
    PlannedTensor,
    TensorKind,
    TorchEncoder,
    plan_tensors,
)

CLASSES = 10


def layer(primitive, name, weight, *, bias=True, source=""):
    parameters = [Parameter(f"{name}.weight", weight)] + [Parameter(f"{name}.bias", weight[:1])] * bias
    return Operation(primitive, name, (1, weight[0]), weight=weight, parameters=tuple(parameters), source=source)


def plain(primitive, name, source=""):
    return Operation(primitive, name, (1, 8), source=source)


def convolutional():
    """Convolution, norm, ReLU, convolution beside a gate, classifier."""
    operations = (
        plain(Primitive.INPUT, "input"),
        layer(Primitive.CONVOLUTION, "first", (40, 3, 3, 3), bias=False),
        layer(Primitive.BATCH_NORM, "norm", (40,)),
        plain(Primitive.ACTIVATION, "relu", "relu"),
        layer(Primitive.DEPTHWISE_CONVOLUTION, "depthwise", (40, 1, 7, 7)),
        layer(Primitive.CONVOLUTION, "gate", (40, 40, 1, 1)),
        plain(Primitive.ACTIVATION, "sigmoid", "sigmoid"),
        plain(Primitive.PRODUCT, "product"),
        layer(Primitive.LINEAR, "hidden", (10, 40)),
        layer(Primitive.LINEAR, "classifier", (10, 10)),
        plain(Primitive.OUTPUT, "output"),
    )
    edges = ((0, 1), (1, 2), (2, 3), (3, 4), (3, 5), (4, 7), (5, 6), (6, 7), (7, 8), (8, 9), (9, 10))
    return WorkloadGraph("network", operations, edges, 1)


@settings(max_examples=40, deadline=None)
@given(st.lists(any_graph(), min_size=1, max_size=4), st.sampled_from(VirtualEdgeRule), st.sampled_from([1, 2]))
def test_the_encoder_in_torch_is_the_one_without(graphs, rule, passes):
    weights = EncoderWeights.random(2, EncoderDescription(virtual_edges=rule, passes=passes))
    twin = TorchEncoder(weights)
    structures = [twin.structure(graph) for graph in graphs]
    with torch.no_grad():
        states = twin(structures).split([each.node_count for each in structures])
    found = np.array([part.mean(0).numpy() for part in states])
    np.testing.assert_allclose(found, Encoder(weights).embed(graphs), rtol=0, atol=1e-5)


def test_training_changes_every_weight_of_the_encoder_and_they_come_back_out():
    weights = EncoderWeights.random(0)
    network = GraphHyperNetwork(weights, CLASSES)
    unchanged = network.encoder_weights("", 0)
    assert unchanged.sha256 == weights.sha256
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    (tensors,) = network([network.prepare(convolutional())])
    sum(tensor.square().sum() for tensor in tensors.values()).backward()
    optimizer.step()
    trained = network.encoder_weights("digits", 1)
    assert (trained.description.dataset_type, trained.description.training_steps) == ("digits", 1)
    assert [name for name, array in trained.arrays.items() if np.array_equal(array, weights.arrays[name])] == []
    assert TorchEncoder(trained).export("digits", 1).sha256 == trained.sha256


def test_weights_that_diverged_are_not_exported():
    network = GraphHyperNetwork(EncoderWeights.random(0), CLASSES)
    with torch.no_grad():
        network.encoder.arrays["norm_bias"][0] = torch.nan
    with pytest.raises(ValueError, match="finite"):
        network.encoder_weights("digits", 1)


def test_an_encoder_of_another_vocabulary_is_not_trained_further():
    names = tuple(each.value for each in Primitive)[:-1]
    with pytest.raises(ValueError, match="vocabulary"):
        TorchEncoder(EncoderWeights.random(0, EncoderDescription(primitives=names)))


def test_kinds_and_scales_of_tensors_follow_the_operation():
    planned = {each.name: each for each in plan_tensors(convolutional(), CLASSES)}
    kinds = {name: each.kind for name, each in planned.items()}
    assert kinds["first.weight"] is TensorKind.WEIGHT
    assert kinds["norm.weight"] is TensorKind.NORM_WEIGHT
    assert kinds["norm.bias"] is TensorKind.BIAS
    # The last layer with as many outputs as classes, and no earlier one.
    assert kinds["hidden.weight"] is TensorKind.WEIGHT
    assert kinds["classifier.weight"] is TensorKind.CLASSIFIER_WEIGHT
    assert kinds["classifier.bias"] is TensorKind.CLASSIFIER_BIAS
    betas = {name: each.beta for name, each in planned.items() if name.endswith(".weight")}
    assert betas["first.weight"] == 2.0, "a ReLU follows, behind a norm"
    assert betas["depthwise.weight"] == betas["gate.weight"] == betas["classifier.weight"] == 1.0
    assert planned["first.weight"].scale == pytest.approx((2 / 27) ** 0.5)
    assert planned["depthwise.weight"].scale == pytest.approx((1 / 49) ** 0.5)


@pytest.mark.parametrize(
    "shape",
    [
        (3, 2),
        (64, 200),
        (1, 1),
        (33, 5, 1, 1),
        (64, 70, 3, 3),
        (8, 1, 11, 11),
        (8, 4, 1, 7),
        (8, 4, 3),
        (2, 3, 3, 3, 3),
    ],
)
def test_weights_of_any_shape_are_made_from_the_tile(shape):
    network = GraphHyperNetwork(EncoderWeights.random(0), CLASSES)
    planned = PlannedTensor(0, "weight", shape, TensorKind.WEIGHT)
    with torch.no_grad():
        (made,) = network.decoder(torch.randn(1, 32), [planned])
    assert made.shape == shape
    assert torch.isfinite(made).all()
    # Wider tensors repeat the tile.
    if shape[0] > 32:
        assert torch.equal(made[32:], made[: shape[0] - 32])


def test_norms_and_biases_stay_in_their_ranges():
    network = GraphHyperNetwork(EncoderWeights.random(0), CLASSES)
    planned = [
        PlannedTensor(0, "a", (100,), TensorKind.NORM_WEIGHT),
        PlannedTensor(1, "b", (100,), TensorKind.BIAS),
        PlannedTensor(2, "c", (), TensorKind.NORM_WEIGHT),
        PlannedTensor(2, "d", (CLASSES,), TensorKind.CLASSIFIER_BIAS),
    ]
    with torch.no_grad():
        weight, bias, scalar, class_bias = network.decoder(100 * torch.randn(3, 32), planned)
    assert (weight.min(), weight.max()) >= (0, 0)
    assert weight.max() <= 2
    assert bias.abs().max() <= 1
    assert scalar.shape == ()
    assert class_bias.shape == (CLASSES,)


def test_what_is_predicted_does_not_depend_on_the_other_graphs_of_the_batch():
    network = GraphHyperNetwork(EncoderWeights.random(0), CLASSES, DecoderSettings(tile=8, extent=3))
    one = network.prepare(convolutional())
    shorter = convolutional()
    other = network.prepare(dataclasses.replace(shorter, edges=tuple(edge for edge in shorter.edges if edge != (3, 5))))
    with torch.no_grad():
        alone = network([one])[0]
        together = network([other, one])
    assert list(alone) == [parameter.name for each in convolutional().operations for parameter in each.parameters]
    for name, tensor in alone.items():
        torch.testing.assert_close(together[1][name], tensor, atol=1e-5, rtol=0)
    assert any(not torch.allclose(together[0][name], tensor, atol=1e-3) for name, tensor in alone.items())


def test_at_first_every_class_is_as_likely():
    torch.manual_seed(0)
    network = GraphHyperNetwork(EncoderWeights.random(0), CLASSES)
    with torch.no_grad():
        (tensors,) = network([network.prepare(convolutional())])
    assert float(tensors["classifier.weight"].std()) < 0.3 * float(tensors["hidden.weight"].std())
