"""A trace as the records that an agent would send for it."""

from __future__ import annotations

import time

import numpy as np
from support.wire_agent import descriptor, gpu, source_ended

from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.telemetry import MetricKind, metric


def trace_records(trace, start_ns=1_700_000_000_000_000_000, ticks_per_record=10, end=True, gpu_uuid=None):
    """Inventory, batches and, with ``end``, SourceEnded, numbered from one."""
    described = gpu(gpu_uuid or trace.gpu_uuid or "GPU-trace", trace.gpu_model, replayed=True)
    records = [
        ingest_pb2.Record(
            sequence=1,
            inventory=ingest_pb2.Inventory(
                gpus=[described],
                metrics=[descriptor(name) for name in trace.metrics],
                source="replay",
                sampling_interval_us=100_000,
            ),
        )
    ]
    micros = np.round(trace.time_s * 1e6).astype(np.int64)
    values = np.stack([trace.values[name] for name in trace.metrics])
    counters = [row for row, name in enumerate(trace.metrics) if metric(name).kind is MetricKind.COUNTER]
    for i in range(0, len(trace), ticks_per_record):
        piece = slice(i, i + ticks_per_record)
        bases = np.nan_to_num(np.nanmin(values[counters, piece], axis=1, initial=np.inf), posinf=0.0)
        relative = values[:, piece].copy()
        relative[counters] -= bases[:, None]
        block = ingest_pb2.GpuBlock(
            counter_bases=bases.tolist(),
            tick_count=len(micros[piece]),
            start_time_unix_nano=start_ns + int(micros[i]) * 1000,
            tick_offsets_us=(micros[piece] - micros[i]).astype("<i4").tobytes(),
            values=relative.astype("<f4").tobytes(),
        )
        batch = ingest_pb2.SampleBatch(blocks=[block], encoding=ingest_pb2.ENCODING_FLOAT32_LE)
        records.append(ingest_pb2.Record(sequence=len(records) + 1, batch=batch))
    if end:
        records.append(source_ended(len(records) + 1))
    return records


def incoming(records, agent_id="agent-1", spool_id="spool-1"):
    """Decode records as ingest would."""
    from gpusonde.collector.storage.model import EntryKind, LogEntry, PendingRecord
    from gpusonde.service.wire import InventoryRecord, Limits, decode_record

    inventory, found = None, []
    for record in records:
        decoded = decode_record(record, inventory, Limits())
        if isinstance(decoded, InventoryRecord):
            inventory = decoded
        entry = LogEntry(
            agent_id, spool_id, record.sequence, time.time_ns(), EntryKind.RECORD, record.SerializeToString()
        )
        found.append(PendingRecord(entry, decoded))
    return found
