"""What models say about Sia's configurations, from four single-GPU probes and half of the placements at one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import sia
from exchange_calibration import CalibrationKind, ExchangeCalibration, MeasuredIteration
from simulator_baselines import ApmGroup, apm_iteration_s

from gpusonde.simulator.compute import ComputeProbe, fit_compute_curve

OURS, SEED, APM = "gpusonde", "the seed's models", "APM"
_LEAST_BATCH_SIZES = 4
# What APM needs: bytes of all gradients (single precision, from the networks' published sizes), and rated bandwidths in
# bytes per second of a machine's network, or of PCI Express for the cluster that is one machine.
GRADIENT_BYTES = {
    "bert": 440e6, "cifar10": 45e6, "deepspeech2": 110e6, "imagenet": 102e6, "ncf": 30e6, "yolov3": 248e6,
}  # fmt: skip
RATED = {"aws": 50e9 / 8, "rtx": 50e9 / 8, "dgx": 200e9 / 8, "quad": 20e9}
_SEEN_BEYOND = 1.01  # batch sizes above the largest single-GPU one may not fit


@dataclass(frozen=True)
class Known:
    """What the models are given of one network on one cluster: rows of a single GPU, and of several."""

    probes: tuple[sia.StepTime, ...] = ()
    calibrating: tuple[sia.StepTime, ...] = ()

    def plus(self, row: sia.StepTime) -> Known:
        """Return it with one more row."""
        if row in self.probes + self.calibrating:
            return self
        if row.world_size == 1:
            return replace(self, probes=(*self.probes, row))
        return replace(self, calibrating=(*self.calibrating, row))

    def predict(self, rows: Sequence[sia.StepTime], kind: CalibrationKind = "default") -> list[float]:
        """Return the seconds of a step of each row."""
        if not self.calibrating:
            curve = fit_compute_curve(_probes(self.probes), kind)
            return [float(curve.predict(row.batch_size).total_s[0]) for row in rows]
        measured = [MeasuredIteration(row.nodes, row.batch_size, row.step_s) for row in self.calibrating]
        calibration = ExchangeCalibration(_probes(self.probes), measured, kind=kind)
        seconds: dict[sia.StepTime, float] = {}
        for nodes in {row.nodes for row in rows}:
            own = [row for row in rows if row.nodes == nodes]
            predicted = calibration.predict(nodes, [row.batch_size for row in own]).seconds
            seconds |= {row: float(each) for row, each in zip(own, predicted, strict=True)}
        return [seconds[row] for row in rows]


@dataclass(frozen=True)
class Estimates:
    """A measured configuration and what is said about it.

    Attributes:
        row: The configuration.
        step_s: Seconds of a step by model.
        known: What the models were given.
    """

    row: sia.StepTime
    step_s: dict[str, float]
    known: Known = Known()

    @property
    def given(self) -> bool:
        """Whether the models were given this very configuration."""
        return self.row in self.known.probes + self.known.calibrating


def estimates_of(
    rows: Sequence[sia.StepTime], half: int | np.random.Generator = 0, *, all_known: bool = False
) -> list[Estimates]:
    """Return the configurations of clusters with a price and of networks of known size, with estimates.

    Args:
        rows: Measured configurations.
        half: Which placements of a cluster are known: see ``sia.halves``.
        all_known: Give the models every row instead, to see what is left then.
    """
    found = []
    curves = {(row.network, row.cluster) for row in rows if row.cluster in RATED and row.network in GRADIENT_BYTES}
    for network, cluster in sorted(curves):
        own = [row for row in rows if (row.network, row.cluster) == (network, cluster)]
        alone = sorted((row for row in own if row.world_size == 1), key=lambda row: row.batch_size)
        if len(alone) < _LEAST_BATCH_SIZES:
            continue
        own = [row for row in own if row.batch_size <= alone[-1].batch_size * _SEEN_BEYOND]
        probes = [alone[place] for place in sia.probe_places([row.batch_size for row in alone])]
        placements = sorted({row.nodes for row in own if row.world_size > 1})
        known = set(sia.halves(placements, half)[0])
        calibrating = [
            min((row for row in own if row.nodes == nodes), key=lambda row: row.batch_size)
            for nodes in placements
            if nodes in known
        ]
        if all_known:
            probes, calibrating = alone, [row for row in own if row.world_size > 1]
        given = Known(tuple(probes), tuple(calibrating))
        said = {
            OURS: given.predict(own),
            SEED: given.predict(own, "paper"),
            APM: _apm(own, probes),
        }
        found += [
            Estimates(row, {model: seconds[place] for model, seconds in said.items()}, given)
            for place, row in enumerate(own)
        ]
    return found


def _probes(rows: Sequence[sia.StepTime]) -> list[ComputeProbe]:
    return [ComputeProbe(row.batch_size, row.step_s) for row in rows]


def _apm(rows: Sequence[sia.StepTime], probes: Sequence[sia.StepTime]) -> list[float]:
    line = _probes(probes)
    return [
        apm_iteration_s(
            [ApmGroup(line, row.world_size, row.batch_size, RATED[row.cluster])], GRADIENT_BYTES[row.network]
        )
        for row in rows
    ]
