"""``LatencyModel``: the default predictor, log ratio = prior + residual, with intervals for the regime at hand.

``Query`` answers one question: the level that its metrics allow, the regime of each target, number and interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
    dominates,
    interpolate_rising,
    rate_uncertainty,
)
from gpusonde.predictor.crossgpu.pairs import Pairs
from gpusonde.predictor.crossgpu.persistence import LARGEST_MODEL_BYTES, read_model, write_model
from gpusonde.predictor.crossgpu.prior import (
    MetricLevel,
    Roofline,
    has_activity,
    log_cautious_ratio,
    log_idle_effect,
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
# A GPU that is at least as good in everything and comes out slower by more wants a word.
_SLOWER = 1.01
# Nor is it slower by more than this: 1.3 % of 1,342 timings with a licence are, 1.2 % of the fitted runs.
_SLOWEST = 1.2
# Data sheets alone know distant GPUs nearly as well as near ones. With the cube root intervals hold 90 % of the timings
# with a licence on the K80, the one among these that lies outside of the fitted GPUs; all else is narrower or wider.
_STATIC_INFLATION = 1 / 3
# A GPU whose FP64 units are fewer than one for so many lanes may be slower than one that it is better than otherwise.
_FEW_FP64 = 4.0
_SINGLE = (Precision.FP32, Precision.TF32)
# Shares of a GPU's memory: driver and framework need the rest; who holds more than the other may have reserved it.
_SURELY_FITS, _ALL_TAKEN = 0.9, 0.85
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


@dataclass(frozen=True)
class _Anchors:
    """What is said of the GPUs that the model was fitted on, the source among them; others are answered between them.

    What the learned part says of a GPU that it has not seen follows trees and distances into nowhere: of two new GPUs
    the better one came out slower in one case of fourteen. Between the answers for those that it has seen, as a
    function of the prior's, it does not, and held-out GPUs are answered no worse (docs/results/predictor.md).

    Attributes:
        gpus: The GPUs.
        prior: Log ratio for each by the prior, shape (gpus,).
        answers: And with what the prior leaves over, shape (gpus,).
    """

    gpus: tuple[GpuSpec, ...]
    prior: FloatArray
    answers: FloatArray

    @classmethod
    def make(
        cls, source: SourceMeasurement, line: Roofline, known: Sequence[GpuSpec], residuals: FloatArray
    ) -> _Anchors:
        """Put the source, whose log ratio is 0, beside the known GPUs and what the prior leaves over for each."""
        prior = np.array([0.0, *(log_latency_ratio(source, gpu, line) for gpu in known)])
        return cls((source.gpu, *known), prior, prior + np.array([0.0, *residuals]))

    def answer(self, targets: Sequence[GpuSpec], priors: Sequence[float]) -> list[float]:
        """Answer for GPUs that the model was not fitted on, from their log ratios by the prior.

        None comes out faster than a known GPU that has nothing less than it, nor slower than one that it has nothing
        less than; where the answers for these contradict each other, it lies in the middle between them.
        """
        answers: list[float] = interpolate_rising(self.prior, self.answers, np.array(priors)).tolist()
        for index, target in enumerate(targets):
            known = list(zip(self.gpus, self.answers.tolist(), strict=True))
            low = max((answer for gpu, answer in known if dominates(gpu, target)), default=-math.inf)
            high = min((answer for gpu, answer in known if dominates(target, gpu)), default=math.inf)
            answers[index] = min(max(answers[index], low), high) if low <= high else (low + high) / 2
        return answers


class Query:
    """One measurement put to one fitted model."""

    def __init__(
        self, settings: ModelSettings, state: LatencyModelState, version: str, source: SourceMeasurement
    ) -> None:
        """Keep the question."""
        self._settings, self._state, self._version, self._source = settings, state, version, source
        # Keyed by identity: equal data sheets take longer to compare than to look up among the fitted GPUs.
        self._unseen: dict[int, list[GpuSpec]] = {}

    def predict(self, targets: Sequence[GpuSpec]) -> list[LatencyPrediction]:
        """Answer for each target, in order."""
        answers = {
            index: self._answer_same_chip(target) for index, target in enumerate(targets) if self._is_same_chip(target)
        }
        level = metric_level(self._source, REQUIRED_METRICS)
        if level is MetricLevel.NVIDIA_SMI and self._source.precision in (None, *_SINGLE):
            others = [(index, target) for index, target in enumerate(targets) if index not in answers]
            answers.update(self._explain_order(targets, self._answer_with_residual(others)))
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
        return self._source_chip.is_same_chip(target)

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
        # Of targets that were fitted on the learned part is asked directly; of others where a run is unseen too.
        asked = [target for _, target, unseen in usable if not unseen or not self._source_is_seen]
        known: list[GpuSpec] = []
        if len(asked) < len(usable):
            known = [gpu for gpu in state.gpus.data_sheets if has_figures(gpu) and not self._is_same_chip(gpu)]
        try:
            features = feature_matrix(source, [*asked, *known])
        except MeasurementError:
            return {}  # a figure of the source is unknown: the prior needs fewer, or says what is missing
        if not len(features):
            return {}
        residuals, deviations = state.residual.predict(features)
        distance = state.runs.relative_distance(features[0, :SOURCE_FEATURE_COUNT])
        line = roofline(source, MetricLevel.NVIDIA_SMI)
        trust = 1.0 if distance <= 1.0 else max(0.0, (_DISTANCE_LIMIT - distance) / (_DISTANCE_LIMIT - 1.0))
        own = iter(zip(residuals.tolist(), deviations.tolist(), strict=True))
        priors = [log_latency_ratio(source, target, line) for _, target, _ in usable]
        new = [place for place, (_, _, unseen) in enumerate(usable) if unseen and self._source_is_seen]
        between: Iterator[float] = iter(())
        if new:
            anchors = _Anchors.make(source, line, known, trust * residuals[len(asked) :])
            between = iter(anchors.answer([usable[place][1] for place in new], [priors[place] for place in new]))
        answers = {}
        for (index, target, unseen), prior in zip(usable, priors, strict=True):
            deviation = math.nan
            if unseen and self._source_is_seen:
                log_ratio = next(between)
            else:
                residual, deviation = next(own)
                log_ratio = prior + (self._settings.one_unseen_weight if unseen else 1.0) * trust * residual
            answers[index] = self._describe_learned(target, log_ratio, bool(unseen), deviation, distance)
        return answers

    def _describe_learned(
        self, target: GpuSpec, log_ratio: float, unseen: bool, deviation: float, distance: float
    ) -> _RatioEstimate:
        reasons = []
        if unseen:
            half_width = self._find_half_width(Regime.ONE_UNSEEN_GPU, target) * self._find_inflation(target)
            reasons.append(self._name_unseen(target))
        else:
            half_width = self._find_seen_half_width(target, deviation)
        if distance > 1.0:
            half_width = max(half_width, self._find_half_width(Regime.PRIOR_ONLY, target))
            half_width *= min(distance, _MOST_INFLATION)
            reasons.append(
                f"the run's metrics are {distance:.1f} times as far from the fitted runs as a new workload usually is"
            )
        method = "prior + residual" if distance < _DISTANCE_LIMIT else "prior only"
        return _RatioEstimate(log_ratio, half_width, method, unseen or distance > 1.0, tuple(reasons))

    def _explain_order(
        self, targets: Sequence[GpuSpec], answers: dict[int, _RatioEstimate]
    ) -> dict[int, _RatioEstimate]:
        """Say so where, of the source and the targets, a GPU is slower than one that has nothing more than it."""
        source = self._source.gpu
        every = [(targets[i], its.log_ratio) for i, its in answers.items()]
        # New GPUs are in order among themselves.
        fitted = [each for each in every if not self._is_new(each[0])]
        explained = {}
        for index, answer in answers.items():
            target = targets[index]
            told = [
                f"slower than on {other.name} though it has nothing less"
                for other, log_ratio in ((source, 0.0), *(fitted if self._is_new(target) else every))
                if answer.log_ratio - log_ratio > math.log(_SLOWER) and dominates(target, other)
            ]
            if answer.log_ratio < -math.log(_SLOWER) and dominates(source, target):
                told.append(f"faster than on {source.name} though it has nothing more")
            why = f"{' and '.join(told)}: so were fitted runs like this one that the host kept waiting"
            explained[index] = replace(answer, reasons=(*answer.reasons, why)) if told else answer
        return explained

    def _answer_by_prior(self, target: GpuSpec, level: MetricLevel) -> _RatioEstimate:
        """Answer by the prior alone: neither GPU was seen, or the metrics do not suffice for more.

        Raises:
            ValueError: A peak rate of one of the GPUs is not known.
        """
        source = self._source
        if level is MetricLevel.NVIDIA_SMI and has_activity(source):
            # Nothing learned applies, so the metrics that split the work between memory and compute decide.
            level = MetricLevel.DCGM
        line = roofline(source, level)
        if level is MetricLevel.NVIDIA_SMI:
            line = replace(line, exponent=self._state.pairs.working_exponent)
        if level in (MetricLevel.STATIC, MetricLevel.UTILIZATION):
            log_ratio = log_cautious_ratio(source, target, line)
        else:
            log_ratio = log_latency_ratio(source, target, line)
        half_width = self._find_half_width(Regime.PRIOR_ONLY, target)
        if level is not MetricLevel.NVIDIA_SMI:
            # No measurement tells how good the other levels are: as wide as if nothing dynamic were known.
            half_width = max(half_width, self._find_half_width(Regime.STATIC_ONLY, target))
        reasons = []
        seen = not self._find_unseen(target)
        if not seen:
            inflation = self._find_inflation(target)
            half_width *= inflation if level is MetricLevel.NVIDIA_SMI else inflation**_STATIC_INFLATION
            reasons.append(self._name_unseen(target))
        if level is MetricLevel.UTILIZATION:
            # Idle time does no more than that on any GPU, however far it is from the fitted ones.
            half_width = math.hypot(half_width, log_idle_effect(source, target, line))
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
        found = self._unseen.get(id(target))
        if found is None:
            found = [] if self._state.gpus.seen(target) else [target]
            self._unseen[id(target)] = found = found if self._source_is_seen else [self._source.gpu, *found]
        return found

    def _is_new(self, target: GpuSpec) -> bool:
        return any(gpu is target for gpu in self._find_unseen(target))

    @cached_property
    def _source_is_seen(self) -> bool:
        return self._state.gpus.seen(self._source.gpu)

    @cached_property
    def _line(self) -> Roofline:
        return roofline(self._source, metric_level(self._source, REQUIRED_METRICS))

    @cached_property
    def _normal(self) -> float:
        return NormalDist().inv_cdf(0.5 + self._settings.coverage / 2)

    @cached_property
    def _source_chip(self) -> TrainedGpu:
        return TrainedGpu.from_spec(self._source.gpu)

    def _find_inflation(self, target: GpuSpec) -> float:
        return max(self._state.gpus.interval_inflation(gpu) for gpu in self._find_unseen(target))

    def _name_unseen(self, target: GpuSpec) -> str:
        return f"the model was not fitted on {' and '.join(gpu.name for gpu in self._find_unseen(target))}"

    def _make_prediction(self, target: GpuSpec, answer: _RatioEstimate) -> LatencyPrediction:
        source, settings = self._source, self._settings
        below, above = self._find_reach(target, answer)
        # The detector's error and the model's are independent; both are about normal in log space.
        error = self._normal * source.epoch_latency_relative_error
        latency = source.epoch_latency_s * math.exp(answer.log_ratio)
        fits, doubts = self._compare_memory(target)
        reasons = (*answer.reasons, *self._note_precision(target), *doubts)
        extrapolated = answer.extrapolated
        if math.exp(below + above) > _WIDE and not extrapolated:
            extrapolated = True
            reasons = (
                *reasons,
                f"the ends of the interval lie a factor of {math.exp(below + above):.1f} apart",
            )
        status = "extrapolated" if extrapolated else "ok"
        if source.epoch_count is not None and source.epoch_count < _MINIMUM_EPOCHS:
            status = "insufficient_epochs"
            reasons = (f"the source's latency comes from {source.epoch_count} whole epochs, fewer than two", *reasons)
        return LatencyPrediction(
            target_gpu=target.name,
            epoch_latency_s=latency,
            epoch_latency_low_s=latency * math.exp(-math.hypot(below, error)),
            epoch_latency_high_s=latency * math.exp(math.hypot(above, error)),
            interval_coverage=settings.coverage,
            status=status,
            extrapolated=extrapolated,
            method=answer.method,
            reason="; ".join(reasons),
            model_version=self._version,
            fits=fits,
        )

    def _find_reach(self, target: GpuSpec, answer: _RatioEstimate) -> tuple[float, float]:
        """Return how far the interval reaches below and above the answer, as logarithms."""
        source, reach = self._source, answer.half_width
        # The rates that make a GPU at least as good as another one have none of FP64.
        bounded = answer.extrapolated and answer.log_ratio <= 0 and source.precision is not Precision.FP64
        if bounded and dominates(target, source.gpu):
            return reach, min(reach, math.log(_SLOWEST) - answer.log_ratio)
        return reach, reach

    def _compare_memory(self, target: GpuSpec) -> tuple[str, list[str]]:
        """Tell whether what the run holds fits into the target's memory, and what to do where it may not."""
        if target.name == self._source.gpu.name:
            return "yes", []
        held = self._source.metrics.get("framebuffer_used_bytes")
        own = self._source.figure("memory_bytes")
        if held is None or own is None:
            return "unknown", []
        share = held.maximum / target.memory_bytes
        if share <= _SURELY_FITS:
            return "yes", []
        if share <= 1.0:
            return "likely", []
        what = f"the run holds {held.maximum / 2**30:.3g} GiB, more than this GPU has"
        if held.maximum > _ALL_TAKEN * own:
            return "unknown", [f"{what}, but its framework may have taken all there was"]
        return "no", [f"{what}: a smaller batch fits, or checkpointed activations, which cost about a third more time"]

    def _note_precision(self, target: GpuSpec) -> list[str]:
        """Say what a GPU computes in instead, and what another setting of a framework would change."""
        source = self._source
        if target.name == source.gpu.name:
            return []
        if source.precision is None:
            other = self._compare_precisions(target, Precision.FP32)
            if not 1 / _NOTABLE <= other <= _NOTABLE:
                told = f"{other:.2g} times as long with products in FP32 (precision fp32)"
                return [f"taken for TF32 where the GPU has it, {told}"]
            return []
        if source.precision is Precision.FP64:
            slowed = target.fp64_tflops and target.fp32_tflops / target.fp64_tflops
            return [f"FP64 at 1/{slowed:.0f} of its FP32 rate"] if slowed and slowed > _FEW_FP64 else []
        unit = {gpu.name: gpu.substitute(source.precision) for gpu in (source.gpu, target)}
        return [
            f"{name} has no unit for {source.precision.value}: reckoned as {substitute.value}"
            for name, substitute in unit.items()
            if substitute is not None and source.precision is not Precision.TF32
        ]

    def _compare_precisions(self, target: GpuSpec, other: Precision) -> float:
        """Return how much longer the answer would be if the run's products were computed in another precision."""
        if not (self._source.gpu.tensor_tf32_tflops or target.tensor_tf32_tflops):
            return 1.0  # either way both compute in FP32
        line = self._line
        if line.precision is not None:
            return 1.0  # the metrics tell
        log_ratio = log_latency_ratio(self._source, target, line, other) - log_latency_ratio(self._source, target, line)
        return math.exp(log_ratio)

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
