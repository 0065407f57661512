"""Ticks of one GPU told in words: so many seconds busy, so many idle."""

from __future__ import annotations

import numpy as np

from gpusonde.collector.storage.samples import Samples

START_NS = 1_700_000_000_000_000_000
_ACTIVITY = {"busy": 0.8, "idle": 0.0, "blank": np.nan}


def story(*chapters, interval_s=0.1, start_ns=START_NS, ticks_per_record=10, memory=None, spool=1):
    """Samples of chapters (what, seconds).

    What: ``busy``, ``idle``, ``blank`` (NaN), ``gap`` (no ticks) or ``back`` (the clock is set back).
    ``memory`` maps what to bytes of device memory in use.
    """
    times, activity, held = [], [], []
    now = start_ns
    for what, seconds in chapters:
        if what == "gap":
            now += round(seconds * 1e9)
            continue
        if what == "back":
            now -= round(seconds * 1e9)
            continue
        for _ in range(round(seconds / interval_s)):
            times.append(now)
            activity.append(_ACTIVITY[what])
            held.append((memory or {}).get(what, 0.0))
            now += round(interval_s * 1e9)
    count = len(times)
    columns = {"sm_active": np.array(activity, dtype=np.float32)}
    if memory is not None:
        columns["framebuffer_used_bytes"] = np.array(held, dtype=np.float32)
    return Samples(
        np.array(times, dtype=np.int64),
        np.full(count, spool, dtype=np.int64),
        np.arange(count, dtype=np.int64) // ticks_per_record + 1,
        np.zeros(count, dtype=np.int64),
        columns,
    )


def seconds(unix_nano):
    """Seconds of the story."""
    return (unix_nano - START_NS) / 1e9
