"""``Owner``: one job as one source sees it, and the words that every source of jobs shares."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

# What a collector takes in one string.
_LONGEST_TEXT = 256
_UNPRINTABLE = re.compile(r"[^\x21-\x7e]+")


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


class JobSource(Protocol):
    """Tells who holds the GPUs. Used by one thread."""

    @property
    def name(self) -> str:
        """Short name for logs."""
        ...

    def owners(self, now_unix_nano: int) -> Owners:
        """Return the owners of every GPU that has one.

        Raises:
            JobSourceError: It does not answer now; what it said before stays in force.
        """
        ...


class JobSourceError(Exception):
    """A source of jobs does not answer; the message says why and what to do."""


def bounded(text: str) -> str:
    """Return ``text`` without blanks and control characters, and short enough for every collector.

    What is cut away lives on in a digest, so that two long names stay two.
    """
    clean = _UNPRINTABLE.sub("_", text)
    if len(clean) <= _LONGEST_TEXT:
        return clean
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
    return f"{clean[: _LONGEST_TEXT - len(digest) - 1]}~{digest}"
