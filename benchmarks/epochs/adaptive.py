"""What the agent's adaptive rate saves and costs: recorded and generated traces, thinned as it would have read them.

Usage: ``python benchmarks/epochs/adaptive.py [--out docs/results/adaptive.md] [--per-family 2] [--set NAME]``
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sets
from report import percent, table

from gpusonde.agent.pace import followed_columns
from gpusonde.agent.rhythm import Rhythm
from gpusonde.epoch_detect import detect
from gpusonde.epoch_detect.evaluation import score, summarise
from gpusonde.telemetry import Trace, metric

# Looked at while the constants of the rhythm were chosen. The others were run once, when they stood.
_SEEN = ("synthetic_paper_regime", "synthetic_epochs", "synthetic_negatives", "real GPU", "disturbed families")
_INTERVAL_S = 0.1
_LONG_S = 300.0
_TEMPOS = (
    (10.0, 15.0),
    (15.0, 10.0),
    (20.0, 26.0),
    (20.0, 5.0),
    (30.0, 20.0),
    (60.0, 45.0),
    (60.0, 6.0),
    (120.0, 30.0),
)
_WHAT = """Traces at 10 Hz, of which only the ticks are kept that
`source.rate = "adaptive"` would have read (each as it was, not an average); then epochs are looked for in all ticks
and in those that are left. *Seen*: looked at while the constants were chosen. *Set aside*: not, but an earlier state
was run on them before it was mended how changes are seen."""
_MEANING = """Jobs of a few minutes are young for most of their time, and cycles of a few seconds keep the rate
up. Where both rates give a period within 10 %, the error hardly grows; but some periods are lost altogether, most of
the disturbed families. That is why the fixed rate is the default."""
_TEMPO = """Generated: twelve epochs (lengths vary by 2 %), then another length; eight of each. When a reading at full
rate comes, in cycles (of the longer kind) after the change; inf: never. What is shorter than the distance of the
readings, as dips of 0.6 s are at 2 s, cannot be seen."""


@dataclass(frozen=True)
class Thinned:
    """A trace as the adaptive rate would have read it.

    Attributes:
        trace: What is left.
        at_full_rate: Shape (n,), whether the next reading was asked for at full rate.
        changes: When a change was seen, in seconds.
    """

    trace: Trace
    at_full_rate: np.ndarray
    changes: tuple[float, ...]


def thin(trace: Trace) -> Thinned:
    """Keep the ticks that the adaptive rate would have taken."""
    columns = followed_columns([metric(name) for name in trace.metrics])
    values = np.array([trace.values[trace.metrics[i]] for i in columns]).T
    rhythm = Rhythm(_INTERVAL_S, len(columns))
    kept, full, changes, due_s = [], [], [], -np.inf
    for index, now_s in enumerate(trace.time_s.tolist()):
        # The recorded ticks jitter; one that is due is taken a little early rather than a tick late.
        if now_s < due_s - 0.5 * _INTERVAL_S:
            continue
        before = rhythm.changes
        rhythm.see(now_s, values[index])
        changes += [now_s] * (rhythm.changes - before)
        kept.append(index)
        full.append(rhythm.interval_s <= _INTERVAL_S)
        due_s = now_s + rhythm.interval_s
    chosen = np.array(kept)
    left = {name: column[chosen] for name, column in trace.values.items()}
    return Thinned(Trace(trace.time_s[chosen], left, gpu_uuid=trace.gpu_uuid), np.array(full), tuple(changes))


def compare_set(traces: sets.Set) -> tuple[str, ...] | None:
    """Cells of the table for a set; None if none of its traces is sampled at 10 Hz."""
    pairs = []
    ticks = kept = long_ticks = long_kept = 0
    for name, trace, truth in traces:
        if np.median(np.diff(trace.time_s)) > 1.5 * _INTERVAL_S:
            continue
        thinned = thin(trace).trace
        ticks, kept = ticks + len(trace), kept + len(thinned)
        if trace.duration_s >= _LONG_S:
            long_ticks, long_kept = long_ticks + len(trace), long_kept + len(thinned)
        pairs.append((score(name, detect(trace), truth), score(name, detect(thinned), truth)))
    if not pairs:
        return None
    full, thin_ = (summarise([pair[side] for pair in pairs]) for side in (0, 1))
    right = [(a.ape, b.ape) for a, b in pairs if a.ape is not None and b.ape is not None and max(a.ape, b.ape) < 0.1]
    errors = [f"{100 * np.mean(side):.2f} %" for side in zip(*right, strict=True)] or ["-"]
    return (
        str(len(pairs)),
        f"{ticks:,}",
        f"{ticks / kept:.1f}",
        f"{long_ticks / long_kept:.1f}" if long_kept else "-",
        f"{percent(full.declared)} / {percent(thin_.declared)}",
        f"{percent(full.within_5pct)} / {percent(thin_.within_5pct)}",
        " / ".join(errors),
        f"{percent(full.false_positive_rate)} / {percent(thin_.false_positive_rate)}",
    )


def changed_tempo(before_s: float, after_s: float, seed: int) -> tuple[Trace, float]:
    """A job whose epochs change their length, and when they do."""
    rng = np.random.default_rng([seed, round(before_s), round(after_s)])
    lengths = np.concatenate([np.full(12, before_s), np.full(200, after_s)]) * (1 + 0.02 * rng.normal(size=212))
    starts = np.concatenate([[0.0], np.cumsum(lengths)])
    time = np.arange(0.0, starts[12] + 3 * max(before_s, after_s), _INTERVAL_S)
    epoch = np.searchsorted(starts, time, side="right") - 1
    place = (time - starts[epoch]) / lengths[epoch]
    share, low = rng.uniform(0.1, 0.3), rng.uniform(0.2, 0.6)
    level = np.where(place > 1 - share, low, 0.85) + 0.03 * rng.normal(size=time.size)
    return Trace(time, {"sm_active": np.clip(level, 0, 1)}, gpu_uuid="GPU-a"), float(starts[12])


def tempo_rows() -> Iterator[tuple[str, ...]]:
    """How soon another tempo brings the full rate back."""
    for before_s, after_s in _TEMPOS:
        cycles = []
        for seed in range(8):
            trace, at = changed_tempo(before_s, after_s, seed)
            thinned = thin(trace)
            back = thinned.trace.time_s[(thinned.trace.time_s >= at) & thinned.at_full_rate]
            cycles.append((back[0] - at) / max(before_s, after_s) if back.size else np.inf)
        seen = np.array(cycles)
        yield (
            f"{before_s:g} s to {after_s:g} s",
            f"{np.count_nonzero(seen <= 1)} of {seen.size}",
            f"{np.median(seen):.2f}",
            f"{seen.max():.2f}",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/traces"))
    parser.add_argument("--out", type=Path, help="write the page into this Markdown file, else only print it")
    parser.add_argument("--per-family", type=int, default=2, help="generated traces per family")
    parser.add_argument("--set", action="append", help="only sets whose name contains this")
    arguments = parser.parse_args()
    rows = []
    for name, each in sets.every_set(arguments.data, arguments.per_family).items():
        if arguments.set and not any(part in name for part in arguments.set):
            continue
        cells = compare_set(each.traces())
        if cells:
            rows.append((name, "seen" if name in _SEEN else "set aside", *cells))
            print(*rows[-1], sep=" | ", flush=True)
    command = shlex.join(["python", "benchmarks/epochs/adaptive.py", *sys.argv[1:]])
    columns = ("set", "", "traces", "ticks", "fewer readings", "jobs of 5 minutes and more", "a period, all / left",
               "right within 5 %", "mean error where both are within 10 %", "false epochs")  # fmt: skip
    lines = [
        "# The adaptive rate",
        "",
        f"`{command}`. {_WHAT}",
        "",
        *table(columns, rows),
        _MEANING,
        "",
        "## Another tempo",
        "",
        _TEMPO,
    ]
    lines += ["", *table(("epochs of", "within a cycle", "median", "latest"), list(tempo_rows()))]
    text = "\n".join(lines).rstrip() + "\n"
    print(text)
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
