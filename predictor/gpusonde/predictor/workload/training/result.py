"""What comes out of a training of an encoder: its result, and the checkpoint that it goes on from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from gpusonde.errors import EncoderError, ModelError
from gpusonde.predictor.model_file import Arrays, decode, encode
from gpusonde.predictor.workload.embedding.weights import EncoderWeights
from gpusonde.predictor.workload.training.options import TrainingOptions
from gpusonde.service.durable_files import write_durably

FORMAT = "gpusonde.training_checkpoint/1"

_MAXIMUM_BYTES = 1 << 30


def write_checkpoint(path: Path, document: Mapping[str, Any], arrays: Arrays) -> None:
    """Write a checkpoint; an older one is replaced once the new one is complete and on disk.

    Args:
        path: The file.
        document: What JSON can hold.
        arrays: Arrays of numbers by name.

    Raises:
        ValueError: An array holds objects.
        OSError: It cannot be written; the old file stays.
    """
    write_durably(path, encode({"format": FORMAT, **document}, arrays)[0])


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Read a checkpoint. Nothing in it is executed.

    Returns:
        Document and arrays.

    Raises:
        EncoderError: It is no checkpoint, or is damaged.
        FileNotFoundError: There is none.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(_MAXIMUM_BYTES + 1)
    try:
        checkpoint = decode(content, most_bytes=_MAXIMUM_BYTES)
    except ModelError as error:
        raise EncoderError(f"{path}: no checkpoint of a training: {error}; remove it") from error
    if checkpoint.document.get("format") != FORMAT:
        raise EncoderError(f"{path}: no checkpoint of a training, or of another version; remove it")
    return checkpoint.document, checkpoint.arrays


#: Steps that start and end of the loss are averaged over.
AVERAGED_STEPS = 50
#: A network's loss counts at most this many times that of guessing: means would else tell of a few that explode.
MOST_LOSS_OVER_CHANCE = 2.0


class TrainingStoppedError(Exception):
    """The training was stopped. What was trained is saved; the same call goes on from there."""

    def __init__(self, step: int, steps: int) -> None:
        """Keep how far it came."""
        self.step, self.steps = step, steps
        super().__init__(f"training stopped after {step} of {steps} steps and saved; start it again to go on")


@dataclass(frozen=True)
class Accuracy:
    """Shares of test images that networks with predicted weights classify rightly.

    Attributes:
        shares: One per network, 0..1.
    """

    shares: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the networks."""
        return math.fsum(self.shares) / len(self.shares)

    def as_document(self) -> dict[str, Any]:
        """Return mean, worst, best and number of networks, for JSON."""
        return {
            "mean": round(self.mean, 4),
            "worst": round(min(self.shares), 4),
            "best": round(max(self.shares), 4),
            "architectures": len(self.shares),
        }


@dataclass(frozen=True)
class TrainingResult:
    """A trained encoder and what is known of it.

    Attributes:
        encoder: Its weights; ``Registry.add`` registers them.
        options: How it was trained.
        losses: Loss of every step: mean cross-entropy of its networks, each counted up to twice that of guessing; NaN
            where no network's was finite.
        skipped_networks: Networks, counted once per step, whose loss or gradient was not finite, so that nothing was
            learnt from them.
        accuracy: Of networks whose architectures were not trained on, with weights as the hypernetwork predicts them.
        untrained_accuracy: The same before the first step.
        chance: Share that guessing the commonest class gives.
        seconds_per_step: Mean time of a step.
        dataset_sha256: Fingerprint of the images.
        versions: Of the libraries that it was trained with.
    """

    encoder: EncoderWeights
    options: TrainingOptions
    losses: tuple[float, ...]
    skipped_networks: int
    accuracy: Accuracy
    untrained_accuracy: Accuracy
    chance: float
    seconds_per_step: float
    dataset_sha256: str
    versions: Mapping[str, str]

    @property
    def skipped_steps(self) -> int:
        """Steps that learnt nothing, as no network's loss was finite."""
        return sum(not math.isfinite(loss) for loss in self.losses)

    @property
    def first_loss(self) -> float:
        """Mean of the first 50 steps."""
        return average_loss(self.losses[:AVERAGED_STEPS])

    @property
    def last_loss(self) -> float:
        """Mean of the last 50 steps."""
        return average_loss(self.losses[-AVERAGED_STEPS:])

    def figures(self) -> dict[str, Any]:
        """Return what to write on the encoder's card, for JSON."""
        curve = [self.losses[start : start + AVERAGED_STEPS] for start in range(0, len(self.losses), AVERAGED_STEPS)]
        return {
            "options": self.options.as_document(),
            "dataset_sha256": self.dataset_sha256,
            "loss_means_of_50_steps": [_round(average_loss(part)) for part in curve],
            "skipped_steps": self.skipped_steps,
            "skipped_networks": self.skipped_networks,
            "accuracy_of_unseen_architectures": self.accuracy.as_document(),
            "accuracy_before_training": self.untrained_accuracy.as_document(),
            "accuracy_of_chance": round(self.chance, 4),
            "seconds_per_step": round(self.seconds_per_step, 3),
            "versions": dict(self.versions),
        }


def average_loss(losses: Sequence[float]) -> float:
    """Return the mean of the losses that are finite; NaN if none is."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    return math.fsum(finite) / len(finite) if finite else math.nan


def _round(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None
