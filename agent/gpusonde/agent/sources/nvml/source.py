"""``NvmlSource``: all GPUs and MIG instances of this host through NVML, with XID errors as the driver reports them."""

from __future__ import annotations

import ctypes
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpusonde.agent.inventory import CudaAttributes, read_cuda_attributes
from gpusonde.agent.sources.base import GpuEventKind, Reading, SourceEvent, SourceInventory, SourceStatistics
from gpusonde.agent.sources.nvml.fast_reader import EventData
from gpusonde.agent.sources.nvml.gpu import Device, NvmlGpu, describe_device, find_devices
from gpusonde.agent.sources.nvml.library import SUCCESS, Nvml
from gpusonde.agent.sources.nvml.sweep import Sweep
from gpusonde.errors import DriverCallError, GpuLostError, SourceError, SourceUnavailableError
from gpusonde.telemetry import METRICS, Metric

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
        except DriverCallError as error:
            log.info("XIDs are not reported: %s", error)
            return frozenset()
        self._arguments = (self._events, ctypes.byref(self._event), 0)
        addresses: dict[str, int] = {}
        for device in devices.values():
            if device.gpu_uuid in addresses:
                continue
            try:
                self._nvml.call("nvmlDeviceRegisterEvents", device.handle, _XID_CRITICAL_ERROR, self._events)
            except DriverCallError as error:
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
        except DriverCallError as error:
            log.debug("while closing: %s", error)


# GPM values of closer samples are invalid.
_GPM_SPACING_S = 0.1
_ROUNDING_S = 1e-3
# The driver keeps XIDs until they are asked for; a lost GPU asks at once.
_XID_INTERVAL_S = 0.5


class NvmlSource:
    """Reads every GPU that NVML shows, and every instance of those that are split.

    A GPU that is lost becomes an event and stays silent until it answers again; the others go on. What comes later, or
    is split anew, joins the inventory.

    Args:
        slow_interval_s: Seconds between readings of the slow metrics, and between looks for lost and new GPUs.
        interval_s: Seconds between ticks, for the inventory.
        load: Makes the library.
        cuda_attributes: Asks the CUDA driver for the attributes that NVML does not have.
        wall_ns: Unix time in nanoseconds.
        monotonic: Seconds, never set back.
        sleep: Waits for seconds.
    """

    name = "nvml"

    def __init__(
        self,
        *,
        slow_interval_s: float = 10.0,
        interval_s: float = 0.1,
        load: Callable[[], Nvml] = Nvml.load,
        cuda_attributes: Callable[[], CudaAttributes] = read_cuda_attributes,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.statistics = SourceStatistics()
        self._slow_interval_s = slow_interval_s
        self._interval_s = interval_s
        self._load = load
        self._cuda_attributes = cuda_attributes
        self._wall_ns = wall_ns
        self._monotonic = monotonic
        self._sleep = sleep
        self._nvml: Nvml | None = None
        self._cuda: CudaAttributes = {}
        self._gpus: list[NvmlGpu] = []
        self._joining: list[NvmlGpu] = []
        self._joining_due_s = 0.0
        self._columns: tuple[Metric, ...] = ()
        self._xids: XidWatcher | None = None
        self._xid_counts: dict[str, int] = {}
        self._refused: dict[int, str] = {}
        self._look_due_s = 0.0
        self._xids_due_s = -math.inf
        self._sweep: Sweep | None = None
        self._slow_due_s = -math.inf
        # Until then a reading is the calls of every tick and nothing more.
        self._more_due_s = -math.inf

    def open(self) -> SourceInventory:
        """Find the GPUs and what each of them gives.

        Raises:
            SourceUnavailableError: No driver, no GPU, or none that answers.
        """
        self._nvml = nvml = self._load()
        try:
            return self._open(nvml)
        except BaseException:
            self.close()
            raise

    def read(self, deadline_s: float) -> Reading:
        """Read every GPU once.

        Raises:
            SourceError: The driver is gone.
        """
        sweep = self._sweep
        if sweep is not None and deadline_s < self._more_due_s:
            lost = sweep.read(deadline_s)
            if not lost:
                return Reading(sweep.keep(), tick_count=sweep.present_count)
            return self._read_more(sweep, lost, deadline_s, [], None)
        events: list[SourceEvent] = []
        if deadline_s >= self._xids_due_s - _ROUNDING_S:
            self._xids_due_s = deadline_s + _XID_INTERVAL_S
            events = self._poll_xids()
        inventory = self._take_joined(deadline_s, events) if self._joining else None
        sweep = self._sweep
        if sweep is None:
            raise SourceError("the source is not open: call open() first")
        return self._read_more(sweep, sweep.read(deadline_s), deadline_s, events, inventory)

    def _read_more(
        self,
        sweep: Sweep,
        lost: Mapping[int, GpuLostError],
        now_s: float,
        events: list[SourceEvent],
        inventory: SourceInventory | None,
    ) -> Reading:
        """Follow losses, read what is read more seldom where that is due, and look for GPUs."""
        for index, error in lost.items():
            self._lose(index, str(error), events)
        if now_s >= self._slow_due_s - _ROUNDING_S:
            self._read_slow(sweep, now_s, events)
        if self._nvml is not None and now_s >= self._look_due_s - _ROUNDING_S:
            # Events stand before the ticks of their reading, and nothing comes after a loss.
            self._look_again(self._nvml, now_s, events)
        due_s = min(self._xids_due_s, self._slow_due_s, self._look_due_s)
        self._more_due_s = -math.inf if self._joining else due_s - _ROUNDING_S
        return Reading(sweep.keep(), tuple(events), inventory=inventory)

    def progress(self) -> None:
        """Hardware has no end."""

    def close(self) -> None:
        """Release the GPUs in reverse order, then the library."""
        nvml, self._nvml = self._nvml, None
        if nvml is None:
            return
        gpus, self._gpus, self._joining = [*self._gpus, *self._joining], [], []
        xids, self._xids, self._sweep = self._xids, None, None
        for release in (*(gpu.close for gpu in reversed(gpus)), *([xids.close] if xids else []), nvml.close):
            try:
                release()
            except DriverCallError as error:
                log.debug("while closing: %s", error)

    def _open(self, nvml: Nvml) -> SourceInventory:
        devices = self._find(nvml)
        self._joining = self._open_devices(nvml, devices)
        if not self._joining:
            if not devices and not self._refused:
                raise SourceUnavailableError(
                    "the NVIDIA driver shows no GPU: check 'nvidia-smi -L', and in a container that GPUs are passed to "
                    "it"
                )
            raise SourceUnavailableError(
                f"none of the {len(devices) or len(self._refused)} GPUs answers: see 'nvidia-smi' and the kernel's log"
            )
        self._sleep(_GPM_SPACING_S)
        self._cuda = self._cuda_attributes()
        self._xids = XidWatcher(nvml)
        now_s = self._monotonic()
        self._look_due_s = now_s + self._slow_interval_s
        self._gpus = [gpu for gpu in self._joining if self._choose(gpu)]
        self._joining = []
        return self._make_inventory(nvml, now_s)

    def _find(self, nvml: Nvml) -> list[Device]:
        """Return the devices that answer; what does not is told once, and again when it refuses in another way."""
        refused: dict[int, str] = {}
        known = {gpu.device.index for gpu in self._gpus}

        def note(index: int, error: DriverCallError) -> None:
            refused[index] = str(error)
            if self._refused.get(index) != refused[index] and index not in known:
                log.warning("GPU %d cannot be sampled (%s); going on with the others", index, error)

        devices = find_devices(nvml, note)
        self._refused = refused
        return devices

    def _open_devices(self, nvml: Nvml, devices: list[Device]) -> list[NvmlGpu]:
        opened = []
        for number, device in enumerate(devices):
            phase = number / len(devices)
            gpu = NvmlGpu(nvml, device, self._slow_interval_s, phase, self._monotonic)
            try:
                gpu.open()
            except DriverCallError as error:
                log.warning("%s cannot be sampled (%s); going on with the others", gpu.key, error)
                continue
            opened.append(gpu)
        return opened

    def _choose(self, gpu: NvmlGpu) -> bool:
        try:
            gpu.choose()
        except DriverCallError as error:
            log.warning("%s cannot be sampled (%s); going on with the others", gpu.key, error)
            return False
        return True

    def _make_inventory(self, nvml: Nvml, now_s: float) -> SourceInventory:
        """Say what the GPUs give; the columns only ever grow."""
        self._watch_xids()
        names = {m.name for m in self._columns}.union(*(gpu.metrics for gpu in self._gpus))
        self._columns = tuple(m for m in METRICS if m.name in names)
        self._make_sweep(nvml, now_s)
        driver = nvml.text("nvmlSystemGetDriverVersion")
        return SourceInventory(
            source="gpm" if any(gpu.has_gpm for gpu in self._gpus) else "nvml",
            gpus=tuple(
                describe_device(
                    nvml, gpu.device, driver, self._cuda.get(gpu.device.gpu_uuid, {}), gpu.missing_metrics()
                )
                for gpu in self._gpus
            ),
            metrics=self._columns,
            interval_s=self._interval_s,
        )

    def _make_sweep(self, nvml: Nvml, now_s: float) -> None:
        """Lay out the calls of every tick anew."""
        if self._sweep is not None:
            self._sweep.hand_over()
        swept = [gpu.bind(index, self._columns, now_s) for index, gpu in enumerate(self._gpus)]
        columns = {m.name: i for i, m in enumerate(self._columns)}
        self._sweep = Sweep(nvml, swept, columns, self.statistics, self._wall_ns, self._monotonic)
        self._slow_due_s = self._more_due_s = -math.inf
        for index, gpu in enumerate(self._gpus):
            if gpu.key in self._xid_counts:
                gpu.set_xids(self._xid_counts[gpu.key])
            self._sweep.set_slow(index, *gpu.slow_values)
            if gpu.lost:
                self._sweep.leave(index)

    def _read_slow(self, sweep: Sweep, now_s: float, events: list[SourceEvent]) -> None:
        """Read the slow values of the GPUs whose time has come."""
        for index, gpu in enumerate(self._gpus):
            if gpu.lost or now_s < gpu.slow_due_s - _ROUNDING_S:
                continue
            try:
                gpu.read_slow(now_s)
            except GpuLostError as error:
                self._lose(index, str(error), events)
            else:
                sweep.set_slow(index, *gpu.slow_values)
        self._slow_due_s = min((gpu.slow_due_s for gpu in self._gpus if not gpu.lost), default=math.inf)

    def _watch_xids(self) -> None:
        if self._xids is None:
            return
        watched = self._xids.watch({i: gpu.device for i, gpu in enumerate(self._gpus) if not gpu.lost})
        for index in watched:
            self._gpus[index].count_xids()
            self._xid_counts.setdefault(self._gpus[index].key, 0)

    def _poll_xids(self) -> list[SourceEvent]:
        reported = self._xids.poll() if self._xids is not None else ()
        if not reported:
            return []
        now_ns = self._wall_ns()
        for index, code in reported:
            gpu = self._gpus[index]
            self._xid_counts[gpu.key] = self._xid_counts.get(gpu.key, 0) + 1
            gpu.set_xids(self._xid_counts[gpu.key])
            if self._sweep is not None:
                self._sweep.set_slow(index, *gpu.slow_values)
            log.error("GPU %s reports XID %d", gpu.key, code)
        return [SourceEvent(index, now_ns, GpuEventKind.XID, code) for index, code in reported]

    def _lose(self, index: int, why: str, events: list[SourceEvent]) -> None:
        # The XID that tells why is still in the event set, which is made anew without the GPU.
        events += self._poll_xids()
        gpu = self._gpus[index]
        gpu.lost = True
        events.append(SourceEvent(index, self._wall_ns(), GpuEventKind.LOST))
        log.error("GPU %s is lost (%s); going on with the others and looking for it", gpu.key, why)
        if self._sweep is not None:
            self._sweep.leave(index)
        try:
            gpu.close()
        except DriverCallError as failure:
            log.debug("while closing the lost GPU: %s", failure)
        self._watch_xids()

    def _look_again(self, nvml: Nvml, now_s: float, events: list[SourceEvent]) -> None:
        """Look for GPUs that came back, came late or were split anew; they join at the next tick."""
        self._look_due_s = now_s + self._slow_interval_s
        try:
            devices = {device.key: device for device in self._find(nvml)}
        except DriverCallError as error:
            log.debug("looking for GPUs: %s", error)
            return
        known = {gpu.key: gpu for gpu in self._gpus}
        for index, gpu in enumerate(self._gpus):
            if gpu.key not in devices and gpu.device.instance is not None and not gpu.lost:
                self._lose(index, "the MIG instance is gone", events)
        back = [gpu for gpu in self._gpus if gpu.lost and gpu.key in devices and gpu.reopen(devices[gpu.key])]
        new = self._open_devices(nvml, [device for key, device in devices.items() if key not in known])
        self._joining = [*back, *new]
        # A GPM value needs a sample 100 ms before.
        self._joining_due_s = now_s + _GPM_SPACING_S

    def _take_joined(self, now_s: float, events: list[SourceEvent]) -> SourceInventory | None:
        """Let the GPUs in that were found at the last look; return the inventory when it has changed."""
        if self._nvml is None or now_s < self._joining_due_s - _ROUNDING_S:
            return None
        joining, self._joining = self._joining, []
        for gpu in joining:
            if not self._choose(gpu):
                continue
            if gpu in self._gpus:
                gpu.lost = False
                events.append(SourceEvent(self._gpus.index(gpu), self._wall_ns(), GpuEventKind.RECOVERED))
                log.warning("GPU %s answers again", gpu.key)
            else:
                self._gpus.append(gpu)
                log.warning("GPU %s has come", gpu.key)
        self.statistics.inventories += 1
        return self._make_inventory(self._nvml, now_s)
