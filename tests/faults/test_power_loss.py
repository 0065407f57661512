"""The agent's spool and the collector's store together, on disks that forget what was not synced when power goes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.faulty_files import FaultyFiles, PowerLost
from support.store_records import Feed, durable_after
from support.wire_agent import START_NS, TICK_NS, batch, block, inventory

from gpusonde.agent.spool import Spool
from gpusonde.collector import LocalStore
from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.model import AgentRow, Position
from gpusonde.collector.storage.samples import TicksEntry

ROUNDS = 60
TICKS = 3


class AgentSide:
    """A spool on a faulty disk, filled with an inventory per start and batches of three ticks."""

    def __init__(self, directory, chance):
        self.directory, self.chance = directory, chance
        self.files = FaultyFiles(chance.randrange(1 << 30))
        self.next_tick = 0
        self.written = {}  # sequence -> its first tick, None for an inventory
        self.damaged = []
        self.committed = 0
        self.spool = None
        self.start()

    def start(self):
        self.spool = Spool(self.directory, max_bytes=1 << 24, segment_bytes=900, agent_id="agent-1", files=self.files)
        self.spool.open()
        assert self.spool.last_sequence >= self.committed, "a committed record is gone"
        # A record that was not committed may be there, be gone, or be there damaged, which a report then says.
        uncommitted = max(self.committed + 1, self.spool.first_available_sequence)
        for sequence in [s for s in self.written if s >= uncommitted]:
            is_there = sequence <= self.spool.last_sequence
            if is_there and self.spool.read(sequence).HasField("loss_report"):
                self.damaged.append(sequence)
            if not is_there or sequence in self.damaged:
                del self.written[sequence]
        self.append(None)
        self.commit()

    def restart(self):
        self.spool._file_lock.release()
        self.spool._appender.close()
        self.spool._reader.close()
        self.files.lose_power()
        self.start()

    def append(self, first_tick):
        record = inventory(0) if first_tick is None else batch(0, block(first_tick=first_tick, ticks=TICKS))
        sequence = self.spool.last_sequence + 1
        self.written[sequence] = first_tick  # before: it may reach the disk although the call does not return
        assert self.spool.append(record) == sequence

    def sample(self, batches):
        for _ in range(batches):
            first, self.next_tick = self.next_tick, self.next_tick + TICKS
            self.append(first)

    def commit(self):
        self.spool.commit()
        self.committed = self.spool.committed_sequence


class CollectorSide:
    """A store on a faulty disk."""

    def __init__(self, directory, chance):
        self.directory, self.chance = directory, chance
        self.files = FaultyFiles(chance.randrange(1 << 30))
        self.acked = 0
        self.store = None
        self.start()

    def start(self):
        self.store = LocalStore(self.directory, StoreConfig(reserve_bytes=0), files=self.files)
        self.store.open()

    def restart(self):
        self.store.close()
        self.files.lose_power()
        self.start()

    def durable(self, spool_id):
        agent = AgentRow("agent-1", spool_id, "instance", 1, "host", "1", b"")
        (durable,) = durable_after(self.store, [agent])
        assert durable >= self.acked, "an acknowledged record is gone"
        return durable

    def take(self, feed, records):
        self.store.samples.append([feed.incoming(record) for record in records])
        self.acked = records[-1].sequence


def stored(store):
    """Sequence and number of every stored tick, in order of arrival."""
    pieces = [
        a.samples for a in store.samples.read_feed("agent-1", "GPU-a", Position(0, 0)) if isinstance(a, TicksEntry)
    ]
    sequences = np.concatenate([piece.sequence for piece in pieces])
    ticks = np.concatenate([(piece.time_unix_nano - START_NS) // TICK_NS for piece in pieces])
    return list(zip(sequences.tolist(), ticks.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_power_lost_on_either_side_at_random_loses_and_repeats_nothing_that_was_committed(tmp_path, seed):
    chance = random.Random(seed)
    agent, collector = AgentSide(tmp_path / "spool", chance), CollectorSide(tmp_path / "store", chance)
    lost = {"agent": 0, "collector": 0}
    for _ in range(ROUNDS):
        name = chance.choice(("agent", "collector"))
        victim = {"agent": agent, "collector": collector}[name]
        victim.files.power_lost_in = chance.randint(0, 40)
        with pytest.raises(PowerLost):
            exchange_for_ever(agent, collector, chance)
        lost[name] += 1
        victim.restart()
    agent.commit()
    deliver(agent, collector, 1000)
    expected = [
        (sequence, first + i)
        for sequence, first in sorted(agent.written.items())
        if first is not None
        for i in range(TICKS)
    ]
    assert stored(collector.store) == expected
    assert [loss.first_sequence for loss in collector.store.facts.losses()] == agent.damaged
    collector.store.close()
    agent.spool.close()
    print(
        f"seed {seed}: power lost {lost['agent']} times at the agent and {lost['collector']} times at the collector; "
        f"{len(agent.written)} records, 0 missing, 0 twice, in order"
    )


def exchange_for_ever(agent, collector, chance):
    """Sample, commit, deliver, flush."""
    while True:
        agent.sample(chance.randint(1, 4))
        if chance.random() < 0.7:
            agent.commit()
        if chance.random() < 0.7:
            deliver(agent, collector, chance.randint(1, 20))
        if chance.random() < 0.15:
            collector.store.flush()


def deliver(agent, collector, at_most):
    """What one session does: ask for the durable sequence, send what follows, take the acknowledgement."""
    spool = agent.spool
    feed = Feed("agent-1", spool.spool_id)
    durable = collector.durable(spool.spool_id)
    spool.acknowledge(durable)
    last = min(spool.committed_sequence, durable + at_most)
    if last > durable:
        collector.take(feed, [spool.read(sequence) for sequence in range(durable + 1, last + 1)])
        spool.acknowledge(collector.acked)
