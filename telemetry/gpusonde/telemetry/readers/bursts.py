"""Telling apart the GPUs of an nvidia-smi log that names none of them.

``nvidia-smi --query-gpu=... -lms N`` prints one row per GPU, always in the same order, then sleeps N milliseconds. So
the rows come in bursts of as many rows as there are GPUs: within a burst they are some milliseconds apart (each row
carries the time at which its own GPU was asked), between bursts at least N milliseconds. Values are of no help: idle
GPUs look alike. What disturbs the picture: a GPU that answers late, in the middle of a burst (0.86 s was seen at
N = 100), pauses of the whole log (8.7 s), and rows that were lost.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.telemetry.trace import FloatArray

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

MAX_GPUS = 64
# A burst is believed only where the rows of one come this close together: one GPU is asked within milliseconds, while
# the shortest pause that people use is 100 ms.
_WITHIN_BURST_S = 0.06
_SHORTEST_PAUSE_S = 0.008
_PAUSE_TO_WITHIN = 3.0
_ENOUGH_WHOLE_BURSTS = 0.7
_CLEARLY = 0.9
# Pieces of bursts whose beginnings are this near to one period apart may be two bursts.
_SAME_PACE = 0.15
# Rows of one GPU that come every 20 ms or more, with some holes, may look like a few long bursts.
_FEW_BURSTS = 5
_ONE_AT_A_TIME_S = 0.02
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
        BurstError: ``gpus`` is not given and the times show no clear bursts, or it contradicts clear ones.
    """
    gaps = np.diff(time_s)
    edges = np.zeros(len(gaps), dtype=np.bool_)
    edges[[index - 1 for index in breaks if 0 < index < len(time_s)]] = True
    sample = gaps[:_SAMPLE_ROWS], edges[:_SAMPLE_ROWS]
    found = _bursts(*sample, range(2, MAX_GPUS + 1), _ENOUGH_WHOLE_BURSTS)
    if gpus is not None and found is not None and found.count != gpus:
        if found.whole >= _CLEARLY:
            raise BurstError(f"the rows come in bursts of {found.count}, which contradicts {gpus} GPUs")
        found = None
    if found is None and gpus is not None and gpus > 1:
        found = _bursts(*sample, [gpus], 0.0)
        if found is None:
            # No pauses to go by (nvidia-smi -lms 1): the order of the rows is all there is.
            return _in_order(len(time_s), gpus)
    if found is None:
        if gpus is None and len(gaps) and not _steady(gaps, _SHORTEST_PAUSE_S):
            raise BurstError("the times do not show how many GPUs take turns in this log")
        return _in_order(len(time_s), 1)
    # Time that jumps back is a new start, whatever the reason.
    starts = np.flatnonzero((gaps >= found.shortest_pause_s) | (gaps < 0) | edges) + 1
    return _assign(time_s, starts, found.count, frozenset(breaks))


@dataclass(frozen=True)
class _Bursts:
    shortest_pause_s: float
    count: int
    whole: float  # share of the rows that are in bursts of exactly ``count``


def _bursts(gaps: FloatArray, edges: BoolArray, counts: Iterable[int], enough: float) -> _Bursts | None:
    """Return the number of GPUs, of those given, that leaves the most rows in whole bursts; None if no number fits."""
    best: _Bursts | None = None
    for count in counts:
        if count > len(gaps) + 1:
            break
        # With this many GPUs, one gap in so many is a pause; take the middle of the longest ones for its length.
        pause = float(np.quantile(gaps, 1.0 - 0.5 / count)) if len(gaps) else 0.0
        within = gaps[gaps < pause / 2]
        if pause < _SHORTEST_PAUSE_S or not within.size:
            continue
        usual = float(np.median(within))
        if usual * _PAUSE_TO_WITHIN > pause or usual > _WITHIN_BURST_S:
            continue
        ends = np.flatnonzero((gaps >= pause / 2) | (gaps < 0) | edges) + 1
        sizes = np.diff(np.concatenate([[0], ends, [len(gaps) + 1]]))
        bursts = int(np.count_nonzero(sizes == count))
        if bursts < 2 or (bursts < _FEW_BURSTS and _steady(gaps, _ONE_AT_A_TIME_S)):
            continue
        whole = bursts * count / (len(gaps) + 1)
        if whole >= enough and (best is None or whole > best.whole):
            best = _Bursts(pause / 2, count, whole)
    return best


def _steady(gaps: FloatArray, at_least_s: float) -> bool:
    """Whether the rows come one at a time: as a pause is a minimum, few gaps are much shorter than most."""
    middle = float(np.median(gaps))
    return middle > at_least_s and float(np.mean(gaps < 0.3 * middle)) <= 0.02


def _in_order(rows: int, count: int) -> Deinterleaved:
    """Number the rows one after the other; those of an incomplete last turn are left out."""
    gpu = np.arange(rows, dtype=np.int64) % count
    left = rows % count
    if left:
        gpu[rows - left :] = -1
    return Deinterleaved(gpu, count, int(left > 0), left)


def _assign(time_s: FloatArray, starts: IntArray, count: int, restarts: frozenset[int]) -> Deinterleaved:
    """Number the rows of whole bursts; put stalled bursts together; leave broken ones out.

    Pieces of bursts that follow each other and together hold the rows of whole bursts are a burst in which a GPU
    answered late, unless the pieces come at the pace of bursts: then each may have lost rows, and none can be trusted.
    """
    bounds = np.concatenate([[0], starts, [len(time_s)]]).astype(np.int64)
    whole = np.diff(bounds) == count
    gpu = np.full(len(time_s), -1, dtype=np.int64)
    period = float(np.median(np.diff(time_s[bounds[:-1]]))) if len(whole) > 2 else np.inf
    broken = dropped = stalled = 0
    for first, last in _runs(whole):
        if whole[first]:
            start, end = int(bounds[first]), int(bounds[last])
            gpu[start:end] = np.arange(end - start) % count
            continue
        piece = first
        while piece < last:
            stop = piece + 1
            # A restart of the log is never inside of a burst.
            while stop < last and int(bounds[stop]) not in restarts:
                stop += 1
            start, end = int(bounds[piece]), int(bounds[stop])
            spacing = np.diff(time_s[bounds[piece:stop]])
            at_pace = bool((np.abs(spacing - period) < _SAME_PACE * period).any())
            if (end - start) % count == 0 and not at_pace:
                gpu[start:end] = np.arange(end - start) % count
                stalled += (end - start) // count
            else:
                broken, dropped = broken + stop - piece, dropped + end - start
            piece = stop
    return Deinterleaved(gpu, count, broken, dropped, stalled)


def _runs(flags: BoolArray) -> list[tuple[int, int]]:
    """Return [first, last) of each run of equal flags."""
    changes = np.flatnonzero(np.diff(flags)) + 1
    edges = [0, *(int(i) for i in changes), len(flags)]
    return list(itertools.pairwise(edges))
