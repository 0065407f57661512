"""The product's agent over a source that counts, as a process that can be killed at any moment.

Process: ``python counting_agent.py SETTINGS_JSON SECTION.NAME=VALUE ...``. Every tick carries its number modulo 4096 as
``power_watts``. The settings, all optional:

* ``interval_s``, ``batch_interval_s``: as fast as a test wants; the configuration would refuse less than 100 ms.
* ``reached``: a file of 8 bytes that holds the number of the last tick taken, whatever happens to the process.
* ``clock_offset``: a file with seconds to add to the wall clock, as if someone had set it.
* ``gpu_uuids``: names of the GPUs.
* ``ticks``: end like a finite source after so many.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import mmap
import sys
import threading
import time
from pathlib import Path

import numpy as np

CYCLE = 4096


def step_clock(path: Path) -> None:
    """Make ``time.time_ns`` follow a file with an offset in seconds. Before the agent is imported."""
    real_ns, looked_at_s, offset_ns = time.time_ns, 0.0, 0
    lock = threading.Lock()  # a thread that looked earlier and comes back later would set the clock back once more

    def stepped_ns() -> int:
        nonlocal looked_at_s, offset_ns
        with lock:
            if time.monotonic() - looked_at_s > 0.02:
                offset_ns = round(float(path.read_text() or 0) * 1e9)
                looked_at_s = time.monotonic()
            return real_ns() + offset_ns

    time.time_ns = stepped_ns


class Counting:
    """Hardware whose ticks are numbered."""

    name = "counting"

    def __init__(self, gpu_uuids, interval_s, reached, ticks, statistics):
        self._gpu_uuids, self._interval_s, self._ticks = gpu_uuids, interval_s, ticks
        self._tick = 0
        self._last_ns = 0
        self._reached = None
        self.statistics = statistics
        if reached:
            Path(reached).write_bytes(b"\0" * 8)
            with open(reached, "r+b") as file:
                self._reached = mmap.mmap(file.fileno(), 8)

    def open(self):
        from gpusonde.agent import SourceInventory
        from gpusonde.agent.sources.base import GpuDescription
        from gpusonde.telemetry import metric

        gpus = tuple(GpuDescription(uuid, index, "Tesla T4") for index, uuid in enumerate(self._gpu_uuids))
        return SourceInventory("counting", gpus, (metric("power_watts"),), self._interval_s)

    def read(self, deadline_s):
        from gpusonde.agent.sources.base import GpuTicks, Reading

        if self._ticks and self._tick >= self._ticks:
            return None
        number, self._tick = self._tick, self._tick + 1
        if self._reached is not None:
            self._reached[:] = (number + 1).to_bytes(8, "little")
        stamp = time.time_ns() // 1000 * 1000
        values = np.array([[float(number % CYCLE)]])
        return Reading(tuple(GpuTicks(i, np.array([stamp]), values) for i in range(len(self._gpu_uuids))))

    def progress(self):
        return None

    def close(self):
        return None


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    settings = json.loads(sys.argv[1])
    if "clock_offset" in settings:
        step_clock(Path(settings["clock_offset"]))
    from gpusonde.agent import AgentConfig, run_agent
    from gpusonde.agent.sources.base import SourceStatistics

    config = AgentConfig.load(overrides=dict(a.split("=", 1) for a in sys.argv[2:]))
    interval_s = settings.get("interval_s", 0.1)

    class UncheckedConfig(AgentConfig):
        """The configuration itself refuses such intervals."""

        def __post_init__(self):
            pass

    parts = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    parts["source"] = dataclasses.replace(
        config.source, interval_s=interval_s, idle_interval_s=interval_s, read_budget=1.0
    )
    batch_interval_s = settings.get("batch_interval_s", config.uplink.batch_interval_s)
    parts["uplink"] = dataclasses.replace(config.uplink, batch_interval_s=batch_interval_s)
    source = Counting(
        settings.get("gpu_uuids", ["GPU-a"]),
        interval_s,
        settings.get("reached"),
        settings.get("ticks", 0),
        SourceStatistics(),
    )
    finite = bool(settings.get("ticks"))
    report = run_agent(UncheckedConfig(**parts), source=source, exit_when_acked=finite, ack_timeout_s=120.0)
    print(json.dumps(report.as_json()))


if __name__ == "__main__":
    main()
