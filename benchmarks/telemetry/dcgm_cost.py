"""What an agent costs that samples through DCGM, beside one that samples through NVML: both in one run.

Usage: ``python benchmarks/telemetry/dcgm_cost.py [--seconds S] [--gpus N]``. NVML is the stand-in that answers at once.
DCGM is the stand-in of the tests; each request takes the processor time that a request to a real engine takes in its
client (DCGM 4.4.2: 0.26 ms, most of it to clear 4 MiB). What the stand-in itself takes beyond is subtracted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from processes import CollectorProcess, usage

_TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path.insert(0, str(_TESTS))
from support.fake_dcgm.engine import NO_DATA, XID_FIELD, LiveEngine, install  # noqa: E402 - the stand-ins are the tests'
from support.fake_nvidia import compile_library  # noqa: E402

_SETTLE_S = 8.0
_REQUEST_S = 0.00026


class QuickEngine(LiveEngine):
    """Its values are constants, found by NumPy, so that making them takes no longer than a real request does."""

    def latest_rows(self, pairs: list[tuple[int, int]], field_ids: list[int]) -> tuple[Any, Any, Any]:
        """See :class:`FakeEngine`."""
        key = (len(self.recordings), *pairs, *field_ids)
        if key != self._key:
            # No XID ever happens.
            kept = [None if f == XID_FIELD else self.recordings.get((pair, f)) for pair in pairs for f in field_ids]
            self._key, self._idle = key, np.array([one is None for one in kept])
            self._starts_s = np.array([0.0 if one is None else one.start_s for one in kept])
            self._intervals_s = np.array([1.0 if one is None else one.interval_s for one in kept])
            self._numbers = np.array([0.5 if f >= 1001 else 50.0 for f in field_ids] * len(pairs))
        steps = np.floor((self.time_s - self._starts_s) / self._intervals_s)
        nothing = self._idle | (steps < 0)
        times_s = np.where(nothing, 0.0, self._starts_s + steps * self._intervals_s)
        return times_s, self._numbers, np.where(nothing, NO_DATA, 0)

    _key: tuple[Any, ...] = ()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--agent", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.agent:
        _run_agent(args.gpus, Path(args.agent[0]), args.agent[1:])
        return
    shares = _measure(args.seconds, args.gpus)
    nvml, dcgm = shares["nvml"], shares["dcgm"]
    print(f"{args.gpus} GPUs at 10 Hz, {args.seconds:g} s: NVML {100 * nvml:.2f} % of a core, DCGM {100 * dcgm:.2f} %")
    print(f"DCGM / NVML: {dcgm / nvml:.2f}; requests per second {shares['requests']:.1f}, ticks {shares['ticks']:.4f}")


def _measure(seconds: float, gpus: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="gpusonde-dcgm-") as name:
        place = Path(name)
        compile_library("fake_nvml", "libnvidia-ml.so.1", place)
        agents = {}
        with CollectorProcess(place / "collector", "runs.track=false") as collector:
            try:
                for kind in ("nvml", "dcgm"):
                    settings = (
                        f"source.kind={kind}",
                        f"source.dcgm_bindings={_TESTS / 'support' / 'fake_dcgm' / 'bindings'}",
                        "metrics.listen=",
                        f"uplink.collector={collector.address}",
                        f"spool.directory={place / kind}",
                        f"agent.id={kind}",
                    )
                    words = [word for setting in settings for word in ("--set", setting)]
                    command = [sys.executable, __file__, "--gpus", str(gpus), "--agent", str(place / f"{kind}.json")]
                    with (place / f"{kind}.log").open("wb") as log:
                        agents[kind] = subprocess.Popen(
                            [*command, "agent", *words],
                            env={**os.environ, "LD_LIBRARY_PATH": str(place), "FAKE_NVML_GPUS": str(gpus)},
                            stdout=subprocess.DEVNULL,
                            stderr=log,
                        )
                time.sleep(_SETTLE_S)
                before = {kind: usage(process.pid) for kind, process in agents.items()}
                time.sleep(seconds)
                after = {kind: usage(process.pid) for kind, process in agents.items()}
            finally:
                for process in agents.values():
                    process.terminate()
                for process in agents.values():
                    process.wait(30)
        for kind, process in agents.items():
            if process.returncode:
                raise SystemExit((place / f"{kind}.log").read_text())
        told = json.loads((place / "dcgm.json").read_text())
    shares = {k: (after[k].cpu_s - before[k].cpu_s) / (after[k].wall_s - before[k].wall_s) for k in agents}
    shares["dcgm"] -= told["excess_s"] / told["seconds"]
    return {
        **shares,
        "requests": told["requests"] / told["seconds"],
        "ticks": told["ticks"] / (gpus * 10 * told["seconds"]),
    }


def _run_agent(gpus: int, report: Path, words: list[str]) -> None:
    """Run the command over the stand-in, and write down what was asked of it while values came."""
    from gpusonde.agent.sources.base import Reading
    from gpusonde.agent.sources.dcgm.source import DcgmSource
    from gpusonde.cli.main import main as command

    engine = QuickEngine(gpus=gpus, request_s=_REQUEST_S)
    install(engine)
    read, ticks = DcgmSource.read, -1
    began = ended = (0.0, 0)

    def counting_read(self: DcgmSource, deadline_s: float) -> Reading:
        nonlocal ticks, began, ended
        reading = read(self, deadline_s)
        ended = (deadline_s, engine.requests)
        if ticks >= 0:
            ticks += reading.count_ticks()
        elif reading.count_ticks():
            ticks, began = 0, ended
        return reading

    DcgmSource.read = counting_read  # type: ignore[method-assign]
    try:
        code = command(words)
    finally:
        report.write_text(
            json.dumps(
                {
                    "requests": ended[1] - began[1],
                    "ticks": ticks,
                    "seconds": ended[0] - began[0],
                    "excess_s": engine.excess_s,
                }
            )
        )
    sys.exit(code)


if __name__ == "__main__":
    main()
