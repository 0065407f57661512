"""Compare methods that find the cycles of jobs: ``python benchmarks/cycles --out docs/results/cycles.md``."""

from __future__ import annotations

import argparse
import datetime
import itertools
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from methods import METHODS, load_method
from problems import every_set
from scoring import MethodScores, evaluate_method

from gpusonde.errors import UsageError

_COLUMNS = (
    "set", "method", "best guess", "wrong at .8", "listed", "by chance", "levels told", "levels listed", "real at .9",
    "median error", "boundary error", "roles right", "wrong role at .7", "epochs told",
    "called epoch", "counted", "time left", "time left within 10 %", "CPU per trace-hour",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, help="folder with mlperf_power and traces")
    parser.add_argument("--mlperf", type=Path, action="append", default=[], metavar="CHECKOUT",
                        help="MLPerf Training results repository, or a part of it (repeatable)")  # fmt: skip
    parser.add_argument("--per-kind", type=int, default=4, help="simulated jobs of each kind")
    parser.add_argument("--seed", type=int, default=8_128, help="of the simulated jobs")
    parser.add_argument(
        "--set", action="append", metavar="TEXT", help="only sets whose name contains this (repeatable)"
    )
    parser.add_argument("--limit", type=int, help="only the first so many jobs of a set")
    parser.add_argument("--method", action="append", default=[], metavar="NAME=MODULE:FUNCTION",
                        help="a method of yours (repeatable)")  # fmt: skip
    parser.add_argument("--only", action="append", metavar="NAME", help="only this method (repeatable)")
    parser.add_argument("--out", type=Path, help="write a page of results")
    arguments = parser.parse_args()
    try:
        methods = METHODS | dict(load_method(text) for text in arguments.method)
    except UsageError as error:
        parser.error(str(error))
    methods = {name: method for name, method in methods.items() if not arguments.only or name in arguments.only}
    rows = []
    for name, problems in every_set(arguments.shared, arguments.mlperf, arguments.per_kind, arguments.seed).items():
        if arguments.set and not any(part in name for part in arguments.set):
            continue
        asked = list(itertools.islice(problems, arguments.limit))
        for method_name, method in methods.items():
            row = _row(f"{name} ({len(asked)})", method_name, evaluate_method(method, asked))
            rows.append(row)
            print("; ".join(f"{column} {value}" for column, value in zip(_COLUMNS, row, strict=True)), flush=True)
    if arguments.out:
        _write(arguments.out, rows)


def _row(name: str, method: str, scores: MethodScores) -> tuple[str, ...]:
    s = scores.summary
    return (
        name, method, _percent(s.within_10pct), _percent(s.confidently_wrong), _percent(s.listed_within_10pct),
        _percent(s.listed_chance), "-" if s.levels_told is None else f"{s.levels_told:.1f}", _percent(s.levels_listed),
        _percent(scores.real_when_sure),
        _percent(scores.median_error), _percent(scores.boundary_error), _percent(s.roles_right),
        _percent(s.roles_confidently_wrong), _percent(scores.roles_right_told),
        _percent(s.epoch_role_rate), _percent(scores.counts_right), _percent(scores.eta_error),
        _percent(scores.eta_within_10pct), f"{scores.cpu_s_per_trace_hour:.2f} s",
    )  # fmt: skip


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _write(path: Path, rows: Sequence[Sequence[str]]) -> None:
    today = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
    command = shlex.join(["python", "benchmarks/cycles", *sys.argv[1:]])
    machine = platform.processor() or platform.machine()
    lines = [
        "# Cycles of jobs: results",
        "",
        f"Printed by `{command}` on {today}, {machine}, {os.cpu_count()} cores, shared with other work.",
        "What the columns mean: [benchmark.md](../benchmark.md).",
        "",
        "| " + " | ".join(_COLUMNS) + " |",
        "|" + "---|" * len(_COLUMNS),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]
    path.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
