"""``DcgmTicks``: a tick of several GPUs, to be joined with those that follow; ``SteadyTicks``: not decoded yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from gpusonde.agent.sources.base import AlignedTicks, GpuTicks, RawTicks
from gpusonde.agent.sources.dcgm.tick_grid import IndexArray, Tick
from gpusonde.telemetry import FloatArray, MissingReason


class DcgmTicks(RawTicks):
    """One tick of several GPUs, each put together of its values.

    Args:
        ticks: Index of a GPU and its tick.
    """

    def __init__(self, ticks: Sequence[tuple[int, Tick]]) -> None:
        self.ticks = ticks

    def peek(self) -> Sequence[GpuTicks]:
        """See :class:`RawTicks`."""
        return [join_ticks(gpu, [tick], tick.blanks) for gpu, tick in self.ticks]

    def join(self, following: Sequence[RawTicks]) -> Sequence[GpuTicks]:
        """See :class:`RawTicks`."""
        return _join_runs([self, *following])

    def __len__(self) -> int:
        return len(self.ticks)

    @overload
    def __getitem__(self, index: int) -> GpuTicks: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[GpuTicks]: ...

    def __getitem__(self, index: int | slice) -> GpuTicks | Sequence[GpuTicks]:
        return self.peek()[index]


@dataclass(frozen=True)
class SteadyRows:
    """What consecutive ticks of the same GPUs have in common.

    Attributes:
        gpus: Indices in the inventory, by row of the engine's answer.
        layout: How the engine's values are read.
        numbers_of: Decodes them; the last axis are the fields.
        reason_of: Why a value of a field is no number.
        slots: Shape (rows, fields), where in a tick they belong: a column, or behind these what stands for the power
            where there is no instant one, and what has no column.
        columns: Number of columns.
        power: Column of the power; None for none.
    """

    gpus: Sequence[int]
    layout: np.dtype[np.void]
    numbers_of: Callable[[npt.NDArray[np.void]], FloatArray]
    reason_of: Callable[[np.void, int], MissingReason]
    slots: IndexArray
    columns: int
    power: int | None

    def decode(self, parts: Sequence[SteadyTicks]) -> Sequence[GpuTicks]:
        """Return the ticks of these parts of all GPUs."""
        rows = len(self.slots)
        raw = np.concatenate([part.raw for part in parts])
        answers = raw.view(self.layout)[..., 0]
        values = np.empty((rows, self.columns + 2, len(raw)))
        begin = 0
        for part in parts:
            end = begin + len(part.raw)
            values[:, :, begin:end] = part.held.values[:, :, np.newaxis]
            begin = end
        places = self.slots + np.arange(rows)[:, np.newaxis] * (self.columns + 2)
        numbers = self.numbers_of(answers)
        values.reshape(-1, len(raw))[places.reshape(-1)] = numbers.reshape(len(raw), -1).T
        if self.power is not None:
            instant = values[:, self.power]
            values[:, self.power] = np.where(np.isnan(instant), values[:, self.columns], instant)
        values = values[:, : self.columns]
        times = np.rint(np.concatenate([part.times_us for part in parts]).T).astype(np.int64) * 1000
        given = self.slots < self.columns
        blank = np.isnan(values[np.nonzero(given)[0], self.slots[given]]).any()
        blanks = parts[0].held.blanks
        if not blank and all(part.held.blanks == blanks for part in parts):
            return AlignedTicks(self.gpus, times, values, blanks)
        held = [part.held for part in parts for _ in part.raw]
        return [found for row in range(rows) for found in self._split(row, held, times[row], values[row], answers)]

    def _split(
        self,
        row: int,
        held: Sequence[HeldValues],
        times: npt.NDArray[np.int64],
        values: FloatArray,
        answers: npt.NDArray[np.void],
    ) -> Sequence[GpuTicks]:
        """Return the ticks of a GPU whose blanks are not the same all the time."""
        found = []
        for number, its in enumerate(held):
            blanks = dict(its.blanks[row])
            for place, slot in enumerate(self.slots[row].tolist()):
                if slot < self.columns and np.isnan(values[slot, number]):
                    blanks[slot] = self.reason_of(answers[number, row, place], place)
            found.append(Tick(int(times[number]) // 1000, values[:, number], blanks))
        return _join_alike(self.gpus[row], found)


@dataclass(frozen=True)
class HeldValues:
    """The slow columns of all GPUs.

    Attributes:
        values: Shape (GPUs, columns + 2).
        blanks: For each GPU why columns have no value.
    """

    values: FloatArray
    blanks: Sequence[Mapping[int, MissingReason]]


class SteadyTicks(RawTicks):
    """Ticks of all GPUs as the engine answered; they are decoded with those that follow.

    Args:
        rows: What they have in common with those around them.
        raw: What the engine's values begin with, shape (ticks, GPUs, fields, words), oldest first.
        times_us: When each tick of each GPU was, shape (ticks, GPUs), Unix microseconds.
        held: The slow columns.
    """

    __slots__ = ("held", "raw", "rows", "times_us")

    def __init__(self, rows: SteadyRows, raw: npt.NDArray[np.int64], times_us: FloatArray, held: HeldValues) -> None:
        self.rows = rows
        self.raw = raw
        self.times_us = times_us
        self.held = held

    def peek(self) -> Sequence[GpuTicks]:
        """See :class:`RawTicks`."""
        return self.rows.decode([self])

    def join(self, following: Sequence[RawTicks]) -> Sequence[GpuTicks]:
        """See :class:`RawTicks`."""
        return _join_runs([self, *following])

    def __len__(self) -> int:
        return len(self.rows.gpus)

    @overload
    def __getitem__(self, index: int) -> GpuTicks: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[GpuTicks]: ...

    def __getitem__(self, index: int | slice) -> GpuTicks | Sequence[GpuTicks]:
        return self.peek()[index]


def go_together(blanks: Mapping[int, MissingReason], following: Mapping[int, MissingReason]) -> bool:
    """Whether no column has a reason of its own in ticks that follow."""
    return all(blanks.get(column, reason) is reason for column, reason in following.items())


def join_ticks(gpu: int, ticks: Sequence[Tick], blanks: Mapping[int, MissingReason]) -> GpuTicks:
    """Return ticks of one GPU as one."""
    times = np.array([tick.time_us * 1000 for tick in ticks], dtype=np.int64)
    if len(ticks) == 1:
        return GpuTicks(gpu, times, ticks[0].values[:, np.newaxis], blanks)
    return GpuTicks(gpu, times, np.stack([tick.values for tick in ticks], axis=1), blanks)


def _join_runs(ticks: Sequence[RawTicks]) -> Sequence[GpuTicks]:
    """Join ticks of either kind, as many as go together at once."""
    runs: list[tuple[SteadyRows | None, list[RawTicks]]] = []
    for one in ticks:
        if not isinstance(one, (DcgmTicks, SteadyTicks)):
            raise TypeError("ticks of two sources are not joined")
        rows = one.rows if isinstance(one, SteadyTicks) else None
        if not runs or runs[-1][0] is not rows:
            runs.append((rows, []))
        runs[-1][1].append(one)
    parts = [
        _join_whole([one for one in run if isinstance(one, DcgmTicks)])
        if rows is None
        else rows.decode([one for one in run if isinstance(one, SteadyTicks)])
        for rows, run in runs
    ]
    return parts[0] if len(parts) == 1 else [ticks for part in parts for ticks in part]


def _join_whole(ticks: Sequence[DcgmTicks]) -> Sequence[GpuTicks]:
    by_gpu: dict[int, list[Tick]] = {}
    for one in ticks:
        for gpu, tick in one.ticks:
            by_gpu.setdefault(gpu, []).append(tick)
    if len({len(ticks) for ticks in by_gpu.values()}) == 1:
        reasons = [merged for ticks in by_gpu.values() if (merged := _merge_blanks(ticks)) is not None]
        if len(reasons) == len(by_gpu):
            times = np.array([[tick.time_us for tick in ticks] for ticks in by_gpu.values()], dtype=np.int64)
            values = np.array([[tick.values for tick in ticks] for ticks in by_gpu.values()])
            return AlignedTicks(list(by_gpu), times * 1000, values.transpose(0, 2, 1), reasons)
    return [part for gpu, its in by_gpu.items() for part in _join_alike(gpu, its)]


def _join_alike(gpu: int, ticks: Sequence[Tick]) -> Sequence[GpuTicks]:
    """Join the ticks of one GPU whose blanks have the same reasons."""
    found = []
    first, blanks = 0, dict(ticks[0].blanks)
    for number, tick in enumerate(ticks):
        if not go_together(blanks, tick.blanks):
            found.append(join_ticks(gpu, ticks[first:number], blanks))
            first, blanks = number, {}
        blanks.update(tick.blanks)
    found.append(join_ticks(gpu, ticks[first:], blanks))
    return found


def _merge_blanks(ticks: Sequence[Tick]) -> Mapping[int, MissingReason] | None:
    """Return the reasons of all ticks; None where a column has more than one."""
    first = ticks[0].blanks
    if all(tick.blanks is first or tick.blanks == first for tick in ticks):
        return first
    merged = dict(first)
    for tick in ticks:
        if not go_together(merged, tick.blanks):
            return None
        merged.update(tick.blanks)
    return merged
