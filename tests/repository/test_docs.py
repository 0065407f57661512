"""Pages are true: what is generated is current, links lead somewhere, tests and files that they name exist."""

import importlib
import re
import runpy
from pathlib import Path
from typing import is_typeddict

import pytest

from gpusonde.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
_NAMED = re.compile(r"`((?:[\w/]+/)?test_\w+\.py)::(test_\w+)`")
_DECISIONS = ROOT / "docs" / "decisions"
_RECORDS = sorted(_DECISIONS.glob("[0-9]*.md"))
_PAGES = {"sources.md": ROOT / "tests" / "agent"}


_GENERATE = runpy.run_path(str(ROOT / "docs" / "generate.py"))
_LINKED = sorted(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")) + [
    page for page in _GENERATE["pages"]() if page.name != "README.md" or page.parent != ROOT
]
_GENERATED = [*_GENERATE["pages"](), *(ROOT / name for name in _GENERATE["FILES"])]


@pytest.mark.parametrize("path", _GENERATED, ids=lambda path: path.name)
def test_what_is_generated_is_what_the_code_says(path):
    text = path.read_text(encoding="utf-8")
    assert _GENERATE["expected"](path, text) == text, "run make docs"


def test_the_command_page_has_every_command_and_lists_the_keys_of_every_object():
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    listed = {" ".join(words) for words in _GENERATE["parts"](text)}
    for name, command in COMMANDS.items():
        assert f"## `gpusonde {name}`" in text
        for leaf in [f"{name} {action}" for action in command.actions] or [name]:
            assert f"# `gpusonde {leaf}`\n" in text
        for home in {each.module for each in (command, *command.actions.values()) if each.module}:
            module = importlib.import_module(f"gpusonde.cli.{home}")
            printed = {
                found.__name__
                for found in vars(module).values()
                if is_typeddict(found) and (found.__doc__ or "").startswith("What ``gpusonde")
            }
            assert {found for found in printed if not any(words.endswith(f".{found}") for words in listed)} == set()


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    seen = dict.fromkeys(re.findall(r'<a id="([^"]+)">', text), 0)
    for heading in re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    ):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        seen[slug] = seen.get(slug, -1) + 1
        if seen[slug]:
            seen[f"{slug}-{seen[slug]}"] = 0
    return set(seen)


@pytest.mark.parametrize("page", _LINKED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_a_page_lead_somewhere(page):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            broken.append(link)
    assert broken == []


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


def test_records_of_decisions_are_numbered_without_gaps_and_stand_in_the_index_in_order():
    assert [record.name[:5] for record in _RECORDS] == [f"{number:04d}-" for number in range(1, len(_RECORDS) + 1)]
    listed = re.findall(
        r"^- \[(\d{4})\]\((.+\.md)\) (.+)$", (_DECISIONS / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    heads = [record.read_text(encoding="utf-8").splitlines()[0] for record in _RECORDS]
    assert [name for _, name, _ in listed] == [record.name for record in _RECORDS]
    assert [f"# {number} {title}" for number, _, title in listed] == heads


@pytest.mark.parametrize("record", _RECORDS, ids=lambda record: record.stem)
def test_a_record_of_a_decision_has_date_status_and_its_four_parts(record):
    text = record.read_text(encoding="utf-8")
    dated = re.fullmatch(r"\d{4}-\d\d-\d\d · (?:accepted|superseded by (\d{4}))", text.splitlines()[2])
    assert dated
    assert dated[1] is None or any(other.name.startswith(dated[1]) for other in _RECORDS)
    assert re.findall(r"^\*\*(\w+)\.\*\* ", text, re.MULTILINE) == ["Context", "Choice", "Price", "Where"]
