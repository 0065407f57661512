"""``RawChunk``: what NVML wrote over some ticks, and how it becomes numbers, for all GPUs and ticks at once.

A tick is copied as it is; scaling, plausibility, reasons of what is missing and distrust of zeros come when somebody
wants the numbers, a second's ticks together: per tick and value Python would cost more than the driver's calls.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from gpusonde.agent.sources.base import GpuTicks, RawTicks, SourceStatistics, TimeArray, ZeroGuard
from gpusonde.agent.sources.nvml.fast_reader import CellKind, FieldValue
from gpusonde.agent.sources.nvml.library import SUCCESS, blank_reason
from gpusonde.telemetry import FloatArray, MissingReason

# Ticks in a chunk: some seconds', so that a batch is seldom cut.
CHUNK_TICKS = 64

_COUNTER_RANGE = float(1 << 32)
# Faster than any PCIe link of a board without GPM: a counter of 32 bits that may have wrapped twice says nothing.
_FASTEST_PCIE = 3.2e10
# nvmlValueType_t -> what the eight bytes of an nvmlValue_t are
_VALUE_TYPES = (np.float64, np.uint32, np.uint64, np.uint64, np.int64, np.int32, np.uint16)
_UNSIGNED_INT = 1
_REASONS = tuple(MissingReason)
_CODE = {reason: code for code, reason in enumerate(_REASONS)}

Indices = npt.NDArray[np.intp]
_Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class PlacedCell:
    """A cell of a GPU and where it is found.

    Attributes:
        position: The GPU's number among those that are read.
        metric: Its name.
        column: The column of its values.
        kind: How the number is held.
        offset: Bytes from the beginning of the tick's answers; of the GPM answers for ``GPM``.
        scale: From NVML's unit to ours.
        most: The largest plausible value.
        is_capped: A value between 1 and ``most`` is 1.
        is_counter: The metric is the number's growth per second.
    """

    position: int
    metric: str
    column: int
    kind: CellKind
    offset: int
    scale: float
    most: float
    is_capped: bool = False
    is_counter: bool = False


@dataclass
class GpuMemory:
    """What the numbers of a GPU depend on beside the tick itself.

    Attributes:
        counted: Counter -> its last number and when that was, microseconds.
        zeros: Notices profiling values that are zero although kernels run; None where they cannot be told.
        on_zeros: Called once per period of patience while they are distrusted.
    """

    counted: dict[str, tuple[float, int]] = field(default_factory=dict)
    zeros: ZeroGuard | None = None
    on_zeros: Callable[[], None] = lambda: None


class RawLayout:
    """Where the answers of a tick hold which metric.

    Args:
        gpus: Indices in the inventory of the GPUs that are read.
        memories: What is kept of each.
        metric_count: Number of columns.
        cells: The cells; sorted by kind here.
        profiled: For each GPU the columns that GPM gives, and those of them that are ratios.
        utilization: Column of ``gpu_utilization``; None when there is none.
        statistics: Counts what is suspect.
        gpm_element: pynvml's structure of one GPM answer.
    """

    def __init__(
        self,
        gpus: Sequence[int],
        memories: Sequence[GpuMemory],
        metric_count: int,
        cells: Iterable[PlacedCell],
        profiled: Sequence[tuple[Sequence[int], Sequence[int]]],
        utilization: int | None,
        statistics: SourceStatistics,
        gpm_element: type[ctypes.Structure],
    ) -> None:
        order = list(CellKind)
        self.gpus = tuple(gpus)
        self.memories = tuple(memories)
        self.metric_count = metric_count
        self.cells = tuple(sorted(cells, key=lambda cell: order.index(cell.kind)))
        self.statistics = statistics
        self.profiled = [list(columns) for columns, _ in profiled]
        self.ratios = sorted({column for _, ratios in profiled for column in ratios})
        self.utilization = utilization
        self.scale = np.array([cell.scale for cell in self.cells]).reshape(-1, 1)
        self.most = np.array([cell.most for cell in self.cells]).reshape(-1, 1)
        self.target = np.array([c.position * metric_count + c.column for c in self.cells], dtype=np.intp)
        self.capped = np.flatnonzero([cell.is_capped for cell in self.cells])
        self.part = {
            kind: slice(min(numbers, default=0), max(numbers, default=-1) + 1)
            for kind in CellKind
            for numbers in [[i for i, cell in enumerate(self.cells) if cell.kind is kind]]
        }

        def at(kind: CellKind, size: int, more: int = 0) -> Indices:
            return np.array([(cell.offset + more) // size for cell in self.cells if cell.kind is kind], dtype=np.intp)

        words = ctypes.sizeof(FieldValue) // 8
        self.uint32_at = at(CellKind.UINT32, 4)
        self.uint64_at = at(CellKind.UINT64, 8)
        self.field_at = at(CellKind.FIELD, 8)[:, np.newaxis] + np.arange(words)
        self.gpm_value_at = at(CellKind.GPM, 8, gpm_element.value.offset)
        self.gpm_status_at = at(CellKind.GPM, 4, gpm_element.nvmlReturn.offset)
        self.latest_blanks: tuple[Any, list[dict[int, MissingReason]]] = (None, [])
        self.counters = [i for i, cell in enumerate(self.cells) if cell.is_counter]
        self.profiled_cells = [self.cells_of(p, columns) for p, columns in enumerate(self.profiled)]

    def cells_of(self, position: int, columns: Iterable[int]) -> Indices:
        """Return the numbers of a GPU's cells of some columns."""
        wanted = set(columns)
        return np.array(
            [i for i, c in enumerate(self.cells) if c.position == position and c.column in wanted], dtype=np.intp
        )


class RawChunk:
    """Consecutive ticks of the same GPUs, filled by the sampler's thread.

    Args:
        layout: Where is what.
        standing: For each GPU the columns that its slow readers do not give, and why.
        absent: Positions of lost GPUs.

    Attributes:
        answers: For each tick what the calls beside GPM wrote.
        gpm_answers: For each tick the answers of GPM, shape (GPUs with GPM, metrics, words).
        slow: For each tick the values that are read more seldom, shape (GPUs, columns), NaN for the others.
        stamps_ns: For each tick the wall clock at each GPU.
        deadline_s: For each tick what it was for.
        read_us: For each tick when it was read, by the monotonic clock.
        refusals: Ticks whose cells are blank because their call was refused, and why.
    """

    def __init__(
        self, layout: RawLayout, standing: Sequence[Mapping[int, MissingReason]], absent: frozenset[int]
    ) -> None:
        self.layout = layout
        self.standing = tuple(standing)
        self.absent = absent
        self._absent_cells = [i for i, cell in enumerate(layout.cells) if cell.position in absent]
        self.answers: list[_Words] = []
        self.gpm_answers: list[_Words] = []
        self.slow: list[FloatArray] = []
        self.stamps_ns: list[list[int]] = []
        self.deadline_s: list[float] = []
        self.read_us: list[int] = []
        self.refusals: list[tuple[int, Indices, MissingReason]] = []

    def decode(self, start: int, end: int, *, peek: bool = False) -> list[GpuTicks]:
        """Return the ticks ``start`` to ``end`` of all GPUs.

        Args:
            start: The first.
            end: The one after the last.
            peek: Leave out what depends on earlier ticks, and count nothing.
        """
        layout, ticks = self.layout, end - start
        cells, why = self._read_cells(start, end, peek)
        values = np.stack(self.slow[start:end], axis=2)
        values.reshape(-1, ticks)[layout.target] = cells
        if not peek:
            self._distrust_zeros(values, why, start)
        blanks = self._name_blanks(why)
        times: TimeArray = np.array(self.stamps_ns[start:end], dtype=np.int64).T.copy()
        times -= times % 1000
        found = []
        for position, gpu in enumerate(layout.gpus):
            if position in self.absent:
                continue
            if blanks is not None:
                found.append(GpuTicks(gpu, times[position], values[position], blanks[position]))
                continue
            # Rare: a metric is missing for one reason and then for another.
            for one in (slice(slot, slot + 1) for slot in range(ticks)):
                reasons = self._name_blanks(why[:, one]) or self.standing
                found.append(GpuTicks(gpu, times[position, one], values[position][:, one], reasons[position]))
        return found

    def _read_cells(self, start: int, end: int, peek: bool) -> tuple[FloatArray, npt.NDArray[np.uint8]]:
        """Return the values of all cells and why they are NaN (0: they are not, else a code and one)."""
        layout, ticks = self.layout, end - start
        shape = (len(layout.cells), ticks)
        cells, why = np.empty(shape), np.zeros(shape, dtype=np.uint8)
        answers = np.stack(self.answers[start:end])
        cells[layout.part[CellKind.UINT32]] = answers.view(np.uint32)[:, layout.uint32_at].T
        cells[layout.part[CellKind.UINT64]] = answers[:, layout.uint64_at].T
        if len(layout.field_at):
            part = layout.part[CellKind.FIELD]
            _read_fields(np.take(answers, layout.field_at, axis=1), cells[part], why[part])
        if len(layout.gpm_value_at):
            part = layout.part[CellKind.GPM]
            gpm_answers = np.stack(self.gpm_answers[start:end]).reshape(ticks, -1)
            cells[part] = gpm_answers.view(np.float64)[:, layout.gpm_value_at].T
            _refuse(gpm_answers.view(np.int32)[:, layout.gpm_status_at].T, why[part])
        cells *= layout.scale
        if self.absent:
            why[self._absent_cells] = _CODE[MissingReason.GPU_LOST] + 1
        for slot, numbers, reason in self.refusals:
            if start <= slot < end:
                why[numbers, slot - start] = _CODE[reason] + 1
        self._count_rates(cells, why, answers, start, peek)
        if layout.capped.size:
            # NVIDIA/DCGM issue 152: some ratios of an instance are related to fewer SMs than it has.
            ratios = cells[layout.capped]
            above = (ratios > 1.0) & (ratios <= layout.most[layout.capped]) & (why[layout.capped] == 0)
            cells[layout.capped] = np.where(above, 1.0, ratios)
            if not peek:
                layout.statistics.capped_ratios += int(above.sum())
        implausible = ~((cells >= 0.0) & (cells <= layout.most)) & (why == 0)
        if implausible.any():
            nothing, impossible = _CODE[MissingReason.NO_DATA] + 1, _CODE[MissingReason.OUT_OF_RANGE] + 1
            why[implausible] = np.where(np.isnan(cells[implausible]), nothing, impossible)
        missing = why != 0
        if missing.any():
            cells[missing] = math.nan
        return cells, why

    def _count_rates(
        self, cells: FloatArray, why: npt.NDArray[np.uint8], answers: _Words, start: int, peek: bool
    ) -> None:
        """Replace the numbers of counters by their growth per second; NaN where two readings do not tell."""
        first = self.layout.part[CellKind.FIELD].start
        for number in self.layout.counters:
            cell = self.layout.cells[number]
            counted = self.layout.memories[cell.position].counted
            stamps_us = answers[:, self.layout.field_at[number - first, 1]].tolist()
            for slot, count in enumerate(cells[number].tolist()):
                cells[number, slot] = math.nan
                if peek or why[number, slot]:
                    continue
                at_us = stamps_us[slot] or self.read_us[start + slot]
                before, counted[cell.metric] = counted.get(cell.metric), (count, at_us)
                if before is not None:
                    cells[number, slot] = _rate(before, (count, at_us))

    def _distrust_zeros(self, values: FloatArray, why: npt.NDArray[np.uint8], start: int) -> None:
        """Blank the profiling values of GPUs that they say idle for long while the driver says that kernels run."""
        layout = self.layout
        if layout.utilization is None or not layout.ratios:
            return
        utilization = values[:, layout.utilization]
        activity = np.fmax.reduce(values[:, layout.ratios], axis=1)
        doubtful = ((utilization >= ZeroGuard.BUSY) & (activity == 0.0)).any(axis=1)
        for position, memory in enumerate(layout.memories):
            if memory.zeros is None or position in self.absent:
                continue
            # Ticks without a doubt differ in nothing but their time.
            for slot in range(values.shape[2]) if doubtful[position] else (-1,):
                now_s = self.deadline_s[start + (slot if slot >= 0 else values.shape[2] - 1)]
                if not memory.zeros.observe(utilization[position, slot], activity[position, slot], now_s):
                    continue
                layout.statistics.suspect_ticks += 1
                values[position, layout.profiled[position], slot] = math.nan
                why[layout.profiled_cells[position], slot] = _CODE[MissingReason.NO_DATA] + 1
                if memory.zeros.due(now_s):
                    memory.on_zeros()

    def _name_blanks(self, why: npt.NDArray[np.uint8]) -> Sequence[Mapping[int, MissingReason]] | None:
        """Return the reasons of each GPU's columns; None where a column has more than one."""
        if not why.any():
            return self.standing
        key = (self.standing, why.tobytes())
        latest, blanks = self.layout.latest_blanks
        if latest is not None and latest[1] == key[1] and latest[0] is key[0]:
            return blanks
        highest = why.max(axis=1)
        if (np.where(why == 0, highest[:, np.newaxis], why) != highest[:, np.newaxis]).any():
            return None
        blanks = [dict(standing) for standing in self.standing]
        for number in np.flatnonzero(highest).tolist():
            cell = self.layout.cells[number]
            blanks[cell.position][cell.column] = _REASONS[highest[number] - 1]
        # The reasons of one range are mostly those of the range before.
        self.layout.latest_blanks = key, blanks
        return blanks


def _refuse(statuses: npt.NDArray[np.int32], why: npt.NDArray[np.uint8]) -> None:
    refused = statuses != SUCCESS
    if refused.any():
        for status in np.unique(statuses[refused]).tolist():
            why[statuses == status] = _CODE[blank_reason(status)] + 1


def _read_fields(entries: _Words, values: FloatArray, why: npt.NDArray[np.uint8]) -> None:
    """Take the numbers out of ``nvmlFieldValue_t`` of shape (ticks, cells, words)."""
    halves = entries.view(np.int32)
    types = halves[..., FieldValue.value_type.offset // 4].T
    answers = entries[..., FieldValue.value.offset // 8].T.copy()
    _refuse(halves[..., FieldValue.status.offset // 4].T, why)
    if (types == _UNSIGNED_INT).all():
        values[:] = answers & 0xFFFFFFFF
        return
    values[:] = math.nan
    for value_type in np.unique(types[why == 0]).tolist():
        chosen = types == value_type
        if 0 <= value_type < len(_VALUE_TYPES):
            kind = np.dtype(_VALUE_TYPES[value_type])
            values[chosen] = answers[chosen].view(kind)[:: 8 // kind.itemsize]
        else:
            why[chosen & (why == 0)] = _CODE[MissingReason.READ_ERROR] + 1


def _rate(before: tuple[float, int], now: tuple[float, int]) -> float:
    """Return the growth per second of a counter that may have wrapped; NaN where two readings do not tell."""
    if now[1] <= before[1]:
        return math.nan
    elapsed_s = (now[1] - before[1]) * 1e-6
    growth = now[0] - before[0]
    if growth < 0:
        growth += _COUNTER_RANGE
        if max(now[0], before[0]) >= _COUNTER_RANGE or elapsed_s * _FASTEST_PCIE > _COUNTER_RANGE:
            return math.nan
    return growth / elapsed_s


class NvmlTicks(RawTicks):
    """One tick of a chunk.

    Args:
        chunk: The chunk.
        slot: Which of its ticks.
    """

    __slots__ = ("_chunk", "_decoded", "_slot")

    def __init__(self, chunk: RawChunk, slot: int) -> None:
        self._chunk = chunk
        self._slot = slot
        self._decoded: list[GpuTicks] | None = None

    def peek(self) -> Sequence[GpuTicks]:
        """See :class:`RawTicks`."""
        return self._decoded or self._chunk.decode(self._slot, self._slot + 1, peek=True)

    def join(self, following: Sequence[RawTicks]) -> Sequence[GpuTicks]:
        """See :class:`RawTicks`."""
        found: list[GpuTicks] = []
        run: list[NvmlTicks] = []
        for ticks in (self, *following):
            if not isinstance(ticks, NvmlTicks):
                raise TypeError(f"{type(ticks).__name__} are not ticks of NVML")
            if run and not (ticks._chunk is run[0]._chunk and ticks._slot == run[-1]._slot + 1):
                found += run[0]._chunk.decode(run[0]._slot, run[-1]._slot + 1)
                run = []
            run.append(ticks)
        return found + run[0]._chunk.decode(run[0]._slot, run[-1]._slot + 1)

    def __len__(self) -> int:
        return len(self._chunk.layout.gpus) - len(self._chunk.absent)

    @overload
    def __getitem__(self, index: int) -> GpuTicks: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[GpuTicks]: ...

    def __getitem__(self, index: int | slice) -> GpuTicks | Sequence[GpuTicks]:
        if self._decoded is None:
            self._decoded = self._chunk.decode(self._slot, self._slot + 1)
        return self._decoded[index]
