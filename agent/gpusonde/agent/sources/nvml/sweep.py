"""``Sweep``: the calls of one tick, for all GPUs, into memory that is laid out once."""

from __future__ import annotations

import ctypes
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpusonde.agent.sources.base import SourceStatistics
from gpusonde.agent.sources.nvml.fast_reader import CellKind, FastCall, FieldValue
from gpusonde.agent.sources.nvml.gpm_reader import GpmReader
from gpusonde.agent.sources.nvml.library import SUCCESS, Nvml
from gpusonde.agent.sources.nvml.raw_ticks import GpuMemory, Indices, NvmlTicks, PlacedCell, RawContext, RawLayout
from gpusonde.errors import GpuLostError
from gpusonde.telemetry import FloatArray, MissingReason, Unit, metric

# nvmlGpmMetricsGet_t; the array behind it grows between releases, the version does not.
_METRICS_GET_VERSION = 1
_SAMPLE_FUNCTIONS = ("nvmlGpmSampleGet", "nvmlGpmMigSampleGet")
_METRICS_GET = "nvmlGpmMetricsGet"
# Values of samples taken closer than 100 ms are invalid. The sampler's ticks come up to half an interval early.
_CLOSEST_SAMPLES_S = 0.045
# No number at all for so long, and it is taken for lost: not every driver says "lost" (999, "unknown", was seen).
_SILENCE_S = 5.0
_LOST_CODE = 15


_Prepared = tuple[Callable[..., int], tuple[Any, ...]]
# Says success, as a call that went well.
_NO_CALL: _Prepared = (int, ())


@dataclass
class SweptGpu:
    """One GPU or MIG instance and what is read of it every tick.

    Attributes:
        index: Its index in the inventory.
        key: Its name in the fleet.
        handle: Handle of the GPU or instance.
        calls: The calls beside GPM.
        gpm: Its profiling metrics.
        memory: What its numbers depend on beside the tick.
        heard_s: When there was a number last although others were missing, by the deadlines' clock.
    """

    index: int
    key: str
    handle: Any
    calls: Sequence[FastCall]
    gpm: GpmReader | None = None
    memory: GpuMemory = field(default_factory=GpuMemory)
    heard_s: float = math.inf


@dataclass(frozen=True)
class _Step:
    """One call of the sweep: whose it is, and the cells that it fills."""

    position: int
    function: str
    cells: Indices

    @property
    def takes_sample(self) -> bool:
        """Whether it begins GPM: its cells are then filled by the next call."""
        return self.function in _SAMPLE_FUNCTIONS


class Sweep:
    """Reads all GPUs once per tick.

    A tick is :meth:`read`, then :meth:`set_slow` and :meth:`leave` as need be, then :meth:`keep`.

    Args:
        nvml: The library.
        gpus: The GPUs.
        columns: Metric -> column of the values.
        statistics: Counts what is suspect.
        wall_ns: Unix time in nanoseconds.
        monotonic: Seconds, never set back.

    Raises:
        DriverCallError: The driver is older than one of the calls.
    """

    def __init__(
        self,
        nvml: Nvml,
        gpus: Sequence[SweptGpu],
        columns: Mapping[str, int],
        statistics: SourceStatistics,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nvml = nvml
        self._gpus = tuple(gpus)
        self._wall_ns = wall_ns
        self._monotonic = monotonic
        self._with_gpm = [position for position, gpu in enumerate(gpus) if gpu.gpm is not None]
        self._place(columns, statistics)
        self._absent: set[int] = set()
        self._calls: list[list[list[tuple[Any, ...]]]] = []
        self._list_calls()
        self._standing: list[Mapping[int, MissingReason]] = [{} for _ in gpus]
        self._slow: FloatArray = np.full((len(gpus), len(columns)), math.nan)
        self._context: RawContext | None = None
        self._sampled_s = -math.inf
        self._stamps_ns = [0] * len(gpus)
        self._heard_s = -math.inf
        self._refused: list[tuple[Indices, MissingReason]] = []
        self._deadline_s = self._read_s = 0.0

    def _place(self, columns: Mapping[str, int], statistics: SourceStatistics) -> None:
        """Lay out the memory of the answers, and prepare every call with its place in it."""
        module = self._nvml.module
        element, whole = module.c_nvmlGpmMetric_t, module.c_nvmlGpmMetricsGet_t
        most_metrics = max((len(gpu.gpm.metrics) for gpu in self._gpus if gpu.gpm is not None), default=0)
        element_words = ctypes.sizeof(element) // 8
        sizes = [-(-len(call.answer) // 8) for gpu in self._gpus for call in gpu.calls]
        self._answers = np.zeros(sum(sizes), dtype=np.uint64)
        self._gpm_status_offset = element.nvmlReturn.offset
        # For each turn a request of its own: the sample that ended the last pair begins the next one.
        requests = np.zeros((2, len(self._with_gpm), ctypes.sizeof(whole) // 8), dtype=np.uint64)
        first = whole.metrics.offset // 8
        self._gpm_answers = list(requests[:, :, first : first + most_metrics * element_words])
        self._samples = requests[:, :, whole.sample1.offset // 8 :][:, :, :2]
        self._turn = self._answered = 0
        self._memory = (self._answers, requests)
        # What a tick keeps of each turn, piece by piece: bytes are joined with less ado than arrays are copied.
        self._kept = [[memoryview(piece) for piece in (self._answers, *rows)] for rows in self._gpm_answers]
        cells: list[PlacedCell] = []
        profiled: list[tuple[list[int], list[int]]] = []
        prepared: list[tuple[int, str, tuple[tuple[Any, ...], tuple[Any, ...]], tuple[int, int]]] = []
        at = row = 0
        for position, gpu in enumerate(self._gpus):
            profiled.append(([], []))
            if (gpm := gpu.gpm) is not None:
                begin = len(cells)
                both = [whole.from_address(requests[turn, row].ctypes.data) for turn in range(2)]
                for request in both:
                    request.version, request.numMetrics = _METRICS_GET_VERSION, len(gpm.metrics)
                for i, wanted in enumerate(gpm.metrics):
                    for request in both:
                        request.metrics[i].metricId = wanted.gpm_metric_id
                    most = math.inf if wanted.maximum is None else wanted.maximum
                    is_ratio = wanted.unit is Unit.RATIO
                    if wanted.name in columns:
                        column = columns[wanted.name]
                        profiled[position][0].append(column)
                        profiled[position][1].extend([column] if is_ratio else [])
                        offset = 8 * element_words * (row * most_metrics + i)
                        cells.append(
                            PlacedCell(
                                position, wanted.name, column, CellKind.GPM, offset, wanted.gpm_scale, most,
                                is_capped=is_ratio and gpm.is_part,
                            )
                        )  # fmt: skip
                self._samples[0, row], self._samples[1, row] = gpm.samples, gpm.samples[::-1]
                given = (_quick(gpm.arguments[0]), *gpm.arguments[1:])
                # First: its values end at the moment of the call, which is the time stamp's.
                taken = (*given, _reference(gpm.samples[1])), (*given, _reference(gpm.samples[0]))
                prepared.append((position, gpm.function, taken, (begin, len(cells))))
                asked = (ctypes.byref(both[0]),), (ctypes.byref(both[1]),)
                prepared.append((position, _METRICS_GET, asked, (begin, len(cells))))
                row += 1
            handle = _quick(gpu.handle)
            for call in gpu.calls:
                begin = len(cells)
                words = -(-len(call.answer) // 8)
                self._answers[at : at + words] = np.frombuffer(call.answer.ljust(8 * words, b"\0"), dtype=np.uint64)
                for cell in call.cells:
                    if cell.metric in columns:
                        maximum = metric(cell.metric).maximum
                        cells.append(
                            PlacedCell(
                                position, cell.metric, columns[cell.metric], cell.kind, 8 * at + cell.offset,
                                cell.scale, math.inf if maximum is None else maximum, is_counter=cell.is_counter,
                            )
                        )  # fmt: skip
                begun = self._answers.ctypes.data + 8 * at
                given = (handle, *call.arguments, *(_reference(begun + offset) for offset in (0, *call.further)))
                prepared.append((position, call.function, (given, given), (begin, len(cells))))
                at += words
        self._layout = RawLayout(
            [gpu.index for gpu in self._gpus], [gpu.memory for gpu in self._gpus], len(columns), cells, profiled,
            columns.get("gpu_utilization"), statistics, element, self._answers.nbytes,
        )  # fmt: skip
        number_of = {id(cell): number for number, cell in enumerate(self._layout.cells)}
        self._steps: list[_Step] = []
        # For each turn the functions and their arguments.
        self._prepared: tuple[list[_Prepared], list[_Prepared]] = ([], [])
        for position, name, by_turn, (begin, end) in prepared:
            numbers = np.array([number_of[id(cell)] for cell in cells[begin:end]], dtype=np.intp)
            self._steps.append(_Step(position, name, numbers))
            for of_turn, arguments in zip(self._prepared, by_turn, strict=True):
                of_turn.append((self._nvml.function(name), arguments))

    def _list_calls(self) -> None:
        """List the calls of the GPUs that are there, by GPU."""
        self._listed = [i for i, step in enumerate(self._steps) if step.position not in self._absent]
        self._threes: list[list[int]] = []
        self._calls = [[], []]
        for position in range(len(self._gpus)):
            numbers = [i for i in self._listed if self._steps[i].position == position]
            threes = [numbers[at : at + 3] for at in range(0, len(numbers), 3)]
            for prepared, calls in zip(self._prepared, self._calls, strict=True):
                filled = [[prepared[i] for i in three] + [_NO_CALL] * (3 - len(three)) for three in threes]
                first = len(self._threes)
                calls.append([(first + n, *itertools.chain(*three)) for n, three in enumerate(filled)])
            self._threes += threes
        self.present_count = len(self._gpus) - len(self._absent)
        present = [(row, p) for row, p in enumerate(self._with_gpm) if p not in self._absent]
        self._row_of = {position: row for row, position in present}
        self._unprimed = {p for _, p in present if not ((gpm := self._gpus[p].gpm) and gpm.primed)}

    def read(self, deadline_s: float) -> dict[int, GpuLostError]:
        """Call everything once; return the positions of GPUs that are lost, and why.

        Args:
            deadline_s: What the tick is for.

        Raises:
            SourceError: The driver is gone.
        """
        self._deadline_s, self._read_s = deadline_s, self._monotonic()
        self._refused = []
        wall_ns = self._wall_ns
        stamps_ns: list[int] = []
        failed: dict[int, tuple[int, int, int]] = {}
        if self._with_gpm and self._read_s - self._sampled_s < _CLOSEST_SAMPLES_S:
            return self._read_without_samples()
        turn = self._turn
        for calls in self._calls[turn]:
            stamps_ns.append(wall_ns())
            # Three at a time: a step of the loop takes half as long as a call. And nothing is kept of what went well.
            for number, call, arguments, call2, arguments2, call3, arguments3 in calls:
                code, code2, code3 = call(*arguments), call2(*arguments2), call3(*arguments3)
                if code or code2 or code3:
                    failed[number] = (code, code2, code3)
        self._stamps_ns = stamps_ns
        self._sampled_s = self._read_s
        self._turn, self._answered = 1 - turn, turn
        if failed or self._unprimed:
            codes = dict.fromkeys(self._listed, 0)
            for number, of_three in failed.items():
                # The last of a GPU may be filled up with what always succeeds.
                codes.update(zip(self._threes[number], of_three, strict=False))
            return self._take_refusals(codes)
        self._heard_s = deadline_s
        return {}

    def _read_without_samples(self) -> dict[int, GpuLostError]:
        """Read all but GPM: the last samples are too young."""
        codes = {}
        # The tick before keeps its own.
        self._stamps_ns = [*self._stamps_ns]
        for position in range(len(self._gpus)):
            self._stamps_ns[position] = self._wall_ns()
            for i in self._listed:
                step = self._steps[i]
                if step.position != position or step.function == _METRICS_GET:
                    continue
                if step.takes_sample:
                    self._refused.append((step.cells, MissingReason.NO_DATA))
                else:
                    function, arguments = self._prepared[self._turn][i]
                    codes[i] = function(*arguments)
        return self._take_refusals(codes)

    def _take_refusals(self, codes: Mapping[int, int]) -> dict[int, GpuLostError]:
        """Note what the calls that failed leave blank; return the lost GPUs.

        Args:
            codes: Number of the step -> what it returned.

        Raises:
            SourceError: The driver is gone.
        """
        lost: dict[int, GpuLostError] = {}
        heard: set[int] = set()
        without_pair: set[int] = set()
        for i, code in codes.items():
            step = self._steps[i]
            position = step.position
            if step.function == _METRICS_GET and position in without_pair:
                continue
            if code:
                try:
                    self._refused.append((step.cells, self._nvml.refusal(step.function, code)))
                except GpuLostError as error:
                    lost.setdefault(position, error)
            if step.takes_sample:
                self._take_sample(position, code, step.cells, without_pair)
            elif not code and self._has_number(step):
                heard.add(position)
        for position in self._row_of.keys() | {self._steps[i].position for i in codes}:
            gpu = self._gpus[position]
            if position in heard:
                gpu.heard_s = self._deadline_s
            elif self._deadline_s - max(gpu.heard_s, self._heard_s) >= _SILENCE_S:
                silence = GpuLostError(f"{gpu.key}: no values for {_SILENCE_S:g} s", _LOST_CODE)
                lost.setdefault(position, silence)
        return lost

    def _take_sample(self, position: int, code: int, cells: Indices, without_pair: set[int]) -> None:
        """Note what became of a GPM sample, and whether it ends a pair."""
        row, gpm = self._row_of[position], self._gpus[position].gpm
        if code:
            self._swap_samples(position, row)
            without_pair.add(position)
        elif gpm is not None and not gpm.primed:
            gpm.primed = True
            self._unprimed.discard(position)
            self._refused.append((cells, MissingReason.NO_DATA))
            without_pair.add(position)

    def _swap_samples(self, position: int, row: int) -> None:
        """Take the sample of a GPU again that could not be taken."""
        self._samples[:, row] = self._samples[::-1, row].copy()
        at = next(i for i, step in enumerate(self._steps) if step.position == position and step.takes_sample)
        first, second = (prepared[at] for prepared in self._prepared)
        self._prepared[0][at], self._prepared[1][at] = second, first
        self._list_calls()

    def _has_number(self, step: _Step) -> bool:
        """Whether a call that succeeded gave anything: fields and GPM metrics have a status each."""
        for cell in (self._layout.cells[number] for number in step.cells):
            if cell.kind is CellKind.FIELD:
                status = self._answers.view(np.int32)[(cell.offset + FieldValue.status.offset) // 4]
            elif cell.kind is CellKind.GPM:
                answers = self._gpm_answers[self._answered].ravel().view(np.int32)
                status = answers[(cell.offset + self._gpm_status_offset) // 4]
            else:
                return True
            if status == SUCCESS:
                return True
        return False

    def set_slow(self, position: int, values: Sequence[float], standing: Mapping[int, MissingReason]) -> None:
        """Repeat these values of a GPU from this tick on, NaN for those that each tick brings."""
        # Ticks that were given away refer to the values of their time.
        self._slow = self._slow.copy()
        self._slow[position] = values
        if standing != self._standing[position]:
            self._standing[position] = standing
            self._context = None

    def leave(self, position: int) -> None:
        """Read a GPU no longer, from this tick on; to be called before its GPM samples are freed."""
        self._absent.add(position)
        self._context = None
        self._list_calls()

    def keep(self) -> NvmlTicks:
        """Return the tick that was read."""
        if self._context is None:
            self._context = RawContext(self._layout, self._standing, frozenset(self._absent))
        answers = b"".join(self._kept[self._answered])
        return NvmlTicks(
            self._context, answers, self._slow, self._stamps_ns, self._deadline_s, self._read_s, self._refused
        )

    def hand_over(self) -> None:
        """Tell the GPM readers which of their samples is the newest; to be called before another sweep is made."""
        for row, position in enumerate(self._with_gpm):
            gpm = self._gpus[position].gpm
            if gpm is not None and position not in self._absent:
                newest, following = self._samples[self._turn, row].tolist()
                gpm.samples = newest, following


def _reference(address: int) -> Any:
    """Return an address as an argument of a call: ctypes passes on what ``byref`` made as it is."""
    return ctypes.byref(ctypes.c_char.from_address(address))


def _quick(handle: Any) -> Any:
    """Return a device handle as an argument that ctypes need not look at anew at every call."""
    return _reference(ctypes.cast(handle, ctypes.c_void_p).value or 0)


def try_out(nvml: Nvml, gpu: SweptGpu, monotonic: Callable[[], float] = time.monotonic) -> dict[str, MissingReason]:
    """Read once and return the metrics that gave no number, and why.

    Raises:
        GpuLostError: The GPU is gone.
        SourceError: The driver is gone.
    """
    names = [name for call in gpu.calls for name in call.metrics]
    names += [m.name for m in gpu.gpm.metrics] if gpu.gpm is not None else []
    sweep = Sweep(nvml, [gpu], {name: i for i, name in enumerate(names)}, SourceStatistics(), monotonic=monotonic)
    for error in sweep.read(0.0).values():
        raise error
    (ticks,) = sweep.keep().peek()
    sweep.hand_over()
    return {names[i]: reason for i, reason in ticks.blanks.items()}
