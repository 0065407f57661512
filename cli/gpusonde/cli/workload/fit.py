"""``gpusonde workload fit``: a model of training times fitted on the user's own measurements."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, cast

from gpusonde import formatting
from gpusonde.cli.errors import check_writable, error_context
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser
from gpusonde.cli.workload.embed import load_encoder
from gpusonde.cli.workload.predict import REGRESSORS

if TYPE_CHECKING:
    from gpusonde.predictor.workload.embedding import EncoderWeights
    from gpusonde.predictor.workload.engine import EncoderEmbedder, MeasurementTable, WorkloadModel

_MOST_REASONS = 3


class LeftOutPayload(TypedDict):
    """Measurements that cannot be used."""

    reason: Annotated[str, JsonKey("no graph, or an unknown GPU")]
    measurements: int


class OfferedEncoderPayload(TypedDict):
    """An encoder whose columns were offered."""

    dataset_type: str
    sha256: Annotated[str, JsonKey("the model needs it to predict")]
    kept: Annotated[bool, JsonKey("its columns stayed")]
    error: Annotated[float, JsonKey("of the best regressor with them")]
    error_without: Annotated[float | None, JsonKey("of the best one without")]


class FittedRegressorPayload(TypedDict):
    """A regressor that was fitted."""

    regressor: str
    features: str
    error: Annotated[float, JsonKey("in validation")]


class FitPayload(TypedDict):
    """What ``gpusonde workload fit`` prints."""

    measurements_file: str
    mode: Annotated[str, JsonKey("`default` or `paper`")]
    measurements: Annotated[int, JsonKey("used rows")]
    left_out: list[LeftOutPayload]
    networks: list[str]
    gpus: list[str]
    model: str
    model_bytes: int
    model_version: str
    encoder: Annotated[OfferedEncoderPayload | None, JsonKey("null without `--encoder`")]
    encoder_file: Annotated[str | None, JsonKey("beside the model, where it is not shipped")]
    regressors: Annotated[list[FittedRegressorPayload], JsonKey("the one that answers first")]


def add_fit_options(parser: Parser) -> None:
    """Declare ``gpusonde workload fit``."""
    parser.description = (
        "Fit a model of training times on your own measurements, for 'predict --model'. The table has a row per "
        "measurement: model (a known network or a graph file beside the table), gpu, batch_per_gpu, sec_per_iter and "
        "more (docs/workload.md). What is fitted is chosen by leaving networks out."
    )
    parser.add_argument("measurements", type=Path, metavar="MEASUREMENTS.csv", help="one row per measurement")
    parser.add_argument("--out", type=Path, required=True, metavar="MODEL", help="file to write the model to")
    parser.add_argument("--regressor", choices=REGRESSORS, help="instead of the one that validation chooses")
    parser.add_argument(
        "--mode",
        choices=("default", "paper"),
        default="default",
        help="paper: as published, chosen by a random split (default: by leaving networks out)",
    )
    parser.add_argument(
        "--encoder",
        metavar="[DIR/]NAME",
        help="offer columns of the embedding by this encoder, shipped (digits), of a registry made by 'workload "
        "train', or its file; they stay where validation is clearly better with them",
    )


def run_fit(args: argparse.Namespace) -> int:
    """Read, fit, write and print."""
    from gpusonde.catalog import load_gpus
    from gpusonde.predictor.workload.engine import EncoderEmbedder, KnownNetworks, WorkloadModel, read_measurements

    output = Output(as_json=args.json)
    check_writable(args.out)
    weights = None if args.encoder is None else load_encoder(args.encoder)
    table = read_measurements(args.measurements, load_gpus(), KnownNetworks(folder=args.measurements.parent))
    with (
        output.progress(f"fitting on {len(table.measurements)} measurements"),
        error_context(args.measurements),
        _name_left_out(table),
    ):
        embedder = None if weights is None else EncoderEmbedder(weights)
        model = WorkloadModel(embed=embedder).fit(table.measurements, kind=args.mode, regressor=args.regressor)
    model.save(args.out)
    found = fit_payload(model, table, args, embedder)
    if weights is not None and model.encoder is not None:
        found["encoder_file"] = _keep_encoder(args.out.parent, weights)
    output.result(found, lambda screen: _render(screen, found))
    return 0


def _keep_encoder(folder: Path, weights: EncoderWeights) -> str | None:
    """Write the encoder that a model needs beside it, where it is looked for; None where it is a shipped one."""
    from gpusonde.errors import UnknownEncoderError
    from gpusonde.predictor.workload.embedding import Registry, name_checkpoint
    from gpusonde.service.durable_files import write_durably

    dataset_type = weights.description.dataset_type
    try:
        Registry().exact(dataset_type, weights.sha256)
    except UnknownEncoderError:
        path = folder / name_checkpoint(dataset_type, weights.sha256)
        write_durably(path, weights.to_bytes())
        return str(path)
    return None


@contextmanager
def _name_left_out(table: MeasurementTable) -> Iterator[None]:
    """Where too few rows are left, add why others cannot be used: a name that nobody knows may be all that is wrong."""
    from gpusonde.errors import TooFewRunsError

    try:
        yield
    except TooFewRunsError as error:
        error.args = (f"{error}{describe_left_out(table)}",)
        raise


def describe_left_out(table: MeasurementTable) -> str:
    """Return what to add to an error about too few rows; nothing where all rows can be used."""
    reasons = [f"{formatting.count(count, 'row')}: {reason}" for reason, count in table.left_out.items()]
    if not reasons:
        return ""
    more = f"; and {len(reasons) - _MOST_REASONS} more reasons" if len(reasons) > _MOST_REASONS else ""
    return f"; left out: {'; '.join(reasons[:_MOST_REASONS])}{more}"


def fit_payload(
    model: WorkloadModel, table: MeasurementTable, args: argparse.Namespace, embedder: EncoderEmbedder | None = None
) -> FitPayload:
    """Return what is printed of a model and what it was fitted on."""
    found, trial = table.measurements, model.state.trial
    offered = None
    if embedder is not None and trial is not None:
        offered = cast(OfferedEncoderPayload, {**asdict(embedder.reference), **asdict(trial)})
    return {
        "measurements_file": str(args.measurements),
        "mode": args.mode,
        "measurements": len(found),
        "left_out": [{"reason": reason, "measurements": count} for reason, count in table.left_out.items()],
        "networks": sorted({each.architecture for each in found}),
        "gpus": sorted({each.request.cluster.device for each in found}),
        "model": str(args.out),
        "model_bytes": args.out.stat().st_size,
        "model_version": model.version,
        "encoder": offered,
        "encoder_file": None,
        "regressors": [
            {"regressor": name, "features": model.state.estimators[name].estimator.candidate.features, "error": error}
            for name, error in model.scores.items()
        ],
    }


def _render(screen: Screen, found: FitPayload) -> None:
    for each in found["left_out"]:
        screen.note(f"left out: {formatting.count(each['measurements'], 'measurement')}: {each['reason']}")
    screen.line(
        f"fitted on {formatting.count(found['measurements'], 'measurement')} of"
        f" {formatting.count(len(found['networks']), 'network')} on {', '.join(found['gpus'])}"
    )
    columns = ("error on networks left out",) if found["mode"] == "default" else ("error on rows left out",)
    screen.table(
        ("regressor", "on", *columns),
        [(each["regressor"], each["features"], formatting.percent(each["error"], 1)) for each in found["regressors"]],
        numeric=columns,
    )
    if found["encoder"] is not None:
        screen.line(_describe_offer(found["encoder"]))
    screen.line(f"{found['regressors'][0]['regressor']} answers, unless 'predict --regressor' asks for another one")
    screen.line(f"model {found['model_version']} written to {found['model']}")
    if found["encoder_file"] is not None:
        screen.line(f"its encoder is in {found['encoder_file']}: keep the two files together")


def _describe_offer(encoder: OfferedEncoderPayload) -> str:
    name, error = f"the embedding of {encoder['dataset_type']}", formatting.percent(encoder["error"], 1)
    if encoder["error_without"] is None:
        return f"{name} describes the networks, as published"
    without = formatting.percent(encoder["error_without"], 1)
    if encoder["kept"]:
        return f"{name} stays: an error of {error} with it, {without} without, on networks left out"
    return f"{name} is left out: {error} with it is not clearly less than {without} without, on networks left out"
