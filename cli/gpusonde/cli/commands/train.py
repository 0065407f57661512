"""``gpusonde train``: fit an epoch latency model on a table of runs, or on what a collector has seen."""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from gpusonde import formatting
from gpusonde.cli.errors import check_writable, error_context
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser
from gpusonde.errors import UsageError

if TYPE_CHECKING:
    pass

_KEPT_VERSIONS = 5
# The age at which the runs of a job count half.
_HALF_LIFE_DAYS = 180.0
_DAY_S = 86_400.0


class TrainPayload(TypedDict):
    """What ``gpusonde train RUNS.csv`` prints."""

    runs_file: str
    runs: int
    pairs: Annotated[int, JsonKey("pairs of runs of one workload on two GPUs")]
    gpus: list[str]
    model: str
    model_version: str
    model_bytes: int


class LeftOutRunsPayload(TypedDict):
    """Runs that nothing is learnt from."""

    reason: str
    runs: int


class LearnPayload(TypedDict):
    """What ``gpusonde train --from-store STORE`` prints."""

    store: str
    jobs: Annotated[int, JsonKey("that ran on several GPU models")]
    runs: int
    replayed_runs: Annotated[int, JsonKey("from a replayed or generated trace")]
    gpus: list[str]
    left_out: Annotated[list[LeftOutRunsPayload], JsonKey("other runs of jobs")]
    pairs: Annotated[int, JsonKey("of the runs")]
    carried_pairs: Annotated[int, JsonKey("of the model in service, or of `RUNS.csv`")]
    held_out_jobs: Annotated[int, JsonKey("that the models were compared on")]
    held_out_pairs: Annotated[int, JsonKey("that the models were compared on")]
    current_mape: Annotated[
        float,
        JsonKey("error of the model in service, and of the candidate, on these"),
    ]
    candidate_mape: Annotated[
        float,
        JsonKey("error of the model in service, and of the candidate, on these"),
    ]
    replaced: Annotated[bool, JsonKey("the candidate is in service now")]
    reason: str
    half_life_days: float
    former_version: str
    model_version: str
    model: Annotated[str | None, JsonKey("null for the shipped one")]
    versions: Annotated[list[str], JsonKey("in the store, the one in service last")]
    notes: Annotated[list[str], JsonKey("models that could not be used")]


class RollbackPayload(TypedDict):
    """What ``gpusonde train --rollback STORE`` prints."""

    store: str
    former_version: str
    model_version: Annotated[str, JsonKey("`shipped` for the shipped one")]
    versions: Annotated[list[str], JsonKey("in the store, the one in service last")]


def add_train_options(parser: Parser) -> None:
    """Declare ``gpusonde train``."""
    parser.description = (
        "Fit the model that 'gpusonde predict' and the collector use: on a table of runs, written to a file (--out); "
        "or on the jobs of a collector's store that ran on several GPU models (--from-store), put in service there "
        "only if it is better than the model in service on jobs that neither has seen. --rollback takes the latest "
        "such model out of service."
    )
    parser.add_argument(
        "runs",
        type=Path,
        nargs="?",
        metavar="RUNS.csv",
        help="one row per run (docs/latency_prediction.md); with --from-store: to fit on besides, instead of what the "
        "model in service was fitted on",
    )
    parser.add_argument("--out", type=Path, metavar="MODEL", help="file to write the model to")
    group = parser.add_argument_group("learning from a fleet")
    group.add_argument("--from-store", type=Path, metavar="STORE", help="data directory of a collector, running or not")
    group.add_argument(
        "--rollback", type=Path, metavar="STORE", help="put the model in service again that was before the present one"
    )


def run_train(args: argparse.Namespace) -> int:
    """Fit and save, learn, or roll back."""
    _check(args)
    check_writable(args.out)
    output = Output(as_json=args.json)
    if args.rollback is not None:
        return _roll_back(output, args.rollback)
    return _fit(output, args) if args.from_store is None else _learn(output, args)


def _check(args: argparse.Namespace) -> None:
    if args.rollback is not None:
        others = [args.runs, args.out, args.from_store]
        if any(other is not None for other in others):
            raise UsageError("--rollback STORE stands alone")
    elif args.from_store is None:
        if args.runs is None:
            raise UsageError("give RUNS.csv with --out MODEL, or --from-store STORE, or --rollback STORE")
        if args.out is None:
            raise UsageError("RUNS.csv needs --out MODEL")
    elif args.out is not None:
        raise UsageError("--out belongs to RUNS.csv alone; --from-store keeps its models in the store")


def _fit(output: Output, args: argparse.Namespace) -> int:
    from gpusonde.predictor.crossgpu import LatencyModel, read_runs

    table = read_runs(args.runs)
    sources, _ = table.pairs()
    with output.progress(f"fitting on {len(table)} runs"), error_context(args.runs):
        model = LatencyModel().fit(table)
    model.save(args.out)

    def render(screen: Screen) -> None:
        screen.line(f"fitted on {len(table)} runs ({len(sources)} pairs) on {', '.join(table.gpu_names)}")
        screen.line(f"model {model.version} written to {args.out}")

    payload: TrainPayload = {
        "runs_file": str(args.runs),
        "runs": len(table),
        "pairs": len(sources),
        "gpus": list(table.gpu_names),
        "model": str(args.out),
        "model_version": model.version,
        "model_bytes": args.out.stat().st_size,
    }
    output.result(payload, render)
    return 0


def _learn(output: Output, args: argparse.Namespace) -> int:
    from gpusonde.catalog import load_gpus
    from gpusonde.collector.fleet import fleet_runs
    from gpusonde.collector.storage.local import StoreSnapshot
    from gpusonde.predictor.crossgpu import read_runs
    from gpusonde.predictor.crossgpu.learning import MODELS, ModelVersions, learn

    table = None if args.runs is None else read_runs(args.runs)
    versions = ModelVersions(args.from_store / MODELS)
    with StoreSnapshot(args.from_store) as store, output.progress("reading runs of jobs", 1.0) as show:
        fleet = fleet_runs(store, load_gpus(), progress=show)
    with versions.locked():
        current, problems = versions.in_service()
        with output.progress(f"comparing with {current.version}", 1.0) as show:
            lesson = learn(
                current,
                fleet.table,
                now_unix_s=time.time(),
                half_life_s=_HALF_LIFE_DAYS * _DAY_S,
                table=table,
                progress=show,
            )
        former, compared = current.version, lesson.comparison
        if lesson.candidate is not None:
            versions.install(lesson.candidate, keep=_KEPT_VERSIONS)
        served = lesson.candidate or current
        payload: LearnPayload = {
            "store": str(args.from_store),
            "jobs": fleet.jobs,
            "runs": len(fleet.table),
            "replayed_runs": fleet.replayed,
            "gpus": list(fleet.table.gpu_names),
            "left_out": [{"reason": reason, "runs": count} for reason, count in sorted(fleet.left_out.items())],
            "pairs": lesson.pairs,
            "carried_pairs": lesson.carried_pairs,
            "held_out_jobs": 0 if compared is None else compared.configurations,
            "held_out_pairs": 0 if compared is None else compared.pairs,
            "current_mape": math.nan if compared is None else compared.current_mape,
            "candidate_mape": math.nan if compared is None else compared.candidate_mape,
            "replaced": lesson.candidate is not None,
            "reason": lesson.reason,
            "half_life_days": _HALF_LIFE_DAYS,
            "former_version": former,
            "model_version": served.version,
            "model": str(versions.path(served.version)) if served.version in versions.listed() else None,
            "versions": list(versions.listed()),
            "notes": problems,
        }
    output.result(payload, lambda screen: _render(screen, payload))
    return 0


def _render(screen: Screen, payload: LearnPayload) -> None:
    for note in payload["notes"]:
        screen.note(f"note: {note}")
    runs = f"{payload['runs']} runs of {payload['jobs']} jobs on {', '.join(payload['gpus']) or 'no GPU'}"
    replayed = f", {payload['replayed_runs']} of them replayed" if payload["replayed_runs"] else ""
    screen.line(f"{runs}{replayed}: {payload['pairs']} pairs, beside {payload['carried_pairs']} carried ones")
    for item in payload["left_out"]:
        screen.line(f"left out: {item['runs']} {item['reason']}")
    if payload["held_out_pairs"]:
        screen.table(
            ("model", "mean error"),
            [
                (f"in service ({payload['former_version']})", formatting.percent(payload["current_mape"], 1)),
                ("candidate", formatting.percent(payload["candidate_mape"], 1)),
            ],
            numeric=("mean error",),
        )
        held_out = f"{payload['held_out_pairs']} pairs of {payload['held_out_jobs']} jobs"
        screen.line(f"on {held_out}, each held out from the candidate and new to the model in service")
    screen.line(f"{payload['reason']}: {payload['model_version']} is in service")


def _roll_back(output: Output, store: Path) -> int:
    from gpusonde.predictor.crossgpu.learning import MODELS, ModelVersions

    versions = ModelVersions(store / MODELS)
    former, now = versions.roll_back()
    payload: RollbackPayload = {
        "store": str(store),
        "former_version": former,
        "model_version": now,
        "versions": list(versions.listed()),
    }
    output.result(payload, lambda screen: screen.line(f"{now} is in service again, {former} is not any more"))
    return 0
