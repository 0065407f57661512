"""What is read every few seconds: temperatures, counters, free memory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from gpusonde.agent.sources.base import LASTING_REASONS, plausible
from gpusonde.agent.sources.nvml.fast_reader import (
    MEMORY_V2,
    AnswerCell,
    CellKind,
    FastCall,
    FastField,
    FieldValue,
    Memory,
    MemoryV2,
    Value,
    call_of_fields,
)
from gpusonde.agent.sources.nvml.library import SUCCESS, Nvml, blank_reason
from gpusonde.errors import CallRefusedError
from gpusonde.telemetry import MissingReason

Values = Mapping[str, "float | MissingReason"]

# In one call, each with its own status; NVML has mJ.
FIELDS = (
    FastField("energy_joules", 83, 1e-3),
    FastField("memory_temperature_celsius", 82),
    FastField("pcie_replay_count", 94),
)
# For drivers and devices without the field.
_FALLBACKS = {
    "energy_joules": FastCall(
        "nvmlDeviceGetTotalEnergyConsumption", bytes(8), (AnswerCell("energy_joules", 0, CellKind.UINT64, 1e-3),)
    ),
    "pcie_replay_count": FastCall(
        "nvmlDeviceGetPcieReplayCounter", bytes(4), (AnswerCell("pcie_replay_count", 0, CellKind.UINT32),)
    ),
}
# For each metric the calls that may give it, the preferred one first. Percent; temperature sensor 0 is the GPU;
# nvmlClockType_t 2 is the memory; how long the codecs were looked at is not wanted.
CALLS = (
    (
        FastCall(
            "nvmlDeviceGetEncoderUtilization", bytes(8),
            (AnswerCell("encoder_utilization", 0, CellKind.UINT32, 0.01),), further=(4,),
        ),
    ),
    (
        FastCall(
            "nvmlDeviceGetDecoderUtilization", bytes(8),
            (AnswerCell("decoder_utilization", 0, CellKind.UINT32, 0.01),), further=(4,),
        ),
    ),
    (
        FastCall(
            "nvmlDeviceGetTemperature", bytes(4), (AnswerCell("gpu_temperature_celsius", 0, CellKind.UINT32),), (0,)
        ),
    ),
    (FastCall("nvmlDeviceGetClockInfo", bytes(4), (AnswerCell("memory_clock_mhz", 0, CellKind.UINT32),), (2,)),),
    # The same under its name before driver 535.
    tuple(
        FastCall(name, bytes(8), (AnswerCell("clock_event_reason_bits", 0, CellKind.UINT64),))
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    ),
)  # fmt: skip
# What a MIG instance has too.
MEMORY_CALLS = (
    (
        FastCall(
            "nvmlDeviceGetMemoryInfo_v2",
            bytes(MemoryV2(version=MEMORY_V2)),
            (AnswerCell("framebuffer_free_bytes", MemoryV2.free.offset, CellKind.UINT64),),
        ),
        FastCall(
            "nvmlDeviceGetMemoryInfo",
            bytes(Memory()),
            (AnswerCell("framebuffer_free_bytes", Memory.free.offset, CellKind.UINT64),),
        ),
    ),
    # nvmlBAR1Memory_t is laid out alike.
    (
        FastCall(
            "nvmlDeviceGetBAR1MemoryInfo",
            bytes(Memory()),
            (AnswerCell("bar1_free_bytes", Memory.free.offset, CellKind.UINT64),),
        ),
    ),
)

# nvmlValueType_t -> member of nvmlValue_t
_VALUE_MEMBERS = tuple(name for name, _ in Value._fields_)
_CELL_TYPES: dict[CellKind, Any] = {
    CellKind.UINT32: ctypes.c_uint,
    CellKind.UINT64: ctypes.c_ulonglong,
    CellKind.FIELD: FieldValue,
}


class SlowReader:
    """Reads some metrics of one GPU with one call, which is prepared once.

    Args:
        nvml: The library.
        handle: The GPU or instance.
        call: What to call.

    Raises:
        CallRefusedError: The driver is older than the function.

    Attributes:
        metrics: Names of the metrics.
    """

    def __init__(self, nvml: Nvml, handle: Any, call: FastCall) -> None:
        self.metrics = call.metrics
        self._nvml = nvml
        self._name = call.function
        self._function = nvml.function(call.function)
        answer = ctypes.create_string_buffer(call.answer, len(call.answer))
        filled = (ctypes.byref(answer, offset) for offset in (0, *call.further))
        self._arguments = (handle, *call.arguments, *filled)
        self._cells: list[tuple[str, float, Any]] = [
            (cell.metric, cell.scale, _CELL_TYPES[cell.kind].from_buffer(answer, cell.offset)) for cell in call.cells
        ]

    def read(self) -> Values:
        """Return a value, or the reason why there is none, for each metric.

        Raises:
            GpuLostError: The GPU is gone.
            SourceError: The driver is gone.
        """
        if code := self._function(*self._arguments):
            return dict.fromkeys(self.metrics, self._nvml.refusal(self._name, code))
        return {metric: _value(metric, scale, cell) for metric, scale, cell in self._cells}


def choose_slow(
    nvml: Nvml,
    handle: Any,
    calls: Sequence[Sequence[FastCall]],
    fields: Sequence[FastField],
    lasting: Sequence[MissingReason] = LASTING_REASONS,
) -> tuple[list[SlowReader], dict[str, MissingReason]]:
    """Try everything once on one device.

    Args:
        nvml: The library.
        handle: The device.
        calls: For each metric the calls that may give it, the preferred one first.
        fields: The fields to ask for, in one call.
        lasting: What tells that a metric will never be there.

    Returns:
        Readers, and the metrics that the device does not give with the reason.

    Raises:
        GpuLostError: The GPU is gone.
        SourceError: The driver is gone.
    """

    def try_out(call: FastCall) -> tuple[SlowReader | None, dict[str, MissingReason]]:
        """Return its reader, and the metrics that it will never give with the reason."""
        try:
            reader = SlowReader(nvml, handle, call)
        except CallRefusedError as error:
            return None, dict.fromkeys(call.metrics, blank_reason(error.code))
        answers = reader.read().items()
        return reader, {name: why for name, why in answers if isinstance(why, MissingReason) and why in lasting}

    chosen: list[SlowReader] = []
    missing: dict[str, MissingReason] = {}
    candidates = [*calls]
    if fields:
        _, refused = try_out(call_of_fields(fields))
        if working := [field for field in fields if field.metric not in refused]:
            chosen.append(SlowReader(nvml, handle, call_of_fields(working)))
        for name, reason in refused.items():
            if name in _FALLBACKS:
                candidates.append((_FALLBACKS[name],))
            else:
                missing[name] = reason
    for alternatives in candidates:
        for call in alternatives:
            reader, refused = try_out(call)
            if reader is not None and not refused:
                chosen.append(reader)
                for name in call.metrics:
                    missing.pop(name, None)
                break
            missing.update(refused)
    return chosen, missing


def _value(metric: str, scale: float, cell: Any) -> float | MissingReason:
    if not isinstance(cell, FieldValue):
        return plausible(metric, cell.value * scale)
    if cell.status != SUCCESS:
        return blank_reason(cell.status)
    if not 0 <= cell.value_type < len(_VALUE_MEMBERS):
        return MissingReason.READ_ERROR
    return plausible(metric, getattr(cell.value, _VALUE_MEMBERS[cell.value_type]) * scale)
