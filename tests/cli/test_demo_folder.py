"""The demo's folder is looked at before the work, not after it."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from gpusonde.cli.demo.run import check_folder
from gpusonde.cli.main import main


def test_a_file_in_the_folders_place_is_refused_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    file = tmp_path / "file"
    file.write_text("mine")
    assert main(["demo", "--out", str(file / "out"), "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["error"]["file"] == str(file)
    assert "collector at" not in printed.err
    assert not list(scratch.iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(PermissionError) as caught:
        check_folder(tmp_path / "out")
    tmp_path.chmod(0o755)
    assert caught.value.filename == str(tmp_path)


def test_a_folder_that_can_be_made_is_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_folder(tmp_path / "a" / "b")
    monkeypatch.chdir(tmp_path)
    check_folder(Path("out"))
    assert not list(tmp_path.iterdir())
