"""Architectures as torch modules. Every extent is known when a module is built, so that tracing finds no arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional

from gpusonde.predictor.workload.training.architectures import (
    Activation,
    ArchitectureSpec,
    BlockKind,
    Cell,
    Head,
    Norm,
)

_GROUPS = 4


@dataclass(frozen=True)
class _Style:
    norm: Norm
    activation: Activation

    def convolution(
        self, inputs: int, outputs: int, extent: int, *, groups: int = 1, dilation: int = 1, stride: int = 1
    ) -> list[nn.Module]:
        """Return a convolution and its norm."""
        padding = dilation * (extent // 2)
        bias = self.norm is Norm.NONE
        return [
            nn.Conv2d(inputs, outputs, extent, stride, padding, dilation, groups, bias=bias),
            *self.normalized(outputs),
        ]

    def normalized(self, channels: int) -> list[nn.Module]:
        """Return the norm, if there is one."""
        if self.norm is Norm.BATCH:
            # Predicted weights come with no running statistics: they are those of the batch at hand.
            return [nn.BatchNorm2d(channels, track_running_stats=False)]
        return [nn.GroupNorm(_GROUPS, channels)] if self.norm is Norm.GROUP else []

    def activated(self) -> nn.Module:
        """Return the non-linearity."""
        return {Activation.RELU: nn.ReLU, Activation.SILU: nn.SiLU, Activation.GELU: nn.GELU}[self.activation]()

    def layers(
        self, inputs: int, outputs: int, extent: int, *, groups: int = 1, dilation: int = 1, stride: int = 1
    ) -> list[nn.Module]:
        """Return a convolution, its norm and the non-linearity."""
        return [
            *self.convolution(inputs, outputs, extent, groups=groups, dilation=dilation, stride=stride),
            self.activated(),
        ]


class _Residual(nn.Module):
    """Layers whose input is added to their result."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images + self.layers(images)


class _SqueezeExcite(nn.Module):
    """Channels scaled by what their averages say."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = max(4, channels // 4)
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.excite = nn.Conv2d(squeezed, channels, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        squeezed = functional.relu(self.squeeze(functional.adaptive_avg_pool2d(images, 1)))
        return images * torch.sigmoid(self.excite(squeezed))


class _Attention(nn.Module):
    """Self-attention over positions, and a perceptron after it if asked for; both beside a shortcut."""

    def __init__(self, channels: int, side: int, *, perceptron: bool) -> None:
        super().__init__()
        self.channels, self.side = channels, side
        self.norm = nn.LayerNorm(channels)
        self.mix = nn.Linear(channels, 3 * channels)
        self.join = nn.Linear(channels, channels)
        self.perceptron = (
            nn.Sequential(
                nn.LayerNorm(channels),
                nn.Linear(channels, 2 * channels),
                nn.GELU(),
                nn.Linear(2 * channels, channels),
            )
            if perceptron
            else None
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = images.flatten(2).transpose(1, 2)
        query, key, value = self.mix(self.norm(tokens)).chunk(3, dim=-1)
        tokens = tokens + self.join(functional.scaled_dot_product_attention(query, key, value))
        if self.perceptron is not None:
            tokens = tokens + self.perceptron(tokens)
        return tokens.transpose(1, 2).unflatten(2, (self.side, self.side))


def _make_block(block: BlockKind, channels: int, side: int, style: _Style) -> nn.Module:
    # A multiple of the groups of a group norm.
    half = max(_GROUPS, channels // 2 // _GROUPS * _GROUPS)
    if block is BlockKind.MAX_POOL:
        return nn.MaxPool2d(3, 1, 1)
    if block is BlockKind.AVERAGE_POOL:
        return nn.AvgPool2d(3, 1, 1)
    if block is BlockKind.SKIP:
        return nn.Identity()
    if block is BlockKind.SQUEEZE_EXCITE:
        return _SqueezeExcite(channels)
    if block in {BlockKind.ATTENTION, BlockKind.TRANSFORMER}:
        return _Attention(channels, side, perceptron=block is BlockKind.TRANSFORMER)
    if block is BlockKind.BOTTLENECK:
        layers = [
            *style.layers(channels, half, 1),
            *style.layers(half, half, 3),
            *style.convolution(half, channels, 1),
        ]
        return nn.Sequential(_Residual(layers), style.activated())
    if block is BlockKind.INVERTED_BOTTLENECK:
        layers = [
            *style.layers(channels, 3 * channels, 1),
            *style.layers(3 * channels, 3 * channels, 3, groups=3 * channels),
            *style.convolution(3 * channels, channels, 1),
        ]
        return _Residual(layers)
    if block in {BlockKind.SEPARABLE_3, BlockKind.SEPARABLE_5}:
        extent = 3 if block is BlockKind.SEPARABLE_3 else 5
        return nn.Sequential(
            *style.convolution(channels, channels, extent, groups=channels), *style.layers(channels, channels, 1)
        )
    if block is BlockKind.DILATED_3:
        return nn.Sequential(*style.layers(channels, channels, 3, dilation=2))
    if block is BlockKind.GROUPED_3:
        return nn.Sequential(*style.layers(channels, channels, 3, groups=_GROUPS))
    extent = {BlockKind.CONVOLUTION_1: 1, BlockKind.CONVOLUTION_3: 3, BlockKind.CONVOLUTION_5: 5}[block]
    return nn.Sequential(*style.layers(channels, channels, extent))


class _CellModule(nn.Module):
    def __init__(self, cell: Cell, inputs: int, outputs: int, side: int, style: _Style) -> None:
        super().__init__()
        self.residual = cell.residual
        fits = inputs == outputs and cell.stride == 1 and not cell.entry
        extent = 1 if cell.stride == 1 else 3
        self.entry = (
            nn.Identity() if fits else nn.Sequential(*style.layers(inputs, outputs, extent, stride=cell.stride))
        )
        together = cell.concatenated and len(cell.nodes) > 1
        used = range(1, len(cell.nodes) + 1) if together else _find_ancestors(cell)
        # Nothing is built that reaches no output: tracing would miss its parameters and try in vain to find them.
        wires = [node if number in used else () for number, node in enumerate(cell.nodes, 1)]
        self.sources = [[wire.source for wire in node] for node in wires]
        self.nodes = nn.ModuleList(
            nn.ModuleList(_make_block(wire.block, outputs, side, style) for wire in node) for node in wires
        )
        self.reduce = nn.Conv2d(outputs * len(cell.nodes), outputs, 1) if together else None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        states = [self.entry(images)]
        for sources, blocks in zip(self.sources, self.nodes, strict=True):
            results = [block(states[source]) for source, block in zip(sources, blocks, strict=True)]
            states.append(sum(results[1:], results[0]) if results else None)
        result = states[-1] if self.reduce is None else self.reduce(torch.cat(states[1:], 1))
        return states[0] + result if self.residual else result


def _find_ancestors(cell: Cell) -> set[int]:
    """Return the nodes that the last one of a cell hears from, and itself, counted from 1."""
    found = {len(cell.nodes)}
    for number in range(len(cell.nodes), 0, -1):
        if number in found:
            found.update(wire.source for wire in cell.nodes[number - 1])
    return found


class GeneratedNetwork(nn.Module):
    """A network of a description.

    Args:
        spec: The description.
        channels: Of the images.
        side: Pixels per side of the images.
        classes: Outputs.
    """

    def __init__(self, spec: ArchitectureSpec, channels: int, side: int, classes: int) -> None:
        super().__init__()
        style = _Style(spec.norm, spec.activation)
        width = spec.width
        extent = 3 if spec.stem_stride == 1 else 2 * spec.stem_stride - 1
        self.stem = nn.Sequential(*style.layers(channels, width, extent, stride=spec.stem_stride))
        side = -(-side // spec.stem_stride)
        cells = []
        for cell in spec.cells:
            # An image of one position is not halved again.
            stride = cell.stride if side > 1 else 1
            wider = max(width, min(spec.maximum_width, width * stride))
            side = -(-side // stride)
            fitting = replace(cell, stride=stride)
            cells.append(_CellModule(fitting, width, wider, side, style))
            width = wider
        self.cells = nn.Sequential(*cells)
        before = [*style.normalized(width), style.activated()] if spec.normalized_head else []
        self.head = nn.Sequential(*before, *_make_head(spec.head, width, side, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes."""
        return self.head(self.cells(self.stem(images)))


def _make_head(head: Head, width: int, side: int, classes: int) -> list[nn.Module]:
    if head is Head.FLATTEN:
        return [nn.Flatten(), nn.Linear(width * side * side, classes)]
    if head is Head.CONVOLUTION:
        return [nn.Conv2d(width, classes, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    if head is Head.PERCEPTRON:
        return [*pooled, nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)]
    return [*pooled, nn.Linear(width, classes)]
