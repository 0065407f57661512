"""Errors on PROFET's Keras networks: random split and unseen architectures."""

from __future__ import annotations

import argparse

import accuracy
import numpy as np
import rows as cut
from page import bar, percent, table

from gpusonde.predictor.workload.engine import WorkloadProtocol

NAME = "PROFET"


def section(args: argparse.Namespace) -> list[str]:
    """Lines of the section, bars noted in ``args``."""
    rows = cut.profet(args)
    random, unseen = (
        accuracy.asked(args, NAME, rows, each) for each in (WorkloadProtocol.RANDOM, WorkloadProtocol.ARCHITECTURE)
    )
    random_error, median = float(random.errors.mean()), float(np.median(unseen.errors))
    bar(args, "PROFET rows, random 80/20", "<= 3.5 %", percent(random_error), met=random_error <= 0.035)
    bar(args, "PROFET rows, leave one architecture out, median", "<= 9 %", percent(median), met=median <= 0.09)
    said = (
        f"{len(rows)} rows, {len({each.architecture for each in rows})} architectures, "
        f"{len({each.request.cluster.device for each in rows})} GPUs."
    )
    return [
        "## PROFET rows",
        "",
        said,
        "",
        *table(accuracy.COLUMNS, accuracy.table_rows(args, NAME, rows)),
        *accuracy.said_of(unseen),
    ]
