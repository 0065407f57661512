"""``NvmlSource``: all GPUs of this host through NVML."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import numpy as np

from gpusonde.agent.inventory import CudaAttributes, describe_gpu, read_cuda_attributes
from gpusonde.agent.sources.base import (
    GpuDescription,
    GpuEvent,
    GpuEventKind,
    GpuTicks,
    Reading,
    SourceInventory,
    SourceStatistics,
    SourceUnavailableError,
)
from gpusonde.agent.sources.nvml.gpu import NvmlGpu
from gpusonde.agent.sources.nvml.library import GpuLostError, Nvml, NvmlCallError
from gpusonde.agent.sources.nvml.xid import XidWatcher
from gpusonde.telemetry import METRICS, BlankReason, Metric

log = logging.getLogger(__name__)

# GPM values of closer samples are invalid.
_GPM_SPACING_S = 0.1
_XID_METRIC = "xid_count"


class NvmlSource:
    """Reads every GPU that NVML shows.

    A GPU that is lost becomes an event and stays silent until it answers again; the others go on.

    Args:
        slow_interval_s: Seconds between readings of the slow metrics.
        interval_s: Seconds between ticks, for the inventory.
        load: Makes the library.
        cuda_attributes: Asks the CUDA driver for the attributes that NVML does not have.
        wall_ns: Unix time in nanoseconds.
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
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._slow_interval_s = slow_interval_s
        self._interval_s = interval_s
        self._load = load
        self._cuda_attributes = cuda_attributes
        self._wall_ns = wall_ns
        self._sleep = sleep
        self.statistics = SourceStatistics()
        self._nvml: Nvml | None = None
        self._gpus: list[NvmlGpu] = []
        self._columns: tuple[Metric, ...] = ()
        self._xids: XidWatcher | None = None
        self._xid_counts: dict[int, int] = {}
        self._retry_due_s: dict[int, float] = {}

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
            SourceFailedError: The driver is gone.
        """
        events = self._poll_xids()
        ticks = []
        for index, gpu in enumerate(self._gpus):
            if gpu.lost:
                # Sampled again from the next tick on: a GPM value needs 100 ms after the first sample.
                self._try_recover(index, gpu, deadline_s, events)
                continue
            stamp_ns = self._wall_ns() // 1000 * 1000
            try:
                values = gpu.read(deadline_s)
            except GpuLostError as error:
                self._lose(index, gpu, error, stamp_ns, deadline_s, events)
                continue
            if index in self._xid_counts:
                values[_XID_METRIC] = float(self._xid_counts[index])
            ticks.append(self._ticks(index, stamp_ns, values))
        return Reading(tuple(ticks), tuple(events))

    def progress(self) -> None:
        """Hardware has no end."""

    def close(self) -> None:
        """Release the GPUs in reverse order, then the library."""
        nvml, self._nvml = self._nvml, None
        if nvml is None:
            return
        for release in (*(gpu.close for gpu in reversed(self._gpus)), *([self._xids.close] if self._xids else [])):
            try:
                release()
            except NvmlCallError as error:
                log.debug("while closing: %s", error)
        self._gpus, self._xids = [], None
        try:
            nvml.close()
        except NvmlCallError as error:
            log.debug("while closing: %s", error)

    def _open(self, nvml: Nvml) -> SourceInventory:
        count = int(nvml.call("nvmlDeviceGetCount"))
        if count == 0:
            raise SourceUnavailableError(
                "the NVIDIA driver shows no GPU: check 'nvidia-smi -L', and in a container that GPUs are passed to it"
            )
        handles = self._open_gpus(nvml, count)
        if not self._gpus:
            raise SourceUnavailableError(f"none of the {count} GPUs answers: see 'nvidia-smi' and the kernel's log")
        self._sleep(_GPM_SPACING_S)
        for gpu in self._gpus:
            gpu.choose_gpm_metrics()
        self._xids = XidWatcher(nvml)
        self._xid_counts = dict.fromkeys(self._xids.open(dict(enumerate(gpu.handle for gpu in self._gpus))), 0)
        given = [self._given(index) for index in range(len(self._gpus))]
        self._columns = tuple(m for m in METRICS if any(m.name in names for names in given))
        cuda = self._cuda_attributes()
        driver = nvml.text("nvmlSystemGetDriverVersion")
        return SourceInventory(
            source="gpm" if any(gpu.has_gpm for gpu in self._gpus) else "nvml",
            gpus=tuple(
                self._describe(nvml, gpu, index, driver, cuda, names)
                for gpu, index, names in zip(self._gpus, handles, given, strict=True)
            ),
            metrics=self._columns,
            interval_s=self._interval_s,
        )

    def _open_gpus(self, nvml: Nvml, count: int) -> list[int]:
        """Open what answers; return the driver's index of each opened GPU."""
        indices = []
        for index in range(count):
            try:
                handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
                gpu = NvmlGpu(
                    nvml, handle, nvml.text("nvmlDeviceGetUUID", handle), self._slow_interval_s, index / count
                )
                gpu.open()
            except NvmlCallError as error:
                log.warning("GPU %d cannot be sampled (%s); going on with the others", index, error)
                continue
            self._gpus.append(gpu)
            indices.append(index)
        return indices

    def _given(self, index: int) -> set[str]:
        return self._gpus[index].metrics | ({_XID_METRIC} if index in self._xid_counts else set())

    def _describe(
        self, nvml: Nvml, gpu: NvmlGpu, index: int, driver: str, cuda: CudaAttributes, given: set[str]
    ) -> GpuDescription:
        missing = {m.name: gpu.missing.get(m.name, BlankReason.NOT_SUPPORTED) for m in METRICS if m.name not in given}
        return describe_gpu(nvml, gpu.handle, gpu.gpu_uuid, index, driver, cuda.get(gpu.gpu_uuid, {}), missing)

    def _ticks(self, index: int, stamp_ns: int, values: dict[str, float | BlankReason]) -> GpuTicks:
        column = np.full((len(self._columns), 1), np.nan)
        blanks: dict[int, BlankReason] = {}
        missing = self._gpus[index].missing
        for i, wanted in enumerate(self._columns):
            value = values.get(wanted.name, missing.get(wanted.name, BlankReason.NOT_SUPPORTED))
            if isinstance(value, BlankReason):
                blanks[i] = value
            else:
                column[i, 0] = value
        return GpuTicks(index, np.array([stamp_ns], dtype=np.int64), column, blanks)

    def _poll_xids(self) -> list[GpuEvent]:
        reported: Sequence[tuple[int, int]] = self._xids.poll() if self._xids else ()
        now_ns = self._wall_ns()
        for gpu, code in reported:
            self._xid_counts[gpu] += 1
            log.error("GPU %s reports XID %d", self._gpus[gpu].gpu_uuid, code)
        return [GpuEvent(gpu, now_ns, GpuEventKind.XID, code) for gpu, code in reported]

    def _lose(
        self, index: int, gpu: NvmlGpu, error: Exception, now_ns: int, deadline_s: float, events: list[GpuEvent]
    ) -> None:
        gpu.lost = True
        self._retry_due_s[index] = deadline_s + self._slow_interval_s
        events.append(GpuEvent(index, now_ns, GpuEventKind.LOST))
        log.error("GPU %s is lost (%s); going on with the others and trying it again", gpu.gpu_uuid, error)
        try:
            gpu.close()
        except NvmlCallError as failure:
            log.debug("while closing the lost GPU: %s", failure)

    def _try_recover(self, index: int, gpu: NvmlGpu, deadline_s: float, events: list[GpuEvent]) -> None:
        if deadline_s < self._retry_due_s[index]:
            return
        self._retry_due_s[index] = deadline_s + self._slow_interval_s
        if not gpu.reopen():
            return
        gpu.lost = False
        events.append(GpuEvent(index, self._wall_ns(), GpuEventKind.RECOVERED))
        log.warning("GPU %s answers again", gpu.gpu_uuid)
