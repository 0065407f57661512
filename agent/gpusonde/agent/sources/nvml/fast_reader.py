"""What is read every tick: each call's answer at its place in one block of memory, nothing allocated in between.

pynvml has the C layouts of ``nvml.h`` too, but its structures convert on every attribute access in Python, which costs
more than the call. So a call only says where in its answer a metric lies (:class:`AnswerCell`), and many answers are
turned into numbers at once (``raw_ticks``). Left out on purpose: ``nvmlDeviceGetPcieThroughput`` blocks 20 ms for each
direction, so eight GPUs would need 320 ms of a 100 ms tick.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

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


class CellKind(Enum):
    """How an answer holds a number."""

    UINT64 = "uint64"
    UINT32 = "uint32"
    FIELD = "field"  # a whole nvmlFieldValue_t, with a status and a type of its own
    GPM = "gpm"  # a whole nvmlGpmMetric_t, with a status of its own


@dataclass(frozen=True)
class AnswerCell:
    """One metric in the answer of a call.

    Attributes:
        metric: What it gives.
        offset: Bytes from the answer's beginning.
        kind: How the number is held.
        scale: From NVML's unit to ours.
        is_counter: The metric is the number's growth per second.
    """

    metric: str
    offset: int
    kind: CellKind
    scale: float = 1.0
    is_counter: bool = False


@dataclass(frozen=True)
class FastCall:
    """One call and what it gives.

    Attributes:
        function: Name of the library's function.
        answer: What it is first filled with; its size counts.
        cells: Where in the answer the metrics lie.
        arguments: The function's arguments between the handle and the answer.
        further: Where in the answer it puts what its arguments after the first answer point at.
    """

    function: str
    answer: bytes
    cells: tuple[AnswerCell, ...]
    arguments: tuple[Any, ...] = ()
    further: tuple[int, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics."""
        return tuple(cell.metric for cell in self.cells)


UTILIZATION = FastCall(
    "nvmlDeviceGetUtilizationRates",
    bytes(8),
    (
        AnswerCell("gpu_utilization", 0, CellKind.UINT32, 0.01),
        AnswerCell("memory_utilization", 4, CellKind.UINT32, 0.01),
    ),
)
SM_CLOCK = FastCall(
    "nvmlDeviceGetClockInfo", bytes(4), (AnswerCell("sm_clock_mhz", 0, CellKind.UINT32),), (1,)
)  # NVML_CLOCK_SM
POWER = FastCall("nvmlDeviceGetPowerUsage", bytes(4), (AnswerCell("power_watts", 0, CellKind.UINT32, 1e-3),))
# Version 2 tells memory reserved by the driver from memory in use; drivers before 510 have only version 1.
MEMORY = (
    FastCall(
        "nvmlDeviceGetMemoryInfo_v2",
        bytes(MemoryV2(version=MEMORY_V2)),
        (AnswerCell("framebuffer_used_bytes", MemoryV2.used.offset, CellKind.UINT64),),
    ),
    FastCall(
        "nvmlDeviceGetMemoryInfo",
        bytes(Memory()),
        (AnswerCell("framebuffer_used_bytes", Memory.used.offset, CellKind.UINT64),),
    ),
)


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


def call_of_fields(fields: Sequence[FastField]) -> FastCall:
    """Return the one call that reads several fields; each has its own status and time."""
    size = ctypes.sizeof(FieldValue)
    return FastCall(
        "nvmlDeviceGetFieldValues",
        b"".join(bytes(FieldValue(field_id=field.field_id)) for field in fields),
        tuple(
            AnswerCell(field.metric, size * i, CellKind.FIELD, field.scale, field.is_counter)
            for i, field in enumerate(fields)
        ),
        (len(fields),),
    )
