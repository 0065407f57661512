"""What training times from graphs are worth: every figure of docs/results/workload.md.

Usage: ``python benchmarks/workload [SECTION...] [--data FILE] [--out docs/results/workload.md] [--jobs N]``

Sections: graphs, unlisted, message_passing, ghn, torchvision_rows, profet_rows, modern, public, controls, ghn_features,
families, ernest, batches, memory, places, hostile. With ``--out``, the sections that ran replace theirs on the page and
the others stay; every section says when it was measured and in how many seconds. A section whose data or package is
missing says so and fails nothing.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import os
import platform
import sys
import time
from pathlib import Path

# Threads that wait for one another would count as the processor's seconds; set before NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parents[2]
# The page itself is that of the planning results.
sys.path.append(str(ROOT / "benchmarks" / "planning"))

from page import BAR_COLUMNS, NotRunError, read_sections, table, write_page  # noqa: E402

SECTIONS = (
    "graphs",
    "unlisted",
    "message_passing",
    "ghn",
    "torchvision_rows",
    "profet_rows",
    "modern",
    "public",
    "controls",
    "ghn_features",
    "families",
    "ernest",
    "batches",
    "memory",
    "places",
    "hostile",
)
_HEAD = Path(__file__).with_name("head.md")


def run(name: str, args: argparse.Namespace) -> list[str]:
    """Lines of one section, whatever it lacks."""
    args.bars = []
    started = time.perf_counter()
    try:
        # Imported only now: each section needs other packages.
        lines = importlib.import_module(name).section(args)
    except (NotRunError, FileNotFoundError, PermissionError) as error:
        return _not_run(name, str(error))
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("gpusonde"):
            raise
        return _not_run(name, f"needs {error.name}, which is not installed here")
    today = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
    options = " --quick" if args.quick else ""
    took = time.perf_counter() - started
    said = f"`python benchmarks/workload {name}{options}`, {today}, {took:.0f} s."
    bars = table(BAR_COLUMNS, args.bars) if args.bars else []
    # Behind the section's own heading.
    body = lines[2:] if lines[1:2] == [""] else lines[1:]
    return [*lines[:1], "", said, "", *bars, *body]


def _not_run(name: str, reason: str) -> list[str]:
    return [f"## {name.replace('_', ' ').capitalize()}", "", f"Not run: {reason}.", ""]


def main() -> int:
    """Run the sections that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="default: all")
    parser.add_argument("--data", type=Path,
                        default=ROOT.parent / "shared" / "data" / "workloads" / "training_times.csv",
                        help="table of measured training times")  # fmt: skip
    parser.add_argument("--out", type=Path, help="Markdown page to write or to replace sections of")
    parser.add_argument("--jobs", type=int, default=2, help="folds fitted at once (default: 2)")
    parser.add_argument("--quick", action="store_true", help="few folds and sizes, to see that it works")
    args = parser.parse_args()
    if unknown := set(args.sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    found = {}
    for name in args.sections or SECTIONS:
        found[name] = run(name, args)
        print("\n".join(found[name]), flush=True)
    if args.out:
        kept = {**read_sections(args.out), **found}
        machine = f"{platform.machine()}, {os.cpu_count()} cores, busy with other work"
        head = _HEAD.read_text(encoding="utf-8").rstrip().replace("{machine}", machine).splitlines()
        write_page(args.out, head, {name: kept[name] for name in SECTIONS if name in kept})
    return 0


if __name__ == "__main__":
    sys.exit(main())
