"""Training jobs as 25 metrics at 10 Hz, encoded as agents send them.

A few jobs are generated (or taken from recorded traces) once; every GPU plays one of them from a moment of its own,
over and over, so that a load generator spends its time on gRPC and not on random numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zstandard

from gpusonde.common.v1 import gpu_pb2, metric_pb2
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.wire import UNITS
from gpusonde.telemetry import METRICS, MetricKind, read_trace

TICKS_PER_SECOND = 10
# The catalogue without the video engines: 25 metrics, 15 of which tell what a GPU is doing.
WIRE_METRICS = tuple(m for m in METRICS if m.name not in ("encoder_utilization", "decoder_utilization"))
COUNTERS = tuple(i for i, m in enumerate(WIRE_METRICS) if m.kind is MetricKind.COUNTER)
_JITTERS = 64


@dataclass(frozen=True)
class Job:
    """One trace, cut into seconds and encoded.

    Attributes:
        name: Where it comes from.
        values: Shape (metrics, ticks), float64, counters whole.
        frames: For each second the zstd frame of its float32 values, counters less their bases.
        bases: For each second the base of every counter.
    """

    name: str
    values: np.ndarray
    frames: tuple[bytes, ...]
    bases: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, name: str, values: np.ndarray) -> Job:
        """Encode a trace of whole seconds."""
        pack = zstandard.ZstdCompressor(level=1).compress
        frames, bases = [], []
        for second in range(values.shape[1] // TICKS_PER_SECOND):
            block = values[:, second * TICKS_PER_SECOND : (second + 1) * TICKS_PER_SECOND].copy()
            base = block[list(COUNTERS), 0]
            block[list(COUNTERS)] -= base[:, None]
            frames.append(pack(block.astype("<f4").tobytes()))
            bases.append(tuple(base.tolist()))
        return cls(name, values, tuple(frames), tuple(bases))

    @property
    def seconds(self) -> int:
        """Length."""
        return len(self.frames)


def generated_jobs(count: int, seconds: int, seed: int = 7) -> list[Job]:
    """Training jobs with epochs of 12 to 300 s, validation, check points, iteration ripple and drift."""
    return [_generated(np.random.default_rng([seed, i]), f"generated {i}", seconds) for i in range(count)]


def recorded_jobs(files: list[Path], seconds: int, seed: int = 7) -> list[Job]:
    """Recorded traces, repeated to the length; the metrics they lack are derived from the GPU's activity."""
    jobs = []
    for i, file in enumerate(files):
        trace = read_trace(file)
        time_s = np.arange(seconds * TICKS_PER_SECOND) / TICKS_PER_SECOND
        place = time_s % trace.duration_s + trace.time_s[0]
        known = {
            name: np.interp(place, trace.time_s[np.isfinite(row)], row[np.isfinite(row)])
            for name, row in trace.values.items()
            if np.isfinite(row).any() and name in {m.name for m in WIRE_METRICS}
        }
        level = next(known[n] for n in ("gpu_utilization", "sm_active", "dram_active") if n in known)
        jobs.append(Job.of(file.stem, _metrics(np.random.default_rng([seed, i]), level, known)))
    return jobs


def _generated(rng: np.random.Generator, name: str, seconds: int) -> Job:
    period_s = float(np.exp(rng.uniform(np.log(12), np.log(300))))
    validation, gap = rng.uniform(0.05, 0.3), rng.uniform(0.0, 0.04)
    train, check = rng.uniform(0.5, 0.95), rng.uniform(0.2, 0.6)
    n = seconds * TICKS_PER_SECOND
    lengths = period_s * np.clip(rng.normal(1, 0.02, int(seconds / period_s) + 3), 0.8, 1.2)
    edges = np.concatenate([[0.0], np.cumsum(lengths)])
    time_s = np.arange(n) / TICKS_PER_SECOND
    epoch = np.searchsorted(edges, time_s, side="right") - 1
    phase = (time_s - edges[epoch]) / lengths[epoch]
    level = np.where(phase < 1 - validation - gap, train, np.where(phase < 1 - gap, train * check, 0.01))
    step_s = rng.uniform(0.15, 2.0)
    wander = np.cumsum(1 / (step_s * TICKS_PER_SECOND) + 0.02 * rng.normal(0, 1, n)) % 1
    level = level * (1 + rng.uniform(0.05, 0.3) * np.sin(2 * np.pi * wander))
    return Job.of(f"{name}, epochs of {period_s:.0f} s", _metrics(rng, np.clip(level, 0, 1), {}))


def _metrics(rng: np.random.Generator, level: np.ndarray, known: dict[str, np.ndarray]) -> np.ndarray:
    """All metrics of a job of this activity, shape (metrics, ticks), as precise as drivers give them."""
    n = level.size
    on = level > 0.005

    def ratio(gain: float, power: float = 1.0, noise: float = 0.01) -> np.ndarray:
        return np.clip(gain * level**power + on * noise * rng.normal(0, 1, n), 0, 1)

    def rate(most: float) -> np.ndarray:
        return np.round(most * level * np.clip(rng.normal(1, 0.1, n), 0, None))

    watts = np.round(70 + 400 * level**0.8 + rng.normal(0, 3, n), 3)
    warmth = np.convolve(watts, np.ones(300) / 300, mode="same")
    used = float(round(rng.uniform(20, 70) * 1024)) * (1 << 20)
    made = {
        "graphics_active": ratio(1.0, 0.5),
        "sm_active": ratio(0.95, 0.7),
        "sm_occupancy": ratio(0.5),
        "tensor_active": ratio(0.35),
        "dram_active": ratio(0.6),
        "fp64_active": np.zeros(n),
        "fp32_active": ratio(0.12),
        "fp16_active": ratio(0.05),
        "pcie_tx_bytes_per_second": rate(2e9),
        "pcie_rx_bytes_per_second": rate(6e9),
        "nvlink_tx_bytes_per_second": rate(4e10),
        "nvlink_rx_bytes_per_second": rate(4e10),
        "gpu_utilization": np.round(ratio(1.0, 0.3), 2),
        "memory_utilization": np.round(ratio(0.5), 2),
        "power_watts": watts,
        "energy_joules": np.round(1e6 + np.cumsum(watts) / TICKS_PER_SECOND, 3),
        "gpu_temperature_celsius": np.round(30 + warmth / 12),
        "memory_temperature_celsius": np.round(35 + warmth / 10),
        "sm_clock_mhz": 15.0 * np.round((1980 - 120 * level + rng.normal(0, 8, n)) / 15),
        "memory_clock_mhz": np.full(n, 2619.0),
        "framebuffer_used_bytes": np.full(n, used),
        "framebuffer_free_bytes": np.full(n, 80 * float(1 << 30) - used),
        "bar1_free_bytes": np.full(n, 130_000.0 * (1 << 20)),
        "pcie_replay_count": np.zeros(n),
        "xid_count": np.zeros(n),
        "clock_event_reason_bits": np.zeros(n),
    }
    made.update(known)
    return np.array([made[m.name] for m in WIRE_METRICS])


class GpuStream:
    """What one GPU sends: a job from a moment of its own.

    Args:
        job: The job.
        offset_s: Second of the job at which the GPU begins.
    """

    def __init__(self, job: Job, offset_s: int) -> None:
        self._job = job
        self._offset = offset_s % job.seconds

    def fill(self, block: ingest_pb2.GpuBlock, gpu: int, second: int, start_unix_nano: int, offsets: bytes) -> None:
        """Write one second into a block."""
        job = self._job
        place = (self._offset + second) % job.seconds
        block.gpu = gpu
        block.tick_count = TICKS_PER_SECOND
        block.start_time_unix_nano = start_unix_nano
        block.tick_offsets_us = offsets
        block.values = job.frames[place]
        block.counter_bases.extend(job.bases[place])

    def values(self, second: int) -> np.ndarray:
        """What the store should hold for one second, shape (metrics, 10)."""
        place = (self._offset + second) % self._job.seconds * TICKS_PER_SECOND
        block = self._job.values[:, place : place + TICKS_PER_SECOND].copy()
        base = block[list(COUNTERS), :1].copy()
        block[list(COUNTERS)] -= base
        block = block.astype(np.float32).astype(np.float64)
        block[list(COUNTERS)] += base
        return block


def jittered_offsets(seed: int = 3) -> list[bytes]:
    """Tick times within a second as int32 microseconds, late by half a millisecond or so like a real sampler's."""
    rng = np.random.default_rng(seed)
    grid = np.arange(TICKS_PER_SECOND) * (1_000_000 // TICKS_PER_SECOND)
    late = np.minimum(rng.exponential(500, (_JITTERS, TICKS_PER_SECOND)), 20_000)
    late[:, 0] = 0
    return [(grid + row).astype("<i4").tobytes() for row in late]


def inventory_record(host: int, gpus: int) -> ingest_pb2.Record:
    """The record that names GPUs and columns."""
    return ingest_pb2.Record(
        inventory=ingest_pb2.Inventory(
            gpus=[
                gpu_pb2.Gpu(
                    gpu_uuid=gpu_uuid(host, i), gpu_index=i, product_name="NVIDIA H100 80GB HBM3",
                    framebuffer_bytes=80 << 30,
                )
                for i in range(gpus)
            ],
            metrics=[
                metric_pb2.MetricDescriptor(
                    name=m.name,
                    unit=UNITS[m.unit],
                    kind=metric_pb2.METRIC_KIND_COUNTER if i in COUNTERS else metric_pb2.METRIC_KIND_GAUGE,
                    dcgm_field_id=m.dcgm_field_id or 0,
                )
                for i, m in enumerate(WIRE_METRICS)
            ],
            source="dcgm",
            sampling_interval_us=1_000_000 // TICKS_PER_SECOND,
        )
    )  # fmt: skip


def gpu_uuid(host: int, gpu: int) -> str:
    """Name of a GPU."""
    return f"GPU-{host:08d}-0000-0000-0000-{gpu:012d}"
