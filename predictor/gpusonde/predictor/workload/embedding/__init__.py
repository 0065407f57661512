"""Embeddings of networks: GHN-2's graph encoder without torch, its weights, and what is built on them."""

from gpusonde.predictor.workload.embedding.encoder import Encoder
from gpusonde.predictor.workload.embedding.structure import EmbeddingLimits
from gpusonde.predictor.workload.embedding.weights import EncoderDescription, EncoderWeights, VirtualEdgeRule

__all__ = [
    "EmbeddingLimits",
    "Encoder",
    "EncoderDescription",
    "EncoderWeights",
    "VirtualEdgeRule",
]
