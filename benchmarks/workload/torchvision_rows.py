"""Errors on torchvision's networks: random split, unseen architectures, single machines."""

from __future__ import annotations

import argparse

import accuracy
import controls
import numpy as np
import rows as cut
from page import bar, percent, table

from gpusonde.predictor.workload.engine import WorkloadProtocol

NAME = "torchvision"


def section(args: argparse.Namespace) -> list[str]:
    """Lines of the section, bars noted in ``args``."""
    rows = cut.torchvision(args)
    random, unseen = (
        accuracy.asked(args, NAME, rows, each) for each in (WorkloadProtocol.RANDOM, WorkloadProtocol.ARCHITECTURE)
    )
    random_error, error = float(random.errors.mean()), float(unseen.errors.mean())
    bar(args, "torchvision rows, random 80/20", "<= 5.5 %", percent(random_error), met=random_error <= 0.055)
    bar(args, "torchvision rows, leave one architecture out", "<= 6.5 %", percent(error), met=error <= 0.065)
    machine_lines = _machines(args, rows)
    said = (
        f"{len(rows)} rows, {len({each.architecture for each in rows})} architectures, "
        f"{len({each.request.cluster.environment for each in rows})} machines."
    )
    return [
        "## Torchvision rows",
        "",
        said,
        "",
        *table(accuracy.COLUMNS, accuracy.table_rows(args, NAME, rows)),
        *accuracy.said_of(unseen),
        *machine_lines,
    ]


def _machines(args: argparse.Namespace, rows: cut.Rows) -> list[str]:
    ours, theirs = [], []
    for machine, found in sorted(cut.machines(rows).items()):
        answers = accuracy.asked(args, machine, found, WorkloadProtocol.ARCHITECTURE)
        beside = controls.layers_and_parameters_errors(found, quick=args.quick)
        ours.append(float(answers.errors.mean()))
        theirs.append(float(beside.mean()))
    if not ours:
        return ["No machine has rows with 1, 2, 3 and 4 GPUs in fp32.", ""]
    error, beside_error = float(np.mean(ours)), float(np.mean(theirs))
    met = error <= 0.065 and error <= beside_error / 2
    measured = f"{percent(error)}, layers + parameters {percent(beside_error)}"
    bar(
        args,
        "per machine, fp32, leave one architecture out",
        "<= 6.5 %, half of layers + parameters",
        measured,
        met=met,
    )
    return []
