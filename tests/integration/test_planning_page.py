"""The page on planning runs as it is written: its files are written, its commands and its Python are executed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "planning.md"
_BLOCK = re.compile(
    r"(?:<!-- file: (?P<file>[\w.-]+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """A fenced block: a file to write, a command with its output, or Python."""

    file: str | None
    language: str
    text: str


def blocks():
    return [
        Block(found["file"], found["language"], found["text"]) for found in _BLOCK.finditer(PAGE.read_text("utf-8"))
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with every file that the page shows."""
    path = tmp_path_factory.mktemp("planning")
    for block in blocks():
        if block.file is not None:
            (path / block.file).write_text(block.text, encoding="utf-8")
    return path


def test_the_python_of_the_page_runs(folder):
    code = "\n".join(block.text for block in blocks() if block.language == "python")
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in PAGE.read_text("utf-8")


def test_the_commands_of_the_page_print_what_it_shows(folder):
    found = blocks()
    for place, block in enumerate(found):
        if block.language != "sh":
            continue
        command = [word for line in block.text.splitlines() for word in shlex.split(line, comments=True)]
        assert command[0] == "gpusonde"
        done = subprocess.run(
            [sys.executable, "-m", "gpusonde.cli", *command[1:]],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            # As into a file, whatever runs the tests.
            env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
        )
        assert done.returncode == 0, done.stderr
        shown = found[place + 1] if place + 1 < len(found) else None
        if shown is not None and shown.language == "text":
            printed = {" ".join(line.split()) for line in done.stdout.splitlines()}
            assert [line for line in shown.text.splitlines() if line and " ".join(line.split()) not in printed] == []
