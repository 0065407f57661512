"""``gpusonde evaluate predictor``: how well epoch latencies are predicted on runs that a model has not seen."""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, cast

from gpusonde import formatting
from gpusonde.cli.errors import error_context
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser, names, positive_integer, ratio
from gpusonde.errors import CommandError, UsageError

if TYPE_CHECKING:
    from gpusonde.predictor.crossgpu.evaluation import LatencyEvaluation, LatencyProtocol, Predictor, Scores
    from gpusonde.predictor.crossgpu.runs_table import RunsTable

_PROTOCOLS = {
    "random": "random pairs (leaks)",
    "config": "unseen configuration",
    "cnn": "unseen workload",
    "target": "unseen target GPU",
    "both": "both GPUs unseen",
    "static": "unseen GPU, no metrics",
}
_MODES = ("default", "prior", "paper")
_DEFAULT_MODES = ("default", "prior")
_MOST_SEEDS = 20
_COLUMNS = (
    "held out",
    "mode",
    "rows",
    "predictions",
    "mean error",
    "median",
    "90 % quantile",
    "coverage",
    "width",
    "flagged",
)


class PredictorScoresPayload(TypedDict):
    """Scores of predictions; null where the table is too small for the protocol."""

    predictions: Annotated[int | None, JsonKey("pairs of runs")]
    mape: Annotated[float | None, JsonKey("relative error: mean, median, 90 % quantile")]
    median_ape: Annotated[float | None, JsonKey("relative error: mean, median, 90 % quantile")]
    p90_ape: Annotated[float | None, JsonKey("relative error: mean, median, 90 % quantile")]
    r2: Annotated[float | None, JsonKey("of the seconds")]
    rmse_s: float | None
    coverage: Annotated[float | None, JsonKey("90 % intervals that hold the truth")]
    interval_width: Annotated[float | None, JsonKey("mean, relative to the prediction")]
    extrapolated: Annotated[float | None, JsonKey("share flagged so")]


class GpuScoresPayload(PredictorScoresPayload):
    """The scores of one GPU."""

    gpu_model: str


class WorkloadScoresPayload(PredictorScoresPayload):
    """The scores of one workload."""

    workload: str


class RepeatedScoresPayload(PredictorScoresPayload):
    """Scores over all seeds."""

    mape_deviation: Annotated[float | None, JsonKey("standard deviation over the seeds")]


class ProtocolScoresPayload(RepeatedScoresPayload):
    """The scores of one mode by one protocol."""

    protocol: str
    mode: str
    rows: Annotated[str, JsonKey("of a table of timings: `main` or `all`")]
    reason: Annotated[str | None, JsonKey("why there are no scores")]
    by_source: list[GpuScoresPayload]
    by_target: list[GpuScoresPayload]
    by_workload: list[WorkloadScoresPayload]


class EvaluatePredictorPayload(TypedDict):
    """What ``gpusonde evaluate predictor`` prints."""

    runs_file: str
    test_file: Annotated[str | None, JsonKey("null: the same")]
    runs: Annotated[int, JsonKey("scored on")]
    gpus: list[str]
    noise: Annotated[float, JsonKey("of the sources' latency, mean")]
    seeds: int
    results: Annotated[list[ProtocolScoresPayload], JsonKey("one for each protocol and mode")]


class EvaluateOnePredictorPayload(EvaluatePredictorPayload, RepeatedScoresPayload):
    """What it prints for one protocol and one mode, and for timings: the scores need not be looked for in a list."""


def add_predictor_options(parser: Parser) -> None:
    """Declare ``gpusonde evaluate predictor``."""
    parser.description = (
        "Fit the predictor to a part of a runs table and score it on the rest, by protocols that hold out what a query "
        "would be new in (docs/latency_prediction.md). On the table that the shipped model was fitted on this is its "
        "model card. Minutes; --mode paper takes the longest. A table of timings, which has no metrics, scores what "
        "the shipped model says without any."
    )
    parser.add_argument("runs", type=Path, metavar="RUNS.csv", help="runs table: one row per run; or timings")
    group = parser.add_argument_group("what is scored")
    group.add_argument(
        "--protocol",
        type=names,
        metavar="A,B",
        help=f"what is held out: {', '.join(_PROTOCOLS)} (default: each in turn)",
    )
    group.add_argument(
        "--mode",
        "--model",
        type=names,
        metavar="A,B",
        help="default: our model; prior: its physical part alone; paper: the published stack (default: default,prior)",
    )
    group.add_argument(
        "--test", type=Path, metavar="OTHER.csv", help="fit on RUNS.csv as far as the protocol allows, score on this"
    )
    group.add_argument(
        "--noise",
        type=ratio,
        default=0.0,
        metavar="X",
        help="mean relative error to put on the sources' epoch latency, as a detector would (default: 0)",
    )
    group.add_argument(
        "--seeds", type=positive_integer, default=1, metavar="N", help="random splits and noise, N times (default: 1)"
    )


def run_predictor(args: argparse.Namespace) -> int:
    """Fit, predict, score, print."""
    _check(args)
    from gpusonde.predictor.crossgpu import read_runs
    from gpusonde.predictor.crossgpu.evaluation import is_timings_table

    output = Output(as_json=args.json)
    if is_timings_table(args.runs):
        timings = _score_timings(output, args)
        output.result(timings, lambda screen: _render(screen, timings))
        return 0
    table = read_runs(args.runs)
    test = None if args.test is None else read_runs(args.test)
    rows = []
    for protocol in args.protocol or _PROTOCOLS:
        for mode in args.mode or _DEFAULT_MODES:
            rows.append(_row(output, args, table, test, protocol, mode))
    if all(row["mape"] is None for row in rows):
        with error_context(args.runs):
            raise CommandError(rows[0]["reason"])
    found = {
        "runs_file": str(args.runs),
        "test_file": None if args.test is None else str(args.test),
        "runs": len(table if test is None else test),
        "gpus": list((table if test is None else test).gpu_names),
        "noise": args.noise,
        "seeds": args.seeds,
        # One question, one answer: its scores need not be looked for in a list.
        **({key: value for key, value in rows[0].items() if key in _score_keys()} if len(rows) == 1 else {}),
        "results": rows,
    }
    payload = cast(EvaluatePredictorPayload, found)
    output.result(payload, lambda screen: _render(screen, payload))
    return 0


def _check(args: argparse.Namespace) -> None:
    for option, chosen, known in (("protocol", args.protocol, tuple(_PROTOCOLS)), ("mode", args.mode, _MODES)):
        for name in chosen or ():
            if name not in known:
                raise UsageError(f"--{option} {name!r} is unknown; use {', '.join(known)}")
        if chosen and len(set(chosen)) != len(chosen):
            raise UsageError(f"--{option} names something twice")
    if args.seeds > _MOST_SEEDS:
        raise UsageError(f"--seeds is at most {_MOST_SEEDS}")
    if args.noise >= 1:
        raise UsageError("--noise is a ratio: 0.096 is 9.6 %")


def _score_timings(output: Output, args: argparse.Namespace) -> EvaluatePredictorPayload:
    """What the shipped model says of timings, of those that their makers trust and of all."""
    from gpusonde.predictor.crossgpu import LatencyModel
    from gpusonde.predictor.crossgpu.evaluation import evaluate_timings, read_timings

    if (args.protocol or ["static"]) != ["static"] or (args.mode or ["default"]) != ["default"]:
        raise UsageError(f"{args.runs} has timings without metrics: only --protocol static --mode default fits it")
    if args.test is not None or args.noise:
        raise UsageError("--test and --noise belong to runs tables; nothing is fitted to timings")
    timings, model = read_timings(args.runs), LatencyModel.shipped()
    results = []
    for only_main in (True, False):
        own = {"protocol": "static", "mode": "default", "rows": "main" if only_main else "all", "reason": None}
        with output.progress(f"predicting {own['rows']} rows"), error_context(args.runs):
            results.append({**own, **_result(evaluate_timings(timings, model, only_main=only_main))})
    found = {
        "runs_file": str(args.runs),
        "test_file": None,
        "runs": len(timings),
        "gpus": sorted({timing.gpu.name for timing in timings}),
        "noise": 0.0,
        "seeds": 1,
        **{key: results[0][key] for key in _score_keys()},
        "results": results,
    }
    return cast(EvaluateOnePredictorPayload, found)


def _row(
    output: Output, args: argparse.Namespace, table: RunsTable, test: RunsTable | None, protocol: str, mode: str
) -> ProtocolScoresPayload:
    """Scores of one mode by one protocol; a table that is too small for it gives nulls and a reason."""
    from gpusonde.predictor.crossgpu import TooFewRunsError
    from gpusonde.predictor.crossgpu.evaluation import LatencyProtocol, evaluate

    seeds = range(args.seeds)
    label = f"{_PROTOCOLS[protocol]}, {mode}"
    reason: str | None = None
    result: dict[str, Any]
    try:
        with output.progress(label, 1.0) as show:

            def progress(done: int, total: int) -> None:
                show(done / total)
                # A line for every split where no bar is drawn: minutes without a sign of life look like a hang.
                if args.json or not sys.stderr.isatty():
                    print(f"{label}: {done} of {total}", file=sys.stderr, flush=True)

            found = evaluate(
                table, _predictor(mode, LatencyProtocol(protocol)), LatencyProtocol(protocol),
                seeds=seeds, noise=args.noise, test=test, progress=progress,
            )  # fmt: skip
    except TooFewRunsError as error:
        result = {**dict.fromkeys(_score_keys()), "by_source": [], "by_target": [], "by_workload": []}
        reason = str(error)
    else:
        result = _result(found)
    return cast(
        ProtocolScoresPayload,
        {"protocol": protocol, "mode": mode, "rows": "all", "reason": reason, **result},
    )


def _result(found: LatencyEvaluation) -> dict[str, Any]:
    return {**_scores(found.overall), "mape_deviation": _spread(found)} | {
        name: [{label: key, **_scores(scores)} for key, scores in groups.items()]
        for name, label, groups in (
            ("by_source", "gpu_model", found.by_source),
            ("by_target", "gpu_model", found.by_target),
            ("by_workload", "workload", found.by_workload),
        )
    }


def _predictor(mode: str, protocol: LatencyProtocol) -> Predictor:
    from gpusonde.predictor.crossgpu import ModelSettings, PaperStack
    from gpusonde.predictor.crossgpu.evaluation import (
        make_default_predictor,
        make_paper_predictor,
        make_prior_predictor,
    )

    if mode == "paper":
        return make_paper_predictor(lambda seed: PaperStack(seed=seed))
    return make_prior_predictor() if mode == "prior" else make_default_predictor(ModelSettings(), protocol)


def _spread(found: LatencyEvaluation) -> float:
    """Standard deviation of the mean error over seeds."""
    errors = [scores.mape for scores in found.by_seed]
    return statistics.stdev(errors) if len(errors) > 1 else math.nan


def _score_keys() -> Sequence[str]:
    return tuple(RepeatedScoresPayload.__annotations__)


def _scores(scores: Scores) -> dict[str, Any]:
    return {_json_name(name): value for name, value in dataclasses.asdict(scores).items()}


def _json_name(attribute: str) -> str:
    return {"pairs": "predictions", "width": "interval_width"}.get(attribute, attribute)


def _render(screen: Screen, payload: EvaluatePredictorPayload) -> None:
    where = payload["test_file"] or payload["runs_file"]
    noise = f", sources {formatting.percent(payload['noise'], 1)} off" if payload["noise"] else ""
    screen.heading(f"{where}: {payload['runs']} runs on {', '.join(payload['gpus'])}{noise}")
    screen.table(_COLUMNS, [_cells(row) for row in payload["results"]], numeric=_COLUMNS[3:], optional=("flagged",))
    for row in payload["results"]:
        if row["reason"]:
            screen.note(f"note: {row['protocol']}, {row['mode']}: {row['reason']}")
    screen.line("errors are relative to the measured latency; coverage and full width are those of 90 % intervals")


def _cells(row: ProtocolScoresPayload) -> tuple[str, ...]:
    if row["mape"] is None:
        return (_PROTOCOLS[row["protocol"]], row["mode"], row["rows"], *[formatting.ABSENT] * (len(_COLUMNS) - 3))
    deviation = row["mape_deviation"]
    spread = "" if deviation is None or math.isnan(deviation) else f" ± {100 * deviation:.1f}"
    return (
        _PROTOCOLS[row["protocol"]],
        row["mode"],
        row["rows"],
        str(row["predictions"]),
        f"{100 * row['mape']:.1f}{spread} %",
        *(formatting.percent(row[key], 1) for key in ("median_ape", "p90_ape", "coverage", "interval_width")),
        formatting.percent(row["extrapolated"], 0),
    )
