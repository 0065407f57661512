"""What is read every tick: structures made once, values written into the tick's row, nothing allocated in between.

pynvml has the C layouts of ``nvml.h`` too, but its structures convert on every attribute access in Python, which costs
more than the call. The large request of GPM is pynvml's own (its length is the library's); only a view on it is made
here. Left out on purpose: ``nvmlDeviceGetPcieThroughput`` blocks 20 ms for each direction, so eight GPUs would need
320 ms of a 100 ms tick.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gpusonde.agent.sources.base import LASTING_REASONS
from gpusonde.agent.sources.nvml.library import Nvml, blank_reason
from gpusonde.errors import DriverCallError
from gpusonde.telemetry import MissingReason, metric

MEMORY_V2 = 0x2000028


class Memory(ctypes.Structure):
    """``nvmlMemory_t``: bytes; ``used`` includes what the driver reserves."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class MemoryV2(ctypes.Structure):
    """``nvmlMemory_v2_t``: bytes; what the driver reserves is apart."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Value(ctypes.Union):
    """``nvmlValue_t``."""

    _fields_ = (
        ("double", ctypes.c_double),
        ("unsigned_int", ctypes.c_uint),
        ("unsigned_long", ctypes.c_ulong),
        ("unsigned_long_long", ctypes.c_ulonglong),
        ("signed_long_long", ctypes.c_longlong),
        ("signed_int", ctypes.c_int),
        ("unsigned_short", ctypes.c_ushort),
    )


# nvmlValueType_t -> member of nvmlValue_t
VALUE_MEMBERS = tuple(name for name, _ in Value._fields_)


class FieldValue(ctypes.Structure):
    """``nvmlFieldValue_t``; the time stamp is in Unix microseconds."""

    _fields_ = (
        ("field_id", ctypes.c_uint),
        ("scope_id", ctypes.c_uint),
        ("timestamp_us", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("value_type", ctypes.c_int),
        ("status", ctypes.c_int),
        ("value", Value),
    )


class EventData(ctypes.Structure):
    """``nvmlEventData_t``; the device is an opaque address."""

    _fields_ = (
        ("device", ctypes.c_void_p),
        ("event_type", ctypes.c_ulonglong),
        ("event_data", ctypes.c_ulonglong),
        ("gpu_instance_id", ctypes.c_uint),
        ("compute_instance_id", ctypes.c_uint),
    )


def gpm_answers(module: Any, request: Any, count: int) -> tuple[Any, Any]:
    """Return views on the status codes and values of a ``c_nvmlGpmMetricsGet_t``, which follow its memory.

    Args:
        module: The pynvml module, whose layout counts.
        request: The request.
        count: Number of metrics.
    """
    element, whole = module.c_nvmlGpmMetric_t, module.c_nvmlGpmMetricsGet_t
    layout = np.dtype(
        {
            "names": ["status", "value"],
            "formats": [np.int32, np.float64],
            "offsets": [element.nvmlReturn.offset, element.value.offset],
            "itemsize": ctypes.sizeof(element),
        }
    )
    table = np.frombuffer(request, dtype=layout, count=count, offset=whole.metrics.offset)
    return table["status"], table["value"]


_COUNTER_RANGE = float(1 << 32)
# Faster than any PCIe link of a board without GPM: a counter of 32 bits that may have wrapped twice says nothing.
_FASTEST_PCIE = 3.2e10


class FastReader(Protocol):
    """Reads some metrics of one GPU with one call."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics."""
        ...

    def bind(self, column: Mapping[str, int]) -> None:
        """Say where in a row the metrics go; those without a column are left out."""
        ...

    def read(self, values: list[float], blanks: dict[int, MissingReason]) -> None:
        """Write the values into a row of NaN, and the reasons of those that stay NaN.

        Raises:
            GpuLostError: The GPU is gone.
            SourceError: The driver is gone.
        """
        ...


class Targets:
    """Where the values of a call go, and the largest that each can have.

    Args:
        metrics: Their names, in the order of the values.

    Attributes:
        metrics: The names.
        maxima: The largest plausible values.
        columns: The columns; None for one that nobody asked for.
    """

    def __init__(self, metrics: Sequence[str]) -> None:
        self.metrics = tuple(metrics)
        self.maxima = [math.inf if (most := metric(name).maximum) is None else most for name in metrics]
        self.columns: list[int | None] = [None] * len(self.metrics)

    def bind(self, column: Mapping[str, int]) -> None:
        """See :class:`FastReader`."""
        self.columns = [column.get(name) for name in self.metrics]

    def put(self, i: int, value: float, values: list[float], blanks: dict[int, MissingReason]) -> None:
        """Write one value, or why it cannot be one."""
        column = self.columns[i]
        if column is None:
            return
        if 0.0 <= value <= self.maxima[i]:
            values[column] = value
        else:
            blanks[column] = MissingReason.NO_DATA if math.isnan(value) else MissingReason.OUT_OF_RANGE

    def refuse(self, i: int, reason: MissingReason, blanks: dict[int, MissingReason]) -> None:
        """Note why one value is absent."""
        column = self.columns[i]
        if column is not None:
            blanks[column] = reason

    def refuse_all(self, reason: MissingReason, blanks: dict[int, MissingReason]) -> None:
        """Note why none of the values is there."""
        for i in range(len(self.metrics)):
            self.refuse(i, reason, blanks)


@dataclass(frozen=True)
class FastCall:
    """One getter and what it gives.

    Attributes:
        metrics: Names of the metrics.
        function: Name of the library's function.
        prepare: Makes its arguments after the handle, and what takes the values out of them.
    """

    metrics: tuple[str, ...]
    function: str
    prepare: Callable[[], tuple[tuple[Any, ...], Callable[[], Sequence[float]]]]


def _utilization() -> tuple[tuple[Any, ...], Callable[[], Sequence[float]]]:
    out = (ctypes.c_uint * 2)()  # nvmlUtilization_t: gpu, memory, in percent
    return (out,), lambda: (out[0] * 0.01, out[1] * 0.01)


def _sm_clock() -> tuple[tuple[Any, ...], Callable[[], Sequence[float]]]:
    out = ctypes.c_uint()
    return (1, ctypes.byref(out)), lambda: (out.value,)  # NVML_CLOCK_SM


def _power() -> tuple[tuple[Any, ...], Callable[[], Sequence[float]]]:
    out = ctypes.c_uint()
    return (ctypes.byref(out),), lambda: (out.value * 1e-3,)


def _memory() -> tuple[tuple[Any, ...], Callable[[], Sequence[float]]]:
    out = Memory()
    return (ctypes.byref(out),), lambda: (out.used,)


def _memory_v2() -> tuple[tuple[Any, ...], Callable[[], Sequence[float]]]:
    out = MemoryV2(version=MEMORY_V2)
    return (ctypes.byref(out),), lambda: (out.used,)


UTILIZATION = FastCall(("gpu_utilization", "memory_utilization"), "nvmlDeviceGetUtilizationRates", _utilization)
SM_CLOCK = FastCall(("sm_clock_mhz",), "nvmlDeviceGetClockInfo", _sm_clock)
POWER = FastCall(("power_watts",), "nvmlDeviceGetPowerUsage", _power)
# Version 2 tells memory reserved by the driver from memory in use; drivers before 510 have only version 1.
MEMORY = (
    FastCall(("framebuffer_used_bytes",), "nvmlDeviceGetMemoryInfo_v2", _memory_v2),
    FastCall(("framebuffer_used_bytes",), "nvmlDeviceGetMemoryInfo", _memory),
)


class CallReader:
    """Reads with one getter.

    Args:
        nvml: The library.
        handle: The device.
        call: The getter.

    Raises:
        DriverCallError: The driver is older than the getter.
    """

    def __init__(self, nvml: Nvml, handle: Any, call: FastCall) -> None:
        self._nvml = nvml
        self._name = call.function
        self._function = nvml.function(call.function)
        arguments, self._extract = call.prepare()
        self._arguments = (handle, *arguments)
        self._targets = Targets(call.metrics)
        self.metrics = call.metrics
        self.bind = self._targets.bind

    def read(self, values: list[float], blanks: dict[int, MissingReason]) -> None:
        """See :class:`FastReader`."""
        code = self._function(*self._arguments)
        if code:
            self._targets.refuse_all(self._nvml.refusal(self._name, code), blanks)
            return
        for i, value in enumerate(self._extract()):
            self._targets.put(i, value, values, blanks)


@dataclass(frozen=True)
class FastField:
    """One field of ``nvmlDeviceGetFieldValues``.

    Attributes:
        metric: What it gives.
        field_id: ``NVML_FI_DEV_*``.
        scale: From NVML's unit to ours.
        is_counter: The metric is the field's growth per second.
    """

    metric: str
    field_id: int
    scale: float = 1.0
    is_counter: bool = False


# nvmlDeviceGetPowerUsage is a one-second average on Ampere (except GA100) and later; the field is not.
POWER_INSTANT = FastField("power_watts", 186, 1e-3)
# For boards without GPM. NVML_FI_DEV_PCIE_COUNT_TX_BYTES and _RX_BYTES; they may wrap.
PCIE_COUNTERS = (
    FastField("pcie_tx_bytes_per_second", 197, is_counter=True),
    FastField("pcie_rx_bytes_per_second", 198, is_counter=True),
)


class FieldsReader:
    """Reads several fields with one call; each has its own status and time.

    Args:
        nvml: The library.
        handle: The device.
        fields: The fields.
        clock_us: Microseconds, for fields that the driver does not stamp.

    Raises:
        DriverCallError: The driver is older than the call.
    """

    def __init__(
        self,
        nvml: Nvml,
        handle: Any,
        fields: Sequence[FastField],
        clock_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000,
    ) -> None:
        self._nvml = nvml
        self.fields = tuple(fields)
        self._function = nvml.function("nvmlDeviceGetFieldValues")
        self._clock_us = clock_us
        request = (FieldValue * len(self.fields))()
        for answer, wanted in zip(request, self.fields, strict=True):
            answer.field_id = wanted.field_id
        self._answers = list(request)
        self._arguments = (handle, len(self.fields), request)
        self._targets = Targets([wanted.metric for wanted in fields])
        self._counted: dict[int, tuple[float, int]] = {}
        self.metrics = self._targets.metrics
        self.bind = self._targets.bind

    def read(self, values: list[float], blanks: dict[int, MissingReason]) -> None:
        """See :class:`FastReader`."""
        code = self._function(*self._arguments)
        if code:
            self._targets.refuse_all(self._nvml.refusal("nvmlDeviceGetFieldValues", code), blanks)
            return
        for i, (wanted, answer) in enumerate(zip(self.fields, self._answers, strict=True)):
            if answer.status:
                self._targets.refuse(i, blank_reason(answer.status), blanks)
            elif not 0 <= answer.value_type < len(VALUE_MEMBERS):
                self._targets.refuse(i, MissingReason.READ_ERROR, blanks)
            else:
                value = getattr(answer.value, VALUE_MEMBERS[answer.value_type]) * wanted.scale
                if wanted.is_counter:
                    value = self._rate(i, value, answer.timestamp_us or self._clock_us())
                self._targets.put(i, value, values, blanks)

    def _rate(self, i: int, count: float, at_us: int) -> float:
        """Return the growth per second since the previous reading; NaN where two readings do not tell."""
        before, self._counted[i] = self._counted.get(i), (count, at_us)
        if before is None or at_us <= before[1]:
            return math.nan
        elapsed_s = (at_us - before[1]) * 1e-6
        growth = count - before[0]
        if growth < 0:
            growth += _COUNTER_RANGE
            if max(count, before[0]) >= _COUNTER_RANGE or elapsed_s * _FASTEST_PCIE > _COUNTER_RANGE:
                return math.nan
        return growth / elapsed_s


def try_out(reader: FastReader) -> dict[str, MissingReason]:
    """Read once and return the metrics that gave no number, and why.

    Raises:
        GpuLostError: The GPU is gone.
        SourceError: The driver is gone.
    """
    names = reader.metrics
    reader.bind({name: i for i, name in enumerate(names)})
    blanks: dict[int, MissingReason] = {}
    reader.read([math.nan] * len(names), blanks)
    return {names[i]: reason for i, reason in blanks.items()}


def first_call(nvml: Nvml, handle: Any, candidates: Sequence[FastCall]) -> CallReader | dict[str, MissingReason]:
    """Return a reader of the first candidate that gives something that lasts, or why none does.

    Raises:
        GpuLostError: The GPU is gone.
        SourceError: The driver is gone.
    """
    refusals: dict[str, MissingReason] = {}
    for call in candidates:
        try:
            reader = CallReader(nvml, handle, call)
        except DriverCallError as error:
            refusals = dict.fromkeys(call.metrics, blank_reason(error.code))
            continue
        refusals = {name: reason for name, reason in try_out(reader).items() if reason in LASTING_REASONS}
        if not refusals:
            return reader
    return refusals
