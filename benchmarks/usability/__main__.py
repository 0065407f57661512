"""Files that people have and mistakes that they make, each given to the real command: right, refused, or wrong.

``python benchmarks/usability [--out docs/results/usability.md] [--only start|files|plans|mistakes]`` installs
``gpusonde[cli]`` into an empty environment and times the way from there to a plan; then makes the files in a temporary
folder (``tool_files``), runs ``gpusonde`` for each, judges and prints the tables. Exit code 1 where an answer is wrong.
"""

from __future__ import annotations

import argparse
import datetime
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cases import FILES_OF_THE_FIRST_TRIAL, MISTAKES, MORE_FILES, PLANS, WANTED, Case, Judgement, Verdict, judge
from tool_files import query_log, ticks, write

_HEAD = """# Files that people have, mistakes that they make

{date}, by `{command}`, on two cores of a shared cloud machine. The files are made, in layouts that the tools' public
sources and documents show ([tool_files.py](../../benchmarks/usability/tool_files.py)). *Right* is a cycle length within
4 % of the file's, *wrong* any other answer with exit code 0. A refusal helps where it has the words that
[cases.py](../../benchmarks/usability/cases.py) asks of it; options are those that it names. *Plans* are what
`gpusonde advise` with `{wanted}` says of the same files:
right where the cycle is, and the plan keeps the deadline.
"""

_LONGEST_WORDS = 110
_SHOWN_MISTAKES = 6


def main() -> int:
    """Run, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write a page of results")
    parser.add_argument("--only", choices=("start", "files", "further files", "plans", "mistakes"))
    parser.add_argument("--at-once", type=int, default=2, help="commands at the same time")
    arguments = parser.parse_args()
    kinds = [
        ("files", FILES_OF_THE_FIRST_TRIAL),
        ("further files", MORE_FILES),
        ("plans", PLANS),
        ("mistakes", MISTAKES),
    ]
    wrong, parts = 0, [_time_the_start()] if arguments.only in (None, "start") else []
    for name, cases in kinds:
        if arguments.only in (None, name):
            with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.at_once) as pool:
                judged = list(pool.map(judge, cases, [Path(folder)] * len(cases)))
            wrong += sum(each.verdict is Verdict.WRONG for each in judged)
            parts.append(_draw(name, cases, judged))
    print("\n\n".join(parts))
    if arguments.out:
        head = _HEAD.format(
            date=datetime.datetime.now(datetime.timezone.utc).date(),
            command="python benchmarks/usability",
            wanted=WANTED,
        )
        arguments.out.write_text("\n".join([head, *parts]) + "\n", encoding="utf-8")
    return int(wrong > 0)


def _time_the_start() -> str:
    """Install into an empty environment, then ask about a log of one's own: how long each step takes."""
    repository = Path(__file__).resolve().parents[2]
    load = f"On a machine that did other work besides: load {os.getloadavg()[0]:.0f} on {os.cpu_count()} processors."
    lines = ["## From nothing to a plan", "", load, "", "| step | seconds | of them computing |", "|---|---|---|"]
    took: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "smi.csv", query_log(ticks()))
        run = "gpusonde plan solve --trace smi.csv --gpu-model T4 --epochs 2000 --deadline 24h"
        for shown, command in (
            ("git clone", ["git", "clone", "-q", "--depth", "1", f"file://{repository}", "gpusonde"]),
            ("python -m venv", [sys.executable, "-m", "venv", "venv"]),
            (
                "pip install -c constraints.txt '.[cli]'",
                ["venv/bin/pip", "install", "-q", "-c", "gpusonde/constraints.txt", "./gpusonde[cli]"],
            ),
            ("gpusonde detect smi.csv", ["venv/bin/gpusonde", "detect", "smi.csv"]),
            (run, ["venv/bin/" + run.split(maxsplit=1)[0], *run.split()[1:]]),
        ):
            before_s, computed_s = time.monotonic(), _children_s()
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            took.append((time.monotonic() - before_s, _children_s() - computed_s))
            lines.append(f"| `{shown}` | {took[-1][0]:.1f} | {took[-1][1]:.1f} |")
        held = sum(
            path.stat().st_size for path in (folder / "venv").rglob("*") if path.is_file() and not path.is_symlink()
        )
        tools = sum(
            path.stat().st_size
            for tool in ("pip", "setuptools", "pkg_resources")
            for path in (folder / "venv").glob(f"lib/python*/site-packages/{tool}*/**/*")
            if path.is_file()
        )
    size = f"The environment holds {(held - tools) / 2**20:.0f} MiB besides pip and setuptools."
    together = [sum(column) for column in zip(*took, strict=True)]
    return "\n".join([*lines, f"| together | {together[0]:.1f} | {together[1]:.1f} |", "", size]) + "\n"


def _children_s() -> float:
    """Processor time of commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _draw(name: str, cases: Sequence[Case], judged: Sequence[Judgement]) -> str:
    """What was judged as it should be by name, and the words of all others; of mistakes those of every sixth."""
    amounts = {verdict: sum(each.verdict is verdict for each in judged) for verdict in Verdict}
    said = ", ".join(f"{count} {verdict.value}" for verdict, count in amounts.items() if count)
    hoped = Verdict.HELPED if name == "mistakes" else Verdict.RIGHT
    named, rows = [], []
    for index, (case, each) in enumerate(zip(cases, judged, strict=True)):
        options = f" (`{' '.join(case.options)}`)" if case.options else ""
        told = each.words if len(each.words) <= _LONGEST_WORDS else f"{each.words[:_LONGEST_WORDS]}..."
        if each.verdict is hoped:
            named.append(case.name + options)
        if each.verdict is not hoped or (hoped is Verdict.HELPED and index % _SHOWN_MISTAKES == 0):
            cells = (case.name + options, each.verdict.value, told.replace("*", r"\*"))
            rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    lines = [f"## {len(cases)} {name}: {said}", "", f"{hoped.value.capitalize()}: {'; '.join(named)}."]
    if rows:
        what = name.rsplit(maxsplit=1)[-1][:-1]
        lines += ["", f"| {what} | verdict | what it says |", "|---|---|---|", *rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
