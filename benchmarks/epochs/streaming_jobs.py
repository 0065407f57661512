"""How often a tracker is wrong on the way through jobs of today.

Run it as ``python benchmarks/epochs/streaming_jobs.py``.

A prefix verdict is any new answer ``epochs`` while the job runs. It is wrong when what it tells is a cycle that the job
does not have (more than 10 % off every level), or when it says that it is the epoch (``role``) and no epoch of the job
is so long; in what is no training nothing is an epoch. *Not the epoch* counts, as before 2026-11-23, every verdict that
is off the epoch, whatever it says of itself; where no epoch is to be seen, off every level with a name. An epoch is
withdrawn, too, when it was reported as one and turns out to be a cycle of another level than the one told.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import jobs
import numpy as np
from simulation import Level

from gpusonde.epoch_detect import CycleRole, EpochDetection, EpochEvent, EpochTracker

RIGHT = 0.10
_LONGEST_S = 2400.0


@dataclass
class Followed:
    """What was told of one job.

    Attributes:
        counts: Of verdicts and of epochs.
        first_right: Cycles at the first right verdict.
        first_epoch: The same of the first that tells the epoch, whatever it says of itself.
        told_s: Periods of the verdicts.
        levels_s: Periods of all levels of the job.
    """

    counts: Counter[str]
    first_right: list[int] = field(default_factory=list)
    first_epoch: list[int] = field(default_factory=list)
    told_s: list[float] = field(default_factory=list)
    levels_s: list[float] = field(default_factory=list)


def follow(job: jobs.Job) -> Followed:
    """Feed the first GPU of a job second by second, and count what is told."""
    trace = job.traces[0]
    training = job.run_state == "training"
    told = Followed(Counter(jobs=1, trainings=training), levels_s=_periods(job.levels))
    tracker, seen = EpochTracker(trace.metrics), None
    values = np.array([trace.values[name] for name in trace.metrics])
    called_epochs: set[int] = set()
    cuts = np.searchsorted(trace.time_s, np.arange(trace.time_s[0] + 1, trace.time_s[-1] + 1))
    for low, high in zip(np.r_[0, cuts], np.r_[cuts, len(trace)], strict=True):
        _count_events(told.counts, tracker.update(trace.time_s[low:high], values[:, low:high]), tracker, called_epochs)
        found = tracker.detection
        if found is not None and found is not seen and found.verdict == "epochs":
            seen = found
            _judge(told, found, job)
    for name in ("verdicts", "wrong", "not the epoch"):
        told.counts[f"jobs with {name}"] = told.counts[name] > 0
    told.counts["trainings with a right verdict"] = training and bool(told.first_right)
    told.counts["trainings with the epoch"] = training and bool(told.first_epoch)
    _count_events(told.counts, tracker.finish(), tracker, called_epochs, at_end=" at the end")
    final = tracker.detection
    final_right = final is not None and final.verdict == "epochs" and _is_near(final.period_s, job.periods_s)
    told.counts["trainings right at the end"] = training and final_right
    return told


def _judge(told: Followed, found: EpochDetection, job: jobs.Job) -> None:
    """Count one verdict."""
    claims, is_level = found.role == CycleRole.EPOCH, _is_near(found.period_s, told.levels_s)
    is_epoch = _is_near(found.period_s, job.periods_s)
    epochs = [level for level in job.levels if CycleRole.EPOCH in (level.role, *level.also)]
    claims_wrongly = claims and not _is_near(found.period_s, _periods(epochs) if job.run_state == "training" else [])
    wrong = not is_level or claims_wrongly
    told.counts += Counter(
        {"verdicts": 1, "wrong": wrong, "no level": not is_level, "not the epoch": not is_epoch,
         "called epoch": claims, "wrongly called epoch": claims_wrongly}
    )  # fmt: skip
    told.told_s.append(found.period_s)
    cycles = found.epoch_starts_s.size
    if not wrong:
        told.first_right = told.first_right or [cycles]
    if is_epoch:
        told.first_epoch = told.first_epoch or [cycles]


def _count_events(
    counts: Counter[str], events: Sequence[EpochEvent], tracker: EpochTracker, called: set[int], *, at_end: str = ""
) -> None:
    """Count what happened to epochs; ``called`` holds those that were said to be epochs when they were reported."""
    found = tracker.detection
    is_epoch = found is not None and found.role == CycleRole.EPOCH
    for event in events:
        index, status = event.epoch.index, event.epoch.status
        if event.kind == "reported":
            counts["reported at the end" if at_end else "reported"] += 1
            if is_epoch:
                called.add(index)
        elif event.kind == "withdrawn" or (status == "other_level" and index in called):
            counts[f"withdrawn{at_end}"] += 1
            called.discard(index)
        elif status == "other_level":
            counts[f"of another level{at_end}"] += 1


def _periods(levels: Sequence[Level]) -> list[float]:
    return [period_s for level in levels for period_s in (level.period_s, *level.regimes_s)]


def _is_near(period_s: float, others: Sequence[float]) -> bool:
    return any(abs(period_s - other) <= RIGHT * other for other in others)


def _count_lucky(followed: Sequence[Followed]) -> int:
    """How many verdicts tell a level of the next job with levels, which they know nothing of."""
    with_levels = [each for each in followed if each.levels_s]
    after = zip(with_levels, [*with_levels[1:], *with_levels[:1]], strict=True)
    return sum(_is_near(period_s, other.levels_s) for each, other in after for period_s in each.told_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=521)
    parser.add_argument("--jobs", type=int, default=66)
    parser.add_argument("--kind", action="append", choices=list(jobs.KINDS), help="only such jobs")
    parser.add_argument("--blind", action="store_true", help="of the kinds that are set aside: for a final figure only")
    arguments = parser.parse_args()
    kinds = arguments.kind or (sorted(jobs.BLIND) if arguments.blind else jobs.FIT)
    followed: list[Followed] = []
    by_kind: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    for number in range(arguments.jobs):
        kind = kinds[number % len(kinds)]
        job = jobs.job(kind, arguments.seed, number, blind=arguments.blind, longest_s=_LONGEST_S)
        if job.truth is not None:
            followed.append(follow(job))
            by_kind[kind] += followed[-1].counts
    for kind, counts in by_kind.items():
        print(f"{kind}: {', '.join(f'{name} {count}' for name, count in sorted(counts.items()) if count)}")
    total = sum((each.counts for each in followed), Counter[str]())
    print("all:", ", ".join(f"{name} {count}" for name, count in sorted(total.items())))
    verdicts, reported = max(total["verdicts"], 1), max(total["reported"], 1)
    shares = [f"{name} {total[name] / verdicts:.3f}" for name in ("wrong", "no level", "not the epoch")]
    print(f"of the verdicts {', '.join(shares)}, a level of another job {_count_lucky(followed) / verdicts:.3f}")
    gone, at_end = total["withdrawn"], total["withdrawn at the end"]
    other = total["of another level"] + total["of another level at the end"]
    print(
        f"of the reported on the way withdrawn {gone / reported:.3f}, with the end {(gone + at_end) / reported:.3f},"
        f" of another level at last {other / reported:.3f}"
    )
    for name, first in (
        ("right", [each.first_right for each in followed]),
        ("epoch", [e.first_epoch for e in followed]),
    ):
        cycles = [count for each in first for count in each]
        print(f"first verdict {name}: {len(cycles)} jobs, cycles at it {np.median(cycles) if cycles else np.nan:.1f}")


if __name__ == "__main__":
    main()
