"""Which job owns which GPU: ``Owner`` now, ``GpuOwnership`` from when to when (on the wire a binding).

``OwnershipHistory`` makes the second of the first: it is told at every poll who owns the GPUs, and says what changed.
``OwnershipFile`` keeps what is open, so that a job that ends while the agent is away is ended when it comes back.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from gpusonde.service.durable_files import FileLayer, write_durably

log = logging.getLogger(__name__)

SHARED_LABEL = "shared"
# Enough to tell a collector again what a full spool has lost of some days.
_MOST_ENDED = 256


class Scheduler(Enum):
    """Who gave the GPU to the owner; the last three are no schedulers but what a process runs in."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    CONTAINER = "container"
    SYSTEMD = "systemd"
    USER = "user"


@dataclass(frozen=True)
class Owner:
    """A job that holds a GPU.

    Attributes:
        scheduler: Who gave it the GPU.
        job_id: Its name there: a Slurm job id, ``namespace/pod``, a container's short id, a unit, ``uid-1000``.
        start_unix_nano: Since when it has held the GPU; 0 when the source does not tell.
        seen_unix_nano: When the source last saw it; 0 for now.
        labels: What else is known; never a command line.
    """

    scheduler: Scheduler
    job_id: str
    start_unix_nano: int = 0
    seen_unix_nano: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)


# GPU key (the MIG instance's UUID where there is one) -> who holds it.
Owners = Mapping[str, tuple[Owner, ...]]


@dataclass(frozen=True)
class GpuOwnership:
    """One job's ownership of one GPU over ``[start, end)``.

    Attributes:
        gpu: Key of the GPU.
        scheduler: Who gave it.
        job_id: The job.
        start_unix_nano: Its beginning.
        end_unix_nano: Its end, 0 while it lasts.
        labels: What else is known.
        seen_unix_nano: When it was last seen; 0 when only a former process saw it.
    """

    gpu: str
    scheduler: Scheduler
    job_id: str
    start_unix_nano: int
    end_unix_nano: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    seen_unix_nano: int = 0


_Key = tuple[str, Scheduler, str]


class OwnershipHistory:
    """Keeps the ownerships that are open, and those that ended last.

    Args:
        held: Ownerships that a former process left open.
    """

    def __init__(self, held: Iterable[GpuOwnership] = ()) -> None:
        self._open: dict[_Key, GpuOwnership] = {_key(b): replace(b, seen_unix_nano=0) for b in held}
        self._ended: deque[GpuOwnership] = deque(maxlen=_MOST_ENDED)

    @property
    def open(self) -> tuple[GpuOwnership, ...]:
        """Ownerships that last."""
        return tuple(self._open.values())

    @property
    def ended(self) -> tuple[GpuOwnership, ...]:
        """Ownerships that are over, the oldest first."""
        return tuple(self._ended)

    def observe(self, now_unix_nano: int, owners: Owners) -> tuple[GpuOwnership, ...]:
        """Take who holds the GPUs now and return the ownerships that changed: ends first, then beginnings."""
        present = {(gpu, owner.scheduler, owner.job_id): owner for gpu, of_gpu in owners.items() for owner in of_gpu}
        ends = [self._end(key, now_unix_nano) for key in list(self._open) if key not in present]
        begun = {key: self._begin(key, owner, now_unix_nano) for key, owner in present.items() if key not in self._open}
        news = {_key(b): b for b in begun.values()}
        self._open.update(news)
        for key, owner in present.items():
            seen = owner.seen_unix_nano or now_unix_nano
            self._open[key] = replace(self._open[key], seen_unix_nano=seen)
        for key, labels in self._labels(present, begun).items():
            if labels != self._open[key].labels:
                self._open[key] = replace(self._open[key], labels=labels)
                news[key] = self._open[key]
        first = sorted((self._open[key] for key in news), key=_precedence)
        return (*ends, *first)

    def _end(self, key: _Key, now_unix_nano: int) -> GpuOwnership:
        held = self._open.pop(key)
        end = max(held.seen_unix_nano or now_unix_nano, held.start_unix_nano + 1)
        ended = replace(held, end_unix_nano=end)
        self._ended.append(ended)
        return ended

    def _begin(self, key: _Key, owner: Owner, now_unix_nano: int) -> GpuOwnership:
        gpu, scheduler, job_id = key
        start = owner.start_unix_nano if 0 < owner.start_unix_nano <= now_unix_nano else now_unix_nano
        again = [b.end_unix_nano for b in self._ended if _key(b) == key]
        # A job that comes back has not held the GPU in between.
        return GpuOwnership(gpu, scheduler, job_id, max([start, *again]))

    def _labels(self, present: Mapping[_Key, Owner], begun: Collection[_Key]) -> dict[_Key, dict[str, str]]:
        """Return the labels of every open ownership; all but the first owner of a GPU are marked as sharing it."""
        primary: dict[str, _Key] = {}
        for key in sorted(present, key=lambda key: (key in begun, *_seniority(self._open[key]))):
            primary.setdefault(key[0], key)
        return {
            key: dict(owner.labels) | ({} if primary[key[0]] == key else {SHARED_LABEL: "true"})
            for key, owner in present.items()
        }


def _key(ownership: GpuOwnership) -> _Key:
    return ownership.gpu, ownership.scheduler, ownership.job_id


def _seniority(ownership: GpuOwnership) -> tuple[bool, int, str]:
    """Return a key by which the first comes first; one that was told to share the GPU stays behind one that was not."""
    return SHARED_LABEL in ownership.labels, ownership.start_unix_nano, ownership.job_id


def _precedence(ownership: GpuOwnership) -> tuple[str, bool, int]:
    return ownership.gpu, SHARED_LABEL in ownership.labels, ownership.start_unix_nano


FILE_NAME = "job_bindings.json"
_LARGEST_FILE_BYTES = 4 << 20


class OwnershipFile:
    """Stores open ownerships in one file.

    Args:
        path: The file.
        files: The file operations.
    """

    def __init__(self, path: Path, files: FileLayer) -> None:
        self._path = path
        self._files = files

    def load(self) -> tuple[GpuOwnership, ...]:
        """Return what was stored; nothing, with a warning, when the file cannot be used."""
        try:
            with self._path.open("rb") as file:
                data = file.read(_LARGEST_FILE_BYTES)
            return tuple(_ownership(fields) for fields in json.loads(data))
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            log.warning("%s cannot be read (%s); jobs that ended meanwhile stay open", self._path, error)
            return ()

    def save(self, ownerships: Iterable[GpuOwnership]) -> None:
        """Store them; a disk that refuses is logged and costs nothing else."""
        entries = [
            {
                "gpu": b.gpu,
                "scheduler": b.scheduler.value,
                "job_id": b.job_id,
                "start_unix_nano": b.start_unix_nano,
                "labels": dict(b.labels),
            }
            for b in ownerships
        ]
        try:
            write_durably(self._path, (json.dumps(entries) + "\n").encode(), files=self._files, mode=0o640)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error.strerror)


def _ownership(fields: dict[str, Any]) -> GpuOwnership:
    start = fields["start_unix_nano"]
    if not isinstance(start, int) or not 0 < start < 1 << 62:
        raise ValueError(f"{start!r:.40} is no time")
    labels = {str(key): str(value) for key, value in fields["labels"].items()}
    return GpuOwnership(str(fields["gpu"]), Scheduler(fields["scheduler"]), str(fields["job_id"]), start, labels=labels)
