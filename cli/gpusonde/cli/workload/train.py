"""``gpusonde workload train``: offline training of the encoder that embeds networks of a type of data."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, cast

from gpusonde import formatting
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser, positive_integer, whole_number
from gpusonde.errors import CommandError, DirectoryLockedError, MissingExtraError, UsageError

if TYPE_CHECKING:
    from gpusonde.collector.workload.training_queue import Training
    from gpusonde.predictor.workload.embedding import RegisteredEncoder
    from gpusonde.predictor.workload.training import ImageDataset, ProgressReport, TrainingResult

_DIGITS, _CIFAR = "digits", "cifar10"
_MOST_HELD_OUT = 60
_DEFAULT_STEPS = 600
_DONE = "done"
# Each is written to disk.
_STEPS_BETWEEN_NEWS = 10
# Beneath the registry's folder, whose own files are cards and checkpoints.
_TRAININGS = "trainings"


class TrainingPayload(TypedDict):
    """A training that has ended; figures are null where it failed."""

    dataset_type: str
    state: Annotated[str, JsonKey("`done` or `failed`")]
    reason: Annotated[str | None, JsonKey("of a failure")]
    encoder_sha256: str | None
    trained_steps: int | None
    skipped_steps: Annotated[int | None, JsonKey("whose loss was not finite")]
    step_s: Annotated[float | None, JsonKey("mean")]
    first_loss: Annotated[float | None, JsonKey("mean of 50 steps")]
    last_loss: Annotated[float | None, JsonKey("mean of 50 steps")]
    accuracy: Annotated[float | None, JsonKey("share of test images classified rightly by unseen networks")]
    best_accuracy: Annotated[float | None, JsonKey("of these networks")]
    untrained_accuracy: Annotated[float | None, JsonKey("mean before training")]
    chance_accuracy: Annotated[float | None, JsonKey("from guessing the commonest class")]
    tested_architectures: int | None


class EncoderTrainingPayload(TypedDict):
    """What ``gpusonde workload train`` prints."""

    registry: Annotated[str, JsonKey("folder of encoders")]
    trainings: list[TrainingPayload]


def add_train_options(parser: Parser) -> None:
    """Declare ``gpusonde workload train``."""
    parser.description = (
        "Train the encoder that embeds networks of a type of data, and register it. Minutes to hours on one core; "
        "a training that was interrupted or killed goes on when the same command is given again. Needs torch."
    )
    parser.add_argument(
        "--dataset",
        type=parse_dataset,
        action="append",
        required=True,
        metavar="NAME=PATH",
        help="type of data to register the encoder for, and its folder with a sub-folder of images per class; "
        "cifar10=PATH is CIFAR-10's binary version as downloaded, digits alone is bundled; repeatable with --queue",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="registry: folder of trained encoders")
    parser.add_argument(
        "--steps", type=positive_integer, default=_DEFAULT_STEPS, metavar="N", help=f"steps (default: {_DEFAULT_STEPS})"
    )
    parser.add_argument("--seed", type=whole_number, default=0, metavar="N", help="of every random choice (default: 0)")
    parser.add_argument(
        "--architectures",
        type=positive_integer,
        metavar="N",
        help=f"random networks to train on; up to {_MOST_HELD_OUT} others, a fourth as many, test it (default: 250)",
    )
    parser.add_argument(
        "--queue",
        type=Path,
        metavar="DIR",
        help="train what a collector has queued there, of these types of data, and tell it there",
    )


def parse_dataset(text: str) -> tuple[str, Path | None]:
    """Argument type: digits, or NAME=PATH."""
    name, _, path = text.partition("=")
    if not path and text != _DIGITS:
        raise argparse.ArgumentTypeError(f"{text!r} is neither {_DIGITS} nor NAME=PATH")
    return name, Path(path) if path else None


def run_train(args: argparse.Namespace) -> int:
    """Train, register and print."""
    sources = _check_datasets(args)
    if find_spec("torch") is None:
        raise MissingExtraError("torch", "workload train", "training")
    output = Output(as_json=args.json)
    trainings = _drain(args, sources) if args.queue else _train_one(args, sources)
    found: EncoderTrainingPayload = {"registry": str(args.out), "trainings": trainings}
    output.result(found, lambda screen: _render_train(screen, found))
    return 0 if all(each["state"] == _DONE for each in trainings) else 1


def _check_datasets(args: argparse.Namespace) -> dict[str, Path | None]:
    """Return what is read for each dataset type."""
    from gpusonde.predictor.workload.embedding import check_dataset_type

    sources = {check_dataset_type(name): path for name, path in args.dataset}
    if len(sources) < len(args.dataset):
        raise UsageError("--dataset names one type of data twice")
    if args.queue is None and len(sources) > 1:
        raise UsageError("several --dataset belong to --queue; without it, one encoder is trained at a time")
    return sources


def _train_one(args: argparse.Namespace, sources: dict[str, Path | None]) -> list[TrainingPayload]:
    from gpusonde.predictor.workload.training import TrainingStoppedError

    ((dataset_type, path),) = sources.items()
    try:
        return [_train(args, dataset_type, path, lambda done, total: None)]
    except TrainingStoppedError as stopped:
        _print_stop(stopped)
        raise KeyboardInterrupt from stopped


def _drain(args: argparse.Namespace, sources: dict[str, Path | None]) -> list[TrainingPayload]:
    """Train whatever waits of these dataset types."""
    from gpusonde.collector.workload.training import drain
    from gpusonde.collector.workload.training_queue import TrainingQueue
    from gpusonde.errors import EncoderError
    from gpusonde.predictor.workload.training import TrainingStoppedError

    if not args.queue.is_dir():
        raise CommandError(f"{args.queue} is no folder; name the collector's queue of trainings")
    found: dict[str, TrainingPayload] = {}

    def train(dataset_type: str, tell: Callable[[int, int], None]) -> str:
        try:
            found[dataset_type] = _train(args, dataset_type, sources[dataset_type], tell)
        except TrainingStoppedError as stopped:
            # The training is queued again, and the others are not begun.
            _print_stop(stopped)
            raise KeyboardInterrupt from stopped
        except (DirectoryLockedError, OSError) as error:
            raise EncoderError(str(error)) from error
        return str(found[dataset_type]["encoder_sha256"])

    def ended(training: Training) -> None:
        if training.state != _DONE:
            found[training.dataset_type] = _failed(training)

    drain(TrainingQueue(args.queue), train, ended, list(sources))
    return list(found.values())


def _print_stop(stopped: Exception) -> None:
    print(f"gpusonde: {stopped}", file=sys.stderr)


def _train(
    args: argparse.Namespace, dataset_type: str, path: Path | None, tell: Callable[[int, int], None]
) -> TrainingPayload:
    from gpusonde.predictor.workload.embedding import Registry
    from gpusonde.predictor.workload.training import Phase, TrainingOptions, show_on, train

    more = {}
    if args.architectures is not None:
        held_out = min(_MOST_HELD_OUT, max(1, args.architectures // 4))
        more = {"architectures": args.architectures, "held_out_architectures": held_out}
    options = TrainingOptions(steps=args.steps, seed=args.seed, **more)
    directory = args.out / _TRAININGS / dataset_type
    dataset = _read_images(dataset_type, path)
    with show_on(sys.stderr) as show:

        def progress(report: ProgressReport) -> None:
            show(report)
            is_news = report.done % _STEPS_BETWEEN_NEWS == 0 or report.done == report.total
            if report.phase is Phase.TRAINING and is_news:
                tell(report.done, report.total)

        result = train(dataset, options, directory, progress)
    return train_payload(Registry(args.out).add(result.encoder, figures=result.figures()), result)


def _read_images(dataset_type: str, path: Path | None) -> ImageDataset:
    from gpusonde.predictor.workload.training import digits, read_cifar10, read_folder

    if path is None:
        return digits()
    return read_cifar10(path) if dataset_type == _CIFAR else read_folder(path, dataset_type)


def train_payload(registered: RegisteredEncoder, result: TrainingResult) -> TrainingPayload:
    """Return what is printed of a training."""
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
