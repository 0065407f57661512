"""Whether the engine, which may choose among features, gains by those of a GHN."""

from __future__ import annotations

import argparse

import accuracy
import numpy as np
import profet_rows
import rows as cut
import torchvision_rows
from page import percent, table

from gpusonde.predictor.workload.engine import WorkloadProtocol


def section(args: argparse.Namespace) -> list[str]:
    """Lines of the section."""
    said = (
        "Leave one architecture out, the default engine with its SVR alone, by the embedding that is offered; in how "
        "many folds validation chose it."
    )
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
            errors = f"{percent(float(asked.errors.mean()))} (median {percent(float(np.median(asked.errors)))})"
            offered[embedding] = f"{errors}, in {taken} of {len(chosen)} folds"
        columns = ["rows", *offered]
        found.append((name, *offered.values()))
    return [
        "## GHN features",
        "",
        said,
        "",
        *table(columns, found),
    ]
