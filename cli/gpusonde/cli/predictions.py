"""Predictions as the commands show them: one shape, whether a local model or a collector answered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpusonde.cli import wording
from gpusonde.cli.output import Screen
from gpusonde.predictor.crossgpu import LatencyPrediction

if TYPE_CHECKING:
    from gpusonde.collector.client.query.results import PredictionSet


@dataclass(frozen=True)
class Predictions:
    """What a run would take on other GPUs.

    Attributes:
        source_gpu: Canonical name of the GPU the run was measured on.
        epoch_latency_s: Seconds per epoch there.
        rows: One prediction per target.
        model_version: Version of the model that answered.
        notes: What ambiguous names were taken for.
        measured_s: Target GPU -> epoch latency measured there, where somebody knows it.
    """

    source_gpu: str
    epoch_latency_s: float
    rows: Sequence[LatencyPrediction]
    model_version: str
    notes: Sequence[str] = ()
    measured_s: Mapping[str, float] = field(default_factory=dict)

    def payload(self) -> dict[str, Any]:
        """The predictions as they appear in JSON."""
        return {
            "source_gpu_model": self.source_gpu,
            "source_epoch_latency_s": self.epoch_latency_s,
            "model_version": self.model_version,
            "notes": list(self.notes),
            "predictions": [self._row(row) for row in self.rows],
        }

    def _row(self, row: LatencyPrediction) -> dict[str, Any]:
        measured = self.measured_s.get(row.target_gpu)
        return {
            "gpu_model": row.target_gpu,
            "epoch_latency_s": row.epoch_latency_s,
            "epoch_latency_low_s": row.epoch_latency_low_s,
            "epoch_latency_high_s": row.epoch_latency_high_s,
            "interval_coverage": row.interval_coverage,
            "status": row.status,
            "extrapolated": row.extrapolated,
            "method": row.method,
            "reason": row.reason or None,
            "measured_epoch_latency_s": measured,
            "relative_error": None if measured is None else row.epoch_latency_s / measured - 1.0,
        }

    def render(self, screen: Screen) -> None:
        """Print the predictions, fastest first."""
        for note in self.notes:
            screen.note(f"note: {note}")
        screen.heading(f"one epoch takes {wording.seconds(self.epoch_latency_s)} on {self.source_gpu}")
        coverage = self.rows[0].interval_coverage if self.rows else math.nan
        measured = ("measured (s)", "error") if self.measured_s else ()
        latency = ("epoch latency (s)", f"{wording.percent(coverage)} interval (s)")
        screen.table(
            ("GPU", *latency, *measured, "extrapolated", "method", "remark"),
            [
                (
                    row.target_gpu,
                    wording.number(row.epoch_latency_s),
                    wording.interval(row.epoch_latency_low_s, row.epoch_latency_high_s),
                    *(self._measured_cells(row) if measured else ()),
                    wording.yes_no(row.extrapolated),
                    row.method,
                    row.reason,
                )
                for row in fastest_first(self.rows)
            ],
            numeric=(*latency, *measured),
            optional=("remark", "method"),
        )
        screen.line(f"model {self.model_version}")

    def _measured_cells(self, row: LatencyPrediction) -> tuple[str, str]:
        measured = self.measured_s.get(row.target_gpu)
        if measured is None:
            return wording.ABSENT, wording.ABSENT
        return wording.number(measured), f"{100 * (row.epoch_latency_s / measured - 1):+.0f} %"


def from_answer(
    answer: PredictionSet, notes: Sequence[str] = (), measured_s: Mapping[str, float] = MappingProxyType({})
) -> Predictions:
    """What a collector answered, in the same shape."""
    rows = [
        LatencyPrediction(
            target_gpu=row.gpu_model,
            epoch_latency_s=row.epoch_latency_s,
            epoch_latency_low_s=row.epoch_latency_low_s,
            epoch_latency_high_s=row.epoch_latency_high_s,
            interval_coverage=row.interval_coverage,
            status=row.status,
            extrapolated=row.extrapolated,
            method=row.method,
            reason=row.reason,
            model_version=answer.model_version,
        )
        for row in answer.predictions
    ]
    return Predictions(
        source_gpu=answer.source_gpu_model,
        epoch_latency_s=answer.source_epoch_latency_s,
        rows=rows,
        model_version=answer.model_version,
        notes=notes,
        measured_s=measured_s,
    )


def fastest_first(rows: Sequence[LatencyPrediction]) -> list[LatencyPrediction]:
    """Sort by latency; those that could not be predicted last."""
    return sorted(rows, key=lambda row: (math.isnan(row.epoch_latency_s), row.epoch_latency_s, row.target_gpu))
