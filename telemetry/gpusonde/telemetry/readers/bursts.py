"""Telling apart the GPUs of an nvidia-smi log that names none of them.

``nvidia-smi --query-gpu=... -lms N`` prints one row per GPU, always in the same order, then sleeps N milliseconds. So
the rows come in bursts of as many rows as there are GPUs: within a burst they are some milliseconds apart (each row
carries the time at which its own GPU was asked), between bursts at least N milliseconds. Values are of no help: idle
GPUs look alike. What disturbs the picture: a GPU that answers late, in the middle of a burst (0.86 s was seen at
N = 100), pauses of the whole log (8.7 s), and rows that were lost.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.telemetry.trace import FloatArray

IntArray = npt.NDArray[np.int64]

MAX_GPUS = 64
# A burst is believed only where the rows of one come this close together: one GPU is asked within milliseconds, while
# the shortest pause that people use is 100 ms.
_WITHIN_BURST_S = 0.06
_PAUSE_TO_WITHIN = 3.0
_ENOUGH_WHOLE_BURSTS = 0.8
_SAMPLE_ROWS = 100_000


class BurstError(ValueError):
    """The number of GPUs cannot be told from the times."""


@dataclass(frozen=True)
class Deinterleaved:
    """The GPU of each row.

    Attributes:
        gpu: Shape (n,), index of the row's GPU within its burst; -1 for rows of broken bursts.
        gpus: Number of GPUs.
        broken_bursts: How many bursts had rows missing and were left out.
        dropped_rows: How many rows that were.
        stalled_bursts: How many bursts were put together again around a GPU that answered late.
    """

    gpu: IntArray
    gpus: int
    broken_bursts: int = 0
    dropped_rows: int = 0
    stalled_bursts: int = 0


def deinterleave(time_s: FloatArray, breaks: Sequence[int] = (), gpus: int | None = None) -> Deinterleaved:
    """Find the GPU of each row.

    Args:
        time_s: Shape (n,), the rows' times in the order of the file.
        breaks: Indices of rows before which a burst certainly ends (the log was started again there).
        gpus: The number of GPUs where it is known.

    Raises:
        BurstError: ``gpus`` is not given and the times show no clear bursts.
    """
    gaps = np.diff(time_s)
    edges = np.zeros(len(gaps), dtype=bool)
    edges[[index - 1 for index in breaks if 0 < index < len(time_s)]] = True
    if gpus == 1:
        return Deinterleaved(np.zeros(len(time_s), dtype=np.int64), 1)
    threshold, count = _bursts(gaps[:_SAMPLE_ROWS], edges[:_SAMPLE_ROWS], gpus)
    if count == 1:
        return Deinterleaved(np.zeros(len(time_s), dtype=np.int64), 1)
    if threshold is None:
        # No pauses to go by (nvidia-smi -lms 1): the order of the rows is all there is.
        return _assign(time_s, np.flatnonzero(edges) + 1, count, merge_all=True)
    # Time that jumps back is a new start, whatever the reason.
    return _assign(
        time_s, np.flatnonzero((gaps >= threshold) | (gaps < 0) | edges) + 1, count, merge_all=False, sure=breaks
    )


def _bursts(gaps: FloatArray, edges: npt.NDArray[np.bool_], gpus: int | None) -> tuple[float | None, int]:
    """Return the gap that ends a burst (None where there is no such gap) and the number of GPUs."""
    best: tuple[float, float, int] | None = None
    for count in [gpus] if gpus else range(2, MAX_GPUS + 1):
        if count > len(gaps) + 1:
            break
        # With this many GPUs, one gap in so many is a pause; take the middle of the longest ones for its length.
        pause = float(np.quantile(gaps, 1.0 - 0.5 / count)) if len(gaps) else 0.0
        within = gaps[gaps < pause / 2]
        if not within.size or float(np.median(within)) * _PAUSE_TO_WITHIN > pause:
            continue
        if gpus is None and float(np.median(within)) > _WITHIN_BURST_S:
            continue
        ends = np.flatnonzero((gaps >= pause / 2) | (gaps < 0) | edges) + 1
        sizes = np.diff(np.concatenate([[0], ends, [len(gaps) + 1]]))
        whole = float((sizes == count).sum() * count / (len(gaps) + 1))
        bursts = int((sizes == count).sum())
        if bursts >= 2 and (best is None or whole > best[0]):
            best = (whole, pause / 2, count)
    if best is not None and best[0] >= (0.5 if gpus else _ENOUGH_WHOLE_BURSTS):
        return best[1], best[2]
    if gpus:
        return None, gpus
    if not len(gaps) or _steady(gaps):
        return None, 1
    raise BurstError("the times do not show how many GPUs take turns in this log")


def _steady(gaps: FloatArray) -> bool:
    """Whether the rows come one at a time: as a pause is a minimum, few gaps are much shorter than most."""
    middle = float(np.median(gaps))
    return middle > 0 and float(np.mean(gaps < 0.3 * middle)) <= 0.02


def _assign(
    time_s: FloatArray, starts: IntArray, count: int, *, merge_all: bool, sure: Sequence[int] = ()
) -> Deinterleaved:
    """Number the rows of whole bursts; put stalled bursts together; leave broken ones out.

    Pieces of bursts that follow each other and together hold the rows of whole bursts are a burst in which a GPU
    answered late, unless the pieces come at the pace of bursts: then each may have lost rows, and none can be trusted.
    """
    bounds = np.concatenate([[0], starts, [len(time_s)]]).astype(np.int64)
    sizes = np.diff(bounds)
    gpu = np.full(len(time_s), -1, dtype=np.int64)
    period = float(np.median(np.diff(time_s[bounds[:-1]]))) if len(sizes) > 2 else np.inf
    restarts = frozenset(sure)
    broken = dropped = stalled = 0
    piece = 0
    whole = sizes == count
    for first, last in _runs(whole):
        start, end = int(bounds[first]), int(bounds[last])
        if whole[first]:
            gpu[start:end] = np.arange(end - start) % count
            continue
        piece = first
        while piece < last:
            stop = piece + 1
            # A restart of the log is never inside of a burst.
            while stop < last and int(bounds[stop]) not in restarts:
                stop += 1
            begin, finish = int(bounds[piece]), int(bounds[stop])
            rows = finish - begin
            spacing = np.diff(time_s[bounds[piece:stop]])
            at_pace = bool((np.abs(spacing - period) < 0.15 * period).any())
            if rows % count == 0 and (merge_all or not at_pace):
                gpu[begin:finish] = np.arange(rows) % count
                stalled += rows // count
            elif merge_all:
                kept = rows - rows % count
                gpu[begin : begin + kept] = np.arange(kept) % count
                broken, dropped = broken + 1, dropped + rows % count
            else:
                broken, dropped = broken + stop - piece, dropped + rows
            piece = stop
    return Deinterleaved(gpu, count, broken, dropped, 0 if merge_all else stalled)


def _runs(flags: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return [first, last) of each run of equal flags."""
    changes = np.flatnonzero(np.diff(flags)) + 1
    edges = [0, *(int(i) for i in changes), len(flags)]
    return list(itertools.pairwise(edges))
