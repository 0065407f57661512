"""One success, one rightly silent answer and one failure as pictures, from generated traces only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import sets

from gpusonde.epoch_detect import EpochDetection, detect
from gpusonde.epoch_detect.evaluation import TraceScore, score
from gpusonde.telemetry import Trace

mpl.use("Agg")
import matplotlib.pyplot as plt

_TRUE, _FOUND = "#2e8b57", "#c8452d"
_Case = tuple[str, Trace, sets.Truth]


def draw_pictures(folder: Path, per_family: int) -> list[str]:
    """Draw what the set-aside families have to show.

    Returns:
        Lines of the report.
    """
    scored = []
    for trace_id, trace, truth in sets.set_aside_traces(per_family):
        found = detect(trace)
        scored.append(((trace_id, trace, truth), found, score(trace_id, found, truth)))
    kinds: list[tuple[str, str, Callable[[TraceScore], float | None]]] = [
        ("success", "the most confident right answer", lambda s: s.confidence if _is_right(s) else None),
        ("none", "a negative without an answer", lambda s: 1.0 if s.ape is None and s.period_s is None else None),
        ("failure", "the most confident wrong answer", lambda s: s.confidence if _is_wrong(s) else None),
    ]
    lines = [
        "## Three pictures",
        "",
        "From the set-aside families (generated): green the true epochs, red those found.",
        "",
    ]
    for name, caption, rank in kinds:
        ranked = [(worth, i) for i, (_, _, s) in enumerate(scored) if (worth := rank(s)) is not None]
        if not ranked:
            lines += [f"No picture for: {caption}; there was none.", ""]
            continue
        case, found, _ = scored[max(ranked, key=lambda pair: (pair[0], -pair[1]))[1]]
        path = folder / f"epochs_{name}.png"
        _draw(path, case, found)
        lines += [
            f"{caption.capitalize()}: {case[2].shape.replace('_', ' ')}",
            "",
            f"![{caption}](../images/{path.name})",
            "",
        ]
    return lines


def _is_right(s: TraceScore) -> bool:
    return s.ape is not None and s.ape <= 0.1


def _is_wrong(s: TraceScore) -> bool:
    return s.period_s is not None and not _is_right(s) and not (s.ape is None and s.verdict == "short_cycle")


def _draw(path: Path, case: _Case, found: EpochDetection) -> None:
    _, trace, truth = case
    figure, axes = plt.subplots(len(trace.metrics), 1, figsize=(11, 1.2 + 1.4 * len(trace.metrics)), sharex=True)
    for axis, name in zip([axes] if len(trace.metrics) == 1 else axes, trace.metrics, strict=True):
        axis.plot(trace.time_s, trace.values[name], lw=0.5, color="#2f6f9f")
        axis.set_ylabel(name, fontsize=8)
        for start in truth.epoch_starts_s:
            axis.axvline(start, color=_TRUE, lw=1.6, alpha=0.6)
        for start in (*found.epoch_starts_s, *found.epoch_ends_s[-1:]):
            axis.axvline(start, color=_FOUND, lw=0.9, ls="--")
        axis.set_xlabel("time (s)")
        axis.label_outer()
    true = " or ".join(f"{period:.3g} s" for period in truth.periods_s) or "no epochs"
    answer = found.verdict
    if found.period_s == found.period_s:
        low, high = found.period_low_s, found.period_high_s
        answer += (
            f" of {found.period_s:.3g} s (95 % interval {low:.3g} to {high:.3g} s), confidence {found.confidence:.2f}"
        )
    figure.suptitle(f"generated trace, {truth.shape.replace('_', ' ')}: true {true}; found: {answer}", fontsize=9)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    plt.close(figure)
