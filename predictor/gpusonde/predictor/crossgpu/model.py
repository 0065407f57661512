"""``LatencyModel``: the default predictor, log ratio = prior + residual, with intervals for the regime at hand.

``Query`` answers one question: the level that its metrics allow, the regime of each target, number and interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from gpusonde.catalog import GpuSpec, Precision
from gpusonde.errors import MeasurementError, ModelError, TooFewRunsError
from gpusonde.predictor.crossgpu.calibrator import Calibrator
from gpusonde.predictor.crossgpu.features import REQUIRED_METRICS, SOURCE_FEATURE_COUNT, feature_matrix, has_figures
from gpusonde.predictor.crossgpu.measurement import LatencyPrediction, SourceMeasurement
from gpusonde.predictor.crossgpu.neighbourhood import (
    GpuNeighbourhood,
    Regime,
    RunNeighbourhood,
    TrainedGpu,
    rate_uncertainty,
)
from gpusonde.predictor.crossgpu.pairs import Pairs
from gpusonde.predictor.crossgpu.persistence import LARGEST_MODEL_BYTES, read_model, write_model
from gpusonde.predictor.crossgpu.prior import (
    MetricLevel,
    Roofline,
    has_activity,
    log_cautious_ratio,
    log_latency_ratio,
    metric_level,
    roofline,
)
from gpusonde.predictor.crossgpu.regression import ResidualModel
from gpusonde.predictor.crossgpu.runs_table import IndexArray, RunsTable
from gpusonde.predictor.crossgpu.state import LatencyModelState, ModelSettings

_MEASURED = "measured"


FloatArray = npt.NDArray[np.float64]

_MINIMUM_EPOCHS = 2
# An interval whose ends are further apart than this factor says little, whatever it was calibrated on.
_WIDE = 2.0
# Where two precisions that the run may have had differ by more, the answer for the other one is told too.
_NOTABLE = 1.1
_SINGLE = (Precision.FP32, Precision.TF32)
# Beyond this many usual distances the learned part has nothing to say about a run.
_DISTANCE_LIMIT = 2.0
_MOST_INFLATION = 3.0


@dataclass(frozen=True)
class _RatioEstimate:
    """Log ratio to the source's latency, with what is to be said about it."""

    log_ratio: float
    half_width: float
    method: str
    extrapolated: bool
    reasons: tuple[str, ...]


class Query:
    """One measurement put to one fitted model."""

    def __init__(
        self, settings: ModelSettings, state: LatencyModelState, version: str, source: SourceMeasurement
    ) -> None:
        """Keep the question."""
        self._settings, self._state, self._version, self._source = settings, state, version, source

    def predict(self, targets: Sequence[GpuSpec]) -> list[LatencyPrediction]:
        """Answer for each target, in order."""
        answers = {
            index: self._answer_same_chip(target) for index, target in enumerate(targets) if self._is_same_chip(target)
        }
        level = metric_level(self._source, REQUIRED_METRICS)
        if level is MetricLevel.NVIDIA_SMI and self._source.precision in (None, *_SINGLE):
            others = [(index, target) for index, target in enumerate(targets) if index not in answers]
            answers.update(self._answer_with_residual(others))
        predictions = []
        for index, target in enumerate(targets):
            try:
                answer = answers.get(index) or self._answer_by_prior(target, level)
            except ValueError as error:
                predictions.append(self._refuse_target(target, str(error)))
            else:
                predictions.append(self._make_prediction(target, answer))
        return predictions

    def _is_same_chip(self, target: GpuSpec) -> bool:
        return TrainedGpu.from_spec(self._source.gpu).is_same_chip(target)

    def _answer_same_chip(self, target: GpuSpec) -> _RatioEstimate:
        """Answer for the GPU that was measured, or a variant of it with, say, more memory: no model adds anything."""
        if target.name == self._source.gpu.name:
            return _RatioEstimate(0.0, 0.0, _MEASURED, False, ())
        # What runs of one workload on one GPU differ by is all that remains.
        spread = self._find_seen_half_width(target, self._state.residual.process.noise)
        return _RatioEstimate(0.0, spread, "same chip", False, ())

    def _answer_with_residual(self, targets: Sequence[tuple[int, GpuSpec]]) -> dict[int, _RatioEstimate]:
        """Answer for the targets that the learned part can say something about, by their index."""
        state, source = self._state, self._source
        usable = [(index, target, len(self._find_unseen(target))) for index, target in targets if has_figures(target)]
        usable = [found for found in usable if found[2] < 2]
        if not usable:
            return {}
        try:
            features = feature_matrix(source, [target for _, target, _ in usable])
        except MeasurementError:
            return {}  # a figure of the source is unknown: the prior needs fewer, or says what is missing
        residuals, deviations = state.residual.predict(features)
        distance = state.runs.relative_distance(features[0, :SOURCE_FEATURE_COUNT])
        line = roofline(source, MetricLevel.NVIDIA_SMI)
        answers = {}
        for (index, target, unseen), residual, deviation in zip(
            usable, residuals.tolist(), deviations.tolist(), strict=True
        ):
            answers[index] = self._answer_learned(target, line, unseen, residual, deviation, distance)
        return answers

    def _answer_learned(
        self, target: GpuSpec, line: Roofline, unseen: int, residual: float, deviation: float, distance: float
    ) -> _RatioEstimate:
        source = self._source
        weight = self._settings.one_unseen_weight if unseen else 1.0
        reasons = []
        if unseen:
            half_width = self._find_half_width(Regime.ONE_UNSEEN_GPU, target) * self._find_inflation(target)
            reasons.append(self._name_unseen(target))
        else:
            half_width = self._find_seen_half_width(target, deviation)
        if distance > 1.0:
            weight *= max(0.0, (_DISTANCE_LIMIT - distance) / (_DISTANCE_LIMIT - 1.0))
            half_width = max(half_width, self._find_half_width(Regime.PRIOR_ONLY, target))
            half_width *= min(distance, _MOST_INFLATION)
            reasons.append(
                f"the run's metrics are {distance:.1f} times as far from the fitted runs as a new workload usually is"
            )
        log_ratio = log_latency_ratio(source, target, line) + weight * residual
        method = "prior + residual" if weight > 0 else "prior only"
        return _RatioEstimate(log_ratio, half_width, method, bool(reasons), tuple(reasons))

    def _answer_by_prior(self, target: GpuSpec, level: MetricLevel) -> _RatioEstimate:
        """Answer by the prior alone: neither GPU was seen, or the metrics do not suffice for more.

        Raises:
            ValueError: A peak rate of one of the GPUs is not known.
        """
        state, source = self._state, self._source
        if level is MetricLevel.NVIDIA_SMI and has_activity(source):
            # Nothing learned applies, so the metrics that split the work between memory and compute decide.
            level = MetricLevel.DCGM
        line = roofline(source, level)
        if level in (MetricLevel.STATIC, MetricLevel.UTILIZATION):
            log_ratio = log_cautious_ratio(source, target, line)
        else:
            log_ratio = log_latency_ratio(source, target, line)
        half_width = self._find_half_width(Regime.PRIOR_ONLY, target)
        if level is not MetricLevel.NVIDIA_SMI:
            # No measurement tells how good the other levels are: as wide as if nothing dynamic were known.
            half_width = max(half_width, self._find_half_width(Regime.STATIC_ONLY, target))
        reasons = []
        seen = state.gpus.seen(source.gpu) and state.gpus.seen(target)
        if not seen:
            half_width *= self._find_inflation(target)
            reasons.append(self._name_unseen(target))
        missing = [name for name in REQUIRED_METRICS if name not in source.metrics]
        if missing:
            reasons.append(f"no {', '.join(missing)} from the source, so nothing learned applies")
        other_precision = source.precision not in (None, *_SINGLE)
        if other_precision and source.precision:
            reasons.append(f"the model was fitted on single precision, this is {source.precision.value}")
        if level is MetricLevel.DCGM:
            reasons.append("weights from DCGM activity metrics are unvalidated")
        method = f"prior only, {level.value}" if level is not MetricLevel.NVIDIA_SMI else "prior only"
        extrapolated = not seen or other_precision or level is MetricLevel.DCGM
        return _RatioEstimate(log_ratio, half_width, method, extrapolated, tuple(reasons))

    def _find_half_width(self, regime: Regime, target: GpuSpec) -> float:
        """Return the half width where only data sheets of GPUs are known; the prior's where the regime has none."""
        state = self._state
        calibrated = regime in state.calibrations
        learned = regime is Regime.ONE_UNSEEN_GPU and calibrated
        gpus = self._find_unseen(target) if learned else [self._source.gpu, target]
        calibration = state.calibrations[regime if calibrated else Regime.PRIOR_ONLY]
        return calibration.quantile * rate_uncertainty(*map(TrainedGpu.from_spec, gpus))

    def _find_seen_half_width(self, target: GpuSpec, deviation: float) -> float:
        calibration = self._state.calibrations.get(Regime.SEEN_GPUS)
        return (
            self._find_half_width(Regime.PRIOR_ONLY, target)
            if calibration is None
            else calibration.quantile * deviation
        )

    def _find_unseen(self, target: GpuSpec) -> list[GpuSpec]:
        return [gpu for gpu in (self._source.gpu, target) if not self._state.gpus.seen(gpu)]

    def _find_inflation(self, target: GpuSpec) -> float:
        return max(self._state.gpus.interval_inflation(gpu) for gpu in self._find_unseen(target))

    def _name_unseen(self, target: GpuSpec) -> str:
        return f"the model was not fitted on {' and '.join(gpu.name for gpu in self._find_unseen(target))}"

    def _make_prediction(self, target: GpuSpec, answer: _RatioEstimate) -> LatencyPrediction:
        source, settings = self._source, self._settings
        normal = NormalDist().inv_cdf(0.5 + settings.coverage / 2)
        # The detector's error and the model's are independent; both are about normal in log space.
        half_width = math.hypot(answer.half_width, normal * source.epoch_latency_relative_error)
        latency = source.epoch_latency_s * math.exp(answer.log_ratio)
        reasons = (*answer.reasons, *self._note_precision(target, latency))
        extrapolated = answer.extrapolated
        if math.exp(2 * answer.half_width) > _WIDE and not extrapolated:
            extrapolated = True
            reasons = (
                *reasons,
                f"the ends of the interval lie a factor of {math.exp(2 * answer.half_width):.1f} apart",
            )
        status = "extrapolated" if extrapolated else "ok"
        if source.epoch_count is not None and source.epoch_count < _MINIMUM_EPOCHS:
            status = "insufficient_epochs"
            reasons = (f"the source's latency comes from {source.epoch_count} whole epochs, fewer than two", *reasons)
        return LatencyPrediction(
            target_gpu=target.name,
            epoch_latency_s=latency,
            epoch_latency_low_s=latency * math.exp(-half_width),
            epoch_latency_high_s=latency * math.exp(half_width),
            interval_coverage=settings.coverage,
            status=status,
            extrapolated=extrapolated,
            method=answer.method,
            reason="; ".join(reasons),
            model_version=self._version,
        )

    def _note_precision(self, target: GpuSpec, latency: float) -> list[str]:
        """Say what a GPU computes in instead, and what another setting of a framework would change."""
        source = self._source
        if target.name == source.gpu.name:
            return []
        if source.precision is None:
            other = self._compare_precisions(target, Precision.FP32)
            if not 1 / _NOTABLE <= other <= _NOTABLE:
                seconds = latency * other
                told = f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"
                return [f"taken for TF32 where the GPU has it, {told} s with products in FP32 (precision fp32)"]
            return []
        unit = {gpu.name: gpu.substitute(source.precision) for gpu in (source.gpu, target)}
        return [
            f"{name} has no unit for {source.precision.value}: reckoned as {substitute.value}"
            for name, substitute in unit.items()
            if substitute is not None and source.precision is not Precision.TF32
        ]

    def _compare_precisions(self, target: GpuSpec, other: Precision) -> float:
        """Return how much longer the answer would be if the run's products were computed in another precision."""
        level = metric_level(self._source, REQUIRED_METRICS)
        line = roofline(self._source, level)
        if line.precision is not None:
            return 1.0  # the metrics tell
        ratios = (
            log_latency_ratio(each, target, line) for each in (replace(self._source, precision=other), self._source)
        )
        return math.exp(next(ratios) - next(ratios))

    def _refuse_target(self, target: GpuSpec, reason: str) -> LatencyPrediction:
        return LatencyPrediction(
            target_gpu=target.name,
            epoch_latency_s=math.nan,
            epoch_latency_low_s=math.nan,
            epoch_latency_high_s=math.nan,
            interval_coverage=self._settings.coverage,
            status="unsupported_gpu",
            extrapolated=True,
            method="none",
            reason=reason,
            model_version=self._version,
        )


_SHIPPED = "shipped/latency_model.safetensors"
_MINIMUM_PAIRS = 30
# A GPU on which fewer configurations ran counts as new: what was learned of it may be those configurations' own.
_MINIMUM_CONFIGURATIONS = 5


class LatencyModel:
    """Predicts epoch latency on target GPUs from one run's measurement on a source GPU."""

    def __init__(
        self, settings: ModelSettings | None = None, *, state: LatencyModelState | None = None, version: str = "unsaved"
    ) -> None:
        """Make an unfitted model, or one with a state that was fitted before."""
        self.settings = settings or ModelSettings()
        self._state = state
        self._version = version

    @property
    def version(self) -> str:
        """Name of the fitted content; ``unsaved`` until the model has been saved or loaded."""
        return self._version

    @property
    def state(self) -> LatencyModelState:
        """The fitted state.

        Raises:
            ModelError: There is none yet.
        """
        if self._state is None:
            raise ModelError("the model is not fitted; call fit(), load() or shipped() first")
        return self._state

    def fit(self, runs: RunsTable, *, pairs: tuple[IndexArray, IndexArray] | None = None) -> LatencyModel:
        """Fit to measured runs.

        Args:
            runs: Configurations must have run on at least two GPUs to count.
            pairs: Fit to these pairs only: positions of the source runs and of the target runs, each of shape (n,).

        Returns:
            The model itself.

        Raises:
            TooFewRunsError: Fewer than 30 pairs of runs share a configuration.
        """
        return self.fit_pairs(Pairs.from_runs(runs, pairs))

    def fit_pairs(self, pairs: Pairs, weights: FloatArray | None = None) -> LatencyModel:
        """Fit to pairs of runs, whichever tables they come from.

        Args:
            pairs: The pairs; the model keeps them, so that it can be fitted again with more.
            weights: How much each counts, shape (pairs,), in 0..1; 1 when left out.

        Returns:
            The model itself.

        Raises:
            TooFewRunsError: They are fewer than 30.
        """
        if len(pairs) < _MINIMUM_PAIRS:
            raise TooFewRunsError(
                f"{len(pairs)} pairs of runs share a configuration on two GPUs; at least {_MINIMUM_PAIRS} are needed: "
                "add runs of the same workloads on other GPUs"
            )
        settings = self.settings
        weights = np.ones(len(pairs)) if weights is None else weights
        residual = ResidualModel.fit(pairs.features, pairs.log_ratio - pairs.prior, settings.residual, weights=weights)
        sources, positions = pairs.sources()
        calibrator = Calibrator(
            pairs, settings.residual, residual,
            one_unseen_weight=settings.one_unseen_weight, coverage=settings.coverage, weights=weights,
        )  # fmt: skip
        self._state = LatencyModelState(
            residual=residual,
            calibrations=calibrator.calibrate(settings.regimes),
            runs=RunNeighbourhood.fit(sources, pairs.workload[positions].tolist()),
            gpus=GpuNeighbourhood(pairs.well_known_gpus(_MINIMUM_CONFIGURATIONS)),
            pairs=pairs,
        )
        self._version = "unsaved"
        return self

    def predict(self, source: SourceMeasurement, targets: Sequence[GpuSpec]) -> list[LatencyPrediction]:
        """Predict the epoch latency on each target.

        Returns:
            One prediction per target, in order. A target that cannot be predicted has status ``unsupported_gpu`` and
            NaN latencies; the others are not affected.

        Raises:
            ModelError: The model is neither fitted nor loaded.
        """
        return Query(self.settings, self.state, self._version, source).predict(targets)

    def save(self, path: str | Path) -> str:
        """Write the model into one file, atomically, without pickle.

        Returns:
            The version, which is also this model's from now on.

        Raises:
            ModelError: There is nothing to save.
            OSError: The file cannot be written.
        """
        self._version = write_model(path, self.settings, self.state)
        return self._version

    @classmethod
    def load(cls, path: str | Path) -> LatencyModel:
        """Read a model that :meth:`save` wrote.

        Raises:
            ModelFileError: The file is none, is damaged, or is of a version that this program does not read.
            OSError: The file cannot be read.
        """
        with Path(path).open("rb") as file:
            content = file.read(LARGEST_MODEL_BYTES + 1)
        settings, state, version = read_model(content, str(path))
        return cls(settings, state=state, version=version)

    @classmethod
    def shipped(cls) -> LatencyModel:
        """Load the model that comes with the package; ``MODEL_CARD.md`` beside it says what it was fitted on.

        Raises:
            ModelFileError: The installation is damaged.
        """
        resource = files("gpusonde.predictor.crossgpu").joinpath(_SHIPPED)
        settings, state, version = read_model(resource.read_bytes(), str(resource))
        return cls(settings, state=state, version=version)
