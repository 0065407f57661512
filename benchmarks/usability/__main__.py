"""Files that people have and mistakes that they make, each given to the real command: right, refused, or wrong.

``python benchmarks/usability [--out docs/results/usability.md] [--only files|mistakes]`` makes the files in a temporary
folder (``tool_files``), runs ``gpusonde`` for each, judges and prints the tables. Exit code 1 where an answer is wrong.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cases import FILES_OF_THE_FIRST_TRIAL, MISTAKES, MORE_FILES, Case, Judgement, Verdict, judge

_HEAD = """# Files that people have, mistakes that they make

{date}, by `{command}`, on two cores of a shared cloud machine. The files are made, in layouts that the tools' public
sources and documents show ([tool_files.py](../../benchmarks/usability/tool_files.py) names them); the tests read a real
Prometheus, too. *Right* is a cycle length within 4 % of the file's; *wrong* is any other answer with exit code 0. A
refusal helps where it has the words that [cases.py](../../benchmarks/usability/cases.py) asks of it. Options are those
that the refusal without them names.
"""

_LONGEST_WORDS = 110


def main() -> int:
    """Run, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write a page of results")
    parser.add_argument("--only", choices=("files", "further files", "mistakes"))
    parser.add_argument("--at-once", type=int, default=2, help="commands at the same time")
    arguments = parser.parse_args()
    kinds = [("files", FILES_OF_THE_FIRST_TRIAL), ("further files", MORE_FILES), ("mistakes", MISTAKES)]
    wrong, parts = 0, []
    for name, cases in kinds:
        if arguments.only in (None, name):
            with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.at_once) as pool:
                judged = list(pool.map(judge, cases, [Path(folder)] * len(cases)))
            wrong += sum(each.verdict is Verdict.WRONG for each in judged)
            parts.append(_draw(name, cases, judged))
    print("\n\n".join(parts))
    if arguments.out:
        head = _HEAD.format(
            date=datetime.datetime.now(datetime.timezone.utc).date(), command="python benchmarks/usability"
        )
        arguments.out.write_text("\n".join([head, *parts]) + "\n", encoding="utf-8")
    return int(wrong > 0)


def _draw(name: str, cases: Sequence[Case], judged: Sequence[Judgement]) -> str:
    amounts = {verdict: sum(each.verdict is verdict for each in judged) for verdict in Verdict}
    said = ", ".join(f"{count} {verdict.value}" for verdict, count in amounts.items() if count)
    lines = [
        f"## {len(cases)} {name}: {said}",
        "",
        "| " + name.rsplit(maxsplit=1)[-1][:-1] + " | options | verdict | what it says |",
        "|---|---|---|---|",
    ]
    for case, each in zip(cases, judged, strict=True):
        options = f"`{' '.join(case.options)}`" if case.options else ""
        told = each.words if len(each.words) <= _LONGEST_WORDS else f"{each.words[:_LONGEST_WORDS]}..."
        told = told.replace("|", r"\|").replace("*", r"\*")
        lines.append(f"| {case.name} | {options.replace('|', chr(92) + '|')} | {each.verdict.value} | {told} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
