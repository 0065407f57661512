"""Keras networks at any image size, built without Keras: those that PROFET measured.

Which layers they have is what the authors of PROFET published with their measurements; ``InceptionV3``,
``InceptionResNetV2``, ``MobileNetV2``, ``Xception``, ``EfficientNetB0`` and ``ResNet50-applications`` are those of
keras.applications. Their counts of parameters are checked against the published ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gpusonde.predictor.workload.graph import WorkloadGraph
from gpusonde.predictor.workload.zoo.keras import inception, plain, residual, separable
from gpusonde.predictor.workload.zoo.keras.layers import Layers, keras_parameter_count

_Builder = Callable[[Layers, int], WorkloadGraph]

# Name -> family, builder.
_NETWORKS: dict[str, tuple[str, _Builder]] = {
    "AlexNet": ("alexnet", plain.alexnet),
    "LeNet5": ("lenet", plain.lenet5),
    "MNIST_CNN": ("small_cnn", plain.mnist_cnn),
    "CIFAR10_CNN": ("small_cnn", plain.cifar10_cnn),
    "FLOWER_CNN": ("small_cnn", plain.flower_cnn),
    "VGGSmall": ("vgg", plain.vgg_small),
    **{name: ("vgg", partial(plain.vgg, depths=depths)) for name, depths in plain.VGG_DEPTHS.items()},
    "ResNetSmall": ("resnet", residual.resnet_small),
    **{
        name: ("resnet", partial(residual.preactivation_resnet, block=block, depths=depths))
        for name, (block, depths) in residual.RESNETS.items()
    },
    "ResNet50-applications": ("resnet", residual.applications_resnet50),
    "InceptionV3": ("inception", inception.inception_v3),
    "InceptionResNetV2": ("inception", inception.inception_resnet_v2),
    "MobileNetV2": ("mobilenet", separable.mobilenet_v2),
    "Xception": ("xception", separable.xception),
    "EfficientNetB0": ("efficientnet", separable.efficientnet_b0),
}


def names() -> tuple[str, ...]:
    """Networks that can be built."""
    return tuple(_NETWORKS)


def family(name: str) -> str:
    """Family of a network.

    Raises:
        KeyError: There is no such network.
    """
    return _NETWORKS[name][0]


def build(name: str, image_size: int, classes: int, *, channels: int = 3) -> WorkloadGraph:
    """Graph of one network, for a batch of one.

    Args:
        name: One of ``names()``.
        image_size: Height and width of its images, pixels.
        classes: Outputs of its last layer.
        channels: Channels of its images.

    Raises:
        KeyError: There is no such network.
        UnsupportedGraphError: Its images would be too small for it.
    """
    return _NETWORKS[name][1](Layers(name, image_size, channels), classes)


__all__ = ["build", "family", "keras_parameter_count", "names"]
