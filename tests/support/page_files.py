"""Files that a page of the documentation shows, written where a command can read them."""

from __future__ import annotations

import re
from pathlib import Path

_BLOCK = re.compile(r"<!-- file: (?P<file>[\w.-]+) -->\n```\w+\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


def write_page_files(page: Path, folder: Path) -> Path:
    """Write every file that the page shows into a folder, and return it."""
    for found in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        (folder / found["file"]).write_text(found["text"], encoding="utf-8")
    return folder
