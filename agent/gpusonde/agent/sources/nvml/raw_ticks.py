"""``NvmlTicks``: what NVML wrote over some ticks, and how it becomes numbers, for all GPUs and ticks at once.

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

from gpusonde.agent.sources.base import AlignedTicks, GpuTicks, RawTicks, SourceStatistics, TimeArray, ZeroGuard
from gpusonde.agent.sources.nvml.fast_reader import CellKind, FieldValue
from gpusonde.agent.sources.nvml.library import SUCCESS, blank_reason
from gpusonde.telemetry import FloatArray, MissingReason

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
_Reasons = npt.NDArray[np.uint8]


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
        gpm_offset: Where in a tick's bytes the GPM answers begin, behind the others.
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
        gpm_offset: int,
    ) -> None:
        order = list(CellKind)
        self.gpus = tuple(gpus)
        self.memories = tuple(memories)
        self.metric_count = metric_count
        self.cells = tuple(sorted(cells, key=lambda cell: order.index(cell.kind)))
        self.statistics = statistics
        self.profiled = [list(columns) for columns, _ in profiled]
        self.ratios = np.array(sorted({column for _, ratios in profiled for column in ratios}), dtype=np.intp)
        self.utilization = utilization
        self.scale = np.array([cell.scale for cell in self.cells]).reshape(-1, 1)
        self.most = np.array([cell.most for cell in self.cells]).reshape(-1, 1)
        self.target = np.array([c.position * metric_count + c.column for c in self.cells], dtype=np.intp)
        self.capped = np.flatnonzero([cell.is_capped for cell in self.cells])
        self.part = {kind: self._places(kind) for kind in CellKind}
        # Fields are mostly of one type and so are read as the small numbers beside which they lie.
        self.small = self._places(CellKind.UINT32, CellKind.FIELD)
        more = {CellKind.FIELD: FieldValue.value.offset, CellKind.GPM: gpm_offset + gpm_element.value.offset}
        status = {CellKind.FIELD: FieldValue.status.offset, CellKind.GPM: gpm_offset + gpm_element.nvmlReturn.offset}
        places = np.array([cell.offset + more.get(cell.kind, 0) for cell in self.cells], dtype=np.intp)
        self.small_at = places[self.small] // 4
        self.uint64_at = places[self.part[CellKind.UINT64]] // 8
        self.gpm_at = places[self.part[CellKind.GPM]] // 8
        states = [(cell.offset + status[cell.kind]) // 4 for cell in self.cells if cell.kind in status]
        self.status_at = np.array(states, dtype=np.intp)
        fields = [cell.offset for cell in self.cells if cell.kind is CellKind.FIELD]
        self.type_at = np.array([(at + FieldValue.value_type.offset) // 4 for at in fields], dtype=np.intp)
        # What mostly stands there, to be compared at once.
        self.usual_at = np.concatenate([self.status_at, self.type_at])
        self.usual = np.array([SUCCESS] * len(self.status_at) + [_UNSIGNED_INT] * len(self.type_at), dtype=np.int32)
        words = np.arange(ctypes.sizeof(FieldValue) // 8)
        self.field_at = np.array([at // 8 for at in fields], dtype=np.intp)[:, np.newaxis] + words
        self.latest_blanks: tuple[Any, list[dict[int, MissingReason]]] = (None, [])
        self.counters = [i for i, cell in enumerate(self.cells) if cell.is_counter]
        self.profiled_cells = [self.cells_of(p, columns) for p, columns in enumerate(self.profiled)]

    def _places(self, *kinds: CellKind) -> slice:
        """Return where the cells of some kinds lie, which are next to each other."""
        numbers = [i for i, cell in enumerate(self.cells) if cell.kind in kinds]
        return slice(min(numbers, default=0), max(numbers, default=-1) + 1)

    def cells_of(self, position: int, columns: Iterable[int]) -> Indices:
        """Return the numbers of a GPU's cells of some columns."""
        wanted = set(columns)
        return np.array(
            [i for i, c in enumerate(self.cells) if c.position == position and c.column in wanted], dtype=np.intp
        )


class RawContext:
    """What consecutive ticks of the same GPUs have in common.

    Args:
        layout: Where is what.
        standing: For each GPU the columns that its slow readers do not give, and why.
        absent: Positions of lost GPUs.
    """

    def __init__(
        self, layout: RawLayout, standing: Sequence[Mapping[int, MissingReason]], absent: frozenset[int]
    ) -> None:
        self.layout = layout
        self.standing = tuple(standing)
        self.present = [position for position in range(len(layout.gpus)) if position not in absent]
        self._absent_cells = [i for i, cell in enumerate(layout.cells) if cell.position in absent]
        self._guards = [
            (p, memory, memory.zeros) for p, memory in enumerate(layout.memories) if memory.zeros and p not in absent
        ]

    def decode(self, ticks: Sequence[NvmlTicks], *, peek: bool = False) -> Sequence[GpuTicks]:
        """Return these ticks of all GPUs.

        Args:
            ticks: Consecutive ones of this context.
            peek: Leave out what depends on earlier ticks, and count nothing.
        """
        layout = self.layout
        cells, why = self._read_cells(ticks, peek)
        values = np.empty((len(layout.gpus), layout.metric_count, len(ticks)))
        slow = ticks[0].slow
        if all(tick.slow is slow for tick in ticks):
            values[...] = slow[:, :, np.newaxis]
        else:
            np.stack([tick.slow for tick in ticks], axis=2, out=values)
        values.reshape(-1, len(ticks))[layout.target] = cells
        if not peek:
            why = self._distrust_zeros(values, why, ticks)
        blanks = self._name_blanks(why)
        times: TimeArray = np.array([tick.stamps_ns for tick in ticks], dtype=np.int64).T.copy()
        times -= times % 1000
        present = self.present
        gpus = [layout.gpus[position] for position in present]
        if len(present) < len(layout.gpus):
            times, values = times[present], values[present]
        if blanks is not None:
            return AlignedTicks(gpus, times, values, [blanks[position] for position in present])
        # Rare: a metric is missing for one reason and then for another.
        found: list[GpuTicks] = []
        for one in (slice(slot, slot + 1) for slot in range(len(ticks))):
            reasons = self._name_blanks(None if why is None else why[:, one]) or self.standing
            found += AlignedTicks(gpus, times[:, one], values[:, :, one], [reasons[position] for position in present])
        return found

    def _read_cells(self, ticks: Sequence[NvmlTicks], peek: bool) -> tuple[FloatArray, _Reasons | None]:
        """Return the values of all cells and why they are NaN (0: they are not, else a code and one)."""
        layout = self.layout
        cells = np.empty((len(layout.cells), len(ticks)))
        words = np.frombuffer(b"".join([tick.answers for tick in ticks]), dtype=np.uint64).reshape(len(ticks), -1)
        halves = words.view(np.int32)
        cells[layout.small] = halves.view(np.uint32)[:, layout.small_at].T
        cells[layout.part[CellKind.UINT64]] = words[:, layout.uint64_at].T
        cells[layout.part[CellKind.GPM]] = words.view(np.float64)[:, layout.gpm_at].T
        why = None
        refused = [(slot, *refusal) for slot, tick in enumerate(ticks) for refusal in tick.refused]
        as_usual = (halves[:, layout.usual_at] == layout.usual).all()
        if not as_usual or refused or layout.counters or layout.capped.size or self._absent_cells:
            why = np.zeros(cells.shape, dtype=np.uint8)
            statuses = halves[:, layout.status_at]
            if (halves[:, layout.type_at] != _UNSIGNED_INT).any():
                part = layout.part[CellKind.FIELD]
                _read_fields(np.take(words, layout.field_at, axis=1), cells[part], why[part])
            _refuse(statuses.T, why[len(cells) - statuses.shape[1] :])
        cells *= layout.scale
        if why is not None:
            why[self._absent_cells] = _CODE[MissingReason.GPU_LOST] + 1
            for slot, numbers, reason in refused:
                why[numbers, slot] = _CODE[reason] + 1
            self._count_rates(cells, why, words, ticks, peek)
            self._cap(cells, why, peek)
        plausible = (cells >= 0.0) & (cells <= layout.most)
        if not plausible.all():
            nothing, impossible = _CODE[MissingReason.NO_DATA] + 1, _CODE[MissingReason.OUT_OF_RANGE] + 1
            is_nan = np.isnan(cells)
            if why is None and (plausible | is_nan).all():
                # A metric that never is a number stays one for good: nothing else is to be found out.
                return cells, is_nan.view(np.uint8) * np.uint8(nothing)
            why = np.zeros(cells.shape, dtype=np.uint8) if why is None else why
            implausible = ~plausible & (why == 0)
            why[implausible] = np.where(is_nan[implausible], nothing, impossible)
        if why is None or not (missing := why != 0).any():
            return cells, None
        cells[missing] = math.nan
        return cells, why

    def _cap(self, cells: FloatArray, why: _Reasons, peek: bool) -> None:
        """Take ratios of instances above 1 for 1: some are related to fewer SMs than there are (NVIDIA/DCGM 152)."""
        layout = self.layout
        if not layout.capped.size:
            return
        ratios = cells[layout.capped]
        above = (ratios > 1.0) & (ratios <= layout.most[layout.capped]) & (why[layout.capped] == 0)
        cells[layout.capped] = np.where(above, 1.0, ratios)
        if not peek:
            layout.statistics.capped_ratios += int(above.sum())

    def _count_rates(
        self, cells: FloatArray, why: _Reasons, words: _Words, ticks: Sequence[NvmlTicks], peek: bool
    ) -> None:
        """Replace the numbers of counters by their growth per second; NaN where two readings do not tell."""
        first = self.layout.part[CellKind.FIELD].start
        for number in self.layout.counters:
            cell = self.layout.cells[number]
            counted = self.layout.memories[cell.position].counted
            stamps_us = words[:, self.layout.field_at[number - first, 1]].tolist()
            for slot, count in enumerate(cells[number].tolist()):
                cells[number, slot] = math.nan
                if peek or why[number, slot]:
                    continue
                at_us = stamps_us[slot] or round(ticks[slot].read_s * 1e6)
                before, counted[cell.metric] = counted.get(cell.metric), (count, at_us)
                if before is not None:
                    cells[number, slot] = _rate(before, (count, at_us))

    def _distrust_zeros(self, values: FloatArray, why: _Reasons | None, ticks: Sequence[NvmlTicks]) -> _Reasons | None:
        """Blank the profiling values of GPUs that they say idle for long while the driver says that kernels run."""
        layout = self.layout
        if layout.utilization is None or not layout.ratios.size:
            return why
        utilization = values[:, layout.utilization]
        activity = np.fmax.reduce(values[:, layout.ratios], axis=1)
        # Where no ratio is known there is no doubt; ticks without one differ in nothing but their time.
        zero = activity == 0.0
        doubtful = (zero & (utilization >= ZeroGuard.BUSY)).any(axis=1).tolist() if zero.any() else None
        for position, memory, guard in self._guards:
            if doubtful is None or not doubtful[position]:
                guard.observe(0.0, 0.0, ticks[-1].deadline_s)
                continue
            for slot, tick in enumerate(ticks):
                if not guard.observe(utilization[position, slot], activity[position, slot], tick.deadline_s):
                    continue
                layout.statistics.suspect_ticks += 1
                values[position, layout.profiled[position], slot] = math.nan
                why = np.zeros((len(layout.cells), len(ticks)), dtype=np.uint8) if why is None else why
                why[layout.profiled_cells[position], slot] = _CODE[MissingReason.NO_DATA] + 1
                if guard.due(tick.deadline_s):
                    memory.on_zeros()
        return why

    def _name_blanks(self, why: _Reasons | None) -> Sequence[Mapping[int, MissingReason]] | None:
        """Return the reasons of each GPU's columns; None where a column has more than one."""
        if why is None:
            return self.standing
        key = (self.standing, why.tobytes())
        latest, blanks = self.layout.latest_blanks
        if latest is not None and latest[1] == key[1] and latest[0] is key[0]:
            return blanks
        if not why.any():
            return self.standing
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


def _refuse(statuses: npt.NDArray[np.int32], why: _Reasons) -> None:
    refused = statuses != SUCCESS
    if refused.any():
        # A set: np.unique would load NumPy's masked arrays, a megabyte.
        for status in set(statuses[refused].tolist()):
            why[statuses == status] = _CODE[blank_reason(status)] + 1


def _read_fields(entries: _Words, values: FloatArray, why: _Reasons) -> None:
    """Take the numbers out of ``nvmlFieldValue_t`` of shape (ticks, cells, words)."""
    halves = entries.view(np.int32)
    types = halves[..., FieldValue.value_type.offset // 4].T
    answers = entries[..., FieldValue.value.offset // 8].T.copy()
    _refuse(halves[..., FieldValue.status.offset // 4].T, why)
    if (types == _UNSIGNED_INT).all():
        values[:] = answers & 0xFFFFFFFF
        return
    values[:] = math.nan
    for value_type in set(types[why == 0].tolist()):
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
    """One tick.

    Args:
        context: What it has in common with those around it.
        answers: What the calls wrote, those of GPM last.
        slow: The values that are read more seldom, shape (GPUs, columns), NaN for the others.
        stamps_ns: The wall clock at each GPU.
        deadline_s: What it was for.
        read_s: When it was read, by the monotonic clock.
        refused: Cells that are blank because their call was refused, and why.
    """

    __slots__ = ("_context", "_decoded", "answers", "deadline_s", "read_s", "refused", "slow", "stamps_ns")

    def __init__(
        self,
        context: RawContext,
        answers: bytes,
        slow: FloatArray,
        stamps_ns: Sequence[int],
        deadline_s: float,
        read_s: float,
        refused: Sequence[tuple[Indices, MissingReason]],
    ) -> None:
        self._context = context
        self.answers = answers
        self.slow = slow
        self.stamps_ns = stamps_ns
        self.deadline_s = deadline_s
        self.read_s = read_s
        self.refused = refused
        self._decoded: Sequence[GpuTicks] | None = None

    def peek(self) -> Sequence[GpuTicks]:
        """See :class:`RawTicks`."""
        return self._decoded or self._context.decode([self], peek=True)

    def join(self, following: Sequence[RawTicks]) -> Sequence[GpuTicks]:
        """See :class:`RawTicks`."""
        found: list[Sequence[GpuTicks]] = []
        run: list[NvmlTicks] = []
        for ticks in (self, *following):
            if not isinstance(ticks, NvmlTicks):
                raise TypeError(f"{type(ticks).__name__} are not ticks of NVML")
            if run and ticks._context is not run[0]._context:
                found.append(run[0]._context.decode(run))
                run = []
            run.append(ticks)
        found.append(run[0]._context.decode(run))
        return found[0] if len(found) == 1 else [ticks for part in found for ticks in part]

    def __len__(self) -> int:
        return len(self._context.present)

    @overload
    def __getitem__(self, index: int) -> GpuTicks: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[GpuTicks]: ...

    def __getitem__(self, index: int | slice) -> GpuTicks | Sequence[GpuTicks]:
        if self._decoded is None:
            self._decoded = self._context.decode([self])
        return self._decoded[index]
