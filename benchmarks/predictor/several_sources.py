"""One job that ran on more than one GPU: its predictions for a target, combined. No command needs it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gpusonde.predictor.crossgpu import LatencyPrediction


def combine_predictions(predictions: Sequence[LatencyPrediction]) -> LatencyPrediction:
    """Combine predictions for one target from several sources.

    A measurement on the target itself wins. Otherwise predictions that are not extrapolated are preferred, and what is
    left is averaged in log space with weights of 1 / width squared. The interval keeps the width of the narrowest: the
    sources' errors share the target's own peculiarity, so averaging does not narrow them as independent ones.

    Args:
        predictions: One per source, all for the same target.

    Raises:
        ValueError: There are none, or they are for different targets.
    """
    targets = {prediction.target_gpu for prediction in predictions}
    if len(targets) != 1:
        raise ValueError(f"predictions for one target are needed, not for {sorted(targets) or 'none'}")
    usable = [prediction for prediction in predictions if math.isfinite(prediction.epoch_latency_s)]
    if not usable:
        return predictions[0]
    measured = [prediction for prediction in usable if prediction.method == "measured"]
    certain = [prediction for prediction in usable if prediction.status == "ok"]
    chosen = measured or certain or usable
    if len(chosen) == 1:
        return chosen[0]
    half_widths = [math.log(p.epoch_latency_high_s / p.epoch_latency_s) for p in chosen]
    # A measured latency that is exact has no width; the floor keeps weights finite and lets it win.
    weights = [1.0 / max(half_width, 1e-6) ** 2 for half_width in half_widths]
    logarithms = [math.log(p.epoch_latency_s) for p in chosen]
    latency = math.exp(sum(w * x for w, x in zip(weights, logarithms, strict=True)) / sum(weights))
    narrowest = min(half_widths)
    best = chosen[half_widths.index(narrowest)]
    method = "measured" if measured else f"{best.method}, mean of {len(chosen)} sources"
    return replace(
        best,
        epoch_latency_s=latency,
        epoch_latency_low_s=latency * math.exp(-narrowest),
        epoch_latency_high_s=latency * math.exp(narrowest),
        method=method,
    )
