"""How large the house is: modules, classes, errors, keys, options, words, imports that bypass a face, and its start.

Usage: ``python benchmarks/house.py [--out docs/results/house.md]`` in a checkout with the development tools installed.
Generated stubs are left out, and tests and benchmarks are not counted. An import bypasses a face if it leaves its
package and names a module more than two levels below ``gpusonde.PACKAGE``'s own face.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import graphlib
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "deploy")
_STARTS = 11


def modules() -> dict[str, Path]:
    """Find the production modules by name."""
    found = {}
    for path in ROOT.glob("*/gpusonde/**/*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts[1:]).removesuffix(".__init__")
        if "_pb2" not in name:
            found[name] = path
    return found


def class_figures(trees: dict[str, ast.Module]) -> tuple[int, int, int]:
    """Count classes, exception classes among them, and names that two classes share."""
    bases: dict[str, set[str]] = defaultdict(set)
    places: dict[str, int] = defaultdict(int)
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name] += 1
                bases[node.name] |= {getattr(base, "id", getattr(base, "attr", "")) for base in node.bases}
    errors = {"Exception", "ValueError", "RuntimeError", "LookupError", "KeyError", "OSError"}
    while more := {name for name, of in bases.items() if name not in errors and of & errors}:
        errors |= more
    return sum(places.values()), sum(places[name] for name in errors), sum(count > 1 for count in places.values())


def import_figures(found: dict[str, Path]) -> tuple[int, int, str]:
    """Count imports between packages, those of them that bypass a face, and say whether files import in circles."""
    graph = grimp.build_graph("gpusonde", exclude_type_checking_imports=True, cache_dir=None)
    crossing = bypassing = 0
    arrows = {}
    for name in found:
        imported = graph.find_modules_directly_imported_by(name) & set(found) if name in graph.modules else set()
        arrows[name] = imported
        for other in imported:
            package = other.split(".")[1]
            if package not in {name.split(".")[1], "errors", "documents"}:
                crossing += 1
                bypassing += other.count(".") > 3
    try:
        graphlib.TopologicalSorter(arrows).prepare()
    except graphlib.CycleError as error:
        return crossing, bypassing, " -> ".join(error.args[1])
    return crossing, bypassing, "none"


def configuration_keys() -> int:
    """Count the keys of both daemons."""
    from gpusonde.agent.config import AgentConfig
    from gpusonde.collector.config import CollectorConfig

    return sum(len(config.options()) for config in (AgentConfig, CollectorConfig))


def command_options() -> int:
    """Count the options of all commands; ``--help`` is none."""
    from gpusonde.cli.main import build_parser

    actions = [action for parser in _parsers(build_parser()) for action in parser._actions]
    return sum(bool(action.option_strings) and not isinstance(action, argparse._HelpAction) for action in actions)


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    getattr(parser, "complete", lambda: None)()
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _parsers(child)


def words() -> tuple[int, int]:
    """Count the words of all pages, as ``wc -w`` does and without the bars of tables and other marks."""
    pages = [
        page for name in _PAGES for page in ((ROOT / name).rglob("*.md") if (ROOT / name).is_dir() else [ROOT / name])
    ]
    found = [word for page in pages for word in page.read_text(encoding="utf-8").split()]
    return len(found), sum(any(map(str.isalnum, word)) for word in found)


def start_s(*arguments: str) -> float:
    """Time the quickest of several starts of this Python."""
    times = []
    for _ in range(_STARTS):
        begin = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - begin)
    return min(times)


def rows() -> list[tuple[str, str]]:
    """Measure everything."""
    found = modules()
    texts = {name: path.read_text(encoding="utf-8") for name, path in found.items()}
    lines = [len(text.splitlines()) for text in texts.values()]
    classes, errors, shared = class_figures({name: ast.parse(text) for name, text in texts.items()})
    crossing, bypassing, circle = import_figures(found)
    return [
        ("production modules", f"{len(lines)}"),
        ("their median length, lines", f"{statistics.median(lines):.0f}"),
        ("modules under 60 lines / over 600", f"{sum(n < 60 for n in lines)} / {sum(n > 600 for n in lines)}"),
        ("production lines", f"{sum(lines):,}"),
        ("classes / exception classes", f"{classes:,} / {errors}"),
        ("class names that two classes share", f"{shared}"),
        ("configuration keys / options of commands", f"{configuration_keys()} / {command_options()}"),
        ("words of README, docs, deploy, CHANGELOG, CONTRIBUTING / without marks", "{:,} / {:,}".format(*words())),
        ("imports between packages / past a face", f"{crossing} / {bypassing} ({bypassing / crossing:.0%})"),
        ("circle of files", circle),
        (
            "`gpusonde --help` / `python -c pass`, s",
            f"{start_s('-m', 'gpusonde.cli', '--help'):.3f} / {start_s('-c', 'pass'):.3f}",
        ),
    ]


def main() -> None:
    """Print the table, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="page whose table is replaced")
    args = parser.parse_args()
    table = "\n".join(["| what | now |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows())])
    measured = (
        f"Measured {datetime.date.today()}, Python {platform.python_version()}, {os.cpu_count()} cores.\n\n{table}\n"
    )
    print(measured)
    if args.out:
        page = args.out.read_text(encoding="utf-8") if args.out.exists() else "# How large the house is\n"
        args.out.write_text(page.split("\nMeasured ")[0].rstrip() + f"\n\n{measured}", encoding="utf-8")


if __name__ == "__main__":
    main()
