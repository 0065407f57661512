"""XID errors: the driver's own reports that something went wrong with a GPU."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Mapping
from typing import Any

from gpusonde.agent.sources.nvml.device import Device
from gpusonde.agent.sources.nvml.library import SUCCESS, Nvml, NvmlCallError
from gpusonde.agent.sources.nvml.readers.layouts import EventData

log = logging.getLogger(__name__)

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
        self._entity_of: dict[tuple[int, int | None], int] = {}
        self._wait: Callable[..., int] | None = None
        self._event = EventData()
        self._arguments: tuple[Any, ...] = ()

    def watch(self, devices: Mapping[int, Device]) -> frozenset[int]:
        """Register GPUs (index in the inventory -> device) instead of those before.

        An XID of a MIG instance is told of the instance when the driver says which one it was, else of its GPU. The set
        is made anew because one lost GPU in it makes every wait fail.

        Returns:
            The indices of those that report XIDs.
        """
        self.close()
        try:
            self._events = self._nvml.call("nvmlEventSetCreate")
            self._wait = self._nvml.function("nvmlEventSetWait_v2")
        except NvmlCallError as error:
            log.info("XIDs are not reported: %s", error)
            return frozenset()
        self._arguments = (self._events, ctypes.byref(self._event), 0)
        addresses: dict[str, int] = {}
        for device in devices.values():
            if device.gpu_uuid in addresses:
                continue
            try:
                self._nvml.call("nvmlDeviceRegisterEvents", device.handle, _XID_CRITICAL_ERROR, self._events)
            except NvmlCallError as error:
                log.info("XIDs of %s are not reported: %s", device.gpu_uuid, error)
                continue
            addresses[device.gpu_uuid] = ctypes.cast(device.handle, ctypes.c_void_p).value or 0
        for index, device in devices.items():
            if device.gpu_uuid in addresses:
                instance = None if device.instance is None else device.instance.gpu_instance_id
                self._entity_of.setdefault((addresses[device.gpu_uuid], instance), index)
        return frozenset(i for i, device in devices.items() if device.gpu_uuid in addresses)

    def poll(self) -> list[tuple[int, int]]:
        """Return ``(index, XID code)`` for what was reported since the last call."""
        reported: list[tuple[int, int]] = []
        if not self._entity_of or self._wait is None:
            return reported
        event = self._event
        # A timeout is the ordinary answer. A lost GPU is noticed by its readers.
        while len(reported) < _MAX_PER_POLL and self._wait(*self._arguments) == SUCCESS:
            address = event.device or 0
            entity = self._entity_of.get((address, event.gpu_instance_id), self._entity_of.get((address, None)))
            if entity is not None and event.event_type == _XID_CRITICAL_ERROR:
                reported.append((entity, int(event.event_data)))
        return reported

    def close(self) -> None:
        """Free the event set."""
        events, self._events, self._wait, self._entity_of = self._events, None, None, {}
        if events is None:
            return
        try:
            self._nvml.call("nvmlEventSetFree", events)
        except NvmlCallError as error:
            log.debug("while closing: %s", error)
