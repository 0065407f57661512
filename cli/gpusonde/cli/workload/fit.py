"""``gpusonde workload fit``: a model of training times fitted on the user's own measurements."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusonde.cli import wording
from gpusonde.cli.errors import naming
from gpusonde.cli.files import check_writable
from gpusonde.cli.output import Output, Screen
from gpusonde.cli.parsing import Parser, Subparsers, add_command
from gpusonde.cli.workload.predict import REGRESSORS

if TYPE_CHECKING:
    from gpusonde.predictor.workload.engine.measurements import MeasurementTable
    from gpusonde.predictor.workload.engine.model import WorkloadModel

_MOST_REASONS = 3


def add_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde workload fit``."""
    parser = add_command(
        subparsers,
        common,
        "fit",
        "fit a model of training times on your own measurements",
        "Fit a model of training times on your own measurements, for 'predict --model'. The table has a row per "
        "measurement: model (a known network or a graph file beside the table), gpu, batch_per_gpu, sec_per_iter and "
        "more (docs/workload.md). What is fitted is chosen by leaving networks out.",
    )
    parser.add_argument("measurements", type=Path, metavar="MEASUREMENTS.csv", help="one row per measurement")
    parser.add_argument("--out", type=Path, required=True, metavar="MODEL", help="file to write the model to")
    parser.add_argument("--regressor", choices=REGRESSORS, help="instead of the one that validation chooses")
    parser.add_argument(
        "--kind",
        choices=("default", "paper"),
        default="default",
        help="paper: as published, chosen by a random split (default: by leaving networks out)",
    )


def run(args: argparse.Namespace) -> int:
    """Read, fit, write and print."""
    from gpusonde.catalog import load_gpus
    from gpusonde.cli.workload.networks import NetworksBeside
    from gpusonde.predictor.workload.engine.measurements import read_measurements
    from gpusonde.predictor.workload.engine.model import WorkloadModel

    output = Output(as_json=args.json)
    check_writable(args.out)
    table = read_measurements(args.measurements, load_gpus(), NetworksBeside(args.measurements.parent))
    with (
        output.progress(f"fitting on {len(table.measurements)} measurements"),
        naming(args.measurements),
        _saying_what_was_left_out(table),
    ):
        model = WorkloadModel().fit(table.measurements, kind=args.kind, regressor=args.regressor)
    model.save(args.out)
    found = payload(model, table, args)
    output.result(found, lambda screen: _render(screen, found))
    return 0


@contextmanager
def _saying_what_was_left_out(table: MeasurementTable) -> Iterator[None]:
    """Where too few rows are left, add why others cannot be used: a name that nobody knows may be all that is wrong."""
    from gpusonde.predictor.workload.engine.errors import TooFewMeasurementsError

    try:
        yield
    except TooFewMeasurementsError as error:
        error.args = (f"{error}{left_out_words(table)}",)
        raise


def left_out_words(table: MeasurementTable) -> str:
    """What to add to an error about too few rows; nothing where all rows can be used."""
    reasons = [f"{wording.count(count, 'row')}: {reason}" for reason, count in table.left_out.items()]
    if not reasons:
        return ""
    more = f"; and {len(reasons) - _MOST_REASONS} more reasons" if len(reasons) > _MOST_REASONS else ""
    return f"; left out: {'; '.join(reasons[:_MOST_REASONS])}{more}"


def payload(model: WorkloadModel, table: MeasurementTable, args: argparse.Namespace) -> dict[str, Any]:
    """What is printed of a model and what it was fitted on."""
    found = table.measurements
    return {
        "measurements_file": str(args.measurements),
        "kind": args.kind,
        "measurements": len(found),
        "left_out": [{"reason": reason, "measurements": count} for reason, count in table.left_out.items()],
        "networks": sorted({each.architecture for each in found}),
        "gpus": sorted({each.request.cluster.device for each in found}),
        "model": str(args.out),
        "model_bytes": args.out.stat().st_size,
        "model_version": model.version,
        "regressors": [{"regressor": name, "error": error} for name, error in model.scores.items()],
    }


def _render(screen: Screen, found: dict[str, Any]) -> None:
    for each in found["left_out"]:
        screen.note(f"left out: {wording.count(each['measurements'], 'measurement')}: {each['reason']}")
    screen.line(
        f"fitted on {wording.count(found['measurements'], 'measurement')} of"
        f" {wording.count(len(found['networks']), 'network')} on {', '.join(found['gpus'])}"
    )
    columns = ("error on networks left out",) if found["kind"] == "default" else ("error on rows left out",)
    screen.table(
        ("regressor", *columns),
        [(each["regressor"], wording.percent(each["error"], 1)) for each in found["regressors"]],
        numeric=columns,
    )
    screen.line(f"{found['regressors'][0]['regressor']} answers, unless 'predict --regressor' asks for another one")
    screen.line(f"model {found['model_version']} written to {found['model']}")
