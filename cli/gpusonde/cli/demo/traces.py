"""Where the trace that the demo replays lies: inside an installed wheel, or in the repository's tests."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from gpusonde.cli.errors import CommandError

NAME = "demo_trace.parquet"


def bundled_trace() -> Path:
    """Path of the bundled trace.

    Raises:
        CommandError: This installation has none.
    """
    packaged = Path(str(files("gpusonde.cli").joinpath(NAME)))
    repository = Path(__file__).parents[4] / "tests" / "data" / NAME
    for candidate in (packaged, repository):
        if candidate.is_file():
            return candidate
    raise CommandError(f"this installation has no {NAME}; name a trace of your own: gpusonde demo --trace FILE")
