"""Files that were written before the code was put into another order are read as they were then.

``tests/data/before_house`` has the files, and what the code that wrote them read out of them.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.written_before import EXPECTED, FOLDER, OBSERVED, observed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of all files, to recover, repair and go on in."""
    return shutil.copytree(FOLDER, tmp_path / "before", ignore=shutil.ignore_patterns(EXPECTED, "__pycache__"))


def differences(found: Any, expected: Any, at: str = "") -> list[str]:
    """Where an answer is not as it was; keys may have come to it, and numbers hold to 1e-9."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return [
            difference
            for key, value in expected.items()
            for difference in (
                differences(found[key], value, f"{at}.{key}") if key in found else [f"{at}.{key} is missing"]
            )
        ]
    if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        pairs = enumerate(zip(found, expected, strict=True))
        return [difference for place, pair in pairs for difference in differences(*pair, f"{at}[{place}]")]
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (found, expected))
    alike = found == pytest.approx(expected, rel=1e-9, abs=1e-12) if numbers else found == expected
    return [] if alike else [f"{at}: {found!r:.200}, not {expected!r:.200}"]


@pytest.mark.parametrize("name", sorted(OBSERVED))
def test_what_was_written_before_is_read_as_it_was(name: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    if name == "store_tables":
        pytest.importorskip("duckdb")
    caplog.set_level(logging.INFO)
    expected = json.loads((FOLDER / EXPECTED / f"{name}.json").read_text())
    assert differences(observed(name, folder), expected) == []
    # States of tracking may be missing, so that one which is not understood would change no answer.
    assert "is read again" not in caplog.text


def test_every_answer_that_was_kept_is_asked_for() -> None:
    assert {path.stem for path in (FOLDER / EXPECTED).iterdir()} == set(OBSERVED)
