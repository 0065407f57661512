"""Figures of an earlier run that a shorter one keeps: those of the published stack, which has no part in the rest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

#: Sections about it alone begin with this.
PUBLISHED = "Paper stack"
_COLUMN = "paper stack"


def kept_sections(path: Path) -> Mapping[str, str]:
    """Title -> text of the sections in a results file; nothing when there is no such file."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return {part.partition("\n")[0]: f"## {part}" for part in text.split("\n## ")[1:]}


def kept_cells(sections: Mapping[str, str], title: str, keys: int) -> Mapping[tuple[str, ...], str]:
    """First ``keys`` cells of each row of a section's table -> its cell for the published stack."""
    lines = [line for line in sections.get(title, "").splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    if not rows or _COLUMN not in rows[0]:
        return {}
    column = rows[0].index(_COLUMN)
    return {tuple(row[:keys]): row[column] for row in rows[1:]}
