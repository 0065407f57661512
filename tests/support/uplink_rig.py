"""A spool and its uplink without sampler and daemon, driven from a test."""

import asyncio
import time

from gpusonde.agent.counters import SelfCounters
from gpusonde.agent.spool import Spool
from gpusonde.agent.uplink import AgentFacts, Backoff, Uplink, UplinkSettings
from gpusonde.common.v1 import gpu_pb2
from gpusonde.ingest.v1 import ingest_pb2


def batch(value=0, size=50):
    block = ingest_pb2.GpuBlock(tick_count=10, start_time_unix_nano=value, values=b"\x05" * size)
    return ingest_pb2.Record(batch=ingest_pb2.SampleBatch(blocks=[block]))


def inventory():
    return ingest_pb2.Record(inventory=ingest_pb2.Inventory(gpus=[gpu_pb2.Gpu(gpu_uuid="gpu")]))


class Rig:
    """A spool, its uplink and a quick back-off that remembers what was asked of it."""

    def __init__(self, directory, **spool_options):
        self.counters = SelfCounters()
        self.spool = Spool(directory, **{"max_bytes": 1 << 22, "counters": self.counters, **spool_options})
        self.spool.open()
        self.bounds = []
        self.intervals = []
        self.uplink = None

    def fill(self, count):
        for i in range(count):
            self.spool.append(inventory() if self.spool.last_sequence == 0 else batch(i))
        self.spool.commit()
        if self.uplink is not None:
            self.uplink.notify()

    def backoff(self):
        def draw(low, high):
            self.bounds.append((low, high))
            return 0.01

        return Backoff(uniform=draw)

    def run(self, target, until=None, timeout_s=60.0, during=None, security=None, **settings):
        """Run the uplink until a condition holds (or everything is acknowledged)."""
        self.uplink = Uplink(
            self.spool,
            UplinkSettings(target, **settings),
            AgentFacts(gpu_pb2.Host(host_name="here"), "1.2.3", 17, "instance"),
            self.counters,
            on_batch_interval=self.intervals.append,
            backoff=self.backoff(),
            security=security,
        )
        condition = until or (lambda: self.counters.acked_sequence == self.spool.last_sequence)

        async def main():
            running = asyncio.ensure_future(self.uplink.run())
            deadline = time.monotonic() + timeout_s
            try:
                while not condition():
                    assert time.monotonic() < deadline, f"not within {timeout_s} s: {self.counters}"
                    assert not running.done(), running.exception()
                    if during is not None:
                        during()
                    await asyncio.sleep(0.01)
            finally:
                began = time.monotonic()
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                assert time.monotonic() - began < 2.0

        asyncio.run(main())
