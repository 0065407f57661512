"""Whether the merged tree of a job's hosts is as good as that of one host: generated jobs of several GPUs, cut in two.

``python benchmarks/epochs/hosts.py --jobs 200`` splits the GPUs of each job over two hosts, detects on each, merges as
a collector does (``JobTree``), and scores the first host's tree beside the merged one.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
from jobs import BLIND, Job, job
from kinds import KINDS
from simulation import Level

from gpusonde.collector.query.job_tree import JobTree, TreePart
from gpusonde.collector.storage.model import MOST_STARTS, CycleRow, CycleTree, RunRow
from gpusonde.epoch_detect import detect
from gpusonde.telemetry import Trace

_SAME = 0.1
_SURE = 0.9


def _part(name: str, traces: Sequence[Trace]) -> TreePart:
    """Detect on the GPUs of one host, and return what would be stored."""
    found = detect(traces)
    cycles = tuple(
        CycleRow(
            c.period_s, c.period_low_s, c.period_high_s, c.count, c.confidence, str(c.role), c.role_confidence,
            c.parent, tuple(round(start * 1e9) for start in c.starts_s[-MOST_STARTS:]), confirmed=c.confirmed,
        )
        for c in found.cycles
    )  # fmt: skip
    first, last = (round(float(traces[0].time_s[i]) * 1e9) for i in (0, -1))
    run = RunRow(
        name, name, name, "job", 1, True, "", first, last, 1, 1, 1, 1, 1, 0, str(found.verdict), "", found.period_s
    )
    return TreePart(run, CycleTree(cycles, found.level, (), str(found.run_state or ""), found.run_state_confidence))


def _is(cycle: CycleRow, level: Level) -> bool:
    return any(abs(cycle.period_s / period_s - 1) <= _SAME for period_s in (level.period_s, *level.regimes_s))


def _score(made: Job, tree: CycleTree) -> Counter[str]:
    """Count what is right and wrong in a tree."""
    score: Counter[str] = Counter()
    for level in made.levels:
        if level.visible:
            score["visible"] += 1
            score["listed"] += any(_is(cycle, level) for cycle in tree.cycles)
    for cycle in tree.cycles:
        same = [level for level in made.levels if _is(cycle, level)]
        score["told"] += 1
        score["real"] += bool(same)
        score["sure"] += cycle.confidence >= _SURE
        score["sure and real"] += cycle.confidence >= _SURE and bool(same)
        if cycle.role != "unknown":
            right = any(cycle.role in (str(role) for role in (level.role, *level.also)) for level in same)
            score["roles right" if right else "roles wrong"] += 1
    return score


def main() -> None:
    """Score and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=9001)
    arguments = parser.parse_args()
    alone, merged, deviations = Counter[str](), Counter[str](), Counter[str]()
    errors: dict[str, list[float]] = {"one host": [], "merged": []}
    kinds = sorted(KINDS.keys() - BLIND)
    made = (job(kind, arguments.seed, number, longest_s=1800.0) for number in itertools.count() for kind in kinds)
    several = (each for each in made if len(each.traces) > 1 and each.levels)
    for each in itertools.islice(several, arguments.jobs):
        half = len(each.traces) // 2
        first, second = _part("a", each.traces[:half]), _part("b", each.traces[half:])
        both = JobTree.of([first, second])
        alone += _score(each, first.tree)
        merged += _score(each, both.tree)
        deviations.update(deviation.kind for deviation in both.host_deviations)
        for name, tree in (("one host", first.tree), ("merged", both.tree)):
            errors[name] += [
                (cycle.confidence - any(_is(cycle, level) for level in each.levels)) ** 2 for cycle in tree.cycles
            ]
    for name, score in (("one host", alone), ("merged", merged)):
        print(f"{name}: {dict(score)}, Brier score of confidence {np.mean(errors[name]):.3f}")
    print(f"hosts named although both did the same: {dict(deviations)}")


if __name__ == "__main__":
    main()
