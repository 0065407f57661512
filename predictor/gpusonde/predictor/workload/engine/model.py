"""``WorkloadModel``: seconds per training iteration of networks that need never have run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpusonde.catalog import GpuCatalog, GpuSpec, Precision, load_gpus
from gpusonde.errors import MissingEncoderError, ModelError
from gpusonde.predictor.workload.embedding.registry import Registry
from gpusonde.predictor.workload.engine.encoders import EncoderEmbedder, EncoderReference, load_embedder
from gpusonde.predictor.workload.engine.feature_counts import CountsCache
from gpusonde.predictor.workload.engine.features import (
    MEASURED_AS,
    ROOFLINE,
    WITH_EMBEDDING,
    FeatureBuilder,
    FeatureTable,
)
from gpusonde.predictor.workload.engine.fitting import FittedEstimator, WorkloadModelState, fit_state
from gpusonde.predictor.workload.engine.memory import Fits, MemoryFit, Optimizer, StepMemory
from gpusonde.predictor.workload.engine.out_of_distribution import OodScore
from gpusonde.predictor.workload.engine.persistence import read_model, write_model
from gpusonde.predictor.workload.engine.request import (
    Cluster,
    Parallelism,
    WorkloadMeasurement,
    WorkloadPrediction,
    WorkloadRequest,
)
from gpusonde.predictor.workload.graph import WorkloadGraph

FloatArray = npt.NDArray[np.float64]
Embedder = Callable[[Sequence[WorkloadGraph]], FloatArray]

DEFAULT_COVERAGE = 0.9
FALLBACK = "calibrated_roofline"
_SHIPPED = "shipped/workload_model.safetensors"
_PACKAGE = "gpusonde.predictor.workload.engine"
# Beyond it an interval says no more than that nothing is known.
_WIDEST = math.log(1000.0)
# How much shorter a smaller batch takes where the next smaller ones may take longer again.
_NEARLY = math.log(1.1)
# Half precision against single, above which an answer says why.
_NOTABLY_SLOWER = 1.01
_AS_MIXED = (
    "answered as mixed precision, which comes out faster: pure half precision does no more work, and was measured with"
    " older software"
)


class WorkloadModel:
    """Predicts the duration of training iterations from graphs and clusters.

    Args:
        catalog: Data sheets of the devices; the shipped catalogue when left out.
        embed: Embedding of graphs, shape (n, size), for models with its columns. An ``EncoderEmbedder`` has a name
            that the model's file keeps.
        coverage: Share of intervals that should hold the truth.
        state: What was fitted before.
        version: Of that.
    """

    def __init__(
        self,
        catalog: GpuCatalog | None = None,
        *,
        embed: Embedder | None = None,
        coverage: float = DEFAULT_COVERAGE,
        state: WorkloadModelState | None = None,
        version: str = "unsaved",
    ) -> None:
        if not 0 < coverage < 1:
            raise ModelError(f"coverage {coverage}: it must lie between 0 and 1")
        given = embed.reference if isinstance(embed, EncoderEmbedder) else None
        fitted = None if state is None else state.encoder
        if None not in (given, fitted) and given != fitted:
            raise ModelError(f"the model was fitted with {fitted}, not with {given}")
        self._features = FeatureBuilder(load_gpus() if catalog is None else catalog)
        self._memory = CountsCache(_count_memory)
        self._embed, self._coverage = embed, coverage
        self._state, self._version = state, version

    @property
    def version(self) -> str:
        """Name of the fitted content; ``unsaved`` until the model has been saved or loaded."""
        return self._version

    @property
    def state(self) -> WorkloadModelState:
        """The fitted state.

        Raises:
            ModelError: There is none yet.
        """
        if self._state is None:
            raise ModelError("the model is not fitted; call fit(), load() or shipped() first")
        return self._state

    @property
    def encoder(self) -> EncoderReference | None:
        """The encoder whose embedding it has columns of; None where it has none, or one without a name."""
        return self.state.encoder

    @property
    def scores(self) -> Mapping[str, float]:
        """Error of each regressor in validation, the chosen one's first.

        Of the logarithm, on architectures left out; of ``kind="paper"`` relative, on rows left out.
        """
        state = self.state
        names = [state.chosen, *(name for name in state.estimators if name != state.chosen)]
        return {name: state.estimators[name].score for name in names}

    def fit(
        self, measurements: Sequence[WorkloadMeasurement], *, kind: str = "default", regressor: str | None = None
    ) -> WorkloadModel:
        """Fit to measured iterations.

        Args:
            measurements: At least 10, of at least 3 architectures.
            kind: "default": logarithm of time over calibrated roofline, validation on architectures left out. "paper":
                the PredictDDL paper's: the time itself, validation on a random fifth of the rows.
            regressor: Fit this one only: "linear", "polynomial", "svr", "mlp" or "boosted_residual" (not in "paper").
                All are fitted and the best chosen when left out.

        Returns:
            The model itself.

        Raises:
            ModelError: No such kind or regressor, or too few measurements.
            RequestError: A device is not in the catalogue.
        """
        requests = [each.request for each in measurements]
        table = self._features.table(requests, None if self._embed is None else self._compute_embedding(requests))
        devices = dict.fromkeys(each.cluster.device for each in requests)
        self._state = fit_state(
            table, measurements, [self._features.spec(name) for name in devices], kind=kind, regressor=regressor,
            coverage=self._coverage,
            encoder=self._embed.reference if isinstance(self._embed, EncoderEmbedder) else None,
        )  # fmt: skip
        self._version = "unsaved"
        return self

    def predict(self, requests: Sequence[WorkloadRequest], *, regressor: str | None = None) -> list[WorkloadPrediction]:
        """Predict the seconds of a training iteration.

        Args:
            requests: Any number; those of the same graph share its counts.
            regressor: Answer with this one; with the one that validation chose when left out.

        Returns:
            One prediction per request, in their order.

        Raises:
            ModelError: The model is not fitted.
            ModelError: The model has no such regressor, or needs an embedding and has none, or one of another length.
            RequestError: A device is not in the catalogue, or a graph's shapes cannot be those of a network.
        """
        state = self.state
        name = state.chosen if regressor is None else regressor
        if name not in state.estimators:
            raise ModelError(f"this model has no regressor {name!r}; it has {', '.join(state.estimators)}")
        found = self._predict(requests, name)
        pure = [row for row, each in enumerate(requests) if self._may_be_as_mixed(each.cluster)]
        mixed = self._predict([_ask_in(Precision.MIXED, requests[row]) for row in pure], name)
        for row, each in zip(pure, mixed, strict=True):
            if each.seconds < found[row].seconds:
                found[row] = replace(each, reasons=(*each.reasons, _AS_MIXED))
        halves = [row for row, each in enumerate(requests) if _is_half(each)]
        singles = self._predict([_ask_in(Precision.FP32, requests[row]) for row in halves], name)
        for row, single in zip(halves, singles, strict=True):
            found[row] = _explain(found[row], single)
        return [self._add_memory(request, each) for request, each in zip(requests, found, strict=True)]

    def _may_be_as_mixed(self, cluster: Cluster) -> bool:
        """Tell whether pure half precision was not measured there, but mixed precision somewhere."""
        known = self.state.ood_detector
        return (
            cluster.precision is Precision.FP16
            and Precision.MIXED.value in known.precisions
            and not known.has_measured(cluster)
        )

    def _add_memory(self, request: WorkloadRequest, found: WorkloadPrediction) -> WorkloadPrediction:
        cluster = request.cluster
        counted = self._memory.get(request.graph, cluster.precision, request.optimizer, cluster.parallelism)
        memory = counted.fit(request.batch_size, self._features.spec(cluster.device).memory_bytes)
        return replace(found, memory=memory, reasons=(*found.reasons, *note_memory(request, memory)))

    def _predict(self, requests: Sequence[WorkloadRequest], name: str) -> list[WorkloadPrediction]:
        if not requests:
            return []
        state = self.state
        chosen = state.estimators[name]
        features = chosen.estimator.candidate.features
        embedding = self._compute_embedding(requests) if features in WITH_EMBEDDING else None
        table = self._features.table(requests, embedding)
        gpus = [self._features.spec(each.cluster.device) for each in requests]
        ood_scores = state.ood_detector.score(table, gpus)
        roofline, estimated = self._estimate(table, chosen)
        if state.kind == "default":
            self._raise_to_smaller_batches(requests, embedding, chosen, roofline, estimated)
        found = []
        for row, (score, gpu) in enumerate(zip(ood_scores, gpus, strict=True)):
            few = self._has_few(chosen, score, str(table.environment[row]))
            ood_score = replace(score, unknown_environment=True) if few else score
            falls_back = ood_score.out_of_distribution and state.kind == "default"
            centre = float(roofline[row] if falls_back else estimated[row])
            known = chosen.widest
            if not ood_score.new_in_environment:
                environment = str(table.environment[row])
                known = chosen.calibration(environment, measured_there=ood_score.measured_there)
            if falls_back:
                known = max(known, state.roofline_errors, key=lambda each: each.quantile)
            # All but the products is as measured: answered likewise, only wider.
            unmeasured = _judge_products(requests[row].cluster.precision, gpu)
            ood_score = replace(ood_score, unlike_cluster=(*ood_score.unlike_cluster, *unmeasured))
            width = state.intervals.half_width(ood_score, known)
            width = min(width, _WIDEST)
            found.append(
                WorkloadPrediction(
                    seconds=math.exp(centre),
                    low_s=math.exp(centre - width),
                    high_s=math.exp(centre + width),
                    coverage=state.intervals.coverage,
                    regressor=FALLBACK if falls_back else name,
                    features=ROOFLINE if falls_back else features,
                    out_of_distribution=ood_score.out_of_distribution,
                    reasons=(
                        *_give_reasons(ood_score, gpu, table, row, falls_back=falls_back, few=few),
                        *_note_precision(requests[row].cluster.precision, gpu),
                        *_note_hosts(requests[row], counted=chosen.estimator.counts_hosts and not falls_back),
                    ),
                    nearest=ood_score.nearest,
                )
            )
        return found

    def _estimate(self, table: FeatureTable, chosen: FittedEstimator) -> tuple[FloatArray, FloatArray]:
        """Return the logarithm of seconds by the calibrated roofline, and by what was chosen."""
        roofline = self.state.roofline.log_seconds(table)
        return roofline, chosen.estimator.log_seconds(table, roofline)

    def _raise_to_smaller_batches(
        self,
        requests: Sequence[WorkloadRequest],
        embedding: FloatArray | None,
        chosen: FittedEstimator,
        *estimates: FloatArray,
    ) -> None:
        """Raise estimates, in place, to those of smaller powers of two: a larger batch is more of the same work.

        Goes down as far as a smaller batch takes nearly as long, which is where launches bind.
        """
        near = [row for row, each in enumerate(requests) if each.batch_size > 1]
        batches = [each.batch_size for each in requests]
        while near:
            for row in near:
                batches[row] = 1 << (batches[row] - 1).bit_length() - 1
            smaller = [replace(requests[row], batch_size=batches[row]) for row in near]
            table = self._features.table(smaller, None if embedding is None else embedding[near])
            close = np.zeros(len(near), dtype=bool)
            for estimate, found in zip(estimates, self._estimate(table, chosen), strict=True):
                close |= found > estimate[near] - _NEARLY
                estimate[near] = np.maximum(estimate[near], found)
            near = [row for row, each in zip(near, close, strict=True) if each and batches[row] > 1]

    def _has_few(self, chosen: FittedEstimator, ood_score: OodScore, environment: str) -> bool:
        """Tell whether too few were measured in a known environment for errors of its own to say how wide to answer."""
        own = environment in chosen.by_environment or self.state.kind != "default"
        return not own and not ood_score.unknown_environment

    def _compute_embedding(self, requests: Sequence[WorkloadRequest]) -> FloatArray:
        if self._embed is None:
            raise ModelError("this model has columns of an embedding; give the encoder that it was fitted with")
        graphs = {id(each.graph): each.graph for each in requests}
        position = {key: number for number, key in enumerate(graphs)}
        embedded = np.asarray(self._embed(list(graphs.values())), dtype=np.float64)
        chosen: FloatArray = embedded[[position[id(each.graph)] for each in requests]]
        return chosen

    def save(self, path: str | Path) -> str:
        """Write the model to a file, which holds numbers and text only.

        Returns:
            Its version.
        """
        self._version = write_model(Path(path), self.state)
        return self._version

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        catalog: GpuCatalog | None = None,
        embed: Embedder | None = None,
        registry: Registry | None = None,
    ) -> WorkloadModel:
        """Read a model that ``save`` wrote.

        Args:
            path: The file.
            catalog: As for ``WorkloadModel``.
            embed: Likewise, instead of what the file names, or where it names none.
            registry: Where the encoder that the file names is looked for; beside the file and among those that are
                shipped when left out.

        Raises:
            MissingEncoderError: Its encoder is not there.
            ModelFileError: It is no such file, is damaged or too large.
            OSError: It cannot be read.
        """
        path = Path(path)
        state, version = read_model(path)
        if state.has_embedding and embed is None:
            if state.encoder is None:
                raise MissingEncoderError(
                    str(path), "it has columns of an embedding and names no encoder; fit it again with the name of one"
                )
            embed = load_embedder(path, state.encoder, registry or Registry(path.parent))
        return cls(catalog, embed=embed, coverage=state.intervals.coverage, state=state, version=version)

    @classmethod
    def shipped(cls, *, catalog: GpuCatalog | None = None) -> WorkloadModel:
        """Return the model that comes with the package; its card stands beside it."""
        return cls.load(Path(str(files(_PACKAGE).joinpath(_SHIPPED))), catalog=catalog)


def _is_half(request: WorkloadRequest) -> bool:
    precision = request.cluster.precision
    return MEASURED_AS.get(precision, precision) in (Precision.FP16, Precision.MIXED)


def _give_reasons(
    ood_score: OodScore, gpu: GpuSpec, table: FeatureTable, row: int, *, falls_back: bool, few: bool
) -> list[str]:
    """Say what is unlike what was measured."""
    reasons = [*ood_score.unlike_network, *ood_score.unlike_cluster]
    if ood_score.unknown_device:
        reasons.append(f"no steps, or too few, were measured on {gpu.name}: extrapolated by its data sheet")
    if falls_back:
        reasons.append("answered by the calibrated roofline, which has few features and extrapolates best")
    if ood_score.new_in_environment:
        reasons.append(ood_score.new_in_environment)
    elif ood_score.unknown_environment:
        environment = str(table.environment[row])
        where = (
            f"the environment {environment!r} is none that was measured"
            if environment
            else "no known environment is named"
        )
        if few:
            where = f"too few steps were measured at {environment!r} to know how far off answers are there"
        reasons.append(f"{where}: frameworks and hosts differ, so the interval is that of a new one")
    return reasons


def _judge_products(precision: Precision, gpu: GpuSpec) -> list[str]:
    """Say where products run at a rate that no measurement tells of: FP8's own units, BF16 without any."""
    if (precision, gpu.substitute(precision)) in ((Precision.FP8, None), (Precision.BF16, Precision.FP32)):
        return [f"no products were measured in {precision.value} as {gpu.name} computes them"]
    return []


def _note_precision(precision: Precision, gpu: GpuSpec) -> list[str]:
    """Say what a GPU computes in instead, and what nothing was measured in."""
    substitute = gpu.substitute(precision)
    reasons = []
    if substitute is not None and precision is not Precision.TF32:
        reasons.append(f"{gpu.name} has no unit for {precision.value}: products at the rate of {substitute.value}")
    known = MEASURED_AS.get(precision)
    if known is Precision.MIXED:
        reasons.append(f"nothing was measured in {precision.value}: what is not products as in {known.value}")
    return reasons


def _count_memory(
    graph: WorkloadGraph, precision: Precision, optimizer: Optimizer, parallelism: Parallelism
) -> StepMemory:
    # A process per device exchanges gradients by copies of them.
    return StepMemory.of(graph, precision, optimizer, buckets=parallelism is Parallelism.DISTRIBUTED)


def note_memory(request: WorkloadRequest, memory: MemoryFit) -> list[str]:
    """Say which batches would fit where this one may not."""
    if memory.fits not in (Fits.NO, Fits.UNKNOWN):
        return []
    where = f"into the memory of {request.cluster.device} in {request.cluster.precision.value}"
    most, checkpointed = memory.largest_batch, memory.largest_batch_checkpointed
    said = f"batches above {most} of {request.graph.name} probably do not fit {where}"
    if not most:
        said = f"no batch of {request.graph.name} probably fits {where}"
    if checkpointed > most:
        return [f"{said}; with checkpointed activations, for a third more time, batches up to {checkpointed}"]
    return [said]


def _ask_in(precision: Precision, request: WorkloadRequest) -> WorkloadRequest:
    return replace(request, cluster=replace(request.cluster, precision=precision))


def _explain(half: WorkloadPrediction, single: WorkloadPrediction) -> WorkloadPrediction:
    """Explain an unexpected answer for half precision: it saves no launch, and without matrix units no arithmetic."""
    if half.seconds < _NOTABLY_SLOWER * single.seconds:
        return half
    # Without the ratio, so that the same words of many answers are one note.
    reason = (
        "half precision comes out slower than single precision: it was measured at fewer places, saves no launch, and"
        " on GPUs without matrix units little arithmetic"
    )
    return replace(half, reasons=(*half.reasons, reason))


def _note_hosts(request: WorkloadRequest, *, counted: bool) -> list[str]:
    if request.cluster.host is None or counted:
        return []
    return [
        "what the hosts have free does not change this answer: what computed it never saw hosts that differed in it"
    ]
