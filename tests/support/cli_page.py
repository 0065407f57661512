"""``docs/cli.md`` as data: the options and the JSON keys that it promises for every command."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"

_HEADING = re.compile(r"^## `gpusonde ([a-z]+)`$")
_ROW = re.compile(r"^\| `([^`]+)` \|")


@dataclass
class Section:
    """What the page says about one command."""

    options: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    units: dict[str, str] = field(default_factory=dict)


def read_page() -> dict[str, Section]:
    """Command -> its section. A table belongs to options or keys by its first column's heading."""
    sections: dict[str, Section] = {}
    section, column = None, ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if heading := _HEADING.match(line):
            section = sections.setdefault(heading.group(1), Section())
        elif line.startswith("## "):
            section = sections.setdefault(line.removeprefix("## "), Section())
        elif line.startswith(("| option", "| key")):
            column = line.split("|")[1].strip()
        elif section is not None and (row := _ROW.match(line)):
            name = row.group(1)
            if column == "option":
                section.options.add(name.split()[0])
            else:
                section.keys.add(name)
                section.units[name] = line.split("|")[2].strip()
    return sections


def keys_of(value: Any, prefix: str = "") -> Iterator[str]:
    """Every key of a JSON value as a path: ``offers[].usd_per_hour``; a list of scalars ends in ``[]``."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            path = f"{prefix}.{key}" if prefix else str(key)
            if isinstance(item, (Mapping, list)):
                yield from keys_of(item, path)
            else:
                yield path
    elif isinstance(value, list):
        if all(not isinstance(item, (Mapping, list)) for item in value):
            yield f"{prefix}[]"
        for item in value:
            if isinstance(item, (Mapping, list)):
                yield from keys_of(item, f"{prefix}[]")
