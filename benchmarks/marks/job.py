"""One real training job on the processor, a process of its own: ``job.py KIND EVENTS.jsonl FOLDER SECONDS SCALE``.

A small convolutional network learns images that workers of a data loader read from a file and augment. What is done
and when is written as JSON lines (``event``, ``time_unix_s``): the truth beside a recording. A step computes real
gradients and then waits until its time is over, as for a device: so that whoever else uses the processor does not bend
the cycles.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

_SIDE = 32
_SAMPLE_BYTES = 3 * _SIDE * _SIDE
_IN_FILE = 16384
_BATCH = 4
_STEP_S = 0.05
_EVALUATED_S = 0.04  # a batch without the backward pass
_MOST_LATE_S = 0.5  # that is caught up


class _Images(Dataset):
    """Images in a file, each read when it is asked for.

    Args:
        path: The file.
        count: How many they are.
    """

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.count, self.file = path, count, -1

        self.mean, self.deviation = 0.0, 1.0

    def __len__(self) -> int:
        return self.count

    def standardize(self, indices: np.ndarray) -> None:
        """Measure mean and deviation of the images to be learned, as each fold must anew."""
        pixels = np.fromfile(self.path, np.uint8).reshape(_IN_FILE, -1)[indices % _IN_FILE].astype(np.float32) / 255.0
        self.mean, self.deviation = float(pixels.mean()), float(pixels.std())

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.file < 0:
            self.file = os.open(self.path, os.O_RDONLY)
        at = index % _IN_FILE
        pixels = np.frombuffer(os.pread(self.file, _SAMPLE_BYTES, at * _SAMPLE_BYTES), np.uint8)
        image = pixels.reshape(3, _SIDE, _SIDE).astype(np.float32) / 255.0
        image = (np.roll(image, index % 7, axis=2) - self.mean) / self.deviation
        return torch.from_numpy(image.astype(np.float32)), int(index % 10)


class _Stream(IterableDataset):
    """The same images without end."""

    def __init__(self, images: _Images) -> None:
        self.images = images

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        order = np.random.default_rng(torch.initial_seed() % 2**32)
        while True:
            yield self.images[int(order.integers(_IN_FILE))]


class Job:
    """A network in training.

    Args:
        events: Where it writes what it does.
        folder: Where its data and checkpoints lie.
        seconds: For how long it trains.
        scale: By how much everything in it takes longer than its kind says.
    """

    def __init__(self, events: Path, folder: Path, seconds: float, scale: float) -> None:
        self._scale = scale
        self._events = events.open("w", buffering=1)
        self._folder = folder
        data = folder / "images.bin"
        if not data.exists():
            data.write_bytes(np.random.default_rng(1).integers(0, 256, _IN_FILE * _SAMPLE_BYTES, np.uint8).tobytes())
        self._data = data
        self.end_s = time.monotonic() + seconds
        self._due_s = 0.0
        self.make_network()

    def tell(self, event: str) -> None:
        """Write what begins now."""
        self._events.write(json.dumps({"event": event, "time_unix_s": time.time()}) + "\n")

    def make_network(self, rate: float = 1e-3) -> None:
        """Begin with a new network; the old one's memory is given back first."""
        self.network = self.optimizer = None
        self.network = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 64, 1024), nn.ReLU(), nn.Linear(1024, 10),
        )  # fmt: skip
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=rate)

    def images(self, seconds: float) -> _Images:
        """Return as many images as are learned in so many seconds."""
        return _Images(self._data, round(self._scale * seconds / _STEP_S) * _BATCH)

    def held_out(self, seconds: float, *, persistent: bool = False) -> DataLoader:
        """Return what loads images to evaluate for about so many seconds."""
        images = _Images(self._data, round(self._scale * seconds / _EVALUATED_S) * _BATCH)
        return self.loader(images, workers=1, persistent=persistent)

    def loader(self, images: Dataset, *, workers: int = 2, persistent: bool = False) -> DataLoader:
        """Return what loads them with workers."""
        shuffle = not isinstance(images, IterableDataset)
        return DataLoader(images, _BATCH, shuffle=shuffle, num_workers=workers, persistent_workers=persistent)

    def learn(self, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Take one optimizer step."""
        self.optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(self.network(batch[0]), batch[1]).backward()
        self.optimizer.step()
        self._wait(_STEP_S)

    def evaluate(self, loader: DataLoader) -> None:
        """Evaluate once."""
        self.tell("evaluation")
        self.network.eval()
        with torch.no_grad():
            for images, _ in loader:
                self.network(images)
                self._wait(_EVALUATED_S)
        self.network.train()
        self.tell("training")

    def save(self) -> None:
        """Write a checkpoint, and have it on the disk before training goes on."""
        self.tell("checkpoint")
        path = self._folder / f"checkpoint-{os.getpid()}.pt"
        with path.open("wb") as file:
            torch.save({"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}, file)
            file.flush()
            os.fsync(file.fileno())
        self.tell("training")

    def is_over(self) -> bool:
        """Whether it has trained for long enough."""
        return time.monotonic() >= self.end_s

    def _wait(self, seconds: float) -> None:
        """Wait until so many seconds have passed since the last time, less what was lost to others."""
        now = time.monotonic()
        self._due_s = self._due_s + seconds if now - self._due_s < _MOST_LATE_S + seconds else now
        time.sleep(max(0.0, self._due_s - now))


def train_epochs(
    job: Job, epoch_s: float, *, persistent: bool = False, evaluated_s: float = 0.0, saved: bool = False,
    evaluations: int = 1, saved_every_s: float = 0.0,
) -> None:  # fmt: skip
    """Epochs, with what is done at the end of each, or in it."""
    images = job.images(epoch_s)
    loader = job.loader(images, persistent=persistent)
    evaluation = job.held_out(evaluated_s, persistent=persistent) if evaluated_s else None
    every = len(loader) // evaluations
    saved_every = round(saved_every_s / epoch_s * len(loader))
    step = 0
    while not job.is_over():
        job.tell("epoch")
        for i, batch in enumerate(loader):
            job.learn(batch)
            step += 1
            if saved_every and step % saved_every == 0:
                job.save()
            if evaluation is not None and (i + 1) % every == 0 and (i + 1) // every <= evaluations:
                job.evaluate(evaluation)
        if saved:
            job.save()


def train_folds(job: Job, epochs: int, epoch_s: float, *, persistent: bool) -> None:
    """Cross-validation: a new network per fold, evaluated on a part of the images that it has not seen."""
    images = job.images(epoch_s)
    order = np.random.default_rng(3).permutation(len(images) * 5 // 4)
    everything = _Images(images.path, len(order))
    fold = 0
    while not job.is_over():
        job.tell("trial")
        job.make_network()
        held = np.arange(len(order)) % 5 == fold % 5
        everything.standardize(np.sort(order[~held]))
        loader = job.loader(Subset(everything, order[~held].tolist()), persistent=persistent)
        unseen = Subset(everything, order[held].tolist())
        evaluation = job.loader(unseen, workers=1, persistent=persistent)
        for _ in range(epochs):
            job.tell("epoch")
            for batch in loader:
                job.learn(batch)
            job.evaluate(evaluation)
        job.save()
        del loader, evaluation
        fold += 1


def train_rates(job: Job, epochs: int, epoch_s: float) -> None:
    """A search for the best learning rate: a few epochs each, the result of each kept."""
    images = job.images(epoch_s)
    rate = 1e-4
    while not job.is_over():
        job.tell("trial")
        job.make_network(rate)
        loader = job.loader(images)
        for _ in range(epochs):
            job.tell("epoch")
            for batch in loader:
                job.learn(batch)
        job.save()
        rate *= 1.5


def train_stream(job: Job, interval_s: float, *, evaluated_s: float, saved_every: int) -> None:
    """Steps without epochs; every so many an evaluation, a checkpoint, or both."""
    loader = iter(job.loader(_Stream(job.images(1.0)), persistent=True))
    evaluation = job.held_out(evaluated_s) if evaluated_s else None
    steps = len(job.images(interval_s)) // _BATCH
    interval = 0
    while not job.is_over():
        for _ in range(steps):
            job.learn(next(loader))
        interval += 1
        if evaluation is not None:
            job.evaluate(evaluation)
        if saved_every and interval % saved_every == 0:
            job.save()


KINDS = {
    "epochs": lambda job: train_epochs(job, 7.0),
    "epochs, workers kept, evaluated": lambda job: train_epochs(job, 7.0, persistent=True, evaluated_s=2.0),
    "epochs, evaluated, saved": lambda job: train_epochs(job, 8.0, evaluated_s=2.5, saved=True),
    "evaluated every quarter": lambda job: train_epochs(job, 20.0, evaluated_s=1.5, evaluations=4),
    "saved every k steps": lambda job: train_epochs(job, 21.0, saved_every_s=5.0),
    "folds": lambda job: train_folds(job, 4, 4.5, persistent=False),
    "folds, workers kept": lambda job: train_folds(job, 4, 4.5, persistent=True),
    "search of rates": lambda job: train_rates(job, 3, 5.0),
    "stream, evaluated": lambda job: train_stream(job, 6.0, evaluated_s=2.0, saved_every=0),
    "stream, saved": lambda job: train_stream(job, 7.0, evaluated_s=0.0, saved_every=1),
}


def main() -> None:
    """Train one job."""
    kind, events, folder, seconds, scale = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    job = Job(Path(events), Path(folder), float(seconds), float(scale))
    job.tell("start")
    KINDS[kind](job)
    job.tell("end")


if __name__ == "__main__":
    main()
