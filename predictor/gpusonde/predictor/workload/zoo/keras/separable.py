"""Networks of depthwise convolutions as keras.applications builds them: MobileNet-v2, Xception, EfficientNet-B0."""

from __future__ import annotations

from gpusonde.predictor.workload.graph import WorkloadGraph
from gpusonde.predictor.workload.zoo.keras.layers import Layers, Tensor


def mobilenet_v2(layers: Layers, classes: int) -> WorkloadGraph:
    """MobileNet-v2 with a width of 1."""
    x = _separable_normed(layers, layers.image, 32, 3, 2, "relu6")
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expansion, filters, depth, first_stride in stages:
        for position in range(depth):
            stride = 1 if position else first_stride
            inner = x
            if expansion > 1:
                inner = _separable_normed(layers, inner, expansion * x.channels, 1, 1, "relu6")
            inner = layers.depthwise(inner, 3, stride)
            inner = layers.activation(layers.norm(inner), "relu6")
            inner = layers.norm(layers.convolution(inner, filters, 1, bias=False))
            x = layers.total(x, inner) if inner.shape == x.shape else inner
    x = _separable_normed(layers, x, 1280, 1, 1, "relu6")
    return layers.graph(layers.softmax(layers.dense(layers.global_average(x), classes)))


def xception(layers: Layers, classes: int) -> WorkloadGraph:
    """Xception; images of 71 pixels or more."""
    x = layers.convolution(layers.image, 32, 3, 2, same=False, bias=False)
    x = layers.activation(layers.norm(x))
    x = layers.convolution(x, 64, 3, same=False, bias=False)
    x = layers.activation(layers.norm(x))
    for filters in (128, 256, 728):
        # The first block finds its input active already.
        inner = x if filters == 128 else layers.activation(x)
        inner = layers.activation(_separable(layers, inner, filters))
        x = _strided_sum(layers, x, _separable(layers, inner, filters))
    for _ in range(8):
        inner = x
        for _ in range(3):
            inner = _separable(layers, layers.activation(inner), 728)
        x = layers.total(inner, x)
    inner = _separable(layers, layers.activation(x), 728)
    inner = _separable(layers, layers.activation(inner), 1024)
    x = _strided_sum(layers, x, inner)
    for filters in (1536, 2048):
        x = layers.activation(_separable(layers, x, filters))
    return layers.graph(layers.softmax(layers.dense(layers.global_average(x), classes)))


def efficientnet_b0(layers: Layers, classes: int) -> WorkloadGraph:
    """EfficientNet-B0. The rescaling of its images (7 fixed numbers, which Keras counts) is left out."""
    x = _separable_normed(layers, layers.image, 32, 3, 2, "swish")
    stages = (
        (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
    )  # fmt: skip
    for expansion, filters, depth, first_stride, kernel in stages:
        for position in range(depth):
            stride = 1 if position else first_stride
            inner = x
            if expansion > 1:
                inner = _separable_normed(layers, inner, expansion * x.channels, 1, 1, "swish")
            inner = layers.depthwise(inner, kernel, stride)
            inner = layers.activation(layers.norm(inner), "swish")
            inner = _squeezed(layers, inner, max(1, x.channels // 4))
            inner = layers.norm(layers.convolution(inner, filters, 1, bias=False))
            x = layers.total(inner, x) if inner.shape == x.shape else inner
    x = _separable_normed(layers, x, 1280, 1, 1, "swish")
    return layers.graph(layers.softmax(layers.dense(layers.global_average(x), classes)))


def _separable_normed(layers: Layers, x: Tensor, filters: int, kernel: int, stride: int, kind: str) -> Tensor:
    x = layers.convolution(x, filters, kernel, stride, bias=False)
    return layers.activation(layers.norm(x), kind)


def _separable(layers: Layers, x: Tensor, filters: int) -> Tensor:
    """``SeparableConv2D`` of 3 x 3, normalised."""
    return layers.norm(layers.convolution(layers.depthwise(x, 3), filters, 1, bias=False))


def _strided_sum(layers: Layers, x: Tensor, inner: Tensor) -> Tensor:
    shortcut = layers.norm(layers.convolution(x, inner.channels, 1, 2, bias=False))
    return layers.total(layers.max_pool(inner, 3, 2, same=True), shortcut)


def _squeezed(layers: Layers, x: Tensor, filters: int) -> Tensor:
    """Squeeze and excitation."""
    gate = layers.as_map(layers.global_average(x))
    gate = layers.activation(layers.convolution(gate, filters, 1), "swish")
    gate = layers.activation(layers.convolution(gate, x.channels, 1), "sigmoid")
    return layers.product(x, gate)
