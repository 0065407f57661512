"""README as a stranger reads it: its commands run as they stand, and print what it shows."""

from __future__ import annotations

import os
import re
import runpy
import select
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<why>[^\n]+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
_MOST_WORDS = 600
_LONGEST_S = 300


class Block(NamedTuple):
    """A part of the page in a language; ``why`` it is not run, where it is not."""

    why: str | None
    language: str
    text: str


BLOCKS = [Block(*found.group("why", "language", "text")) for found in _BLOCK.finditer(README)]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a checkout has that the page names."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("tests/data/demo_trace.parquet", "constraints.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def started(folder: Path, text: str) -> subprocess.Popen[str]:
    """A shell that runs commands in a home of its own, in a process group of its own, as into a file."""
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "PYTHONPATH")}
    return subprocess.Popen(
        ["bash", "-e", "-c", text],
        cwd=folder,
        env=kept | {"HOME": str(folder), "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def shown_lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip() not in ("", "...")]


def test_the_page_is_short_and_says_why_what_is_not_run_is_not() -> None:
    assert len(README.split()) <= _MOST_WORDS
    assert [block.why for block in BLOCKS if block.language == "sh"].count(None) >= 3
    assert all(block.language in ("sh", "text", "python") for block in BLOCKS)


def test_what_the_page_does_not_run_are_commands_and_targets_that_exist() -> None:
    commands = runpy.run_path(str(ROOT / "cli/gpusonde/cli/main.py"))["COMMANDS"]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for block in BLOCKS:
        assert set(re.findall(r"^gpusonde (\w+)", block.text, re.MULTILINE)) <= set(commands)
        assert set(re.findall(r"^make (\w+)", block.text, re.MULTILINE)) <= set(targets)


def test_the_commands_of_the_page_run_in_a_checkout_and_print_what_it_shows(checkout: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra plot")
    for place, block in enumerate(BLOCKS):
        if block.why is not None or block.language != "sh" or "gpusonde view" in block.text:
            continue
        done = started(checkout, block.text)
        printed, errors = done.communicate(timeout=_LONGEST_S)
        assert done.returncode == 0, errors
        if BLOCKS[place + 1].language == "text":
            assert set(shown_lines(BLOCKS[place + 1].text)) - set(shown_lines(printed)) == set()
    assert (checkout / "advice.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_for_one_trace_opens_and_ends_with_ctrl_c(checkout: Path) -> None:
    pytest.importorskip("uvicorn", reason="the page needs the extra web")
    (block,) = [block for block in BLOCKS if "gpusonde view" in block.text]
    viewing = started(checkout, block.text)
    assert viewing.stdout is not None
    try:
        ready, _, _ = select.select([viewing.stdout], [], [], _LONGEST_S)
        assert ready, f"it said nothing within {_LONGEST_S} s"
        address = re.match(r"(http://\S+) shows 1 GPU", viewing.stdout.readline())
        assert address is not None, viewing.communicate(timeout=60)
        with urllib.request.urlopen(address[1], timeout=60) as answer:
            assert b"<html" in answer.read()
    finally:
        os.killpg(viewing.pid, signal.SIGINT)
    assert viewing.wait(timeout=60) in (0, 130)


def test_the_example_in_python_runs(checkout: Path) -> None:
    (block,) = [block for block in BLOCKS if block.language == "python"]
    done = subprocess.run(
        [sys.executable, "-c", block.text],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=_LONGEST_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("epochs 17.4")
