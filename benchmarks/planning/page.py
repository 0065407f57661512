"""The results page: sections that can be measured one by one, and at its top what their bars come to."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

BAR_COLUMNS = ("what", "bar", "measured", "met")
_MARK = "<!-- section: {} -->"
_NAMED_BARS = re.compile(r"\{([^{}]+)\}")
_MARKED = re.compile(r"<!-- section: (\w+) -->")


class NotRunError(RuntimeError):
    """A section cannot run here: its data, root or a package is missing; the message says which."""


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines of a Markdown table, an empty one behind it."""
    head, *lines = ["| " + " | ".join(map(str, cells)) + " |" for cells in (columns, *rows)]
    return [head, "|" + "---|" * len(columns), *lines, ""]


def percent(share: float, digits: int = 1) -> str:
    """``0.0532`` as ``5.3 %``."""
    return f"{100 * share:.{digits}f} %"


def bar(args: argparse.Namespace, what: str, wanted: str, measured: str, *, met: bool) -> None:
    """Note one bar of the section at work; it gets into the section's first table. What is ``reported`` has none."""
    args.bars.append((what, wanted, measured, "-" if wanted == "reported" else "yes" if met else "**no**"))


def data_file(args: argparse.Namespace, name: str) -> Path:
    """A file or folder of the measurement data.

    Raises:
        NotRunError: It is not there.
    """
    path: Path = args.data / name
    if not path.exists():
        raise NotRunError(f"needs the measurement data, of which {name} is not in the folder of --data")
    return path


def read_sections(page: Path) -> dict[str, list[str]]:
    """Section -> its lines, of a page written before; empty without one."""
    sections: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in page.read_text(encoding="utf-8").splitlines() if page.is_file() else ():
        if found := _MARKED.fullmatch(line):
            lines = sections.setdefault(found.group(1), [])
        elif lines is not None:
            lines.append(line)
    return sections


def write_page(page: Path, head: Sequence[str], sections: dict[str, list[str]]) -> None:
    """Write the head, with what its places in braces name, and the sections."""
    bars = [row for lines in sections.values() for row in _bar_rows(lines)]
    judged = [row for row in bars if row[-1] != "-"]
    missed = [row for row in judged if row[-1] != "yes"]
    said = f"{len(judged) - len(missed)} of {len(judged)} bars are met (what is *reported* has none)"
    said = "\n".join([f"{said}; the others:", "", *table(BAR_COLUMNS, missed)]) if missed else f"{said}."
    text = [said.rstrip() if line == "{missed}" else _filled(line, bars) for line in head]
    text.append("")
    for name, lines in sections.items():
        text += [_MARK.format(name), *_trimmed(lines), ""]
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(text).rstrip() + "\n", encoding="utf-8")


def _filled(line: str, bars: Sequence[tuple[str, ...]]) -> str:
    """A row of the head that names bars in braces: what was measured of them, and whether all are met."""
    place = _NAMED_BARS.search(line)
    if not place:
        return line
    found = {what: (measured, met) for what, _, measured, met in bars}
    measured, met = zip(*(found.get(name, ("not run", "-")) for name in place.group(1).split("; ")), strict=True)
    judged = "**no**" if "**no**" in met else "-" if "-" in met else "yes"
    return f"{line[: place.start()]}{'; '.join(measured)}{line[place.end() :]} {judged} |"


def _bar_rows(lines: Sequence[str]) -> list[tuple[str, ...]]:
    header, *_ = table(BAR_COLUMNS, [])
    rows = []
    for line in lines[lines.index(header) + 2 :] if header in lines else ():
        if not line.startswith("|"):
            break
        rows.append(tuple(cell.strip() for cell in line.strip("|").split(" | ")))
    return rows


def _trimmed(lines: Sequence[str]) -> list[str]:
    kept = list(lines)
    while kept and not kept[-1]:
        kept.pop()
    return kept
