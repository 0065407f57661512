"""GPM: the profiling metrics of Hopper and later, without privileges over a profiler.

A value is the average between two samples, so two buffers per GPU take turns: the newer sample of one tick is the older
one of the next. All metrics come from one ``nvmlGpmMetricsGet`` per GPU and tick. The driver stamps the samples itself:
a late tick is the average over the longer time. The calls of every tick are ``sweep``'s.
"""

from __future__ import annotations

import ctypes
from typing import Any

from gpusonde.agent.sources.nvml.library import Nvml, call_error
from gpusonde.errors import DriverCallError
from gpusonde.telemetry import METRICS, Metric, MissingReason, Unit

GPM_METRICS = tuple(m for m in METRICS if m.gpm_metric_id is not None)


class GpmReader:
    """Holds the GPM samples of one GPU, or of one of its GPU instances.

    Args:
        nvml: The library.
        handle: The whole GPU.
        gpu_instance_id: The MIG GPU instance; None for the whole GPU.

    Attributes:
        metrics: What it is asked for.
        samples: Addresses of the newest sample and of the one to be taken next.
        primed: Whether the newest sample may begin a pair.
        function: Name of the function that takes a sample.
        arguments: Its arguments before the sample.
    """

    def __init__(self, nvml: Nvml, handle: Any, gpu_instance_id: int | None = None) -> None:
        self._nvml = nvml
        self._handle = handle
        self._allocated: list[Any] = []
        self.is_part = gpu_instance_id is not None
        self.metrics: tuple[Metric, ...] = GPM_METRICS
        self.samples: tuple[int, int] = (0, 0)
        self.primed = False
        self.function = "nvmlGpmMigSampleGet" if self.is_part else "nvmlGpmSampleGet"
        self.arguments: tuple[Any, ...] = (handle, gpu_instance_id) if self.is_part else (handle,)

    @property
    def ratios(self) -> tuple[str, ...]:
        """Names of those that are ratios."""
        return tuple(m.name for m in self.metrics if m.unit is Unit.RATIO)

    def open(self) -> None:
        """Take the first sample.

        Raises:
            DriverCallError: The device has no GPM, or this user may not use it; ``reason`` says which.
        """
        if not self._nvml.call("nvmlGpmQueryDeviceSupport", self._handle).isSupportedDevice:
            raise call_error("nvmlGpmQueryDeviceSupport", 3, "the device has no GPM metrics")
        self._nvml.function(self.function)
        self._nvml.function("nvmlGpmMetricsGet")
        try:
            self._allocated = [self._nvml.call("nvmlGpmSampleAlloc")]
            self._allocated.append(self._nvml.call("nvmlGpmSampleAlloc"))
            self._nvml.call(self.function, *self.arguments, self._allocated[0])
        except DriverCallError:
            self.close()
            raise
        newest, other = (ctypes.cast(sample, ctypes.c_void_p).value or 0 for sample in self._allocated)
        self.samples, self.primed = (newest, other), True

    def keep_only(self, missing: dict[str, MissingReason]) -> None:
        """Ask for nothing that the device does not give."""
        self.metrics = tuple(m for m in self.metrics if m.name not in missing)
        # The next sample may come sooner than 100 ms after this one: it only begins the first pair.
        self.primed = False

    def close(self) -> None:
        """Free the samples."""
        samples, self._allocated = self._allocated, []
        self.primed = False
        for sample in samples:
            self._nvml.call("nvmlGpmSampleFree", sample)
