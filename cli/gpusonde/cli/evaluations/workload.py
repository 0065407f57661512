"""``gpusonde evaluate workload``: how well training times are predicted for networks that a model has not seen."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, cast

from gpusonde import formatting
from gpusonde.cli.errors import error_context
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser, names
from gpusonde.cli.workload.fit import LeftOutPayload, describe_left_out
from gpusonde.errors import CommandError, UsageError

if TYPE_CHECKING:
    from gpusonde.predictor.workload.engine import Flags, MeasurementTable, WorkloadEvaluation

_PROTOCOLS = {
    "random": "a fifth of the rows",
    "architecture": "each network",
    "family": "each family of networks",
}
_MODES = ("default", "paper")
_COLUMNS = (
    "held out",
    "mode",
    "predictions",
    "mean error",
    "median",
    "90 % quantile",
    "coverage",
    "flagged",
    "off by 3x",
    "not flagged",
)


class GraphScoresPayload(TypedDict):
    """Scores of training times; null where the table is too small for the protocol."""

    predictions: int | None
    mape: Annotated[float | None, JsonKey("relative error: mean, median, 90 % quantile")]
    median_ape: Annotated[float | None, JsonKey("relative error: mean, median, 90 % quantile")]
    p90_ape: Annotated[float | None, JsonKey("relative error: mean, median, 90 % quantile")]
    coverage: Annotated[float | None, JsonKey("90 % intervals that hold the truth")]
    out_of_distribution: Annotated[float | None, JsonKey("share flagged so")]
    off_by_3x: Annotated[int | None, JsonKey("answers off by a factor of three or more")]
    off_by_3x_unflagged: Annotated[int | None, JsonKey("of them without the flag")]


class FoldScoresPayload(GraphScoresPayload):
    """The scores of what was held out at a time."""

    held_out: str


class GraphProtocolPayload(GraphScoresPayload):
    """The scores of one mode by one protocol."""

    protocol: str
    mode: str
    reason: Annotated[str | None, JsonKey("why there are no scores")]
    by_fold: list[FoldScoresPayload]


class EvaluateWorkloadPayload(TypedDict):
    """What ``gpusonde evaluate workload`` prints."""

    measurements_file: str
    measurements: Annotated[int, JsonKey("usable ones")]
    left_out: list[LeftOutPayload]
    networks: int
    gpus: list[str]
    results: Annotated[list[GraphProtocolPayload], JsonKey("one for each protocol and mode")]


def add_workload_options(parser: Parser) -> None:
    """Declare ``gpusonde evaluate workload``."""
    parser.description = (
        "Fit the engine to a part of a table of measured training steps and score it on the rest (docs/workload.md). "
        "Nothing of what is asked for reaches fitting, choice of regressor or intervals. Minutes."
    )
    parser.add_argument(
        "measurements", type=Path, metavar="MEASUREMENTS.csv", help="one row per measurement, as 'workload fit' reads"
    )
    group = parser.add_argument_group("what is scored")
    group.add_argument(
        "--protocol",
        type=names,
        metavar="A,B",
        help=f"what is held out: {', '.join(_PROTOCOLS)} (default: architecture)",
    )
    group.add_argument(
        "--mode", type=names, metavar="A,B", help="default: our engine; paper: the published one (default: default)"
    )


def run_workload(args: argparse.Namespace) -> int:
    """Fit, predict, score, print."""
    for option, chosen, known in (("protocol", args.protocol, tuple(_PROTOCOLS)), ("mode", args.mode, _MODES)):
        for name in chosen or ():
            if name not in known:
                raise UsageError(f"--{option} {name!r} is unknown; use {', '.join(known)}")
    from gpusonde.catalog import load_gpus
    from gpusonde.predictor.workload.engine import KnownNetworks, read_measurements

    output = Output(as_json=args.json)
    table = read_measurements(args.measurements, load_gpus(), KnownNetworks(folder=args.measurements.parent))
    rows = [
        _row(output, table, protocol, mode)
        for protocol in args.protocol or ("architecture",)
        for mode in args.mode or ("default",)
    ]
    if all(row["mape"] is None for row in rows):
        with error_context(args.measurements):
            raise CommandError((rows[0]["reason"] or "") + describe_left_out(table))
    found = table.measurements
    payload: EvaluateWorkloadPayload = {
        "measurements_file": str(args.measurements),
        "measurements": len(found),
        "left_out": [{"reason": reason, "measurements": count} for reason, count in table.left_out.items()],
        "networks": len({each.architecture for each in found}),
        "gpus": sorted({each.request.cluster.device for each in found}),
        "results": rows,
    }
    output.result(payload, lambda screen: _render(screen, payload))
    return 0


def _row(output: Output, table: MeasurementTable, protocol: str, mode: str) -> GraphProtocolPayload:
    """Scores of one mode by one protocol; a table that is too small for it gives nulls and a reason."""
    import numpy as np

    from gpusonde.errors import ModelError
    from gpusonde.predictor.workload.engine import WorkloadModel, WorkloadProtocol, cut_folds, evaluate

    try:
        folds = list(cut_folds(table.measurements, WorkloadProtocol(protocol)))
        with output.progress(f"{_PROTOCOLS[protocol]}, {mode}", 1.0) as show:
            done = itertools.count(1)
            found = evaluate(
                table.measurements,
                folds,
                lambda known: WorkloadModel().fit(known, kind=mode),
                done=lambda _name: show(next(done) / len(folds)),
            )
    except ModelError as error:
        none = cast(GraphScoresPayload, dict.fromkeys(GraphScoresPayload.__annotations__))
        return {"protocol": protocol, "mode": mode, "reason": str(error), **none, "by_fold": []}
    return {
        "protocol": protocol,
        "mode": mode,
        "reason": None,
        **_scores(found, np.ones(len(found.errors), dtype=bool)),
        "by_fold": [{"held_out": name, **_scores(found, some)} for name, some in found.by_fold().items()],
    }


def _scores(found: WorkloadEvaluation, some: Flags) -> GraphScoresPayload:
    import numpy as np

    errors, flagged, far_off = found.errors[some], found.flagged[some], found.far_off[some]
    return {
        "predictions": len(errors),
        "mape": float(errors.mean()),
        "median_ape": float(np.median(errors)),
        "p90_ape": float(np.quantile(errors, 0.9)),
        "coverage": float(found.covered[some].mean()),
        "out_of_distribution": float(flagged.mean()),
        "off_by_3x": int(far_off.sum()),
        "off_by_3x_unflagged": int((far_off & ~flagged).sum()),
    }


def _render(screen: Screen, payload: EvaluateWorkloadPayload) -> None:
    for each in payload["left_out"]:
        screen.note(f"left out: {formatting.count(each['measurements'], 'measurement')}: {each['reason']}")
    screen.heading(
        f"{payload['measurements_file']}: {formatting.count(payload['measurements'], 'measurement')} of "
        f"{formatting.count(payload['networks'], 'network')} on {', '.join(payload['gpus'])}"
    )
    screen.table(_COLUMNS, [_cells(row) for row in payload["results"]], numeric=_COLUMNS[2:])
    for row in payload["results"]:
        if row["reason"]:
            screen.note(f"note: {row['protocol']}, {row['mode']}: {row['reason']}")
    screen.line("errors are relative to the measured seconds; 'not flagged' counts those off by 3x without a warning")


def _cells(row: GraphProtocolPayload) -> tuple[str, ...]:
    if row["mape"] is None:
        return (_PROTOCOLS[row["protocol"]], row["mode"], *[formatting.ABSENT] * (len(_COLUMNS) - 2))
    return (
        _PROTOCOLS[row["protocol"]],
        row["mode"],
        str(row["predictions"]),
        *(
            formatting.percent(row[key], 1)
            for key in ("mape", "median_ape", "p90_ape", "coverage", "out_of_distribution")
        ),
        str(row["off_by_3x"]),
        str(row["off_by_3x_unflagged"]),
    )
