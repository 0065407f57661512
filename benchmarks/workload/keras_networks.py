"""Keras networks at any image size, built layer by layer without Keras: those that PROFET measured, and relatives.

Which layers they have is what the authors of PROFET published with their measurements
(``data_generation/workload/model_info.py`` of ddps-lab/profet, MIT): LeNet-5, the examples of the Keras pages,
AlexNet, VGG, ResNetSmall and its pre-activation ResNets. ResNet18, 34 and 50 are those of raghakot/keras-resnet: batch
normalisation and ReLU in front of each convolution, biases, and a shortcut of one convolution without normalisation
wherever shapes differ. They are not the networks that keras.applications or torchvision call by these names.
``InceptionV3``, ``InceptionResNetV2``, ``MobileNetV2``, ``Xception``, ``EfficientNetB0`` and ``ResNet50-applications``
are those of keras.applications. Counts of parameters are checked against the published ones. ``make_zoo`` writes their
graphs into the package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gpusonde.errors import UnsupportedGraphError
from gpusonde.predictor.workload.graph import Operation, Parameter, Primitive, WorkloadGraph

__all__ = ["build", "family", "keras_parameter_count", "names"]
Extent = int | tuple[int, int]


@dataclass(frozen=True)
class Tensor:
    """What a layer writes.

    Attributes:
        writer: Position of the operation that wrote it; a view (padding, flattening) keeps it.
        shape: Extents for a batch of one, channels first: (1, channels, height, width) or (1, numbers).
    """

    writer: int
    shape: tuple[int, ...]

    @property
    def channels(self) -> int:
        """Extent behind the batch."""
        return self.shape[1]


class Layers:
    """Collects the layers of one network.

    Every method appends operations and returns what they write. Shapes and weights are written in PyTorch's layout, so
    that a network is the same graph whichever framework described it.

    Args:
        name: What the network is called.
        image_size: Height and width of its images, pixels.
        channels: Channels of its images.

    Raises:
        UnsupportedGraphError: (from the methods) The images are too small for the network.
    """

    def __init__(self, name: str, image_size: int, channels: int = 3) -> None:
        self._name = name
        self._operations: list[Operation] = []
        self._edges: set[tuple[int, int]] = set()
        self._counts: dict[str, int] = {}
        self.image = self._add(Primitive.INPUT, "Input", (), (1, channels, image_size, image_size))

    def graph(self, result: Tensor, notes: tuple[str, ...] = ()) -> WorkloadGraph:
        """The network that ends in ``result``."""
        self._add(Primitive.OUTPUT, "Output", (result,), result.shape)
        return WorkloadGraph(self._name, tuple(self._operations), tuple(sorted(self._edges)), 1, "keras", notes)

    def convolution(
        self, x: Tensor, filters: int, kernel: Extent, stride: int = 1, *, same: bool = True, bias: bool = True
    ) -> Tensor:
        """``Conv2D``."""
        extents = _pair(kernel)
        out = self._slid(x, extents, stride, same=same)
        weight = (filters, x.channels, *extents)
        return self._add(
            Primitive.CONVOLUTION, "Conv2D", (x,), (1, filters, *out), weight, _weights(weight, filters if bias else 0)
        )

    def depthwise(self, x: Tensor, kernel: int, stride: int = 1, *, same: bool = True) -> Tensor:
        """``DepthwiseConv2D`` without bias."""
        extents = _pair(kernel)
        out = self._slid(x, extents, stride, same=same)
        weight = (x.channels, 1, *extents)
        shape = (1, x.channels, *out)
        made = self._add(Primitive.DEPTHWISE_CONVOLUTION, "DepthwiseConv2D", (x,), shape, weight, _weights(weight, 0))
        self._operations[-1] = replace(self._operations[-1], groups=x.channels)
        return made

    def dense(self, x: Tensor, units: int) -> Tensor:
        """``Dense`` with bias."""
        weight = (units, x.shape[-1])
        return self._add(Primitive.LINEAR, "Dense", (x,), (*x.shape[:-1], units), weight, _weights(weight, units))

    def norm(self, x: Tensor, *, scale: bool = True) -> Tensor:
        """``BatchNormalization``; without ``scale`` it learns the offset only."""
        names = ("gamma", "beta") if scale else ("beta",)
        parameters = tuple((name, (x.channels,)) for name in names)
        return self._add(Primitive.BATCH_NORM, "BatchNormalization", (x,), x.shape, (x.channels,), parameters)

    def activation(self, x: Tensor, kind: str = "relu") -> Tensor:
        """``Activation``: relu, relu6, swish, sigmoid."""
        return self._add(Primitive.ACTIVATION, kind, (x,), x.shape)

    def softmax(self, x: Tensor) -> Tensor:
        """``Activation("softmax")``."""
        return self._add(Primitive.SOFTMAX, "softmax", (x,), x.shape)

    def max_pool(self, x: Tensor, kernel: int = 2, stride: int = 2, *, same: bool = False) -> Tensor:
        """``MaxPooling2D``."""
        out = self._slid(x, _pair(kernel), stride, same=same)
        return self._add(Primitive.MAX_POOL, "MaxPooling2D", (x,), (1, x.channels, *out))

    def average_pool(self, x: Tensor, kernel: int, stride: int = 1, *, same: bool = True) -> Tensor:
        """``AveragePooling2D``."""
        out = self._slid(x, _pair(kernel), stride, same=same)
        return self._add(Primitive.AVERAGE_POOL, "AveragePooling2D", (x,), (1, x.channels, *out))

    def global_average(self, x: Tensor) -> Tensor:
        """``GlobalAveragePooling2D``, or a pool whose window is the whole map, and ``Flatten``."""
        return self._add(Primitive.GLOBAL_AVERAGE_POOL, "GlobalAveragePooling2D", (x,), (1, x.channels))

    def total(self, *tensors: Tensor) -> Tensor:
        """``Add``."""
        return self._add(Primitive.SUM, "Add", tensors, tensors[0].shape)

    def product(self, *tensors: Tensor) -> Tensor:
        """``Multiply``; of one tensor: by a fixed number."""
        return self._add(Primitive.PRODUCT, "Multiply", tensors, tensors[0].shape)

    def concatenate(self, *tensors: Tensor) -> Tensor:
        """``Concatenate`` of channels."""
        shape = (1, sum(each.channels for each in tensors), *tensors[0].shape[2:])
        return self._add(Primitive.CONCATENATION, "Concatenate", tensors, shape)

    def padded(self, x: Tensor, before: int, after: int) -> Tensor:
        """``ZeroPadding2D``: a view."""
        return replace(x, shape=(*x.shape[:2], *(extent + before + after for extent in x.shape[2:])))

    def flat(self, x: Tensor) -> Tensor:
        """``Flatten``: a view."""
        numbers = 1
        for extent in x.shape[1:]:
            numbers *= extent
        return replace(x, shape=(1, numbers))

    def as_map(self, x: Tensor) -> Tensor:
        """``Reshape`` of a vector to a map of one pixel: a view."""
        return replace(x, shape=(1, x.channels, 1, 1))

    def _slid(self, x: Tensor, kernel: tuple[int, int], stride: int, *, same: bool) -> tuple[int, ...]:
        """Extents of the map that a sliding window leaves."""
        sizes = tuple(
            -(-extent // stride) if same else (extent - window) // stride + 1
            for extent, window in zip(x.shape[2:], kernel, strict=True)
        )
        if min(sizes) < 1:
            height, width = x.shape[2:]
            raise UnsupportedGraphError(
                f"{self._name}: its images are too small, a window of {kernel[0]} x {kernel[1]} "
                f"finds {height} x {width}"
            )
        return sizes

    def _add(
        self,
        primitive: Primitive,
        layer: str,
        inputs: Sequence[Tensor],
        output: tuple[int, ...],
        weight: tuple[int, ...] = (),
        parameters: Sequence[tuple[str, tuple[int, ...]]] = (),
    ) -> Tensor:
        repeat = self._counts.get(layer, 0)
        self._counts[layer] = repeat + 1
        name = f"{layer}_{repeat}"
        position = len(self._operations)
        self._operations.append(
            Operation(
                primitive=primitive,
                name=name,
                output=output,
                inputs=tuple(each.shape for each in inputs),
                weight=weight,
                parameters=tuple(Parameter(f"{name}/{what}", shape) for what, shape in parameters),
                source=f"keras.{layer}",
            )
        )
        self._edges.update((each.writer, position) for each in inputs)
        return Tensor(position, output)


def keras_parameter_count(graph: WorkloadGraph) -> int:
    """Parameters as Keras counts them: with the two running statistics per channel of every batch normalisation."""
    statistics = sum(2 * each.weight[0] for each in graph.operations if each.primitive is Primitive.BATCH_NORM)
    return graph.parameter_count + statistics


def _weights(weight: tuple[int, ...], biases: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return (("kernel", weight), ("bias", (biases,))) if biases else (("kernel", weight),)


def _pair(extent: Extent) -> tuple[int, int]:
    return (extent, extent) if isinstance(extent, int) else extent


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


_Builder = Callable[[Layers, int], WorkloadGraph]

# Name -> family, builder.
_NETWORKS: dict[str, tuple[str, _Builder]] = {
    "AlexNet": ("alexnet", alexnet),
    "LeNet5": ("lenet", lenet5),
    "MNIST_CNN": ("small_cnn", mnist_cnn),
    "CIFAR10_CNN": ("small_cnn", cifar10_cnn),
    "FLOWER_CNN": ("small_cnn", flower_cnn),
    "VGGSmall": ("vgg", vgg_small),
    **{name: ("vgg", partial(vgg, depths=depths)) for name, depths in VGG_DEPTHS.items()},
    "ResNetSmall": ("resnet", resnet_small),
    **{
        name: ("resnet", partial(preactivation_resnet, block=block, depths=depths))
        for name, (block, depths) in RESNETS.items()
    },
    "ResNet50-applications": ("resnet", applications_resnet50),
    "InceptionV3": ("inception", inception_v3),
    "InceptionResNetV2": ("inception", inception_resnet_v2),
    "MobileNetV2": ("mobilenet", mobilenet_v2),
    "Xception": ("xception", xception),
    "EfficientNetB0": ("efficientnet", efficientnet_b0),
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
