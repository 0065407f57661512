"""What following a job costs by its size: the GPUs of one job have one tracker, those without a job have one each.

    python benchmarks/telemetry/job_tracking.py

Generated training jobs with all gauges at 10 Hz, second by second through store and tracking. "tracker": looking for
epochs, reading the other GPUs of the job and comparing them; "round": all of tracking, which also decodes every GPU's
ticks and looks for the beginning and the end of its runs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from support.job_records import START, binding
from support.trace_records import incoming
from support.tracked_store import TrackedStore
from support.wire_agent import batch, block, inventory
from workload import TICKS_PER_SECOND, WIRE_METRICS, generated_jobs

from gpusonde.collector.tracking.epochs import RunEpochTracker
from gpusonde.collector.tracking.jobs import Jobs
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.telemetry import MetricKind, Unit

_TRACKER = (
    (RunEpochTracker, ("update", "finish")),
    (Jobs, ("average", "deviations", "leader", "has_others", "enter")),
)
_GAUGES = [i for i, metric in enumerate(WIRE_METRICS) if metric.kind is not MetricKind.COUNTER]
_NOISE = 0.02


def job_records(values: np.ndarray, gpus: int, *, bound: bool, seed: int) -> list[Any]:
    """Records of an agent whose GPUs do the same, each with noise of its own."""
    rng = np.random.default_rng(seed)
    names = tuple(WIRE_METRICS[i].name for i in _GAUGES)
    uuids = tuple(f"GPU-{i}" for i in range(gpus))
    said = [inventory(1, names, uuids)]
    if bound:
        told = ingest_pb2.JobBindings(bindings=[binding(gpu) for gpu in uuids])
        said.append(ingest_pb2.Record(sequence=2, job_bindings=told))
    ratio = np.array([[WIRE_METRICS[i].unit is Unit.RATIO] for i in _GAUGES])
    for first in range(0, values.shape[1], TICKS_PER_SECOND):
        blocks = []
        for gpu in range(gpus):
            ticks = values[_GAUGES, first : first + TICKS_PER_SECOND]
            noisy = ticks * (1 + rng.normal(0, _NOISE, ticks.shape))
            shown = np.where(ratio, noisy.clip(0, 1), noisy)
            blocks.append(block(first, TICKS_PER_SECOND, shown, names, gpu_index=gpu, start_ns=START))
        said.append(batch(len(said) + 1, *blocks))
    return incoming(said)


class Stopwatch:
    """CPU seconds of some methods, those that they call included once."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        self._depth = 0

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method with the watch around it."""

        def watched(*given: Any, **named: Any) -> Any:
            begin = time.process_time()
            self._depth += 1
            try:
                return call(*given, **named)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.spent_s += time.process_time() - begin

        return watched


def measure(records: list[Any], watch: Stopwatch) -> tuple[float, float]:
    """Return CPU seconds of the trackers and of all rounds."""
    watch.spent_s = 0.0
    with TemporaryDirectory() as directory:
        subject = TrackedStore(Path(directory) / "data")
        rounds_s = 0.0
        for number, record in enumerate(records):
            if number % 60 == 0:
                subject.store.flush()
            subject.store.samples.append([record])
            subject.now += 1.0
            begin = time.process_time()
            subject.pipeline.round()
            rounds_s += time.process_time() - begin
        subject.store.close()
    return watch.spent_s, rounds_s


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=900)
    args = parser.parse_args()
    watch = Stopwatch()
    for owner, methods in _TRACKER:
        for name in methods:
            setattr(owner, name, watch.wrap(getattr(owner, name)))
    shapes = {"one GPU": (1, True), "8 GPUs of one job": (8, True), "8 GPUs without a job": (8, False)}
    found = {shape: np.zeros(2) for shape in shapes}
    # What is imported at the first look is not the first shape's.
    measure(job_records(generated_jobs(1, 120)[0].values, 2, bound=True, seed=0), watch)
    for i, job in enumerate(generated_jobs(args.jobs, args.seconds)):
        for shape, (gpus, bound) in shapes.items():
            found[shape] += measure(job_records(job.values, gpus, bound=bound, seed=i), watch)
    alone = found["one GPU"]
    share = 100 / (args.jobs * args.seconds)
    print("| | tracker, % of a core | times one GPU | round, % of a core | times one GPU |\n|---|---|---|---|---|")
    for shape, spent in found.items():
        (tracker, rounds), (more, more_rounds) = spent * share, spent / alone
        print(f"| {shape} | {tracker:.3f} | {more:.2f} | {rounds:.3f} | {more_rounds:.2f} |")


if __name__ == "__main__":
    main()
