"""The page on times from graphs runs as it is written: its shell commands are executed, and print what it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from gpusonde.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "workload.md"
_COMMAND = re.compile(r"^```sh\n(?P<command>.*?)^```$(?:\n\n```text\n(?P<shown>.*?)^```$)?", re.DOTALL | re.MULTILINE)


_FIGURE = re.compile(r"\b\d[\d.,]*")


def test_the_commands_of_the_page_print_what_it_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = list(_COMMAND.finditer(PAGE.read_text("utf-8")))
    assert len(found) >= 3
    for block in found:
        command = shlex.split(block["command"], comments=True)
        assert command[0] == "gpusonde"
        code = main(command[1:])
        said = capsys.readouterr()
        assert code == 0, said.err
        if block["shown"] is not None:
            printed = {_words(line) for line in said.out.splitlines()}
            assert [line for line in block["shown"].splitlines() if _words(line) not in printed] == []


def _words(line: str) -> str:
    """A line without its figures, which change with every fit of the shipped model."""
    return " ".join(_FIGURE.sub("#", line).split()).replace("─", "")
