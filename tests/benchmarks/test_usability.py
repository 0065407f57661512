"""A small form of benchmarks/usability: files and mistakes that need no wait, judged by the real command."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(ROOT / "benchmarks" / "usability"))
    from cases import FILES_OF_THE_FIRST_TRIAL, MISTAKES, Case, Verdict, judge

_FILES = ("W&B events CSV", "nvidia-smi tables in a loop", "nvidia-smi pmon", "`.csv.gz`")
_MISTAKES = (
    "milliseconds as `--interval-s 100`",
    "kW as W",
    "two GPUs in one column, some ms apart",
    "abbreviated option",
    "`--json` before the command",
)


def _named(cases: tuple[Case, ...], names: tuple[str, ...]) -> list[Case]:
    chosen = [case for case in cases if case.name in names]
    assert len(chosen) == len(names)
    return chosen


def test_the_trial_is_of_32_files_and_60_mistakes() -> None:
    assert len(FILES_OF_THE_FIRST_TRIAL) == 32
    assert len(MISTAKES) >= 60


@pytest.mark.parametrize("case", _named(FILES_OF_THE_FIRST_TRIAL, _FILES), ids=lambda case: case.name)
def test_files_are_read_right_or_refused_with_what_to_do(tmp_path: Path, case: Case) -> None:
    judged = judge(case, tmp_path)
    assert judged.verdict is (Verdict.HELPED if "pmon" in case.name else Verdict.RIGHT), judged.words


@pytest.mark.parametrize("case", _named(MISTAKES, _MISTAKES), ids=lambda case: case.name)
def test_mistakes_are_refused_with_what_to_do(tmp_path: Path, case: Case) -> None:
    judged = judge(case, tmp_path)
    assert judged.verdict is Verdict.HELPED, judged.words
