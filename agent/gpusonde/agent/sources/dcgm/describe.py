"""What DCGM, and NVML where it is there, tell of a GPU beside its metrics."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

from gpusonde.agent.description.inventory import CudaAttributes
from gpusonde.agent.sources.base import GpuDescription, SourceError, StaticAttribute, StaticOrigin
from gpusonde.agent.sources.dcgm.connection.entities import DcgmDevice, Entity
from gpusonde.agent.sources.dcgm.find import Found, gpu_uuid
from gpusonde.agent.sources.dcgm.values import is_blank_int32, text_of
from gpusonde.agent.sources.nvml.describe import describe_device
from gpusonde.agent.sources.nvml.device import Device
from gpusonde.agent.sources.nvml.library import Nvml
from gpusonde.agent.sources.nvml.mig import mig_instances
from gpusonde.telemetry import BlankReason

log = logging.getLogger(__name__)

_MEBIBYTE = 1 << 20


def describe_devices(
    found: Found,
    missing: Mapping[Entity, Mapping[str, BlankReason]],
    load_nvml: Callable[[], Nvml],
    cuda: CudaAttributes,
) -> dict[str, GpuDescription]:
    """Describe GPUs and instances by everything that is known of them.

    NVML knows more than DCGM's attributes (clocks, cores, bus width) and is asked first, by UUID: an engine on another
    host has GPUs that it does not find.

    Args:
        found: What the engine shows.
        missing: Metrics that an entity cannot give, and why.
        load_nvml: Makes the library.
        cuda: Attributes from the CUDA driver by UUID.

    Returns:
        Key -> description, in the order of the devices.
    """
    nvml: Nvml | None = None
    try:
        nvml = load_nvml()
    except SourceError as error:
        log.info("clocks, cores and bus width stay unknown: %s", error)
    try:
        described = {}
        for device in found.devices:
            facts = found.attributes[device.gpu_id]
            figures = cuda.get(gpu_uuid(facts), {})
            lacking = missing[device.entity]
            known = _by_nvml(nvml, device, gpu_uuid(facts), lacking, figures)
            described[device.key] = known or _by_dcgm(device, facts, lacking, figures)
        return described
    finally:
        if nvml is not None:
            try:
                nvml.close()
            except SourceError as error:
                log.debug("while closing NVML: %s", error)


def _by_nvml(
    nvml: Nvml | None, device: DcgmDevice, uuid: str, missing: Mapping[str, BlankReason], cuda: Mapping[str, float]
) -> GpuDescription | None:
    if nvml is None:
        return None
    try:
        handle = nvml.call("nvmlDeviceGetHandleByUUID", uuid.encode())
        driver = nvml.text("nvmlSystemGetDriverVersion")
        instance = None
        if device.part is not None:
            instance = next((i for i in mig_instances(nvml, handle) if i.uuid == device.key), None)
            if instance is None:
                return None
    except SourceError as error:
        log.debug("GPU %s: %s", uuid, error)
        return None
    return describe_device(nvml, Device(handle, uuid, device.gpu_id, instance), driver, cuda, missing)


def _by_dcgm(
    device: DcgmDevice, attributes: Any, missing: Mapping[str, BlankReason], cuda: Mapping[str, float]
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
    whole = GpuDescription(
        gpu_uuid=gpu_uuid(attributes),
        gpu_index=device.gpu_id,
        product_name=text_of(known.deviceName),
        pci_bus_id=text_of(known.pciBusId),
        framebuffer_bytes=0 if is_blank_int32(memory) else memory * _MEBIBYTE,
        driver_version=text_of(known.driverVersion),
        static_attributes=tuple(static),
        missing_metrics=missing,
    )
    if device.part is None:
        return whole
    part = {
        "mig_gpu_instance_id": device.part.gpu_instance_id,
        "mig_compute_instance_id": device.part.compute_instance_id,
        "mig_gpu_instance_slices": device.part.slices,
    }
    return dataclasses.replace(
        whole,
        mig_uuid=device.key,
        framebuffer_bytes=0,
        static_attributes=tuple(StaticAttribute(n, float(v), StaticOrigin.DCGM) for n, v in part.items()),
    )
