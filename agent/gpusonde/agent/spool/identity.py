"""The names under which a collector knows a spool, and where they are kept."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from gpusonde.errors import SpoolError
from gpusonde.service.durable_files import FileLayer, write_durably

_IDENTITY_FILE = "identity.json"


@dataclass(frozen=True)
class Identity:
    """The names under which a collector knows this spool.

    Attributes:
        agent_id: Stable across restarts.
        spool_id: New whenever sequence numbers may have restarted.
        first_sequence: Records before it belong to an earlier ``spool_id``, whose collector has them.
    """

    agent_id: str
    spool_id: str
    first_sequence: int = 1


def load_identity(directory: Path) -> Identity | None:
    """Return the identity stored in a spool directory, None in a new one.

    Raises:
        SpoolError: The file is there but is not an identity.
    """
    path = directory / _IDENTITY_FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return Identity(str(stored["agent_id"]), str(stored["spool_id"]), int(stored.get("first_sequence", 1)))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise SpoolError(
            f"{path}: not an identity ({error}); remove the file to continue this spool under new names"
        ) from error


def store_identity(directory: Path, identity: Identity, files: FileLayer) -> None:
    """Write the identity so that a crash leaves the old one or the new one."""
    content = (json.dumps(asdict(identity)) + "\n").encode()
    write_durably(directory / _IDENTITY_FILE, content, files=files, mode=0o640)
