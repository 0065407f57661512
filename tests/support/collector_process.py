"""A real collector and real agents in processes of their own, as an operator starts them."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpusonde.cli.main import main

GPUSONDE = (sys.executable, "-m", "gpusonde.cli")
_TIMEOUT_S = 200.0


class CollectorProcess:
    """``gpusonde collector`` on a free port of loopback."""

    def __init__(self, directory: Path, *options: str) -> None:
        self._options = options
        self.directory = directory
        self.store = directory / "store"
        self.address = ""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it serves."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "collector.log").open("ab") as log, (self.directory / "collector.out").open("wb") as out:
            self._process = subprocess.Popen(
                [
                    *GPUSONDE,
                    "collector",
                    "--json",
                    "--listen",
                    "127.0.0.1:0",
                    "--store",
                    str(self.store),
                    *self._options,
                ],
                stdout=out,
                stderr=log,
            )
        file = self.store / "address"
        deadline = time.monotonic() + _TIMEOUT_S
        while not file.is_file():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((self.directory / "collector.log").read_text())
            time.sleep(0.02)
        self.address = file.read_text().strip()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(_TIMEOUT_S)

    def report(self) -> dict[str, Any]:
        """What it printed at its end."""
        answer: dict[str, Any] = json.loads((self.directory / "collector.out").read_text())
        return answer

    def kill_if_running(self) -> None:
        """End it whatever it does."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def running_collector(directory: Path, *options: str) -> Iterator[CollectorProcess]:
    """A collector for the time of the block."""
    collector = CollectorProcess(directory, *options)
    try:
        collector.start()
        yield collector
        collector.stop()
    finally:
        collector.kill_if_running()


def replay(trace: Path, collector: str, directory: Path, *, speed: float = 100.0, agent: str = "a") -> dict[str, Any]:
    """Replay a trace file through an agent process until the collector has everything; returns the agent's report."""
    source = ("--replay", str(trace), "--speed", str(speed))
    spool = str(directory / f"spool-{agent}")
    return run_json(["agent", *source, "--collector", collector, "--spool", spool, "--id", agent])


def run_json(arguments: Sequence[str]) -> dict[str, Any]:
    """Run a subcommand with ``--json`` in a process of its own; it must succeed."""
    answer = subprocess.run([*GPUSONDE, *arguments, "--json"], capture_output=True, text=True, timeout=180, check=False)
    assert answer.returncode == 0, answer.stderr
    payload: dict[str, Any] = json.loads(answer.stdout)
    return payload


def ask(*arguments: str, exit_code: int = 0) -> dict[str, Any]:
    """Run a subcommand with ``--json`` in this process, which saves the imports; it must end with the exit code."""
    stdout = io.StringIO()
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        with contextlib.redirect_stdout(stdout):
            code = main([*arguments, "--json"])
    finally:
        root.handlers[:], root.level = before
    assert code == exit_code, stdout.getvalue()
    payload: dict[str, Any] = json.loads(stdout.getvalue())
    return payload


def wait_for_ended_runs(collector: str, count: int = 1) -> list[dict[str, Any]]:
    """The collector's runs, once so many are over and analysed."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        runs: list[dict[str, Any]] = ask("runs", "--collector", collector)["runs"]
        if len([run for run in runs if not run["active"] and run["verdict"]]) >= count:
            return runs
        assert time.monotonic() < deadline, runs
        time.sleep(0.2)


def wait_for_summaries(collector: str, run_id: str) -> None:
    """Return once mean metrics and energy of all confirmed epochs are there, which is a moment after the run's end."""
    deadline = time.monotonic() + _TIMEOUT_S
    while pending := ask("epochs", run_id, "--collector", collector)["pending_summaries"]:
        assert time.monotonic() < deadline, pending
        time.sleep(0.1)
