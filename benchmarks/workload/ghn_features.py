"""Whether the engine, which may choose among features, gains by those of a GHN."""

from __future__ import annotations

import argparse

import accuracy
import profet_rows
import rows as cut
import torchvision_rows
from page import percent, table

from gpusonde.predictor.workload.engine import WorkloadProtocol


def section(args: argparse.Namespace) -> list[str]:
    """Lines of the section."""
    said = "Leave one architecture out, SVR alone: error by the embedding offered, and in how many folds it was chosen."
    columns, found = [], []
    for name, rows in ((torchvision_rows.NAME, cut.torchvision(args)), (profet_rows.NAME, cut.profet(args))):
        offered = {}
        for embedding, fit in (
            ("none", accuracy.svr),
            ("trained GHN", accuracy.svr_with_ghn),
            ("untrained GHN", accuracy.svr_with_untrained_ghn),
        ):
            if fit is accuracy.svr_with_ghn and not accuracy.has_trained_encoder():
                continue
            asked = accuracy.asked(args, name, rows, WorkloadProtocol.ARCHITECTURE, fit)
            chosen = dict(zip(asked.folds, (each.features for each in asked.predictions), strict=True)).values()
            taken = sum("embedding" in each for each in chosen)
            offered[embedding] = f"{percent(float(asked.errors.mean()))}, {taken} of {len(chosen)}"
        columns = ["rows", *offered]
        found.append((name, *offered.values()))
    return [
        "## GHN features",
        "",
        said,
        "",
        *table(columns, found),
    ]
