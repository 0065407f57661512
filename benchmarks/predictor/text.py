"""How figures are written in the results."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np

from gpusonde.predictor.crossgpu.evaluation import LatencyEvaluation


def log(name: str, result: LatencyEvaluation) -> LatencyEvaluation:
    print(f"{time.strftime('%H:%M:%S')} {name}: {percent(result.overall.mape)}", flush=True)
    return result


def percent(value: float, digits: int = 1) -> str:
    return "" if np.isnan(value) else f"{100 * value:.{digits}f} %"


def with_spread(result: LatencyEvaluation) -> str:
    """MAPE over all predictions, with the standard deviation over seeds where there are several."""
    seeds = [scores.mape for scores in result.by_seed]
    text = f"{100 * result.overall.mape:.1f}"
    return f"{text} ± {100 * np.std(seeds, ddof=1):.1f} %" if len(seeds) > 1 else f"{text} %"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)]) + "\n"
