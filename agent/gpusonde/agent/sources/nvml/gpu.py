"""What NVML shows of a host, GPUs and the MIG instances of those that are split: how each is read and described."""

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
    SourceStatistics,
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
    FastReader,
    FieldsReader,
    first_call,
    try_out,
)
from gpusonde.agent.sources.nvml.gpm_reader import GPM_METRICS, GpmReader
from gpusonde.agent.sources.nvml.library import Nvml, blank_reason, call_error
from gpusonde.agent.sources.nvml.slow_reader import FIELDS, GETTERS, MEMORY_GETTERS, SlowReader, choose_slow
from gpusonde.errors import CallRefusedError, DriverCallError
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
# No number at all for so long, and it is taken for lost: not every driver says "lost" (999, "unknown", was seen).
_SILENCE_S = 5.0
_LOST_CODE = 15
XID_METRIC = "xid_count"


class NvmlGpu:
    """Reads one GPU or MIG instance: GPM and fast getters every tick, slow ones at their own pace.

    Between two slow readings the last slow values are repeated, so that a column never alternates between value and
    blank; they are at most one slow interval and one tick old.

    Args:
        nvml: The library.
        device: What to read.
        slow_interval_s: Seconds between slow readings.
        slow_phase: Share of that interval, 0..1, by which the second slow reading comes early, so that the GPUs of a
            host do not all take theirs in one tick.
        statistics: Counts what is suspect.
        monotonic: Seconds, never set back.
    """

    def __init__(
        self,
        nvml: Nvml,
        device: Device,
        slow_interval_s: float,
        slow_phase: float,
        statistics: SourceStatistics,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.device = device
        self.lost = False
        self.missing: dict[str, MissingReason] = {}
        self._nvml = nvml
        self._slow_interval_s = slow_interval_s
        self._slow_lead_s = slow_phase * slow_interval_s
        self._statistics = statistics
        self._monotonic = monotonic
        self._gpm: GpmReader | None = None
        self._fast: list[FastReader] = []
        self._slow: list[SlowReader] = []
        self._slow_due_s = -math.inf
        self._counts_xids = False
        self._columns: Mapping[str, int] = {}
        self._template: list[float] = []
        self._standing: dict[int, MissingReason] = {}
        self._merged_of: tuple[dict[int, MissingReason], dict[int, MissingReason]] = ({}, {})
        self._merged: Mapping[int, MissingReason] = {}
        self._profiled: tuple[int, ...] = ()
        self._ratios: tuple[int, ...] = ()
        self._zeros: ZeroGuard | None = None
        self._heard_s = math.inf

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
        readers: list[FastReader | SlowReader] = [*self._fast, *self._slow]
        return {name for reader in readers for name in reader.metrics} | ({XID_METRIC} if self._counts_xids else set())

    def open(self) -> None:
        """Find out what it gives, and take its first GPM sample.

        Raises:
            GpuLostError: It is gone.
            SourceError: The driver is gone.
        """
        self.missing = {}
        self._slow_due_s = -math.inf
        is_part = self.device.instance is not None
        lasting = (*LASTING_REASONS, MissingReason.READ_ERROR) if is_part else LASTING_REASONS
        self._fast = self._choose_fast((MEMORY,) if is_part else ((UTILIZATION,), (SM_CLOCK,), MEMORY))
        if not is_part:
            self._choose_power()
        getters = MEMORY_GETTERS if is_part else (*GETTERS, *MEMORY_GETTERS)
        self._slow, missing = choose_slow(
            self._nvml, self.device.own_handle, getters, () if is_part else FIELDS, lasting
        )
        self.missing.update(missing)
        instance = self.device.instance
        gpm = GpmReader(
            self._nvml,
            self.device.handle,
            None if instance is None else instance.gpu_instance_id,
            self._monotonic,
            self._count_capped,
        )
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
            self.missing.update(self._gpm.choose())
            if self._gpm.metrics:
                # First: its value ends at the moment of the call, which is the time stamp's.
                self._fast.insert(0, self._gpm)
            else:
                self._gpm.close()
                self._gpm = None
        if self.device.instance is None:
            self._choose_counters()

    def count_xids(self) -> None:
        """Say that XIDs of it are reported."""
        self._counts_xids = True

    def bind(self, columns: Sequence[Metric], now_s: float) -> None:
        """Say which columns a row has."""
        self._columns = {m.name: i for i, m in enumerate(columns)}
        self._template = [math.nan] * len(columns)
        given = self.metrics
        self._standing = {
            i: self.missing.get(name, MissingReason.NOT_SUPPORTED)
            for name, i in self._columns.items()
            if name not in given
        }
        for reader in self._fast:
            reader.bind(self._columns)
        if self._counts_xids:
            self._template[self._columns[XID_METRIC]] = 0.0
        self._slow_due_s = -math.inf
        self._heard_s = now_s
        profiled = self._gpm.metrics if self._gpm is not None else ()
        ratios = self._gpm.ratios if self._gpm is not None else ()
        self._profiled = tuple(self._columns[name] for name in profiled)
        self._ratios = tuple(self._columns[name] for name in ratios)
        self._zeros = ZeroGuard(now_s) if "gpu_utilization" in given and ratios else None

    def missing_metrics(self) -> dict[str, MissingReason]:
        """Return every metric of the catalogue that it does not give, and why."""
        given = self.metrics
        return {m.name: self.missing.get(m.name, MissingReason.NOT_SUPPORTED) for m in METRICS if m.name not in given}

    def set_xids(self, count: int) -> None:
        """Put the number of XIDs into the following rows."""
        self._template[self._columns[XID_METRIC]] = float(count)

    def read(self, now_s: float) -> tuple[list[float], Mapping[int, MissingReason]]:
        """Return a row of values, NaN where there is none, and why.

        Raises:
            GpuLostError: It is gone.
            SourceError: The driver is gone.
        """
        blanks: dict[int, MissingReason] = {}
        if now_s >= self._slow_due_s - _ROUNDING_S:
            values = [math.nan] * len(self._template)
            self._read_fast(values, blanks)
            self._read_slow()
            for i, value in enumerate(self._template):
                if not math.isnan(value):
                    values[i] = value
            self._slow_due_s = now_s + self._slow_interval_s - self._slow_lead_s
            self._slow_lead_s = 0.0
        else:
            values = self._template.copy()
            self._read_fast(values, blanks)
        if blanks:
            self._notice_silence(blanks, now_s)
        else:
            self._heard_s = now_s
        if self._zeros is not None:
            self._distrust_zeros(values, blanks, now_s)
        if not blanks:
            return values, self._standing
        if (blanks, self._standing) != self._merged_of:
            # Mostly the same at every tick, and rows may share it: nobody writes to it.
            self._merged_of, self._merged = (blanks, self._standing), {**self._standing, **blanks}
        return values, self._merged

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

    def _choose_fast(self, wanted: Sequence[Sequence[FastCall]]) -> list[FastReader]:
        chosen: list[FastReader] = []
        for candidates in wanted:
            found = first_call(self._nvml, self.device.own_handle, candidates)
            if isinstance(found, dict):
                self.missing.update(found)
            else:
                chosen.append(found)
        return chosen

    def _choose_power(self) -> None:
        if not self._choose_fields((POWER_INSTANT,)):
            self._fast += self._choose_fast(((POWER,),))

    def _choose_counters(self) -> None:
        """Take PCIe rates from counters where GPM does not give them."""
        given = self.metrics
        self._choose_fields([field for field in PCIE_COUNTERS if field.metric not in given])

    def _choose_fields(self, wanted: Sequence[FastField]) -> bool:
        """Add fields to the one call that reads them all; return whether any is there."""
        before = [r for r in self._fast if isinstance(r, FieldsReader)]
        try:
            refused = {
                name: reason
                for field in wanted
                for name, reason in try_out(FieldsReader(self._nvml, self.device.own_handle, (field,))).items()
                if reason in LASTING_REASONS
            }
        except CallRefusedError as error:
            refused = {field.metric: blank_reason(error.code) for field in wanted}
        working = [field for field in wanted if field.metric not in refused]
        for name, reason in refused.items():
            self.missing.setdefault(name, reason)
        if not working:
            return False
        for field in working:
            self.missing.pop(field.metric, None)
        already = [field for reader in before for field in reader.fields]
        self._fast = [r for r in self._fast if r not in before]
        self._fast.append(FieldsReader(self._nvml, self.device.own_handle, [*already, *working]))
        return True

    def _read_fast(self, values: list[float], blanks: dict[int, MissingReason]) -> None:
        for reader in self._fast:
            reader.read(values, blanks)

    def _read_slow(self) -> None:
        # Rows that were given away refer to the reasons of their time.
        self._standing = dict(self._standing)
        for reader in self._slow:
            for name, answer in reader.read().items():
                column = self._columns.get(name)
                if column is None:
                    continue
                if isinstance(answer, MissingReason):
                    self._template[column], self._standing[column] = math.nan, answer
                else:
                    self._template[column] = answer
                    self._standing.pop(column, None)

    def _notice_silence(self, blanks: Mapping[int, MissingReason], now_s: float) -> None:
        if any(
            (column := self._columns.get(name)) is not None and column not in blanks
            for reader in self._fast
            for name in reader.metrics
        ):
            self._heard_s = now_s
        elif now_s - self._heard_s >= _SILENCE_S:
            raise call_error(self.key, _LOST_CODE, f"no values for {_SILENCE_S:g} s")

    def _distrust_zeros(self, values: list[float], blanks: dict[int, MissingReason], now_s: float) -> None:
        if self._zeros is None:
            return
        activity = math.nan
        for column in self._ratios:
            if values[column] > 0.0:
                activity = values[column]
                break
            if values[column] == 0.0:
                activity = 0.0
        if not self._zeros.observe(values[self._columns["gpu_utilization"]], activity, now_s):
            return
        self._statistics.suspect_ticks += 1
        for column in self._profiled:
            values[column] = math.nan
            blanks[column] = MissingReason.NO_DATA
        if self._zeros.due(now_s):
            log.warning("GPM of %s says zero although kernels run; its values are blank until they change", self.key)

    def _count_capped(self, ratios: int) -> None:
        self._statistics.capped_ratios += ratios
