"""Agents as processes over a counting source (see ``counting_agent``), and what a stopped collector has of them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpusonde.collector import LocalStore
from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.model import Position
from gpusonde.collector.storage.samples import TicksEntry
from gpusonde.service.wire import GpuEvent

COUNTING_AGENT = Path(__file__).with_name("counting_agent.py")


class VictimAgent:
    """An agent process that is killed and started again.

    Args:
        directory: For its spool, its log and its notes.
        target: The collector.
        config: Overrides of its configuration.
        settings: Of the counting source.
    """

    def __init__(self, directory: Path, target: str, config=None, **settings) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.spool = directory / "spool"
        self.lives = 0
        self.reached = []  # how many ticks each ended life took
        self.process = None
        self._settings = settings
        self._config = {
            "agent.id": "victim",
            "spool.directory": str(self.spool),
            "spool.commit_interval": "10ms",
            "uplink.collector": target,
            "uplink.drain_timeout": "2m",
            **(config or {}),
        }

    def start(self):
        self.lives += 1
        settings = {**self._settings, "reached": str(self._reached_path())}
        command = [sys.executable, str(COUNTING_AGENT), json.dumps(settings)]
        with (self.directory / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *(f"{key}={value}" for key, value in self._config.items())],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return self

    def _reached_path(self):
        return self.directory / f"reached-{self.lives}"

    def took(self):
        """How many ticks this life has taken so far."""
        assert self.process.poll() in (None, 0, -signal.SIGKILL), self.log()
        path = self._reached_path()
        return int.from_bytes(path.read_bytes(), "little") if path.exists() else 0

    def log(self):
        return (self.directory / "agent.log").read_text()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.reached.append(self.took())

    def finish(self):
        """SIGTERM; return its report."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self):
        """Return the report of one that ends by itself."""
        output, _ = self.process.communicate(timeout=180)
        assert self.process.returncode == 0, self.log()[-3000:]
        self.reached.append(self.took())
        return json.loads(output)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True)
class Stored:
    """What a store holds of one GPU of one agent, in order of arrival."""

    spools: np.ndarray
    sequences: np.ndarray
    values: np.ndarray  # power_watts as whole numbers
    times: np.ndarray
    losses: list
    rejections: list
    events: list[GpuEvent]


def stored(directory: Path, gpu_uuid: str = "GPU-a", agent_id: str = "victim", metric: str = "power_watts") -> Stored:
    """Open the store of a stopped collector."""
    return stored_of(directory, [gpu_uuid], agent_id, metric)[0]


def stored_of(directory: Path, gpu_uuids, agent_id: str = "victim", metric: str = "power_watts") -> list[Stored]:
    """The same for several GPUs of one agent."""
    store = LocalStore(directory, StoreConfig(reserve_bytes=0))
    store.open()
    try:
        return [_stored(store, gpu_uuid, agent_id, metric) for gpu_uuid in gpu_uuids]
    finally:
        store.close()


def _stored(store: LocalStore, gpu_uuid: str, agent_id: str, metric: str) -> Stored:
    arrivals = store.samples.read_feed(agent_id, gpu_uuid, Position(0, 0))
    pieces = [a.samples for a in arrivals if isinstance(a, TicksEntry)]
    found = Stored(
        np.concatenate([piece.spool for piece in pieces]),
        np.concatenate([piece.sequence for piece in pieces]),
        np.concatenate([piece.columns[metric] for piece in pieces]),
        np.concatenate([piece.time_unix_nano for piece in pieces]),
        store.facts.losses(),
        store.facts.rejections(),
        store.facts.events(gpu_uuid),
    )
    assert len(store.samples.read(gpu_uuid, 0, 1 << 62)) == len(found.sequences)
    return found
