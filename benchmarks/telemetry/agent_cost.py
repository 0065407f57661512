"""What an agent costs its host: CPU, memory, punctuality, over a stand-in for NVIDIA's library that costs nothing.

Usage: ``python benchmarks/telemetry/agent_cost.py --against REF [--rounds N] [--seconds S]``: this agent's CPU beside
that of another commit's. Both run all the time with one collector; one of the two is stopped while the other is
measured, in turns, so that both see the same machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from processes import CollectorProcess, cpu_seconds, thread_seconds, usage

_STUB = Path(__file__).resolve().parents[2] / "tests" / "support" / "fake_nvml.c"
_SETTLE_S = 8.0
_WAKE_S = 2.0


@dataclass(frozen=True)
class AgentCost:
    """What was measured.

    Attributes:
        gpus: Sampled GPUs.
        metrics: Columns.
        seconds: For how long.
        cpu_share: Of a core, once it runs.
        start_cpu_s: CPU seconds until then.
        rss_bytes: Resident memory at the end.
        peak_bytes: The most it ever was.
        late_ms: Median, 99 % and largest lateness of a tick.
        wakeups_per_s: Voluntary context switches of all threads.
    """

    gpus: int
    metrics: int
    seconds: float
    cpu_share: float
    start_cpu_s: float
    rss_bytes: int
    peak_bytes: int
    late_ms: tuple[float, float, float]
    wakeups_per_s: float


def measure(seconds: int, gpus: int = 8, settings: Sequence[str] = (), *, awake: bool = False) -> AgentCost:
    """Run one agent with a collector on loopback.

    Args:
        seconds: For how long, after it has settled.
        gpus: Number of GPUs of the stand-in.
        settings: Further options of the agent.
        awake: Whether all cores are kept out of their sleep by work of the lowest priority, as on a host that trains. A
            core that sleeps between two ticks charges its awakening to whoever wakes it.
    """
    with spinning() if awake else contextlib.nullcontext():
        return _measure(seconds, gpus, settings)


@contextlib.contextmanager
def spinning() -> Iterator[None]:
    """Keep every core busy with processes that give way to anything else."""
    command = [sys.executable, "-c", "while True: pass"]
    spinners = [
        subprocess.Popen(command, preexec_fn=lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)))  # noqa: PLW1509 - single-threaded
        for _ in os.sched_getaffinity(0)
    ]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def _measure(seconds: int, gpus: int, settings: Sequence[str]) -> AgentCost:
    with tempfile.TemporaryDirectory(prefix="gpusonde-telemetry-") as name:
        place = Path(name)
        _build_stand_in(place)
        with CollectorProcess(place / "collector", "runs.track=false") as collector:
            words = [w for s in ("source.kind=nvml", "metrics.listen=", f"uplink.collector={collector.address}",
                                 f"spool.directory={place / 'spool'}", *settings) for w in ("--set", s)]  # fmt: skip
            late = place / "late"
            with (place / "agent.log").open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, str(Path(__file__).with_name("agent_process.py")), str(late), *words],
                    env={
                        **os.environ,
                        "LD_LIBRARY_PATH": str(place),
                        "FAKE_NVML_GPUS": str(gpus),
                    },
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                )
            try:
                time.sleep(_SETTLE_S)
                if process.poll() is not None:
                    raise SystemExit((place / "agent.log").read_text())
                before, switches = usage(process.pid), _switches(process.pid)
                time.sleep(seconds)
                after = usage(process.pid)
                switched = _switches(process.pid) - switches
            finally:
                process.terminate()
                process.wait(30)
            log_text = (place / "agent.log").read_text()
        ticks = np.frombuffer(late.read_bytes())[round(_SETTLE_S * 10) :]
    p50, p99, most = (1e3 * np.quantile(ticks, [0.5, 0.99, 1.0])).tolist()
    wall_s = after.wall_s - before.wall_s
    metrics = int(log_text.rpartition(" metrics)")[0].rpartition(" ")[2] or 0)
    return AgentCost(
        gpus, metrics, wall_s, (after.cpu_s - before.cpu_s) / wall_s, before.cpu_s, after.rss_bytes, after.peak_bytes,
        (p50, p99, most), switched / wall_s,
    )  # fmt: skip


def _build_stand_in(place: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("no C compiler (cc or gcc) to build the stand-in for NVIDIA's library")
    library = place / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_STUB)], check=True)


@dataclass(frozen=True)
class PairedCost:
    """CPU of two agents in alternating windows of one run.

    Attributes:
        here: Shares of a core of this tree's agent, one per round.
        there: Those of the other commit's.
        threads: CPU per thread of this tree's agent, shares of a core over all rounds.
        rss_bytes: Resident memory of this tree's agent and of the other one's.
    """

    here: tuple[float, ...]
    there: tuple[float, ...]
    threads: dict[str, float]
    rss_bytes: tuple[int, int]


def compare(reference: str, rounds: int, seconds: float, gpus: int = 8, settings: Sequence[str] = ()) -> PairedCost:
    """Measure this tree's agent beside that of another commit.

    Args:
        reference: The commit.
        rounds: Windows of each.
        seconds: Length of a window.
        gpus: Number of GPUs of the stand-in.
        settings: Further options of both agents.
    """
    with tempfile.TemporaryDirectory(prefix="gpusonde-telemetry-") as name, contextlib.ExitStack() as ending:
        place = Path(name)
        _build_stand_in(place)
        trees = (_STUB.parents[2], _check_out(reference, place / "reference"))
        collector = ending.enter_context(CollectorProcess(place / "collector", "runs.track=false"))
        agents = []
        for number, tree in enumerate(trees):
            words = [w for s in ("source.kind=nvml", "metrics.listen=", f"uplink.collector={collector.address}",
                                 f"spool.directory={place / f'spool{number}'}", f"agent.id=agent{number}", *settings)
                     for w in ("--set", s)]  # fmt: skip
            log = ending.enter_context((place / f"agent{number}.log").open("wb"))
            process = subprocess.Popen(
                [sys.executable, "-m", "gpusonde.cli", "agent", *words],
                env={
                    **os.environ,
                    "LD_LIBRARY_PATH": str(place),
                    "FAKE_NVML_GPUS": str(gpus),
                    "PYTHONPATH": os.pathsep.join(map(str, _roots(tree))),
                },
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
            ending.callback(_end, process)
            agents.append(process)
        time.sleep(_SETTLE_S)
        for number, process in enumerate(agents):
            if process.poll() is not None:
                raise SystemExit((place / f"agent{number}.log").read_text())
            process.send_signal(signal.SIGSTOP)
        shares: tuple[list[float], list[float]] = ([], [])
        threads: dict[str, float] = {}
        for number in range(rounds):
            for which in (0, 1) if number % 2 else (1, 0):
                process = agents[which]
                process.send_signal(signal.SIGCONT)
                # What it does after the pause (acks, the missed ticks) is none of what is measured.
                time.sleep(_WAKE_S)
                began_s, before_s, threads_before = (
                    time.monotonic(),
                    cpu_seconds(process.pid),
                    thread_seconds(process.pid),
                )
                time.sleep(seconds)
                after_s, threads_after = cpu_seconds(process.pid), thread_seconds(process.pid)
                elapsed_s = time.monotonic() - began_s
                process.send_signal(signal.SIGSTOP)
                shares[which].append((after_s - before_s) / elapsed_s)
                if which == 0:
                    for thread, spent_s in threads_after.items():
                        more = (spent_s - threads_before.get(thread, 0.0)) / (rounds * seconds)
                        threads[thread] = threads.get(thread, 0.0) + more
        sizes = [usage(process.pid).rss_bytes for process in agents]
    return PairedCost(tuple(shares[0]), tuple(shares[1]), threads, (sizes[0], sizes[1]))


def _check_out(reference: str, place: Path) -> Path:
    place.mkdir()
    archive = subprocess.run(
        ["git", "-C", str(_STUB.parents[2]), "archive", reference], capture_output=True, check=False
    )
    if archive.returncode:
        raise SystemExit(f"git archive {reference}: {archive.stderr.decode(errors='replace').strip()}")
    subprocess.run(["tar", "-x", "-C", str(place)], input=archive.stdout, check=True)
    return place


def _roots(tree: Path) -> list[Path]:
    return [path.parent for path in sorted(tree.glob("*/gpusonde"))]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGCONT)
    process.terminate()
    process.wait(30)


def _switches(pid: int) -> int:
    """Voluntary context switches of all threads of a process."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = (task / "status").read_text()
        total += next(int(line.split()[1]) for line in status.splitlines() if line.startswith("voluntary_ctxt"))
    return total


def main() -> int:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="REF", required=True, help="commit to compare with")
    parser.add_argument("--rounds", type=int, default=6, help="windows of each agent")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a window")
    parser.add_argument("--set", action="append", default=[], help="further setting of both agents")
    args = parser.parse_args()
    cost = compare(args.against, args.rounds, args.seconds, settings=args.set)
    ratios = [here / there for here, there in zip(cost.here, cost.there, strict=True)]
    for name, shares in (("this tree", cost.here), (args.against, cost.there)):
        each = " ".join(f"{100 * share:.2f}" for share in shares)
        print(f"{name}: {100 * np.mean(shares):.3f} % of a core ({each})")
    print(f"ratio {np.mean(cost.here) / np.mean(cost.there):.3f} (by round {min(ratios):.2f} to {max(ratios):.2f})")
    print("threads: " + ", ".join(f"{name} {100 * share:.3f} %" for name, share in cost.threads.items()))
    print("resident: {:.1f} and {:.1f} MiB".format(*(size / (1 << 20) for size in cost.rss_bytes)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
