"""Inception-v3 and Inception-ResNet-v2 as keras.applications builds them."""

from __future__ import annotations

from collections.abc import Callable

from gpusonde.predictor.workload.graph import WorkloadGraph
from gpusonde.predictor.workload.zoo.keras.layers import Extent, Layers, Tensor

# A convolution: filters, kernel, whether it strides (by 2, without padding).
Step = tuple[int, Extent] | tuple[int, Extent, bool]
_Block = Callable[[Layers, Tensor], Tensor]


def inception_v3(layers: Layers, classes: int) -> WorkloadGraph:
    """Inception-v3; images of 75 pixels or more."""
    x = _stem(layers)
    for pooled in (32, 64, 64):
        x = layers.concatenate(
            _row(layers, x, (64, 1)),
            _row(layers, x, (48, 1), (64, 5)),
            _row(layers, x, (64, 1), (96, 3), (96, 3)),
            _pooled(layers, x, pooled),
        )
    x = layers.concatenate(
        _row(layers, x, (384, 3, True)),
        _row(layers, x, (64, 1), (96, 3), (96, 3, True)),
        layers.max_pool(x, 3, 2),
    )
    for inner in (128, 160, 160, 192):
        x = layers.concatenate(
            _row(layers, x, (192, 1)),
            _row(layers, x, (inner, 1), (inner, (1, 7)), (192, (7, 1))),
            _row(layers, x, (inner, 1), (inner, (7, 1)), (inner, (1, 7)), (inner, (7, 1)), (192, (1, 7))),
            _pooled(layers, x, 192),
        )
    x = layers.concatenate(
        _row(layers, x, (192, 1), (320, 3, True)),
        _row(layers, x, (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, True)),
        layers.max_pool(x, 3, 2),
    )
    for _ in range(2):
        x = layers.concatenate(
            _row(layers, x, (320, 1)),
            _split(layers, _row(layers, x, (384, 1))),
            _split(layers, _row(layers, x, (448, 1), (384, 3))),
            _pooled(layers, x, 192),
        )
    return layers.graph(layers.softmax(layers.dense(layers.global_average(x), classes)))


def inception_resnet_v2(layers: Layers, classes: int) -> WorkloadGraph:
    """Inception-ResNet-v2; images of 75 pixels or more."""
    x = _stem(layers)
    x = layers.concatenate(
        _row(layers, x, (96, 1)),
        _row(layers, x, (48, 1), (64, 5)),
        _row(layers, x, (64, 1), (96, 3), (96, 3)),
        _pooled(layers, x, 64),
    )
    for _ in range(10):
        x = _residual(layers, x, _block_35)
    x = layers.concatenate(
        _row(layers, x, (384, 3, True)),
        _row(layers, x, (256, 1), (256, 3), (384, 3, True)),
        layers.max_pool(x, 3, 2),
    )
    for _ in range(20):
        x = _residual(layers, x, _block_17)
    x = layers.concatenate(
        _row(layers, x, (256, 1), (384, 3, True)),
        _row(layers, x, (256, 1), (288, 3, True)),
        _row(layers, x, (256, 1), (288, 3), (320, 3, True)),
        layers.max_pool(x, 3, 2),
    )
    for _ in range(9):
        x = _residual(layers, x, _block_8)
    x = _residual(layers, x, _block_8, active=False)
    x = _row(layers, x, (1536, 1))
    return layers.graph(layers.softmax(layers.dense(layers.global_average(x), classes)))


def _stem(layers: Layers) -> Tensor:
    x = _row(layers, layers.image, (32, 3, True))
    x = _normed(layers, x, 32, 3, 1, same=False)
    x = layers.max_pool(_row(layers, x, (64, 3)), 3, 2)
    x = _normed(layers, x, 80, 1, 1, same=False)
    return layers.max_pool(_normed(layers, x, 192, 3, 1, same=False), 3, 2)


def _row(layers: Layers, x: Tensor, *steps: Step) -> Tensor:
    """Convolutions one behind the other, each with its normalisation and ReLU."""
    for filters, kernel, *strides in steps:
        x = _normed(layers, x, filters, kernel, 2 if strides else 1, same=not strides)
    return x


def _normed(layers: Layers, x: Tensor, filters: int, kernel: Extent, stride: int, *, same: bool) -> Tensor:
    x = layers.convolution(x, filters, kernel, stride, same=same, bias=False)
    return layers.activation(layers.norm(x, scale=False))


def _pooled(layers: Layers, x: Tensor, filters: int) -> Tensor:
    return _row(layers, layers.average_pool(x, 3), (filters, 1))


def _split(layers: Layers, x: Tensor) -> Tensor:
    return layers.concatenate(_row(layers, x, (384, (1, 3))), _row(layers, x, (384, (3, 1))))


def _residual(layers: Layers, x: Tensor, branches: _Block, *, active: bool = True) -> Tensor:
    """Branches, a convolution back to the block's channels, scaled and added."""
    scaled = layers.product(layers.convolution(branches(layers, x), x.channels, 1))
    x = layers.total(x, scaled)
    return layers.activation(x) if active else x


def _block_35(layers: Layers, x: Tensor) -> Tensor:
    return layers.concatenate(
        _row(layers, x, (32, 1)), _row(layers, x, (32, 1), (32, 3)), _row(layers, x, (32, 1), (48, 3), (64, 3))
    )


def _block_17(layers: Layers, x: Tensor) -> Tensor:
    return layers.concatenate(_row(layers, x, (192, 1)), _row(layers, x, (128, 1), (160, (1, 7)), (192, (7, 1))))


def _block_8(layers: Layers, x: Tensor) -> Tensor:
    return layers.concatenate(_row(layers, x, (192, 1)), _row(layers, x, (192, 1), (224, (1, 3)), (256, (3, 1))))
