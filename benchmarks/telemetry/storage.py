"""What samples cost on disk at every stage, and how long reading them takes.

    python benchmarks/telemetry/storage.py --gpus 64 --out build/telemetry_storage.md

Fills a store with an hour of records as agents send them, flushes a segment a minute, compacts, and reads.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rounding import rounding_table
from storage_records import ALL_NOISY, START_NS, TICKS_PER_SECOND, Agents, Workload, full_set, recorded_h100

from gpusonde.collector import CollectorConfig, LocalStore, run_collector
from gpusonde.collector.client import Client
from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.local import SegmentKind

# Records beyond the hour, for appends beside compaction.
SPARE_SECONDS = 200
PAGE = """\
# What samples cost on disk, and how long reading takes

Printed by `python benchmarks/telemetry/storage.py --gpus {gpus} --out FILE` on {date},
{cores} cores, busy with other work: CPU times can be trusted, wall times are upper bounds.

An hour at 10 Hz, records of 8 GPUs and a second each, times that jitter by 0.3 ms. Data:

1. the nvidia-smi recordings of eight H100s in `../shared/data/traces/h100_ckpt*.csv`, as recorded, 11 minutes repeated;
2. all 27 metrics: activity follows the power recorded there, eleven ratios and rates have 5 % of noise in all bits of a
   float32, the others are quantised as drivers do, zeros where the recorded GPUs were idle;
3. the same without idle stretches;
4. the same with noise in all 14 ratios and rates, which is the worst case.

A sample is one value of one metric; its bytes include times, sequences and footers. The bars are 1.5 bytes per sample
after compaction, and 5 ms for an hour of one GPU and one metric, warm (the same read again; *cold*: a fresh process,
pages not cached; *footers*: these and pages cached, columns not). Compaction gets a quarter of a core. An hour in the
log means that no segment could be written for so long; a restart normally finds a minute of it.

A lossless code ends above the bar with data 4: 5 % of Gaussian noise in a float32 is worth 21 bits, 14 columns of it
1.37 bytes per sample of all 27, power and times another 0.15. With Brotli in place of zstd `store.lossless` takes 4 %
less, for twice the time of reading and writing.

"""
ROUNDING = """\
What rounding changes: every trace of the sets of [epochs.md](epochs.md), two of each generated family, looked at as
agents send it and as a compacted store gives it back (`benchmarks/telemetry/rounding.py`)."""


@dataclass
class Stage:
    """Bytes on disk at one stage."""

    name: str
    size_bytes: int
    seconds: float = float("nan")


class Times(NamedTuple):
    """Seconds on the clock, and of CPU time of all threads."""

    wall: float
    cpu: float


def folder_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


def fill(directory: Path, agents: Agents, seconds: int) -> tuple[LocalStore, list[Stage], float]:
    """Store the records, flushing once a minute of records; returns the bytes of the log and of the segments."""
    now = [START_NS]
    store = LocalStore(directory, StoreConfig(reserve_bytes=0), wall_clock_ns=lambda: now[0])
    store.open()
    logged = 0
    flushing = 0.0
    for second in range(seconds):
        store.samples.append(list(agents.records(second)))
        now[0] += 1_000_000_000
        if second % 60 == 59 or second == seconds - 1:
            logged += folder_bytes(directory / "log")
            began = time.process_time()
            store.flush()
            flushing += time.process_time() - began
    return store, [Stage("log", logged), Stage("60 s segments", folder_bytes(directory / "segments"), flushing)], logged


def append_latencies(directory: Path, agents: Agents, seconds: int) -> list[tuple[str, Times]]:
    """Time group commits ten times a second, without and with compaction beside them."""
    store = LocalStore(directory, StoreConfig(reserve_bytes=0), wall_clock_ns=lambda: START_NS + 2 * 3600 * 10**9)
    store.open()
    waiting = [list(agents.records(second)) for second in range(seconds, seconds + SPARE_SECONDS)]
    rows = []
    half = len(waiting) // 2
    for name, groups, compacts in (("alone", waiting[:half], False), ("while compaction runs", waiting[half:], True)):
        worker = threading.Thread(target=store.maintenance.run)
        if compacts:
            worker.start()
        taken, worked = [], []
        for group in groups:
            began, worked_before = time.perf_counter(), time.thread_time()
            store.samples.append(group)
            taken.append(time.perf_counter() - began)
            worked.append(time.thread_time() - worked_before)
            time.sleep(max(0.0, 0.1 - taken[-1]))
        ended = compacts and not worker.is_alive()
        if compacts:
            worker.join()
        what = f"append of a second of all GPUs, {name}" + (" (it ended before)" if ended else "")
        rows += [
            (f"{what}, p{share}", Times(float(np.percentile(taken, share)), float(np.percentile(worked, share))))
            for share in (50, 99)
        ]
    store.close()
    return rows


def forget_pages(directory: Path) -> None:
    """Have the kernel forget the pages of all segments."""
    for path in directory.rglob("*.parquet"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def timed(call: Callable[[], object], repeats: int = 25) -> Times:
    """Medians."""
    wall, cpu = [], []
    for _ in range(repeats):
        began, worked = time.perf_counter(), time.process_time()
        call()
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - worked)
    return Times(statistics.median(wall), statistics.median(cpu))


def reopened(directory: Path, cache_bytes: int = 64 << 20) -> LocalStore:
    store = LocalStore(directory, StoreConfig(reserve_bytes=0, cache_bytes=cache_bytes))
    store.open()
    return store


def read_latencies(directory: Path, agents: Agents, seconds: int, stage: str) -> list[tuple[str, Times]]:
    """Time reading an hour of one metric of one GPU, in several states of the caches."""
    end = START_NS + seconds * 1_000_000_000
    rows = []
    gpus = iter(agents.uuids * 100)

    def read(store: LocalStore, gpu: str, metrics: list[str] | None) -> None:
        samples = store.samples.read(gpu, START_NS, end, metrics)
        assert len(samples) == seconds * TICKS_PER_SECOND

    one = [agents.workload.metrics[0]]

    def cold() -> Times:
        store = reopened(directory)
        forget_pages(directory)
        taken = timed(lambda: read(store, next(gpus), one), 1)
        store.close()
        return taken

    rows.append(
        (
            f"{stage}, one metric, cold",
            sorted(cold() for _ in range(7))[3],
        )
    )
    store = reopened(directory, cache_bytes=0)
    for uuid in agents.uuids:
        read(store, uuid, one)
    rows.append((f"{stage}, one metric, footers", timed(lambda: read(store, next(gpus), one))))
    rows.append(
        (
            f"{stage}, all {len(agents.workload.metrics)} metrics, footers",
            timed(lambda: read(store, next(gpus), None), 9),
        )
    )
    store.close()
    store = reopened(directory)
    read(store, agents.uuids[0], one)
    rows.append((f"{stage}, one metric, warm", timed(lambda: read(store, agents.uuids[0], one))))
    store.close()
    return rows


def rpc_latencies(directory: Path, agents: Agents, seconds: int, stage: str) -> list[tuple[str, Times]]:
    """The same through gRPC."""
    stop, ready, address = threading.Event(), threading.Event(), []
    config = CollectorConfig.load(
        overrides={
            "server.listen": "127.0.0.1:0", "store.directory": str(directory), "runs.track": "false",
            "store.compact": "false", "metrics.listen": "", "store.raw_retention": "0s", "store.second_retention": "0s",
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
            return [(f"{stage}, one metric, warm, by RPC", timed(ask))]
    finally:
        stop.set()
        thread.join()


def restart_over_a_full_log(agents: Agents, seconds: int) -> list[tuple[str, Times]]:
    """An hour that never became a segment: the worst that a restart may find."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        options = StoreConfig(reserve_bytes=0, memory_bytes=8 << 30)
        store = LocalStore(Path(folder), options)
        store.open()
        for second in range(seconds):
            store.samples.append(list(agents.records(second)))
        store.close()
        size = folder_bytes(Path(folder) / "log")
        store = LocalStore(Path(folder), options)
        took = timed(store.open, 1)
        store.close()
    name = f"restart over {seconds / 60:.0f} minutes of {len(agents.uuids)} GPUs in the log ({size / 1e6:.0f} MB)"
    return [(name, took)]


def restart_seconds(directory: Path) -> Times:
    def restart() -> None:
        reopened(directory).close()

    return timed(restart, 5)


def compact(directory: Path, *, lossless: bool = False) -> tuple[LocalStore, float]:
    """Compact a closed store; returns it closed again, and the CPU seconds that took."""
    store = LocalStore(directory, StoreConfig(reserve_bytes=0, lossless=lossless))
    store.open()
    began = time.process_time()
    store.maintenance.compact_all()
    took = time.process_time() - began
    store.close()
    return store, took


def measure(
    workload: Workload, gpus: int, seconds: int, *, latencies: bool
) -> tuple[list[Stage], list[tuple[str, Times]], int]:
    agents = Agents(workload, gpus, (seconds + SPARE_SECONDS) * TICKS_PER_SECOND)
    samples = gpus * seconds * TICKS_PER_SECOND * len(workload.metrics)
    rows: list[tuple[str, Times]] = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        directory = Path(folder) / "data"
        store, stages, _ = fill(directory, agents, seconds)
        store.close()
        if latencies:
            copy = Path(folder) / "copy"
            shutil.copytree(directory, copy)
            rows += append_latencies(copy, agents, seconds)
            shutil.rmtree(copy)
            rows += read_latencies(directory, agents, seconds, "60 s segments")
            rows += rpc_latencies(directory, agents, seconds, "60 s segments")
            rows.append(("restart over the 60 s segments, log empty", restart_seconds(directory)))
        copy = Path(folder) / "lossless"
        shutil.copytree(directory, copy)
        store, took = compact(copy, lossless=True)
        lossless = Stage("compacted, `store.lossless`", folder_bytes(store.layout.folder(SegmentKind.HOUR)), took)
        shutil.rmtree(copy)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        store, took = compact(directory)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peaks = f"peak RSS {before >> 10} -> {after >> 10} MiB"
        print(f"{workload.name}: {peaks}, compaction {took / gpus * 1e3:.0f} ms per GPU-hour", file=sys.stderr)
        layout = store.layout
        stages += [lossless, Stage("after compaction", folder_bytes(layout.folder(SegmentKind.HOUR)), took)]
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
    ticks = (arguments.seconds + SPARE_SECONDS) * TICKS_PER_SECOND
    recorded = recorded_h100(arguments.data, ticks) if arguments.data.is_dir() else None
    workloads = [
        *([recorded] if recorded else []),
        full_set(recorded, ticks, busy=False),
        full_set(recorded, ticks, busy=True),
        full_set(recorded, ticks, busy=True, noisy=ALL_NOISY),
    ]
    names: list[str] = []
    by_stage: dict[str, list[str]] = {}
    timed_rows: list[tuple[str, Times]] = []
    for workload in workloads:
        latencies = workload is workloads[-3]
        # A quarter of the GPUs tells the bytes as well.
        gpus = arguments.gpus if latencies else max(8, arguments.gpus // 4)
        stages, rows, samples = measure(workload, gpus, arguments.seconds, latencies=latencies)
        names.append(f"{workload.name}: {gpus} GPUs, {samples:,} samples")
        for stage in stages:
            cpu_ms = stage.seconds / gpus * 1e3 * 3600 / arguments.seconds
            took = f" ({cpu_ms:.0f} ms)" if stage.seconds == stage.seconds else ""
            by_stage.setdefault(stage.name, []).append(f"{stage.size_bytes / samples:.3f}{took}")
        timed_rows += rows
    lines = ["Bytes per sample, in brackets CPU per GPU and hour:", ""]
    lines += [f"| stage | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in by_stage.items()]
    lines += ["", f"{names[-3]}:", "", "| time of | ms | ms of CPU time |", "|---|---|---|"]
    lines += [f"| {name} | {times.wall * 1e3:.1f} | {times.cpu * 1e3:.1f} |" for name, times in timed_rows]
    lines += ["", ROUNDING, "", *rounding_table(arguments.data, per_family=2, jobs=os.cpu_count() or 1), ""]
    print("\n".join(lines))
    if arguments.out:
        page = PAGE.format(date=time.strftime("%Y-%m-%d"), cores=os.cpu_count(), gpus=arguments.gpus)
        arguments.out.write_text(page + "\n".join(lines))


if __name__ == "__main__":
    main()
