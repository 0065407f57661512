"""The encoder on real networks."""

import numpy as np
from sequential_encoder import embed_in_sequence

from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.embedding import Encoder, EncoderWeights

# Of several sizes and wirings: a chain, branches, dense links, shortcuts.
NETWORKS = ("alexnet", "googlenet", "densenet121", "mobilenet_v2", "shufflenet_v2_x0_5")


def test_batched_message_passing_is_the_sequential_equations_for_real_networks():
    encoder = Encoder(EncoderWeights.random(0))
    graphs = [zoo.load(name) for name in NETWORKS]
    expected = np.array([embed_in_sequence(encoder, graph) for graph in graphs])
    np.testing.assert_allclose(encoder.embed(graphs), expected, rtol=0, atol=1e-9)


def test_every_network_of_the_zoo_has_an_embedding_of_its_own():
    names = zoo.names()
    embeddings = Encoder(EncoderWeights.random(0)).embed(map(zoo.load, names))
    assert embeddings.shape == (len(names), 32)
    assert np.isfinite(embeddings).all()
    distances = np.linalg.norm(embeddings[:, None] - embeddings[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    same = {tuple(sorted((names[one], names[other]))) for one, other in np.argwhere(distances < 1e-9)}
    # A graph says nothing of the size of images: the same network on two sizes is one to GHN-2.
    assert same <= {("inception_v3", "inception_v3_224")}
