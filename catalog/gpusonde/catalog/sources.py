"""Where a figure of the catalogue comes from, and how its data files are read."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA_DIRECTORY = Path(__file__).parent / "data"


class CatalogDataError(ValueError):
    """A data file of the catalogue that cannot be used: the message names the file, the entry and the key."""


@dataclass(frozen=True)
class Source:
    """Where a figure or a price comes from.

    Attributes:
        title: What was read.
        url: Address of it; empty when there is none (a computed or remembered figure).
        retrieved: Day or month on which it was read, ISO 8601 (``2026-11-20``, ``2025-12``).
        note: Licence and caveats.
        from_memory: True when nobody looked the figure up: it was written down from memory and wants checking.
    """

    title: str
    url: str
    retrieved: str
    note: str = ""
    from_memory: bool = False


def read_toml(path: Path) -> dict[str, Any]:
    """Parse one TOML file.

    Raises:
        CatalogDataError: The file is missing or is not TOML.
    """
    # tomllib came with Python 3.11; before that the distribution depends on tomli, which is the same code.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CatalogDataError(f"{path}: cannot be read: {error.strerror}; name an existing file") from error
    except UnicodeDecodeError as error:
        raise CatalogDataError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    try:
        document: dict[str, Any] = toml.loads(text)
    except ValueError as error:
        raise CatalogDataError(f"{path}: is not TOML: {error}") from error
    return document


def parse_sources(tables: object, file: Path) -> dict[str, Source]:
    """Read the ``[sources.<id>]`` tables of a data file.

    Raises:
        CatalogDataError: A source lacks a key, has an unknown one, or one of the wrong type.
    """
    if not isinstance(tables, Mapping):
        raise CatalogDataError(f"{file}: needs [sources.<id>] tables")
    types: dict[str, type] = {"title": str, "url": str, "retrieved": str, "note": str, "from_memory": bool}
    sources = {}
    for identifier, table in tables.items():
        where = f"{file}: sources.{identifier}"
        if not isinstance(table, Mapping):
            raise CatalogDataError(f"{where}: must be a table")
        for key, value in table.items():
            if key not in types:
                raise CatalogDataError(f"{where}: unknown key {key!r}; known: {', '.join(types)}")
            if not isinstance(value, types[key]):
                raise CatalogDataError(f"{where}: {key} must be a {types[key].__name__}, not {value!r}")
        missing = [key for key in ("title", "url", "retrieved") if key not in table]
        if missing:
            raise CatalogDataError(f"{where}: lacks {', '.join(missing)}")
        sources[str(identifier)] = Source(**table)
    return sources
