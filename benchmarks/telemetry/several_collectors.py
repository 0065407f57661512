"""Four collectors on one ClickHouse schema: what a greeting costs each of them, and what the death of one does.

The engine (chdb) answers over HTTP from this process, so that the collectors' CPU is theirs alone.

Usage: ``python benchmarks/telemetry/several_collectors.py [--agents N] [--greetings N] [--seconds S] [--out FILE]``.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import grpc.aio
import numpy as np
from processes import CollectorProcess, cpu_seconds, thread_seconds, usage

from gpusonde.collector.client import Client
from gpusonde.collector.config import ClickHouseConfig
from gpusonde.collector.storage.clickhouse.facts import ClickHouseFacts
from gpusonde.collector.storage.clickhouse.sql import ClickHouseSql
from gpusonde.ingest.v1 import ingest_pb2, ingest_pb2_grpc
from gpusonde.telemetry import read_trace

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from support.agent_fleet import AgentFleet, FleetAgent
from support.clickhouse_http import ClickHouseHttp
from support.trace_records import trace_records

_TRACE = Path(__file__).parents[2] / "tests" / "data" / "demo_trace.parquet"
_LONE = 40
# A service of the same interface that reads a message and writes one, and then waits for the end of the stream.
_FLOOR = """
import asyncio, grpc.aio
from gpusonde.ingest.v1 import ingest_pb2, ingest_pb2_grpc

class Floor(ingest_pb2_grpc.IngestServiceServicer):
    async def StreamSamples(self, requests, context):
        await requests.__anext__()
        await context.write(ingest_pb2.StreamSamplesResponse(hello_ack=ingest_pb2.HelloAck()))
        async for _ in requests:
            pass

async def main():
    server = grpc.aio.server()
    ingest_pb2_grpc.add_IngestServiceServicer_to_server(Floor(), server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()

asyncio.run(main())
"""


async def _greet(target: str, names: Sequence[str], start_unix_nano: int) -> None:
    """Greet as many agents, of processes that began at a time, and end their streams once all are answered."""

    async def one(name: str) -> None:
        # A connection each, as hosts have.
        async with grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = ingest_pb2_grpc.IngestServiceStub(channel).StreamSamples()
            hello = ingest_pb2.Hello(
                agent_id=name,
                spool_id=f"spool-{name}",
                instance_id=f"instance-{name}",
                first_available_sequence=1,
                agent_start_time_unix_nano=start_unix_nano,
                encodings=[ingest_pb2.ENCODING_FLOAT32_LE],
            )
            await call.write(ingest_pb2.StreamSamplesRequest(hello=hello))
            answer = await call.read()
            assert answer is not grpc.aio.EOF, await call.details()
            call.cancel()

    await asyncio.gather(*map(one, names))


def _in_store(collector: CollectorProcess) -> float:
    """Return the CPU seconds of the threads that ask the database: Python's, but for the first with its event loop."""
    of_python = [spent for name, spent in thread_seconds(collector.pid).items() if name.endswith("python")]
    return sum(of_python[1:])


def grpc_alone(pause_s: float) -> float:
    """Return the CPU seconds that one lone greeting costs a service which does nothing with it.

    Args:
        pause_s: Between one and the next, as a collector's answer takes.
    """
    with subprocess.Popen([sys.executable, "-c", _FLOOR], stdout=subprocess.PIPE, text=True) as floor:
        assert floor.stdout
        try:
            address = f"127.0.0.1:{int(floor.stdout.readline())}"
            asyncio.run(_greet(address, ["first"], 1))
            before = cpu_seconds(floor.pid)
            for number in range(_LONE):
                asyncio.run(_greet(address, [f"lone-{number}"], 1))
                time.sleep(pause_s)
            return (cpu_seconds(floor.pid) - before) / _LONE
        finally:
            floor.terminate()


def greetings(collector: CollectorProcess, count: int) -> dict[str, tuple[float, float, float]]:
    """Return kind of greeting -> CPU seconds of the collector for one, those of them in its store, and wall seconds.

    All without what it takes when idle.
    """
    names = [f"greeted-{number}" for number in range(count)]
    lone = [f"lone-{number}" for number in range(_LONE)]

    def spent() -> np.ndarray:
        return np.array([cpu_seconds(collector.pid), _in_store(collector), time.monotonic()])

    # What it does on its own, such as looking for agents that have gone.
    before = spent()
    time.sleep(15.0)
    idle = spent() - before
    idle /= idle[-1]

    began = time.time_ns()

    def measure(groups: Sequence[Sequence[str]], start_unix_nano: int = began) -> tuple[float, float, float]:
        before = spent()
        for group in groups:
            asyncio.run(_greet(collector.address, group, start_unix_nano))
        time.sleep(0.5)
        taken = spent() - before
        number = sum(map(len, groups))
        cpu_s, store_s, _ = (taken - idle * taken[-1]) / number
        return float(cpu_s), float(store_s), float(taken[-1] - 0.5) / number

    one_by_one = [[name] for name in lone]
    return {
        f"{count} unknown agents at once": measure([names]),
        f"{count} known agents at once": measure([names]),
        f"{len(lone)} unknown agents, one after another": measure(one_by_one),
        f"{len(lone)} known agents, one after another": measure(one_by_one),
        f"{len(lone)} known agents that were started anew, one after another": measure(
            [[name] for name in lone], began + 1
        ),
    }


def death_of_one(
    collectors: Sequence[CollectorProcess], facts: ClickHouseFacts, directory: Path, agents: int, seconds: int
) -> dict[str, str]:
    """Run a fleet in real time, kill the collector with most agents after a third and start it after two."""
    trace = read_trace(_TRACE)
    made, expected = [], len(trace.time_s[: 10 * (seconds - 1)])
    for number in range(agents):
        records = trace_records(trace, ticks_per_record=10, gpu_uuid=f"GPU-{number}", end=False)[:seconds]
        made.append(FleetAgent(directory, f"host-{number}", [one.address for one in collectors], records, 15.0))

    def owners() -> dict[str, str]:
        return {agent.name: found[agent.name].collector for agent in made if agent.name in (found := facts.owners())}

    names = {f"collector-{number}": one for number, one in enumerate(collectors)}
    with AgentFleet(made) as fleet:
        killed_s, began_s = 0.0, time.monotonic()
        orphans: dict[str, int] = {}
        served: dict[str, float] = {}
        addresses = {one.address: name for name, one in names.items()}
        home = {agent.name: addresses[agent.home] for agent in made}
        victim = ""
        step = 0
        while step < seconds:
            if time.monotonic() >= began_s + step:
                step += 1
                fleet.feed(step)
                if step == seconds // 3:
                    owned = owners()
                    victim = Counter(owned.values()).most_common(1)[0][0]
                    before = usage(names[victim].pid)
                    names[victim].stop(9)  # type: ignore[arg-type]
                    killed_s = time.monotonic()
                    orphans = {agent.name: agent.acked for agent in made if owned[agent.name] == victim}
                if step == 2 * seconds // 3:
                    names[victim].start()
                    back_s = time.monotonic()
            for agent in made:
                if agent.name in orphans and agent.name not in served and agent.acked > orphans[agent.name]:
                    served[agent.name] = time.monotonic() - killed_s
            time.sleep(0.01)
        fleet.wait_acked(seconds)
        while owners() != home and time.monotonic() < back_s + 180.0:
            time.sleep(0.5)
        returned_s = time.monotonic() - back_s
        at_home = owners() == home
    with Client(collectors[0].address) as client:
        stored = [len(client.read_samples(f"GPU-{number}")) for number in range(agents)]
    return {
        "agents of each collector": ", ".join(map(str, sorted(Counter(home.values()).values()))),
        "agents of the one that was killed": str(len(orphans)),
        "until their next acknowledgement, median / last": (
            f"{statistics.median(served.values()):.1f} / {max(served.values()):.1f} s"
        ),
        "ticks lost": str(sum(max(0, expected - found) for found in stored)),
        "ticks there twice": str(sum(max(0, found - expected) for found in stored)),
        "until all were back at the one that was started again": f"{returned_s:.0f} s" if at_home else "not in 180 s",
        "CPU of the killed one until then, per agent and second": (
            f"{1e3 * before.cpu_s / (seconds // 3) / max(1, len(orphans)):.1f} ms, its start included"
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--greetings", type=int, default=500)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpusonde-telemetry-") as name:
        directory = Path(name)
        (directory / "password").write_text("s3cret")
        with ClickHouseHttp(directory / "chdb") as server:
            collectors = [
                CollectorProcess(
                    directory / f"collector-{number}",
                    "store.engine=clickhouse",
                    f"server.id=collector-{number}",
                    f"clickhouse.url={server.url}",
                    "clickhouse.user=gpusonde",
                    f"clickhouse.password_file={directory / 'password'}",
                    "runs.track=false",
                )
                for number in range(4)
            ]
            sql = None
            try:
                for one in collectors:
                    one.start()
                sql = ClickHouseSql(ClickHouseConfig(server.url, "gpusonde", "gpusonde", str(directory / "password")))
                greeted = greetings(collectors[0], arguments.greetings)
                rows = death_of_one(collectors, ClickHouseFacts(sql), directory, arguments.agents, arguments.seconds)
            finally:
                for one in collectors:
                    one.stop()
                if sql:
                    sql.close()
    lone_s = [wall for kind, (_, _, wall) in greeted.items() if "one after another" in kind]
    lines = ["| greetings | CPU of the collector, each | of that in its store | wall time, each |", "|---|---|---|---|"]
    lines += [
        f"| {kind} | {1e3 * cpu:.2f} ms | {1e3 * store:.2f} ms | {1e3 * wall:.1f} ms |"
        for kind, (cpu, store, wall) in greeted.items()
    ]
    lines.append(f"| gRPC alone, one after another | {1e3 * grpc_alone(min(lone_s)):.2f} ms | - | - |")
    lines += [
        "",
        "| four collectors, one killed | |",
        "|---|---|",
        *(f"| {key} | {value} |" for key, value in rows.items()),
    ]
    text = "\n".join([*lines, ""])
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
