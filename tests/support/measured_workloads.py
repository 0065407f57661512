"""Measurements whose truth is known: a law of roofline times, places that are slower or faster, and a little noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gpusonde.catalog import GpuCatalog, Precision
from gpusonde.predictor.workload.engine import Cluster, Parallelism, WorkloadMeasurement, WorkloadRequest
from gpusonde.predictor.workload.engine.features import DEVICE_PARTS, HOST_PARTS, OTHER_PARTS, FeatureBuilder
from gpusonde.predictor.workload.graph import Operation, Parameter, Primitive, WorkloadGraph

PLACES = {"here/T4": ("T4", 1.0), "here/V100": ("V100-SXM2-16GB", 1.2), "there/T4": ("T4", 1.5)}


def chain(width: int, depth: int, *, pixels: int = 32, normalised: bool = True, name: str = "") -> WorkloadGraph:
    """A chain of convolutions on images, with a linear layer at its end."""
    operations = [Operation(Primitive.INPUT, "x", (1, 3, pixels, pixels))]
    before = operations[0].output
    for layer in range(depth):
        after = (1, width, pixels, pixels)
        kernel = (width, before[1], 3, 3) if layer % 2 == 0 else (width, before[1], 1, 1)
        operations.append(
            Operation(
                Primitive.CONVOLUTION, f"conv{layer}", after, (before,), kernel, (Parameter(f"w{layer}", kernel),)
            )
        )
        if normalised:
            scale = (Parameter(f"s{layer}", (width,)), Parameter(f"b{layer}", (width,)))
            operations.append(Operation(Primitive.BATCH_NORM, f"norm{layer}", after, (after,), (width,), scale))
        operations.append(Operation(Primitive.ACTIVATION, f"relu{layer}", after, (after,)))
        before = after
    operations.append(Operation(Primitive.GLOBAL_AVERAGE_POOL, "pool", (1, width), (before,)))
    operations.append(
        Operation(Primitive.LINEAR, "head", (1, 100), ((1, width),), (100, width), (Parameter("h", (100, width)),))
    )
    edges = tuple((position, position + 1) for position in range(len(operations) - 1))
    return WorkloadGraph(name or f"chain{width}x{depth}", tuple(operations), edges, 1)


def true_seconds(requests: Sequence[WorkloadRequest], catalog: GpuCatalog) -> np.ndarray:
    """Seconds by the law: parts at fixed shares of the peaks, the slower of device and host, times the place."""
    parts = FeatureBuilder(catalog).table(requests).parts
    device = 1.8 * parts[:, DEVICE_PARTS].sum(axis=1)
    host = 1.4 * parts[:, HOST_PARTS].sum(axis=1)
    place = np.array([PLACES.get(each.cluster.environment or "", ("", 1.0))[1] for each in requests])
    return place * ((device**3 + host**3) ** (1 / 3) + parts[:, OTHER_PARTS].sum(axis=1))


def measured(
    catalog: GpuCatalog, *, widths: Sequence[int] = (16, 32, 64, 128), depths: Sequence[int] = (4, 8, 16),
    batches: Sequence[int] = (8, 32), noise: float = 0.02,
) -> list[WorkloadMeasurement]:  # fmt: skip
    """Chains of several widths and depths at all places, alone and on two devices."""
    drawn = np.random.default_rng(0)
    found = []
    for width in widths:
        for depth in depths:
            graph = chain(width, depth)
            for place, (device, _) in PLACES.items():
                for batch in batches:
                    for count in (1, 2):
                        sharing = Parallelism.NONE if count == 1 else Parallelism.DATA_PARALLEL
                        cluster = Cluster(device, count, 1, Precision.FP32, sharing, place)
                        request = WorkloadRequest(graph, batch, cluster)
                        seconds = float(true_seconds([request], catalog)[0]) * math.exp(drawn.normal(0, noise))
                        found.append(WorkloadMeasurement(request, seconds, graph.name, f"width{width}", "made"))
    return found
