"""What the engine on ClickHouse costs: bytes per sample, CPU of inserts and merges, time of reads.

    python benchmarks/telemetry/clickhouse.py --gpus 64 --out docs/results/telemetry_clickhouse.md

The same hour of records as in storage.py, in the engine inside of this process (chdb): CPU is that of the collector's
part and of the database together, merges included, and there is no network in between.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from storage_records import (
    ALL_NOISY,
    GPUS_PER_HOST,
    START_NS,
    TICKS_PER_SECOND,
    Agents,
    Workload,
    full_set,
    recorded_h100,
)

from gpusonde.collector.config import ClickHouseConfig, StoreConfig
from gpusonde.collector.storage.clickhouse.facts import Ownership
from gpusonde.collector.storage.clickhouse.sql import ClickHouseSql
from gpusonde.collector.storage.clickhouse.store import ClickHouseStore
from gpusonde.collector.storage.model import AgentRow, PendingRecord, Position


class PresentAgents(Agents):
    """Records as if received now: retention goes by receipt."""

    def _incoming(self, agent: str, record: object, decoded: object) -> PendingRecord:
        incoming = super()._incoming(agent, record, decoded)
        object.__setattr__(incoming.entry, "received_unix_nano", time.time_ns())
        return incoming


def table_bytes(sql: ClickHouseSql, table: str) -> tuple[int, int]:
    """Bytes on disk and rows of a table's live parts."""
    ((size, rows),) = sql.rows(
        "SELECT sum(bytes_on_disk), sum(rows) FROM system.parts"
        " WHERE active AND database = currentDatabase() AND table = {table:String}",
        {"table": table},
    )
    return int(size), int(rows)


@dataclass(frozen=True)
class Measured:
    """What one set of samples costs.

    Attributes:
        name: The set.
        rows: What was measured, and the value with its unit.
    """

    name: str
    rows: dict[str, str]


def measure(
    workload: Workload,
    gpus: int,
    seconds: int,
    interval_s: int,
    directory: Path,
    database: str,
    *,
    lossless: bool = False,
) -> Measured:
    agents = PresentAgents(workload, gpus, seconds * TICKS_PER_SECOND)
    samples = gpus * seconds * TICKS_PER_SECOND * len(workload.metrics)
    sql = ClickHouseSql(ClickHouseConfig(f"chdb://{directory}", database))
    store = ClickHouseStore(sql, Ownership("benchmark"), StoreConfig(lossless=lossless))
    store.open()
    for host in range(0, gpus, GPUS_PER_HOST):
        store.samples.register_agents(
            [AgentRow(f"agent-{host:06d}", "spool", "instance", START_NS, "host", "1.0", b"")]
        )
    inserts, spent = [], 0.0
    for second in range(0, seconds, interval_s):
        records = [record for s in range(second, min(second + interval_s, seconds)) for record in agents.records(s)]
        decoded = time.process_time()
        wall = time.perf_counter()
        store.samples.append(records)
        inserts.append(time.perf_counter() - wall)
        spent += time.process_time() - decoded
    left, _ = table_bytes(sql, "samples")
    for table in ("samples", "samples_1s"):
        sql.run(f"OPTIMIZE TABLE {table} FINAL")
    raw, row_count = table_bytes(sql, "samples")
    averages, _ = table_bytes(sql, "samples_1s")
    assert row_count == gpus * seconds * TICKS_PER_SECOND
    end = START_NS + seconds * 1_000_000_000
    uuid, one = agents.uuids[0], [workload.metrics[0]]
    spool = int(store.samples.read(uuid, START_NS, START_NS + 1_000_000_000, one).spool[0])
    behind = Position(spool, seconds - 1)
    median, slow = statistics.median(inserts), sorted(inserts)[int(len(inserts) * 0.99)]
    rows = {
        "bytes per sample, as the inserts left it": f"{left / samples:.3f}",
        "bytes per sample, everything merged": f"{raw / samples:.3f}",
        "averages over seconds, bytes per sample": f"{averages / samples:.3f}",
        "CPU of inserts, averages and the merges beside them, per million samples": f"{spent / samples * 1e9:.0f} ms",
        "the same per append": f"{spent / len(inserts) * 1e3:.0f} ms",
        "one append, median / p99": f"{median * 1e3:.0f} / {slow * 1e3:.0f} ms",
        "reading an hour of one GPU, one metric": milliseconds(lambda: store.samples.read(uuid, START_NS, end, one)),
        "reading an hour of one GPU, all metrics": milliseconds(lambda: store.samples.read(uuid, START_NS, end), 9),
        "a second of one GPU behind a position, from memory": milliseconds(
            lambda: list(store.samples.read_feed("agent-000000", uuid, behind))
        ),
    }
    sql.run(f"DROP DATABASE {database}")
    store.close()
    counted = f"{gpus} GPUs, {len(workload.metrics)} metrics, {seconds} s, an insert every {interval_s} s"
    counted += ", store.lossless" if lossless else ""
    return Measured(f"{workload.name}: {counted}", rows)


def milliseconds(call: Callable[[], object], repeats: int = 25) -> str:
    """Median time of a call, in words."""
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return f"{statistics.median(taken) * 1e3:.1f} ms"


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
        full_set(recorded, ticks, busy=True, noisy=ALL_NOISY),
    ]
    found: list[Measured] = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        directory = Path(folder) / "chdb"
        keeper = ClickHouseSql(ClickHouseConfig(f"chdb://{directory}", "keeper"))
        for i, workload in enumerate(workloads):
            # A quarter of the GPUs tells the bytes as well.
            main = workload is workloads[-3]
            gpus = arguments.gpus if main else max(8, arguments.gpus // 4)
            found.append(measure(workload, gpus, arguments.seconds, 10, directory, f"every_10_{i}"))
            if main:
                found.append(measure(workload, gpus, min(arguments.seconds, 300), 1, directory, f"every_1_{i}"))
        noisy, gpus = workloads[-1], max(8, arguments.gpus // 4)
        found.append(measure(noisy, gpus, arguments.seconds, 10, directory, "lossless", lossless=True))
        keeper.close()
    lines = [f"{number}. {each.name}" for number, each in enumerate(found, 1)]
    lines += ["", f"| measured | {' | '.join(map(str, range(1, len(found) + 1)))} |", "|---" * (len(found) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(each.rows[name] for each in found)} |" for name in found[0].rows]
    text = "\n".join([*lines, ""])
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
