"""Compare detectors on every set: ``python benchmarks/epochs --out docs/results/epochs.md``."""

from __future__ import annotations

import argparse
import platform
import shlex
import sys
from pathlib import Path

import sets
from compare import Case, Result, compare, missing_packages
from exactness import exactness
from offline_cost import offline_cost
from pictures import draw_pictures
from report import Origin, write_report
from streaming import streaming


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/traces"))
    parser.add_argument("--out", type=Path, help="write the page into this Markdown file, else only print figures")
    parser.add_argument("--images", type=Path, default=Path("docs/images"), help="folder for the page's pictures")
    parser.add_argument("--per-family", type=int, default=8, help="generated traces per family")
    parser.add_argument("--streaming-every", type=int, default=2, help="stream every n-th trace only")
    parser.add_argument("--set", action="append", help="only sets whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="processes to share the traces among")
    arguments = parser.parse_args()
    chosen = {
        name: each
        for name, each in sets.every_set(arguments.data, arguments.per_family).items()
        if not arguments.set or any(part in name for part in arguments.set)
    }
    if not chosen:
        parser.error("no set has such a name; leave --set out to see them all")
    if any(each.is_read for each in chosen.values()) and not arguments.data.is_dir():
        parser.error(
            f"there is no folder {arguments.data}: name it with --data, or take --set families, which need none"
        )
    cases: dict[str, list[Case]] = {}
    results: dict[str, dict[str, Result]] = {}
    for name, each in chosen.items():
        cases[name] = list(each.traces())
        results[name] = compare(cases[name], arguments.jobs)
        for detector, result in results[name].items():
            figures = " ".join(f"{key}={_short(value)}" for key, value in vars(result.summary).items())
            print(f"{name:24} {detector:16} {figures}", flush=True)
    if arguments.out:
        streamed = {name: cases[name] for name, each in chosen.items() if each.knows_all_epochs}
        more = [
            *streaming(streamed, arguments.streaming_every, arguments.jobs),
            *offline_cost(),
            *exactness(),
            *draw_pictures(arguments.images, arguments.out.parent, cases, results),
        ]
        command = shlex.join(["python", "benchmarks/epochs", *sys.argv[1:]])
        origin = Origin(command, platform.processor() or platform.machine(), missing_packages())
        write_report(arguments.out, origin, {name: each.what for name, each in chosen.items()}, results, more)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
