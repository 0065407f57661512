"""Embeddings of networks: GHN-2's graph encoder without torch, its weights, and what is built on them.

What other rooms use can be imported from here, each part when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpusonde.predictor.workload.embedding.encoder import Encoder
    from gpusonde.predictor.workload.embedding.nearest import find_nearest
    from gpusonde.predictor.workload.embedding.registry import RegisteredEncoder, Registry, name_checkpoint
    from gpusonde.predictor.workload.embedding.structure import EmbeddingLimits
    from gpusonde.predictor.workload.embedding.weights import (
        EncoderDescription,
        EncoderWeights,
        VirtualEdgeRule,
        check_dataset_type,
        is_dataset_type,
    )

_HOMES = {
    "Encoder": "encoder",
    "find_nearest": "nearest",
    "RegisteredEncoder": "registry",
    "Registry": "registry",
    "name_checkpoint": "registry",
    "EmbeddingLimits": "structure",
    "EncoderDescription": "weights",
    "EncoderWeights": "weights",
    "VirtualEdgeRule": "weights",
    "check_dataset_type": "weights",
    "is_dataset_type": "weights",
}
__all__ = [
    "EmbeddingLimits",
    "Encoder",
    "EncoderDescription",
    "EncoderWeights",
    "RegisteredEncoder",
    "Registry",
    "VirtualEdgeRule",
    "check_dataset_type",
    "find_nearest",
    "is_dataset_type",
    "name_checkpoint",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - see above

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
