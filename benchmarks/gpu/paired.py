"""What a job loses to the agent: pairs of equal blocks of training, with and without it."""

from __future__ import annotations

import json
import math
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recordings import JOB, JobFailedError

GPUSONDE = (sys.executable, "-m", "gpusonde.cli")
_SETTLE_S = 2.0
_COLLECTOR_START_S = 60.0


@dataclass(frozen=True)
class SlowDown:
    """How much longer a block takes with the agent on.

    Attributes:
        pairs: Number of pairs.
        mean: Mean of the pairs' relative differences, 0.01 is 1 % slower.
        low: Lower end of its 95 % interval (Student's t).
        high: Upper end.
        block_s: Median seconds of a block without the agent.
    """

    pairs: int
    mean: float
    low: float
    high: float
    block_s: float


# Two-sided 95 % quantiles of Student's t for 1, 2, ... 30 degrees of freedom; the normal one beyond.
_T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def slow_down(pairs: Sequence[tuple[float, float]]) -> SlowDown:
    """Summarise pairs of (seconds without, seconds with).

    Raises:
        ValueError: Fewer than two pairs.
    """
    if len(pairs) < 2:
        raise ValueError("an interval needs two pairs or more")
    differences = [with_s / without_s - 1.0 for without_s, with_s in pairs]
    mean = statistics.fmean(differences)
    degrees = len(pairs) - 1
    quantile = _T_95[degrees - 1] if degrees <= len(_T_95) else 1.96
    half = quantile * statistics.stdev(differences) / math.sqrt(len(pairs))
    return SlowDown(len(pairs), mean, mean - half, mean + half, statistics.median(without for without, _ in pairs))


def measure(
    spec: dict[str, Any], pairs: int, agent_options: Sequence[str], say: Callable[[str], None], seed: int = 1
) -> SlowDown:
    """Run one training process and time its blocks, the agent on in one of each pair, in random order.

    Args:
        spec: The job, see ``recordings.JobPlan``; ``block_s`` is the length of a block.
        pairs: Number of pairs.
        agent_options: More options of ``gpusonde agent``.
        say: Told how it goes.
        seed: Of the order.

    Raises:
        JobFailedError: The job, the collector or the agent failed.
    """
    order = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "spec.json").write_text(json.dumps({**spec, "mode": "blocks"}))
        collector = subprocess.Popen(
            [*GPUSONDE, "collector", "--listen", "127.0.0.1:0", "--store", str(place / "store")],
            stderr=subprocess.DEVNULL,
        )
        job = subprocess.Popen(
            [sys.executable, str(JOB), str(place / "spec.json"), str(place / "events.jsonl")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            address = _address_of(collector, place / "store" / "address")
            say(f"blocks of {_answer(job)['steps']} steps")
            times: list[tuple[float, float]] = []
            for number in range(pairs):
                seconds = {}
                for with_agent in order.sample((False, True), 2):
                    agent = _start_agent(address, place / "spool", agent_options) if with_agent else None
                    # Also without an agent: both halves of a pair follow a pause of the same length.
                    time.sleep(_SETTLE_S)
                    seconds[with_agent] = _block(job)
                    if agent is not None:
                        _end_agent(agent)
                times.append((seconds[False], seconds[True]))
                say(f"pair {number + 1}: {seconds[False]:.3f} s without, {seconds[True]:.3f} s with the agent")
            return slow_down(times)
        finally:
            for process in (job, collector):
                process.terminate()
                process.wait()


def _address_of(collector: subprocess.Popen[bytes], file: Path) -> str:
    until_s = time.monotonic() + _COLLECTOR_START_S
    while not file.is_file():
        if collector.poll() is not None or time.monotonic() > until_s:
            raise JobFailedError("the collector did not start; see what 'gpusonde collector' says")
        time.sleep(0.05)
    return file.read_text().strip()


def _start_agent(address: str, spool: Path, options: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [*GPUSONDE, "agent", "--collector", address, "--spool", str(spool), *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _end_agent(agent: subprocess.Popen[bytes]) -> None:
    if agent.poll() is not None:
        raise JobFailedError("the agent ended by itself: nothing was compared; see what 'gpusonde agent' says")
    agent.send_signal(signal.SIGTERM)
    agent.wait()


def _block(job: subprocess.Popen[str]) -> float:
    assert job.stdin is not None
    job.stdin.write("block\n")
    job.stdin.flush()
    return float(_answer(job)["seconds"])


def _answer(job: subprocess.Popen[str]) -> dict[str, Any]:
    assert job.stdout is not None
    line = job.stdout.readline()
    if not line:
        raise JobFailedError("the training process ended; its own words are above")
    answer: dict[str, Any] = json.loads(line)
    return answer
