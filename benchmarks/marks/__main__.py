"""Real PyTorch jobs on the processor, and what their processes' marks say of the roles of their cycles.

``python benchmarks/marks record RECORDINGS.json.gz --python PYTHON`` runs the jobs with an interpreter that has torch;
``python benchmarks/marks report RECORDINGS.json.gz [--out PAGE]`` scores detection without marks and with
them, of the whole job and of one that is followed with its marks.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from real_jobs import WAYS, load_recordings, score
from recorder import KINDS, record

_HEAD = """# Real training jobs with marks of their processes

{date}, by `{command}`. Ten small PyTorch jobs ran on the processor, with data loader workers, each logging what it
did and when ([job.py](../../benchmarks/marks/job.py)). No GPU was at hand: what stands in for one is the share of
each 0.1 s in which threads of the training process ran, and its resident memory for the framebuffer. The marks are
those of the agent's own reader, at 1 Hz. A step takes real gradients and then waits until 50 ms are over; the jobs
ran three at a time with real-time priority on two busy cores, so that other work did not bend the cycles. A stand-in
says nothing of how well cycles are found on a GPU, only of what the marks say beside them.

A level counts as right if one is told within 10 % of its period with a name that is right: an evaluation, or a
checkpoint, at the end of each epoch is an epoch, too. The rules were written with the first set in view. In the
second one everything took 1.45 times as long; at first sight 13 of its 15 were right, and one fault in telling
workers apart was then mended. *Followed* is what a tracker tells at the last tick, before it knows that the job is
over: it has looked after 27.5, 66 and 158 s, and names since then what it has found by the marks that come.

What stays unknown has no marks: workers that are kept through the whole job, of training and evaluation, and nothing
written. Steps are too short to be seen. What the agent's looks cost for 8 GPUs with 72
processes, each with 60 threads: 0.008 % of a core with warm caches, 0.05 % on a host where others have filled them.
"""


def main() -> None:
    """Record or report."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run the jobs")
    recording.add_argument("recordings", type=Path)
    recording.add_argument("--python", required=True, help="an interpreter with torch")
    recording.add_argument("--scale", type=float, default=1.0, help="by how much everything in a job takes longer")
    recording.add_argument("--at-once", type=int, default=2, help="jobs at the same time")
    reporting = commands.add_parser("report", help="score detection without and with marks, and while the job goes on")
    reporting.add_argument("recordings", type=Path, nargs="+")
    reporting.add_argument("--out", type=Path, help="write a page of results")
    arguments = parser.parse_args()
    if arguments.command == "record":
        _record(arguments.recordings, arguments.python, arguments.scale, arguments.at_once)
    else:
        text = "\n\n".join(_report(path) for path in arguments.recordings)
        print(text)
        if arguments.out:
            command = f"python benchmarks/marks {shlex.join(sys.argv[1:])}"
            head = _HEAD.format(date=datetime.datetime.now(datetime.timezone.utc).date(), command=command)
            arguments.out.write_text(f"{head}\n{text}\n")


def _record(path: Path, python: str, scale: float, at_once: int) -> None:
    def run(kind: str) -> dict[str, Any]:
        return record(kind, python, KINDS[kind] * scale, scale)

    with ThreadPoolExecutor(at_once) as pool:
        recorded = list(pool.map(run, KINDS))
    save_recordings(path, recorded)


def save_recordings(path: Path, recorded: list[dict[str, Any]]) -> None:
    """Write recordings compactly, and the same bytes for the same recordings."""
    path.write_bytes(gzip.compress(json.dumps(recorded, separators=(",", ":")).encode(), 9, mtime=0))


def _report(path: Path) -> str:
    lines = [f"## {path.name}", "", f"| job | true cycles | {' | '.join(WAYS)} |", f"|{'---|' * (2 + len(WAYS))}"]
    totals = {way: [0, 0, 0] for way in WAYS}
    for recording in load_recordings(path):
        cells = []
        for way in WAYS:
            found = score(recording, way)
            for i, value in enumerate((found.right, found.true, found.wrong)):
                totals[way][i] += value
            cells.append(found.text)
        true = "; ".join(f"{'/'.join(level.roles)} {level.period_s:.1f} s" for level in recording.levels)
        lines.append(f"| {recording.kind} | {true} | {' | '.join(cells)} |")
    sums = " | ".join("{} of {}, {} wrong".format(*totals[way]) for way in WAYS)
    return "\n".join([*lines, f"| cycles told with a right role | | {sums} |"])


if __name__ == "__main__":
    main()
