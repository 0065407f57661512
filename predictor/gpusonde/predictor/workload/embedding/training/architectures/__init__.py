"""Random architectures: their descriptions, which need no torch, and in ``networks`` the modules made of them."""

from gpusonde.predictor.workload.embedding.training.architectures.description import (
    Activation,
    ArchitectureSpace,
    ArchitectureSpec,
    Block,
    Cell,
    Head,
    Norm,
    Style,
    Wire,
    sample,
)

__all__ = [
    "Activation",
    "ArchitectureSpace",
    "ArchitectureSpec",
    "Block",
    "Cell",
    "Head",
    "Norm",
    "Style",
    "Wire",
    "sample",
]
