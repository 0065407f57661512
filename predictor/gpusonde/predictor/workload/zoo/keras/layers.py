"""``Layers``: puts a network together layer by layer as Keras would, and keeps its shapes, parameters and edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpusonde.predictor.workload.graph import (
    Operation,
    Parameter,
    Primitive,
    UnsupportedGraphError,
    WorkloadGraph,
)

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
