"""The two pictures of docs/results/predictor.md."""

from __future__ import annotations

from pathlib import Path
from statistics import NormalDist

import matplotlib as mpl
import numpy as np

from gpusonde.predictor.crossgpu.evaluation import LatencyEvaluation, LatencyProtocol

mpl.use("Agg")
import matplotlib.pyplot as plt

_TITLES = {
    LatencyProtocol.RANDOM: "random pairs",
    LatencyProtocol.CONFIG: "unseen configuration",
    LatencyProtocol.CNN: "unseen CNN",
    LatencyProtocol.TARGET: "unseen target GPU",
    LatencyProtocol.BOTH: "both GPUs unseen",
    LatencyProtocol.STATIC: "GPU unseen, no metrics",
}


def draw_scatter(results: dict[LatencyProtocol, LatencyEvaluation], path: Path) -> None:
    """Predicted against measured seconds, one panel per protocol, coloured by target GPU."""
    shown = [protocol for protocol in results if protocol is not LatencyProtocol.RANDOM]
    figure, axes = plt.subplots(1, len(shown), figsize=(3.6 * len(shown), 3.8), squeeze=False, sharey=True)
    for axis, protocol in zip(axes[0], shown, strict=True):
        errors = results[protocol].errors
        for gpu in np.unique(errors.target_gpu):
            mask = errors.target_gpu == gpu
            axis.plot(errors.measured_s[mask], errors.predicted_s[mask], ".", markersize=3, label=str(gpu))
        limits = (0.3, 200)
        axis.plot(limits, limits, color="black", linewidth=0.6)
        axis.set(xscale="log", yscale="log", xlim=limits, ylim=limits, xlabel="measured (s)")
        axis.set_title(f"{_TITLES[protocol]}: {100 * results[protocol].overall.mape:.1f} %", fontsize=9)
    axes[0][0].set_ylabel("predicted (s)")
    axes[0][0].legend(fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def draw_reliability(results: dict[LatencyProtocol, LatencyEvaluation], path: Path) -> None:
    """Share of measurements inside intervals scaled to other nominal coverages than the 90 % they are made for."""
    nominal = np.linspace(0.1, 0.98, 45)
    figure, axis = plt.subplots(figsize=(4.4, 4.0))
    axis.plot((0, 1), (0, 1), color="black", linewidth=0.6)
    for protocol, result in results.items():
        errors = result.errors
        half_width = np.log(errors.high_s / errors.predicted_s)
        distance = np.abs(np.log(errors.measured_s / errors.predicted_s)) / half_width
        scale = np.array([NormalDist().inv_cdf(0.5 + value / 2) for value in nominal]) / NormalDist().inv_cdf(0.95)
        axis.plot(nominal, [(distance <= factor).mean() for factor in scale], label=_TITLES[protocol])
    axis.axvline(0.9, color="grey", linewidth=0.6, linestyle=":")
    axis.set(
        xlabel="nominal coverage (90 % interval scaled as a normal one)",
        ylabel="measured inside",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    axis.legend(fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
