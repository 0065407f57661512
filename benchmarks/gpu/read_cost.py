"""What one reading of the source costs: time on the wall and on the CPU."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from gpusonde.agent.sources.base import GpuSource


@dataclass(frozen=True)
class ReadCost:
    """Cost of a reading of all GPUs.

    Attributes:
        source: Which source.
        gpus: Number of GPUs read.
        metrics: Number of columns.
        wall_p50_s: Median seconds of a reading.
        wall_p99_s: 99th percentile.
        cpu_mean_s: Mean CPU seconds of the reading thread, driver calls included.
        share_of_core: ``cpu_mean_s`` over the interval.
    """

    source: str
    gpus: int
    metrics: int
    wall_p50_s: float
    wall_p99_s: float
    cpu_mean_s: float
    share_of_core: float


def measure(source: GpuSource, interval_s: float, readings: int) -> ReadCost:
    """Read an unopened source at its pace and time every reading; the source is closed afterwards.

    Raises:
        gpusonde.agent.sources.base.SourceError: The source cannot be used.
    """
    inventory = source.open()
    try:
        wall, cpu = [], []
        next_s = time.monotonic()
        for _ in range(readings):
            next_s += interval_s
            time.sleep(max(0.0, next_s - time.monotonic()))
            began, began_cpu = time.perf_counter(), time.thread_time()
            source.read(next_s)
            wall.append(time.perf_counter() - began)
            cpu.append(time.thread_time() - began_cpu)
    finally:
        source.close()
    p50, p99 = np.quantile(wall, [0.5, 0.99])
    mean = float(np.mean(cpu))
    return ReadCost(
        inventory.source, len(inventory.gpus), len(inventory.metrics), float(p50), float(p99), mean, mean / interval_s
    )
