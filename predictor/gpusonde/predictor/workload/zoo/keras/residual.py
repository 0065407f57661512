"""Residual networks: PROFET's ResNetSmall and its pre-activation ResNets, and ResNet-50 of keras.applications.

PROFET's ResNet18, 34 and 50 are those of raghakot/keras-resnet: batch normalisation and ReLU in front of each
convolution, biases, and a shortcut of one convolution without normalisation wherever shapes differ. They are not the
networks that keras.applications or torchvision call by these names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpusonde.predictor.workload.graph import WorkloadGraph
from gpusonde.predictor.workload.zoo.keras.layers import Layers, Tensor

Block = Callable[[Layers, Tensor, int, int, bool], Tensor]


def resnet_small(layers: Layers, classes: int) -> WorkloadGraph:
    """PROFET's ResNetSmall: four blocks whose convolutions are all of 1 x 1."""
    x = layers.norm(layers.activation(layers.convolution(layers.image, 64, 7, 2)))
    x = layers.max_pool(x, 3, 2, same=True)
    for filters, stride in ((64, 2), (64, 1), (128, 2), (128, 1)):
        shortcut = x if stride == 1 else layers.norm(layers.convolution(x, filters, 1, stride, same=False))
        x = layers.activation(layers.norm(layers.convolution(x, filters, 1, stride)))
        x = layers.norm(layers.convolution(x, filters, 1))
        x = layers.activation(layers.total(shortcut, x))
    return layers.graph(layers.softmax(layers.dense(layers.global_average(x), classes)))


def basic_block(layers: Layers, x: Tensor, filters: int, stride: int, first: bool) -> Tensor:
    """Two convolutions of 3 x 3, pre-activated unless ``first``."""
    inner = x if first else layers.activation(layers.norm(x))
    inner = layers.convolution(inner, filters, 3, stride)
    return layers.convolution(layers.activation(layers.norm(inner)), filters, 3)


def bottleneck_block(layers: Layers, x: Tensor, filters: int, stride: int, first: bool) -> Tensor:
    """Convolutions of 1 x 1, 3 x 3, 1 x 1 with four times the channels, pre-activated unless ``first``."""
    inner = x if first else layers.activation(layers.norm(x))
    inner = layers.convolution(inner, filters, 1, stride)
    inner = layers.convolution(layers.activation(layers.norm(inner)), filters, 3)
    return layers.convolution(layers.activation(layers.norm(inner)), 4 * filters, 1)


RESNETS: dict[str, tuple[Block, tuple[int, ...]]] = {
    "ResNet18": (basic_block, (2, 2, 2, 2)),
    "ResNet34": (basic_block, (3, 4, 6, 3)),
    "ResNet50": (bottleneck_block, (3, 4, 6, 3)),
}


def preactivation_resnet(layers: Layers, classes: int, block: Block, depths: Sequence[int]) -> WorkloadGraph:
    """ResNet with pre-activation; ``depths`` are the blocks of each stage."""
    x = layers.activation(layers.norm(layers.convolution(layers.image, 64, 7, 2)))
    x = layers.max_pool(x, 3, 2, same=True)
    for stage, depth in enumerate(depths):
        for position in range(depth):
            stride = 2 if stage and not position else 1
            residual = block(layers, x, 64 << stage, stride, not stage and not position)
            shortcut = x
            if x.shape != residual.shape:
                # As its authors do, from the shapes: a map of one pixel is not strided over.
                stride = round(x.shape[2] / residual.shape[2])
                shortcut = layers.convolution(x, residual.channels, 1, stride, same=False)
            x = layers.total(shortcut, residual)
    x = layers.global_average(layers.activation(layers.norm(x)))
    return layers.graph(layers.softmax(layers.dense(x, classes)))


def applications_resnet50(layers: Layers, classes: int) -> WorkloadGraph:
    """ResNet-50 of keras.applications: the original order of layers, convolutions with biases."""
    x = layers.convolution(layers.padded(layers.image, 3, 3), 64, 7, 2, same=False)
    x = layers.activation(layers.norm(x))
    x = layers.max_pool(layers.padded(x, 1, 1), 3, 2)
    for stage, depth in enumerate((3, 4, 6, 3)):
        filters = 64 << stage
        for position in range(depth):
            stride = 2 if stage and not position else 1
            shortcut = x if position else layers.norm(layers.convolution(x, 4 * filters, 1, stride))
            inner = layers.activation(layers.norm(layers.convolution(x, filters, 1, stride)))
            inner = layers.activation(layers.norm(layers.convolution(inner, filters, 3)))
            inner = layers.norm(layers.convolution(inner, 4 * filters, 1))
            x = layers.activation(layers.total(shortcut, inner))
    return layers.graph(layers.softmax(layers.dense(layers.global_average(x), classes)))
