"""Descriptions of a network as columns, and the columns of the cluster that stand beside each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from rows import Floats, Rows

from gpusonde.catalog import GpuCatalog, load_gpus
from gpusonde.predictor.workload.embedding import Encoder, EncoderWeights
from gpusonde.predictor.workload.graph import Primitive, WorkloadGraph, count_graph_cost

Describe = Callable[[Sequence[WorkloadGraph]], Floats]


def layers_and_parameters(graphs: Sequence[WorkloadGraph]) -> Floats:
    """What gray boxes before the seed used."""
    return np.log([[each.layer_count + 1, each.parameter_count + 1] for each in graphs])


def bag_of_operations(graphs: Sequence[WorkloadGraph]) -> Floats:
    """How many operations of each kind."""
    kinds = list(Primitive)
    return np.log1p([[sum(one.primitive is kind for one in each.operations) for kind in kinds] for each in graphs])


def bag_and_parameters(graphs: Sequence[WorkloadGraph]) -> Floats:
    """The bag with the count of parameters."""
    return np.hstack([bag_of_operations(graphs), layers_and_parameters(graphs)[:, 1:]])


def counts(graphs: Sequence[WorkloadGraph]) -> Floats:
    """Floating-point operations, bytes, parameters, operations: four numbers."""
    costs = [count_graph_cost(each) for each in graphs]
    return np.log(
        [
            [cost.per_sample.flops, cost.per_sample.bytes, each.parameter_count, len(each.operations)]
            for cost, each in zip(costs, graphs, strict=True)
        ]
    )


def embedding(weights: EncoderWeights) -> Describe:
    """The graph embedding of an encoder."""
    return Encoder(weights).embed


def name(rows: Rows) -> Floats:
    """One column per architecture."""
    return _columns([each.architecture for each in rows])


def described(rows: Rows, describe: Describe) -> Floats:
    """Columns of each row's network; each network is described once."""
    graphs = {id(each.request.graph): each.request.graph for each in rows}
    place = {key: position for position, key in enumerate(graphs)}
    return describe(list(graphs.values()))[[place[id(each.request.graph)] for each in rows]]


def cluster(rows: Rows, catalog: GpuCatalog | None = None) -> Floats:
    """Batch, image, GPU, count, precision and machine: nothing of the network."""
    gpus = {spec.name: spec for spec in (catalog or load_gpus()).specs}
    requests = [each.request for each in rows]
    clusters = [each.cluster for each in requests]
    numbers = np.log(
        [
            [
                each.batch_size,
                math.prod(each.graph.operations[0].output),
                each.cluster.device_count,
                gpus[each.cluster.device].fp32_tflops,
                gpus[each.cluster.device].memory_bandwidth_bytes_per_second,
            ]
            for each in requests
        ]
    )
    kinds = [
        [str(each.device) for each in clusters],
        [each.precision.value for each in clusters],
        [str(each.environment) for each in clusters],
        [each.parallelism.value for each in clusters],
    ]
    return np.hstack([numbers, *(_columns(kind) for kind in kinds)])


def _columns(values: Sequence[str]) -> Floats:
    known = sorted(set(values))
    return np.array([[float(each == one) for one in known] for each in values])
