"""The main job measured from outside, with the ``gpusonde`` command alone.

Usage: ``python benchmarks/main_job [--data DIR] [--out docs/results/main_job.md] [--kills N]``

Prints one table: epochs of a recorded ``nvidia-smi`` log from the file and through agent, gRPC and collector; predicted
beside measured epoch latencies from the command and over gRPC; samples missing or doubled after SIGKILLs of the
collector. ``DIR`` holds the measurement data (``traces/raw/``, ``cross_gpu/``).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpusonde.collector.client import Client
from gpusonde.telemetry import read_trace

GPUSONDE = (sys.executable, "-m", "gpusonde.cli")
ROOT = Path(__file__).resolve().parents[2]
DEMO_TRACE = ROOT / "tests" / "data" / "demo_trace.parquet"
TITANX_PERIOD_S = 13.16
TARGETS = "T4,A10G,V100-SXM2-16GB,P100-PCIe-16GB"
WAIT_S = 120.0


def command(*arguments: str) -> dict[str, Any]:
    """Run a subcommand with ``--json``."""
    done = subprocess.run([*GPUSONDE, *arguments, "--json"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"gpusonde {' '.join(arguments)}: {done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def unix_s(text: str) -> float:
    """Seconds of an ISO 8601 time."""
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


class Collector:
    """A ``gpusonde collector`` process that can be killed and started again on the same address."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.address = "127.0.0.1:0"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it serves."""
        (self.store / "address").unlink(missing_ok=True)
        arguments = ("collector", "--listen", self.address, "--store", str(self.store))
        self.process = subprocess.Popen([*GPUSONDE, *arguments], stderr=subprocess.DEVNULL)
        wait_until((self.store / "address").is_file, "the collector")
        self.address = (self.store / "address").read_text().strip()

    def end(self, number: signal.Signals) -> None:
        """Send a signal and wait for the end."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()


def wait_until(condition: Any, what: str) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {WAIT_S:.0f} s")
        time.sleep(0.05)


def agent(collector: Collector, spool: Path, trace: Path, speed: float) -> subprocess.Popen[bytes]:
    """Start an agent that replays a trace."""
    arguments = ("agent", "--replay", str(trace), "--speed", str(speed), "--spool", str(spool), "--id", "benchmark")
    return subprocess.Popen(
        [*GPUSONDE, *arguments, "--collector", collector.address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def ended_run(collector: Collector, gpu_uuid: str) -> dict[str, Any]:
    """Wait for the end of the GPU's run and return it."""
    found: list[dict[str, Any]] = []

    def over() -> bool:
        runs = command("runs", "--collector", collector.address)["runs"]
        found[:] = [run for run in runs if run["gpu_uuid"] == gpu_uuid and not run["active"] and run["verdict"]]
        return bool(found)

    wait_until(over, "the end of the run")
    return found[0]


def detection_rows(data: Path, place: Path) -> list[tuple[str, str]]:
    """Epochs from the file and through the collector."""
    log = data / "traces" / "raw" / "titanx_nvidia_smi_2gpu.csv"
    offline = command("detect", str(log), "--gpu", "0")
    error = offline["period_s"] / TITANX_PERIOD_S - 1
    rows = [
        (
            "`detect titanx_nvidia_smi_2gpu.csv --gpu 0` (untrimmed, all metrics)",
            (
                f"{offline['epochs']} epochs of {offline['period_s']:.3f} s: {error:+.2%} of {TITANX_PERIOD_S} s"
                f" (bar: 3 %), confidence {min(offline['confidence'], 0.99):.2f} or more"
            ),
        )
    ]
    trace = read_trace(log, gpu=0)
    collector = Collector(place / "detection")
    collector.start()
    try:
        if agent(collector, place / "spool-detection", log, 100.0).wait():
            raise SystemExit("the agent failed")
        run = ended_run(collector, trace.gpu_uuid)
        streamed = command("epochs", run["run_id"], "--collector", collector.address)["epochs"]
        with Client(collector.address) as client:
            first_tick = client.read_samples(trace.gpu_uuid).origin_unix_s or 0.0
    finally:
        collector.end(signal.SIGTERM)
    starts = np.array([unix_s(epoch["start_time"]) for epoch in streamed]) - first_tick
    wanted = np.array(offline["epoch_starts_s"]) - trace.time_s[0]
    same = starts.shape == wanted.shape
    shift = float(np.max(np.abs(starts - wanted))) if same else float("nan")
    rows.append(
        (
            "the same log through agent, gRPC, collector, `gpusonde epochs`",
            f"{len(streamed)} epochs of {run['period_s']:.3f} s; largest difference of a start {shift * 1e3:.3f} ms",
        )
    )
    return rows


def prediction_rows(data: Path, place: Path) -> list[tuple[str, str]]:
    """Predicted beside measured, from the command and over gRPC."""
    table = data / "cross_gpu" / "hardware_metrics_runs.csv"
    model = place / "model"
    command("train", str(table), "--out", str(model))
    collector = Collector(place / "prediction")
    collector.start()
    errors: list[float] = []
    inside = 0
    difference = 0.0
    try:
        for row in range(0, 460, 46):
            base = ("predict", "--runs", str(table), "--row", str(row), "--targets", TARGETS)
            here = command(*base, "--model", str(model))["predictions"]
            for prediction in here:
                if prediction.get("measured_epoch_latency_s") is None or prediction["relative_error"] is None:
                    continue
                errors.append(abs(prediction["relative_error"]))
                low, high = prediction["epoch_latency_low_s"], prediction["epoch_latency_high_s"]
                inside += low <= prediction["measured_epoch_latency_s"] <= high
            local = command(*base)["predictions"]
            remote = command(*base, "--collector", collector.address)["predictions"]
            for one, other in zip(local, remote, strict=True):
                difference = max(difference, abs(one["epoch_latency_s"] / other["epoch_latency_s"] - 1))
    finally:
        collector.end(signal.SIGTERM)
    return [
        (
            (
                "`train`, then `predict --runs --row N` for every 46th row, beside the measured latencies (in-sample:"
                " these rows took part in the fit; predictor.md has the honest splits)"
            ),
            (
                f"{len(errors)} predictions, median error {statistics.median(errors):.1%}, inside the 90 % interval"
                f" {inside / len(errors):.0%}"
            ),
        ),
        ("the same by gRPC, shipped model on both sides", f"largest relative difference {difference:.1e}"),
    ]


def kill_row(place: Path, kills: int) -> tuple[str, str]:
    """SIGKILL the collector again and again under a replayed trace."""
    trace = read_trace(DEMO_TRACE)
    collector = Collector(place / "kills")
    collector.start()
    player = agent(collector, place / "spool-kills", DEMO_TRACE, 12.0)
    try:
        for _ in range(kills):
            time.sleep(2.0)
            collector.end(signal.SIGKILL)
            collector.start()
        if player.wait(WAIT_S):
            raise SystemExit("the agent failed")
        with Client(collector.address) as client:
            stored = client.read_samples(trace.gpu_uuid)
    finally:
        player.kill()
        collector.end(signal.SIGTERM)
    same_times = len(stored) == len(trace) and np.allclose(
        np.diff(stored.time_s), np.diff(trace.time_s), rtol=0, atol=2e-6
    )
    same_values = same_times and all(
        np.array_equal(stored.values[name].astype(np.float32), trace.values[name].astype(np.float32), equal_nan=True)
        for name in trace.metrics
    )
    return (
        f"collector killed with SIGKILL {kills} times under a replay of the demo's trace",
        f"{len(trace)} ticks taken, {len(stored)} stored; times and values {'equal' if same_values else 'DIFFER'}",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--kills", type=int, default=5)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        rows = [
            *detection_rows(args.data, place),
            *prediction_rows(args.data, place),
            kill_row(place, args.kills),
        ]
    today = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
    lines = [
        "# The main job: results",
        "",
        (
            f"Printed by `python benchmarks/main_job --out docs/results/main_job.md` on {today}, Python"
            f" {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, no GPU. Data: a recorded"
            " `nvidia-smi` log of two Titan X (no licence; evaluation only), `hardware_metrics_runs.csv` (Apache-2.0,"
            " MIT), the generated trace of the demo."
        ),
        "",
        "| what | measured |",
        "|---|---|",
        *(f"| {what} | {figure} |" for what, figure in rows),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if args.out:
        args.out.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
