"""Real training over shaped links: the simulator says how long an iteration takes, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = ("planning",)
HOLDER = """
import sys, time
from shaped_network import ShapedNetwork
with ShapedNetwork(2):
    print("made", flush=True)
    time.sleep(60)
"""

pytestmark = pytest.mark.needs_root


@pytest.fixture
def shaped_network(module):
    """The module, where this host can have such networks."""
    found = module("shaped_network")
    try:
        with found.ShapedNetwork(2) as network:
            network.shape(100)
    except found.ShapedNetworkError as error:
        pytest.skip(str(error))
    return found


def namespaces():
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines()}


def holder():
    """A process that holds a network until it is ended."""
    folder = Path(__file__).parents[2] / "benchmarks" / "planning"
    process = subprocess.Popen([sys.executable, "-c", HOLDER], cwd=folder, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "made\n"
    return process, {name for name in namespaces() if f"-{process.pid}-" in name}


def test_a_network_that_is_ended_takes_its_namespaces_with_it(shaped_network):
    process, made = holder()
    assert len(made) == 3
    process.terminate()
    assert process.wait(200) == 128 + signal.SIGTERM
    assert not made & namespaces()


def test_what_a_killed_run_left_is_removed_by_the_next_and_other_namespaces_stay(shaped_network):
    process, made = holder()
    other, others = holder()
    process.kill()
    process.wait(200)
    assert made <= namespaces()
    with shaped_network.ShapedNetwork(2):
        assert not made & namespaces()
        assert others <= namespaces()
    other.terminate()
    other.wait(200)
    assert not {name for name in namespaces() if f"-{os.getpid()}-" in name}


def test_the_simulator_says_how_long_an_iteration_of_a_real_training_takes(shaped_network, module):
    pytest.importorskip("torch", reason="needs torch (extra torch)")
    ddp = module("ddp")
    alike = ddp.configurations(2)[0]
    profiles = {device: ddp.profile_of(device, steps=3, batch_sizes=(8, 100)) for device in alike.devices}
    (run,) = ddp.measure(100.0, 2, [alike], [64], profiles)
    # A busy machine makes both slower, not always alike; the benchmark repeats what scatters and reports the error.
    assert run.error("default") < 0.25
    assert run.said_s["computation alone"] < run.measured_s < run.said_s["no overlap"] * 1.25
    assert not {name for name in namespaces() if f"-{os.getpid()}-" in name}
