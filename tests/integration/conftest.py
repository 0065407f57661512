"""One collector that has seen the bundled trace, and one demo, for all tests of this folder."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.collector_process import GPUSONDE, CollectorProcess, ask, replay, running_collector, wait_for_ended_runs

from gpusonde.cli.demo.run import bundled_trace


@pytest.fixture(scope="session")
def agent_report() -> dict[str, Any]:
    """What the agent printed at its end; filled by ``collector``."""
    return {}


@pytest.fixture(scope="session")
def collector(tmp_path_factory: pytest.TempPathFactory, agent_report: dict[str, Any]) -> Iterator[CollectorProcess]:
    """A collector that has seen the bundled trace."""
    directory = tmp_path_factory.mktemp("collector")
    with running_collector(directory) as running:
        agent_report.update(replay(bundled_trace(), running.address, directory, agent="bundled"))
        wait_for_ended_runs(running.address)
        yield running


@pytest.fixture(scope="session")
def run(collector: CollectorProcess) -> dict[str, Any]:
    """The run of the bundled trace."""
    (found,) = [r for r in ask("runs", "--collector", collector.address)["runs"] if r["agent_id"] == "bundled"]
    return found


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ``demo_report`` put its files; the name stands in the command lines of its processes."""
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="session")
def demo_report(demo_folder: Path) -> dict[str, Any]:
    """What one demo printed under ``--json``."""
    demo = subprocess.run(
        [*GPUSONDE, "demo", "--replay", "--speed", "200", "--json", "--out", str(demo_folder / "out")],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(demo_folder)},
        timeout=110,
        check=False,
    )
    assert demo.returncode == 0, demo.stderr
    report: dict[str, Any] = json.loads(demo.stdout)
    return report
