"""Whole families left out: how far off answers are, and whether they say so.

Off by 3x: more than three times the measurement, or less than a third. Counted are such rows without the flag "out of
distribution" in leave one family out, and the flag in leave one architecture out, where it is not wanted.
"""

from __future__ import annotations

import argparse

import accuracy
import numpy as np
import profet_rows
import rows as cut
import torchvision_rows
from page import bar, percent, table

from gpusonde.predictor.workload.engine import WorkloadEvaluation, WorkloadProtocol

_COLUMNS = ("family left out", "rows", "error", "off by 3x", "flagged", "off by 3x and not flagged")


def section(args: argparse.Namespace) -> list[str]:
    """Lines of the section, bars noted in ``args``."""
    lines = []
    silent, asked, raised, known, far_off, unseen = 0, 0, 0, 0, 0, 0
    for name, rows in ((torchvision_rows.NAME, cut.torchvision(args)), (profet_rows.NAME, cut.profet(args))):
        answers = accuracy.asked(args, name, rows, WorkloadProtocol.FAMILY)
        quiet = answers.far_off & ~answers.flagged
        beside = accuracy.asked(args, name, rows, WorkloadProtocol.ARCHITECTURE)
        silent, asked = silent + int(quiet.sum()), asked + len(quiet)
        raised, known = raised + int(beside.flagged.sum()), known + len(beside.flagged)
        far_off, unseen = far_off + int(beside.far_off.sum()), unseen + int((beside.far_off & ~beside.flagged).sum())
        worst, some = max(answers.by_fold().items(), key=lambda fold: float(answers.errors[fold[1]].mean()))
        lines.append(_line(f"{name}: {worst}, the worst of {len(answers.by_fold())}", answers, some))
        lines.append(_line(f"**{name}, all**", answers, np.ones(len(quiet), dtype=bool)))
    measured = f"{silent} of {asked}"
    bar(args, "leave one family out, off by more than 3x without the flag", "0", measured, met=not silent)
    share = raised / known
    bar(args, "the flag on leave-one-architecture-out rows", "<= 10 %", percent(share), met=share <= 0.1)
    said = f"With one architecture left out {far_off} of these rows is off by 3x, {unseen} without the flag."
    return ["## Families", "", *table(_COLUMNS, lines), said, ""]


def _line(name: str, answers: WorkloadEvaluation, some: np.ndarray) -> tuple[object, ...]:
    far_off, flagged = answers.far_off[some], answers.flagged[some]
    found = answers.errors[some]
    return (
        name,
        len(found),
        percent(float(found.mean())),
        int(far_off.sum()),
        percent(float(flagged.mean())),
        int((far_off & ~flagged).sum()),
    )
