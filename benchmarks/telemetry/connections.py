"""1,250 agents with a connection each, against a collector that was started with the usual limit of open files."""

from __future__ import annotations

import json
import resource
import tempfile
from dataclasses import dataclass
from pathlib import Path

from processes import CollectorProcess, run_fleet, usage

USUAL_LIMIT = 1024


@dataclass(frozen=True)
class Connections:
    """What was seen.

    Attributes:
        agents: Connections.
        connected_ms: 99 % of them greeted within this time.
        unacked: Records that were not acknowledged in the end.
        failures: Streams that ended, by reason.
        cpu_s: CPU seconds of the collector.
    """

    agents: int
    connected_ms: float
    unacked: int
    failures: dict[str, int]
    cpu_s: float


def measure(agents: int, seconds: int) -> Connections:
    """Connect them all at once and stream one GPU each."""
    # The load generator needs as many descriptors.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * agents)), hard))
    with (
        tempfile.TemporaryDirectory(prefix="gpusonde-telemetry-") as name,
        CollectorProcess(Path(name), "runs.track=false", open_files=USUAL_LIMIT) as collector,
    ):
        fleet = run_fleet(collector.address, "--agents", agents, "--gpus", 1, "--seconds", seconds)
        out, _ = fleet.communicate()
        cpu_s = usage(collector.pid).cpu_s
    answer = json.loads(out)
    late_ms = answer["connect_ms"].get("p99", float("nan"))
    return Connections(agents, late_ms, answer["unacked_at_end"], answer["failures"], cpu_s)
