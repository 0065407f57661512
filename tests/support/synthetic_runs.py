"""A runs table made from a known law: latency = busy part that scales with a roofline + idle part that does not."""

from __future__ import annotations

import csv
import math
import random
from pathlib import Path

_DEVICES = {
    # name, SMs, cores/SM, boost MHz, memory MHz, bus, L2, shared/SM, threads/SM, memory MB, limit W, TFLOPS, GB/s
    "p100": ("TeslaP100-PCIE-16GB", 56, 64, 1328.5, 715, 4096, 4194304, 65536, 2048, 16280.9, 250.0, 9.53, 732.2),
    "p3": ("TeslaV100-SXM2-16GB", 80, 64, 1530.0, 877, 4096, 6291456, 98304, 2048, 16160.5, 300.0, 15.67, 898.0),
    "g4dn": ("TeslaT4", 40, 64, 1590.0, 5001, 256, 4194304, 65536, 1024, 15109.8, 70.0, 8.14, 320.0),
    "g5": ("NVIDIAA10G", 80, 128, 1710.0, 6251, 384, 6291456, 102400, 1536, 22731.9, 300.0, 35.02, 600.2),
}
# What each device reaches of its peak: the part that no data sheet tells and that a model has to learn.
_EFFICIENCY = {"p100": 1.0, "p3": 0.9, "g4dn": 0.8, "g5": 0.65}
_STATISTICS = ("mean", "std", "min", "25", "50", "75", "max")
_AGGREGATES = (
    "clocks_current_graphicsMHz", "clocks_current_smMHz", "memory_freeMiB", "memory_totalMiB", "memory_usedMiB",
    "power_drawW", "temperature_gpu", "utilization_gpu", "utilization_memory",
)  # fmt: skip
_STATIC = (
    "name", "uuid", "clocks_throttle_reasons_active_0x0000000000000001", "new_timestamp_gpu", "power_limitW",
    "pcie_link_gen_max", "Total amount of global memory(MBytes)", "Multiprocessors", "CUDA Cores/MP", "CUDA Cores",
    "GPU Max Clock rate(MHz)", "Memory Clock rate", "Memory Bus Width", "L2 Cache Size",
    "Total shared memory per multiprocessor", "Maximum number of threads per multiprocessor", "Memory Bandwidth",
)  # fmt: skip


def synthetic_runs(models: int = 5, batches: int = 4, noise: float = 0.03, seed: int = 0) -> list[dict[str, object]]:
    """Rows in the shape of the authors' table: every model and batch size on four GPUs."""
    generator = random.Random(seed)
    rows: list[dict[str, object]] = []
    for model in range(models):
        work = generator.uniform(20.0, 400.0)  # TFLOP per epoch
        intensity = generator.uniform(8.0, 40.0)  # FLOP per byte
        idle = generator.uniform(0.3, 3.0)
        for batch in range(batches):
            epoch_idle = idle / (1 + batch)
            for instance, device in _DEVICES.items():
                tflops, gigabytes = device[-2], device[-1]
                memory_time = work / intensity * 1000 / gigabytes
                busy = math.sqrt(work / tflops * memory_time) / _EFFICIENCY[instance]
                latency = (busy + epoch_idle) * math.exp(generator.gauss(0, noise))
                rows.append(_row(instance, model, 16 << batch, latency, busy, memory_time, epoch_idle))
    return rows


def _row(
    instance: str, model: int, batch: int, latency: float, busy: float, memory_time: float, idle: float
) -> dict[str, object]:
    name, sms, per_sm, boost, clock, bus, l2, shared, threads, memory, limit, _, _ = _DEVICES[instance]
    utilization = 100 * busy / (busy + idle)
    memory_utilization = utilization * min(0.95, memory_time / busy)
    row: dict[str, object] = {
        "Instances": instance, "model": f"Net{model}", "batchsize": batch, "datasize": 32, "totaldata": 50000,
        "total_latency_second": 10 * latency, "one_epoch_average_second": latency,
    }  # fmt: skip
    centers = {
        "clocks_current_graphicsMHz": 0.97 * boost, "clocks_current_smMHz": 0.97 * boost, "memory_freeMiB": 500.0,
        "memory_totalMiB": memory, "memory_usedMiB": memory - 500, "power_drawW": limit * (0.2 + 0.006 * utilization),
        "temperature_gpu": 55.0, "utilization_gpu": utilization, "utilization_memory": memory_utilization,
    }  # fmt: skip
    for stem, center in centers.items():
        top = min(100.0, 1.05 * center) if stem.startswith("utilization") else 1.05 * center
        values = (
            center,
            0.1 * center,
            0.0 if stem.startswith("util") else 0.8 * center,
            0.95 * center,
            center,
            top,
            top,
        )
        row.update({f"{stem}_{statistic}": value for statistic, value in zip(_STATISTICS, values, strict=True)})
    static = (
        name, f"GPU-{instance}", 3, 20220411012115.12, limit, 3, memory, sms, per_sm, sms * per_sm, boost, clock, bus,
        l2, shared, threads, 3592.192,
    )  # fmt: skip
    row.update(zip(_STATIC, static, strict=True))
    return row


def write_runs(path: Path, rows: list[dict[str, object]]) -> Path:
    """Write rows as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path
