"""How soon and how steadily the tracker answers, and what that costs: a section of the page of results."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import families
import numpy as np
from compare import Case, mapped
from generator import render
from report import percent, table

from gpusonde.epoch_detect import EpochTracker
from gpusonde.epoch_detect.evaluation import Truth
from gpusonde.telemetry import Trace

RIGHT = 0.10

_EPOCH_S = 20.0
_LONG_RUN_S = 4 * 3600
_STAGES_S = (0, 900, 1800, 3600, 7200, 14400)

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
