"""The page on times from graphs runs as it is written: its shell commands are executed, and print what it shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "workload.md"
_COMMAND = re.compile(r"^```sh\n(?P<command>.*?)^```$(?:\n\n```text\n(?P<shown>.*?)^```$)?", re.DOTALL | re.MULTILINE)


_FIGURE = re.compile(r"\b\d[\d.,]*")


def test_the_commands_of_the_page_print_what_it_shows(tmp_path):
    found = list(_COMMAND.finditer(PAGE.read_text("utf-8")))
    assert len(found) >= 3
    for block in found:
        command = shlex.split(block["command"], comments=True)
        assert command[0] == "gpusonde"
        done = subprocess.run(
            [sys.executable, "-m", "gpusonde.cli", *command[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            # As into a file, whatever runs the tests.
            env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
        )
        assert done.returncode == 0, done.stderr
        if block["shown"] is not None:
            printed = {_words(line) for line in done.stdout.splitlines()}
            assert [line for line in block["shown"].splitlines() if _words(line) not in printed] == []


def _words(line: str) -> str:
    """A line without its figures, which change with every fit of the shipped model."""
    return " ".join(_FIGURE.sub("#", line).split()).replace("─", "")
