"""How far off a model is on measurements that it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import ShuffleSplit

from gpusonde.errors import TooFewRunsError
from gpusonde.predictor.workload.engine.request import WorkloadMeasurement, WorkloadPrediction, WorkloadRequest

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Measurements = Sequence[WorkloadMeasurement]

OFF_BY = 3.0
_RANDOM_SPLITS = 5


class Predictor(Protocol):
    """What can be evaluated."""

    def predict(self, requests: Sequence[WorkloadRequest]) -> Sequence[WorkloadPrediction]:
        """Return an answer for each request."""


class WorkloadProtocol(str, Enum):
    """What is held back."""

    RANDOM = "random"  # a fifth of the rows, five times: every network is known, as in the seed
    ARCHITECTURE = "architecture"  # each network once, with all its rows
    FAMILY = "family"  # each family of networks once


@dataclass(frozen=True)
class Fold:
    """One fit and what it is asked for.

    Attributes:
        name: What is held back.
        known: Positions of the measurements to fit on.
        unknown: Positions of those to ask for.
    """

    name: str
    known: NDArray[np.intp]
    unknown: NDArray[np.intp]


@dataclass(frozen=True)
class WorkloadEvaluation:
    """What was answered.

    Attributes:
        measurements: Those that were asked for, fold by fold; several times where folds overlap.
        predictions: An answer for each.
        folds: Name of each one's fold.
    """

    measurements: Measurements
    predictions: Sequence[WorkloadPrediction]
    folds: Sequence[str]

    @cached_property
    def seconds(self) -> Floats:
        """What was measured."""
        return np.array([each.seconds for each in self.measurements])

    @cached_property
    def estimates(self) -> Floats:
        """What was answered."""
        return np.array([each.seconds for each in self.predictions])

    @cached_property
    def errors(self) -> Floats:
        """Relative errors, shares of what was measured."""
        found: Floats = np.abs(self.estimates - self.seconds) / self.seconds
        return found

    @cached_property
    def flagged(self) -> Flags:
        """Whether the answer says that the request is unlike what the model knows."""
        return np.array([each.out_of_distribution for each in self.predictions])

    @cached_property
    def far_off(self) -> Flags:
        """Whether the answer is more than three times what was measured, or less than a third of it."""
        ratio = self.estimates / self.seconds
        found: Flags = (ratio > OFF_BY) | (ratio < 1 / OFF_BY)
        return found

    @cached_property
    def covered(self) -> Flags:
        """Whether the interval holds what was measured."""
        pairs = zip(self.predictions, self.measurements, strict=True)
        return np.array([said.low_s <= each.seconds <= said.high_s for said, each in pairs])

    @property
    def coverage(self) -> float:
        """Share of the intervals that hold what was measured."""
        return float(self.covered.mean())

    def by_fold(self) -> dict[str, Flags]:
        """Name of a fold -> which of the answers are its."""
        names = np.array(self.folds)
        return {str(name): names == name for name in sorted(set(self.folds))}


def cut_folds(measurements: Measurements, protocol: WorkloadProtocol) -> Iterator[Fold]:
    """Cut measurements as a protocol says.

    Raises:
        TooFewRunsError: There are fewer than two groups to hold back, or fewer than five rows.
    """
    if protocol is WorkloadProtocol.RANDOM:
        if len(measurements) < _RANDOM_SPLITS:
            raise TooFewRunsError(f"{len(measurements)} measurements: at least {_RANDOM_SPLITS} are needed")
        splits = ShuffleSplit(_RANDOM_SPLITS, test_size=0.2, random_state=0)
        for number, (known, unknown) in enumerate(splits.split(np.zeros(len(measurements)))):
            yield Fold(f"split {number}", known, unknown)
        return
    held = np.array(
        [each.architecture if protocol is WorkloadProtocol.ARCHITECTURE else each.family for each in measurements]
    )
    names = sorted(set(held.tolist()))
    if len(names) < 2:
        raise TooFewRunsError(f"networks of one {protocol.value} only: nothing is left when it is held back")
    for name in names:
        yield Fold(str(name), np.flatnonzero(held != name), np.flatnonzero(held == name))


def evaluate(
    measurements: Measurements,
    folds: Sequence[Fold],
    fit: Callable[[Measurements], Predictor],
    *,
    done: Callable[[str], None] | None = None,
) -> WorkloadEvaluation:
    """Fit on what is known in each fold and ask for the rest.

    Args:
        measurements: All of them.
        folds: How they are cut.
        fit: Makes a model from the measurements of a fold; it sees no others.
        done: Told the name of each fold that is finished.
    """
    asked: list[WorkloadMeasurement] = []
    predictions: list[WorkloadPrediction] = []
    names: list[str] = []
    for fold in folds:
        unknown = [measurements[position] for position in fold.unknown]
        model = fit([measurements[position] for position in fold.known])
        predictions += model.predict([each.request for each in unknown])
        asked += unknown
        names += [fold.name] * len(unknown)
        if done:
            done(fold.name)
    return WorkloadEvaluation(asked, predictions, names)
