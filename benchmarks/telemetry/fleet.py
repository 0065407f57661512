"""Many agents in one process, in real time, over the true wire protocol; a process of its own, so its cost is apart.

Usage: ``python benchmarks/telemetry/fleet.py HOST:PORT --agents N --seconds S`` prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import resource
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
from workload import GpuStream, Job, generated_jobs, inventory_record, jittered_offsets, recorded_jobs

from gpusonde.ingest.v1 import ingest_pb2, ingest_pb2_grpc

_RECONNECT_S = 1.0
_DRAIN_S = 60.0


@dataclass
class Tally:
    """What happened to all agents together."""

    records: int = 0
    repeated: int = 0
    failures: collections.Counter[str] = field(default_factory=collections.Counter)
    ack_s: list[float] = field(default_factory=list)
    connect_s: list[float] = field(default_factory=list)
    most_unacked: int = 0
    late_s: float = 0.0
    bytes_sent: int = 0


class SimulatedAgent:
    """One host: a spool of records in memory, and a stream that sends them until they are acknowledged."""

    def __init__(
        self, number: int, streams: list[GpuStream], offsets: list[bytes], began_ns: int, tally: Tally
    ) -> None:
        self.number = number
        self.name = f"host-{number:06d}"
        self._streams = streams
        self._offsets = offsets
        self._tally = tally
        self._began_ns = began_ns
        self._unacked: collections.deque[ingest_pb2.Record] = collections.deque()
        self._sent_at: dict[int, float] = {}
        self._news = asyncio.Event()
        self.sequence = 0
        self.acked = 0
        self.seconds = 0
        self.connected = asyncio.Event()
        self._append(inventory_record(number, len(streams)))

    def _append(self, record: ingest_pb2.Record) -> None:
        self.sequence += 1
        record.sequence = self.sequence
        self._unacked.append(record)
        self._tally.most_unacked = max(self._tally.most_unacked, len(self._unacked))
        self._news.set()

    def add_second(self, start_unix_nano: int) -> None:
        """Sample one second of all GPUs."""
        record = ingest_pb2.Record()
        batch = record.batch
        batch.encoding = ingest_pb2.ENCODING_FLOAT32_LE_ZSTD
        offsets = self._offsets[(self.number + self.seconds) % len(self._offsets)]
        for gpu, stream in enumerate(self._streams):
            stream.fill(batch.blocks.add(), gpu, self.seconds, start_unix_nano, offsets)
        self.seconds += 1
        self._append(record)

    async def run(self, stub: ingest_pb2_grpc.IngestServiceStub) -> None:
        """Send for ever; connect again when the stream fails."""
        while True:
            try:
                await self._stream(stub)
            except grpc.aio.AioRpcError as error:
                self._tally.failures[f"{error.code().name}: {error.details()}"] += 1
            self.connected.clear()
            await asyncio.sleep(_RECONNECT_S)

    async def _stream(self, stub: ingest_pb2_grpc.IngestServiceStub) -> None:
        began = time.monotonic()
        call = stub.StreamSamples()
        hello = ingest_pb2.Hello(
            agent_id=self.name,
            spool_id=f"spool-{self._began_ns}",
            first_available_sequence=self.acked + 1,
            agent_version="benchmark",
            encodings=[ingest_pb2.ENCODING_FLOAT32_LE, ingest_pb2.ENCODING_FLOAT32_LE_ZSTD],
            agent_start_time_unix_nano=self._began_ns,
            instance_id=f"instance-{self._began_ns}",
        )
        await call.write(ingest_pb2.StreamSamplesRequest(hello=hello))
        answer = await call.read()
        if answer is grpc.aio.EOF:
            await self._fail(call)
        self._acknowledge(answer.hello_ack.durable_sequence)
        window = answer.hello_ack.max_unacked_records or 64
        self._tally.connect_s.append(time.monotonic() - began)
        self.connected.set()
        reading = asyncio.ensure_future(self._read(call))
        sent = self.acked
        try:
            while not reading.done():
                due = [r for r in self._unacked if sent < r.sequence <= self.acked + window] if self._unacked else []
                for record in due:
                    self._tally.repeated += record.sequence in self._sent_at
                    self._sent_at[record.sequence] = time.monotonic()
                    self._tally.records += 1
                    self._tally.bytes_sent += record.ByteSize()
                    await call.write(ingest_pb2.StreamSamplesRequest(record=record))
                    sent = record.sequence
                self._news.clear()
                news = asyncio.ensure_future(self._news.wait())
                await asyncio.wait({news, reading}, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
            await reading
        finally:
            reading.cancel()
            call.cancel()

    async def _read(self, call: grpc.aio.StreamStreamCall) -> None:
        while (answer := await call.read()) is not grpc.aio.EOF:
            if answer.WhichOneof("payload") == "ack":
                self._acknowledge(answer.ack.durable_sequence)
                self._news.set()
        await self._fail(call)

    async def _fail(self, call: grpc.aio.StreamStreamCall) -> None:
        raise grpc.aio.AioRpcError(
            await call.code(), grpc.aio.Metadata(), grpc.aio.Metadata(), details=await call.details()
        )

    def _acknowledge(self, sequence: int) -> None:
        now = time.monotonic()
        while self._unacked and self._unacked[0].sequence <= sequence:
            record = self._unacked.popleft()
            if (sent := self._sent_at.pop(record.sequence, None)) is not None:
                self._tally.ack_s.append(now - sent)
        self.acked = max(self.acked, sequence)


def make_agents(
    count: int, gpus: int, jobs: list[Job], began_ns: int, tally: Tally, seed: int = 11, first: int = 0
) -> list[SimulatedAgent]:
    """Agents whose GPUs play the jobs in turn, each from a second of its own."""
    rng = np.random.default_rng(seed)
    offsets = jittered_offsets()
    agents = []
    for number in range(first, first + count):
        streams = [
            GpuStream(jobs[(number * gpus + gpu) % len(jobs)], int(rng.integers(1 << 20))) for gpu in range(gpus)
        ]
        agents.append(SimulatedAgent(number, streams, offsets, began_ns, tally))
    return agents


async def play(agents: list[SimulatedAgent], target: str, channels: int, seconds: int, tally: Tally) -> float:
    """Connect, sample in real time, wait for the last acknowledgements; return the time of the first tick, Unix s."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.keepalive_time_ms", 20_000),
               ("grpc.keepalive_timeout_ms", 10_000)]  # fmt: skip
    async with contextlib.AsyncExitStack() as stack:
        stubs = [
            ingest_pb2_grpc.IngestServiceStub(
                await stack.enter_async_context(grpc.aio.insecure_channel(target, options=options))
            )
            for _ in range(min(channels, len(agents)) or len(agents))
        ]
        streams = [asyncio.ensure_future(a.run(stubs[i % len(stubs)])) for i, a in enumerate(agents)]
        first_s = time.time() + 0.5
        try:
            for second in range(seconds):
                for i, agent in enumerate(agents):
                    # Hosts are spread over the second; a record is made when its second is over.
                    due = first_s + second + 1 + i / len(agents)
                    if (wait := due - time.time()) > 0.002:
                        await asyncio.sleep(wait)
                    else:
                        tally.late_s = max(tally.late_s, -wait)
                        if i % 8 == 0:
                            await asyncio.sleep(0)
                    agent.add_second(round((due - 1) * 1e9))
            deadline = time.monotonic() + _DRAIN_S
            while any(a.acked < a.sequence for a in agents) and time.monotonic() < deadline:
                await asyncio.sleep(0.1)
        finally:
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
    return first_s


def quantiles_ms(values: list[float]) -> dict[str, float]:
    """Median, 99 % and largest, in milliseconds."""
    if not values:
        return {}
    p50, p99, most = np.quantile(values, [0.5, 0.99, 1.0])
    return {"p50": 1e3 * float(p50), "p99": 1e3 * float(p99), "max": 1e3 * float(most)}


def load_jobs(data: Path | None, count: int, seconds: int) -> list[Job]:
    """Recorded traces where a folder is given, else generated ones."""
    if data is not None:
        return recorded_jobs(sorted(data.glob("titanx_*.csv"))[:count], seconds)
    return generated_jobs(count, seconds)


def main(arguments: list[str] | None = None) -> int:
    """Run the fleet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--agents", type=int, default=125)
    parser.add_argument("--first", type=int, default=0, help="number of the first agent")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of an agent")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--channels", type=int, default=0, help="TCP connections; 0: one per agent")
    parser.add_argument("--jobs", type=int, default=12, help="different traces")
    parser.add_argument("--job-seconds", type=int, default=1800, help="length of a trace before it begins anew")
    parser.add_argument("--data", type=Path, help="folder of recorded traces to play instead of generated ones")
    args = parser.parse_args(arguments)
    tally = Tally()
    jobs = load_jobs(args.data, args.jobs, args.job_seconds)
    began_ns = time.time_ns()
    agents = make_agents(args.agents, args.gpus, jobs, began_ns, tally, first=args.first)
    before = resource.getrusage(resource.RUSAGE_SELF)
    wall = time.monotonic()
    first_s = asyncio.run(play(agents, args.target, args.channels, args.seconds, tally))
    wall_s = time.monotonic() - wall
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    json.dump(
        {
            "agents": args.agents,
            "gpus": args.agents * args.gpus,
            "first_tick_unix_s": first_s,
            "ended_unix_s": first_s + args.seconds,
            "wall_s": wall_s,
            "cpu_per_s": cpu_s / wall_s,
            "records": tally.records,
            "repeated": tally.repeated,
            "unacked_at_end": sum(a.sequence - a.acked for a in agents),
            "most_unacked": tally.most_unacked,
            "latest_record_s": tally.late_s,
            "wire_bytes_per_sample": tally.bytes_sent / max(1, sum(a.seconds for a in agents) * args.gpus * 250),
            "ack_ms": quantiles_ms(tally.ack_s),
            "connect_ms": quantiles_ms(tally.connect_s),
            "failures": dict(tally.failures),
            "sequences": {a.name: a.sequence for a in agents},
        },
        sys.stdout,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
