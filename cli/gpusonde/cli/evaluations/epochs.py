"""``gpusonde evaluate epochs``: how well the detector does on traces whose epochs are known.

``TraceSet`` brings each trace together with its truth; what is scored, and how, is the detector's own evaluation.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar, cast

from gpusonde import formatting
from gpusonde.cli.errors import error_context
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser
from gpusonde.cli.runs_view import add_detection_options
from gpusonde.errors import DocumentError, UsageError

if TYPE_CHECKING:
    from gpusonde.epoch_detect import EpochDetection
    from gpusonde.epoch_detect.evaluation import EpochEvaluation, Summary, Truth, TruthFile
    from gpusonde.telemetry import Trace

# A message that names more traces than this is not read.
_MOST_NAMES = 5

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class TraceSet:
    """Traces that have a truth, and truths that have a trace.

    Attributes:
        truth: Truth by trace id, in the order of the traces.
        left_out: Traces that are not scored, and why.
    """

    truth: Mapping[str, Truth]
    left_out: Mapping[str, str]
    _source: Path
    _loaded: Mapping[str, Trace]

    @classmethod
    def open(cls, source: Path, truth_path: Path, only: Sequence[str] = ()) -> TraceSet:
        """Find the traces of a trace file, or of a folder that holds a file for each.

        Args:
            source: Trace file with an id for each trace, or a folder; of a folder, the truth names the files.
            truth_path: Truth file or manifest.
            only: Patterns (``*``, ``?``) of the ids to score; all if empty.

        Raises:
            DocumentError: The truth cannot be read, or traces and truth do not belong together.
            UsageError: No trace fits ``only``.
            gpusonde.telemetry.TraceError: The trace file cannot be read.
            OSError: Likewise.
        """
        from gpusonde.epoch_detect.evaluation import TruthFile, read_truth

        whole = read_truth(truth_path)
        given = TruthFile(_chosen(whole.truth, only), _chosen(whole.left_out, only))
        if source.is_dir():
            _check_files(source, truth_path, given)
            return cls._of(given.truth, given, source, {}, only)
        loaded = _chosen(_load(source), only)
        _check_pairs(source, truth_path, loaded, given)
        return cls._of({name: given.truth[name] for name in loaded if name in given.truth}, given, source, loaded, only)

    @classmethod
    def _of(
        cls,
        truth: Mapping[str, Truth],
        given: TruthFile,
        source: Path,
        loaded: Mapping[str, Trace],
        only: Sequence[str],
    ) -> TraceSet:
        if not truth:
            left = f"; left out: {_names(given.left_out)}" if given.left_out else ""
            asked = f" that fits --only {' '.join(only)}" if only else ""
            raise UsageError(f"{source}: no trace to score{asked}{left}")
        return cls(truth, given.left_out, source, loaded)

    def find_file(self, name: str) -> Path:
        """The file that a trace is in."""
        return self._source if name in self._loaded else self._source / name

    def __len__(self) -> int:
        return len(self.truth)

    def __iter__(self) -> Iterator[tuple[str, Trace, Truth]]:
        """Trace id, trace and truth; files of a folder are read one after the other, their first GPU."""
        from gpusonde.telemetry import read_trace

        for name, truth in self.truth.items():
            trace = self._loaded.get(name)
            if trace is None:
                path = self.find_file(name)
                with error_context(path):
                    trace = read_trace(path, gpu=0)
            yield name, trace, truth


def _load(source: Path) -> dict[str, Trace]:
    from gpusonde.telemetry import read_traces

    with error_context(source):
        traces = read_traces(source)
    return {trace.attributes.get("trace_id") or trace.gpu_uuid or str(i): trace for i, trace in enumerate(traces)}


def _chosen(named: Mapping[str, _Value], only: Sequence[str]) -> dict[str, _Value]:
    return {n: v for n, v in named.items() if not only or any(fnmatch.fnmatchcase(n, pattern) for pattern in only)}


def _check_files(source: Path, truth_path: Path, given: TruthFile) -> None:
    absent = [name for name in given.truth if not (source / name).is_file()]
    if absent:
        raise DocumentError(
            absent[0],
            f"{source} has no file {_names(absent)}; give the folder that the manifest belongs to, or leave traces out "
            "with --only",
            truth_path,
        )


def _check_pairs(source: Path, truth_path: Path, loaded: Mapping[str, Trace], given: TruthFile) -> None:
    known = {*given.truth, *given.left_out}
    untold, unseen = [n for n in loaded if n not in known], [n for n in given.truth if n not in loaded]
    if loaded and given.truth and not known & set(loaded):
        raise DocumentError(
            "",
            f"none of its traces ({_names(given.truth)}) is in {source} ({_names(loaded)}); they belong to different "
            "sets",
            truth_path,
        )
    if untold:
        raise DocumentError(
            untold[0],
            f"no truth for trace {_names(untold)} of {source}; add it (period_s null for no epochs), or leave the "
            "trace out with --only",
            truth_path,
        )
    if unseen:
        raise DocumentError(
            unseen[0],
            f"no trace {_names(unseen)} in {source}; remove it from the truth, or leave it out with --only",
            truth_path,
        )


def _names(names: Mapping[str, object] | Sequence[str]) -> str:
    every = list(names)
    rest = f" and {len(every) - _MOST_NAMES} more" if len(every) > _MOST_NAMES else ""
    return ", ".join(repr(name) for name in every[:_MOST_NAMES]) + rest


_SHARES = ("MAPE", "median APE", "within 5 %", "within 10 %", "declared", "MAPE of declared", "false positives")
_COLUMNS = ("shape", "traces", *_SHARES)
_OPTIONAL = ("within 5 %", "median APE", "MAPE of declared")


class DetectorScoresPayload(TypedDict):
    """Scores of the detector on some traces; null where no trace speaks to one."""

    traces: int
    positives: Annotated[int, JsonKey("with and without epochs")]
    negatives: Annotated[int, JsonKey("with and without epochs")]
    declared: Annotated[float | None, JsonKey("positives with an answer (`epochs` or `short_cycle`)")]
    mape: Annotated[float | None, JsonKey("absolute error of the period, 1 without an answer")]
    median_ape: Annotated[float | None, JsonKey("absolute error of the period, 1 without an answer")]
    within_5pct: Annotated[float | None, JsonKey("positives with at most such an error")]
    within_10pct: Annotated[float | None, JsonKey("positives with at most such an error")]
    mape_declared: Annotated[float | None, JsonKey("of the positives with an answer")]
    false_positive_rate: Annotated[float | None, JsonKey("negatives with the verdict `epochs`")]
    boundary_error_median_s: Annotated[float | None, JsonKey("from a true epoch start to the nearest found")]
    boundary_recall: Annotated[
        float | None,
        JsonKey("true starts found to within 0.3 s or a twentieth of the period"),
    ]
    confidently_wrong: Annotated[float | None, JsonKey("positives that are wrong with confidence 0.8 or more")]
    listed_within_10pct: Annotated[
        float | None,
        JsonKey("positives with a right period among the levels told"),
    ]
    listed_chance: Annotated[float | None, JsonKey("the same by luck, for the truths of other traces")]
    levels_listed: Annotated[float | None, JsonKey("true levels that the traces show, among the levels told")]
    levels_told: Annotated[float | None, JsonKey("per trace")]
    roles_right: Annotated[float | None, JsonKey("real levels called by their name")]
    roles_confidently_wrong: Annotated[float | None, JsonKey("of them, named with 0.7 or more and wrongly")]
    epoch_role_rate: Annotated[float | None, JsonKey("negatives of which a level is called an epoch")]


class ShapeScoresPayload(DetectorScoresPayload):
    """The same for traces of one kind."""

    shape: str


class TraceScorePayload(TypedDict):
    """How one trace was answered."""

    trace_id: str
    shape: str
    verdict: Annotated[str, JsonKey("`epochs`, `short_cycle` or `none`")]
    reason: str
    period_s: float | None
    true_period_s: Annotated[float | None, JsonKey("the nearest right one")]
    ape: Annotated[float | None, JsonKey("1 without an answer")]
    confidence: Annotated[float, JsonKey("the detector's")]
    boundary_errors_s: Annotated[list[float], JsonKey("of each true epoch start")]
    boundaries_found: Annotated[float | None, JsonKey("share")]
    levels: Annotated[
        list[dict[str, Any]],
        JsonKey("told, shortest first", holds="gpusonde.epoch_detect.evaluation.LevelScore"),
    ]
    listed: Annotated[bool | None, JsonKey("a right period is among them")]
    true_levels_s: Annotated[list[list[float]], JsonKey("of each level that the trace shows")]
    levels_listed: Annotated[list[bool], JsonKey("whether each is among the levels told")]
    cpu_s: float
    plot: Annotated[str | None, JsonKey("null without `--plot-dir`")]


class UnscoredTracePayload(TypedDict):
    """An entry of the manifest that is not scored."""

    trace_id: str
    reason: Annotated[str, JsonKey("truth not trusted, or period not known")]


class EvaluateEpochsPayload(DetectorScoresPayload):
    """What ``gpusonde evaluate epochs`` prints."""

    traces_file: str
    truth_file: str
    mode: str
    metrics: Annotated[list[str], JsonKey("as asked")]
    only: Annotated[list[str], JsonKey("as asked")]
    duration_s: Annotated[float, JsonKey("of all traces together")]
    cpu_seconds_per_trace_hour: float | None
    reliability: Annotated[
        list[dict[str, Any]],
        JsonKey("how often answers of a confidence are right", holds="gpusonde.epoch_detect.evaluation.ReliabilityBin"),
    ]
    level_reliability: Annotated[
        list[dict[str, Any]],
        JsonKey(
            "the same for levels",
            holds="gpusonde.epoch_detect.evaluation.ReliabilityBin",
        ),
    ]
    role_reliability: Annotated[
        list[dict[str, Any]],
        JsonKey("the same for names of real levels", holds="gpusonde.epoch_detect.evaluation.ReliabilityBin"),
    ]
    per_shape: list[ShapeScoresPayload]
    per_trace: list[TraceScorePayload]
    left_out: list[UnscoredTracePayload]


def add_epochs_options(parser: Parser) -> None:
    """Declare ``gpusonde evaluate epochs``."""
    parser.description = (
        "Score the epoch detector on many traces whose epochs are known; how, is written in docs/epoch_detection.md."
    )
    parser.add_argument(
        "traces", type=Path, metavar="TRACES", help="trace file with a trace_id for each trace, or a folder of files"
    )
    parser.add_argument(
        "truth",
        type=Path,
        metavar="TRUTH.json",
        help="for each trace_id its period_s, null for no epochs; or the manifest of the folder",
    )
    group = add_detection_options(parser)
    group.add_argument(
        "--only", action="append", metavar="PATTERN", help="score these traces only, as in 'h100_*' (repeatable)"
    )
    group = parser.add_argument_group("more output")
    group.add_argument("--plot-dir", type=Path, metavar="DIR", help="also draw every trace into this folder")


def run_epochs(args: argparse.Namespace) -> int:
    """Detect, score, print."""
    from gpusonde.epoch_detect import detect
    from gpusonde.epoch_detect.evaluation import EpochEvaluation, score

    output = Output(as_json=args.json)
    traces = TraceSet.open(args.traces, args.truth, args.only or ())
    pictures = None if args.plot_dir is None else _Pictures(args.plot_dir)
    scores, rows = [], []
    cpu_s = duration_s = 0.0
    with output.progress(f"looking for epochs in {formatting.count(len(traces), 'trace')}", len(traces)) as show:
        for name, trace, truth in traces:
            begin = time.process_time()
            with error_context(traces.find_file(name)):
                found = detect(trace, mode=args.mode, metrics=args.metric)
            spent = time.process_time() - begin
            cpu_s, duration_s = cpu_s + spent, duration_s + trace.duration_s
            scores.append(score(name, found, truth))
            plot = None if pictures is None else str(pictures.draw(name, trace, found, truth))
            rows.append({**dataclasses.asdict(scores[-1]), "reason": found.reason, "cpu_s": spent, "plot": plot})
            show(len(scores))
    result = EpochEvaluation.from_scores(scores)
    payload = _payload(args, traces, result, rows, duration_s, cpu_s)
    output.result(payload, lambda screen: _render(screen, args, result, payload))
    return 0


class _Pictures:
    """A folder with a picture for each trace."""

    def __init__(self, folder: Path) -> None:
        # Refused before the minutes of work, not after them.
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._taken: set[str] = set()

    def draw(self, trace_id: str, trace: Trace, found: EpochDetection, truth: Truth) -> Path:
        """Draw one trace with its epochs, true and found; returns the file."""
        import numpy as np

        from gpusonde.cli.commands.detect import headline, told_as
        from gpusonde.cli.picture import EpochMarks, draw

        stem = re.sub(r"[^\w.-]", "_", trace_id)
        while stem in self._taken:
            stem += "_"
        self._taken.add(stem)
        path = self._folder / f"{stem}.png"
        draw(
            path,
            trace,
            EpochMarks(
                starts_s=found.epoch_starts_s,
                ends_s=found.epoch_ends_s,
                headline=f"{trace_id}: {headline(found)}",
                detail=f"true (green): {describe_truth(truth)} · "
                f"confidence {formatting.probability(found.confidence)} · {found.mode} mode",
                true_starts_s=np.array(truth.epoch_starts_s),
                noun=told_as(found),
            ),
        )
        return path


def describe_truth(truth: Truth) -> str:
    """The truth about a trace in words."""
    return " or ".join(formatting.seconds(period) for period in truth.periods_s) or "no epochs"


def _payload(
    args: argparse.Namespace,
    traces: TraceSet,
    result: EpochEvaluation,
    rows: list[dict[str, Any]],
    duration_s: float,
    cpu_s: float,
) -> EvaluateEpochsPayload:
    from gpusonde.epoch_detect.evaluation import level_reliability, reliability, role_reliability

    found = {
        "traces_file": str(args.traces),
        "truth_file": str(args.truth),
        "mode": args.mode,
        "metrics": args.metric or [],
        "only": args.only or [],
        **dataclasses.asdict(result.overall),
        "reliability": [dataclasses.asdict(b) for b in reliability(result.scores)],
        "level_reliability": [dataclasses.asdict(b) for b in level_reliability(result.scores)],
        "role_reliability": [dataclasses.asdict(b) for b in role_reliability(result.scores)],
        "per_shape": [{"shape": shape, **dataclasses.asdict(s)} for shape, s in result.by_shape.items()],
        "per_trace": rows,
        "left_out": [{"trace_id": name, "reason": reason} for name, reason in traces.left_out.items()],
        "duration_s": duration_s,
        "cpu_seconds_per_trace_hour": cpu_s / (duration_s / 3600) if duration_s else None,
    }
    return cast(EvaluateEpochsPayload, found)


def _render(screen: Screen, args: argparse.Namespace, result: EpochEvaluation, payload: EvaluateEpochsPayload) -> None:
    for row in payload["left_out"]:
        screen.note(f"note: {row['trace_id']} is left out: {row['reason']}")
    overall = result.overall
    counted = f"{formatting.count(overall.positives, 'trace')} with epochs, {overall.negatives} without"
    screen.heading(f"{args.traces}: {counted}, {args.mode} mode")
    shapes = [_shape_row(shape or "-", summary) for shape, summary in result.by_shape.items()]
    rows = [_shape_row("all", overall), *(shapes if len(shapes) > 1 else ())]
    screen.table(_COLUMNS, rows, numeric=_COLUMNS[1:], optional=_OPTIONAL)
    if overall.boundary_error_median_s is not None:
        recall = _percent(overall.boundary_recall)
        screen.line(f"boundaries: median error {overall.boundary_error_median_s:.3f} s, {recall} of them found")
    if overall.listed_within_10pct is not None:
        listed, chance = _percent(overall.listed_within_10pct), _percent(overall.listed_chance)
        screen.line(f"levels: {overall.levels_told:.1f} told per trace, truth among them {listed}, by chance {chance}")
    if overall.roles_right is not None:
        wrong = _percent(overall.roles_confidently_wrong)
        screen.line(f"roles: {_percent(overall.roles_right)} of real levels right, {wrong} wrong at 0.7 or more")
    if payload["cpu_seconds_per_trace_hour"] is not None:
        screen.line(f"cost: {payload['cpu_seconds_per_trace_hour']:.2f} CPU seconds per trace-hour")
    for rows_, what in (
        (payload["reliability"], "answers"),
        (payload["level_reliability"], "levels"),
        (payload["role_reliability"], "roles"),
    ):
        if rows_:
            screen.line()
            columns = ("confidence", what, "mean confidence", "right")
            screen.table(columns, [_bin_row(b) for b in rows_], numeric=columns[1:])
    if args.plot_dir is not None:
        screen.line(f"pictures: {args.plot_dir}")


def _shape_row(name: str, summary: Summary) -> tuple[str, ...]:
    s = summary
    shares = (
        s.mape, s.median_ape, s.within_5pct, s.within_10pct, s.declared, s.mape_declared, s.false_positive_rate
    )  # fmt: skip
    return (name, str(s.traces), *(_percent(share) for share in shares))


def _bin_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    range_ = f"{row['low']:.2f} to {row['high']:.2f}"
    return (range_, str(row["answers"]), f"{row['mean_confidence']:.3f}", _percent(row["right"]))


def _percent(share: float | None) -> str:
    return formatting.percent(share, 1)
