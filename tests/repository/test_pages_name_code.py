"""Pages that lead through the code name files, classes and functions that are there."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# A file with what is in it: `room/file.py:Name`, or `room/file.py` followed by (`Name`, `Name`).
_WITH_NAME = re.compile(r"`([\w/.-]+\.py):([\w.]+)`")
_WITH_NAMES = re.compile(r"`([\w/.-]+\.(?:py|proto))`\s+\(((?:`\w+`(?:,\s+)?)+)\)")
_PATH = re.compile(r"`([\w-]+/[\w/-]*(?:\.\w+)?)`")


def locate(path: str) -> Path:
    """Return the file or folder that a page means: ``agent/sampler.py`` is ``agent/gpusonde/agent/sampler.py``."""
    if (ROOT / path).exists():
        return ROOT / path
    return ROOT / path.split("/", 1)[0] / "gpusonde" / path


@functools.cache
def names_in(file: Path) -> frozenset[str]:
    """Return the classes and functions of a module, methods as ``Class.method``."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.AsyncFunctionDef)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return frozenset(names)


def missing(text: str) -> list[str]:
    """Return what a text names and the repository has not."""
    found = []
    named = _WITH_NAME.findall(text)
    for path, names in _WITH_NAMES.findall(text):
        named += [(path, name) for name in re.findall(r"`(\w+)`", names)]
    for path, name in named:
        file = locate(path)
        if not file.is_file() or (file.suffix == ".py" and name not in names_in(file)):
            found.append(f"{path}:{name}")
    # What does not begin with a folder of the repository is a part of a path.
    paths = [path for path in _PATH.findall(text) if (ROOT / path.split("/", 1)[0]).is_dir()]
    return found + [path for path in paths if not locate(path).exists()]


@pytest.mark.parametrize("page", ["tour.md", "architecture.md"])
def test_what_a_page_leads_to_is_there(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    assert len(_WITH_NAME.findall(text)) >= 10
    assert missing(text) == []


@pytest.mark.parametrize("record", sorted((DOCS / "decisions").glob("[0-9]*.md")), ids=lambda record: record.stem)
def test_where_a_decision_lives_is_there(record):
    text = record.read_text(encoding="utf-8")
    assert missing(text[text.index("**Where.** ") :]) == []


def test_no_flow_of_the_tour_goes_back_to_a_file_left_before_without_saying_why():
    text = (DOCS / "tour.md").read_text(encoding="utf-8")
    for flow in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        stations = re.findall(r"^\d+\. `([\w/.-]+\.py):([\w.]+)`(.*)", flow, re.MULTILINE)
        assert len(stations) >= 6
        seen: list[str] = []
        for path, name, rest in stations:
            assert path not in seen[:-1] or rest.startswith(" (again:"), f"{path}:{name}"
            seen.append(path)


_IMPORT = re.compile(r"^\s*from (gpusonde[\w.]*) import (\([^)]*\)|[^\n#]+)", re.MULTILINE)
# What can stand without torch where it is not installed.
_OPTIONAL = {"torch", "torchvision", "timm", "onnx", "keras"}


def imports(text: str) -> set[tuple[str, str]]:
    """Return the modules and names that Python code of a page or a script imports from the product."""
    found = set()
    for module, names in _IMPORT.findall(text):
        for name in names.strip("()").split(","):
            if name.strip():
                found.add((module, name.split()[0]))
    return found


def importing() -> list[Path]:
    """Return the pages and scripts that import from the product."""
    files = [ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "benchmarks").rglob("*.py")]
    return sorted(file for file in files if imports(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("file", importing(), ids=lambda file: str(file.relative_to(ROOT)))
def test_what_pages_and_benchmarks_import_is_there(file):
    for module, name in sorted(imports(file.read_text(encoding="utf-8"))):
        try:
            if not hasattr(importlib.import_module(module), name):
                importlib.import_module(f"{module}.{name}")
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in _OPTIONAL:
                raise
