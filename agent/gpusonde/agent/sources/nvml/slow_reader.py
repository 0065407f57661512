"""What is read every few seconds: temperatures, counters, free memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpusonde.agent.sources.base import LASTING_REASONS, plausible
from gpusonde.agent.sources.nvml.library import SUCCESS, Nvml, blank_reason
from gpusonde.errors import CallRefusedError
from gpusonde.telemetry import MissingReason

Values = Mapping[str, "float | MissingReason"]


class SlowReader(Protocol):
    """Reads some metrics of one GPU with one call."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics."""
        ...

    def read(self) -> Values:
        """Return a value, or the reason why there is none, for each metric.

        Raises:
            GpuLostError: The GPU is gone.
            SourceError: The driver is gone.
        """
        ...


@dataclass(frozen=True)
class Getter:
    """One getter of pynvml that gives one metric.

    Attributes:
        metric: What it gives.
        function: Name of the pynvml function.
        convert: From its result to our unit.
        arguments: Its arguments after the device handle.
    """

    metric: str
    function: str
    convert: Callable[[Any], float]
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class SlowField:
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


# NVML: memory clock by nvmlClockType_t 2, temperature sensor 0 = GPU; mJ, percent, bytes.
FIELDS = (
    SlowField(
        "energy_joules", 83, 1e-3,
        Getter("energy_joules", "nvmlDeviceGetTotalEnergyConsumption", lambda millijoules: millijoules * 1e-3),
    ),
    SlowField("memory_temperature_celsius", 82, 1.0),
    SlowField("pcie_replay_count", 94, 1.0, Getter("pcie_replay_count", "nvmlDeviceGetPcieReplayCounter", float)),
)  # fmt: skip
GETTERS = (
    (Getter("encoder_utilization", "nvmlDeviceGetEncoderUtilization", lambda pair: pair[0] * 0.01),),
    (Getter("decoder_utilization", "nvmlDeviceGetDecoderUtilization", lambda pair: pair[0] * 0.01),),
    (Getter("gpu_temperature_celsius", "nvmlDeviceGetTemperature", float, (0,)),),
    (Getter("memory_clock_mhz", "nvmlDeviceGetClockInfo", float, (2,)),),
)
# What a MIG instance has too.
MEMORY_GETTERS = (
    (
        Getter("framebuffer_free_bytes", "nvmlDeviceGetMemoryInfo", lambda memory: memory.free, (0x2000028,)),
        Getter("framebuffer_free_bytes", "nvmlDeviceGetMemoryInfo", lambda memory: memory.free),
    ),
    (Getter("bar1_free_bytes", "nvmlDeviceGetBAR1MemoryInfo", lambda memory: memory.bar1Free),),
)

# nvmlValueType_t -> member of pynvml's nvmlValue_t
_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class GetterReader:
    """Reads with one getter."""

    def __init__(self, nvml: Nvml, handle: Any, getter: Getter) -> None:
        self._nvml = nvml
        self._handle = handle
        self._getter = getter
        self.metrics = (getter.metric,)

    def read(self) -> Values:
        """See :class:`SlowReader`."""
        try:
            result = self._nvml.call(self._getter.function, self._handle, *self._getter.arguments)
        except CallRefusedError as error:
            return {self._getter.metric: blank_reason(error.code)}
        return {self._getter.metric: plausible(self._getter.metric, self._getter.convert(result))}


class FieldReader:
    """Reads several fields with one call; each has its own status."""

    def __init__(self, nvml: Nvml, handle: Any, fields: Sequence[SlowField]) -> None:
        self._nvml = nvml
        self._handle = handle
        self._fields = tuple(fields)
        self._ids = [f.field_id for f in fields]
        self.metrics = tuple(f.metric for f in fields)

    def read(self) -> Values:
        """See :class:`SlowReader`."""
        try:
            answers = self._nvml.call("nvmlDeviceGetFieldValues", self._handle, self._ids)
        except CallRefusedError as error:
            return dict.fromkeys(self.metrics, blank_reason(error.code))
        return {f.metric: _field_value(f, answer) for f, answer in zip(self._fields, answers, strict=True)}


def choose_slow(
    nvml: Nvml,
    handle: Any,
    getters: Sequence[Sequence[Getter]],
    fields: Sequence[SlowField],
    lasting: Sequence[MissingReason] = LASTING_REASONS,
) -> tuple[list[SlowReader], dict[str, MissingReason]]:
    """Try everything once on one device.

    Args:
        nvml: The library.
        handle: The device.
        getters: For each metric the getters that may give it, the preferred one first.
        fields: The fields to ask for, in one call.
        lasting: What tells that a metric will never be there.

    Returns:
        Readers, and the metrics that the device does not give with the reason.

    Raises:
        GpuLostError: The GPU is gone.
        SourceError: The driver is gone.
    """
    chosen: list[SlowReader] = []
    missing: dict[str, MissingReason] = {}
    fallbacks: list[Sequence[Getter]] = []
    working: list[SlowField] = []
    answers = FieldReader(nvml, handle, fields).read() if fields else {}
    for field in fields:
        answer = answers[field.metric]
        if not (isinstance(answer, MissingReason) and answer in lasting):
            working.append(field)
        elif field.fallback is not None:
            fallbacks.append((field.fallback,))
        else:
            missing[field.metric] = answer
    if working:
        chosen.append(FieldReader(nvml, handle, working))
    for candidates in (*getters, *fallbacks):
        for getter in candidates:
            reader = GetterReader(nvml, handle, getter)
            answer = reader.read()[getter.metric]
            if not (isinstance(answer, MissingReason) and answer in lasting):
                chosen.append(reader)
                missing.pop(getter.metric, None)
                break
            missing[getter.metric] = answer
    return chosen, missing


def _field_value(wanted: SlowField, answer: Any) -> float | MissingReason:
    if answer.nvmlReturn != SUCCESS:
        return blank_reason(answer.nvmlReturn)
    if not 0 <= answer.valueType < len(_VALUE_MEMBERS):
        return MissingReason.READ_ERROR
    return plausible(wanted.metric, getattr(answer.value, _VALUE_MEMBERS[answer.valueType]) * wanted.scale)
