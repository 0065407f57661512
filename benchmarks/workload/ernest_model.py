"""Ernest, the baseline: time by the size of the input and the number of machines, the network a black box.

``seconds = a + b * size / machines + c * log(machines) + d * machines`` with no coefficient below zero (Venkataraman et
al., NSDI 2016, section 3): a serial part, a part that machines share, a tree-shaped exchange, and what grows with every
machine. Here ``size`` is samples per iteration on all devices together, and a machine is a device.

The PredictDDL paper compares itself with one such line for all networks (``PooledErnest``), which denies Ernest the one
thing that it asks for: runs of the workload in question. ``PerWorkloadErnest`` grants them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from gpusonde.errors import TooFewRunsError
from gpusonde.predictor.workload.engine import WorkloadMeasurement, WorkloadRequest


@dataclass(frozen=True)
class ErnestCurve:
    """The four coefficients.

    Attributes:
        fixed: Seconds, whatever the size and the machines.
        shared: Seconds per sample of a machine's share.
        exchange: Seconds per natural logarithm of the machines.
        per_machine: Seconds per machine.
    """

    fixed: float
    shared: float
    exchange: float
    per_machine: float

    def seconds(self, sizes: ArrayLike, machines: ArrayLike) -> NDArray[np.float64]:
        """Estimates, seconds per iteration."""
        coefficients = np.array([self.fixed, self.shared, self.exchange, self.per_machine])
        seconds: NDArray[np.float64] = _terms(sizes, machines) @ coefficients
        return seconds


def fit_curve(sizes: ArrayLike, machines: ArrayLike, seconds: ArrayLike, *, relative: bool = False) -> ErnestCurve:
    """Non-negative least squares.

    Args:
        sizes: Samples per iteration of each run.
        machines: Devices of each run.
        seconds: Seconds per iteration of each run.
        relative: Weigh each run by what it took, so that shares of it count instead of seconds. Ernest does not.

    Raises:
        TooFewRunsError: There is no run.
    """
    took = np.asarray(seconds, dtype=float)
    if not took.size:
        raise TooFewRunsError("Ernest needs a run at least")
    terms = _terms(sizes, machines)
    if relative:
        terms, took = terms / took[:, None], np.ones_like(took)
    # Columns of like size keep the solver's tolerance meaningful; a column of zeros (log 1) stays one.
    scale = np.abs(terms).max(axis=0)
    scale[scale == 0] = 1
    found, _ = nnls(terms / scale, took)
    return ErnestCurve(*(float(each) for each in found / scale))


class PooledErnest:
    """One curve for all networks, as the PredictDDL paper has it.

    Args:
        relative: Weigh runs by what they took.
    """

    def __init__(self, *, relative: bool = False) -> None:
        self.relative = relative

    def fit(self, measurements: Sequence[WorkloadMeasurement]) -> PooledErnest:
        """Fit on the runs of all networks.

        Raises:
            TooFewRunsError: There are none.
        """
        self.curve_ = _fit(measurements, relative=self.relative)
        return self

    def predict(self, requests: Sequence[WorkloadRequest]) -> NDArray[np.float64]:
        """Seconds per iteration."""
        return _seconds(self.curve_, requests)


class PerWorkloadErnest:
    """One curve for every network on every kind of device, from that network's own runs.

    Args:
        least_runs: A workload with fewer runs has no curve.
        relative: Weigh runs by what they took.
    """

    def __init__(self, *, least_runs: int = 3, relative: bool = False) -> None:
        self.least_runs = least_runs
        self.relative = relative

    def fit(self, measurements: Sequence[WorkloadMeasurement]) -> PerWorkloadErnest:
        """Fit a curve per workload that has runs enough."""
        runs: dict[Hashable, list[WorkloadMeasurement]] = defaultdict(list)
        for each in measurements:
            runs[workload_of(each.request)].append(each)
        self.curves_ = {
            workload: _fit(each, relative=self.relative)
            for workload, each in runs.items()
            if len(each) >= self.least_runs
        }
        return self

    def predict(self, requests: Sequence[WorkloadRequest]) -> NDArray[np.float64]:
        """Seconds per iteration; NaN for a workload without a curve, which Ernest would first have to run."""
        found = [self.curves_.get(workload_of(each)) for each in requests]
        return np.array(
            [
                math.nan if curve is None else float(_seconds(curve, [request])[0])
                for curve, request in zip(found, requests, strict=True)
            ]
        )


def workload_of(request: WorkloadRequest) -> Hashable:
    """What Ernest takes for one workload: a network at one image size on one kind of device in one place."""
    cluster = request.cluster
    return (
        request.graph.name,
        request.graph.operations[0].output,
        cluster.device,
        cluster.precision,
        cluster.environment,
    )


def _fit(measurements: Sequence[WorkloadMeasurement], *, relative: bool) -> ErnestCurve:
    requests = [each.request for each in measurements]
    return fit_curve(*_runs(requests), [each.seconds for each in measurements], relative=relative)


def _seconds(curve: ErnestCurve, requests: Sequence[WorkloadRequest]) -> NDArray[np.float64]:
    return curve.seconds(*_runs(requests))


def _runs(requests: Sequence[WorkloadRequest]) -> tuple[list[int], list[int]]:
    return [each.global_batch_size for each in requests], [each.cluster.device_count for each in requests]


def _terms(sizes: ArrayLike, machines: ArrayLike) -> NDArray[np.float64]:
    samples, count = np.asarray(sizes, dtype=float), np.asarray(machines, dtype=float)
    return np.column_stack([np.ones_like(samples), samples / count, np.log(count), count])
