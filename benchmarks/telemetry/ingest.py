"""A fleet of simulated agents against one collector, in real time: cost, acknowledgements, and what is stored."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import CollectorProcess, Meter, run_fleet
from stored import Stored, examine

from gpusonde.collector.client import Client

_SAVED_S = 6.0  # runs are written down every five seconds
_NO_TRACKING = ("runs.track=false",)


@dataclass(frozen=True)
class Load:
    """What is played.

    Attributes:
        agents: Hosts.
        gpus: GPUs of each.
        seconds: For how long.
        tracking: Whether runs and epochs are looked for.
        channels: TCP connections; 0 for one per agent.
        data: Folder of recorded traces, else generated ones.
    """

    agents: int
    gpus: int = 8
    seconds: int = 60
    tracking: bool = True
    channels: int = 0
    data: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """What it cost.

    Attributes:
        load: What was played.
        fleet: What the load generator says.
        cpu_per_s: CPU seconds of the collector per second, all the time, and in the last third.
        peak_bytes: Most resident memory.
        runs: Runs found, and those with epochs.
        stop_s: How long the collector took to end.
        stored: What was in the store then.
    """

    load: Load
    fleet: dict[str, Any]
    cpu_per_s: tuple[float, float]
    peak_bytes: int
    runs: tuple[int, int]
    stop_s: float
    stored: Stored


def play(load: Load, directory: Path | None = None, *settings: str) -> Outcome:
    """Run one load against a fresh collector."""
    with tempfile.TemporaryDirectory(prefix="gpusonde-telemetry-", dir=directory) as place:
        collector = CollectorProcess(Path(place), *(() if load.tracking else _NO_TRACKING), *settings)
        collector.start()
        runs = (0, 0)
        try:
            fleet = run_fleet(collector.address, *_fleet_options(load))
            with Meter(collector.pid) as meter, Client(collector.address, timeout_s=60) as client:
                assert fleet.stdout is not None
                answer = json.loads(fleet.stdout.read())
                if load.tracking:
                    time.sleep(_SAVED_S)
                    found = client.list_runs()
                    runs = (len(found), sum(run.verdict == "epochs" for run in found))
            cpu = meter.cpu_per_s(), meter.cpu_per_s(0.67)
            peak = max(seen.peak_bytes for seen in meter.seen)
        finally:
            stop_s = collector.stop()
        stored = examine(collector.store, answer["sequences"], load.gpus)
    return Outcome(load, answer, cpu, peak, runs, stop_s, stored)


def _fleet_options(load: Load) -> list[object]:
    options = ["--agents", load.agents, "--gpus", load.gpus, "--seconds", load.seconds, "--channels", load.channels]
    return [*options, *(("--data", load.data) if load.data else ())]
