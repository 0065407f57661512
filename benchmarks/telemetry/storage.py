"""What samples cost on disk at every stage, and how long reading them takes.

    python benchmarks/telemetry/storage.py --gpus 64 --out docs/results/telemetry_storage.md

Fills a store with an hour of records as agents send them, seals a segment a minute, compacts, and reads.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpusonde.collector import CollectorConfig, LocalStore, run_collector
from gpusonde.collector.client import Client
from gpusonde.collector.records.decode import decode_record
from gpusonde.collector.records.limits import Limits
from gpusonde.collector.storage.disk.layout import SegmentKind
from gpusonde.collector.storage.disk.log import EntryKind, LogEntry
from gpusonde.collector.storage.local import StoreOptions
from gpusonde.collector.storage.store import Incoming
from gpusonde.common.v1 import gpu_pb2, metric_pb2
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.telemetry import METRICS, MetricKind, Unit, metric, read_traces

START_NS = 1_760_000_400_000_000_000  # on the hour
TICKS_PER_SECOND = 10
GPUS_PER_HOST = 8
_UNITS = {unit: getattr(metric_pb2, f"UNIT_{unit.name}") for unit in Unit}
_NOISY = (
    "graphics_active", "sm_active", "sm_occupancy", "tensor_active", "dram_active", "fp32_active", "fp16_active",
    "pcie_tx_bytes_per_second", "pcie_rx_bytes_per_second", "nvlink_tx_bytes_per_second", "nvlink_rx_bytes_per_second",
)  # fmt: skip


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


def full_set(base: Workload | None, ticks: int, *, busy: bool) -> Workload:
    """All 27 metrics. Activity follows recorded power; what was not recorded has 5 % of noise in all bits.

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
            if known.name in _NOISY:
                scale = 0.9 / (1 + i % 5) if known.unit is Unit.RATIO else 4e9 / (1 + i % 3)
                rows.append(np.maximum(0, activity * scale * noise))
            else:
                rows.append(_other(known.name, activity, noise, rng))
        return np.stack(rows)

    name = "27 metrics, never idle" if busy else "27 metrics after recorded power"
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
        self._inventories = {}

    def records(self, second: int) -> Iterator[Incoming]:
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

    def _incoming(self, agent: str, record: ingest_pb2.Record, decoded: object) -> Incoming:
        entry = LogEntry(agent, "spool", record.sequence, 1, EntryKind.RECORD, record.SerializeToString())
        return Incoming(entry, decoded)

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


@dataclass
class Stage:
    """Bytes on disk at one stage."""

    name: str
    size_bytes: int
    seconds: float = float("nan")


def folder_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


def fill(directory: Path, agents: Agents, seconds: int) -> tuple[LocalStore, list[Stage], float]:
    """Store the records, sealing once a minute of records; returns the bytes of the log and of the segments."""
    now = [START_NS]
    store = LocalStore(directory, StoreOptions(reserve_bytes=0), wall_clock_ns=lambda: now[0])
    store.open()
    logged = 0
    sealing = 0.0
    for second in range(seconds):
        store.append(list(agents.records(second)))
        now[0] += 1_000_000_000
        if second % 60 == 59 or second == seconds - 1:
            logged += folder_bytes(directory / "log")
            began = time.process_time()
            store.seal()
            sealing += time.process_time() - began
    return store, [Stage("log", logged), Stage("60 s segments", folder_bytes(directory / "segments"), sealing)], logged


def forget_pages(directory: Path) -> None:
    """Have the kernel forget the pages of all segments."""
    for path in directory.rglob("*.parquet"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def timed(call: Callable[[], object], repeats: int = 25) -> float:
    """Median seconds."""
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def reopened(directory: Path, cache_bytes: int = 64 << 20) -> LocalStore:
    store = LocalStore(directory, StoreOptions(reserve_bytes=0, cache_bytes=cache_bytes))
    store.open()
    return store


def read_latencies(directory: Path, agents: Agents, seconds: int, stage: str) -> list[tuple[str, float]]:
    """Time reading an hour of one metric of one GPU, in several states of the caches."""
    end = START_NS + seconds * 1_000_000_000
    rows = []
    gpus = iter(agents.uuids * 100)

    def read(store: LocalStore, gpu: str, metrics: list[str] | None) -> None:
        samples = store.read(gpu, START_NS, end, metrics)
        assert len(samples) == seconds * TICKS_PER_SECOND

    one = [agents.workload.metrics[0]]

    def cold() -> float:
        store = reopened(directory)
        forget_pages(directory)
        began = time.perf_counter()
        read(store, next(gpus), one)
        taken = time.perf_counter() - began
        store.close()
        return taken

    rows.append(
        (
            f"{stage}, one metric, cold: first read of a fresh process, pages not cached",
            statistics.median(cold() for _ in range(7)),
        )
    )
    store = reopened(directory, cache_bytes=0)
    for uuid in agents.uuids:
        read(store, uuid, one)
    rows.append(
        (f"{stage}, one metric, footers and pages cached, columns not", timed(lambda: read(store, next(gpus), one)))
    )
    rows.append(
        (
            f"{stage}, all {len(agents.workload.metrics)} metrics, footers and pages cached",
            timed(lambda: read(store, next(gpus), None), 9),
        )
    )
    store.close()
    store = reopened(directory)
    read(store, agents.uuids[0], one)
    rows.append((f"{stage}, one metric, warm: the same read again", timed(lambda: read(store, agents.uuids[0], one))))
    store.close()
    return rows


def rpc_latencies(directory: Path, agents: Agents, seconds: int, stage: str) -> list[tuple[str, float]]:
    """The same through gRPC."""
    stop, ready, address = threading.Event(), threading.Event(), []
    config = CollectorConfig.load(
        overrides={
            "server.listen": "127.0.0.1:0", "store.directory": str(directory), "runs.track": "false",
            "store.compact": "false", "store.raw_retention": "0s", "store.second_retention": "0s",
        }
    )  # fmt: skip

    def on_ready(target: str) -> None:
        address.append(target)
        ready.set()

    thread = threading.Thread(target=lambda: run_collector(config, on_ready=on_ready, stop=stop))
    thread.start()
    ready.wait(60)
    try:
        with Client(address[0]) as client:

            def ask() -> None:
                trace = client.read_samples(
                    agents.uuids[1], metrics=[agents.workload.metrics[0]], start_unix_nano=START_NS,
                    end_unix_nano=START_NS + seconds * 1_000_000_000,
                )  # fmt: skip
                assert len(trace) == seconds * TICKS_PER_SECOND

            ask()
            return [(f"{stage}, one metric, the query RPC with its client, again", timed(ask))]
    finally:
        stop.set()
        thread.join()


def restart_over_a_full_log(agents: Agents, seconds: int) -> list[tuple[str, float]]:
    """An hour that never became a segment: the worst that a restart may find."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        options = StoreOptions(reserve_bytes=0, memory_bytes=8 << 30)
        store = LocalStore(Path(folder), options)
        store.open()
        for second in range(seconds):
            store.append(list(agents.records(second)))
        store.close()
        size = folder_bytes(Path(folder) / "log")
        store = LocalStore(Path(folder), options)
        began = time.perf_counter()
        store.open()
        took = time.perf_counter() - began
        store.close()
    name = f"restart over {seconds / 60:.0f} minutes of {len(agents.uuids)} GPUs in the log ({size / 1e6:.0f} MB)"
    return [(name, took)]


def restart_seconds(directory: Path) -> float:
    def restart() -> None:
        reopened(directory).close()

    return timed(restart, 5)


def measure(
    workload: Workload, gpus: int, seconds: int, *, latencies: bool
) -> tuple[list[Stage], list[tuple[str, float]], int]:
    agents = Agents(workload, gpus, seconds * TICKS_PER_SECOND)
    samples = gpus * seconds * TICKS_PER_SECOND * len(workload.metrics)
    rows: list[tuple[str, float]] = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        directory = Path(folder) / "data"
        store, stages, _ = fill(directory, agents, seconds)
        store.close()
        if latencies:
            rows += read_latencies(directory, agents, seconds, "60 s segments")
            rows += rpc_latencies(directory, agents, seconds, "60 s segments")
            rows.append(("restart over the 60 s segments, log empty", restart_seconds(directory)))
        store = reopened(directory)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.process_time()
        store.maintenance.compact_all()
        took = time.process_time() - began
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peaks = f"peak RSS {before >> 10} -> {after >> 10} MiB"
        print(f"{workload.name}: {peaks}, compaction {took / gpus * 1e3:.0f} ms per GPU-hour", file=sys.stderr)
        store.close()
        layout = store.layout
        stages.append(Stage("after compaction", folder_bytes(layout.folder(SegmentKind.HOUR)), took))
        stages.append(Stage("averages over seconds", folder_bytes(layout.folder(SegmentKind.SECOND))))
        stages.append(Stage("catalogue", layout.catalog.stat().st_size))
        if latencies:
            rows += read_latencies(directory, agents, seconds, "compacted")
            rows += rpc_latencies(directory, agents, seconds, "compacted")
            rows.append(("restart over compacted files", restart_seconds(directory)))
            rows += restart_over_a_full_log(agents, min(seconds, 60))
            rows += restart_over_a_full_log(agents, seconds)
    return stages, rows, samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data/traces"), help="recorded traces")
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    ticks = arguments.seconds * TICKS_PER_SECOND
    recorded = recorded_h100(arguments.data, ticks) if arguments.data.is_dir() else None
    workloads = [
        *([recorded] if recorded else []),
        full_set(recorded, ticks, busy=False),
        full_set(recorded, ticks, busy=True),
    ]
    lines = []
    for workload in workloads:
        latencies = workload is workloads[-2]
        # A quarter of the GPUs tells the bytes as well.
        gpus = arguments.gpus if latencies else max(8, arguments.gpus // 4)
        stages, rows, samples = measure(workload, gpus, arguments.seconds, latencies=latencies)
        lines += [f"{workload.name}: {gpus} GPUs, {len(workload.metrics)} metrics, {samples:,} samples", ""]
        lines += ["| stage | bytes per sample | CPU ms per GPU and hour |", "|---|---|---|"]
        for stage in stages:
            cpu = (
                f"{stage.seconds / gpus * 1e3 * 3600 / arguments.seconds:.0f}" if stage.seconds == stage.seconds else ""
            )
            lines.append(f"| {stage.name} | {stage.size_bytes / samples:.3f} | {cpu} |")
        lines.append("")
        if rows:
            lines += ["| reading an hour | ms |", "|---|---|", *(f"| {name} | {s * 1e3:.1f} |" for name, s in rows), ""]
    text = "\n".join(lines)
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
