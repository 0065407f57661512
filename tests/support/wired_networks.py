"""Networks with the same counts that differ in the order of their operations, and steps that take twice as long in one.

No count tells them apart; an embedding does.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from support.measured_workloads import PLACES, chain, true_seconds

from gpusonde.catalog import GpuCatalog, load_gpus
from gpusonde.predictor.workload.embedding import EncoderWeights
from gpusonde.predictor.workload.engine import (
    Cluster,
    EncoderEmbedder,
    WorkloadMeasurement,
    WorkloadModel,
    WorkloadRequest,
)
from gpusonde.predictor.workload.graph import Primitive, WorkloadGraph, dump_graph

SLOWER = 2.0


def turned(graph: WorkloadGraph) -> WorkloadGraph:
    """The chain with every activation before its normalisation."""
    operations = list(graph.operations)
    for position, each in enumerate(graph.operations):
        if each.primitive is Primitive.BATCH_NORM:
            operations[position : position + 2] = operations[position + 1], each
    return dataclasses.replace(graph, name=f"{graph.name}turned", operations=tuple(operations))


def pairs(widths: Sequence[int] = (16, 32, 64, 128), depths: Sequence[int] = (4, 8)) -> list[WorkloadGraph]:
    """Chains of several sizes, each in both orders."""
    chains = [chain(width, depth) for width in widths for depth in depths]
    return [graph for each in chains for graph in (each, turned(each))]


def measured_pairs(catalog: GpuCatalog) -> list[WorkloadMeasurement]:
    """Their steps at all places."""
    found = []
    for graph in pairs():
        for place, (device, _) in PLACES.items():
            for batch in (16, 64):
                request = WorkloadRequest(graph, batch, Cluster(device, environment=place))
                seconds = float(true_seconds([request], catalog)[0])
                slower = SLOWER if graph.name.endswith("turned") else 1.0
                found.append(WorkloadMeasurement(request, seconds * slower, graph.name, "chain", "made"))
    return found


def write_pairs(folder: Path) -> Path:
    """Write a table of these steps and the graphs beside it; return the table."""
    table = folder / "pairs.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("model", "gpu", "batch_per_gpu", "sec_per_iter", "environment"))
        for each in measured_pairs(load_gpus()):
            request, cluster = each.request, each.request.cluster
            (folder / f"{request.graph.name}.json").write_text(dump_graph(request.graph))
            name = f"{request.graph.name}.json"
            writer.writerow((name, cluster.device, request.batch_size, each.seconds, cluster.environment))
    return table


def write_embedding_model(path: Path, weights: EncoderWeights) -> Path:
    """Fit a model with columns of an encoder's embedding, and write it."""
    embedder = EncoderEmbedder(weights)
    WorkloadModel(embed=embedder).fit(measured_pairs(load_gpus()), regressor="linear").save(path)
    return path
