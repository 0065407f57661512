"""GPM: the profiling metrics of Hopper and later, without privileges over a profiler.

A value is the average between two samples, so two buffers per GPU take turns: the newer sample of one tick is the older
one of the next. All metrics come from one ``nvmlGpmMetricsGet`` per GPU and tick.
"""

from __future__ import annotations

from typing import Any

from gpusonde.agent.sources.nvml.library import SUCCESS, GpuLostError, Nvml, NvmlCallError, blank_reason
from gpusonde.agent.sources.nvml.readers import LASTING_REASONS, Values, plausible
from gpusonde.telemetry import METRICS, BlankReason, Metric

GPM_METRICS = tuple(m for m in METRICS if m.gpm_metric_id is not None)
# nvmlGpmMetricsGet_t; the array behind it grows between releases, the version does not.
_METRICS_GET_VERSION = 1


class GpmReader:
    """Reads the GPM metrics of one GPU.

    Args:
        nvml: The library.
        handle: The device.
    """

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._columns: tuple[Metric, ...] = GPM_METRICS
        self._older: Any = None
        self._newer: Any = None
        self._request: Any = None
        self._primed = False

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics."""
        return tuple(m.name for m in self._columns)

    def open(self) -> None:
        """Take the first sample.

        Raises:
            NvmlCallError: The device has no GPM, or this user may not use it; ``reason`` says which.
        """
        if not self._nvml.call("nvmlGpmQueryDeviceSupport", self._handle).isSupportedDevice:
            raise _not_supported()
        try:
            self._older = self._nvml.call("nvmlGpmSampleAlloc")
            self._newer = self._nvml.call("nvmlGpmSampleAlloc")
            self._nvml.call("nvmlGpmSampleGet", self._handle, self._older)
        except NvmlCallError:
            self.close()
            raise
        self._primed = True
        self._make_request()

    def choose(self) -> dict[str, BlankReason]:
        """Keep the metrics that the device gives; call at least 100 ms after :meth:`open`.

        Returns:
            The metrics it does not give, and why.
        """
        answers = self.read()
        missing = {n: a for n, a in answers.items() if isinstance(a, BlankReason) and a in LASTING_REASONS}
        self._columns = tuple(m for m in self._columns if m.name not in missing)
        if self._columns:
            self._make_request()
        # The next sample may come sooner than 100 ms after this one: it only begins the first pair.
        self._primed = False
        return missing

    def read(self) -> Values:
        """Return the averages since the previous call; see :class:`~gpusonde.agent.sources.nvml.readers.Reader`."""
        try:
            self._nvml.call("nvmlGpmSampleGet", self._handle, self._newer)
            if not self._primed:
                self._older, self._newer, self._primed = self._newer, self._older, True
                return dict.fromkeys(self.metrics, BlankReason.NO_DATA)
            self._request.sample1, self._request.sample2 = self._older, self._newer
            self._older, self._newer = self._newer, self._older
            self._nvml.call("nvmlGpmMetricsGet", self._request)
        except GpuLostError:
            raise
        except NvmlCallError as error:
            return dict.fromkeys(self.metrics, error.reason)
        return {m.name: self._value(m, i) for i, m in enumerate(self._columns)}

    def close(self) -> None:
        """Free the samples."""
        for sample in (self._older, self._newer):
            if sample is not None:
                self._nvml.call("nvmlGpmSampleFree", sample)
        self._older = self._newer = None
        self._primed = False

    def _make_request(self) -> None:
        # About 20 kB in Python's bindings: made once, not every tick.
        self._request = self._nvml.module.c_nvmlGpmMetricsGet_t()
        self._request.version = _METRICS_GET_VERSION
        self._request.numMetrics = len(self._columns)
        for i, column in enumerate(self._columns):
            self._request.metrics[i].metricId = column.gpm_metric_id

    def _value(self, column: Metric, i: int) -> float | BlankReason:
        answer = self._request.metrics[i]
        if answer.nvmlReturn != SUCCESS:
            return blank_reason(answer.nvmlReturn)
        return plausible(column.name, answer.value * column.gpm_scale)


def _not_supported() -> NvmlCallError:
    return NvmlCallError("nvmlGpmQueryDeviceSupport", 3, "the device has no GPM metrics")
