"""``gpusonde workload train``: offline training of the encoder that embeds networks of a type of data.

``gpusonde workload fit``: a model of training times fitted on the user's own measurements.

``gpusonde workload trainings``: the trainings of encoders that a collector has queued.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, cast

from gpusonde.cli import formatting
from gpusonde.cli.connection import add_collector_options, client_security
from gpusonde.cli.errors import check_writable, error_context
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser, positive_integer, whole_number
from gpusonde.cli.workload.embed import add_registry_option, named_encoder, registry_of, where_to_have
from gpusonde.cli.workload.predict import REGRESSORS
from gpusonde.errors import CommandError, DirectoryLockedError, MissingExtraError, UsageError

if TYPE_CHECKING:
    from gpusonde.collector.workload.training_queue import Training
    from gpusonde.predictor.workload.embedding.registry import RegisteredEncoder
    from gpusonde.predictor.workload.embedding.training.datasets import ImageDataset
    from gpusonde.predictor.workload.embedding.training.progress import ProgressReport
    from gpusonde.predictor.workload.embedding.training.result import TrainingResult
    from gpusonde.predictor.workload.engine import EncoderEmbedder
    from gpusonde.predictor.workload.engine.measurements import MeasurementTable
    from gpusonde.predictor.workload.engine.model import WorkloadModel

_MOST_REASONS = 3


class LeftOutPayload(TypedDict):
    """Measurements that a model was not fitted on."""

    reason: Annotated[str, JsonKey("why")]
    measurements: Annotated[int, JsonKey("how many")]


class OfferedEncoderPayload(TypedDict):
    """An encoder whose columns were offered."""

    dataset_type: Annotated[str, JsonKey("type of data of the encoder")]
    sha256: Annotated[str, JsonKey("of its weights; a model that it stays in needs it to predict")]
    kept: Annotated[bool, JsonKey("whether its columns stayed")]
    error: Annotated[float, JsonKey("error in validation of the best regressor with them", "ratio")]
    error_without: Annotated[
        float | None, JsonKey("of the best one without; null for `paper`, which has no other columns", "ratio")
    ]


class FittedRegressorPayload(TypedDict):
    """A regressor that was fitted."""

    regressor: Annotated[str, JsonKey("its name")]
    features: Annotated[str, JsonKey("its columns")]
    error: Annotated[
        float, JsonKey("its error in validation: on networks left out, of `paper` on rows left out", "ratio")
    ]


class FitPayload(TypedDict):
    """What ``gpusonde workload fit`` prints."""

    measurements_file: Annotated[str, JsonKey("the table")]
    kind: Annotated[str, JsonKey("`default` or `paper`")]
    measurements: Annotated[int, JsonKey("rows that were used")]
    left_out: Annotated[list[LeftOutPayload], JsonKey("others")]
    networks: Annotated[list[str], JsonKey("networks that were measured")]
    gpus: Annotated[list[str], JsonKey("GPUs that they were measured on")]
    model: Annotated[str, JsonKey("the file written")]
    model_bytes: Annotated[int, JsonKey("its size")]
    model_version: Annotated[str, JsonKey("version of the model; every prediction repeats it")]
    encoder: Annotated[OfferedEncoderPayload | None, JsonKey("the encoder that was offered; null without `--encoder`")]
    regressors: Annotated[list[FittedRegressorPayload], JsonKey("what was fitted, the one that answers first")]


class QueuedTrainingPayload(TypedDict):
    """A training that a collector has queued."""

    dataset_type: Annotated[str, JsonKey("type of data")]
    state: Annotated[str, JsonKey("`queued`, `running`, `done` or `failed`")]
    reason: Annotated[str | None, JsonKey("why it failed")]
    queued_time: Annotated[str | None, JsonKey("when it was asked for")]
    started_time: Annotated[str | None, JsonKey("when it was begun last")]
    ended_time: Annotated[str | None, JsonKey("when it was done or failed")]
    completed_steps: Annotated[int, JsonKey("steps done")]
    total_steps: Annotated[int | None, JsonKey("all of them; null while nobody knows")]
    attempts: Annotated[int, JsonKey("times that it was begun, or was to be: the third that dies is the last")]
    encoder_sha256: Annotated[str | None, JsonKey("of the encoder's weights")]


class TrainingsPayload(TypedDict):
    """What ``gpusonde workload trainings`` prints."""

    trainings: Annotated[list[QueuedTrainingPayload], JsonKey("the newest first")]


class TrainingPayload(TypedDict):
    """A training that has ended; figures are null where it failed."""

    dataset_type: Annotated[str, JsonKey("type of data; without `--queue` there is one training")]
    state: Annotated[str, JsonKey("`done` or `failed`")]
    reason: Annotated[str | None, JsonKey("why it failed")]
    encoder_sha256: Annotated[str | None, JsonKey("of the encoder's weights")]
    trained_steps: Annotated[int | None, JsonKey("steps")]
    skipped_steps: Annotated[int | None, JsonKey("those whose loss was not finite")]
    step_s: Annotated[float | None, JsonKey("mean time of a step")]
    first_loss: Annotated[float | None, JsonKey("mean loss of the first 50 steps")]
    last_loss: Annotated[float | None, JsonKey("mean loss of the last 50 steps")]
    accuracy: Annotated[
        float | None,
        JsonKey(
            "test images that networks with predicted weights classify rightly: mean over networks that it was not "
            "trained on",
            "ratio",
        ),
    ]
    best_accuracy: Annotated[float | None, JsonKey("the best of them", "ratio")]
    untrained_accuracy: Annotated[float | None, JsonKey("the mean before training", "ratio")]
    chance_accuracy: Annotated[float | None, JsonKey("what guessing the commonest class gives", "ratio")]
    tested_architectures: Annotated[int | None, JsonKey("networks that it was tested with")]


class EncoderTrainingPayload(TypedDict):
    """What ``gpusonde workload train`` prints."""

    registry: Annotated[str, JsonKey("folder of trained encoders")]
    trainings: Annotated[list[TrainingPayload], JsonKey("the trainings")]


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
        metavar="NAME|FILE.safetensors",
        help="offer the embedding by this encoder: of a type of data, such as digits, or a checkpoint's file",
    )
    add_registry_option(group)


def run_fit(args: argparse.Namespace) -> int:
    """Read, fit, write and print."""
    from gpusonde.catalog import load_gpus
    from gpusonde.cli.workload.embed import NetworksBeside
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
        error_context(args.measurements),
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
    reasons = [f"{formatting.count(count, 'row')}: {reason}" for reason, count in table.left_out.items()]
    if not reasons:
        return ""
    more = f"; and {len(reasons) - _MOST_REASONS} more reasons" if len(reasons) > _MOST_REASONS else ""
    return f"; left out: {'; '.join(reasons[:_MOST_REASONS])}{more}"


def fit_payload(
    model: WorkloadModel, table: MeasurementTable, args: argparse.Namespace, embedder: EncoderEmbedder | None = None
) -> FitPayload:
    """What is printed of a model and what it was fitted on."""
    found, trial = table.measurements, model.state.trial
    offered = None
    if embedder is not None and trial is not None:
        offered = cast(OfferedEncoderPayload, {**asdict(embedder.reference), **asdict(trial)})
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


def _render_fit(screen: Screen, found: FitPayload, needed: str) -> None:
    for each in found["left_out"]:
        screen.note(f"left out: {formatting.count(each['measurements'], 'measurement')}: {each['reason']}")
    screen.line(
        f"fitted on {formatting.count(found['measurements'], 'measurement')} of"
        f" {formatting.count(len(found['networks']), 'network')} on {', '.join(found['gpus'])}"
    )
    columns = ("error on networks left out",) if found["kind"] == "default" else ("error on rows left out",)
    screen.table(
        ("regressor", "on", *columns),
        [(each["regressor"], each["features"], formatting.percent(each["error"], 1)) for each in found["regressors"]],
        numeric=columns,
    )
    if found["encoder"] is not None:
        screen.line(_said_of_offer(found["encoder"]))
    screen.line(f"{found['regressors'][0]['regressor']} answers, unless 'predict --regressor' asks for another one")
    screen.line(f"model {found['model_version']} written to {found['model']}")
    if needed:
        screen.line(needed)


def _said_of_offer(encoder: OfferedEncoderPayload) -> str:
    name, error = f"the embedding of {encoder['dataset_type']}", formatting.percent(encoder["error"], 1)
    if encoder["error_without"] is None:
        return f"{name} describes the networks, as published"
    without = formatting.percent(encoder["error_without"], 1)
    if encoder["kept"]:
        return f"{name} stays: an error of {error} with it, {without} without, on networks left out"
    return f"{name} is left out: {error} with it is not clearly less than {without} without, on networks left out"


def add_trainings_options(parser: Parser) -> None:
    """Declare ``gpusonde workload trainings``."""
    parser.description = (
        "List the trainings of encoders that a collector has queued, newest first, or queue one, which needs a "
        "certificate or token of the role admin. 'gpusonde workload train --queue' works on them."
    )
    parser.add_argument("--add", metavar="NAME", help="queue the training for this type of data first")
    parser.add_argument("--again", action="store_true", help="with --add: also when it is done or has failed")
    add_collector_options(parser)


def run_trainings(args: argparse.Namespace) -> int:
    """Ask and print."""
    from gpusonde.collector.client import WorkloadClient

    if args.again and args.add is None:
        raise UsageError("--again belongs to --add")
    with WorkloadClient(args.collector, security=client_security(args)) as client:
        if args.add is not None:
            client.queue_training(args.add, again=args.again)
        payload: TrainingsPayload = {"trainings": [_training(each) for each in client.trainings()["trainings"]]}
    Output(as_json=args.json).result(payload, lambda screen: _render_trainings(screen, payload["trainings"]))
    return 0


def _training(found: Mapping[str, Any]) -> QueuedTrainingPayload:
    def time(name: str) -> str | None:
        return None if found[name] is None else formatting.iso_time(round(found[name] * 1e9))

    return {
        "dataset_type": found["dataset_type"],
        "state": found["state"],
        "reason": found["reason"] or None,
        "queued_time": time("queued_time"),
        "started_time": time("started_time"),
        "ended_time": time("ended_time"),
        "completed_steps": found["completed_steps"],
        "total_steps": found["total_steps"] or None,
        "attempts": found["attempts"],
        "encoder_sha256": found["encoder_sha256"] or None,
    }


def _render_trainings(screen: Screen, trainings: Sequence[QueuedTrainingPayload]) -> None:
    if not trainings:
        screen.line("no training was ever queued there")
        return
    screen.table(
        ("type of data", "state", "steps", "queued", "reason"),
        [
            (
                each["dataset_type"],
                each["state"],
                f"{each['completed_steps']}/{each['total_steps'] or '?'}" if each["attempts"] else "",
                each["queued_time"] or "",
                each["reason"] or "",
            )
            for each in trainings
        ],
    )


_DIGITS = "digits"
_DEFAULT_STEPS = 600
_DONE = "done"
# Each is written to disk.
_STEPS_BETWEEN_NEWS = 10
# Beneath the registry's folder, whose own files are cards and checkpoints.
_TRAININGS = "trainings"


@dataclass(frozen=True)
class Source:
    """Images to train on, not read yet.

    Attributes:
        kind: "digits", "folder" or "cifar10".
        path: Where they are; None for the bundled digits.
    """

    kind: str
    path: Path | None = None


def add_train_options(parser: Parser) -> None:
    """Declare ``gpusonde workload train``."""
    parser.description = (
        "Train the encoder that embeds networks of a type of data, and register it. Minutes to hours on one core; "
        "a training that was interrupted or killed goes on when the same command is given again. Needs torch."
    )
    parser.add_argument(
        "--dataset",
        type=source,
        action="append",
        required=True,
        metavar="SOURCE",
        help="digits (bundled), folder:PATH with a sub-folder of images per class, or cifar10:PATH as downloaded; "
        "repeatable with --queue",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="registry: folder of trained encoders")
    parser.add_argument("--dataset-type", metavar="NAME", help="what to register it as (a must for folder:PATH)")
    parser.add_argument(
        "--steps", type=positive_integer, default=_DEFAULT_STEPS, metavar="N", help=f"steps ({_DEFAULT_STEPS})"
    )
    parser.add_argument("--seed", type=whole_number, default=0, metavar="N", help="of every random choice (0)")
    parser.add_argument("--architectures", type=positive_integer, metavar="N", help="random networks to train on (250)")
    parser.add_argument("--held-out", type=positive_integer, metavar="N", help="random networks to test with (60)")
    parser.add_argument(
        "--checkpoint-steps", type=positive_integer, metavar="N", help="save every N steps; a kill loses as many (50)"
    )
    parser.add_argument("--image-size", type=positive_integer, metavar="N", help="folder: scale images to N x N (32)")
    parser.add_argument("--anew", action="store_true", help="forget an interrupted training and begin again")
    parser.add_argument(
        "--queue",
        type=Path,
        metavar="DIR",
        help="train what a collector has queued there, of these dataset types, and tell it there",
    )


def source(text: str) -> Source:
    """Argument type: digits, folder:PATH or cifar10:PATH."""
    kind, _, path = text.partition(":")
    if kind == _DIGITS and not path:
        return Source(kind)
    if kind in ("folder", "cifar10") and path:
        return Source(kind, Path(path))
    raise argparse.ArgumentTypeError(f"{text!r} is none of digits, folder:PATH, cifar10:PATH")


def run_train(args: argparse.Namespace) -> int:
    """Train, register and print."""
    sources = _sources(args)
    if find_spec("torch") is None:
        raise MissingExtraError("torch", "workload train", "training")
    output = Output(as_json=args.json)
    trainings = _drained(args, sources) if args.queue else _one(args, sources)
    found: EncoderTrainingPayload = {"registry": str(args.out), "trainings": trainings}
    output.result(found, lambda screen: _render_train(screen, found))
    return 0 if all(each["state"] == _DONE for each in trainings) else 1


def _sources(args: argparse.Namespace) -> dict[str, Source]:
    """Dataset types with what they are read from."""
    from gpusonde.predictor.workload.embedding.weights import check_dataset_type

    chosen: Sequence[Source] = args.dataset
    folders = [each for each in chosen if each.kind == "folder"]
    if args.image_size is not None and not folders:
        raise UsageError("--image-size belongs to folder:PATH")
    if bool(folders) != (args.dataset_type is not None) or len(folders) > 1:
        raise UsageError("one folder:PATH and --dataset-type NAME, which its encoder is asked for by, belong together")
    if args.dataset_type is not None:
        check_dataset_type(args.dataset_type)
    sources = {args.dataset_type if each.kind == "folder" else each.kind: each for each in chosen}
    if len(sources) < len(chosen):
        raise UsageError("--dataset names one dataset type twice")
    if args.queue is None and len(sources) > 1:
        raise UsageError("several --dataset belong to --queue; without it, one encoder is trained at a time")
    return sources


def _one(args: argparse.Namespace, sources: dict[str, Source]) -> list[TrainingPayload]:
    from gpusonde.predictor.workload.embedding.training.result import TrainingStoppedError

    ((dataset_type, chosen),) = sources.items()
    try:
        return [_trained(args, dataset_type, chosen, lambda done, total: None)]
    except TrainingStoppedError as stopped:
        _say(stopped)
        raise KeyboardInterrupt from stopped


def _drained(args: argparse.Namespace, sources: dict[str, Source]) -> list[TrainingPayload]:
    """Train whatever waits of these dataset types."""
    from gpusonde.collector.workload.training import CannotTrainError, drain
    from gpusonde.collector.workload.training_queue import TrainingQueue
    from gpusonde.predictor.workload.embedding.training.datasets import DatasetError
    from gpusonde.predictor.workload.embedding.training.result import TrainingError, TrainingStoppedError

    if not args.queue.is_dir():
        raise CommandError(f"{args.queue} is no folder; name the collector's queue of trainings")
    found: dict[str, TrainingPayload] = {}

    def train(dataset_type: str, tell: Callable[[int, int], None]) -> str:
        try:
            found[dataset_type] = _trained(args, dataset_type, sources[dataset_type], tell)
        except TrainingStoppedError as stopped:
            # The training is queued again, and the others are not begun.
            _say(stopped)
            raise KeyboardInterrupt from stopped
        except (CommandError, DirectoryLockedError, TrainingError, DatasetError, OSError) as error:
            raise CannotTrainError(str(error)) from error
        return str(found[dataset_type]["encoder_sha256"])

    def ended(training: Training) -> None:
        if training.state != _DONE:
            found[training.dataset_type] = _failed(training)

    drain(TrainingQueue(args.queue), train, ended, list(sources))
    return list(found.values())


def _say(stopped: Exception) -> None:
    print(f"gpusonde: {stopped}", file=sys.stderr)


def _trained(
    args: argparse.Namespace, dataset_type: str, chosen: Source, tell: Callable[[int, int], None]
) -> TrainingPayload:
    from gpusonde.predictor.workload.embedding.registry import Registry
    from gpusonde.predictor.workload.embedding.training.options import TrainingOptions
    from gpusonde.predictor.workload.embedding.training.progress import Phase, shown_on
    from gpusonde.predictor.workload.embedding.training.result import TrainingMismatchError
    from gpusonde.predictor.workload.embedding.training.trainer import train

    given = {
        "architectures": args.architectures,
        "held_out_architectures": args.held_out,
        "checkpoint_steps": args.checkpoint_steps,
    }
    options = TrainingOptions(
        steps=args.steps, seed=args.seed, **{name: value for name, value in given.items() if value is not None}
    )
    directory = args.out / _TRAININGS / dataset_type
    if args.anew:
        shutil.rmtree(directory, ignore_errors=True)
    dataset = _read(chosen, dataset_type, args.image_size)
    with shown_on(sys.stderr) as show:

        def progress(report: ProgressReport) -> None:
            show(report)
            is_news = report.done % _STEPS_BETWEEN_NEWS == 0 or report.done == report.total
            if report.phase is Phase.TRAINING and is_news:
                tell(report.done, report.total)

        try:
            result = train(dataset, options, directory, progress)
        except TrainingMismatchError as error:
            raise CommandError(f"{error} (--anew does)") from error
    return train_payload(Registry(args.out).add(result.encoder, figures=result.figures()), result)


def _read(chosen: Source, dataset_type: str, image_size: int | None) -> ImageDataset:
    from gpusonde.predictor.workload.embedding.training.datasets import digits, read_cifar10, read_folder

    if chosen.path is None:
        return digits()
    if chosen.kind == "cifar10":
        return read_cifar10(chosen.path)
    if image_size is None:
        return read_folder(chosen.path, dataset_type)
    return read_folder(chosen.path, dataset_type, image_size=image_size)


def train_payload(registered: RegisteredEncoder, result: TrainingResult) -> TrainingPayload:
    """What is printed of a training."""
    figures = result.figures()
    return {
        "dataset_type": registered.dataset_type,
        "state": _DONE,
        "reason": None,
        "encoder_sha256": registered.sha256,
        "trained_steps": registered.trained_steps,
        "skipped_steps": result.skipped_steps,
        "step_s": result.seconds_per_step,
        "first_loss": result.first_loss,
        "last_loss": result.last_loss,
        "accuracy": figures["accuracy_of_unseen_architectures"]["mean"],
        "best_accuracy": figures["accuracy_of_unseen_architectures"]["best"],
        "untrained_accuracy": figures["accuracy_before_training"]["mean"],
        "chance_accuracy": result.chance,
        "tested_architectures": figures["accuracy_of_unseen_architectures"]["architectures"],
    }


def _failed(training: Training) -> TrainingPayload:
    known = {"dataset_type": training.dataset_type, "state": training.state, "reason": training.reason}
    return cast(TrainingPayload, {**dict.fromkeys(TrainingPayload.__annotations__), **known})


def _render_train(screen: Screen, found: EncoderTrainingPayload) -> None:
    for each in found["trainings"]:
        if each["state"] != _DONE:
            screen.note(f"{each['dataset_type']}: {each['reason']}")
            continue
        screen.line(
            f"{each['dataset_type']}: trained for {formatting.count(each['trained_steps'] or 0, 'step')}, loss"
            f" {formatting.number(each['first_loss'])} at the beginning,"
            f" {formatting.number(each['last_loss'])} at the end"
        )
        tested = formatting.count(each["tested_architectures"] or 0, "network")
        shares = (
            each["accuracy"], each["best_accuracy"], each["untrained_accuracy"], each["chance_accuracy"]
        )  # fmt: skip
        mean, best, untrained, chance = map(formatting.percent, shares)
        screen.line(
            f"{tested} that it was not trained on, with the weights that it predicts, are right about {mean} of the"
            f" test images (best {best}); before training {untrained}, guessing {chance}"
        )
        screen.line(f"registered in {found['registry']}, sha256 {(each['encoder_sha256'] or '')[:12]}")
    if not found["trainings"]:
        screen.line("nobody waits for such a training")
