"""The graph hypernetwork in torch: the encoder with gradients, the decoder, both together."""

from gpusonde.predictor.workload.embedding.training.hypernetwork.ghn import GraphHyperNetwork, PreparedGraph

__all__ = ["GraphHyperNetwork", "PreparedGraph"]
