"""Write the parts of the pages that the code knows better: ``make docs``; ``--check`` says what is out of date.

A page names such a part in the line before it, and what stands between the two lines is overwritten:

    <!-- make docs: GENERATOR ARGUMENT... -->
    <!-- end -->

``GENERATORS`` holds the function of every generator; it takes the arguments as texts and returns Markdown. To have a
new table in a page, write its function here (it imports what it needs itself), add it to ``GENERATORS``, put the two
lines into the page and run ``make docs``.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpusonde.service.config import Configuration

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/**/*.md", "deploy/**/*.md")

_PART = re.compile(
    r"(^<!-- make docs: (?P<words>[^\n]+?) -->\n)(?P<text>.*?)(^<!-- end -->$)", re.MULTILINE | re.DOTALL
)


def pages() -> list[Path]:
    """Find the pages that may have generated parts."""
    return sorted(path for pattern in PAGES for path in ROOT.glob(pattern))


def parts(text: str) -> list[list[str]]:
    """Return the words of every generated part of a page, the generator first."""
    return [match["words"].split() for match in _PART.finditer(text)]


def regenerate(text: str) -> str:
    """Return a page with its generated parts as they should be.

    Raises:
        KeyError: There is no such generator.
    """

    def replaced(match: re.Match[str]) -> str:
        generator, *arguments = match["words"].split()
        return f"{match[1]}\n{GENERATORS[generator](*arguments).strip()}\n\n{match[4]}"

    return _PART.sub(replaced, text)


def expected(path: Path, text: str) -> str:
    """Return what a file that holds ``text`` should hold."""
    write = FILES.get(path.relative_to(ROOT).as_posix())
    return write() if write else regenerate(text)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Draw a table of Markdown; a bar in a cell is escaped."""
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    cells = [[cell.replace("|", r"\|").strip() for cell in line] for line in lines]
    text = "\n".join("| " + " | ".join(line) + " |" for line in cells)
    return re.sub(r"(?<=\|)  (?=\|)", " ", text).replace("| --- ", "|---").replace("|--- |", "|---|")


# --- the command: docs/cli.md ---

# Groups of options that several commands take; the page lists each once.
SHARED_GROUPS = {
    "output": "every-command",
    "configuration": "configuration-of-the-daemons",
    "the collector": "asking-a-collector",
}


def _parser(words: Iterable[str]) -> argparse.ArgumentParser:
    """Return the complete parser of a command, or of an action of one."""
    from gpusonde.cli.main import build_parser
    from gpusonde.cli.parsing import Parser

    parser: argparse.ArgumentParser = build_parser()
    for word in words:
        (actions,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        parser = actions.choices[word]
        assert isinstance(parser, Parser)
        parser.complete()
    return parser


def _options(group: argparse._ArgumentGroup) -> Iterator[tuple[str, str]]:
    for action in group._group_actions:
        if isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)):
            continue
        value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else "")
        name = " ".join([", ".join(action.option_strings), str(value) if action.nargs != 0 else ""]).strip()
        yield f"`{name}`", (action.help or "").replace("%%", "%")


def options(*words: str) -> str:
    """Draw the table of a command's arguments and options; those that several commands take are named by a link."""
    rows: list[tuple[str, str]] = []
    also: list[str] = []
    for group in _parser(words)._action_groups:
        if group.title in SHARED_GROUPS:
            also.append(f"[{group.title}](#{SHARED_GROUPS[group.title]})" if group.title != "output" else "")
        else:
            rows.extend(_options(group))
    drawn = table(("option", "does"), rows) if rows else ""
    links = [link for link in also if link]
    return drawn + (f"\n\nAlso: {', '.join(links)}." if links else "")


def shared_options(command: str, *title: str) -> str:
    """Draw the table of a group of options that several commands take, as the given command takes it."""
    (group,) = (group for group in _parser([command])._action_groups if group.title == " ".join(title))
    return table(("option", "does"), _options(group))


# --- configurations: docs/agent.md, docs/collector.md, deploy/config/*.toml ---

_CONFIGURATION_HEAD = """# Configuration of the gpusonde {daemon}. Every option is shown with its default.
#
# Precedence: flags, then environment ({prefix}<SECTION>_<OPTION>), then this file, then the defaults.
# Unknown keys are errors; durations and sizes carry their unit. Check a change with
#   gpusonde {daemon} --config FILE --check-config

"""


def _configuration(daemon: str) -> type[Configuration]:
    from gpusonde.agent import AgentConfig
    from gpusonde.collector import CollectorConfig

    return {"agent": AgentConfig, "collector": CollectorConfig}[daemon]


def draw_configuration(config: type[Configuration]) -> str:
    """Draw the tables of a configuration's keys, one per section."""
    drawn = []
    for section, about in config.sections().items():
        rows = [
            (
                f"`{entry.key}`",
                f"`{entry.to_toml(entry.default)}`",
                entry.allowed,
                "yes" if entry.live else "",
                entry.help,
            )
            for entry in config.options().values()
            if entry.section == section
        ]
        drawn.append(f"**`[{section}]`** {about}\n\n{table(('key', 'default', 'allowed', 'live', 'meaning'), rows)}")
    return "\n\n".join(drawn)


def configuration_file(daemon: str) -> str:
    """Write the file that ships with a daemon: every key with its default."""
    config = _configuration(daemon)
    return _CONFIGURATION_HEAD.format(daemon=daemon, prefix=config.environment_prefix) + config().to_toml()


# Files that are written as a whole, with what writes them.
FILES: Mapping[str, Callable[[], str]] = {
    "deploy/config/agent.toml": lambda: configuration_file("agent"),
    "deploy/config/collector.toml": lambda: configuration_file("collector"),
}

GENERATORS: Mapping[str, Callable[..., str]] = {
    "configuration": lambda daemon: draw_configuration(_configuration(daemon)),
    "options": options,
    "shared-options": shared_options,
}


def main(arguments: list[str]) -> int:
    """Rewrite the pages, or with ``--check`` name those that are out of date; returns the exit code."""
    stale = []
    checks = "--check" in arguments
    for path in [*pages(), *(ROOT / name for name in FILES)]:
        before = path.read_text(encoding="utf-8")
        after = expected(path, before)
        if after != before:
            stale.append(path.relative_to(ROOT))
            if not checks:
                path.write_text(after, encoding="utf-8")
    for name in stale:
        print(f"{name}: {'is not what the code says; run make docs' if checks else 'written'}")
    return 1 if checks and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
