"""``gpusonde workload fit``: a model of training times fitted on the user's own measurements."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusonde.cli import wording
from gpusonde.cli.errors import naming
from gpusonde.cli.files import check_writable
from gpusonde.cli.output import Output, Screen
from gpusonde.cli.parsing import Parser, Subparsers, UsageError, add_command
from gpusonde.cli.workload.encoders import add_registry_option, named_encoder, registry_of, where_to_have
from gpusonde.cli.workload.predict import REGRESSORS

if TYPE_CHECKING:
    from gpusonde.predictor.workload.engine import EncoderEmbedder
    from gpusonde.predictor.workload.engine.measurements import MeasurementTable
    from gpusonde.predictor.workload.engine.model import WorkloadModel

_MOST_REASONS = 3


def add_fit_parser(subparsers: Subparsers, common: Parser) -> None:
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
    group = parser.add_argument_group(
        "columns of an embedding", "They stay in the model where validation is clearly better with them."
    )
    group.add_argument(
        "--encoder",
        metavar="NAME|FILE.npz",
        help="offer the embedding by this encoder: of a type of data, such as digits, or a checkpoint's file",
    )
    add_registry_option(group)


def run_fit(args: argparse.Namespace) -> int:
    """Read, fit, write and print."""
    from gpusonde.catalog import load_gpus
    from gpusonde.cli.workload.networks import NetworksBeside
    from gpusonde.predictor.workload.engine.measurements import read_measurements
    from gpusonde.predictor.workload.engine.model import WorkloadModel

    output = Output(as_json=args.json)
    if args.registry is not None and args.encoder is None:
        raise UsageError("--registry belongs to --encoder")
    check_writable(args.out)
    embedder = None if args.encoder is None else named_encoder(args.encoder, registry_of(args))
    table = read_measurements(args.measurements, load_gpus(), NetworksBeside(args.measurements.parent))
    with (
        output.progress(f"fitting on {len(table.measurements)} measurements"),
        naming(args.measurements),
        _saying_what_was_left_out(table),
    ):
        model = WorkloadModel(embed=embedder).fit(table.measurements, kind=args.kind, regressor=args.regressor)
    model.save(args.out)
    found = fit_payload(model, table, args, embedder)
    needed = "" if model.encoder is None or embedder is None else where_to_have(embedder)
    output.result(found, lambda screen: _render_fit(screen, found, needed))
    return 0


@contextmanager
def _saying_what_was_left_out(table: MeasurementTable) -> Iterator[None]:
    """Where too few rows are left, add why others cannot be used: a name that nobody knows may be all that is wrong."""
    from gpusonde.predictor.workload.engine.request import TooFewMeasurementsError

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


def fit_payload(
    model: WorkloadModel, table: MeasurementTable, args: argparse.Namespace, embedder: EncoderEmbedder | None = None
) -> dict[str, Any]:
    """What is printed of a model and what it was fitted on."""
    found, trial = table.measurements, model.state.trial
    offered = None
    if embedder is not None and trial is not None:
        offered = {**asdict(embedder.reference), **asdict(trial)}
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
        "encoder": offered,
        "regressors": [
            {"regressor": name, "features": model.state.estimators[name].estimator.candidate.features, "error": error}
            for name, error in model.scores.items()
        ],
    }


def _render_fit(screen: Screen, found: dict[str, Any], needed: str) -> None:
    for each in found["left_out"]:
        screen.note(f"left out: {wording.count(each['measurements'], 'measurement')}: {each['reason']}")
    screen.line(
        f"fitted on {wording.count(found['measurements'], 'measurement')} of"
        f" {wording.count(len(found['networks']), 'network')} on {', '.join(found['gpus'])}"
    )
    columns = ("error on networks left out",) if found["kind"] == "default" else ("error on rows left out",)
    screen.table(
        ("regressor", "on", *columns),
        [(each["regressor"], each["features"], wording.percent(each["error"], 1)) for each in found["regressors"]],
        numeric=columns,
    )
    if found["encoder"] is not None:
        screen.line(_said_of_offer(found["encoder"]))
    screen.line(f"{found['regressors'][0]['regressor']} answers, unless 'predict --regressor' asks for another one")
    screen.line(f"model {found['model_version']} written to {found['model']}")
    if needed:
        screen.line(needed)


def _said_of_offer(encoder: dict[str, Any]) -> str:
    name, error = f"the embedding of {encoder['dataset_type']}", wording.percent(encoder["error"], 1)
    if encoder["error_without"] is None:
        return f"{name} describes the networks, as published"
    without = wording.percent(encoder["error_without"], 1)
    if encoder["kept"]:
        return f"{name} stays: an error of {error} with it, {without} without, on networks left out"
    return f"{name} is left out: {error} with it is not clearly less than {without} without, on networks left out"
