"""Real PyTorch jobs on the processor, and what their processes' marks say of the roles of their cycles.

``python benchmarks/marks record RECORDINGS.json.gz --python PYTHON`` runs the jobs with an interpreter that has torch;
``python benchmarks/marks report RECORDINGS.json.gz [--out PAGE]`` scores detection without and with marks.
"""

from __future__ import annotations

import argparse
import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from real_jobs import TRUE_ROLES, load_recordings, score
from recorder import KINDS, record


def main() -> None:
    """Record or report."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run the jobs")
    recording.add_argument("recordings", type=Path)
    recording.add_argument("--python", required=True, help="an interpreter with torch")
    recording.add_argument("--scale", type=float, default=1.0, help="by how much everything in a job takes longer")
    recording.add_argument("--at-once", type=int, default=2, help="jobs at the same time")
    reporting = commands.add_parser("report", help="score detection without and with marks")
    reporting.add_argument("recordings", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "record":
        _record(arguments.recordings, arguments.python, arguments.scale, arguments.at_once)
    else:
        for path in arguments.recordings:
            _report(path)


def _record(path: Path, python: str, scale: float, at_once: int) -> None:
    def run(kind: str) -> dict[str, Any]:
        return record(kind, python, KINDS[kind] * scale, scale)

    with ThreadPoolExecutor(at_once) as pool:
        recorded = list(pool.map(run, KINDS))
    save_recordings(path, recorded)


def save_recordings(path: Path, recorded: list[dict[str, Any]]) -> None:
    """Write recordings compactly, and the same bytes for the same recordings."""
    path.write_bytes(gzip.compress(json.dumps(recorded, separators=(",", ":")).encode(), 9, mtime=0))


def _report(path: Path) -> None:
    print(f"| job | cycles ({', '.join(TRUE_ROLES)}) | without marks | with marks |\n|---|---|---|---|")
    totals = {False: [0, 0, 0], True: [0, 0, 0]}
    for recording in load_recordings(path):
        cells = []
        for with_marks in (False, True):
            found = score(recording, with_marks=with_marks)
            for i, value in enumerate((found.right, found.true, found.wrong)):
                totals[with_marks][i] += value
            cells.append(found.text)
        true = "; ".join(f"{'/'.join(level.roles)} {level.period_s:.1f} s" for level in recording.levels)
        print(f"| {recording.kind} | {true} | {cells[0]} | {cells[1]} |")
    without, using = ("{} of {}, {} wrong".format(*totals[each]) for each in (False, True))
    print(f"| levels with their role | | {without} | {using} |")


if __name__ == "__main__":
    main()
