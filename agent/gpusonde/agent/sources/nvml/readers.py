"""Plain NVML: small groups of metrics that one call gives at once.

Left out on purpose: ``nvmlDeviceGetPcieThroughput`` blocks 20 ms for each direction, so eight GPUs would need 320 ms
of a 100 ms tick.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpusonde.agent.sources.nvml.library import SUCCESS, GpuLostError, Nvml, NvmlCallError, blank_reason
from gpusonde.telemetry import BlankReason, SamplingClass, metric

LASTING_REASONS = (BlankReason.NOT_SUPPORTED, BlankReason.NO_PERMISSION, BlankReason.NOT_FOUND)

Values = Mapping[str, "float | BlankReason"]


class Reader(Protocol):
    """Reads some metrics of one GPU with one call."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics."""
        ...

    def read(self) -> Values:
        """Return a value, or the reason why there is none, for each metric.

        Raises:
            GpuLostError: The GPU is gone.
            SourceFailedError: The driver is gone.
        """
        ...


@dataclass(frozen=True)
class Getter:
    """One getter of NVML that gives one or several metrics.

    Attributes:
        metrics: What it gives.
        function: Name of the pynvml function.
        arguments: Its arguments after the device handle.
        convert: From its result to the values in our units, in the order of ``metrics``.
    """

    metrics: tuple[str, ...]
    function: str
    convert: Callable[[Any], Sequence[float]]
    arguments: tuple[Any, ...] = ()


# NVML: clocks by nvmlClockType_t (1 = SM, 2 = memory), temperature sensor 0 = GPU; mW, mJ, percent, bytes.
GETTERS = (
    Getter(
        ("gpu_utilization", "memory_utilization"),
        "nvmlDeviceGetUtilizationRates",
        lambda rates: (rates.gpu * 0.01, rates.memory * 0.01),
    ),
    Getter(("encoder_utilization",), "nvmlDeviceGetEncoderUtilization", lambda pair: (pair[0] * 0.01,)),
    Getter(("decoder_utilization",), "nvmlDeviceGetDecoderUtilization", lambda pair: (pair[0] * 0.01,)),
    Getter(("gpu_temperature_celsius",), "nvmlDeviceGetTemperature", lambda celsius: (celsius,), (0,)),
    Getter(("sm_clock_mhz",), "nvmlDeviceGetClockInfo", lambda mhz: (mhz,), (1,)),
    Getter(("memory_clock_mhz",), "nvmlDeviceGetClockInfo", lambda mhz: (mhz,), (2,)),
    Getter(("bar1_free_bytes",), "nvmlDeviceGetBAR1MemoryInfo", lambda memory: (memory.bar1Free,)),
)
MEMORY_GETTERS = (
    # Version 2 tells memory reserved by the driver from memory in use; drivers before 510 have only version 1.
    Getter(("framebuffer_used_bytes",), "nvmlDeviceGetMemoryInfo", lambda m: (m.used,), (0x2000028,)),
    Getter(("framebuffer_used_bytes",), "nvmlDeviceGetMemoryInfo", lambda m: (m.used,)),
)
FREE_MEMORY_GETTERS = (
    Getter(("framebuffer_free_bytes",), "nvmlDeviceGetMemoryInfo", lambda m: (m.free,), (0x2000028,)),
    Getter(("framebuffer_free_bytes",), "nvmlDeviceGetMemoryInfo", lambda m: (m.free,)),
)


@dataclass(frozen=True)
class FieldValue:
    """One field of ``nvmlDeviceGetFieldValues``, and the getter to fall back to.

    Attributes:
        metric: What it gives.
        field_id: ``NVML_FI_DEV_*``.
        scale: From NVML's unit to ours.
        fallback: For drivers and devices without the field.
    """

    metric: str
    field_id: int
    scale: float
    fallback: Getter | None = None


FIELD_VALUES = (
    # nvmlDeviceGetPowerUsage is a one-second average on Ampere (except GA100) and later; the field is not.
    FieldValue(
        "power_watts", 186, 1e-3,
        Getter(("power_watts",), "nvmlDeviceGetPowerUsage", lambda milliwatts: (milliwatts * 1e-3,)),
    ),
    FieldValue(
        "energy_joules", 83, 1e-3,
        Getter(("energy_joules",), "nvmlDeviceGetTotalEnergyConsumption", lambda millijoules: (millijoules * 1e-3,)),
    ),
    FieldValue("memory_temperature_celsius", 82, 1.0),
    FieldValue(
        "pcie_replay_count", 94, 1.0,
        Getter(("pcie_replay_count",), "nvmlDeviceGetPcieReplayCounter", lambda count: (count,)),
    ),
)  # fmt: skip

# nvmlValueType_t -> member of nvmlValue_t
_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class GetterReader:
    """Reads with one getter."""

    def __init__(self, nvml: Nvml, handle: Any, getter: Getter) -> None:
        self._nvml = nvml
        self._handle = handle
        self._getter = getter
        self.metrics = getter.metrics

    def read(self) -> Values:
        """See :class:`Reader`."""
        try:
            result = self._nvml.call(self._getter.function, self._handle, *self._getter.arguments)
        except GpuLostError:
            raise
        except NvmlCallError as error:
            return dict.fromkeys(self.metrics, error.reason)
        values = self._getter.convert(result)
        return {name: plausible(name, value) for name, value in zip(self.metrics, values, strict=True)}


class FieldReader:
    """Reads several fields with one call; each has its own status."""

    def __init__(self, nvml: Nvml, handle: Any, fields: Sequence[FieldValue]) -> None:
        self._nvml = nvml
        self._handle = handle
        self._fields = tuple(fields)
        self._ids = [f.field_id for f in fields]
        self.metrics = tuple(f.metric for f in fields)

    def read(self) -> Values:
        """See :class:`Reader`."""
        try:
            answers = self._nvml.call("nvmlDeviceGetFieldValues", self._handle, self._ids)
        except GpuLostError:
            raise
        except NvmlCallError as error:
            return dict.fromkeys(self.metrics, error.reason)
        return {f.metric: _field_value(f, answer) for f, answer in zip(self._fields, answers, strict=True)}


def plausible(name: str, value: float) -> float | BlankReason:
    """Return the value, or why it cannot be one: NVML has sentinels of its own."""
    highest = metric(name).maximum
    if math.isnan(value):
        return BlankReason.NO_DATA
    if value < 0 or (highest is not None and value > highest):
        return BlankReason.OUT_OF_RANGE
    return float(value)


def choose_readers(nvml: Nvml, handle: Any) -> tuple[list[Reader], list[Reader], dict[str, BlankReason]]:
    """Try everything once on one GPU.

    Returns:
        Readers for every tick, readers for the slow pace, and the metrics the GPU does not give with the reason.

    Raises:
        GpuLostError: The GPU is gone.
        SourceFailedError: The driver is gone.
    """
    chosen: list[Reader] = []
    missing: dict[str, BlankReason] = {}
    working_fields: list[FieldValue] = []
    for candidate in FIELD_VALUES:
        answer = FieldReader(nvml, handle, [candidate]).read()[candidate.metric]
        reason = _refusal(answer)
        if reason is None:
            working_fields.append(candidate)
        elif candidate.fallback is None:
            missing[candidate.metric] = reason
        else:
            _choose_getter(nvml, handle, (candidate.fallback,), chosen, missing)
    for classes in (SamplingClass.FAST, SamplingClass.SLOW):
        batch = [f for f in working_fields if metric(f.metric).sampling_class is classes]
        if batch:
            chosen.append(FieldReader(nvml, handle, batch))
    for getter in GETTERS:
        _choose_getter(nvml, handle, (getter,), chosen, missing)
    _choose_getter(nvml, handle, MEMORY_GETTERS, chosen, missing)
    _choose_getter(nvml, handle, FREE_MEMORY_GETTERS, chosen, missing)
    fast = [r for r in chosen if metric(r.metrics[0]).sampling_class is SamplingClass.FAST]
    slow = [r for r in chosen if metric(r.metrics[0]).sampling_class is SamplingClass.SLOW]
    return fast, slow, missing


def _choose_getter(
    nvml: Nvml, handle: Any, candidates: Sequence[Getter], chosen: list[Reader], missing: dict[str, BlankReason]
) -> None:
    """Keep the first candidate that gives something, or note why none does."""
    refusals: dict[str, BlankReason] = {}
    for getter in candidates:
        reader = GetterReader(nvml, handle, getter)
        answers = {name: _refusal(answer) for name, answer in reader.read().items()}
        refusals = {name: reason for name, reason in answers.items() if reason is not None}
        if not refusals:
            chosen.append(reader)
            return
    missing.update(refusals)


def _refusal(answer: float | BlankReason) -> BlankReason | None:
    """Return the reason if it is one that lasts; "no data yet" and a single failed reading pass."""
    return answer if isinstance(answer, BlankReason) and answer in LASTING_REASONS else None


def _field_value(wanted: FieldValue, answer: Any) -> float | BlankReason:
    if answer.nvmlReturn != SUCCESS:
        return blank_reason(answer.nvmlReturn)
    if not 0 <= answer.valueType < len(_VALUE_MEMBERS):
        return BlankReason.READ_ERROR
    return plausible(wanted.metric, getattr(answer.value, _VALUE_MEMBERS[answer.valueType]) * wanted.scale)
