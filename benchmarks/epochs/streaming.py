"""How soon and how steadily the tracker answers: ``python benchmarks/epochs/streaming.py``."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import sets

from gpusonde.epoch_detect import EpochTracker
from gpusonde.epoch_detect.evaluation import Truth
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/traces"))
    parser.add_argument("--every", type=int, default=1, help="take every n-th trace only")
    arguments = parser.parse_args()
    for name in ("synthetic_paper_regime", "synthetic_epochs"):
        rows = [
            (t, truth)
            for i, (_, t, truth) in enumerate(sets.synthetic(arguments.data, name))
            if i % arguments.every == 0
        ]
        results = [follow(trace, truth) for trace, truth in rows]
        firsts = [r[0] for r in results if r[0] is not None]
        verdicts = [v for r in results for v in r[1]]
        hours = sum(trace.duration_s for trace, _ in rows) / 3600
        print(
            f"{name}: {len(rows)} traces; first right verdict after {np.median(firsts):.1f} epochs (median), "
            f"{np.percentile(firsts, 90):.1f} (90 %), never in {len(rows) - len(firsts)}; "
            f"{1 - np.mean(verdicts):.3f} of {len(verdicts)} prefix verdicts wrong; "
            f"{sum(r[2] for r in results) / hours:.2f} CPU s per trace-hour; at most {max(r[3] for r in results)} bytes"
        )


if __name__ == "__main__":
    main()
