"""``LatencyModel``: the default predictor, log ratio = prior + residual, with intervals for the situation at hand."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpusonde.catalog import GpuSpec
from gpusonde.predictor.crossgpu.combination import combine_predictions
from gpusonde.predictor.crossgpu.intervals.calibrator import Calibrator
from gpusonde.predictor.crossgpu.intervals.novelty import GpuNeighbourhood, RunNeighbourhood
from gpusonde.predictor.crossgpu.measurement import LatencyPrediction, SourceMeasurement
from gpusonde.predictor.crossgpu.persistence import LARGEST_MODEL_BYTES, read_model, write_model
from gpusonde.predictor.crossgpu.query import Query
from gpusonde.predictor.crossgpu.regression.residual import ResidualModel
from gpusonde.predictor.crossgpu.runs.pairs import Pairs
from gpusonde.predictor.crossgpu.runs.table import IndexArray, RunsTable
from gpusonde.predictor.crossgpu.state import FittedState, ModelSettings

FloatArray = npt.NDArray[np.float64]

_SHIPPED = "shipped/latency_model.zip"
_MINIMUM_PAIRS = 30
# A GPU on which fewer configurations ran counts as new: what was learned of it may be those configurations' own.
_MINIMUM_CONFIGURATIONS = 5


class NotFittedError(RuntimeError):
    """A model that predicts before it was fitted or loaded."""


class TooFewRunsError(ValueError):
    """A runs table with too few pairs of runs to fit a model on."""


class LatencyModel:
    """Predicts epoch latency on target GPUs from one run's measurement on a source GPU."""

    def __init__(
        self, settings: ModelSettings | None = None, *, state: FittedState | None = None, version: str = "unsaved"
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
    def state(self) -> FittedState:
        """The fitted state.

        Raises:
            NotFittedError: There is none yet.
        """
        if self._state is None:
            raise NotFittedError("the model is not fitted; call fit(), load() or shipped() first")
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
        return self.fit_pairs(Pairs.of(runs, pairs))

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
        self._state = FittedState(
            residual=residual,
            calibrations=calibrator.calibrate(settings.situations),
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
            NotFittedError: The model is neither fitted nor loaded.
        """
        return Query(self.settings, self.state, self._version, source).predict(targets)

    def predict_combined(
        self, sources: Sequence[SourceMeasurement], targets: Sequence[GpuSpec]
    ) -> list[LatencyPrediction]:
        """Predict for a job that was measured on several GPUs.

        Args:
            sources: One measurement per GPU it ran on, at least one.
            targets: GPUs to predict for.

        Returns:
            One prediction per target, in order.

        Raises:
            ValueError: No source is given.
        """
        if not sources:
            raise ValueError("no source measurement is given")
        by_source = [self.predict(source, targets) for source in sources]
        return [combine_predictions(predictions) for predictions in zip(*by_source, strict=True)]

    def save(self, path: str | Path) -> str:
        """Write the model into one file, atomically, without pickle.

        Returns:
            The version, which is also this model's from now on.

        Raises:
            NotFittedError: There is nothing to save.
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
        """The model that comes with the package; ``MODEL_CARD.md`` beside it says what it was fitted on.

        Raises:
            ModelFileError: The installation is damaged.
        """
        resource = files("gpusonde.predictor.crossgpu").joinpath(_SHIPPED)
        settings, state, version = read_model(resource.read_bytes(), str(resource))
        return cls(settings, state=state, version=version)
