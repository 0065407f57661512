"""Random lives of a store against a plain model: reading never shows what was flushed, compacted or restarted."""

import random

import numpy as np
import pytest
from support.store_records import EVER, Feed
from support.wire_agent import START_NS, TICK_NS, batch, block

from gpusonde.collector import LocalStore
from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.local.compaction import CompactionSizes
from gpusonde.collector.storage.model import Position
from gpusonde.collector.storage.samples import TicksEntry

HOUR_NS = 3600 * 10**9
# GPU-b is seen by both agents, as after its move to another host.
GPUS = {"agent-1": ("GPU-a", "GPU-b"), "agent-2": ("GPU-b", "GPU-c")}


class Life:
    """A store, and everything that was ever appended to it."""

    def __init__(self, directory, seed):
        self.chance = random.Random(seed)
        self.now_ns = 1_000 * HOUR_NS
        self.directory = directory
        self.compaction = CompactionSizes(
            file_bytes=self.chance.choice([1, 8000, 1 << 20]), batch_gpus=self.chance.choice([1, 2]),
            group_rows=self.chance.choice([15, 40, 1000]), step_rows=self.chance.choice([50, 100_000]),
        )  # fmt: skip
        self.config = StoreConfig(
            reserve_bytes=0,
            cache_bytes=self.chance.choice([0, 2000, 1 << 20]),
            compact_after_s=0.0,
            compact_share=1.0,
            raw_retention_s=0.0,
            second_retention_s=0.0,
        )
        self.feeds = {agent: Feed(agent, f"spool of {agent}", gpus=gpus) for agent, gpus in GPUS.items()}
        self.sequences = dict.fromkeys(GPUS, 1)
        self.ticks = dict.fromkeys(GPUS, 0)
        self.arrived = {gpu: [] for gpus in GPUS.values() for gpu in gpus}  # (spool, sequence, tick)
        self.store = None
        self.restart()
        for agent, feed in self.feeds.items():
            self.store.samples.append([feed.incoming(feed.first)])
            assert self.spool(agent)

    def restart(self):
        if self.store:
            self.store.close()
        self.store = LocalStore(
            self.directory, self.config, compaction=self.compaction, wall_clock_ns=lambda: self.now_ns
        )
        self.store.open()

    def spool(self, agent):
        return list(GPUS).index(agent) + 1

    def append(self):
        agent = self.chance.choice(list(GPUS))
        self.sequences[agent] += 1
        if self.chance.random() < 0.1:  # the host's clock is set, back or forth
            self.ticks[agent] = max(0, self.ticks[agent] + self.chance.randint(-40, 200))
        blocks = []
        for index, gpu in enumerate(GPUS[agent]):
            count = self.chance.randint(1, 12)
            if self.chance.random() < 0.8:
                blocks.append(block(first_tick=self.ticks[agent], ticks=count, gpu_index=index))
                numbers = range(self.ticks[agent], self.ticks[agent] + count)
                self.arrived[gpu] += [(self.spool(agent), self.sequences[agent], tick) for tick in numbers]
        self.ticks[agent] += 12
        if blocks:
            self.store.samples.append([self.feeds[agent].incoming(batch(self.sequences[agent], *blocks))])
        else:
            self.sequences[agent] -= 1

    def step(self):
        self.chance.choices([self.append, self.store.flush, self.wait, self.compact, self.restart], [20, 5, 2, 2, 1])[
            0
        ]()

    def wait(self):
        self.now_ns += self.chance.choice([60 * 10**9, HOUR_NS])

    def compact(self):
        self.chance.choice([self.store.maintenance.run, self.store.maintenance.compact_all])()

    def check(self):
        gpu = self.chance.choice(list(self.arrived))
        arrived = sorted(self.arrived[gpu], key=lambda row: row[:2])  # stable: ticks stay in their order
        low = self.chance.randint(-10, 300)
        high = low + self.chance.choice([0, 1, 30, 1000])
        if self.chance.random() < 0.3:
            low, high = -(10**6), 10**6
        expected = {}
        for spool, sequence, tick in arrived:
            if low <= tick < high:
                expected.setdefault(tick, (spool, sequence))
        found = self.store.samples.read(gpu, START_NS + low * TICK_NS, START_NS + high * TICK_NS, ["sm_active"])
        ticks = ((found.time_unix_nano - START_NS) // TICK_NS).tolist()
        assert ticks == sorted(expected)
        assert list(zip(found.spool.tolist(), found.sequence.tolist(), strict=True)) == [expected[t] for t in ticks]
        assert (found.columns["sm_active"] == (np.array(ticks, int) % 100 / 100).astype(np.float32)).all()
        later = [tick for _, _, tick in arrived if tick >= low]
        first = self.store.samples.next_tick(gpu, START_NS + low * TICK_NS)
        assert first == (START_NS + min(later) * TICK_NS if later else None)
        self.check_arrivals(gpu, arrived)

    def check_arrivals(self, gpu, arrived):
        agent = self.chance.choice([agent for agent, gpus in GPUS.items() if gpu in gpus])
        after = Position(self.spool(agent), self.chance.randint(0, self.sequences[agent]))
        pieces = [a.samples for a in self.store.samples.read_feed(agent, gpu, after) if isinstance(a, TicksEntry)]
        found = [
            row
            for piece in pieces
            for row in zip(
                piece.spool.tolist(),
                piece.sequence.tolist(),
                ((piece.time_unix_nano - START_NS) // TICK_NS).tolist(),
                strict=True,
            )
        ]
        assert found == [row for row in arrived if row[0] == after.spool and row[1] > after.sequence]


@pytest.mark.parametrize("seed", range(8))
def test_what_is_read_is_what_was_appended_whatever_the_store_did_meanwhile(tmp_path, seed):
    life = Life(tmp_path / "data", seed)
    for _ in range(120):
        life.step()
        if life.chance.random() < 0.3:
            life.check()
    life.store.flush()
    life.store.maintenance.compact_all()
    for _ in range(10):
        life.check()
    assert len(life.store.samples.read("GPU-a", *EVER)) == len({tick for _, _, tick in life.arrived["GPU-a"]})
    life.store.close()
