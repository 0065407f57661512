"""The committed page of results."""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from pathlib import Path

from gpusonde.epoch_detect.evaluation import Summary, TraceScore, reliability, summarise

_COLUMNS = ("detector", "traces", "MAPE", "median APE", "within 5 %", "within 10 %", "declared", "MAPE of declared",
            "false positives", "boundary error", "boundary recall", "CPU per trace-hour")  # fmt: skip

_EXPLANATION = """\
A trace's answer is the period of a verdict `epochs` or `short_cycle`; a positive without an answer counts with an error
of 100 % and as a miss; false positives are negatives with the verdict `epochs`. Every detector gets untrimmed traces.
The default detector uses all their metrics, the published modes and the peers one, after our own trimming of idle. What
the sets are and what falls short: [epoch_detection.md](../epoch_detection.md)."""


@dataclass(frozen=True)
class Result:
    """One detector on one set."""

    summary: Summary
    scores: list[TraceScore]
    cpu_s_per_trace_hour: float


def write_report(
    path: Path, results: dict[str, dict[str, Result]], more: list[str], machine: str, missing: list[str]
) -> None:
    """Write the tables of all sets, of the generated families one by one, of the reliability, and ``more`` lines."""
    today = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
    printed = (
        f"Printed by `python benchmarks/epochs --out docs/results/epochs.md` on {today}, {machine}, "
        f"{os.cpu_count()} cores, shared with other work (CPU seconds, not wall time)."
    )
    lines = ["# Epoch detection: results", "", printed, "", _EXPLANATION, ""]
    if missing:
        lines += [f"Not installed when this was printed, hence left out: {', '.join(missing)}.", ""]
    for name, by_detector in results.items():
        lines += [f"## {name}", "", "| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
        lines += [_row(detector, result) for detector, result in by_detector.items()]
        lines.append("")
        if name.endswith("families"):
            lines += _by_family(by_detector["default"].scores)
    own = [s for by_detector in results.values() for s in by_detector["default"].scores]
    lines += _reliability(own)
    lines += more
    path.write_text("\n".join(lines), encoding="utf-8")


def _row(detector: str, result: Result) -> str:
    s = result.summary
    cells = [
        detector, str(s.traces), _percent(s.mape), _percent(s.median_ape), _percent(s.within_5pct),
        _percent(s.within_10pct), _percent(s.declared), _percent(s.mape_declared), _percent(s.false_positive_rate),
        "-" if s.boundary_error_median_s is None else f"{s.boundary_error_median_s:.2f} s",
        _percent(s.boundary_recall), f"{result.cpu_s_per_trace_hour:.2f} s",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _by_family(scores: list[TraceScore]) -> list[str]:
    lines = [
        "Default detector, family by family:",
        "",
        "| family | traces | within 10 % | declared | MAPE of declared |",
    ]
    lines.append("|---|---|---|---|---|")
    for family in dict.fromkeys(s.shape for s in scores):
        s = summarise(x for x in scores if x.shape == family)
        if s.positives:
            lines.append(
                f"| {family} | {s.traces} | {_percent(s.within_10pct)} | {_percent(s.declared)} "
                f"| {_percent(s.mape_declared)} |"
            )
        else:
            lines.append(f"| {family} (negative) | {s.traces} | - | {_percent(s.false_positive_rate)} | - |")
    return [*lines, ""]


def _reliability(scores: list[TraceScore]) -> list[str]:
    lines = [
        "## Reliability of the confidence",
        "",
        "All answers of the default detector on all sets above; right means within 10 %.",
        "",
        "| confidence | answers | mean confidence | right |",
        "|---|---|---|---|",
    ]
    for b in reliability(scores):
        lines.append(f"| {b.low:.2f} to {b.high:.2f} | {b.answers} | {b.mean_confidence:.3f} | {_percent(b.right)} |")
    return [*lines, ""]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
