"""Protocols: what is held out, so that a query is as new to the model as it will be to a user's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from gpusonde.predictor.crossgpu.runs.table import IndexArray, RunsTable

BoolArray = npt.NDArray[np.bool_]

_TEST_SHARE = 0.2


class Protocol(Enum):
    """What the pairs tested on have that the pairs fitted on have not."""

    RANDOM = "random"  # nothing: the paper's split, which leaks; for parity only
    CONFIG = "config"  # a configuration (workload, batch, image size, samples)
    CNN = "cnn"  # a workload
    TARGET = "target"  # the target GPU, which was in no pair fitted on
    BOTH = "both"  # both GPUs
    STATIC = "static"  # the target GPU, and every dynamic metric of the source


@dataclass(frozen=True)
class Split:
    """One division of the pairs.

    Attributes:
        training: Which pairs to fit on, shape (pairs,).
        test: Which pairs to predict, shape (pairs,).
        seed: Of the division and of the models fitted on it.
    """

    training: BoolArray
    test: BoolArray
    seed: int


def splits(
    table: RunsTable, source: IndexArray, target: IndexArray, protocol: Protocol, seed: int, own: int | None
) -> Iterator[Split]:
    """Divide the pairs of a table by a protocol.

    Args:
        table: The runs.
        source: Positions of the source runs of all pairs, shape (pairs,).
        target: Positions of their target runs.
        protocol: What to hold out.
        seed: Of the random divisions.
        own: Runs from this position on are a test table's: they are never fitted on, and nothing else is tested.
    """
    runs = table.runs
    gpus = np.array([run.gpu.name for run in runs])
    from_gpu, to_gpu = gpus[source], gpus[target]
    fittable = np.ones(len(source), dtype=bool) if own is None else (source < own) & (target < own)
    testable = np.ones(len(source), dtype=bool) if own is None else (source >= own) & (target >= own)
    if protocol in (Protocol.TARGET, Protocol.BOTH, Protocol.STATIC):
        for held_out in sorted(set(to_gpu[testable])):
            test = testable & (to_gpu == held_out)
            training = fittable & (from_gpu != held_out) & (to_gpu != held_out)
            if protocol is not Protocol.BOTH:
                yield Split(training, test, seed)
                continue
            for other in sorted(set(from_gpu[test])):
                without = training & (from_gpu != other) & (to_gpu != other)
                yield Split(without, test & (from_gpu == other), seed)
        return
    labels = {
        Protocol.RANDOM: [str(number) for number in range(len(source))],
        Protocol.CONFIG: ["|".join(runs[index].configuration) for index in source],
        Protocol.CNN: [runs[index].configuration.model for index in source],
    }[protocol]
    groups = np.array(labels)
    if own is not None:
        # One fit serves the whole test table: nothing that it shares by the protocol is fitted on.
        shared = np.zeros_like(fittable) if protocol is Protocol.RANDOM else np.isin(groups, groups[testable])
        yield Split(fittable & ~shared, testable, seed)
        return
    names = np.unique(groups)
    if protocol is Protocol.CNN:
        for name in names:
            yield Split(groups != name, groups == name, seed)
        return
    np.random.default_rng(seed).shuffle(names)
    test = np.isin(groups, names[: max(1, round(_TEST_SHARE * len(names)))])
    yield Split(~test, test, seed)
