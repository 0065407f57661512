"""Random architectures for a hypernetwork to learn on: descriptions only, ``networks`` builds them.

A miniature of DeepNets-1M: cells of a DARTS-like set of operations, of random wiring, depth and width, with various
norms, activations and heads. Widths and depths vary more than what is fast needs, because the embedding of a network
that is far out of the range of training says nothing.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class BlockKind(str, Enum):
    """What an edge of a cell may be."""

    CONVOLUTION_1 = "convolution_1"
    CONVOLUTION_3 = "convolution_3"
    CONVOLUTION_5 = "convolution_5"
    SEPARABLE_3 = "separable_3"
    SEPARABLE_5 = "separable_5"
    DILATED_3 = "dilated_3"
    GROUPED_3 = "grouped_3"
    BOTTLENECK = "bottleneck"
    INVERTED_BOTTLENECK = "inverted_bottleneck"
    MAX_POOL = "max_pool"
    AVERAGE_POOL = "average_pool"
    SKIP = "skip"
    SQUEEZE_EXCITE = "squeeze_excite"
    ATTENTION = "attention"
    TRANSFORMER = "transformer"


class Norm(str, Enum):
    """What follows a convolution."""

    BATCH = "batch"
    GROUP = "group"
    NONE = "none"


class Activation(str, Enum):
    """The non-linearity of all of a network's convolutions."""

    RELU = "relu"
    SILU = "silu"
    GELU = "gelu"


class Head(str, Enum):
    """How the last cell's output becomes classes."""

    POOL = "pool"
    """Global average, then a linear layer."""
    PERCEPTRON = "perceptron"
    """Global average, then two linear layers."""
    FLATTEN = "flatten"
    """A linear layer over all positions."""
    CONVOLUTION = "convolution"
    """A convolution to one channel per class, then the global average."""


class Style(str, Enum):
    """Which blocks a network is made of; whole families of real networks use only a few."""

    MIXED = "mixed"
    PLAIN = "plain"
    RESIDUAL = "residual"
    BOTTLENECK = "bottleneck"
    SEPARABLE = "separable"
    INVERTED = "inverted"
    GROUPED = "grouped"
    DENSE = "dense"
    ATTENTION = "attention"
    TRANSFORMER = "transformer"


_BLOCKS = {
    Style.MIXED: tuple(BlockKind),
    Style.PLAIN: (
        BlockKind.CONVOLUTION_1,
        BlockKind.CONVOLUTION_3,
        BlockKind.CONVOLUTION_3,
        BlockKind.CONVOLUTION_5,
        BlockKind.MAX_POOL,
    ),
    Style.RESIDUAL: (BlockKind.CONVOLUTION_3, BlockKind.CONVOLUTION_3, BlockKind.CONVOLUTION_1, BlockKind.DILATED_3),
    Style.BOTTLENECK: (BlockKind.BOTTLENECK, BlockKind.BOTTLENECK, BlockKind.SQUEEZE_EXCITE),
    Style.SEPARABLE: (BlockKind.SEPARABLE_3, BlockKind.SEPARABLE_5, BlockKind.SQUEEZE_EXCITE, BlockKind.SKIP),
    Style.INVERTED: (BlockKind.INVERTED_BOTTLENECK, BlockKind.INVERTED_BOTTLENECK, BlockKind.SQUEEZE_EXCITE),
    Style.GROUPED: (BlockKind.GROUPED_3, BlockKind.CONVOLUTION_1),
    Style.DENSE: (BlockKind.CONVOLUTION_3, BlockKind.CONVOLUTION_1, BlockKind.CONVOLUTION_3, BlockKind.AVERAGE_POOL),
    Style.ATTENTION: (BlockKind.ATTENTION, BlockKind.CONVOLUTION_1, BlockKind.CONVOLUTION_3, BlockKind.SKIP),
    Style.TRANSFORMER: (BlockKind.TRANSFORMER,),
}
_STYLES = (Style.MIXED, Style.MIXED, *Style)
# Shortcuts around cells, or around every block. With both, or with sums of two such blocks, signals would double again
# and again; nobody builds such networks, and their losses would hide those of all others.
_AROUND_CELLS = frozenset({Style.RESIDUAL, Style.GROUPED})
_AROUND_BLOCKS = frozenset({Style.BOTTLENECK, Style.INVERTED, Style.ATTENTION, Style.TRANSFORMER})
# Networks without norms are plain and shallow, like AlexNet and VGG.
_WITHOUT_NORMS = frozenset({Style.PLAIN, Style.SEPARABLE, Style.DENSE})


@dataclass(frozen=True)
class Wire:
    """An edge of a cell.

    Attributes:
        block: What is done on the way.
        source: The state that it reads: 0 is the cell's input, n the n-th node.
    """

    block: BlockKind
    source: int


@dataclass(frozen=True)
class Cell:
    """A part of a network.

    Attributes:
        nodes: Of each node the wires whose results it adds up.
        stride: 2 halves the image first and doubles the width; else 1.
        concatenated: Whether all nodes are its result, side by side, and not the last alone.
        residual: Whether its input is added to its result.
        entry: Whether it begins with a convolution even if its input has its width already.
    """

    nodes: tuple[tuple[Wire, ...], ...]
    stride: int = 1
    concatenated: bool = False
    residual: bool = False
    entry: bool = False


@dataclass(frozen=True)
class ArchitectureSpec:
    """A network, but for the images and classes that it is for.

    Attributes:
        style: What its blocks were drawn from.
        width: Channels after the stem; a multiple of 4.
        maximum_width: Channels that no doubling exceeds.
        stem_stride: How much the stem shrinks the image.
        norm: After convolutions.
        activation: After those.
        head: How classes are had.
        normalized_head: Whether a norm and the non-linearity come before the head.
        cells: From the stem to the head.
    """

    style: Style
    width: int
    maximum_width: int
    stem_stride: int
    norm: Norm
    activation: Activation
    head: Head
    normalized_head: bool
    cells: tuple[Cell, ...]

    def size(self, side: int) -> tuple[int, int]:
        """Estimate how large its networks are: without norms, heads and images of several channels.

        Args:
            side: Pixels per side of the images.

        Returns:
            Multiply-adds per image, and operations.
        """
        side = -(-side // self.stem_stride)
        width = self.width
        work, operations = width * 9 * side * side, 6
        for cell in self.cells:
            stride = cell.stride if side > 1 else 1
            wider = max(width, min(self.maximum_width, width * stride))
            side = -(-side // stride)
            positions = side * side
            if stride > 1 or wider != width or cell.entry:
                work += (1 if stride == 1 else 9) * width * wider * positions
                operations += 3
            width = wider
            if cell.concatenated and len(cell.nodes) > 1:
                work += len(cell.nodes) * width * width * positions
                operations += 2
            operations += cell.residual
            for node in cell.nodes:
                operations += len(node) - 1
                for wire in node:
                    more_work, more_operations = _measure_block(wire.block, width, positions)
                    work += more_work
                    operations += more_operations
        return work, operations

    def to_json(self) -> str:
        """Return the description as text; ``from_json`` reads it."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> ArchitectureSpec:
        """Read a description.

        Raises:
            ValueError: It is none.
        """
        try:
            return _read_spec(json.loads(text))
        except (KeyError, TypeError, AttributeError, RecursionError, ValueError) as error:
            problem = str(error)[:200]
            raise ValueError(f"no description of an architecture: {type(error).__name__} {problem}") from error


@dataclass(frozen=True)
class ArchitectureSpace:
    """What architectures are drawn from.

    Attributes:
        widths: Channels after the stem.
        maximum_widths: Channels that no doubling exceeds.
        maximum_cells: Most cells of a network; most nodes of a cell are 3.
        maximum_halvings: Most cells that halve the image.
        stem_stride: How much the stem shrinks the image.
        side: Pixels per side of the images.
        maximum_multiply_adds: Most work per image, about: a step of training takes as long as its networks.
        maximum_operations: Most nodes of a graph, about.
    """

    widths: tuple[int, ...] = (8, 12, 16, 24, 32, 48)
    maximum_widths: tuple[int, ...] = (48, 64, 96, 128, 192, 256)
    maximum_cells: int = 10
    maximum_halvings: int = 3
    stem_stride: int = 1
    side: int = 8
    maximum_multiply_adds: int = 3_000_000
    maximum_operations: int = 160

    @staticmethod
    def for_images(side: int) -> ArchitectureSpace:
        """Return a space for square images: the stem leaves at most 16 by 16 positions, so that steps stay short.

        Args:
            side: Pixels per side, at least 4.
        """
        if side < 4:
            raise ValueError(f"images of {side} pixels per side: networks are generated for 4 and more")
        stride = 1
        while side / stride > 16:
            stride *= 2
        return ArchitectureSpace(stem_stride=stride, side=side)


def sample(generator: random.Random, space: ArchitectureSpace | None = None) -> ArchitectureSpec:
    """Draw an architecture.

    Args:
        generator: The same state gives the same architecture.
        space: What to draw from.
    """
    space = space or ArchitectureSpace()
    while True:
        spec = _draw_spec(generator, space)
        work, operations = spec.size(space.side)
        if work <= space.maximum_multiply_adds and operations <= space.maximum_operations:
            return spec


def _draw_spec(generator: random.Random, space: ArchitectureSpace) -> ArchitectureSpec:
    style = generator.choice(_STYLES)
    norm = generator.choices(tuple(Norm), (0.8, 0.1, 0.3 if style in _WITHOUT_NORMS else 0.0))[0]
    # Most are shallow: those learn sooner and cost less. Some are as deep as there are.
    shares = (3,) if norm is Norm.NONE else (3, 2, 2, 1)
    count = generator.randint(1, max(1, space.maximum_cells // generator.choice(shares)))
    halving = set(generator.sample(range(count), min(count, generator.randint(0, space.maximum_halvings))))
    cells = tuple(_draw_cell(generator, style, norm, 2 if position in halving else 1) for position in range(count))
    sums = style is Style.DENSE or style in _AROUND_BLOCKS
    return ArchitectureSpec(
        style=style,
        width=generator.choice(space.widths),
        maximum_width=generator.choice(space.maximum_widths),
        stem_stride=space.stem_stride,
        norm=norm,
        activation=generator.choices(tuple(Activation), (0.8, 0.1, 0.1))[0],
        head=generator.choices(tuple(Head), (0.55, 0.25, 0.1, 0.1))[0],
        normalized_head=generator.random() < (0.8 if sums else 0.15),
        cells=cells,
    )


def _draw_cell(generator: random.Random, style: Style, norm: Norm, stride: int) -> Cell:
    blocks = _BLOCKS[style]
    most_wires = (1,) if style in _AROUND_BLOCKS else (1, 1, 2)
    nodes = tuple(
        tuple(
            Wire(generator.choice(blocks), generator.randint(0, position)) for _ in range(generator.choice(most_wires))
        )
        for position in range(generator.randint(1, 3))
    )
    concatenated = style is Style.DENSE or generator.random() < 0.15
    may_shortcut = norm is not Norm.NONE and style not in _AROUND_BLOCKS
    return Cell(
        nodes if concatenated else _keep_heard_nodes(nodes),
        stride,
        concatenated=concatenated,
        residual=may_shortcut and (style in _AROUND_CELLS or generator.random() < 0.15),
        entry=style is Style.MIXED,
    )


def _keep_heard_nodes(nodes: tuple[tuple[Wire, ...], ...]) -> tuple[tuple[Wire, ...], ...]:
    """Return the nodes that the last one reads, directly or through others; what nobody reads would never learn."""
    kept = {len(nodes)}
    for state in range(len(nodes), 0, -1):
        if state in kept:
            kept.update(wire.source for wire in nodes[state - 1])
    states = {state: position for position, state in enumerate(sorted(kept | {0}))}
    return tuple(
        tuple(Wire(wire.block, states[wire.source]) for wire in nodes[state - 1]) for state in sorted(kept - {0})
    )


def _measure_block(block: BlockKind, width: int, positions: int) -> tuple[int, int]:
    """Return the multiply-adds and operations of a block."""
    square, tokens = width * width, positions * positions * width
    per_position, operations = {
        BlockKind.CONVOLUTION_1: (square, 3),
        BlockKind.CONVOLUTION_3: (9 * square, 3),
        BlockKind.CONVOLUTION_5: (25 * square, 3),
        BlockKind.SEPARABLE_3: (9 * width + square, 5),
        BlockKind.SEPARABLE_5: (25 * width + square, 5),
        BlockKind.DILATED_3: (9 * square, 3),
        BlockKind.GROUPED_3: (9 * square // 4, 3),
        BlockKind.BOTTLENECK: (square + 9 * square // 4, 10),
        BlockKind.INVERTED_BOTTLENECK: (6 * square + 27 * width, 9),
        BlockKind.MAX_POOL: (0, 1),
        BlockKind.AVERAGE_POOL: (0, 1),
        BlockKind.SKIP: (0, 0),
        BlockKind.SQUEEZE_EXCITE: (0, 6),
        BlockKind.ATTENTION: (4 * square, 5),
        BlockKind.TRANSFORMER: (8 * square, 10),
    }[block]
    attends = block in {BlockKind.ATTENTION, BlockKind.TRANSFORMER}
    return per_position * positions + (2 * tokens if attends else 0), operations


def _read_spec(document: Any) -> ArchitectureSpec:
    def count(value: object, least: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{value!r} is no count of at least {least}")
        return value

    cells = tuple(
        Cell(
            nodes=tuple(
                tuple(Wire(BlockKind(wire["block"]), count(wire["source"], 0)) for wire in node)
                for node in cell["nodes"]
            ),
            stride=count(cell["stride"], 1),
            concatenated=bool(cell["concatenated"]),
            residual=bool(cell["residual"]),
            entry=bool(cell["entry"]),
        )
        for cell in document["cells"]
    )
    for cell in cells:
        for position, node in enumerate(cell.nodes):
            if not node or any(wire.source > position for wire in node):
                raise ValueError("a node reads nothing, or a later one")
        if not cell.nodes:
            raise ValueError("a cell without nodes")
    return ArchitectureSpec(
        style=Style(document["style"]),
        width=count(document["width"], 4),
        maximum_width=count(document["maximum_width"], 4),
        stem_stride=count(document["stem_stride"], 1),
        norm=Norm(document["norm"]),
        activation=Activation(document["activation"]),
        head=Head(document["head"]),
        normalized_head=bool(document["normalized_head"]),
        cells=cells,
    )
