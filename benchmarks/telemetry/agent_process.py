"""``gpusonde agent`` as it is, but that it also writes down how late every tick was.

Usage: ``python benchmarks/telemetry/agent_process.py FILE ARGUMENTS...``; the arguments are those of the command, and
FILE gets float64 seconds.
"""

from __future__ import annotations

import array
import sys
import time
from pathlib import Path

from gpusonde.agent.sources.nvml.source import NvmlSource
from gpusonde.cli.main import main


def record_lateness(path: Path) -> int:
    """Run the agent; its source is asked for the first thing at every tick."""
    late_s = array.array("d")
    read = NvmlSource.read

    def timed_read(self: NvmlSource, deadline_s: float) -> object:
        late_s.append(time.monotonic() - deadline_s)
        return read(self, deadline_s)

    NvmlSource.read = timed_read  # type: ignore[method-assign, assignment]
    try:
        return main(["agent", *sys.argv[2:]])
    finally:
        path.write_bytes(late_s.tobytes())


if __name__ == "__main__":
    sys.exit(record_lateness(Path(sys.argv[1])))
