"""GPM: the profiling metrics of Hopper and later, without privileges over a profiler.

A value is the average between two samples, so two buffers per GPU take turns: the newer sample of one tick is the older
one of the next. All metrics come from one ``nvmlGpmMetricsGet`` per GPU and tick. The driver stamps the samples itself:
a late tick is the average over the longer time.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpusonde.agent.sources.base import LASTING_REASONS
from gpusonde.agent.sources.nvml.fast_reader import Targets, gpm_answers
from gpusonde.agent.sources.nvml.library import SUCCESS, Nvml, blank_reason, call_error
from gpusonde.errors import DriverCallError
from gpusonde.telemetry import METRICS, Metric, MissingReason, Unit

GPM_METRICS = tuple(m for m in METRICS if m.gpm_metric_id is not None)
# nvmlGpmMetricsGet_t; the array behind it grows between releases, the version does not.
_METRICS_GET_VERSION = 1
# Values of samples taken closer than 100 ms are invalid. The sampler's ticks come up to half an interval early.
_CLOSEST_SAMPLES_S = 0.045


class GpmReader:
    """Reads the GPM metrics of one GPU, or of one of its GPU instances.

    Args:
        nvml: The library.
        handle: The whole GPU.
        gpu_instance_id: The MIG GPU instance; None for the whole GPU.
        monotonic: Seconds, never set back.
        on_capped: Told how many ratios of an instance were above 1 and stored as 1 (NVIDIA/DCGM issue 152).
    """

    def __init__(
        self,
        nvml: Nvml,
        handle: Any,
        gpu_instance_id: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        on_capped: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._nvml = nvml
        self._handle = handle
        self._gpu_instance_id = gpu_instance_id
        self._monotonic = monotonic
        self._on_capped = on_capped
        self._metrics: tuple[Metric, ...] = GPM_METRICS
        self._targets = Targets([m.name for m in GPM_METRICS])
        self._samples: list[Any] = []
        self._newest = 0
        # By the sample that ends the pair: what NVML is asked with, and views on its answer.
        self._requests: list[tuple[Any, Any, Any]] = []
        self._plan: list[tuple[int, int, float, float]] = []
        self._primed = False
        self._sampled_s = -math.inf
        self._get_name = "nvmlGpmSampleGet" if gpu_instance_id is None else "nvmlGpmMigSampleGet"
        self._get_arguments: tuple[Any, ...] = (handle,) if gpu_instance_id is None else (handle, gpu_instance_id)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics."""
        return self._targets.metrics

    @property
    def ratios(self) -> tuple[str, ...]:
        """Names of those that are ratios."""
        return tuple(m.name for m in self._metrics if m.unit is Unit.RATIO)

    def bind(self, column: Mapping[str, int]) -> None:
        """See :class:`~gpusonde.agent.sources.nvml.fast_reader.FastReader`."""
        self._targets.bind(column)
        self._make_plan()

    def open(self) -> None:
        """Take the first sample.

        Raises:
            DriverCallError: The device has no GPM, or this user may not use it; ``reason`` says which.
        """
        if not self._nvml.call("nvmlGpmQueryDeviceSupport", self._handle).isSupportedDevice:
            raise call_error("nvmlGpmQueryDeviceSupport", 3, "the device has no GPM metrics")
        self._sample_get = self._nvml.function(self._get_name)
        self._metrics_get = self._nvml.function("nvmlGpmMetricsGet")
        try:
            self._samples = [self._nvml.call("nvmlGpmSampleAlloc")]
            self._samples.append(self._nvml.call("nvmlGpmSampleAlloc"))
            self._nvml.call(self._get_name, *self._get_arguments, self._samples[0])
        except DriverCallError:
            self.close()
            raise
        self._primed, self._newest, self._sampled_s = True, 0, self._monotonic()
        self._make_requests()

    def choose(self) -> dict[str, MissingReason]:
        """Keep the metrics that the device gives; call at least 100 ms after :meth:`open`.

        Returns:
            The metrics it does not give, and why.
        """
        names = self.metrics
        self.bind({name: i for i, name in enumerate(names)})
        blanks: dict[int, MissingReason] = {}
        self.read([math.nan] * len(names), blanks)
        missing = {names[i]: reason for i, reason in blanks.items() if reason in LASTING_REASONS}
        self._metrics = tuple(m for m in self._metrics if m.name not in missing)
        self._targets = Targets([m.name for m in self._metrics])
        if self._metrics:
            self._make_requests()
        # The next sample may come sooner than 100 ms after this one: it only begins the first pair.
        self._primed, self._sampled_s = False, -math.inf
        return missing

    def read(self, values: list[float], blanks: dict[int, MissingReason]) -> None:
        """Write the averages since the previous call, as every fast reader does."""
        now_s = self._monotonic()
        if now_s - self._sampled_s < _CLOSEST_SAMPLES_S:
            self._targets.refuse_all(MissingReason.NO_DATA, blanks)
            return
        turn = 1 - self._newest
        code = self._sample_get(*self._get_arguments, self._samples[turn])
        if code:
            self._targets.refuse_all(self._nvml.refusal(self._get_name, code), blanks)
            return
        self._newest, self._sampled_s = turn, now_s
        if not self._primed:
            self._primed = True
            self._targets.refuse_all(MissingReason.NO_DATA, blanks)
            return
        reference, statuses, answers = self._requests[turn]
        code = self._metrics_get(reference)
        if code:
            self._targets.refuse_all(self._nvml.refusal("nvmlGpmMetricsGet", code), blanks)
            return
        self._write(statuses.tolist(), answers.tolist(), values, blanks)

    def close(self) -> None:
        """Free the samples."""
        samples, self._samples = self._samples, []
        self._primed = False
        for sample in samples:
            self._nvml.call("nvmlGpmSampleFree", sample)

    def _make_requests(self) -> None:
        """Make a request for each order of the samples: about 30 kB in Python's bindings, so not every tick."""
        self._requests = []
        for newer in (0, 1):
            request = self._nvml.module.c_nvmlGpmMetricsGet_t()
            request.version = _METRICS_GET_VERSION
            request.numMetrics = len(self._metrics)
            request.sample1, request.sample2 = self._samples[1 - newer], self._samples[newer]
            for i, column in enumerate(self._metrics):
                request.metrics[i].metricId = column.gpm_metric_id
            views = gpm_answers(self._nvml.module, request, len(self._metrics))
            self._requests.append((ctypes.byref(request), *views))
        is_part = self._gpu_instance_id is not None
        self._credible = [m.maximum or 0.0 if is_part and m.unit is Unit.RATIO else 0.0 for m in self._metrics]

    def _write(
        self,
        statuses: list[int],
        answers: list[float],
        values: list[float],
        blanks: dict[int, MissingReason],
    ) -> None:
        for (i, column, scale, most), status, answer in zip(self._plan, statuses, answers, strict=True):
            value = answer * scale
            if status == SUCCESS and 0.0 <= value <= most:
                values[column] = value
            else:
                self._write_odd(i, status, value, values, blanks)

    def _write_odd(
        self, i: int, status: int, value: float, values: list[float], blanks: dict[int, MissingReason]
    ) -> None:
        if status != SUCCESS:
            self._targets.refuse(i, blank_reason(status), blanks)
        elif 1.0 < value <= self._credible[i]:
            self._targets.put(i, 1.0, values, blanks)
            self._on_capped(1)
        else:
            self._targets.put(i, value, values, blanks)

    def _make_plan(self) -> None:
        """Lay out the loop of every tick; what nobody asked for takes the odd way, which drops it."""
        self._plan = [
            (i, column or 0, m.gpm_scale, -1.0 if column is None else 1.0 if self._credible[i] else most)
            for i, (m, column, most) in enumerate(
                zip(self._metrics, self._targets.columns, self._targets.maxima, strict=True)
            )
        ]
