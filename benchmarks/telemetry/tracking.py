"""What looking for epochs costs by the age of a run: a fleet's load follows from how old its runs are."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from workload import TICKS_PER_SECOND, WIRE_METRICS, generated_jobs

from gpusonde.epoch_detect import EpochTracker

_AGES_S = (0, 60, 300, 900, 1800, 3600)


@dataclass(frozen=True)
class Stage:
    """Runs of one age.

    Attributes:
        from_s: Youngest.
        to_s: Oldest.
        cpu_share: Of a core, for one GPU.
    """

    from_s: int
    to_s: int
    cpu_share: float


def by_age(jobs: int, seconds: int) -> list[Stage]:
    """Feed trackers with 25 metrics second by second."""
    ages = [age for age in _AGES_S if age < seconds] + [seconds]
    spent = np.zeros(len(ages) - 1)
    for job in generated_jobs(jobs, seconds):
        tracker = EpochTracker([m.name for m in WIRE_METRICS])
        time_s = np.arange(job.values.shape[1]) / TICKS_PER_SECOND
        for second in range(seconds):
            ticks = slice(second * TICKS_PER_SECOND, (second + 1) * TICKS_PER_SECOND)
            begin = time.process_time()
            tracker.update(time_s[ticks], job.values[:, ticks])
            spent[np.searchsorted(ages, second, side="right") - 1] += time.process_time() - begin
    return [
        Stage(low, high, float(cpu_s) / jobs / (high - low))
        for low, high, cpu_s in zip(ages[:-1], ages[1:], spent, strict=True)
    ]
