"""Pairs of runs as arrays, what models are fitted on: one configuration, two GPUs, the ratio of their latencies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusonde.predictor.crossgpu.features import FEATURES, REQUIRED_METRICS, SOURCE_FEATURE_COUNT, feature_matrix
from gpusonde.predictor.crossgpu.neighbourhood import TrainedGpu
from gpusonde.predictor.crossgpu.prior import log_cautious_ratio, log_latency_ratio, metric_level, roofline
from gpusonde.predictor.crossgpu.runs_table import IndexArray, RunsTable

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

# The time of a pair of a table, whose runs have none: it never grows old.
TIMELESS = 0.0
# Variance of the log error that all pairs of the same two GPUs share, over that of the exponent around 1: a tenth is
# (0.08 / 0.25)^2. Errors on two GPUs left out are the same within half a point for a fifth to twice of it.
_SHARED_VARIANCE = 0.1
_EXPONENTS = (0.5, 2.0)
_NEWTON_STEPS = 20
_BUSY = FEATURES.index("gpu_utilization_mean")
# Below, the working part cannot be told from what files round the prior by.
_LEAST_BUSY, _LEAST_RATIO = 0.05, 1e-3
_ARRAYS = (
    "features", "prior", "static", "log_ratio", "configuration", "workload", "source_gpu", "target_gpu", "time_unix_s",
)  # fmt: skip


@dataclass(frozen=True)
class Pairs:
    """Ordered pairs of runs; every array has shape (pairs,) unless said otherwise.

    Attributes:
        features: Shape (pairs, features).
        prior: Log ratio (target / source) by the prior.
        static: The same by what needs no dynamic metrics.
        log_ratio: Log of (target's measured latency / source's detected latency).
        configuration: Number of the pair's configuration, into ``configurations``.
        workload: Number of the pair's workload, into ``workloads``; a configuration belongs to one workload.
        source_gpu: Number of the source GPU, into ``gpus``.
        target_gpu: Number of the target GPU.
        time_unix_s: When the later of the two runs ended; 0 for pairs of a table, which do not grow old.
        configurations: Names of configurations; those of a fleet are its jobs.
        workloads: Names of workloads.
        gpus: The GPUs.
    """

    features: FloatArray
    prior: FloatArray
    static: FloatArray
    log_ratio: FloatArray
    configuration: IndexArray
    workload: IndexArray
    source_gpu: IndexArray
    target_gpu: IndexArray
    time_unix_s: FloatArray
    configurations: tuple[str, ...]
    workloads: tuple[str, ...]
    gpus: tuple[TrainedGpu, ...]

    def __len__(self) -> int:
        return int(self.prior.size)

    @classmethod
    def from_runs(cls, table: RunsTable, indices: tuple[IndexArray, IndexArray] | None = None) -> Pairs:
        """Build the pairs of a table, or some of them.

        Args:
            table: The runs.
            indices: Source and target runs of the wanted pairs, each of shape (pairs,); all when left out.
        """
        source, target = table.pairs() if indices is None else indices
        order = np.argsort(source, kind="stable")
        source, target = source[order], target[order]
        runs = table.runs
        measurements = [run.measurement() for run in runs]
        features, prior, static = [], [], []
        # A feature matrix per source run: its own part is computed once for all its targets.
        for index in np.unique(source):
            measurement = measurements[index]
            targets = [runs[other].gpu for other in target[source == index]]
            features.append(feature_matrix(measurement, targets))
            line = roofline(measurement, metric_level(measurement, REQUIRED_METRICS))
            prior += [log_latency_ratio(measurement, gpu, line) for gpu in targets]
            static += [log_cautious_ratio(measurement, gpu) for gpu in targets]
        measured = np.array([run.epoch_latency_s for run in runs])
        detected = np.array([run.detected_epoch_latency_s for run in runs])
        configurations, configuration = _number_labels(["|".join(run.configuration) for run in runs])
        workloads, workload = _number_labels([run.configuration.model for run in runs])
        ends = np.array([run.end_unix_s for run in runs])
        names, gpu = _number_labels([run.gpu.name for run in runs])
        known = {run.gpu.name: TrainedGpu.from_spec(run.gpu) for run in runs}
        return cls(
            features=np.concatenate(features) if features else np.zeros((0, 0)),
            prior=np.array(prior),
            static=np.array(static),
            log_ratio=np.log(measured[target] / detected[source]),
            configuration=configuration[source],
            workload=workload[source],
            source_gpu=gpu[source],
            target_gpu=gpu[target],
            time_unix_s=np.maximum(ends[source], ends[target]),
            configurations=configurations,
            workloads=workloads,
            gpus=tuple(known[name] for name in names),
        )

    @classmethod
    def join(cls, parts: Sequence[Pairs]) -> Pairs:
        """Put pairs of several origins together; equal names mean the same thing, empty parts are left out."""
        parts = [part for part in parts if len(part)]
        if len(parts) == 1:
            return parts[0]
        gpus = {gpu.name: gpu for part in parts for gpu in part.gpus}
        configurations = tuple(sorted({name for part in parts for name in part.configurations}))
        workloads = tuple(sorted({name for part in parts for name in part.workloads}))
        names = tuple(sorted(gpus))

        def joined(name: str) -> Any:
            return np.concatenate([getattr(part, name) for part in parts])

        def renumbered(name: str, own: Callable[[Pairs], tuple[str, ...]], common: tuple[str, ...]) -> IndexArray:
            place = {label: number for number, label in enumerate(common)}
            tables = [np.array([place[label] for label in own(part)], dtype=np.intp) for part in parts]
            return np.concatenate([table[getattr(p, name)] for table, p in zip(tables, parts, strict=True)])

        return cls(
            features=joined("features"),
            prior=joined("prior"),
            static=joined("static"),
            log_ratio=joined("log_ratio"),
            configuration=renumbered("configuration", lambda part: part.configurations, configurations),
            workload=renumbered("workload", lambda part: part.workloads, workloads),
            source_gpu=renumbered("source_gpu", lambda part: part.gpu_names, names),
            target_gpu=renumbered("target_gpu", lambda part: part.gpu_names, names),
            time_unix_s=joined("time_unix_s"),
            configurations=configurations,
            workloads=workloads,
            gpus=tuple(gpus[name] for name in names),
        )

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """Canonical names of the GPUs."""
        return tuple(gpu.name for gpu in self.gpus)

    @cached_property
    def working_exponent(self) -> float:
        """Power of the prior's ratio of rates that the working part of these pairs' epochs goes with; 1 without pairs.

        By least squares, drawn to 1: the less, the more pairs of GPUs there are.
        """
        ends = np.sort(np.stack([self.source_gpu, self.target_gpu]), axis=0)
        caution = _SHARED_VARIANCE * len(self) / max(1, np.unique(ends, axis=1).shape[1])
        busy, rates = self._working
        exponent = 1.0
        for _ in range(_NEWTON_STEPS if len(self) else 0):
            working = busy * np.exp(exponent * rates)
            slope = rates * working / (1 - busy + working)
            step = slope @ (self.log_ratio - self.log_prior(exponent)) - caution * (exponent - 1)
            exponent = float(np.clip(exponent + step / (slope @ slope + caution), *_EXPONENTS))
        return exponent

    def log_prior(self, exponent: float) -> FloatArray:
        """Return the log ratio by the prior whose working part goes with that power, shape (pairs,)."""
        busy, rates = self._working
        found: FloatArray = np.log(1 - busy + busy * np.exp(exponent * rates))
        return found

    @cached_property
    def _working(self) -> tuple[FloatArray, FloatArray]:
        """Share of the source's epoch in which it worked, and log ratio of rates, each of shape (pairs,)."""
        busy = np.clip(self.features[:, _BUSY], _LEAST_BUSY, 1.0)
        return busy, np.log(np.maximum(np.exp(self.prior) - (1 - busy), _LEAST_RATIO) / busy)

    def where(self, mask: BoolArray) -> Pairs:
        """Return the pairs for which ``mask``, shape (pairs,), is True; the names stay."""
        arrays: dict[str, Any] = {name: getattr(self, name)[mask] for name in _ARRAYS}
        return replace(self, **arrays)

    def touches(self, gpu: int) -> BoolArray:
        """Tell which pairs have the GPU as source or target, shape (pairs,)."""
        mask: BoolArray = (self.source_gpu == gpu) | (self.target_gpu == gpu)
        return mask

    def sources(self) -> tuple[FloatArray, IndexArray]:
        """Return the source runs behind the pairs.

        Returns:
            Their features, shape (runs, source features), and the position of a pair of each, shape (runs,).
        """
        own = self.features[:, :SOURCE_FEATURE_COUNT]
        _, first = np.unique(own, axis=0, return_index=True)
        positions: IndexArray = np.sort(first)
        return own[positions], positions

    def well_known_gpus(self, configurations: int) -> tuple[TrainedGpu, ...]:
        """Return the GPUs that at least so many configurations ran on."""

        def count(gpu: int) -> int:
            return len(np.unique(self.configuration[self.touches(gpu)]))

        return tuple(gpu for number, gpu in enumerate(self.gpus) if count(number) >= configurations)


def decay_weights(time_unix_s: FloatArray, now_unix_s: float, half_life_s: float) -> FloatArray:
    """Return the weight of each pair in a fit: halved with every half-life that has passed; 1 for pairs without a time.

    Args:
        time_unix_s: Shape (pairs,).
        now_unix_s: The present; pairs from the future weigh 1.
        half_life_s: Above zero; infinite for samples that do not grow old.
    """
    age = np.where(time_unix_s == TIMELESS, 0.0, np.maximum(now_unix_s - time_unix_s, 0.0))
    weights: FloatArray = np.exp(-math.log(2.0) * age / half_life_s)
    return weights


def split_by_group(groups: IndexArray, folds: int, seed: int) -> Iterator[tuple[BoolArray, BoolArray]]:
    """Split rows into folds that no group straddles.

    Args:
        groups: Group of each row, shape (n,).
        folds: Number of folds; every group is one where there are fewer groups than folds.
        seed: Which groups go together.

    Yields:
        Masks of the training and of the held-out rows, shape (n,).
    """
    names = np.unique(groups)
    np.random.default_rng(seed).shuffle(names)
    for part in np.array_split(names, min(folds, len(names))):
        held_out = np.isin(groups, part)
        yield ~held_out, held_out


def _number_labels(labels: Sequence[str]) -> tuple[tuple[str, ...], IndexArray]:
    names = tuple(sorted(set(labels)))
    numbers = {label: number for number, label in enumerate(names)}
    return names, np.array([numbers[label] for label in labels], dtype=np.intp)
