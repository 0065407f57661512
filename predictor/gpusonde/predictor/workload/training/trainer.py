"""Offline training of a hypernetwork: weights of random architectures are predicted and judged by a dataset's images.

Every random choice of a step comes from the seed and the step's number, so that there is no state of a generator to
lose: a training that goes on from a checkpoint makes the steps that it would have made without the interruption.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from gpusonde.errors import EncoderError
from gpusonde.predictor.former_model_files import FORMER_ENCODER
from gpusonde.predictor.model_file import SUFFIX
from gpusonde.predictor.workload.embedding.weights import EncoderDescription, EncoderWeights, check_dataset_type
from gpusonde.predictor.workload.training.datasets import ImageDataset
from gpusonde.predictor.workload.training.hypernetwork import GraphHyperNetwork
from gpusonde.predictor.workload.training.options import TrainingOptions
from gpusonde.predictor.workload.training.pool import Architecture, Pool
from gpusonde.predictor.workload.training.progress import (
    Phase,
    Progress,
    ProgressReport,
    defer_interrupts,
    ignore_progress,
)
from gpusonde.predictor.workload.training.result import (
    AVERAGED_STEPS,
    MOST_LOSS_OVER_CHANCE,
    Accuracy,
    TrainingResult,
    TrainingStoppedError,
    average_loss,
    read_checkpoint,
    write_checkpoint,
)
from gpusonde.service.durable_files import DirectoryLock, write_durably

CHECKPOINT = f"checkpoint{SUFFIX}"
ENCODER = f"encoder{SUFFIX}"
RESULT = "result.json"

# Numbers of the random streams that are drawn from a seed; those of architectures stand in ``pool``.
_STEPS_STREAM = 2
_MOST_SKIPPED_IN_A_ROW = 50
_TESTED_AT_ONCE = 500


def train(
    dataset: ImageDataset,
    options: TrainingOptions,
    directory: str | Path,
    progress: Progress = ignore_progress,
    *,
    should_stop: Callable[[], bool] = lambda: False,
) -> TrainingResult:
    """Train a hypernetwork on a dataset, or go on with a training that was interrupted.

    Checkpoints are written into the directory, at last ``encoder.safetensors`` and ``result.json``. In the main
    thread, Ctrl-C saves and stops. One core is used.

    Args:
        dataset: The images.
        options: How to train.
        directory: Where the training is kept; it is made if need be.
        progress: Told after every architecture and step.
        should_stop: Asked before every step; True saves and stops.

    Returns:
        The encoder and what is known of it.

    Raises:
        TrainingStoppedError: It was stopped; the same call goes on.
        EncoderError: Too many losses in a row were not finite.
        EncoderError: The directory holds a training with other options or images.
        DirectoryLockedError: Somebody else trains in the directory.
        EncoderError: The checkpoint there is damaged.
        OSError: The directory cannot be read or written.
    """
    check_dataset_type(dataset.name)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    with DirectoryLock(directory, "training"), _use_one_thread(), defer_interrupts() as interrupted:
        training = _EncoderRun.begun(dataset, options, directory / CHECKPOINT, progress)
        training.make_steps(lambda: interrupted() or should_stop())
        result = training.result()
    write_durably(directory / ENCODER, result.encoder.to_bytes())
    document = {**result.figures(), "losses": _replace_infinite(result.losses)}
    write_durably(directory / RESULT, (json.dumps(document, indent=1) + "\n").encode())
    return result


def make_hypernetwork(dataset: ImageDataset, options: TrainingOptions) -> GraphHyperNetwork:
    """Return the hypernetwork as it is drawn: the same for the same seed."""
    weights = EncoderWeights.random(options.seed, EncoderDescription(hidden_size=options.hidden_size))
    # Whatever else draws from torch's own generator goes on as if this had not.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        return GraphHyperNetwork(weights, len(dataset.classes))


@dataclass
class _EncoderRun:
    """A training under way."""

    dataset: ImageDataset
    options: TrainingOptions
    checkpoint: Path
    progress: Progress
    pool: Pool
    network: GraphHyperNetwork
    optimizer: Any
    losses: list[float]
    skipped: int
    seconds: float

    @staticmethod
    def begun(dataset: ImageDataset, options: TrainingOptions, checkpoint: Path, progress: Progress) -> _EncoderRun:
        """Return a new training, or the one of a checkpoint."""
        former = checkpoint.with_suffix(FORMER_ENCODER)
        try:
            document, arrays = read_checkpoint(checkpoint if checkpoint.exists() or not former.exists() else former)
        except FileNotFoundError:
            document, arrays = {}, {}
        if document:
            _check_same(document, dataset, options, checkpoint)

        def tell(done: int, total: int) -> None:
            progress(ProgressReport(Phase.ARCHITECTURES, done, total))

        network = make_hypernetwork(dataset, options)
        pool = Pool.of(dataset, options, network, document.get("architectures"), tell)
        optimizer = torch.optim.Adam(
            network.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay, foreach=False
        )
        losses: list[float] = []
        skipped, seconds = 0, 0.0
        if document:
            try:
                _restore(network, optimizer, arrays)
                losses = [math.nan if loss is None else float(loss) for loss in document["losses"]]
                skipped, seconds = int(document["skipped_networks"]), float(document["seconds"])
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                raise EncoderError(f"{checkpoint}: damaged ({error}); remove it to train anew") from error
        return _EncoderRun(dataset, options, checkpoint, progress, pool, network, optimizer, losses, skipped, seconds)

    def make_steps(self, should_stop: Callable[[], bool]) -> None:
        """Make the steps that are left, saving now and then."""
        total = self.options.steps
        self._tell()
        while (step := len(self.losses)) < total:
            if should_stop():
                self._save()
                raise TrainingStoppedError(step, total)
            started = time.perf_counter()
            loss, skipped = self._make_step(step)
            self.losses.append(loss)
            self.skipped += skipped
            self.seconds += time.perf_counter() - started
            recent = self.losses[-_MOST_SKIPPED_IN_A_ROW:]
            if len(recent) == _MOST_SKIPPED_IN_A_ROW and math.isnan(average_loss(recent)):
                raise EncoderError(
                    f"the loss was not finite in {len(recent)} steps in a row; remove {self.checkpoint} and try "
                    "another seed or a lower learning rate"
                )
            if (step + 1) % self.options.checkpoint_steps == 0 or step + 1 == total:
                self._save()
            self._tell()

    def _make_step(self, step: int) -> tuple[float, int]:
        """Make one step; return its loss, and how many networks of it were skipped."""
        options, dataset = self.options, self.dataset
        generator = np.random.default_rng((options.seed, _STEPS_STREAM, step))
        chosen = generator.choice(len(self.pool.trained), options.architectures_per_step, replace=False)
        count = min(options.images_per_step, len(dataset.train_images))
        images = generator.choice(len(dataset.train_images), count, replace=False)
        batch = torch.from_numpy(dataset.train_images[images])
        labels = torch.from_numpy(dataset.train_labels[images])
        architectures = [self.pool.trained[position] for position in chosen]
        most = MOST_LOSS_OVER_CHANCE * math.log(len(dataset.classes))
        losses, tensors, gradients = [], [], []
        for architecture, parameters in zip(architectures, _predict_weights(self.network, architectures), strict=True):
            leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
            loss = functional.cross_entropy(architecture.classify(leaves, batch), labels)
            found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
            used = [(value, grad) for value, grad in zip(parameters.values(), found, strict=True) if grad is not None]
            norm = float(torch.linalg.vector_norm(torch.stack([grad.norm() for _, grad in used])))
            value = float(loss.detach())
            if not (math.isfinite(value) and math.isfinite(norm)):
                losses.append(math.nan)
                continue
            losses.append(min(value, most))
            # A single network whose activations explode would outshout all others of the step.
            scale = min(1.0, options.architecture_gradient_norm / max(norm, 1e-12)) / len(architectures)
            tensors += [each for each, _ in used]
            gradients += [grad * scale for _, grad in used]
        skipped = sum(map(math.isnan, losses))
        self.optimizer.zero_grad(set_to_none=True)
        if tensors:
            torch.autograd.backward(tensors, gradients)
            norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), options.gradient_norm)
            if not torch.isfinite(norm):
                return math.nan, len(architectures)
            for group in self.optimizer.param_groups:
                group["lr"] = options.learning_rate_at(step)
            self.optimizer.step()
        return average_loss(losses), skipped

    def result(self) -> TrainingResult:
        """Test the trained network, and the untrained one, on the architectures that were held out."""
        dataset, options = self.dataset, self.options
        total = 2 * len(self.pool.held_out)
        counts = np.bincount(dataset.test_labels)

        def tell(done: int) -> None:
            self.progress(ProgressReport(Phase.TESTING, done, total))

        accuracy = self._measure_accuracy(self.network, tell)
        first = make_hypernetwork(dataset, options)
        untrained = self._measure_accuracy(first, lambda done: tell(total // 2 + done))
        return TrainingResult(
            encoder=self.network.encoder_weights(dataset.name, len(self.losses)),
            options=options,
            losses=tuple(self.losses),
            skipped_networks=self.skipped,
            accuracy=accuracy,
            untrained_accuracy=untrained,
            chance=float(counts.max() / counts.sum()),
            seconds_per_step=self.seconds / len(self.losses),
            dataset_sha256=dataset.fingerprint,
            versions=_collect_versions(),
        )

    def _measure_accuracy(self, network: GraphHyperNetwork, tell: Callable[[int], None]) -> Accuracy:
        shares = []
        with torch.no_grad():
            for done, architecture in enumerate(self.pool.held_out):
                tell(done)
                shares.append(self._measure_share(network, architecture))
        tell(len(self.pool.held_out))
        return Accuracy(tuple(shares))

    def _measure_share(self, network: GraphHyperNetwork, architecture: Architecture) -> float:
        (parameters,) = _predict_weights(network, [architecture])
        labels = self.dataset.test_labels[: self.options.test_images]
        right = 0
        for start in range(0, len(labels), _TESTED_AT_ONCE):
            part = slice(start, min(start + _TESTED_AT_ONCE, len(labels)))
            scores = architecture.classify(parameters, torch.from_numpy(self.dataset.test_images[part]))
            right += int((scores.argmax(1) == torch.from_numpy(labels[part])).sum())
        return right / len(labels)

    def _tell(self) -> None:
        done, total = len(self.losses), self.options.steps
        recent = average_loss(self.losses[-AVERAGED_STEPS:])
        left = self.seconds / done * (total - done) if done else None
        self.progress(ProgressReport(Phase.TRAINING, done, total, None if math.isnan(recent) else recent, left))

    def _save(self) -> None:
        document = {
            "options": self.options.as_document(),
            "dataset_type": self.dataset.name,
            "dataset_sha256": self.dataset.fingerprint,
            "losses": _replace_infinite(self.losses),
            "skipped_networks": self.skipped,
            "seconds": self.seconds,
            "architectures": self.pool.as_document(),
        }
        write_checkpoint(self.checkpoint, document, _collect_state(self.network, self.optimizer))


def _predict_weights(
    network: GraphHyperNetwork, architectures: Sequence[Architecture]
) -> list[dict[str, torch.Tensor]]:
    predicted: list[dict[str, torch.Tensor]] = network([each.prepared for each in architectures])
    return predicted


def _collect_state(network: GraphHyperNetwork, optimizer: Any) -> dict[str, Any]:
    """Return weights and what Adam remembers of them."""
    arrays = {f"network.{name}": value.numpy() for name, value in network.state_dict().items()}
    for name, parameter in network.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            arrays[f"adam.{key}.{name}"] = value.numpy()
    return arrays


def _restore(network: GraphHyperNetwork, optimizer: Any, arrays: Mapping[str, Any]) -> None:
    tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    prefix = "network."
    network.load_state_dict(
        {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    )
    for name, parameter in network.named_parameters():
        found = {key: tensors.get(f"adam.{key}.{name}") for key in ("step", "exp_avg", "exp_avg_sq")}
        # A part of the decoder that no step has used yet has no memory.
        if all(value is not None for value in found.values()):
            optimizer.state[parameter] = found


def _check_same(document: Mapping[str, Any], dataset: ImageDataset, options: TrainingOptions, path: Path) -> None:
    found = document.get("options")
    differences = options.differences(found) if isinstance(found, dict) else ["options"]
    if document.get("dataset_type") != dataset.name or document.get("dataset_sha256") != dataset.fingerprint:
        differences.append("the images")
    if differences:
        raise EncoderError(
            f"{path.parent} holds a training that differs in {', '.join(differences)}; use another directory, or "
            f"remove {path.name} to train anew"
        )


@contextlib.contextmanager
def _use_one_thread() -> Iterator[None]:
    """Use one thread: sums of several depend on how many there are, and a step here is too small to need them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _replace_infinite(losses: list[float] | tuple[float, ...]) -> list[float | None]:
    return [loss if math.isfinite(loss) else None for loss in losses]


def _collect_versions() -> dict[str, str]:
    names = ("gpusonde", "torch", "numpy")
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in names}
