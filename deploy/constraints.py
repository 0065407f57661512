"""Writes constraints.txt: what is installed in this environment, which is what the tests then run with everywhere.

    .venv/bin/python deploy/constraints.py [OTHER_PYTHON ...]

A version holds for the Pythons that its project names (Requires-Python). What an older Python takes in its place is
asked of that Python's own pip.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from packaging.markers import Marker
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
# Not among what gpusonde needs, though it is in every environment.
TOOLS = {"gpusonde", "pip", "setuptools", "wheel"}
HEAD = """\
# The versions that the tests pass with; written by `make constraints`, used by `pip install -c constraints.txt`.
# Tested on Python {tested}. What has no such release for another Python is as pip of that Python chose it.
"""


def installed() -> dict[str, str]:
    """Return a line for each distribution of this environment, by name."""
    lines = {}
    for distribution in metadata.distributions():
        name = canonicalize_name(distribution.name)
        if name not in TOOLS:
            lines[name] = f"{name}=={distribution.version}{_marker(distribution.metadata.get('Requires-Python'))}"
    return lines


def _marker(requires: str | None) -> str:
    allowed = [python for python in PYTHONS if f"{python}.0" in SpecifierSet(requires or "")]
    first = f'python_version >= "{allowed[0]}"' if allowed[0] != PYTHONS[0] else ""
    last = f'python_version <= "{allowed[-1]}"' if allowed[-1] != PYTHONS[-1] else ""
    condition = " and ".join(filter(None, (first, last)))
    return f"; {condition}" if condition else ""


def chosen_by(python: str, lines: dict[str, str]) -> list[str]:
    """Return lines for what another Python's pip takes where no line holds for it."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as known:
        known.write("\n".join(lines.values()))
        known.flush()
        command = [python, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
        report = subprocess.run(
            [*command, "-c", known.name, f"{ROOT}[dev]"], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
    answer = json.loads(report)
    version = answer["environment"]["python_version"]
    held = {
        n
        for n, line in lines.items()
        if ";" not in line or Marker(line.split(";")[1]).evaluate({"python_version": version})
    }
    taken = {canonicalize_name(each["metadata"]["name"]): each["metadata"]["version"] for each in answer["install"]}
    return [f'{n}=={taken[n]}; python_version == "{version}"' for n in taken if n not in held | TOOLS]


def main() -> None:
    """Write the file."""
    lines = installed()
    others = [line for python in sys.argv[1:] for line in chosen_by(python, lines)]
    tested = f"{sys.version_info.major}.{sys.version_info.minor}"
    text = HEAD.format(tested=tested) + "\n".join(sorted([*lines.values(), *others])) + "\n"
    (ROOT / "constraints.txt").write_text(text)


if __name__ == "__main__":
    main()
