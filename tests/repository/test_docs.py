"""The pages name tests as evidence; each of them has to exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_NAMED = re.compile(r"`((?:[\w/]+/)?test_\w+\.py)::(test_\w+)`")
_PAGES = {"sources.md": ROOT / "tests" / "agent"}


@pytest.mark.parametrize("page", _PAGES)
def test_every_test_that_a_page_names_exists(page):
    named = _NAMED.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert len(named) > 20
    missing = []
    for file, function in named:
        path = ROOT / file if file.startswith("tests/") else _PAGES[page] / file
        if not path.is_file() or f"def {function}(" not in path.read_text(encoding="utf-8"):
            missing.append(f"{file}::{function}")
    assert missing == []


def test_each_of_the_fifteen_complaints_about_today_s_tools_has_an_answer_with_a_test():
    rows = re.findall(r"^\| (\d+) \| .*$", (ROOT / "docs" / "sources.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [str(number) for number in range(1, 16)]
    for line in (ROOT / "docs" / "sources.md").read_text(encoding="utf-8").splitlines():
        if re.match(r"\| \d+ \| ", line):
            assert _NAMED.search(line)
