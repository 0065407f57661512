"""A spool and its uplink without sampler and daemon, driven from a test."""

import asyncio
import time

import numpy as np
from support.store_records import EVER
from support.wire_agent import START_NS, TICK_NS
from support.wire_agent import batch as wire_batch
from support.wire_agent import inventory as wire_inventory

from gpusonde.agent.config import UplinkConfig
from gpusonde.agent.metrics import SelfCounters
from gpusonde.agent.spool import Spool
from gpusonde.agent.uplink import AgentFacts, Backoff, StreamLimits, Uplink
from gpusonde.collector import LocalStore
from gpusonde.collector.config import StoreConfig
from gpusonde.common.v1 import gpu_pb2
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.tls import ClientSecurity


def batch(value=0, size=50):
    block = ingest_pb2.GpuBlock(tick_count=10, start_time_unix_nano=value, values=b"\x05" * size)
    return ingest_pb2.Record(batch=ingest_pb2.SampleBatch(blocks=[block]))


def inventory():
    return ingest_pb2.Record(inventory=ingest_pb2.Inventory(gpus=[gpu_pb2.Gpu(gpu_uuid="gpu")]))


def uplink_config(target, security=None, allowed_targets=""):
    """``[uplink]`` with an address and a client's files."""
    files = security or ClientSecurity()
    return UplinkConfig(
        collector=target,
        tls_ca=files.ca,
        tls_certificate=files.certificate,
        tls_key=files.key,
        server_name=files.server_name,
        token_file=files.token_file,
        allowed_targets=allowed_targets,
    )


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

    def run(self, target, until=None, timeout_s=150.0, during=None, security=None, allowed_targets="", **limits):
        """Run the uplink until a condition holds (or everything is acknowledged)."""
        self.uplink = Uplink(
            self.spool,
            uplink_config(target, security, allowed_targets),
            AgentFacts(gpu_pb2.Host(host_name="here"), "1.2.3", 17, "instance"),
            self.counters,
            on_batch_interval=self.intervals.append,
            backoff=self.backoff(),
            limits=StreamLimits(**limits),
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
                assert time.monotonic() - began < 100.0

        asyncio.run(main())


class SteadyRig(Rig):
    """Adds a record whenever the test comes by; record k holds ten ticks of its own (see ``wire_agent``)."""

    def __init__(self, directory):
        super().__init__(directory, agent_id="agent-1")

    def grow(self):
        sequence = self.spool.last_sequence + 1
        record = wire_inventory() if sequence == 1 else wire_batch(sequence)
        record.sequence = 0
        self.spool.append(record)
        self.spool.commit()
        if self.uplink is not None:
            self.uplink.notify()

    def grow_a_little(self):
        if self.counters.unacked_records < 40:
            self.grow()


def stored_ticks(directory):
    """Open the store of a stopped collector and return the numbers of the ticks in it, by time."""
    store = LocalStore(directory, StoreConfig(reserve_bytes=0))
    store.open()
    try:
        samples = store.samples.read("GPU-a", *EVER)
        assert store.facts.losses() == []
        assert store.facts.rejections() == []
    finally:
        store.close()
    return (samples.time_unix_nano - START_NS) // TICK_NS


def assert_every_record_once(directory, last_sequence):
    """Expect the ticks of records 2 to the last in the store of a stopped collector, once and in order."""
    np.testing.assert_array_equal(stored_ticks(directory), np.arange(10 * (last_sequence - 1)))
