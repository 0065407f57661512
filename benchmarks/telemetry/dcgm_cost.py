"""What an agent costs that samples through DCGM, beside one that samples through NVML: both in one run.

Usage: ``python benchmarks/telemetry/dcgm_cost.py [--rounds N] [--seconds S] [--gpus N] [--call-us T]``. Of NVML there
are two agents over the stand-in: one whose calls answer at once, and one whose calls keep their caller's core busy for
as long as NVIDIA's do. Of DCGM the tests' stand-in takes watches and history; latest values go through a stand-in for
libdcgm in C that does what the library does in its caller's process (``tests/support/fake_libdcgm.c``) and asks an
engine in another process, whose time is told apart. Shares are of a core, in windows that follow each other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from processes import CollectorProcess, cpu_seconds, thread_seconds

_TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path.insert(0, str(_TESTS))
from support.fake_dcgm.engine import install  # noqa: E402 - the stand-ins are the tests'
from support.fake_libdcgm import SharedEngine, serve  # noqa: E402
from support.fake_nvidia import compile_library  # noqa: E402

_SETTLE_S = 8.0
# Requests of history are not made by the stand-in in C. Each takes its client what one of a real engine took (4.4.2).
_HISTORY_REQUEST_S = 0.00026
# What a call of NVML that asks a GPU takes on its caller's core: the shortest that was found published, the mean of the
# medians of nvmlDeviceGetUtilizationRates (7.2), MemoryInfo (14), ClockInfo (1.8) and PowerUsage (2.2) on an idle RTX
# 5070 Ti ("Spike-01B NVIDIA NVML GPU Metrics And Background-Cost Probe", 2026-08-14). Of GPM's samples nothing was
# found. A driver whose GPU has a system processor (Hopper and later always) polls for its answer on the caller's core
# (open-gpu-kernel-modules 595.45, _kgspRpcRecvPoll), 93 to 138 us for each of five controls that its issue 446 shows.
_CALL_US = 6.3
_FREE, _PAID, _DCGM = "nvml-free", "nvml", "dcgm"
_KINDS = (_FREE, _PAID, _DCGM)


@dataclass(frozen=True)
class SourceCosts:
    """CPU of three agents and an engine, shares of a core.

    Attributes:
        agents: Kind of agent -> shares by window.
        engine: The engine's share.
        threads: Kind of agent -> thread -> share over all windows.
        requests_per_s: To the engine.
        ticks: Share of those that were due.
    """

    agents: dict[str, list[float]]
    engine: float
    threads: dict[str, dict[str, float]]
    requests_per_s: float
    ticks: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--call-us", type=float, default=_CALL_US, help="what a call of NVML takes, microseconds")
    parser.add_argument("--set", action="append", default=[], help="further setting of all agents")
    parser.add_argument("--agent", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.agent:
        _run_agent(args.gpus, Path(args.agent[0]), args.agent[1:])
        return
    print(f"load {os.getloadavg()[0]:.1f}", end=" ", flush=True)
    costs = measure(args.rounds, args.seconds, args.gpus, args.call_us, args.set)
    print(f"to {os.getloadavg()[0]:.1f}; {args.gpus} GPUs at 10 Hz, {args.rounds} windows of {args.seconds:g} s")
    for kind in _KINDS:
        each = " ".join(f"{100 * share:.2f}" for share in costs.agents[kind])
        print(f"{kind}: {100 * np.mean(costs.agents[kind]):.3f} % of a core ({each})")
        print("  " + ", ".join(f"{name} {100 * share:.3f}" for name, share in costs.threads[kind].items()))
    for kind, what in ((_FREE, "free"), (_PAID, f"of {args.call_us:g} us")):
        ratios = [dcgm / nvml for nvml, dcgm in zip(costs.agents[kind], costs.agents[_DCGM], strict=True)]
        mean = np.mean(costs.agents[_DCGM]) / np.mean(costs.agents[kind])
        print(f"DCGM / NVML with calls {what}: {mean:.2f} (by window {min(ratios):.2f} to {max(ratios):.2f})")
    print(f"the engine {costs.engine:.3%}, requests per second {costs.requests_per_s:.1f}, ticks {costs.ticks:.4f}")


def measure(
    rounds: int, seconds: float, gpus: int = 8, call_us: float = _CALL_US, settings: list[str] | None = None
) -> SourceCosts:
    """Measure an agent of each kind, with one collector.

    Args:
        rounds: Number of windows.
        seconds: Length of each.
        gpus: Number of GPUs.
        call_us: What a call of NVML that asks a GPU takes.
        settings: Further options of all agents.
    """
    with tempfile.TemporaryDirectory(prefix="gpusonde-dcgm-") as name, contextlib.ExitStack() as ending:
        place = Path(name)
        compile_library("fake_nvml", "libnvidia-ml.so.1", place)
        library = compile_library("fake_libdcgm", "libdcgm.so.4", place)
        engine = serve(library, place)
        ending.callback(_end, engine)
        collector = ending.enter_context(CollectorProcess(place / "collector", "runs.track=false"))
        agents = {}
        for kind in _KINDS:
            of_agent = (
                f"source.kind={kind.partition('-')[0]}",
                f"source.dcgm_bindings={_TESTS / 'support' / 'fake_dcgm' / 'bindings'}",
                "metrics.listen=",
                f"uplink.collector={collector.address}",
                f"spool.directory={place / kind}",
                f"agent.id={kind}",
                *(settings or ()),
            )
            words = [word for setting in of_agent for word in ("--set", setting)]
            command = [sys.executable, __file__, "--gpus", str(gpus), "--agent", str(place), "agent", *words]
            log = ending.enter_context((place / f"{kind}.log").open("wb"))
            agents[kind] = subprocess.Popen(
                command,
                env={
                    **os.environ,
                    "LD_LIBRARY_PATH": str(place),
                    "FAKE_NVML_GPUS": str(gpus),
                    "FAKE_NVML_CALL_US": str(0 if kind == _FREE else call_us),
                },
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
            ending.callback(_end, agents[kind])
        time.sleep(_SETTLE_S)
        for kind, process in agents.items():
            if process.poll() is not None:
                raise SystemExit((place / f"{kind}.log").read_text())
        shares: dict[str, list[float]] = {kind: [] for kind in _KINDS}
        threads = {kind: thread_seconds(process.pid) for kind, process in agents.items()}
        first_s = before_s = time.monotonic()
        engine_s = cpu_seconds(engine.pid)
        spent = {kind: cpu_seconds(process.pid) for kind, process in agents.items()}
        for _ in range(rounds):
            time.sleep(seconds)
            now_s = time.monotonic()
            for kind, process in agents.items():
                before, spent[kind] = spent[kind], cpu_seconds(process.pid)
                shares[kind].append((spent[kind] - before) / (now_s - before_s))
            before_s = now_s
        elapsed_s = before_s - first_s
        engine_s = cpu_seconds(engine.pid) - engine_s
        by_thread = {
            kind: {
                name: (its_s - threads[kind].get(name, 0.0)) / elapsed_s
                for name, its_s in thread_seconds(process.pid).items()
            }
            for kind, process in agents.items()
        }
        for kind, process in agents.items():
            _end(process)
            if process.returncode:
                raise SystemExit((place / f"{kind}.log").read_text())
        told = json.loads((place / "told.json").read_text())
    due = gpus * 10 * told["seconds"]
    return SourceCosts(shares, engine_s / elapsed_s, by_thread, told["requests"] / told["seconds"], told["ticks"] / due)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(30)


def _run_agent(gpus: int, place: Path, words: list[str]) -> None:
    """Run the command over the stand-in; of DCGM, write down what was asked of it while values came."""
    from gpusonde.cli.main import main as command

    if "source.kind=dcgm" not in words:
        sys.exit(command(words))
    from gpusonde.agent.sources.base import Reading
    from gpusonde.agent.sources.dcgm.source import DcgmSource

    engine = SharedEngine(gpus=gpus, request_s=_HISTORY_REQUEST_S)
    if not engine.connect(place / "libdcgm.so.4", place):
        sys.exit("the engine's stand-in does not answer")
    install(engine)
    read, ticks = DcgmSource.read, -1
    began = ended = (0.0, 0)

    def counting_read(self: DcgmSource, deadline_s: float) -> Reading:
        nonlocal ticks, began, ended
        reading = read(self, deadline_s)
        ended = (deadline_s, engine.all_requests)
        if ticks >= 0:
            ticks += reading.count_ticks()
        elif reading.count_ticks():
            ticks, began = 0, ended
        return reading

    DcgmSource.read = counting_read  # type: ignore[method-assign]
    try:
        code = command(words)
    finally:
        told = {"requests": ended[1] - began[1], "ticks": ticks, "seconds": ended[0] - began[0]}
        (place / "told.json").write_text(json.dumps(told))
    sys.exit(code)


if __name__ == "__main__":
    main()
