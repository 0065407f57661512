"""What an agent costs its host: CPU, memory, punctuality, over a stand-in for NVIDIA's library that costs nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from processes import CollectorProcess, usage

_STUB = Path(__file__).resolve().parents[2] / "tests" / "support" / "fake_nvml.c"
_SETTLE_S = 8.0


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
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("no C compiler (cc or gcc) to build the stand-in for NVIDIA's library")
    with tempfile.TemporaryDirectory(prefix="gpusonde-telemetry-") as name:
        place = Path(name)
        library = place / "libnvidia-ml.so.1"
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_STUB)], check=True)
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


def _switches(pid: int) -> int:
    """Voluntary context switches of all threads of a process."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = (task / "status").read_text()
        total += next(int(line.split()[1]) for line in status.splitlines() if line.startswith("voluntary_ctxt"))
    return total
