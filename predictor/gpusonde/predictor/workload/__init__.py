"""Training time of a network from its graph of operations: graphs, embeddings, and the engine that predicts."""
