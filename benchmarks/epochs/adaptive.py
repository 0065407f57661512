"""What the agent's adaptive rate saves and costs: recorded and generated traces, thinned as it would have read them.

Usage: ``python benchmarks/epochs/adaptive.py [--out build/adaptive.md] [--per-family 2] [--set NAME]``
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import sets
from report import percent, table

from gpusonde.agent.pace import followed_columns
from gpusonde.agent.rhythm import Rhythm
from gpusonde.epoch_detect import detect
from gpusonde.epoch_detect.evaluation import TraceScore, Truth, score, summarise
from gpusonde.telemetry import Trace, metric

# Looked at while the constants of the rhythm were chosen. The others were run once, when they stood.
_SEEN = ("synthetic_paper_regime", "synthetic_epochs", "synthetic_negatives", "real GPU", "disturbed families")
_INTERVAL_S = 0.1
_LONG_S = 300.0
_NEAR = 0.05
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
_WHAT = """Traces at 10 Hz, of which only the ticks are kept that `source.rate = "adaptive"` would have read; then
epochs are looked for in all ticks and in those that are left. *Averages*: a profiling metric is its average since the
reading before, as GPM gives it (the source of Hopper and later). *Moments*: each tick as it was, what was between is
lost (DCGM). *Seen*: looked at while constants and the detector's cells were chosen. *Set aside*: not, but of the final
constants the number of readings was known, and earlier states were run on them. *Lost, won*: right within 5 % only at
full rate, only thinned. What the mean error grows by is given with its 95 % interval, over the traces of the set."""
_MEANING = """Jobs of a few minutes are young for most of their time, and cycles of a few seconds keep the rate
up. In a moment's reading the ripple of training steps, which full rate averages out, is noise: that loses periods of
which full rate is sure. With averages, what is lost are mostly cycles of a few seconds, of which ten readings are kept
where full rate has more, and periods of which full rate is hardly sure either. Where few traces are right with both
rates, one job moves the mean error by tenths of a point, and the interval says how far it can be trusted. Lost periods
are not in it.

What made the last tenth, 2026-11-23, averages: where a cycle would have too few readings at the next slower rate, that
is asked again after 0.35 of the job's age in place of half of it. Half: 4.9 times fewer readings, growth -0.01 in all,
at most 0.26 in a set; 0.4: 5.0; 0.35: 5.1; a quarter: 5.0, 0.11 in all, but 0.36, 0.42 and 0.54 in three small sets.
Every tempo below was seen with each of them. Fewer readings per age in place of 75 saved more and lost tempos: 70
4.9 to 5.0 times and 63 of 64, 65 5.2 and 62, 60 5.3 and 62. Other ladders: every multiple up to 4 s 5.1 times, 57 of
64; the usual steps up to 4 s 4.9, 63; up to 2 s 4.8, all. The errors were seen before 0.35 was taken.
More are lost than won, and of moments clearly more: that is why the fixed rate is the default."""
_TEMPO = """Averages. Generated: twelve epochs (lengths vary by 2 %), then another length; eight of each. When a reading
at full rate comes, in cycles (of the longer kind) after the change; inf: never. Of moments, what is shorter than the
distance of the readings cannot be seen."""


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


def thin(trace: Trace, *, averages: bool) -> Thinned:
    """Keep the ticks that the adaptive rate would have taken.

    Args:
        trace: At full rate.
        averages: Whether profiling metrics are averages since the reading before, as GPM's are; else what is left out
            is lost.
    """
    columns = np.array([trace.values[name] for name in trace.metrics])
    followed = followed_columns([metric(name) for name in trace.metrics])
    averaged = [i for i, name in enumerate(trace.metrics) if averages and metric(name).gpm_metric_id is not None]
    rhythm = Rhythm(_INTERVAL_S, len(followed))
    kept, rows, full, changes, due_s, first = [], [], [], [], -np.inf, 0
    for index, now_s in enumerate(trace.time_s.tolist()):
        # The recorded ticks jitter; one that is due is taken a little early rather than a tick late.
        if now_s < due_s - 0.5 * _INTERVAL_S:
            continue
        row = columns[:, index].copy()
        if index > first:
            row[averaged] = columns[averaged, first : index + 1].mean(axis=1)
        before = rhythm.changes
        rhythm.see(now_s, row[followed])
        changes += [now_s] * (rhythm.changes - before)
        kept.append(index)
        rows.append(row)
        full.append(rhythm.interval_s <= _INTERVAL_S)
        due_s, first = now_s + rhythm.interval_s, index + 1
    left = dict(zip(trace.metrics, np.array(rows).T, strict=True))
    return Thinned(Trace(trace.time_s[kept], left, gpu_uuid=trace.gpu_uuid), np.array(full), tuple(changes))


@dataclass
class Comparison:
    """A set at full rate and thinned.

    Attributes:
        pairs: The scores of each trace at full rate and thinned.
        ticks: At full rate, of all traces and of the long ones.
        kept: Thinned, of the same.
    """

    pairs: list[tuple[TraceScore, TraceScore]] = field(default_factory=list)
    ticks: np.ndarray = field(default_factory=lambda: np.zeros(2, dtype=np.int64))
    kept: np.ndarray = field(default_factory=lambda: np.zeros(2, dtype=np.int64))

    def add(self, name: str, trace: Trace, truth: Truth, full: TraceScore, *, averages: bool) -> None:
        """Thin a trace and look for its epochs."""
        thinned = thin(trace, averages=averages).trace
        here = np.array([1, trace.duration_s >= _LONG_S])
        self.ticks += here * len(trace)
        self.kept += here * len(thinned)
        self.pairs.append((full, score(name, detect(thinned), truth)))

    def savings(self) -> tuple[str, ...]:
        """How many times fewer readings: all traces, the long ones."""
        return tuple(f"{t / k:.1f}" if k else "-" for t, k in zip(self.ticks, self.kept, strict=True))

    def cells(self) -> tuple[str, ...]:
        """Cells of the table."""
        full, thin_ = (summarise([pair[side] for pair in self.pairs]) for side in (0, 1))
        known = [(a.ape, b.ape) for a, b in self.pairs if a.ape is not None and b.ape is not None]
        right = [pair for pair in known if max(pair) < 0.1]
        errors = [f"{100 * np.mean(side):.2f} %" for side in zip(*right, strict=True)] or ["-"]
        grown = 100 * np.array([b - a for a, b in right])
        # Of a mean over so few traces: 1.96 standard errors.
        wide = 1.96 * grown.std(ddof=1) / np.sqrt(grown.size) if grown.size > 1 else np.inf
        lost, won = (sum(pair[a] <= _NEAR < pair[b] for pair in known) for a, b in ((0, 1), (1, 0)))
        return (
            *self.savings(),
            f"{percent(full.declared)} / {percent(thin_.declared)}",
            f"{percent(full.within_5pct)} / {percent(thin_.within_5pct)}",
            f"{lost}, {won} of {len(known)}" if known else "-",
            " / ".join(errors),
            f"{grown.mean():+.2f} ± {wide:.2f}" if np.isfinite(wide) else "-",
            f"{percent(full.false_positive_rate)} / {percent(thin_.false_positive_rate)}",
        )


def compare_set(traces: sets.Set) -> tuple[Comparison, Comparison] | None:
    """Readings that are averages, and moments; None if no trace is sampled at 10 Hz."""
    averages, moments = Comparison(), Comparison()
    for name, trace, truth in traces:
        if np.median(np.diff(trace.time_s)) > 1.5 * _INTERVAL_S:
            continue
        full = score(name, detect(trace), truth)
        averages.add(name, trace, truth, full, averages=True)
        moments.add(name, trace, truth, full, averages=False)
    return (averages, moments) if averages.pairs else None


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
            thinned = thin(trace, averages=True)
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
    tables: dict[str, list[tuple[str, ...]]] = {"Averages": [], "Moments": []}
    total = {way: Comparison() for way in tables}
    for name, each in sets.every_set(arguments.data, arguments.per_family).items():
        if arguments.set and not any(part in name for part in arguments.set):
            continue
        for way, found in zip(tables, compare_set(each.traces()) or (), strict=False):
            what = "seen" if name in _SEEN else "set aside"
            tables[way].append((name, what, str(len(found.pairs)), f"{found.ticks[0]:,}", *found.cells()))
            print(way, *tables[way][-1], sep=" | ", flush=True)
            total[way].pairs += found.pairs
            total[way].ticks += found.ticks
            total[way].kept += found.kept
    for way, whole in total.items():
        tables[way].append(("all", "", str(len(whole.pairs)), f"{whole.ticks[0]:,}", *whole.cells()))
    command = shlex.join(["python", "benchmarks/epochs/adaptive.py", *sys.argv[1:]])
    columns = ("set", "", "traces", "ticks", "fewer readings", "jobs of 5 minutes and more", "a period, all / left",
               "right within 5 %", "lost, won", "mean error where both are within 10 %", "which grows by, in points",
               "false epochs")  # fmt: skip
    lines = [
        "# The adaptive rate",
        "",
        f"`{command}`. {_WHAT}",
        "",
    ]
    for way, rows in tables.items():
        lines += [f"## {way}", "", *table(columns, rows)]
    lines += [
        _MEANING,
        "",
        "## Another tempo",
        "",
        _TEMPO,
        "",
    ]
    lines += [*table(("epochs of", "within a cycle", "median", "latest"), list(tempo_rows()))]
    text = "\n".join(lines).rstrip() + "\n"
    print(text)
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
