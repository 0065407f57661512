"""A table of timed steps whose networks lie beside it, as a user has it."""

from __future__ import annotations

import csv
from pathlib import Path

from support.measured_workloads import PLACES, chain, true_seconds

from gpusonde.catalog import load_gpus
from gpusonde.predictor.workload.engine import Cluster, WorkloadRequest
from gpusonde.predictor.workload.graph import dump_graph

NETWORKS = [chain(width, depth) for width in (16, 32, 64, 128) for depth in (4, 8)]
COLUMNS = ("model", "gpu", "batch_per_gpu", "sec_per_iter", "precision", "environment")


def write_timed_networks(folder: Path) -> Path:
    """Write a table of measured steps and the graphs of its networks beside it; return the table."""
    requests = [
        WorkloadRequest(network, batch, Cluster(device, environment=place))
        for network in NETWORKS
        for place, (device, _) in PLACES.items()
        for batch in (16, 64)
    ]
    with (folder / "timed.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for request, seconds in zip(requests, true_seconds(requests, load_gpus()), strict=True):
            (folder / f"{request.graph.name}.json").write_text(dump_graph(request.graph))
            cluster = request.cluster
            name, device = f"{request.graph.name}.json", cluster.device
            writer.writerow((name, device, request.batch_size, seconds, "fp32", cluster.environment))
    return folder / "timed.csv"
