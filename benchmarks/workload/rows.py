"""The measurements, and how they are cut into what is known and what is asked for.

The error is ``|estimate - measurement| / measurement``; the mean over all test rows, each counting alike, unless it
says median.

Rows: torchvision rows: all rows of ``ryujaehun/pytorch-gpu-benchmark`` whose network has a graph (batches of 12 per
GPU, images of 224 pixels, three precisions, 1 to 4 GPUs). PROFET rows: all of ``ddps-lab/profet`` (Keras networks,
five image sizes, five batch sizes, one GPU). No row is dropped for its value. A machine is a host as the source names
it.

Random 80/20: The seed's protocol, ``ShuffleSplit(5, test_size=0.2, random_state=0)``: all architectures are on both
sides, and a network's name alone does well in it.

Leave one architecture (family) out: each once: all its rows are asked for by a model fitted on all other rows. Per
machine, fp32: with the fp32 rows of one machine alone, for every machine with rows on 1, 2, 3 and 4 GPUs; the mean.
Fitting, choice of regressor, scaling, intervals and flags see the training rows of the fold only, and validate inside
them, grouped by architecture (mode ``paper``, the seed's cluster and GHN embedding with PR2 on the time itself:
random validation).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from page import NotRunError

from gpusonde.catalog import Precision, load_gpus
from gpusonde.predictor.workload.engine import (
    Fold,
    MeasurementTable,
    WorkloadMeasurement,
    WorkloadProtocol,
    cut_folds,
    read_measurements,
)

Rows = Sequence[WorkloadMeasurement]
Floats = NDArray[np.float64]


def read(args: argparse.Namespace) -> MeasurementTable:
    """The whole table.

    Raises:
        NotRunError: It is not there.
    """
    if not args.data.is_file():
        raise NotRunError("needs the table of measured training times that --data names")
    if getattr(args, "table", None) is None:
        args.table = read_measurements(args.data, load_gpus())
    table: MeasurementTable = args.table
    return table


def torchvision(args: argparse.Namespace) -> Rows:
    """Rows of torchvision's networks."""
    return _some(args, "torchvision", lambda each: each.request.graph.front_end != "keras")


def profet(args: argparse.Namespace) -> Rows:
    """Rows of Keras networks."""
    return _some(args, "PROFET", lambda each: each.request.graph.front_end == "keras")


def machines(rows: Rows) -> dict[str, Rows]:
    """Rows in fp32 of every machine that has some with 1, 2, 3 and 4 GPUs."""
    by_machine: dict[str, list[WorkloadMeasurement]] = defaultdict(list)
    for each in rows:
        if each.request.cluster.precision is Precision.FP32:
            by_machine[each.request.cluster.environment or ""].append(each)
    return {
        machine: found
        for machine, found in by_machine.items()
        if {each.request.cluster.device_count for each in found} >= {1, 2, 3, 4}
    }


def folds(rows: Rows, protocol: WorkloadProtocol, quick: bool) -> list[Fold]:
    """How the rows are cut; two folds of a quick run."""
    return list(cut_folds(rows, protocol))[: 2 if quick else None]


def seconds(rows: Rows) -> Floats:
    """What was measured."""
    return np.array([each.seconds for each in rows])


def errors(estimates: Floats, rows: Rows) -> Floats:
    """Relative errors."""
    measured = seconds(rows)
    return np.abs(estimates - measured) / measured


def _some(args: argparse.Namespace, name: str, belongs: Callable[[WorkloadMeasurement], bool]) -> Rows:
    found = [each for each in read(args).measurements if belongs(each)]
    if not found:
        raise NotRunError(f"needs {name} rows, of which the table of --data has none")
    return found
