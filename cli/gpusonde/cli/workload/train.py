"""``gpusonde workload train``: offline training of the encoder that embeds networks of a type of data."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusonde.cli import wording
from gpusonde.cli.errors import CommandError, MissingExtraError
from gpusonde.cli.output import Output, Screen
from gpusonde.cli.parsing import Parser, Subparsers, UsageError, add_command, positive_integer, whole_number

if TYPE_CHECKING:
    from gpusonde.collector.workload.training_queue import Training
    from gpusonde.predictor.workload.embedding.registry import RegisteredEncoder
    from gpusonde.predictor.workload.embedding.training.datasets import ImageDataset
    from gpusonde.predictor.workload.embedding.training.pool import ProgressReport
    from gpusonde.predictor.workload.embedding.training.result import TrainingResult

_DIGITS = "digits"
_DEFAULT_STEPS = 600
_DONE = "done"
# Each is written to disk.
_STEPS_BETWEEN_NEWS = 10
# Beneath the registry's folder, whose own files are cards and checkpoints.
_TRAININGS = "trainings"
_KEYS = (
    "dataset_type", "state", "reason", "encoder_sha256", "trained_steps", "skipped_steps", "step_s", "first_loss",
    "last_loss", "accuracy", "best_accuracy", "untrained_accuracy", "chance_accuracy", "tested_architectures",
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Images to train on, not read yet.

    Attributes:
        kind: "digits", "folder" or "cifar10".
        path: Where they are; None for the bundled digits.
    """

    kind: str
    path: Path | None = None


def add_train_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde workload train``."""
    parser = add_command(
        subparsers,
        common,
        "train",
        "train the encoder that embeds networks of a type of data",
        "Train the encoder that embeds networks of a type of data, and register it. Minutes to hours on one core; "
        "a training that was interrupted or killed goes on when the same command is given again. Needs torch.",
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
    found = {"registry": str(args.out), "trainings": trainings}
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


def _one(args: argparse.Namespace, sources: dict[str, Source]) -> list[dict[str, Any]]:
    from gpusonde.predictor.workload.embedding.training.result import TrainingStoppedError

    ((dataset_type, chosen),) = sources.items()
    try:
        return [_trained(args, dataset_type, chosen, lambda done, total: None)]
    except TrainingStoppedError as stopped:
        _say(stopped)
        raise KeyboardInterrupt from stopped


def _drained(args: argparse.Namespace, sources: dict[str, Source]) -> list[dict[str, Any]]:
    """Train whatever waits of these dataset types."""
    from gpusonde.collector.workload.training import CannotTrainError, drain
    from gpusonde.collector.workload.training_queue import TrainingQueue
    from gpusonde.predictor.workload.embedding.training.datasets import DatasetError
    from gpusonde.predictor.workload.embedding.training.result import TrainingError, TrainingStoppedError

    if not args.queue.is_dir():
        raise CommandError(f"{args.queue} is no folder; name the collector's queue of trainings")
    found: dict[str, dict[str, Any]] = {}

    def train(dataset_type: str, tell: Callable[[int, int], None]) -> str:
        try:
            found[dataset_type] = _trained(args, dataset_type, sources[dataset_type], tell)
        except TrainingStoppedError as stopped:
            # The training is queued again, and the others are not begun.
            _say(stopped)
            raise KeyboardInterrupt from stopped
        except (CommandError, TrainingError, DatasetError, OSError) as error:
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
) -> dict[str, Any]:
    from gpusonde.predictor.workload.embedding.registry import Registry
    from gpusonde.predictor.workload.embedding.training.options import TrainingOptions
    from gpusonde.predictor.workload.embedding.training.pool import Phase, shown_on
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


def train_payload(registered: RegisteredEncoder, result: TrainingResult) -> dict[str, Any]:
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


def _failed(training: Training) -> dict[str, Any]:
    return dict.fromkeys(_KEYS) | {
        "dataset_type": training.dataset_type,
        "state": training.state,
        "reason": training.reason,
    }


def _render_train(screen: Screen, found: dict[str, Any]) -> None:
    for each in found["trainings"]:
        if each["state"] != _DONE:
            screen.note(f"{each['dataset_type']}: {each['reason']}")
            continue
        screen.line(
            f"{each['dataset_type']}: trained for {wording.count(each['trained_steps'], 'step')}, loss"
            f" {wording.number(each['first_loss'])} at the beginning, {wording.number(each['last_loss'])} at the end"
        )
        tested = wording.count(each["tested_architectures"], "network")
        shares = (each[key] for key in ("accuracy", "best_accuracy", "untrained_accuracy", "chance_accuracy"))
        mean, best, untrained, chance = map(wording.percent, shares)
        screen.line(
            f"{tested} that it was not trained on, with the weights that it predicts, are right about {mean} of the"
            f" test images (best {best}); before training {untrained}, guessing {chance}"
        )
        screen.line(f"registered in {found['registry']}, sha256 {each['encoder_sha256'][:12]}")
    if not found["trainings"]:
        screen.line("nobody waits for such a training")
