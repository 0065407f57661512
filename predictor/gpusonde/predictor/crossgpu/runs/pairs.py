"""Pairs of runs as arrays: one configuration, two GPUs, the ratio of their epoch latencies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.predictor.crossgpu.features import REQUIRED_METRICS, feature_matrix
from gpusonde.predictor.crossgpu.prior import Roofline, log_latency_ratio, metric_level, roofline
from gpusonde.predictor.crossgpu.runs.table import IndexArray, RunsTable

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Pairs:
    """All ordered pairs of a runs table; every array has shape (pairs,) unless said otherwise.

    Attributes:
        source: Index of the source run.
        target: Index of the target run.
        features: Shape (pairs, features).
        prior: Log ratio (target / source) by the prior.
        log_ratio: Log of (target's measured latency / source's detected latency).
        configuration: Number of the pair's configuration.
        workload: Number of the pair's workload (the configuration's model).
        source_gpu: Number of the source GPU, into ``gpu_names``.
        target_gpu: Number of the target GPU.
        gpu_names: Canonical names, sorted.
    """

    source: IndexArray
    target: IndexArray
    features: FloatArray
    prior: FloatArray
    log_ratio: FloatArray
    configuration: IndexArray
    workload: IndexArray
    source_gpu: IndexArray
    target_gpu: IndexArray
    gpu_names: tuple[str, ...]

    def __len__(self) -> int:
        return int(self.source.size)

    @classmethod
    def of(cls, table: RunsTable, indices: tuple[IndexArray, IndexArray] | None = None) -> Pairs:
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
        features, prior = [], []
        # A feature matrix per source run: its own part is computed once for all its targets.
        for index in np.unique(source):
            measurement = measurements[index]
            targets = [runs[other].gpu for other in target[source == index]]
            features.append(feature_matrix(measurement, targets))
            line = roofline(measurement, metric_level(measurement, REQUIRED_METRICS))
            prior += [log_latency_ratio(measurement, gpu, line) for gpu in targets]
        measured = np.array([run.epoch_latency_s for run in runs])
        detected = np.array([run.detected_epoch_latency_s for run in runs])
        configurations = _number([run.configuration for run in runs])
        workloads = _number([(run.configuration.model,) for run in runs])
        gpus = _number([(run.gpu.name,) for run in runs])
        return cls(
            source=source,
            target=target,
            features=np.concatenate(features) if features else np.zeros((0, 0)),
            prior=np.array(prior),
            log_ratio=np.log(measured[target] / detected[source]),
            configuration=configurations[source],
            workload=workloads[source],
            source_gpu=gpus[source],
            target_gpu=gpus[target],
            gpu_names=table.gpu_names,
        )

    def touches(self, gpu: int) -> BoolArray:
        """Which pairs have the GPU as source or target, shape (pairs,)."""
        mask: BoolArray = (self.source_gpu == gpu) | (self.target_gpu == gpu)
        return mask


def static_log_ratios(table: RunsTable, pairs: Pairs, busy: float) -> FloatArray:
    """The prior without any dynamic metric: a GPU that works a ``busy`` share of the time, shape (pairs,)."""
    runs = table.runs
    line = Roofline(busy)
    return np.array(
        [
            log_latency_ratio(runs[i].measurement(), runs[j].gpu, line)
            for i, j in zip(pairs.source, pairs.target, strict=True)
        ]
    )


def grouped_folds(groups: IndexArray, folds: int, seed: int) -> Iterator[tuple[BoolArray, BoolArray]]:
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


def _number(labels: Sequence[tuple[str, ...]]) -> IndexArray:
    numbers = {label: number for number, label in enumerate(sorted(set(labels)))}
    return np.array([numbers[label] for label in labels], dtype=np.intp)
