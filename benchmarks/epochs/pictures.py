"""One success, one rightly silent answer and one failure as pictures, from generated traces only."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from compare import OWN, Case, Result
from sets import SET_ASIDE

from gpusonde import formatting
from gpusonde.cli.picture import EpochMarks, draw
from gpusonde.epoch_detect import EpochDetection
from gpusonde.epoch_detect.evaluation import TraceScore

_RIGHT = 0.10

# What makes a trace worth showing; None where it is no such case. The first of the best is shown.
_Rank = Callable[[TraceScore], float | None]


def draw_pictures(
    folder: Path, page_folder: Path, cases: dict[str, list[Case]], results: dict[str, dict[str, Result]]
) -> list[str]:
    """Draw what the set-aside families have to show.

    Args:
        folder: Where the pictures go.
        page_folder: Where the page stands that links to them.
        cases: The sets of the benchmark.
        results: What the detectors answered.

    Returns:
        Lines of the report.
    """
    if SET_ASIDE not in cases:
        return []
    result = results[SET_ASIDE][OWN]
    explanation = (
        "Of generated traces of the set-aside families, chosen by the program. Green: where epochs truly start; red: "
        "those found."
    )
    lines = ["## Three pictures", "", explanation, ""]
    for name, ranks in _KINDS.items():
        picked = next((p for caption, rank in ranks if (p := _best(caption, rank, result.scores))), None)
        path = folder / f"epochs_{name}.png"
        if picked is None:
            path.unlink(missing_ok=True)  # that of an earlier run
            lines += [f"No picture of a {name}: there is none.", ""]
            continue
        caption, i = picked
        _draw(path, cases[SET_ASIDE][i], result.found[i])
        family = result.scores[i].shape.replace("_", " ")
        link = Path(os.path.relpath(path, page_folder)).as_posix()
        lines += [f"**{name.capitalize()}**: {caption} ({family}).", "", f"![{caption}, {family}]({link})", ""]
    return lines


def _best(caption: str, rank: _Rank, scores: list[TraceScore]) -> tuple[str, int] | None:
    ranked = [(worth, -i) for i, s in enumerate(scores) if (worth := rank(s)) is not None]
    return (caption, -max(ranked)[1]) if ranked else None


def _rightly_answered(s: TraceScore) -> float | None:
    return s.confidence if s.ape is not None and s.ape <= _RIGHT else None


def _rightly_silent(s: TraceScore) -> float | None:
    return 1.0 if s.ape is None and s.period_s is None else None


def _wrongly_answered(s: TraceScore) -> float | None:
    is_wrong = s.verdict == "epochs" if s.ape is None else s.period_s is not None and s.ape > _RIGHT
    return s.confidence if is_wrong else None


def _wrongly_silent(s: TraceScore) -> float | None:
    return 1.0 if s.ape is not None and s.period_s is None else None


_KINDS: dict[str, list[tuple[str, _Rank]]] = {
    "success": [("the most confident right answer", _rightly_answered)],
    "none": [("a trace without epochs, and none found", _rightly_silent)],
    "failure": [
        ("the most confident wrong answer", _wrongly_answered),
        ("epochs that were not found; no answer was wrong", _wrongly_silent),
    ],
}


def _draw(path: Path, case: Case, found: EpochDetection) -> None:
    _, trace, truth = case
    family = truth.shape.replace("_", " ")
    true = " or ".join(formatting.seconds(period) for period in truth.periods_s) or "no epochs"
    answer = str(found.verdict)
    if np.isfinite(found.period_s):
        interval = formatting.interval(found.period_low_s, found.period_high_s)
        answer += f" of {formatting.seconds(found.period_s)} (95 % interval {interval} s)"
    else:
        answer += f" ({found.reason})"
    marks = EpochMarks(
        starts_s=found.epoch_starts_s,
        ends_s=found.epoch_ends_s,
        headline=f"Generated trace ({family}), true: {true}",
        detail=f"found (red): {answer} · confidence {formatting.probability(found.confidence)} · "
        "green: true epoch starts",
        true_starts_s=np.array(truth.epoch_starts_s),
    )
    draw(path, trace, marks)
