"""docs/operations.md and deploy/README.md: commands that exist, files that are there."""

import re
import shlex
from pathlib import Path

import pytest

from gpusonde.agent import AgentConfig
from gpusonde.cli import main
from gpusonde.collector import CollectorConfig

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / name).read_text() for name in ("docs/operations.md", "deploy/README.md")}
ALL = "\n".join(PAGES.values())


def commands():
    """Every call of gpusonde in a code block or between backticks."""
    blocks = re.findall(r"^ *```\w*\n(.*?)^ *```", ALL, re.MULTILINE | re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    inline = re.findall(r"`(gpusonde [^`]+)`", re.sub(r"\n *", " ", ALL))
    calls = [re.sub(r"\s+#.*", "", line) for line in [*lines, *inline] if line.startswith("gpusonde ")]
    return sorted({call for call in calls if "..." not in call})


@pytest.mark.parametrize("call", commands())
def test_a_command_of_the_page_is_one_that_we_have(call):
    words = [word.replace("TIME", "2026-11-21").replace("HOST:PORT", "other:7433") for word in shlex.split(call)[1:]]
    main.build_parser().parse_args(words)


def test_there_are_commands_to_check():
    assert len(commands()) >= 8


def test_every_option_that_the_pages_name_exists():
    known = set(AgentConfig.options()) | set(CollectorConfig.options())
    sections = {option.split(".")[0] for option in known}
    named = set(re.findall(r"`([a-z]+\.[a-z_0-9]+)`", ALL))
    named = {
        name
        for name in named
        if name.split(".")[0] in sections and not name.endswith((".toml", ".md", ".json", ".key", ".pem"))
    }
    assert sorted(named - known) == []
    assert len(named) >= 8


@pytest.mark.parametrize("text", re.findall(r"```toml\n(.*?)```", re.sub(r"(?m)^ {3}", "", ALL), re.DOTALL))
def test_the_configurations_of_the_page_are_taken(text, tmp_path):
    path = tmp_path / "page.toml"
    path.write_text(text)
    kind = CollectorConfig if "[server]" in text else AgentConfig
    kind.load(path)


def test_every_file_that_the_pages_name_is_there():
    named = set(re.findall(r"\bdeploy/[\w./*-]*[\w*]", ALL))
    assert len(named) >= 10
    assert [name for name in named if not list(ROOT.glob(name))] == []
    folders = re.findall(r"^\| `([\w./*-]+)`", PAGES["deploy/README.md"], re.MULTILINE)
    assert [name for name in folders if not list((ROOT / "deploy").glob(name.rstrip("/")))] == []


def test_links_lead_somewhere():
    for name, text in PAGES.items():
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            assert ((ROOT / name).parent / target).exists(), f"{name}: {target}"
        anchors = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings(text)}
        for anchor in re.findall(r"\]\(#([^)]+)\)", text):
            assert anchor in anchors, f"{name}: #{anchor}"


def headings(text):
    return re.findall(r"^#+ (.+)$", text, re.MULTILINE)
