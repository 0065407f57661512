"""Records as rows of the tables, column by column."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from gpusonde.collector.records.model import (
    BatchRecord,
    BindingsRecord,
    EventsRecord,
    InventoryRecord,
    LossRecord,
    Position,
    RejectedRecord,
    SourceEndedRecord,
)
from gpusonde.collector.storage.samples import StoredBlock, samples_of
from gpusonde.collector.storage.store import Incoming

_SECOND_NS = 1_000_000_000

# Columns of the tables of facts, as far as Arrow would guess another type or none at all.
_TYPES: Mapping[str, pa.DataType] = {
    "metrics": pa.list_(pa.string()),
    "message": pa.binary(),
    "host": pa.binary(),
    "data": pa.binary(),
    "content": pa.binary(),
    "received": pa.timestamp("s", "UTC"),
}


@dataclass
class Rows:
    """What a group of records adds to the tables.

    Attributes:
        facts: Table -> its rows.
        blocks: Blocks of samples, and when each was received, in Unix nanoseconds.
        reached: Spool -> highest sequence.
    """

    facts: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    blocks: list[tuple[StoredBlock, int]] = field(default_factory=list)
    reached: dict[int, int] = field(default_factory=dict)

    def add(self, position: Position, incoming: Incoming) -> None:
        """Take in one record."""
        entry, record = incoming.entry, incoming.decoded
        key = position._asdict()
        self.reached[position.spool] = position.sequence
        if isinstance(record, BatchRecord):
            # A record may hold several blocks of one GPU: the key of a row is GPU, metric, reason and record.
            blanks: Counter[tuple[str, str, int]] = Counter()
            for block in record.blocks:
                self.blocks.append((StoredBlock(position, block), entry.received_unix_nano))
                for blank in block.blanks:
                    blanks[block.gpu_uuid, blank.metric, blank.reason] += blank.count
            received = entry.received_unix_nano // _SECOND_NS
            self.facts["blanks"] += [
                {"gpu_uuid": gpu, "metric": name, "reason": reason, **key, "count": count, "received": received}
                for (gpu, name, reason), count in blanks.items()
            ]
        elif isinstance(record, InventoryRecord):
            self.facts["inventories"].append({**key, "message": entry.payload})
            self.facts["gpus"] += [
                {
                    "gpu_uuid": gpu.gpu_uuid,
                    "agent_id": entry.agent_id,
                    **key,
                    "message": gpu.message,
                    "metrics": [name for name in record.layout.metrics if name not in gpu.missing_metrics],
                }
                for gpu in record.gpus
            ]
        elif isinstance(record, BindingsRecord):
            self.facts["job_bindings"] += [
                {
                    "gpu_uuid": binding.gpu_uuid,
                    **key,
                    "item": item,
                    "job_id": binding.job_id,
                    "scheduler": binding.scheduler,
                    "start_unix_nano": binding.start_unix_nano,
                    "end_unix_nano": binding.end_unix_nano,
                    "labels": json.dumps(dict(binding.labels)),
                }
                for item, binding in enumerate(record.bindings)
            ]
        elif isinstance(record, SourceEndedRecord):
            self.facts["source_ends"] += [{"gpu_uuid": gpu_uuid, **key} for gpu_uuid in record.gpu_uuids]
        elif isinstance(record, EventsRecord):
            self.facts["gpu_events"] += [
                {
                    "gpu_uuid": event.gpu_uuid,
                    "time_unix_nano": event.time_unix_nano,
                    **key,
                    "item": item,
                    "kind": event.kind,
                    "value": event.value,
                }
                for item, event in enumerate(record.events)
            ]
        elif isinstance(record, LossRecord):
            self.facts["losses"].append({**key, **vars(record)})
        elif isinstance(record, RejectedRecord):
            self.facts["rejections"].append({**key, **vars(record)})

    def gap(self, spool: int, first_sequence: int, last_sequence: int) -> None:
        """Note that records of a spool never came."""
        self.facts["gaps"].append({"spool": spool, "first_sequence": first_sequence, "last_sequence": last_sequence})


def fact_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows, which all have the columns of the first, as columns."""
    return pa.table(
        {name: pa.array([row[name] for row in rows], _TYPES.get(name)) for name in rows[0]},
    )


def sample_table(blocks: Sequence[tuple[StoredBlock, int]]) -> pa.Table:
    """Return the ticks of blocks of any GPUs as rows of the table of samples."""
    # Blocks of one layout are joined at once; those of a fleet have few layouts.
    ordered = sorted(blocks, key=lambda pair: pair[0].block.layout.metrics)
    stored = [block for block, _ in ordered]
    samples = samples_of(stored)
    ticks = [block.block.time_unix_nano.size for block in stored]
    names = list(dict.fromkeys(block.block.gpu_uuid for block in stored))
    index = {name: i for i, name in enumerate(names)}
    gpus = np.repeat(np.array([index[block.block.gpu_uuid] for block in stored], dtype=np.int32), ticks)
    received = np.repeat(np.array([at // _SECOND_NS for _, at in ordered], dtype=np.int64), ticks)
    return pa.table(
        {
            "gpu_uuid": pa.DictionaryArray.from_arrays(pa.array(gpus), pa.array(names, pa.string())),
            "time_unix_nano": samples.time_unix_nano,
            "spool": samples.spool,
            "sequence": samples.sequence,
            "missed_ticks": samples.missed_ticks.astype(np.uint32),
            "received": pa.array(received).cast(pa.timestamp("s", "UTC")),
            # NaN is a value of its own here; pyarrow would make it null if it took these for pandas' columns.
            **{name: pa.array(column, from_pandas=False) for name, column in samples.columns.items()},
        }
    )


def progress_table(reached: Mapping[int, int]) -> pa.Table:
    """Return how far spools are."""
    return pa.table(
        {"spool": np.array([*reached], dtype=np.int64), "sequence": np.array([*reached.values()], dtype=np.int64)}
    )
