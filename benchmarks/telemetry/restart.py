"""How long a collector takes to serve again when an hour of samples is in its log and in no segment yet."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from processes import CollectorProcess
from workload import GpuStream, generated_jobs, inventory_record, jittered_offsets

from gpusonde.collector import LocalStore
from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.model import EntryKind, LogEntry, PendingRecord
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.wire import InventoryRecord, Limits, decode_record

_NEVER = StoreConfig(segment_interval_s=1e9, segment_bytes=1 << 40, memory_bytes=1 << 40, reserve_bytes=0)
_GPUS_PER_HOST = 8


@dataclass(frozen=True)
class Restart:
    """What was measured.

    Attributes:
        gpus: GPUs.
        seconds: Of samples in the log.
        log_bytes: Size of the log.
        from_log_s: Until the collector served.
        from_segments_s: The same once they are in segments.
    """

    gpus: int
    seconds: int
    log_bytes: int
    from_log_s: float
    from_segments_s: float


def measure(hosts: int, seconds: int) -> Restart:
    """Fill a log, start a collector on it, stop it, and start it again."""
    with tempfile.TemporaryDirectory(prefix="gpusonde-telemetry-") as name:
        collector = CollectorProcess(Path(name), "runs.track=false")
        collector.store.mkdir(parents=True)
        _fill(collector.store, hosts, seconds)
        log_bytes = sum(part.stat().st_size for part in (collector.store / "log").iterdir())
        try:
            from_log_s = collector.start()
            collector.stop()
            from_segments_s = collector.start()
        finally:
            collector.stop()
    return Restart(hosts * _GPUS_PER_HOST, seconds, log_bytes, from_log_s, from_segments_s)


def _fill(directory: Path, hosts: int, seconds: int) -> None:
    jobs, offsets, limits = generated_jobs(8, 600), jittered_offsets(), Limits()
    streams = [[GpuStream(jobs[g], 97 * host + 13 * g) for g in range(_GPUS_PER_HOST)] for host in range(hosts)]
    inventories: list[InventoryRecord] = []
    store = LocalStore(directory, _NEVER)
    store.open()
    began_ns = time.time_ns() - seconds * 10**9
    try:
        for second in range(-1, seconds):
            group = []
            for host in range(hosts):
                if second < 0:
                    record = inventory_record(host, _GPUS_PER_HOST)
                else:
                    record = ingest_pb2.Record()
                    record.batch.encoding = ingest_pb2.ENCODING_FLOAT32_LE_ZSTD
                    for gpu, stream in enumerate(streams[host]):
                        stream.fill(
                            record.batch.blocks.add(), gpu, second, began_ns + second * 10**9, offsets[second % 64]
                        )
                record.sequence = second + 2
                decoded = decode_record(record, inventories[host] if second >= 0 else None, limits)
                if isinstance(decoded, InventoryRecord):
                    inventories.append(decoded)
                entry = LogEntry(
                    f"host-{host}", "spool", second + 2, began_ns, EntryKind.RECORD, record.SerializeToString()
                )
                group.append(PendingRecord(entry, decoded))
            store.samples.append(group)
    finally:
        store.close()
