"""Networks that are one row of layers: LeNet-5, the examples of the Keras pages, AlexNet, VGG.

Their layers are PROFET's (``data_generation/workload/model_info.py`` of ddps-lab/profet, MIT), which measured them.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpusonde.predictor.workload.graph import WorkloadGraph
from gpusonde.predictor.workload.zoo.keras.layers import Layers, Tensor


def lenet5(layers: Layers, classes: int) -> WorkloadGraph:
    """LeNet-5 with ReLU and max pooling."""
    x = layers.image
    for filters in (6, 16):
        x = layers.activation(layers.convolution(x, filters, 5, same=False))
        x = layers.max_pool(x)
    return _head(layers, x, (120, 84), classes)


def mnist_cnn(layers: Layers, classes: int) -> WorkloadGraph:
    """The convolutional network of the Keras page on MNIST."""
    x = layers.image
    for filters in (32, 64):
        x = layers.activation(layers.convolution(x, filters, 3, same=False))
        x = layers.max_pool(x)
    return _head(layers, x, (), classes)


def cifar10_cnn(layers: Layers, classes: int) -> WorkloadGraph:
    """The convolutional network of the Keras example on CIFAR-10."""
    x = layers.image
    for filters in (32, 64):
        x = layers.activation(layers.convolution(x, filters, 3))
        x = layers.activation(layers.convolution(x, filters, 3, same=False))
        x = layers.max_pool(x)
    return _head(layers, x, (512,), classes)


def flower_cnn(layers: Layers, classes: int) -> WorkloadGraph:
    """The network of the TensorFlow page on flowers; it ends without softmax."""
    x = layers.image
    for filters in (16, 32, 64):
        x = layers.activation(layers.convolution(x, filters, 3))
        x = layers.max_pool(x)
    x = layers.activation(layers.dense(layers.flat(x), 128))
    return layers.graph(layers.dense(x, classes))


def alexnet(layers: Layers, classes: int) -> WorkloadGraph:
    """AlexNet as PROFET has it: batch normalisation, stride 1 in the first layer, 512 and 1024 channels."""
    x = layers.image
    # Filters, kernel, pixels of padding on each side, whether a pool follows.
    stages = ((96, 11, 0, True), (256, 5, 0, True), (512, 3, 1, True), (1024, 3, 1, False), (1024, 3, 1, True))
    for filters, kernel, pad, pooled in stages:
        x = layers.convolution(layers.padded(x, pad, pad), filters, kernel)
        x = layers.activation(layers.norm(x))
        if pooled:
            x = layers.max_pool(x)
    x = layers.flat(x)
    for units in (3072, 4096):
        x = layers.activation(layers.norm(layers.dense(x, units)))
    return layers.graph(layers.softmax(layers.norm(layers.dense(x, classes))))


VGG_DEPTHS = {
    "VGG11": (1, 1, 2, 2, 2),
    "VGG13": (2, 2, 2, 2, 2),
    "VGG16": (2, 2, 3, 3, 3),
    "VGG19": (2, 2, 4, 4, 4),
}


def vgg(layers: Layers, classes: int, depths: Sequence[int]) -> WorkloadGraph:
    """VGG without batch normalisation; ``depths`` are the convolutions before each pooling."""
    return _vgg(layers, classes, depths, 64, 512, (4096, 4096))


def vgg_small(layers: Layers, classes: int) -> WorkloadGraph:
    """PROFET's VGGSmall: three pairs of convolutions."""
    return _vgg(layers, classes, (2, 2, 2), 32, 128, (1024, 1024))


def _vgg(
    layers: Layers, classes: int, depths: Sequence[int], first: int, most: int, units: Sequence[int]
) -> WorkloadGraph:
    x = layers.image
    for stage, depth in enumerate(depths):
        for _ in range(depth):
            x = layers.activation(layers.convolution(x, min(first << stage, most), 3))
        x = layers.max_pool(x)
    return _head(layers, x, units, classes)


def _head(layers: Layers, x: Tensor, units: Sequence[int], classes: int) -> WorkloadGraph:
    x = layers.flat(x)
    for each in units:
        x = layers.activation(layers.dense(x, each))
    return layers.graph(layers.softmax(layers.dense(x, classes)))
