"""What one look at the sources of jobs costs the agent.

    python benchmarks/telemetry/jobs.py --out docs/results/telemetry_jobs.md

Eight GPUs with eight Slurm jobs in mapping files, a kubelet on a Unix socket with 100 pods, and 64 real processes. The
kubelet runs in this process, so its time is in the figure.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from support.fake_kubelet import FakeKubelet

from gpusonde.agent.jobs.kubelet import KubeletPods
from gpusonde.agent.jobs.processes import ProcessOwners, ProcFolder
from gpusonde.agent.jobs.sources import DeviceNames, JobSource, MappingFiles
from gpusonde.agent.jobs.watcher import POLL_INTERVAL_S
from gpusonde.agent.sources.base import GpuDescription

GPUS, PODS, PROCESSES, LOOKS = 8, 100, 64, 200
_PREAMBLE = """\
Printed by `python benchmarks/telemetry/jobs.py` on {date}, {cores} cores, busy machine. Processes are real, the
kubelet is a stand-in that speaks gRPC inside the measuring process. The driver's list of processes is not in the
figures: no GPU was at hand."""


def measure(source: JobSource) -> tuple[float, float]:
    """CPU and wall-clock milliseconds of one look."""
    source.owners(time.time_ns())
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    for _ in range(LOOKS):
        source.owners(time.time_ns())
    return (time.process_time() - cpu_s) / LOOKS * 1e3, (time.perf_counter() - wall_s) / LOOKS * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="file of the table")
    arguments = parser.parse_args()
    devices = DeviceNames([GpuDescription(f"GPU-{i}", i) for i in range(GPUS)], {})
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for i in range(GPUS):
            (folder / str(i)).write_text(f"{4711 + i}\n")
        children = [subprocess.Popen(["sleep", "600"]) for _ in range(PROCESSES)]
        pids = {f"GPU-{i}": tuple(child.pid for child in children[i::GPUS]) for i in range(GPUS)}
        try:
            with FakeKubelet(folder / "kubelet.sock") as kubelet:
                kubelet.pods = [("ns", f"pod-{i}", "main", "nvidia.com/gpu", [f"GPU-{i % GPUS}"]) for i in range(PODS)]
                for what, source in (
                    (f"mapping files of {GPUS} GPUs", MappingFiles(folder, devices)),
                    (f"kubelet with {PODS} pods", KubeletPods(kubelet.socket, devices, time.time_ns())),
                    (f"{PROCESSES} processes", ProcessOwners(lambda: pids, ProcFolder())),
                ):
                    rows.append((what, *measure(source)))
        finally:
            for child in children:
                child.kill()
                child.wait()
    share = sum(cpu_ms for _, cpu_ms, _ in rows) / 1e3 / POLL_INTERVAL_S
    lines = [
        "# The cost of looking for jobs",
        "",
        _PREAMBLE.format(date=datetime.date.today(), cores=os.cpu_count()),
        "",
        "| one look at | CPU ms | wall-clock ms |",
        "|---|---|---|",
        *(f"| {what} | {cpu_ms:.2f} | {wall_ms:.2f} |" for what, cpu_ms, wall_ms in rows),
        "",
        f"All three every {POLL_INTERVAL_S:g} s: {share:.2%} of a core, in a thread of its own.",
        "",
    ]
    text = "\n".join(lines)
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
