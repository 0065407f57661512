"""From a job's own events to the truth of its recording, in the recording's time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return a job's events in order; none where it never came so far."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def truth_of(events: Sequence[dict[str, Any]], origin_unix_s: float, shape: str) -> dict[str, Any]:
    """Return the truth of a recording, as ``gpusonde evaluate epochs`` reads it, and what else the job said.

    Args:
        events: What the job wrote, times in Unix seconds.
        origin_unix_s: Unix time of the recording's second zero.
        shape: Kind of job, to group by.

    Returns:
        ``period_s`` is the mean duration of an epoch, null where the job has none; times are in the recording's time.

    Raises:
        ValueError: The job says that it trained, but not through two epochs.
    """

    def times(event: str) -> list[float]:
        return [round(each["time_unix_s"] - origin_unix_s, 6) for each in events if each["event"] == event]

    starts, ends = times("epoch_start"), times("epoch_end")
    if not starts:
        return {"period_s": None, "shape": shape}
    if len(ends) < 2:
        raise ValueError(f"{shape}: the job finished {len(ends)} epochs; a recording needs two or more")
    edges = [*starts[: len(ends)], ends[-1]]
    return {
        "period_s": float(np.mean(np.diff(edges))),
        "shape": shape,
        "epoch_starts_s": starts[: len(ends)],
        "epoch_ends_s": ends,
        "validation_starts_s": times("validation_start"),
        "checkpoint_starts_s": times("checkpoint_start"),
    }
