"""A small model of training times, fitted in a second: enough to answer, not to be right."""

from __future__ import annotations

from pathlib import Path

from support.layered_graphs import small_graph

from gpusonde.catalog import load_gpus
from gpusonde.predictor.workload.engine import Cluster, Parallelism, WorkloadMeasurement, WorkloadRequest
from gpusonde.predictor.workload.engine.model import WorkloadModel
from gpusonde.predictor.workload.graph.cost import count_graph_cost


def write_model(path: Path) -> Path:
    """Fit to networks whose times follow their FLOPs, and write the model."""
    found = []
    gpus = load_gpus()
    for channels in (8, 16, 32, 64, 128):
        for layers in (2, 3, 5):
            graph = small_graph(f"net-{channels}-{layers}", channels=channels, layers=layers)
            for device in ("T4", "V100-SXM2-16GB"):
                for count, batch_size in ((1, 8), (1, 64), (4, 32)):
                    parallelism = Parallelism.NONE if count == 1 else Parallelism.DISTRIBUTED
                    cluster = Cluster(device, count, 1, parallelism=parallelism, environment="here")
                    flops = 3 * count_graph_cost(graph).per_sample.flops * batch_size
                    seconds = 2e-3 + flops / (0.3e12 * gpus.resolve(device).spec.fp32_tflops)
                    request = WorkloadRequest(graph, batch_size, cluster)
                    found.append(WorkloadMeasurement(request, seconds, graph.name, "layers", "made up"))
    WorkloadModel().fit(found, regressor="linear").save(path)
    return path
