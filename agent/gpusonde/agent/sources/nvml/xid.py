"""XID errors: the driver's own reports that something went wrong with a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from gpusonde.agent.sources.nvml.library import Nvml, NvmlCallError

_XID_CRITICAL_ERROR = 8  # nvmlEventTypeXidCriticalError
# A GPU in distress reports in bursts; the rest is read at the next tick.
_MAX_PER_POLL = 32


class XidWatcher:
    """Collects XID events of several GPUs without blocking.

    Args:
        nvml: The library.
    """

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._events: Any = None
        self._gpu_of_address: dict[int, int] = {}

    def open(self, handles: Mapping[int, Any]) -> Sequence[int]:
        """Register the GPUs (index -> handle) and return the indices of those that report XIDs."""
        registered = []
        try:
            self._events = self._nvml.call("nvmlEventSetCreate")
        except NvmlCallError:
            return []
        for gpu, handle in handles.items():
            try:
                self._nvml.call("nvmlDeviceRegisterEvents", handle, _XID_CRITICAL_ERROR, self._events)
            except NvmlCallError:
                continue
            self._gpu_of_address[_address(handle)] = gpu
            registered.append(gpu)
        return registered

    def poll(self) -> list[tuple[int, int]]:
        """Return ``(gpu, XID code)`` for what was reported since the last call."""
        if not self._gpu_of_address:
            return []
        reported: list[tuple[int, int]] = []
        for _ in range(_MAX_PER_POLL):
            try:
                event = self._nvml.call("nvmlEventSetWait_v2", self._events, 0)
            except NvmlCallError:
                # A timeout is the ordinary answer. A lost GPU is noticed by its readers.
                break
            gpu = self._gpu_of_address.get(_address(event.device))
            if gpu is not None and event.eventType == _XID_CRITICAL_ERROR:
                reported.append((gpu, int(event.eventData)))
        return reported

    def close(self) -> None:
        """Free the event set."""
        if self._events is not None:
            self._nvml.call("nvmlEventSetFree", self._events)
        self._events = None
        self._gpu_of_address = {}


def _address(handle: Any) -> int:
    """Return the device a handle points to; handles are opaque pointers, equal for equal devices."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
