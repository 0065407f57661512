"""The measurements, cut as docs/results/workload.md says."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from page import NotRunError

from gpusonde.catalog import load_gpus
from gpusonde.predictor.workload.engine import Precision, WorkloadMeasurement
from gpusonde.predictor.workload.engine.measurements import MeasurementTable, read_measurements

Rows = Sequence[WorkloadMeasurement]
Floats = NDArray[np.float64]
Fold = tuple[NDArray[np.intp], NDArray[np.intp]]
_RANDOM_SPLITS = 5


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


def random_splits(rows: Rows, quick: bool) -> list[Fold]:
    """Random 80/20, the same rows every time."""
    from sklearn.model_selection import ShuffleSplit

    splits = ShuffleSplit(1 if quick else _RANDOM_SPLITS, test_size=0.2, random_state=0)
    return list(splits.split(np.zeros(len(rows))))


def leave_out(groups: Sequence[str], quick: bool) -> Iterator[tuple[str, Fold]]:
    """Each group once: its name, the rows to fit on, the rows to ask for."""
    names = np.array(groups)
    for name in sorted(set(groups))[: 2 if quick else None]:
        yield name, (np.flatnonzero(names != name), np.flatnonzero(names == name))


def architectures(rows: Rows) -> list[str]:
    """What is left out together in leave one architecture out."""
    return [each.architecture for each in rows]


def families(rows: Rows) -> list[str]:
    """What is left out together in leave one family out."""
    return [each.family for each in rows]


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
