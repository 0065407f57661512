"""How often a tracker is wrong on the way through jobs of today.

Run it as ``python benchmarks/epochs/streaming_jobs.py``.

A prefix verdict is any new answer ``epochs`` while the job runs. It is right within 10 % of the epoch, or, if no epoch
is to be seen of any level with a name; it names a true level within 10 % of any level of the job.
"""

from __future__ import annotations

import argparse
from collections import Counter

import jobs
import numpy as np

from gpusonde.epoch_detect import EpochTracker

RIGHT = 0.10
_LONGEST_S = 2400.0


def follow(job: jobs.Job) -> Counter[str]:
    """Feed the first GPU of a job second by second, and count what is told."""
    trace, counts = job.traces[0], Counter[str](jobs=1, training=job.run_state == "training")
    tracker, seen = EpochTracker(trace.metrics), None
    values = np.array([trace.values[name] for name in trace.metrics])
    training = job.run_state == "training"
    levels = [p for level in job.levels for p in (level.period_s, *level.regimes_s)] if training else []
    cuts = np.searchsorted(trace.time_s, np.arange(trace.time_s[0] + 1, trace.time_s[-1] + 1))
    for low, high in zip(np.r_[0, cuts], np.r_[cuts, len(trace)], strict=True):
        events = tracker.update(trace.time_s[low:high], values[:, low:high])
        counts.update(event.kind for event in events)
        found = tracker.detection
        if found is None or found is seen or found.verdict != "epochs":
            continue
        seen = found
        counts["verdicts"] += 1
        counts["wrong"] += not _is_near(found.period_s, job.periods_s)
        counts["no level"] += not _is_near(found.period_s, levels)
    counts["told"] = counts["verdicts"] > 0
    counts["ever wrong"] = counts["wrong"] > 0
    return counts


def _is_near(period_s: float, others: list[float] | tuple[float, ...]) -> bool:
    return any(abs(period_s - other) <= RIGHT * other for other in others)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=521)
    parser.add_argument("--jobs", type=int, default=66)
    parser.add_argument("--blind", action="store_true", help="of the kinds that are set aside: for a final figure only")
    arguments = parser.parse_args()
    kinds = sorted(jobs.BLIND) if arguments.blind else jobs.FIT
    total: Counter[str] = Counter()
    for number in range(arguments.jobs):
        kind = kinds[number % len(kinds)]
        job = jobs.job(kind, arguments.seed, number, blind=arguments.blind, longest_s=_LONGEST_S)
        if job.truth is not None:
            total += follow(job)
    shares = (f"{name} {total[name] / max(total['verdicts'], 1):.3f}" for name in ("wrong", "no level"))
    print(", ".join(f"{name} {count}" for name, count in sorted(total.items())))
    print(f"of the verdicts {', '.join(shares)}; of the reported withdrawn", end=" ")
    print(f"{total['withdrawn'] / max(total['reported'], 1):.3f}")


if __name__ == "__main__":
    main()
