"""What a collector makes of an agent's batches, with counters whole again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpusonde.agent.batch import inventory_record
from gpusonde.agent.sources.base import GpuDescription, SourceInventory
from gpusonde.common.v1 import gpu_pb2
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.wire import Limits, decode_record

GPUS = 8


@dataclass(frozen=True)
class WholeBlock:
    """One block; ``values`` has shape (metrics, n) like the ticks that it was made of."""

    gpu: int
    time_unix_nano: np.ndarray
    values: np.ndarray
    missed_ticks: int
    blank_counts: dict


def decode(batch, metrics):
    """Return the blocks of a batch, each as a collector takes it."""
    gpus = tuple(GpuDescription(f"GPU-{index}", index) for index in range(GPUS))
    known = decode_record(inventory_record(SourceInventory("test", gpus, tuple(metrics), 0.1)), None, Limits())
    return [_block(block, batch.encoding, known) for block in batch.blocks]


def _block(message, encoding, known):
    record = ingest_pb2.Record(batch=ingest_pb2.SampleBatch(blocks=[message], encoding=encoding))
    (block,) = decode_record(record, known, Limits()).blocks
    values = block.values.astype(np.float64)
    for row, base in zip(block.layout.counters, block.counter_bases, strict=True):
        values[row] += base
    columns = {name: column for column, name in enumerate(block.layout.metrics)}
    counts = {(columns[blank.metric], blank.reason): blank.count for blank in block.blanks}
    assert not any(reason == gpu_pb2.BLANK_REASON_OUT_OF_RANGE for _, reason in counts)
    return WholeBlock(message.gpu, block.time_unix_nano, values, block.missed_ticks, counts)
