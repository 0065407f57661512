"""Real jobs that were recorded with what their processes did, as the records that an agent would send for them."""

from __future__ import annotations

import numpy as np
from support.job_records import START, binding
from support.trace_records import incoming, trace_records
from support.wire_agent import source_ended

from gpusonde.ingest.v1 import ingest_pb2

LOOKS = 30  # in a record
_UNITS = {"lifetime_ms": 1e3, "processor_ms": 1e3}
_COLUMNS = ("forks", "exits", "lifetime_ms", "read_bytes", "written_bytes", "processor_ms")


def activity_record(marks, first, gpus):
    """Looks from ``first`` on, as one record."""
    time_ms = np.round(marks.time_s[first : first + LOOKS] * 1e3).astype(np.int64)
    rows = zip(_COLUMNS, marks.values[:, first : first + LOOKS], strict=True)
    columns = {name: np.round(row * _UNITS.get(name, 1.0)).astype(np.int64).tolist() for name, row in rows}
    return ingest_pb2.Record(
        job_activity=ingest_pb2.JobActivity(
            start_time_unix_nano=START + int(time_ms[0]) * 1_000_000,
            offsets_ms=(time_ms - time_ms[0]).tolist(),
            groups=[ingest_pb2.ProcessGroupActivity(gpu_uuids=gpus, **columns)],
        )
    )


def marked_records(trace, marks, agent_id="agent-1", gpu="GPU-0"):
    """A second of ticks in a record, and behind the ticks of its last look each record of what processes did."""
    inventory, *batches = trace_records(trace, START, end=False, gpu_uuid=gpu)
    said = [inventory, ingest_pb2.Record(job_bindings=ingest_pb2.JobBindings(bindings=[binding(gpu)]))]
    ticks, looks = 0, 0
    for each in batches:
        said.append(each)
        ticks += each.batch.blocks[0].tick_count
        while looks < marks.time_s.size:
            last = min(looks + LOOKS, marks.time_s.size) - 1
            if ticks < len(trace) and marks.time_s[last] > trace.time_s[ticks - 1]:
                break
            said.append(activity_record(marks, looks, [gpu]))
            looks += LOOKS
    said.append(source_ended(0))
    for sequence, record in enumerate(said, start=1):
        record.sequence = sequence
    return incoming(said, agent_id)
