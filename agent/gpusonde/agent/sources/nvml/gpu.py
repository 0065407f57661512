"""One GPU read through NVML."""

from __future__ import annotations

import logging
from typing import Any

from gpusonde.agent.sources.nvml.gpm import GPM_METRICS, GpmReader
from gpusonde.agent.sources.nvml.library import GpuLostError, Nvml, NvmlCallError
from gpusonde.agent.sources.nvml.readers import Reader, Values, choose_readers
from gpusonde.telemetry import BlankReason

log = logging.getLogger(__name__)

# Deadlines are sums of floats; a tick that is due to the millisecond is due.
_ROUNDING_S = 1e-3


class NvmlGpu:
    """Reads one GPU: GPM and fast getters every tick, slow ones at their own pace.

    Between two slow readings the last slow values are repeated, so that a column never alternates between value and
    blank; they are at most one slow interval and one tick old.

    Args:
        nvml: The library.
        handle: The device.
        gpu_uuid: Its UUID.
        slow_interval_s: Seconds between slow readings.
        slow_phase: Share of that interval, 0..1, by which the second slow reading comes early, so that the GPUs of a
            host do not all take theirs in one tick.
    """

    def __init__(self, nvml: Nvml, handle: Any, gpu_uuid: str, slow_interval_s: float, slow_phase: float) -> None:
        self._nvml = nvml
        self.handle = handle
        self.gpu_uuid = gpu_uuid
        self.lost = False
        self.missing: dict[str, BlankReason] = {}
        self._slow_interval_s = slow_interval_s
        self._slow_lead_s = slow_phase * slow_interval_s
        self._gpm: GpmReader | None = None
        self._fast: list[Reader] = []
        self._slow: list[Reader] = []
        self._slow_values: dict[str, float | BlankReason] = {}
        self._slow_due_s = float("-inf")

    @property
    def has_gpm(self) -> bool:
        """Whether profiling metrics come from GPM."""
        return self._gpm is not None

    def open(self) -> None:
        """Find out what the GPU gives, and take its first GPM sample.

        Raises:
            GpuLostError: It is gone.
        """
        self._fast, self._slow, self.missing = choose_readers(self._nvml, self.handle)
        gpm = GpmReader(self._nvml, self.handle)
        try:
            gpm.open()
        except GpuLostError:
            raise
        except NvmlCallError as error:
            self.missing.update((m.name, error.reason) for m in GPM_METRICS)
            return
        self._gpm = gpm

    def choose_gpm_metrics(self) -> None:
        """Drop the GPM metrics that the GPU does not give; call at least 100 ms after :meth:`open`."""
        if self._gpm is not None:
            self.missing.update(self._gpm.choose())

    @property
    def metrics(self) -> set[str]:
        """Names of what the GPU gives."""
        readers: list[Reader] = [*self._fast, *self._slow, *([self._gpm] if self._gpm else [])]
        return {name for reader in readers for name in reader.metrics}

    def read(self, now_s: float) -> dict[str, float | BlankReason]:
        """Return a value, or why there is none, for each metric.

        Raises:
            GpuLostError: The GPU is gone.
            SourceFailedError: The driver is gone.
        """
        values: dict[str, float | BlankReason] = {}
        if self._gpm is not None:
            # First: its value ends at the moment of the call, which is the time stamp's.
            values.update(self._gpm.read())
        for reader in self._fast:
            values.update(reader.read())
        if now_s >= self._slow_due_s - _ROUNDING_S:
            self._slow_values = self._read_slow()
            self._slow_due_s = now_s + self._slow_interval_s - self._slow_lead_s
            self._slow_lead_s = 0.0
        values.update(self._slow_values)
        return values

    def reopen(self) -> bool:
        """Try to get a lost GPU back; return whether it answers again."""
        try:
            self.handle = self._nvml.call("nvmlDeviceGetHandleByUUID", self.gpu_uuid.encode())
            self.open()
        except NvmlCallError as error:
            log.debug("GPU %s is still lost: %s", self.gpu_uuid, error)
            return False
        self._slow_due_s = float("-inf")
        return True

    def close(self) -> None:
        """Free what the library holds for this GPU."""
        if self._gpm is not None:
            self._gpm.close()
            self._gpm = None

    def _read_slow(self) -> dict[str, float | BlankReason]:
        answers: list[Values] = [reader.read() for reader in self._slow]
        return {name: answer for group in answers for name, answer in group.items()}
