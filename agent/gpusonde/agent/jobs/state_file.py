"""The open bindings on disk, so that a job that ends while the agent is away is ended when it comes back."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpusonde.agent.jobs.ledger import Binding
from gpusonde.agent.jobs.owners import Scheduler
from gpusonde.agent.spool.files import Files, write_file

log = logging.getLogger(__name__)

FILE_NAME = "job_bindings.json"
_LARGEST_FILE_BYTES = 4 << 20


class StateFile:
    """Stores bindings in one file.

    Args:
        path: The file.
        files: The file operations.
    """

    def __init__(self, path: Path, files: Files) -> None:
        self._path = path
        self._files = files

    def load(self) -> tuple[Binding, ...]:
        """Return what was stored; nothing, with a warning, when the file cannot be used."""
        try:
            with self._path.open("rb") as file:
                data = file.read(_LARGEST_FILE_BYTES)
            return tuple(_binding(fields) for fields in json.loads(data))
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            log.warning("%s cannot be read (%s); jobs that ended meanwhile stay open", self._path, error)
            return ()

    def save(self, bindings: Iterable[Binding]) -> None:
        """Store bindings; a disk that refuses is logged and costs nothing else."""
        entries = [
            {
                "gpu": b.gpu,
                "scheduler": b.scheduler.value,
                "job_id": b.job_id,
                "start_unix_nano": b.start_unix_nano,
                "labels": dict(b.labels),
            }
            for b in bindings
        ]
        try:
            write_file(self._files, self._path, (json.dumps(entries) + "\n").encode())
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error.strerror)


def _binding(fields: dict[str, Any]) -> Binding:
    start = fields["start_unix_nano"]
    if not isinstance(start, int) or not 0 < start < 1 << 62:
        raise ValueError(f"{start!r:.40} is no time")
    labels = {str(key): str(value) for key, value in fields["labels"].items()}
    return Binding(str(fields["gpu"]), Scheduler(fields["scheduler"]), str(fields["job_id"]), start, labels=labels)
