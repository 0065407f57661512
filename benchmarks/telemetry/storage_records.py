"""Records of an hour as agents would send them, after recorded GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpusonde.collector.storage.model import EntryKind, LogEntry, PendingRecord
from gpusonde.common.v1 import gpu_pb2, metric_pb2
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.wire import InventoryRecord, Limits, decode_record
from gpusonde.telemetry import METRICS, MetricKind, Unit, metric, read_traces

START_NS = 1_760_000_400_000_000_000  # on the hour
TICKS_PER_SECOND = 10
GPUS_PER_HOST = 8
_UNITS = {unit: getattr(metric_pb2, f"UNIT_{unit.name}") for unit in Unit}
_NOISY = (
    "graphics_active", "sm_active", "sm_occupancy", "tensor_active", "dram_active", "fp32_active", "fp16_active",
    "pcie_tx_bytes_per_second", "pcie_rx_bytes_per_second", "nvlink_tx_bytes_per_second", "nvlink_rx_bytes_per_second",
)  # fmt: skip
ALL_NOISY = (*_NOISY, "fp64_active", "gpu_utilization", "memory_utilization")


@dataclass(frozen=True)
class Workload:
    """Samples of several GPUs: ``values(gpu)`` has shape (metrics, ticks)."""

    name: str
    metrics: tuple[str, ...]
    values: Callable[[int], np.ndarray]


def recorded_h100(data: Path, ticks: int) -> Workload:
    """The nvidia-smi recordings of eight H100s, metrics as recorded, repeated until the time is full."""
    traces = [trace for path in sorted(data.glob("h100_ckpt*.csv")) for trace in read_traces(path)]
    metrics = tuple(traces[0].metrics)

    def values(gpu: int) -> np.ndarray:
        trace = traces[gpu % len(traces)]
        block = np.stack([trace.values[name] for name in metrics])
        return np.tile(block, -(-ticks // block.shape[1]))[:, :ticks]

    return Workload("recorded H100 (nvidia-smi)", metrics, values)


def full_set(base: Workload | None, ticks: int, *, busy: bool, noisy: Sequence[str] = _NOISY) -> Workload:
    """All 27 metrics. Activity follows recorded power; ``noisy`` ones have 5 % of noise in all bits.

    ``busy`` leaves out the idle stretches, in which real counters stand at zero.
    """

    def values(gpu: int) -> np.ndarray:
        rng = np.random.default_rng(gpu)
        if base is None:
            activity = np.clip(np.sin(np.arange(ticks) / (300 + gpu)) * 0.4 + 0.6, 0, 1)
        else:
            recorded = base.values(gpu)
            power = recorded[base.metrics.index("power_watts")]
            activity = np.clip((power - 70) / 630, 0, 1) * (recorded[base.metrics.index("gpu_utilization")] > 0)
        if busy:
            activity = np.maximum(activity, 0.3)
        rows = []
        for i, known in enumerate(METRICS):
            noise = 1 + 0.05 * rng.standard_normal(ticks)
            if known.name in noisy:
                scale = 0.9 / (1 + i % 5) if known.unit is Unit.RATIO else 4e9 / (1 + i % 3)
                rows.append(np.maximum(0, activity * scale * noise))
            else:
                rows.append(_other(known.name, activity, noise, rng))
        return np.stack(rows)

    name = "27 metrics, never idle" if busy else "27 metrics after recorded power"
    if len(noisy) > len(_NOISY):
        name = f"{name}, {len(noisy)} of them noise"
    return Workload(name, tuple(known.name for known in METRICS), values)


def _other(name: str, activity: np.ndarray, noise: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    ticks = activity.size
    if name == "power_watts":
        return np.round(70 + 630 * activity * noise, 3)
    if name in ("gpu_utilization", "memory_utilization"):
        return np.round(np.clip(activity * noise, 0, 1), 2)
    if name == "sm_clock_mhz":
        return 1980 - 15 * np.round(8 * activity * noise)
    if name == "framebuffer_used_bytes":
        return np.full(ticks, 60e9) + (1 << 20) * np.round(activity * 4)
    slow = np.repeat(activity[::100], 100)[:ticks]
    steady = {
        "energy_joules": np.repeat(np.round(1e6 + np.cumsum(70 + 630 * activity)[::100] / 10, 3), 100)[:ticks],
        "gpu_temperature_celsius": np.round(40 + 30 * slow + rng.normal(0, 0.5)),
        "memory_temperature_celsius": np.round(45 + 30 * slow + rng.normal(0, 0.5)),
        "memory_clock_mhz": np.full(ticks, 2619.0),
        "framebuffer_free_bytes": np.full(ticks, 20e9),
        "bar1_free_bytes": np.full(ticks, 128e9),
    }
    return steady.get(name, np.zeros(ticks))


class Agents:
    """Makes the records of all hosts, a second at a time."""

    def __init__(self, workload: Workload, gpus: int, ticks: int) -> None:
        self.workload = workload
        self.uuids = [f"GPU-{i:08d}-aaaa-bbbb-cccc-ddddeeeeffff" for i in range(gpus)]
        self._values = [workload.values(i) for i in range(gpus)]
        self._counters = [i for i, name in enumerate(workload.metrics) if metric(name).kind is MetricKind.COUNTER]
        rng = np.random.default_rng(1)
        jitter = rng.normal(0, 300, (gpus, ticks)).astype(np.int64)
        self._micros = np.arange(ticks) * 100_000 + np.clip(jitter, -20_000, 20_000) + 50_000
        self._inventories: dict[int, InventoryRecord] = {}

    def records(self, second: int) -> Iterator[PendingRecord]:
        """Yield one record per host."""
        for host in range(0, len(self.uuids), GPUS_PER_HOST):
            members = self.uuids[host : host + GPUS_PER_HOST]
            agent = f"agent-{host:06d}"
            if second == 0:
                record = ingest_pb2.Record(sequence=1, inventory=self._inventory(members))
                decoded = self._inventories[host] = decode_record(record, None, Limits())
                yield self._incoming(agent, record, decoded)
            batch = ingest_pb2.SampleBatch(encoding=ingest_pb2.ENCODING_FLOAT32_LE)
            for i in range(len(members)):
                batch.blocks.append(self._block(host + i, i, second))
            record = ingest_pb2.Record(sequence=second + 2, batch=batch)
            yield self._incoming(agent, record, decode_record(record, self._inventories[host], Limits()))

    def _incoming(self, agent: str, record: ingest_pb2.Record, decoded: object) -> PendingRecord:
        entry = LogEntry(agent, "spool", record.sequence, 1, EntryKind.RECORD, record.SerializeToString())
        return PendingRecord(entry, decoded)

    def _inventory(self, members: list[str]) -> ingest_pb2.Inventory:
        descriptors = [
            metric_pb2.MetricDescriptor(
                name=name,
                unit=_UNITS[metric(name).unit],
                kind=metric_pb2.METRIC_KIND_COUNTER
                if metric(name).kind is MetricKind.COUNTER
                else metric_pb2.METRIC_KIND_GAUGE,
            )
            for name in self.workload.metrics
        ]
        gpus = [gpu_pb2.Gpu(gpu_uuid=uuid, product_name="NVIDIA H100 80GB HBM3") for uuid in members]
        return ingest_pb2.Inventory(gpus=gpus, metrics=descriptors, source="benchmark", sampling_interval_us=100_000)

    def _block(self, gpu: int, index: int, second: int) -> ingest_pb2.GpuBlock:
        piece = slice(second * TICKS_PER_SECOND, (second + 1) * TICKS_PER_SECOND)
        values = self._values[gpu][:, piece].copy()
        bases = values[self._counters, 0]
        values[self._counters] -= bases[:, None]
        micros = self._micros[gpu, piece]
        return ingest_pb2.GpuBlock(
            gpu=index,
            tick_count=TICKS_PER_SECOND,
            start_time_unix_nano=START_NS + int(micros[0]) * 1000,
            tick_offsets_us=(micros - micros[0]).astype("<i4").tobytes(),
            counter_bases=bases.tolist(),
            values=values.astype("<f4").tobytes(),
        )
