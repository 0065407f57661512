"""What DCGM, and NVML where it is there, tell of a GPU beside its metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from gpusonde.agent.inventory import CudaAttributes, describe_gpu
from gpusonde.agent.sources.base import GpuDescription, SourceError, StaticAttribute, StaticOrigin
from gpusonde.agent.sources.dcgm.values import is_blank_int32
from gpusonde.agent.sources.nvml.library import Nvml
from gpusonde.telemetry import BlankReason

log = logging.getLogger(__name__)

_MEBIBYTE = 1 << 20


def describe_gpus(
    attributes: Mapping[int, Any],
    missing: Mapping[int, Mapping[str, BlankReason]],
    load_nvml: Callable[[], Nvml],
    cuda: CudaAttributes,
) -> dict[int, GpuDescription]:
    """Describe GPUs by everything that is known of them.

    NVML knows more than DCGM's attributes (clocks, cores, bus width) and is asked first, by UUID: an engine on another
    host has GPUs that it does not find.

    Args:
        attributes: DCGM's id -> its ``c_dcgmDeviceAttributes``.
        missing: DCGM's id -> metrics that the GPU cannot give, and why.
        load_nvml: Makes the library.
        cuda: Attributes from the CUDA driver by UUID.
    """
    nvml: Nvml | None = None
    try:
        nvml = load_nvml()
    except SourceError as error:
        log.info("clocks, cores and bus width stay unknown: %s", error)
    try:
        return {
            gpu: _by_nvml(nvml, gpu, facts, missing[gpu], cuda)
            or _by_dcgm(gpu, facts, missing[gpu], cuda.get(gpu_uuid(facts), {}))
            for gpu, facts in attributes.items()
        }
    finally:
        if nvml is not None:
            try:
                nvml.close()
            except SourceError as error:
                log.debug("while closing NVML: %s", error)


def gpu_uuid(attributes: Any) -> str:
    """Return the UUID in DCGM's attributes of a GPU."""
    return _text(attributes.identifiers.uuid)


def _by_nvml(
    nvml: Nvml | None, gpu: int, attributes: Any, missing: Mapping[str, BlankReason], cuda: CudaAttributes
) -> GpuDescription | None:
    if nvml is None:
        return None
    uuid = gpu_uuid(attributes)
    try:
        handle = nvml.call("nvmlDeviceGetHandleByUUID", uuid.encode())
        driver = nvml.text("nvmlSystemGetDriverVersion")
    except SourceError as error:
        log.debug("GPU %s: %s", uuid, error)
        return None
    return describe_gpu(nvml, handle, uuid, gpu, driver, cuda.get(uuid, {}), missing)


def _by_dcgm(
    gpu: int, attributes: Any, missing: Mapping[str, BlankReason], cuda: Mapping[str, float]
) -> GpuDescription:
    known = attributes.identifiers
    figures = {
        "memory_bytes": (attributes.memoryUsage.fbTotal, _MEBIBYTE),
        "bar1_bytes": (attributes.memoryUsage.bar1Total, _MEBIBYTE),
        "power_limit_watts": (attributes.powerLimits.enforcedPowerLimit, 1),
        "default_power_limit_watts": (attributes.powerLimits.defaultPowerLimit, 1),
        "shutdown_temperature_celsius": (attributes.thermalSettings.shutdownTemp, 1),
    }
    static = [
        StaticAttribute(name, float(number * unit), StaticOrigin.DCGM)
        for name, (number, unit) in figures.items()
        if not is_blank_int32(number)
    ]
    static += [StaticAttribute(name, value, StaticOrigin.CUDA_DRIVER) for name, value in cuda.items()]
    memory = attributes.memoryUsage.fbTotal
    return GpuDescription(
        gpu_uuid=gpu_uuid(attributes),
        gpu_index=gpu,
        product_name=_text(known.deviceName),
        pci_bus_id=_text(known.pciBusId),
        framebuffer_bytes=0 if is_blank_int32(memory) else memory * _MEBIBYTE,
        driver_version=_text(known.driverVersion),
        static_attributes=tuple(static),
        missing_metrics=missing,
    )


def _text(value: Any) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    # Texts have a sentinel form of their own.
    return "" if text.startswith("<<<") else text
