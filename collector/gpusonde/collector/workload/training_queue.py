"""``TrainingQueue``: trainings of embeddings as a table of a small SQLite file, so that they survive whoever trains.

A dataset type is queued once, however often it is asked for. Whoever trains holds a lease: a lock on a file that the
kernel lets go of when the process dies, so that no heartbeat decides; what was running then is queued again. A
training is tried three times at most, whether its process died at work or before it came to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

from gpusonde.errors import EncoderError, RequestError
from gpusonde.predictor.workload.embedding import check_dataset_type, is_dataset_type

QUEUED, RUNNING, DONE, FAILED = "queued", "running", "done", "failed"

_DATABASE = "queue.sqlite"
_VERSION = 1
_TABLE = f"""
CREATE TABLE training (
    dataset_type TEXT PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('{QUEUED}', '{RUNNING}', '{DONE}', '{FAILED}')),
    queued_s REAL NOT NULL,
    started_s REAL,
    ended_s REAL,
    reason TEXT NOT NULL,
    completed_steps INTEGER NOT NULL,
    total_steps INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    encoder_sha256 TEXT NOT NULL
)"""
_BUSY_S = 30.0
_MOST_ATTEMPTS = 3
_LONGEST_REASON = 500
# Version 0 of the queue: a file per training.
_OLD_FORMAT = "gpusonde.training/1"
_LARGEST_OLD_BYTES = 1 << 16
_LATEST_S = 1e11


@dataclass(frozen=True)
class Training:
    """The training of the embedding for one dataset type, as the table has it. Times are Unix seconds.

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


_COLUMNS = [field.name for field in fields(Training)]
# Made of names of our own.
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM training"  # noqa: S608
_REPLACE = f"INSERT OR REPLACE INTO training VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608


class TrainingQueue:
    """The queue in one directory, which is made at need. Any number of processes may use it at the same time.

    Trainings that an earlier version queued there, as files, are taken over when it is used first.

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
            EncoderError: It is no name of a dataset type, or the queue cannot be read.
        """
        check_dataset_type(dataset_type)
        if not self.directory.is_dir():
            return None
        with self._transaction(to_read=True) as table:
            return self._find(table, dataset_type)

    def trainings(self) -> list[Training]:
        """Return all trainings, newest first.

        Raises:
            EncoderError: The queue cannot be read.
        """
        if not self.directory.exists():
            return []
        with self._transaction(to_read=True) as table:
            return self._all(table)

    def enqueue_if_absent(self, dataset_type: str) -> Training | None:
        """Queue a training that a question makes desirable, and return it or the one that is there.

        Questions may fill one half of the queue, so that there is room for what an admin asks for.

        Returns:
            None when the half is full.

        Raises:
            EncoderError: It is no name of a dataset type, or the queue cannot be written.
        """
        check_dataset_type(dataset_type)
        with self._transaction() as table:
            known = self._find(table, dataset_type)
            if known is not None:
                return known
            if sum(training.is_open for training in self._all(table)) >= max(1, self._largest // 2):
                return None
            return self._enqueue(table, dataset_type)

    def enqueue(self, dataset_type: str, *, again: bool = False) -> Training:
        """Queue a training, and return it or the one that is there.

        Args:
            dataset_type: Its name.
            again: Train anew what has failed or is done.

        Raises:
            RequestError: Too many wait.
            EncoderError: It is no name of a dataset type, or the queue cannot be written.
        """
        check_dataset_type(dataset_type)
        with self._transaction() as table:
            known = self._find(table, dataset_type)
            if known is not None and (known.is_open or not again):
                return known
            if known is None and sum(training.is_open for training in self._all(table)) >= self._largest:
                text = f"{self._largest} trainings wait or run; let them end first"
                raise RequestError("RESOURCE_EXHAUSTED", text, reason="workload_queue")
            return self._enqueue(table, dataset_type)

    def claim(self, dataset_types: Collection[str] | None = None) -> Lease | None:
        """Begin the training that has waited longest; None when none waits.

        Args:
            dataset_types: Those that the caller has data for; None for any.

        Raises:
            EncoderError: The queue cannot be used.
        """
        with self._transaction() as table:
            waiting = [
                training
                for training in reversed(self._all(table))
                if training.state == QUEUED and (dataset_types is None or training.dataset_type in dataset_types)
            ]
            if not waiting:
                return None
            training = waiting[0]
            lock = os.open(self._lock_path(training.dataset_type), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            # Others hold it for as long as it takes to look whether it is held.
            fcntl.flock(lock, fcntl.LOCK_EX)
            attempts = training.attempts + 1
            started = Training(training.dataset_type, RUNNING, training.queued_s, self._clock(), attempts=attempts)
            self._write(table, started)
            return Lease(self, started, lock)

    def record_failed_start(self, seen: Training, reason: str) -> Training | None:
        """Count a start that came to an end before the training was claimed; the third attempt was the last one.

        Args:
            seen: The training as it waited before that start.
            reason: What went wrong.

        Returns:
            The training as it is now; None where it was begun, or asked for anew, after all.

        Raises:
            EncoderError: The queue cannot be used.
        """
        with self._transaction() as table:
            if self._find(table, seen.dataset_type) != seen:
                return None
            tried = replace(seen, attempts=seen.attempts + 1)
            if tried.attempts >= _MOST_ATTEMPTS:
                text = f"it could not be begun in {tried.attempts} attempts; the last one: {reason}"
                tried = replace(tried, state=FAILED, reason=text[:_LONGEST_REASON], ended_s=self._clock())
            self._write(table, tried)
            return tried

    def update(self, training: Training) -> None:
        """Replace a training; for whoever holds its lease."""
        with self._transaction() as table:
            self._write(table, training)

    @property
    def now_s(self) -> float:
        """Unix seconds."""
        return self._clock()

    def _enqueue(self, table: sqlite3.Connection, dataset_type: str) -> Training:
        others = [training for training in reversed(self._all(table)) if training.dataset_type != dataset_type]
        ended = [training.dataset_type for training in others if not training.is_open]
        for name in ended[: max(0, len(others) + 1 - self._largest)]:
            table.execute("DELETE FROM training WHERE dataset_type = ?", (name,))
            self._lock_path(name).unlink(missing_ok=True)
        training = Training(dataset_type, QUEUED, self._clock())
        self._write(table, training)
        return training

    def _find(self, table: sqlite3.Connection, dataset_type: str) -> Training | None:
        row = table.execute(f"{_SELECT} WHERE dataset_type = ?", (dataset_type,)).fetchone()
        return None if row is None else self._seen(Training(*row))

    def _all(self, table: sqlite3.Connection) -> list[Training]:
        rows = table.execute(f"{_SELECT} ORDER BY queued_s DESC, dataset_type")
        return [self._seen(Training(*row)) for row in rows]

    def _write(self, table: sqlite3.Connection, training: Training) -> None:
        table.execute(_REPLACE, astuple(training))

    def _seen(self, training: Training) -> Training:
        """Return a training as it is, whatever its process still wrote before it died."""
        if training.state != RUNNING or self._is_leased(training.dataset_type):
            return training
        if training.attempts >= _MOST_ATTEMPTS:
            reason = f"the process that trained died {training.attempts} times; see its log"
            return replace(training, state=FAILED, reason=reason, ended_s=training.started_s)
        return replace(training, state=QUEUED, started_s=None)

    def _is_leased(self, dataset_type: str) -> bool:
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

    def _lock_path(self, dataset_type: str) -> Path:
        return self.directory / f"{dataset_type}.lock"

    @contextlib.contextmanager
    def _transaction(self, *, to_read: bool = False) -> Iterator[sqlite3.Connection]:
        """Open the table for one change that nobody else interferes with, or for one look."""
        path = self.directory / _DATABASE
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)) as table:
                (version,) = table.execute("PRAGMA user_version").fetchone()
                if version == 0:
                    self._make_table(table)
                elif version != _VERSION:
                    raise EncoderError(f"{path} is of version {version}, this gpusonde knows {_VERSION}")
                # Closing what is not committed takes it back.
                table.execute("BEGIN" if to_read else "BEGIN IMMEDIATE")
                yield table
                table.execute("COMMIT")
        except OSError as error:
            raise EncoderError(f"{error.filename or path} cannot be used: {error.strerror}") from None
        except sqlite3.Error as error:
            raise EncoderError(f"the queue of trainings {path} cannot be used: {error}") from None

    def _make_table(self, table: sqlite3.Connection) -> None:
        """Make the table, and take over the trainings that an earlier version left as files."""
        table.execute("BEGIN IMMEDIATE")
        if table.execute("PRAGMA user_version").fetchone() == (_VERSION,):
            table.execute("COMMIT")  # another process was faster
            return
        table.execute(_TABLE)
        table.execute(f"PRAGMA user_version = {_VERSION}")
        old = [path for path in sorted(self.directory.glob("*.json")) if is_dataset_type(path.stem)]
        for path in old:
            self._write(table, _read_old(path))
        table.execute("COMMIT")
        for path in old:
            path.unlink(missing_ok=True)


class Lease:
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

    def __enter__(self) -> Lease:
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


def _read_old(path: Path) -> Training:
    """Read a training that an earlier version queued as a file."""
    try:
        with path.open("rb") as file:
            document: dict[str, Any] = json.loads(file.read(_LARGEST_OLD_BYTES))
        is_ours = document.pop("format") == _OLD_FORMAT
        training = Training(**document)
        is_ours &= training.dataset_type == path.stem and _is_sound(training)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        is_ours = False
    if not is_ours:
        raise EncoderError(f"{path} is no training that an earlier version queued; remove it")
    return training


def _is_sound(training: Training) -> bool:
    """Tell whether it can be sorted, counted and sent."""
    times = [training.queued_s, *(time for time in (training.started_s, training.ended_s) if time is not None)]
    counts = training.completed_steps, training.total_steps, training.attempts
    return (
        training.state in (QUEUED, RUNNING, DONE, FAILED)
        and all(type(time) in (int, float) and 0.0 <= time <= _LATEST_S for time in times)
        and all(type(count) is int and 0 <= count < 1 << 31 for count in counts)
        and all(isinstance(text, str) for text in (training.reason, training.encoder_sha256))
    )
