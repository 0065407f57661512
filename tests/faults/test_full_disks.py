"""Collectors on a file system that is really full. (Agents: tests/agent/test_faults.py, test_spool_operations.py.)"""

from __future__ import annotations

import os
import subprocess

import pytest
from support.counting_agent import CYCLE
from support.running_collector import ProcessCollector
from support.victim_agent import VictimAgent, stored
from support.wire_agent import wait_until


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MB of its own, because no test may fill the host's disk."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine does not let root mount a tmpfs")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=False)


@pytest.mark.needs_root
def test_a_collector_whose_disk_is_really_full_takes_everything_when_there_is_room_again(small_disk, tmp_path):
    ballast = small_disk / "ballast"
    with ProcessCollector(small_disk / "data", store__reserve_bytes="256KiB") as collector:
        with VictimAgent(tmp_path / "agent", collector.target, interval_s=0.005, batch_interval_s=0.01) as agent:
            wait_until(lambda: agent.took() > 200, 120, "ticks")
            with ballast.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"\0" * 4096)
                except OSError:
                    pass
            wait_until(lambda: "takes no records now" in agent.log(), 120, "the agent to be told")
            before = agent.took()
            wait_until(lambda: agent.took() > before + 400, 120, "ticks while the disk is full")
            ballast.unlink()
            wait_until(lambda: "records are taken again" in collector.log_path.read_text(), 120, "room again")
            report = agent.finish()
        assert collector.terminate() == 0
    assert "no records are taken" in collector.log_path.read_text()
    assert report["drained"]
    found = stored(small_disk / "data")
    assert found.losses == []
    assert found.values.tolist() == [i % CYCLE for i in range(report["ticks"])]
    print(f"a full disk at the collector: {report['ticks']} ticks of one agent stored, 0 missing, 0 twice, in order")
