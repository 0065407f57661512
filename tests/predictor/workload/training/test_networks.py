import random

import pytest

torch = pytest.importorskip("torch")

from gpusonde.predictor.workload.embedding import EncoderWeights  # noqa: E402
from gpusonde.predictor.workload.graph import Primitive  # noqa: E402
from gpusonde.predictor.workload.graph.cost import count_graph_cost  # noqa: E402
from gpusonde.predictor.workload.graph.torch import from_torch  # noqa: E402
from gpusonde.predictor.workload.training.architectures import (  # noqa: E402
    Activation,
    ArchitectureSpace,
    ArchitectureSpec,
    BlockKind,
    Cell,
    Head,
    Norm,
    Style,
    Wire,
    sample,
)
from gpusonde.predictor.workload.training.hypernetwork import GraphHyperNetwork  # noqa: E402
from gpusonde.predictor.workload.training.networks import GeneratedNetwork  # noqa: E402

CLASSES = 7


def built(spec, channels=3, side=8):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = GeneratedNetwork(spec, channels, side, CLASSES)
    return network, from_torch(network, torch.zeros(2, channels, side, side))


def of_block(block, head=Head.POOL, norm=Norm.BATCH):
    node = (Wire(block, 0),)
    cells = (
        Cell((node,)),
        Cell((node, (Wire(block, 1), Wire(BlockKind.SKIP, 0))), 2, concatenated=True, residual=True),
    )
    return ArchitectureSpec(Style.MIXED, 16, 32, 1, norm, Activation.RELU, head, head is Head.POOL, cells)


def check(spec, channels=3, side=8):
    """The graph names every parameter of the network once, and the network runs on predicted ones."""
    network, graph = built(spec, channels, side)
    named = {each.name: each.shape for operation in graph.operations for each in operation.parameters}
    assert named == {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}
    assert not list(network.buffers()), "no statistics that belong to other weights"
    assert not [each.source for each in graph.operations if each.primitive is Primitive.OTHER]
    hypernetwork = GraphHyperNetwork(EncoderWeights.random(0), CLASSES)
    (tensors,) = hypernetwork([hypernetwork.prepare(graph)])
    scores = torch.func.functional_call(network, tensors, (torch.randn(4, channels, side, side),))
    assert scores.shape == (4, CLASSES)
    assert torch.isfinite(scores).all()
    torch.nn.functional.cross_entropy(scores, torch.arange(4)).backward()
    missing = [name for name, each in hypernetwork.named_parameters() if each.grad is None]
    assert all("classify" in name or "fill" not in name for name in missing)
    return graph


@pytest.mark.parametrize("block", BlockKind)
def test_every_block_becomes_a_graph_and_runs_with_predicted_weights(block):
    check(of_block(block))


@pytest.mark.parametrize("head", Head)
@pytest.mark.parametrize("norm", Norm)
def test_every_head_and_norm_does(head, norm):
    check(of_block(BlockKind.CONVOLUTION_3, head, norm))


@pytest.mark.parametrize(("channels", "side"), [(1, 4), (1, 8), (3, 32), (3, 70)])
def test_random_architectures_do_for_images_of_any_size(channels, side):
    generator, space = random.Random(0), ArchitectureSpace.for_images(side)
    for _ in range(5):
        check(sample(generator, space), channels, side)


def test_the_estimated_size_of_an_architecture_is_about_that_of_its_graph():
    generator, space = random.Random(1), ArchitectureSpace()
    for _ in range(15):
        spec = sample(generator, space)
        _, graph = built(spec, channels=1)
        work, operations = spec.size(space.side)
        matrix_flops = count_graph_cost(graph).per_sample.matrix_flops
        assert operations == pytest.approx(len(graph.operations), rel=0.3, abs=8)
        assert 2 * work == pytest.approx(matrix_flops, rel=0.5, abs=2e5)
