"""How soon and how steadily the tracker answers: ``python benchmarks/epochs/streaming.py``."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import families
import numpy as np
import sets
from generator import render

from gpusonde.epoch_detect import EpochTracker
from gpusonde.epoch_detect.truth import Truth
from gpusonde.telemetry import Trace

RIGHT = 0.10


def follow(trace: Trace, truth: Truth) -> tuple[float | None, list[bool], float, int]:
    """Feed a trace second by second.

    Returns:
        Epochs that were over at the first right verdict, or None; whether each declared verdict was right; CPU seconds;
        bytes held.
    """
    tracker = EpochTracker(trace.metrics)
    values = np.array([trace.values[name] for name in trace.metrics])
    starts = np.array(truth.epoch_starts_s)
    first, verdicts, seen = None, [], None
    begin = time.process_time()
    cuts = np.searchsorted(trace.time_s, np.arange(trace.time_s[0] + 1, trace.time_s[-1] + 1))
    for low, high in zip(np.r_[0, cuts[:-1]], cuts, strict=True):
        tracker.update(trace.time_s[low:high], values[:, low:high])
        found = tracker.detection
        if found is None or found is seen or found.verdict == "none":
            continue
        seen = found
        right = any(abs(found.period_s / p - 1) <= RIGHT for p in truth.periods_s)
        if found.verdict == "epochs":
            verdicts.append(right)
        if right and first is None:
            first = float((starts <= trace.time_s[high - 1]).sum()) - 1
    return first, verdicts, time.process_time() - begin, tracker.nbytes


def streaming(folder: Path, every: int) -> list[str]:
    """Lines of the report."""
    columns = (
        "set", "traces", "first right verdict (median)", "90 %", "never", "prefix verdicts", "wrong",
        "CPU per trace-hour", "of a core", "memory at most",
    )  # fmt: skip
    explanation = (
        f"`EpochTracker` fed second by second: one in {every} of the traces of two sets, and an hour of 20 s epochs. A "
        "prefix verdict is any answer `epochs` on the way; the first right verdict counts the epochs that were over."
    )
    table = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines = ["## Streaming", "", explanation, "", *table]
    for name in ("synthetic_paper_regime", "synthetic_epochs"):
        rows = [(t, truth) for i, (_, t, truth) in enumerate(sets.synthetic(folder, name)) if i % every == 0]
        lines.append(_row(name, rows))
    lines.append(_row("one hour", [_hour()]))
    return [*lines, ""]


def _row(name: str, rows: list[tuple[Trace, Truth]]) -> str:
    results = [follow(trace, truth) for trace, truth in rows]
    firsts = [r[0] for r in results if r[0] is not None]
    verdicts = [v for r in results for v in r[1]]
    cpu_s = sum(r[2] for r in results) / (sum(trace.duration_s for trace, _ in rows) / 3600)
    cells = [
        name, str(len(rows)), f"{np.median(firsts):.1f} epochs", f"{np.percentile(firsts, 90):.1f} epochs",
        str(len(rows) - len(firsts)), str(len(verdicts)), f"{100 * (1 - np.mean(verdicts)):.1f} %", f"{cpu_s:.2f} s",
        f"{100 * cpu_s / 3600:.3f} %", f"{max(r[3] for r in results) / 1024:.0f} KiB",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _hour() -> tuple[Trace, Truth]:
    """An hour of 20 s epochs with validation, four metrics, 10 Hz."""
    rng = np.random.default_rng(20)
    plan = families.Plan()
    for length in 20.0 * rng.normal(1, 0.01, 178):
        plan.begin_epoch()
        plan.add(length * 0.8, 0.8)
        plan.add(length * 0.2, 0.4)
    while True:
        made = render("hour", "hour", plan, rng)
        if len(made.trace.metrics) == 4 and made.trace.interval_s < 0.15:
            return made.trace, Truth((float(made.period_s or np.nan),), made.epoch_starts_s, "hour")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/traces"))
    parser.add_argument("--every", type=int, default=1, help="take every n-th trace only")
    arguments = parser.parse_args()
    print("\n".join(streaming(arguments.data, arguments.every)))


if __name__ == "__main__":
    main()
