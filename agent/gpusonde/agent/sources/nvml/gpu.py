"""What NVML shows of a host: GPUs, MIG instances of those that are split, and which processes compute on them."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpusonde.agent.inventory import describe_gpu
from gpusonde.agent.sources.base import (
    LASTING_REASONS,
    GpuDescription,
    StaticAttribute,
    StaticOrigin,
    ZeroGuard,
)
from gpusonde.agent.sources.nvml.fast_reader import (
    MEMORY,
    PCIE_COUNTERS,
    POWER,
    POWER_INSTANT,
    SM_CLOCK,
    UTILIZATION,
    FastCall,
    FastField,
    call_of_fields,
)
from gpusonde.agent.sources.nvml.gpm_reader import GPM_METRICS, GpmReader
from gpusonde.agent.sources.nvml.library import Nvml, blank_reason
from gpusonde.agent.sources.nvml.raw_ticks import GpuMemory
from gpusonde.agent.sources.nvml.slow_reader import CALLS, FIELDS, MEMORY_CALLS, SlowReader, choose_slow
from gpusonde.agent.sources.nvml.sweep import SweptGpu, try_out
from gpusonde.errors import CallRefusedError, DriverCallError, SourceError
from gpusonde.telemetry import METRICS, Metric, MissingReason


@dataclass(frozen=True)
class MigInstance:
    """One MIG device: a compute instance inside a GPU instance.

    Attributes:
        handle: The device handle of the instance.
        uuid: Its UUID, which jobs see in CUDA_VISIBLE_DEVICES.
        gpu_instance_id: The GPU instance, which owns memory and profiling counters.
        compute_instance_id: The compute instance inside it; usually the only one.
    """

    handle: Any
    uuid: str
    gpu_instance_id: int
    compute_instance_id: int


def is_split(nvml: Nvml, handle: Any) -> bool:
    """Whether a GPU is in MIG mode.

    Raises:
        GpuLostError: The GPU is gone.
    """
    try:
        current, _pending = nvml.call("nvmlDeviceGetMigMode", handle)
    except CallRefusedError:
        # Boards and drivers without MIG refuse the question.
        return False
    return bool(current)


def mig_instances(nvml: Nvml, handle: Any) -> tuple[MigInstance, ...]:
    """Return the MIG devices of a GPU in MIG mode, in the driver's order.

    Raises:
        GpuLostError: The GPU is gone.
    """
    found = []
    try:
        slots = int(nvml.call("nvmlDeviceGetMaxMigDeviceCount", handle))
    except CallRefusedError:
        return ()
    for slot in range(slots):
        try:
            instance = nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)
            found.append(
                MigInstance(
                    instance,
                    nvml.text("nvmlDeviceGetUUID", instance),
                    int(nvml.call("nvmlDeviceGetGpuInstanceId", instance)),
                    int(nvml.call("nvmlDeviceGetComputeInstanceId", instance)),
                )
            )
        except CallRefusedError:
            # Slots are sparse: an empty one is NOT_FOUND.
            continue
    return tuple(found)


@dataclass(frozen=True)
class Device:
    """A GPU or a MIG instance.

    Attributes:
        handle: Handle of the whole GPU.
        gpu_uuid: UUID of the whole GPU.
        index: The driver's index of the GPU.
        instance: The MIG instance; None for the whole GPU.
    """

    handle: Any
    gpu_uuid: str
    index: int
    instance: MigInstance | None = None

    @property
    def key(self) -> str:
        """Its name in the fleet."""
        return self.gpu_uuid if self.instance is None else self.instance.uuid

    @property
    def own_handle(self) -> Any:
        """Handle of the instance, or of the GPU."""
        return self.handle if self.instance is None else self.instance.handle


def find_devices(nvml: Nvml, refused: Callable[[int, DriverCallError], None]) -> list[Device]:
    """Return the GPUs that answer, each before its MIG instances.

    Args:
        nvml: The library.
        refused: Told the index of a GPU that does not answer, and how it refused.

    Raises:
        DriverCallError: Not even their number is told.
        SourceError: The driver is gone.
    """
    devices: list[Device] = []
    for index in range(int(nvml.call("nvmlDeviceGetCount"))):
        try:
            handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
            gpu = Device(handle, nvml.text("nvmlDeviceGetUUID", handle), index)
            instances = mig_instances(nvml, handle) if is_split(nvml, handle) else ()
        except DriverCallError as error:
            refused(index, error)
            continue
        devices.append(gpu)
        devices += [Device(handle, gpu.gpu_uuid, index, instance) for instance in instances]
    return devices


log = logging.getLogger(__name__)

_MEBIBYTE = 1 << 20


def describe_device(
    nvml: Nvml, device: Device, driver_version: str, cuda: Mapping[str, float], missing: Mapping[str, MissingReason]
) -> GpuDescription:
    """Return everything static about one GPU, or about one MIG instance and its part of the GPU.

    Args:
        nvml: The library.
        device: Which.
        driver_version: Version of the driver.
        cuda: The whole GPU's attributes from the CUDA driver.
        missing: What it cannot give, and why.
    """
    whole = describe_gpu(nvml, device.handle, device.gpu_uuid, device.index, driver_version, cuda, missing)
    if device.instance is None:
        return whole
    part = {"mig_gpu_instance_id": device.instance.gpu_instance_id}
    part["mig_compute_instance_id"] = device.instance.compute_instance_id
    try:
        told = nvml.call("nvmlDeviceGetAttributes_v2", device.own_handle)
        part |= {
            "sm_count": int(told.multiprocessorCount),
            "mig_gpu_instance_slices": int(told.gpuInstanceSliceCount),
            "mig_compute_instance_slices": int(told.computeInstanceSliceCount),
            "memory_bytes": int(told.memorySizeMB) * _MEBIBYTE,
        }
    except DriverCallError as error:
        log.debug("attributes of %s: %s", device.key, error)
    # What belongs to the board as a whole would be wrong for a part of it.
    shared = {"compute_capability", "max_sm_clock_mhz", "max_memory_clock_mhz", "warp_size", "cores_per_sm"}
    static = [a for a in whole.static_attributes if a.name in shared]
    static += [StaticAttribute(name, float(value), StaticOrigin.NVML) for name, value in part.items()]
    try:
        product_name = nvml.text("nvmlDeviceGetName", device.own_handle)
    except DriverCallError:
        product_name = whole.product_name
    return dataclasses.replace(
        whole,
        mig_uuid=device.key,
        product_name=product_name,
        framebuffer_bytes=part.get("memory_bytes", 0),
        static_attributes=tuple(static),
    )


# Deadlines are sums of floats; a tick that is due to the millisecond is due.
_ROUNDING_S = 1e-3
XID_METRIC = "xid_count"


class NvmlGpu:
    """One GPU or MIG instance: what is read of it every tick, and its slow values at their own pace.

    Between two slow readings the last slow values are repeated, so that a column never alternates between value and
    blank; they are at most one slow interval and one tick old.

    Args:
        nvml: The library.
        device: What to read.
        slow_interval_s: Seconds between slow readings.
        slow_phase: Share of that interval, 0..1, by which the second slow reading comes early, so that the GPUs of a
            host do not all take theirs in one tick.
        monotonic: Seconds, never set back.

    Attributes:
        slow_due_s: When :meth:`read_slow` is next to be called.
    """

    def __init__(
        self,
        nvml: Nvml,
        device: Device,
        slow_interval_s: float,
        slow_phase: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.device = device
        self.lost = False
        self.missing: dict[str, MissingReason] = {}
        self.slow_due_s = -math.inf
        self._nvml = nvml
        self._slow_interval_s = slow_interval_s
        self._slow_lead_s = slow_phase * slow_interval_s
        self._monotonic = monotonic
        self._gpm: GpmReader | None = None
        self._calls: list[FastCall] = []
        self._fields: list[FastField] = []
        self._slow: list[SlowReader] = []
        self._counts_xids = False
        self._columns: Mapping[str, int] = {}
        self._values: list[float] = []
        self._standing: dict[int, MissingReason] = {}
        self._memory = GpuMemory()

    @property
    def key(self) -> str:
        """Its name in the fleet."""
        return self.device.key

    @property
    def has_gpm(self) -> bool:
        """Whether profiling metrics come from GPM."""
        return self._gpm is not None

    @property
    def metrics(self) -> set[str]:
        """Names of what it gives."""
        fast = {name for call in self._fast_calls for name in call.metrics}
        slow = {name for reader in self._slow for name in reader.metrics}
        gpm = {m.name for m in self._gpm.metrics} if self._gpm is not None else set()
        return fast | slow | gpm | ({XID_METRIC} if self._counts_xids else set())

    @property
    def _fast_calls(self) -> list[FastCall]:
        return [*self._calls, *([call_of_fields(self._fields)] if self._fields else [])]

    def open(self) -> None:
        """Find out what it gives, and take its first GPM sample.

        Raises:
            GpuLostError: It is gone.
            SourceError: The driver is gone.
        """
        self.missing = {}
        self.slow_due_s = -math.inf
        self._fields = []
        is_part = self.device.instance is not None
        lasting = (*LASTING_REASONS, MissingReason.READ_ERROR) if is_part else LASTING_REASONS
        self._calls = self._choose_calls((MEMORY,) if is_part else ((UTILIZATION,), (SM_CLOCK,), MEMORY))
        if not is_part and not self._choose_fields((POWER_INSTANT,)):
            self._calls += self._choose_calls(((POWER,),))
        slow_calls = MEMORY_CALLS if is_part else (*CALLS, *MEMORY_CALLS)
        self._slow, missing = choose_slow(
            self._nvml, self.device.own_handle, slow_calls, () if is_part else FIELDS, lasting
        )
        self.missing.update(missing)
        instance = self.device.instance
        gpm = GpmReader(self._nvml, self.device.handle, None if instance is None else instance.gpu_instance_id)
        try:
            gpm.open()
        except CallRefusedError as error:
            refused = blank_reason(error.code) is MissingReason.NO_PERMISSION
            log.log(logging.WARNING if refused else logging.INFO, "%s gives no GPM metrics: %s", self.key, error)
            self.missing.update((m.name, blank_reason(error.code)) for m in GPM_METRICS)
        else:
            self._gpm = gpm

    def choose(self) -> None:
        """Keep the GPM metrics that it gives, and look for others of the rest; call at least 100 ms after :meth:`open`.

        Raises:
            GpuLostError: It is gone.
            SourceError: The driver is gone.
        """
        if self._gpm is not None:
            missing = self._refusals((), self._gpm)
            self.missing.update(missing)
            self._gpm.keep_only(missing)
            if not self._gpm.metrics:
                self._gpm.close()
                self._gpm = None
        if self.device.instance is None:
            # PCIe rates from counters where GPM does not give them.
            given = self.metrics
            self._choose_fields([field for field in PCIE_COUNTERS if field.metric not in given])

    def count_xids(self) -> None:
        """Say that XIDs of it are reported."""
        self._counts_xids = True

    def bind(self, index: int, columns: Sequence[Metric], now_s: float) -> SweptGpu:
        """Return what is to be read every tick.

        Args:
            index: Its index in the inventory.
            columns: The columns of its values.
            now_s: The monotonic clock.
        """
        self._columns = {m.name: i for i, m in enumerate(columns)}
        self._values = [math.nan] * len(columns)
        given = self.metrics
        self._standing = {
            i: self.missing.get(name, MissingReason.NOT_SUPPORTED)
            for name, i in self._columns.items()
            if name not in given
        }
        if self._counts_xids:
            self._values[self._columns[XID_METRIC]] = 0.0
        self.slow_due_s = -math.inf
        guarded = "gpu_utilization" in given and self._gpm is not None and bool(self._gpm.ratios)
        self._memory.zeros = ZeroGuard(now_s) if guarded else None
        self._memory.on_zeros = self._warn_of_zeros
        return SweptGpu(index, self.key, self.device.own_handle, self._fast_calls, self._gpm, self._memory, now_s)

    def missing_metrics(self) -> dict[str, MissingReason]:
        """Return every metric of the catalogue that it does not give, and why."""
        given = self.metrics
        return {m.name: self.missing.get(m.name, MissingReason.NOT_SUPPORTED) for m in METRICS if m.name not in given}

    def set_xids(self, count: int) -> None:
        """Put the number of XIDs into the slow values."""
        self._values[self._columns[XID_METRIC]] = float(count)

    @property
    def slow_values(self) -> tuple[list[float], Mapping[int, MissingReason]]:
        """What every tick repeats, NaN elsewhere, and why a column has nothing."""
        return self._values, self._standing

    def read_slow(self, now_s: float) -> None:
        """Read the slow values anew.

        Raises:
            GpuLostError: It is gone.
            SourceError: The driver is gone.
        """
        # Ticks that were given away refer to the reasons of their time.
        self._standing = dict(self._standing)
        for reader in self._slow:
            for name, answer in reader.read().items():
                column = self._columns.get(name)
                if column is None:
                    continue
                if isinstance(answer, MissingReason):
                    self._values[column], self._standing[column] = math.nan, answer
                else:
                    self._values[column] = answer
                    self._standing.pop(column, None)
        self.slow_due_s = now_s + self._slow_interval_s - self._slow_lead_s
        self._slow_lead_s = 0.0

    def reopen(self, device: Device) -> bool:
        """Try to get a lost GPU back; return whether it answers again. :meth:`choose` and :meth:`bind` follow."""
        self.device = device
        try:
            self.open()
        except DriverCallError as error:
            log.debug("%s is still lost: %s", self.key, error)
            return False
        return True

    def close(self) -> None:
        """Free what the library holds for it.

        Raises:
            DriverCallError: It refused.
        """
        gpm, self._gpm = self._gpm, None
        if gpm is not None:
            gpm.close()

    def _refusals(self, calls: Sequence[FastCall], gpm: GpmReader | None = None) -> dict[str, MissingReason]:
        """Read once and return the metrics that are missing for good."""
        gpu = SweptGpu(0, self.key, self.device.own_handle, calls, gpm)
        refused = try_out(self._nvml, gpu, self._monotonic)
        return {name: reason for name, reason in refused.items() if reason in LASTING_REASONS}

    def _choose_calls(self, wanted: Sequence[Sequence[FastCall]]) -> list[FastCall]:
        """Return the first of each candidates that gives something that lasts."""
        chosen: list[FastCall] = []
        for candidates in wanted:
            refused: dict[str, MissingReason] = {}
            for call in candidates:
                try:
                    self._nvml.function(call.function)
                except DriverCallError as error:
                    refused = dict.fromkeys(call.metrics, blank_reason(error.code))
                    continue
                refused = self._refusals((call,))
                if not refused:
                    chosen.append(call)
                    break
            self.missing.update(refused)
        return chosen

    def _choose_fields(self, wanted: Sequence[FastField]) -> bool:
        """Add fields to the one call that reads them all; return whether any is there."""
        try:
            self._nvml.function("nvmlDeviceGetFieldValues")
        except CallRefusedError as error:
            refused = {field.metric: blank_reason(error.code) for field in wanted}
        else:
            refused = {}
            for field in wanted:
                refused |= self._refusals((call_of_fields((field,)),))
        working = [field for field in wanted if field.metric not in refused]
        for name, reason in refused.items():
            self.missing.setdefault(name, reason)
        for field in working:
            self.missing.pop(field.metric, None)
        self._fields += working
        return bool(working)

    def _warn_of_zeros(self) -> None:
        log.warning("GPM of %s says zero although kernels run; its values are blank until they change", self.key)


class NvmlProcesses:
    """Asks the driver, whichever source samples: DCGM has no list of running processes without recording all of them.

    The library is initialised on the first question and apart from the sampler's, which it does not touch: NVML counts
    its users. Each question looks for the GPUs anew, so that nothing has to be told when they come and go.

    Args:
        load: Makes the library.
    """

    def __init__(self, load: Callable[[], Nvml] = Nvml.load) -> None:
        self._load = load
        self._nvml: Nvml | None = None

    def compute_processes(self) -> dict[str, tuple[int, ...]]:
        """See :class:`gpusonde.agent.sources.base.ProcessReader`; empty where there is no driver."""
        try:
            if self._nvml is None:
                self._nvml = self._load()
            return self._ask(self._nvml)
        except SourceError as error:
            log.debug("no processes of GPUs: %s", error)
            self.close()
            return {}

    def close(self) -> None:
        """Release the library; safe to call twice and before the first question."""
        nvml, self._nvml = self._nvml, None
        if nvml is None:
            return
        try:
            nvml.close()
        except SourceError as error:
            log.debug("while closing: %s", error)

    def _ask(self, nvml: Nvml) -> dict[str, tuple[int, ...]]:
        processes: dict[str, tuple[int, ...]] = {}
        for index in range(int(nvml.call("nvmlDeviceGetCount"))):
            try:
                handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
                if is_split(nvml, handle):
                    for instance in mig_instances(nvml, handle):
                        _add(nvml, instance.handle, instance.uuid, processes)
                else:
                    _add(nvml, handle, nvml.text("nvmlDeviceGetUUID", handle), processes)
            except DriverCallError as error:
                log.debug("processes of GPU %d: %s", index, error)
        return processes


def _add(nvml: Nvml, handle: Any, key: str, processes: dict[str, tuple[int, ...]]) -> None:
    try:
        running = nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", handle)
    except DriverCallError as error:
        log.debug("processes of %s: %s", key, error)
        return
    processes[key] = tuple(sorted({int(process.pid) for process in running}))
