"""What questions about workloads are answered with in tests: a model that counts, a reader that does what it is told.

``make_answer`` makes what answers with them in a child process.
"""

from __future__ import annotations

import os
import signal
import time

from gpusonde.collector.workload import answering
from gpusonde.collector.workload.answering import Parts
from gpusonde.errors import ModelError
from gpusonde.predictor.workload.embedding.registry import Registry
from gpusonde.predictor.workload.engine import WorkloadPrediction
from gpusonde.predictor.workload.graph.graph_json import load_graph


class CountingModel:
    """Iterations take a millisecond per layer, and what is far off is out of distribution. Remembers its calls."""

    def __init__(self):
        self.calls = []
        self.encoder = None

    def predict(self, requests, *, regressor=None):
        self.calls.append((len(requests), regressor))
        return [self._one(request, regressor or "svr") for request in requests]

    def _one(self, request, regressor):
        if request.graph.name == "unpredictable":
            raise ModelError("this network cannot be predicted")
        if request.graph.name == "infinite":
            return WorkloadPrediction(float("inf"), 0.0, 1.0, 0.9, regressor, "layers")
        seconds = 1e-3 * request.graph.layer_count
        is_far = request.graph.layer_count > 50
        return WorkloadPrediction(
            seconds, seconds / 2, seconds * 2, 0.9, regressor, "layers", is_far,
            ("it has more layers than any that was fitted on",) if is_far else (), (("small", 0.75),),
        )  # fmt: skip


def read(content, kind, limits):
    """Read a graph as JSON, or do what the content says."""
    if content == b"spin":
        while True:
            pass
    if content.strip() == b"sleep":
        time.sleep(600)
    if content == b"die":
        os.kill(os.getpid(), signal.SIGKILL)
    if content == b"eat":
        raise MemoryError
    if content == b"fault":
        raise ZeroDivisionError("a fault of ours")
    return load_graph(content, limits)


def make_parts(model=None):
    """Return parts around one model."""
    model = model or CountingModel()

    def nearest(graph, encoder, count):
        return [(f"{graph.name}-{i}", "family", 1.0 - i / 10) for i in range(count)]

    return Parts(read, lambda path, folder: model, Registry, nearest, lambda name: f"{name}s")


def make_answer():
    """Return what answers in a child."""
    return answering.make_answer(make_parts())
