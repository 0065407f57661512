"""A GPU or MIG instance as it stands in the inventory."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping

from gpusonde.agent.description.inventory import describe_gpu
from gpusonde.agent.sources.base import GpuDescription, StaticAttribute, StaticOrigin
from gpusonde.agent.sources.nvml.device import Device
from gpusonde.agent.sources.nvml.library import Nvml, NvmlCallError
from gpusonde.telemetry import BlankReason

log = logging.getLogger(__name__)

_MEBIBYTE = 1 << 20


def describe_device(
    nvml: Nvml, device: Device, driver_version: str, cuda: Mapping[str, float], missing: Mapping[str, BlankReason]
) -> GpuDescription:
    """Return everything static about one GPU, or about one MIG instance and its part of the GPU.

    Args:
        nvml: The library.
        device: Which.
        driver_version: Version of the driver.
        cuda: The whole GPU's attributes from the CUDA driver.
        missing: What it cannot give, and why.
    """
    whole = describe_gpu(nvml, device.handle, device.gpu_uuid, device.index, driver_version, cuda, missing)
    if device.instance is None:
        return whole
    part = {"mig_gpu_instance_id": device.instance.gpu_instance_id}
    part["mig_compute_instance_id"] = device.instance.compute_instance_id
    try:
        told = nvml.call("nvmlDeviceGetAttributes_v2", device.own_handle)
        part |= {
            "sm_count": int(told.multiprocessorCount),
            "mig_gpu_instance_slices": int(told.gpuInstanceSliceCount),
            "mig_compute_instance_slices": int(told.computeInstanceSliceCount),
            "memory_bytes": int(told.memorySizeMB) * _MEBIBYTE,
        }
    except NvmlCallError as error:
        log.debug("attributes of %s: %s", device.key, error)
    # What belongs to the board as a whole would be wrong for a part of it.
    shared = {"compute_capability", "max_sm_clock_mhz", "max_memory_clock_mhz", "warp_size", "cores_per_sm"}
    static = [a for a in whole.static_attributes if a.name in shared]
    static += [StaticAttribute(name, float(value), StaticOrigin.NVML) for name, value in part.items()]
    try:
        product_name = nvml.text("nvmlDeviceGetName", device.own_handle)
    except NvmlCallError:
        product_name = whole.product_name
    return dataclasses.replace(
        whole,
        mig_uuid=device.key,
        product_name=product_name,
        framebuffer_bytes=part.get("memory_bytes", 0),
        static_attributes=tuple(static),
    )
