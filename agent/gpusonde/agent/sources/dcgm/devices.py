"""The GPUs and MIG instances behind an engine: the names by which the fleet knows them, and what is told of them.

DCGM, and NVML where it is there, tell more of a GPU than its metrics.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpusonde.agent.inventory import CudaAttributes
from gpusonde.agent.sources.base import GpuDescription, StaticAttribute, StaticOrigin
from gpusonde.agent.sources.dcgm.bindings import GPU, DcgmDevice, Entity, MigPart
from gpusonde.agent.sources.dcgm.connection import Engine
from gpusonde.agent.sources.dcgm.values import is_blank_int32, text_of
from gpusonde.agent.sources.nvml.gpu import Device, describe_device, mig_instances
from gpusonde.agent.sources.nvml.library import Nvml
from gpusonde.errors import CallRefusedError, SourceError, SourceUnavailableError
from gpusonde.telemetry import MissingReason

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineDevices:
    """What an engine shows.

    Attributes:
        attributes: DCGM's id of a GPU -> its ``c_dcgmDeviceAttributes``.
        devices: What is to be sampled, each GPU before its instances.
        silent: DCGM's id of a GPU that does not answer -> what the engine says of it.
    """

    attributes: Mapping[int, Any]
    devices: tuple[DcgmDevice, ...]
    silent: Mapping[int, str]


def find_engine_devices(engine: Engine, load_nvml: Callable[[], Nvml]) -> EngineDevices:
    """Ask the engine for its GPUs and instances.

    Args:
        engine: An open engine.
        load_nvml: Makes NVML, which knows the UUIDs of instances; the engine does not.

    Raises:
        SourceUnavailableError: There is no GPU that answers.
        EngineLostError: The engine is gone.
    """
    attributes, silent = {}, {}
    for gpu_id in engine.gpu_ids():
        try:
            facts = engine.gpu_attributes(gpu_id)
        except CallRefusedError as error:
            silent[gpu_id] = str(error)
            continue
        # A lost GPU is listed on, and its attributes are an answer in which everything is blank.
        if gpu_uuid(facts):
            attributes[gpu_id] = facts
        else:
            silent[gpu_id] = "the engine has no UUID of it"
    if not attributes:
        raise SourceUnavailableError(
            f"the DCGM engine at {engine.address} shows no GPU that answers: see 'dcgmi discovery -l' and "
            "'nvidia-smi -L'"
        )
    parts = [part for part in engine.mig_parts() if part.gpu_id in attributes]
    uuids = {gpu_id: gpu_uuid(facts) for gpu_id, facts in attributes.items()}
    names = _names_of_parts({uuids[part.gpu_id] for part in parts}, load_nvml) if parts else {}
    devices = []
    for gpu_id, gpu in uuids.items():
        devices.append(DcgmDevice(gpu, gpu_id, Entity(GPU, gpu_id)))
        devices += [
            DcgmDevice(_name_of(part, gpu, names), gpu_id, part.entity, part) for part in parts if part.gpu_id == gpu_id
        ]
    return EngineDevices(attributes, tuple(devices), silent)


def gpu_uuid(attributes: Any) -> str:
    """Return the UUID in DCGM's attributes of a GPU."""
    return text_of(attributes.identifiers.uuid)


def _name_of(part: MigPart, uuid: str, names: Mapping[tuple[str, int, int], str]) -> str:
    where = (uuid, part.gpu_instance_id, part.compute_instance_id)
    # The form that drivers before 470 gave instances: unique on the host, though jobs see another.
    return names.get(where) or f"MIG-{uuid}/{part.gpu_instance_id}/{part.compute_instance_id}"


def _names_of_parts(uuids: set[str], load_nvml: Callable[[], Nvml]) -> dict[tuple[str, int, int], str]:
    """Return UUIDs of instances by UUID of the GPU, GPU instance and compute instance; empty without NVML."""
    try:
        nvml = load_nvml()
    except SourceError as error:
        log.info("MIG instances are named by their place: %s", error)
        return {}
    names = {}
    try:
        for uuid in uuids:
            for found in mig_instances(nvml, nvml.call("nvmlDeviceGetHandleByUUID", uuid.encode())):
                names[uuid, found.gpu_instance_id, found.compute_instance_id] = found.uuid
    except SourceError as error:
        log.info("MIG instances are named by their place: %s", error)
    finally:
        _close(nvml)
    return names


def _close(nvml: Nvml) -> None:
    try:
        nvml.close()
    except SourceError as error:
        log.debug("while closing NVML: %s", error)


_MEBIBYTE = 1 << 20


def describe_devices(
    found: EngineDevices,
    missing: Mapping[Entity, Mapping[str, MissingReason]],
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
    nvml: Nvml | None, device: DcgmDevice, uuid: str, missing: Mapping[str, MissingReason], cuda: Mapping[str, float]
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
    device: DcgmDevice, attributes: Any, missing: Mapping[str, MissingReason], cuda: Mapping[str, float]
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
