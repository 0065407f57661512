"""``TrainingQueue``: trainings of embeddings as files of one directory, so that they survive whoever works on them.

A training is one JSON file named after its dataset type, replaced as a whole; so a dataset type is queued once, however
often it is asked for. Whoever trains holds a lock that the kernel lets go of when the process dies: what was running
then is queued again. A training is tried three times at most, whether its process died at work or before it came to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpusonde.predictor.workload.embedding.weights import DatasetTypeNameError, check_dataset_type
from gpusonde.service.durable_files import write_durably

_FORMAT = "gpusonde.training/1"
_MOST_ATTEMPTS = 3
_LONGEST_REASON = 500
_LARGEST_FILE_BYTES = 1 << 16
_LATEST_S = 1e11

QUEUED, RUNNING, DONE, FAILED = "queued", "running", "done", "failed"


class TrainingQueueError(Exception):
    """The queue cannot be used, or takes no more."""


class QueueFullError(TrainingQueueError):
    """As many trainings as may be are queued or running."""


@dataclass(frozen=True)
class Training:
    """The training of the embedding for one dataset type. Times are Unix seconds.

    Attributes:
        dataset_type: Its name.
        state: "queued", "running", "done" or "failed".
        queued_s: When it was asked for.
        started_s: When it was begun last; None before.
        ended_s: When it was done or failed; None before.
        reason: Why it failed.
        completed_steps: Steps done.
        total_steps: All steps; 0 while nobody knows.
        attempts: Times that it was begun, or was to be.
        encoder_sha256: Of what came of it, hexadecimal.
    """

    dataset_type: str
    state: str
    queued_s: float
    started_s: float | None = None
    ended_s: float | None = None
    reason: str = ""
    completed_steps: int = 0
    total_steps: int = 0
    attempts: int = 0
    encoder_sha256: str = ""

    @property
    def is_open(self) -> bool:
        """Whether something is still to come of it."""
        return self.state in (QUEUED, RUNNING)


class TrainingQueue:
    """The queue in one directory, which is made at need. Any number of processes may use it at the same time.

    Args:
        directory: Where it lies.
        largest: Trainings that are kept; the oldest that have ended make room.
        clock: Unix seconds.

    Attributes:
        directory: Where it lies.
    """

    def __init__(self, directory: Path, largest: int = 32, clock: Callable[[], float] = time.time) -> None:
        self.directory = directory
        self._largest = largest
        self._clock = clock

    def get(self, dataset_type: str) -> Training | None:
        """Return one training, None where nobody asked for it.

        Raises:
            DatasetTypeNameError: It is no name of a dataset type; it becomes that of a file.
            TrainingQueueError: Its file cannot be read.
        """
        return self._read(self._path(check_dataset_type(dataset_type)))

    def trainings(self) -> list[Training]:
        """Return all trainings, newest first.

        Raises:
            TrainingQueueError: The directory cannot be read.
        """
        found = [training for path in self._paths() if (training := self._read(path))]
        return sorted(found, key=lambda training: (-training.queued_s, training.dataset_type))

    def want(self, dataset_type: str) -> Training | None:
        """Queue a training that a question makes desirable, and return it or the one that is there.

        Questions may fill one half of the queue, so that there is room for what an admin asks for.

        Returns:
            None when the half is full.

        Raises:
            DatasetTypeNameError: It is no name of a dataset type; it becomes that of a file.
            TrainingQueueError: The queue cannot be written.
        """
        with self._locked():
            known = self.get(dataset_type)
            if known is not None:
                return known
            if sum(training.is_open for training in self.trainings()) >= max(1, self._largest // 2):
                return None
            return self._enqueue(dataset_type)

    def add(self, dataset_type: str, *, again: bool = False) -> Training:
        """Queue a training, and return it or the one that is there.

        Args:
            dataset_type: Its name.
            again: Train anew what has failed or is done.

        Raises:
            DatasetTypeNameError: It is no name of a dataset type; it becomes that of a file.
            QueueFullError: Too many wait.
            TrainingQueueError: The queue cannot be written.
        """
        with self._locked():
            known = self.get(dataset_type)
            if known is not None and (known.is_open or not again):
                return known
            if known is None and sum(training.is_open for training in self.trainings()) >= self._largest:
                raise QueueFullError(
                    f"{self._largest} trainings wait or run (workload.max_trainings); let them end first"
                )
            return self._enqueue(dataset_type)

    def claim(self, dataset_types: Collection[str] | None = None) -> Claim | None:
        """Begin the training that has waited longest; None when none waits.

        Args:
            dataset_types: Those that the caller has data for; None for any.

        Raises:
            TrainingQueueError: The queue cannot be used.
        """
        with self._locked():
            queued = (training for training in self.trainings() if training.state == QUEUED)
            waiting = sorted(
                (each for each in queued if dataset_types is None or each.dataset_type in dataset_types), key=_by_age
            )
            if not waiting:
                return None
            training = waiting[0]
            lock = os.open(self._lock_path(training.dataset_type), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            # Others hold it for as long as it takes to look whether it is held.
            fcntl.flock(lock, fcntl.LOCK_EX)
            started = replace(
                training,
                state=RUNNING,
                started_s=self._clock(),
                attempts=training.attempts + 1,
                completed_steps=0,
                total_steps=0,
            )
            self._write(started)
            return Claim(self, started, lock)

    def not_begun(self, seen: Training, reason: str) -> Training | None:
        """Count a start that came to an end before the training was claimed; the third attempt was the last one.

        Args:
            seen: The training as it waited before that start.
            reason: What went wrong.

        Returns:
            The training as it is now; None where it was begun, or asked for anew, after all.

        Raises:
            TrainingQueueError: The queue cannot be used.
        """
        with self._locked():
            if self.get(seen.dataset_type) != seen:
                return None
            tried = replace(seen, attempts=seen.attempts + 1)
            if tried.attempts >= _MOST_ATTEMPTS:
                text = f"it could not be begun in {tried.attempts} attempts; the last one: {reason}"
                tried = replace(tried, state=FAILED, reason=text[:_LONGEST_REASON], ended_s=self._clock())
            self._write(tried)
            return tried

    def update(self, training: Training) -> None:
        """Replace a training; for whoever holds its claim."""
        with self._locked():
            self._write(training)

    @property
    def now_s(self) -> float:
        """Unix seconds."""
        return self._clock()

    def _enqueue(self, dataset_type: str) -> Training:
        training = Training(dataset_type, QUEUED, self._clock())
        self._make_room(dataset_type)
        self._write(training)
        return training

    def _make_room(self, dataset_type: str) -> None:
        others = [training for training in self.trainings() if training.dataset_type != dataset_type]
        ended = sorted((training for training in others if not training.is_open), key=_by_age)
        for training in ended[: max(0, len(others) + 1 - self._largest)]:
            self._path(training.dataset_type).unlink(missing_ok=True)
            self._lock_path(training.dataset_type).unlink(missing_ok=True)

    def _read(self, path: Path) -> Training | None:
        try:
            with path.open("rb") as file:
                data = file.read(_LARGEST_FILE_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise TrainingQueueError(f"{path} cannot be read: {error.strerror}") from None
        training = _parse(data, path)
        if training.state != RUNNING or self._is_held(training.dataset_type):
            return training
        if training.attempts >= _MOST_ATTEMPTS:
            reason = f"the process that trained died {training.attempts} times; see its log"
            return replace(training, state=FAILED, reason=reason, ended_s=training.started_s)
        return replace(training, state=QUEUED, started_s=None)

    def _is_held(self, dataset_type: str) -> bool:
        try:
            handle = os.open(self._lock_path(dataset_type), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def _write(self, training: Training) -> None:
        document = {"format": _FORMAT, **asdict(training)}
        try:
            write_durably(self._path(training.dataset_type), json.dumps(document, indent=1).encode() + b"\n")
        except OSError as error:
            raise TrainingQueueError(f"{error.filename} cannot be written: {error.strerror}") from None

    def _paths(self) -> list[Path]:
        try:
            return [path for path in self.directory.glob("*.json") if _is_name(path.stem)]
        except OSError as error:
            raise TrainingQueueError(f"{self.directory} cannot be read: {error.strerror}") from None

    def _path(self, dataset_type: str) -> Path:
        return self.directory / f"{dataset_type}.json"

    def _lock_path(self, dataset_type: str) -> Path:
        return self.directory / f"{dataset_type}.lock"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep others from changing the queue."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise TrainingQueueError(f"{self.directory} cannot be used: {error.strerror}") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


class Claim:
    """A training that this process works on. Use it as a context manager; left without an end, it is queued again.

    Args:
        queue: Its queue.
        training: The training.
        lock: File that is locked while it runs.
    """

    def __init__(self, queue: TrainingQueue, training: Training, lock: int) -> None:
        self._queue = queue
        self._lock = lock
        self.training = training

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self.training.state == RUNNING:
                # Interrupted in good order: that is no attempt that died.
                attempts = self.training.attempts - 1
                self._set(replace(self.training, state=QUEUED, started_s=None, attempts=attempts))
        finally:
            os.close(self._lock)

    def progress(self, completed_steps: int, total_steps: int) -> None:
        """Say how far it is."""
        self._set(replace(self.training, completed_steps=completed_steps, total_steps=total_steps))

    def done(self, encoder_sha256: str) -> None:
        """Say that it came to an end, and what came of it."""
        self._set(replace(self.training, state=DONE, ended_s=self._queue.now_s, encoder_sha256=encoder_sha256))

    def failed(self, reason: str) -> None:
        """Say why nothing came of it."""
        text = reason.strip()[:_LONGEST_REASON] or "no reason was given"
        self._set(replace(self.training, state=FAILED, ended_s=self._queue.now_s, reason=text))

    def _set(self, training: Training) -> None:
        self.training = training
        self._queue.update(training)


def _parse(data: bytes, path: Path) -> Training:
    try:
        document: dict[str, Any] = json.loads(data)
        is_ours = document.pop("format") == _FORMAT
        training = Training(**document)
        is_ours &= training.dataset_type == path.stem and training.state in (QUEUED, RUNNING, DONE, FAILED)
        is_ours &= _is_sound(training)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        is_ours = False
    if not is_ours:
        raise TrainingQueueError(f"{path} is no training of this queue; remove it")
    return training


def _is_sound(training: Training) -> bool:
    """Whether it can be sorted, counted and sent."""
    times = [training.queued_s, *(time for time in (training.started_s, training.ended_s) if time is not None)]
    counts = training.completed_steps, training.total_steps, training.attempts
    return (
        all(type(time) in (int, float) and 0.0 <= time <= _LATEST_S for time in times)
        and all(type(count) is int and 0 <= count < 1 << 31 for count in counts)
        and all(isinstance(text, str) for text in (training.reason, training.encoder_sha256))
    )


def _is_name(text: str) -> bool:
    try:
        check_dataset_type(text)
    except DatasetTypeNameError:
        return False
    return True


def _by_age(training: Training) -> tuple[float, str]:
    return training.queued_s, training.dataset_type
