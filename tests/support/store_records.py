"""Records for a store, without a wire between."""

from __future__ import annotations

import time

from support.wire_agent import batch, inventory

from gpusonde.collector.storage.model import AgentRow, EntryKind, LogEntry, PendingRecord
from gpusonde.service.wire import Limits, decode_record

EVER = (0, 1 << 62)


class Feed:
    """Decodes records of one spool as ingest would."""

    def __init__(self, agent_id="agent-1", spool_id="spool-1", **inventory_facts):
        self.agent_id, self.spool_id = agent_id, spool_id
        self.first = inventory(1, **inventory_facts)
        self.inventory = decode_record(self.first, None, Limits())
        self.received_unix_nano = None  # now

    def incoming(self, record):
        decoded = decode_record(record, self.inventory, Limits())
        received, payload = self.received_unix_nano or time.time_ns(), record.SerializeToString()
        entry = LogEntry(self.agent_id, self.spool_id, record.sequence, received, EntryKind.RECORD, payload)
        return PendingRecord(entry, decoded)

    def batches(self, first, last):
        """Records ``first`` to ``last``; number 1 is the inventory, number k holds ticks 10 (k - 2) and following."""
        return [self.incoming(self.first if k == 1 else batch(k)) for k in range(first, last + 1)]


def durable_after(store, agents):
    """Sequences up to which the spools of agents are durable, as those find them that introduce themselves."""
    return [standing.durable_sequence for standing in store.samples.register_agents(agents)]


def inventory_of(store, agent_id, spool_id):
    """The inventory that an agent finds which comes with a spool."""
    (standing,) = store.samples.register_agents([AgentRow(agent_id, spool_id, "instance", 1, "host", "1", b"")])
    return standing.inventory
