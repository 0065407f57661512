"""C layouts of ``nvml.h`` that are read every tick.

pynvml has them too, but its structures convert on every attribute access in Python, which costs more than the call. The
large request of GPM is pynvml's own (its length is the library's); only a view on it is made here.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

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
