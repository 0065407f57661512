"""What simulator and optimizer are worth: every figure of docs/results/planning.md.

Usage: ``python benchmarks/planning [SECTION...] [--data DIR] [--out docs/results/planning.md] [--quick]``

Sections: compute, end_to_end, vtrain, allreduce, networks, ddp, exact, speeds, oracle, paper_search, regret, continual,
fleet. With ``--out``, the sections that ran replace theirs on the page and the others stay, so that the long ones can
be measured apart; every section says when it was measured and how long it took. A section whose data, root or
package is missing says so and fails nothing.
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

from page import BAR_COLUMNS, NotRunError, read_sections, table, write_page

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = (
    "compute", "end_to_end", "vtrain", "allreduce", "networks", "ddp", "exact", "speeds", "oracle", "paper_search",
    "regret", "continual", "fleet",
)  # fmt: skip
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
    said = f"`python benchmarks/planning {name}{options}`, {today}, {took:.0f} s."
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
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "distributed",
                        help="folder of scaling.csv, allreduce.csv, spot_traces/ ...")  # fmt: skip
    parser.add_argument("--out", type=Path, help="Markdown page to write or to replace sections of")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    args = parser.parse_args()
    if unknown := set(args.sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    found = {}
    for name in args.sections or SECTIONS:
        found[name] = run(name, args)
        print("\n".join(found[name]), flush=True)
    if args.out:
        kept = {**read_sections(args.out), **found}
        machine = f"{platform.machine()}, {os.cpu_count()} cores, busy with other work all the time"
        head = _HEAD.read_text(encoding="utf-8").rstrip().replace("{machine}", machine).splitlines()
        write_page(args.out, head, {name: kept[name] for name in SECTIONS if name in kept})
    return 0


if __name__ == "__main__":
    sys.exit(main())
