"""How soon and how steadily the tracker answers, and what that costs: a section of the page of results.

``python benchmarks/epochs/streaming.py --against REF`` compares both with another commit, on the first quarter of an
hour of long jobs.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import disturbed
import families
import numpy as np
import seen_once
import set_aside
from compare import Case, mapped
from generator import render
from paired import Outcome, load, side_by_side
from report import percent, table

from gpusonde.epoch_detect import EpochTracker
from gpusonde.epoch_detect.evaluation import Truth
from gpusonde.telemetry import Trace

RIGHT = 0.10

_EPOCH_S = 20.0
_LONG_RUN_S = 4 * 3600
_STAGES_S = (0, 900, 1800, 3600, 7200, 14400)
_AGES_S = (0, 60, 300, 900)
_SEED = 27
_LATER = {"clock_event_reason_bits"}  # metrics that a commit to compare with may not know

_EXPLANATION = """\
`EpochTracker` fed second by second. A prefix verdict is any new answer `epochs` on the way; on a trace without epochs
it is wrong. The first right verdict counts the epochs that were over. Most work falls into a run's first minutes."""


@dataclass(frozen=True)
class Followed:
    """What the tracker said on the way through one trace.

    Attributes:
        first: Epochs that were over at the first right verdict; infinite without one, NaN for a negative.
        right: For each new verdict ``epochs``, whether it was right.
        cpu_s: CPU seconds.
        held_bytes: Bytes held for ticks.
        duration_s: Length of the trace.
    """

    first: float
    right: list[bool]
    cpu_s: float
    held_bytes: int
    duration_s: float


def streaming(cases: dict[str, list[Case]], every: int, jobs: int) -> list[str]:
    """Lines of the report.

    Args:
        cases: Sets of which every epoch start is known.
        every: Take every n-th trace only.
        jobs: Processes to share the traces among.
    """
    columns = (
        "set", "traces", "first right verdict (median)", "90 %", "never", "prefix verdicts", "wrong",
        "traces with a wrong one",
        "CPU per trace-hour", "of a core", "held at most",
    )  # fmt: skip
    long_run = _long_run()
    rows = [_row(name, list(mapped(follow, some[::every], jobs))) for name, some in cases.items()]
    rows.append(_row("4 hours of 20 s epochs", [follow(long_run)]))
    growth = "Work per tick while those four hours pass; the memory is full after 41 minutes at 10 Hz."
    return [
        "## Streaming",
        "",
        f"{_EXPLANATION} One trace in {every}." if every > 1 else _EXPLANATION,
        "",
        *table(columns, rows),
        growth,
        "",
        *table(("minutes of history", "CPU per tick", "longest update"), _stages(long_run[1])),
    ]


def follow(case: Case) -> Followed:
    """Feed a trace second by second."""
    _, trace, truth = case
    tracker = EpochTracker(trace.metrics)
    starts = np.array(truth.epoch_starts_s)
    first, verdicts, seen = np.inf if truth.periods_s else np.nan, [], None
    begin = time.process_time()
    for now_s, time_s, values in _seconds_of(trace):
        tracker.update(time_s, values)
        found = tracker.detection
        if found is None or found is seen or found.verdict == "none":
            continue
        seen = found
        right = any(abs(found.period_s - p) <= RIGHT * p for p in truth.periods_s)
        if found.verdict == "epochs":
            verdicts.append(right)
        if right and np.isinf(first):
            first = float(max((starts <= now_s).sum() - 1, 0))
    return Followed(first, verdicts, time.process_time() - begin, tracker.nbytes, trace.duration_s)


def _seconds_of(trace: Trace) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
    """Cut a trace into its seconds: the last time, the times, shape (n,), and the values, shape (metrics, n)."""
    values = np.array([trace.values[name] for name in trace.metrics])
    cuts = np.searchsorted(trace.time_s, np.arange(trace.time_s[0] + 1, trace.time_s[-1] + 1))
    for low, high in zip(np.r_[0, cuts], np.r_[cuts, len(trace)], strict=True):
        if high > low:
            yield float(trace.time_s[high - 1]), trace.time_s[low:high], values[:, low:high]


def _row(name: str, results: list[Followed]) -> tuple[str, ...]:
    firsts = np.array([r.first for r in results if not np.isnan(r.first)])
    verdicts = [right for r in results for right in r.right]
    cpu_s = sum(r.cpu_s for r in results) / (sum(r.duration_s for r in results) / 3600)
    return (
        name, str(len(results)), _epochs(firsts, 0.5), _epochs(firsts, 0.9),
        str(int(np.isinf(firsts).sum())) if firsts.size else "-", str(len(verdicts)),
        percent(1 - float(np.mean(verdicts)) if verdicts else None), str(sum(not all(r.right) for r in results)),
        f"{cpu_s:.2f} s", f"{100 * cpu_s / 3600:.3f} %", f"{max(r.held_bytes for r in results) / 1024:.0f} KiB",
    )  # fmt: skip


def _epochs(firsts: np.ndarray, share: float) -> str:
    """After how many epochs this share of the traces had a right verdict."""
    if not firsts.size:
        return "-"
    # No interpolation: half of the way to "never" is no number.
    value = float(np.quantile(firsts, share, method="inverted_cdf"))
    return "never" if np.isinf(value) else f"{value:.0f} epochs"


def _long_run() -> Case:
    """Four hours of epochs with validation, four metrics, 10 Hz."""
    rng = np.random.default_rng(20)
    plan = families.Plan()
    for length in _EPOCH_S * rng.normal(1, 0.01, int(_LONG_RUN_S / _EPOCH_S) + 2):
        plan.begin_epoch()
        plan.add(length * 0.8, 0.8)
        plan.add(length * 0.2, 0.4)
    while True:
        made = render("long run", "long run", plan, rng)
        if len(made.trace.metrics) == 4 and made.trace.interval_s < 0.15:
            return made.name, made.trace, Truth((float(made.period_s or np.nan),), made.epoch_starts_s)


def _stages(trace: Trace) -> list[tuple[str, ...]]:
    """For each stretch of a long run, CPU time per tick and of the longest update."""
    tracker = EpochTracker(trace.metrics)
    origin = float(trace.time_s[0])
    spent = np.zeros(len(_STAGES_S) - 1)
    longest, ticks = np.zeros_like(spent), np.zeros_like(spent)
    for now_s, time_s, values in _seconds_of(trace):
        begin = time.process_time()
        tracker.update(time_s, values)
        cpu_s = time.process_time() - begin
        stage = min(int(np.searchsorted(_STAGES_S, now_s - origin, side="right")) - 1, spent.size - 1)
        spent[stage] += cpu_s
        ticks[stage] += len(time_s)
        longest[stage] = max(longest[stage], cpu_s)
    return [
        (f"{low // 60} to {high // 60}", f"{1e6 * s / n:.0f} µs", f"{1e3 * most:.0f} ms")
        for low, high, s, n, most in zip(_STAGES_S[:-1], _STAGES_S[1:], spent, ticks, longest, strict=True)
    ]


def compare_with(reference: str, rounds: int, every: int) -> list[str]:
    """Measure both commits in turns on the first minutes of jobs; the best round of each second is taken.

    Args:
        reference: The commit.
        rounds: How often each trace is fed to both.
        every: Take every n-th job only.
    """
    cases = {f"{name} ({len(trace.metrics)} metrics)": (trace, truth) for name, trace, truth in _jobs()[::every]}
    spent: dict[str, list[np.ndarray]] = {}
    said: dict[str, list[Outcome]] = {}
    with side_by_side(reference, {name: trace for name, (trace, _) in cases.items()}) as workers:
        for turn in range(rounds):
            for name in cases:
                outcomes = [workers[side].run("streaming", name) for side in ((0, 1) if turn % 2 else (1, 0))]
                said[name] = outcomes if turn % 2 else outcomes[::-1]
                now = [outcome.cpu_s for outcome in said[name]]
                spent[name] = [np.minimum(*pair) for pair in zip(spent.get(name, now), now, strict=True)]
    lines = [f"CPU at {reference} and here, {len(cases)} jobs, best of {rounds} rounds each; {load()}"]
    for low, high in itertools.pairwise(_AGES_S):
        parts = [[cpu_s[low:high] for cpu_s in both] for both in spent.values()]
        share = [100 * float(np.mean([both[side].sum() for both in parts])) / (high - low) for side in (0, 1)]
        longest = [1e3 * float(np.mean([both[side].max() for both in parts])) for side in (0, 1)]
        most = [1e3 * max(float(both[side].max()) for both in parts) for side in (0, 1)]
        lines.append(
            f"minutes {low // 60:2} to {high // 60:2}: {share[0]:.3f} % of a core, {share[1]:.3f} %, ratio "
            f"{share[1] / share[0]:.2f}; longest update, mean of the jobs: {longest[0]:.0f} ms, {longest[1]:.0f} ms, "
            f"ratio {longest[1] / longest[0]:.2f}; of all: {most[0]:.0f} ms, {most[1]:.0f} ms"
        )
    for side, label in ((0, reference), (1, "here")):
        lines.append(f"{label}: {_verdicts([(cases[name][1], outcomes[side]) for name, outcomes in said.items()])}")
    return lines


def _verdicts(outcomes: list[tuple[Truth, Outcome]]) -> str:
    firsts, right, reported, withdrawn = [], [], 0, 0
    for truth, outcome in outcomes:
        starts, first = np.array(truth.epoch_starts_s), np.inf
        for look in outcome.looks:
            fits = any(abs(look.period_s - period) <= RIGHT * period for period in truth.periods_s)
            if look.verdict == "epochs":
                right.append(fits)
            if look.verdict != "none" and fits and np.isinf(first):
                first = float(max((starts <= look.at_s).sum() - 1, 0))
        if truth.periods_s:
            firsts.append(first)
        reported, withdrawn = reported + outcome.reported, withdrawn + outcome.withdrawn
    return (
        f"first right verdict after {_epochs(np.array(firsts), 0.5)} (median), {_epochs(np.array(firsts), 0.9)} (90 %)"
        f", never in {int(np.isinf(firsts).sum())} of {len(firsts)}; {len(right)} prefix verdicts, "
        f"{percent(1 - float(np.mean(right)) if right else None)} wrong; {withdrawn} of {reported} epochs withdrawn"
    )


def _jobs() -> list[Case]:
    """The first quarter of an hour of jobs at 10 Hz: of each family one, and some with 25 metrics."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "telemetry"))
    from workload import WIRE_METRICS, generated_jobs  # it needs what a collector needs

    cases = []
    for job in generated_jobs(4, _AGES_S[-1]):
        time_s = np.arange(job.values.shape[1]) / 10
        values = dict(zip((m.name for m in WIRE_METRICS), job.values, strict=True))
        trace = Trace(time_s, {name: row for name, row in values.items() if name not in _LATER})
        period_s = float(job.name.split()[-2])
        cases.append((job.name, trace, Truth((period_s,), tuple(np.arange(0, _AGES_S[-1], period_s)))))
    groups = [group for module in (disturbed, seen_once, set_aside) for group in (module.POSITIVE, module.NEGATIVE)]
    for number, (name, make) in enumerate((name, make) for group in groups for name, make in group.items()):
        rng = np.random.default_rng([_SEED, number])
        while True:
            plan = make(rng)
            if sum(seconds for seconds, _, _ in plan.segments) < _AGES_S[-1]:
                continue
            made = render(name, name, plan, rng)
            if made.trace.interval_s < 0.15:
                break
        trace = made.trace.window(made.trace.time_s[0], made.trace.time_s[0] + _AGES_S[-1])
        periods = made.regimes or (() if made.period_s is None else (made.period_s,))
        cases.append((name, trace, Truth(periods, made.epoch_starts_s)))
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", metavar="REF", required=True, help="commit to compare with")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="take every n-th job only")
    arguments = parser.parse_args()
    print("\n".join(compare_with(arguments.against, arguments.rounds, arguments.every)))


if __name__ == "__main__":
    main()
