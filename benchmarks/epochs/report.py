"""The committed page of results."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from compare import OWN, Result
from peers import PEERS

from gpusonde.epoch_detect.evaluation import Summary, TraceScore, reliability, summarise

_COLUMNS = ("set", "MAPE", "median APE", "within 10 %", "declared", "MAPE of declared", "false positives",
            "boundary error", "boundary recall", "listed", "by chance", "levels told",
            "CPU per trace-hour")  # fmt: skip

# Share of a family's traces within 10 %.
_AIM = 0.85

_EXPLANATION = """\
A trace's answer is the period of a verdict `epochs` or `short_cycle`; a positive without an answer counts with an error
of 100 % and as a miss; false positives are negatives with the verdict `epochs`. Every detector gets untrimmed traces.
The default detector uses all their metrics, the published modes and the peers one, after our own trimming of idle.
`gpusonde evaluate epochs` scores the same way. What falls short: [epoch_detection.md](../epoch_detection.md)."""


@dataclass(frozen=True)
class Origin:
    """Where the figures of a page come from: the command, the machine, and what was not installed."""

    command: str
    machine: str
    missing: list[str]


def write_report(
    path: Path,
    origin: Origin,
    described: Mapping[str, str],
    results: dict[str, dict[str, Result]],
    more: list[str],
) -> None:
    """Write the tables of all sets, of the generated families one by one, of the reliability, and ``more`` lines."""
    today = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
    printed = (
        f"Printed by `{origin.command}` on {today}, {origin.machine}, {os.cpu_count()} cores, shared with other work "
        "(CPU seconds, not wall time)."
    )
    lines = ["# Epoch detection: results", "", printed, "", _EXPLANATION, ""]
    if origin.missing:
        lines += [f"Not installed when this was printed, hence left out: {', '.join(origin.missing)}.", ""]
    lines += [
        f"* **{name}** ({by_detector[OWN].summary.traces} traces). {described[name]}"
        for name, by_detector in results.items()
    ]
    lines += ["", "The default detector:", ""]
    lines += table(_COLUMNS, [(name, *_row(by_detector[OWN])) for name, by_detector in results.items()])
    lines += _published(results)
    for name, by_detector in results.items():
        if name.endswith("families"):
            lines += [f"Default detector, {name}:", "", *_by_family(by_detector[OWN].scores)]
    lines += _peers(results)
    lines += _reliability([s for by_detector in results.values() for s in by_detector[OWN].scores])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, *more]), encoding="utf-8")


def table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Lines of a Markdown table, with an empty one after it."""
    head = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return [*head, *("| " + " | ".join(row) + " |" for row in rows), ""]


def percent(value: float | None) -> str:
    """A ratio as percent; a dash for None."""
    return "-" if value is None else f"{100 * value:.1f} %"


def _row(result: Result) -> tuple[str, ...]:
    s = result.summary
    return (
        percent(s.mape), percent(s.median_ape), percent(s.within_10pct), percent(s.declared),
        percent(s.mape_declared), percent(s.false_positive_rate),
        "-" if s.boundary_error_median_s is None else f"{s.boundary_error_median_s:.2f} s",
        percent(s.boundary_recall), percent(s.listed_within_10pct), percent(s.listed_chance),
        "-" if s.levels_told is None else f"{s.levels_told:.1f}", f"{result.cpu_s_per_trace_hour:.2f} s",
    )  # fmt: skip


def _published(results: Mapping[str, Mapping[str, Result]]) -> list[str]:
    """Return one table of the published modes."""
    modes = [name for name in next(iter(results.values())) if name not in (OWN, *PEERS)]
    rows = []
    for name, by_detector in results.items():
        summaries = [by_detector[mode].summary for mode in modes]
        figures = (percent(each) for s in summaries for each in (s.mape, s.within_10pct))
        rows.append((name, *figures, _false_positives(summaries)))
    columns = [f"{mode}: {what}" for mode in modes for what in ("MAPE", "within 10 %")]
    return ["The published modes:", "", *table(("set", *columns, "false positives"), rows)]


def _false_positives(summaries: list[Summary | None]) -> str:
    shares = [s and s.false_positive_rate for s in summaries]
    return "-" if all(share is None for share in shares) else " / ".join(map(percent, shares))


def _peers(results: Mapping[str, Mapping[str, Result]]) -> list[str]:
    """Return one table of general detectors of periods and changes, beside our own."""
    named = [OWN, *(name for name in PEERS if any(name in each for each in results.values()))]
    rows = []
    for name, by_detector in results.items():
        summaries = [by_detector[detector].summary if detector in by_detector else None for detector in named]
        rows.append((name, *(percent(s and s.within_10pct) for s in summaries), _false_positives(summaries)))
    explanation = "Share within 10 % by detector; last, the false positives in the same order."
    return ["## Peers", "", explanation, "", *table(("set", *named, "false positives"), rows)]


def _by_family(scores: list[TraceScore]) -> list[str]:
    """Return a table of the families below the aim, and lines on the others and on those without epochs."""
    rows, others, without = [], [], []
    for family in dict.fromkeys(s.shape for s in scores):
        s, name = summarise(x for x in scores if x.shape == family), family.replace("_", " ")
        figures = map(percent, (s.within_10pct, s.declared, s.mape_declared, s.boundary_recall))
        if s.positives and (s.within_10pct or 0.0) >= _AIM:
            others.append(name)
        elif s.positives:
            rows.append((name, *figures))
        else:
            without.append(f"{name} {percent(s.false_positive_rate)}")
    columns = ("family", "within 10 %", "declared", "MAPE of declared", "boundary recall")
    above = f"At least {100 * _AIM:.0f} % within 10 %: {', '.join(others)}."
    return [*table(columns, rows), above, f"False positives of families without epochs: {', '.join(without)}.", ""]


def _reliability(scores: list[TraceScore]) -> list[str]:
    rows = [
        (f"{b.low:.2f} to {b.high:.2f}", str(b.answers), f"{b.mean_confidence:.3f}", percent(b.right))
        for b in reliability(scores)
    ]
    explanation = "All answers of the default detector on all sets above; right means within 10 %."
    columns = ("confidence", "answers", "mean confidence", "right")
    return ["## Reliability of the confidence", "", explanation, "", *table(columns, rows)]
