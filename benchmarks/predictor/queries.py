"""How long one query takes: in this process, and over gRPC on loopback from a collector in a process of its own.

Beside it stands an empty call of gRPC to a process that does nothing else: nothing over gRPC can be faster.
Machines are compared by the CPU time of a plain loop.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
from text import table

from gpusonde.catalog import load_gpus
from gpusonde.cli.commands.predict import to_wire
from gpusonde.collector.client import Client
from gpusonde.predictor.crossgpu import LatencyModel, RunsTable

_QUERIES = 3000
_START_TIMEOUT_S = 60.0
_ROUNDS = 10
_LOOP_ADDITIONS = 2_000_000
# A server whose one method gives back what it gets.
_ECHO = """
import asyncio, grpc

async def serve():
    async def echo(data, context):
        return data

    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler("Echo", {"Say": grpc.unary_unary_rpc_method_handler(echo)})
    server.add_generic_rpc_handlers((handler,))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()

asyncio.run(serve())
"""
# Bytes of a question about one target.
_QUESTION = bytes(950)
# About as long a server waits for the next question of one caller, which finds caches of the processor cold.
_PAUSE_S = 0.002


Timing = tuple[str, int, float, float, float, float, int]


def measure_queries(runs: RunsTable, count: int = _QUERIES) -> list[Timing]:
    """Ask about runs in turn, features included; the ways take turns, so that what else a machine does meets all.

    In process one target is asked for in a loop, and with a pause before each question: the same code, cold.

    Args:
        runs: What is asked about.
        count: Queries of each way.

    Returns:
        For each way of asking: its name, targets of a query, median, 99 % quantile, maximum and mean in seconds,
        number of queries.
    """
    model, every = LatencyModel.shipped(), list(load_gpus().specs)
    seen = {run.gpu.name: run.gpu for run in runs.runs}
    # The next of the four GPUs, so that the learned part answers.
    names = sorted(seen)
    other = {name: seen[names[(i + 1) % len(names)]] for i, name in enumerate(names)}
    with _collector() as address, Client(address) as client, _echo() as say:
        one = "in process, one target"

        def ask_one(i: int) -> object:
            return model.predict(runs.run(i).measurement(), [other[runs.run(i).gpu.name]])

        ways: list[tuple[str, int, Callable[[int], object], float]] = [
            (one, 1, ask_one, 0.0),
            (f"{one}, {1000 * _PAUSE_S:.0f} ms after the one before", 1, ask_one, _PAUSE_S),
            (
                f"in process, {len(every)} targets",
                len(every),
                lambda i: model.predict(runs.run(i).measurement(), every),
                0.0,
            ),
            ("gRPC on loopback, empty call", 0, lambda _: say(_QUESTION, timeout=30.0), 0.0),
            (
                "gRPC on loopback, one target",
                1,
                lambda i: client.predict_measurement(
                    to_wire(runs.run(i).measurement()), [other[runs.run(i).gpu.name].name]
                ),
                0.0,
            ),
            (
                f"gRPC on loopback, {len(every)} targets",
                len(every),
                lambda i: client.predict_measurement(to_wire(runs.run(i).measurement()), []),
                0.0,
            ),
        ]
        seconds: list[list[float]] = [[] for _ in ways]
        for turn in range(-1, _ROUNDS):  # the first one warms up
            for (_, _, ask, pause_s), measured in zip(ways, seconds, strict=True):
                numbers = range(turn * count // _ROUNDS, (turn + 1) * count // _ROUNDS)
                asked = _timed(ask, len(runs), numbers, pause_s)
                measured.extend(asked if turn >= 0 else ())
    return [
        (name, targets, *np.quantile(measured, (0.5, 0.99, 1.0)).tolist(), float(np.mean(measured)), len(measured))
        for (name, targets, _, _), measured in zip(ways, seconds, strict=True)
    ]


def queries_section(runs: RunsTable) -> str:
    """Times as a table."""
    rows = [
        (
            name,
            count,
            *(f"{1000 * seconds:.2f} ms" for seconds in (p50, p99, worst)),
            f"{targets / mean:,.0f}" if targets else "",
        )
        for name, targets, p50, p99, worst, mean, count in measure_queries(runs)
    ]
    loop_s = 20_000_000 / _LOOP_ADDITIONS * min(_time_loop() for _ in range(5))
    load = os.getloadavg()[0]
    return (
        "## Time of one query\n\nFrom a run's measurement to predictions, warm, over gRPC with the client's part, "
        "one caller. Aims for one target: p50 < 0.5 ms and p99 < 2 ms in process, p99 < 5 ms over gRPC; for several "
        f"at once 1,000 predictions a second. Load of the machine: {load:.1f} on {os.cpu_count()} cores; twenty "
        f"million additions in a loop take {loop_s:.2f} s of its CPU.\n\n"
        + table(("asked", "queries", "median", "99 % quantile", "longest", "predictions per second"), rows)
    )


def _timed(ask: Callable[[int], object], runs: int, numbers: range, pause_s: float) -> list[float]:
    seconds = []
    for i in numbers:
        if pause_s:
            time.sleep(pause_s)
        start = time.perf_counter()
        ask(i % runs)
        seconds.append(time.perf_counter() - start)
    return seconds


def _time_loop() -> float:
    start, i = time.process_time(), 0
    while i < _LOOP_ADDITIONS:
        i += 1
    return time.process_time() - start


@contextlib.contextmanager
def _echo() -> Iterator[Callable[..., object]]:
    """A server that does nothing but answer; yields what calls it."""
    process = subprocess.Popen([sys.executable, "-c", _ECHO], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        with grpc.insecure_channel(f"127.0.0.1:{process.stdout.readline().strip()}") as channel:
            yield channel.unary_unary("/Echo/Say")
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def _collector() -> Iterator[str]:
    """A collector with an empty store; yields its address."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "gpusonde.cli", "collector", "--listen", "127.0.0.1:0", "--store", folder]
        command += ["--set", "security.questions_per_second=1000000"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            file, deadline = Path(folder) / "address", time.monotonic() + _START_TIMEOUT_S
            while not file.is_file():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"no collector: {' '.join(command)} ended with {process.poll()}")
                time.sleep(0.05)
            yield file.read_text(encoding="utf-8").strip()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
