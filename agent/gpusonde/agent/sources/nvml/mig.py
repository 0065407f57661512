"""MIG: the instances that a GPU is split into, as NVML shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpusonde.agent.sources.nvml.library import GpuLostError, Nvml, NvmlCallError


@dataclass(frozen=True)
class MigInstance:
    """One MIG device: a compute instance inside a GPU instance.

    Attributes:
        handle: The device handle of the instance.
        uuid: Its UUID, which jobs see in CUDA_VISIBLE_DEVICES.
        gpu_instance_id: The GPU instance, which owns memory and profiling counters.
        compute_instance_id: The compute instance inside it; usually the only one.
    """

    handle: Any
    uuid: str
    gpu_instance_id: int
    compute_instance_id: int


def is_split(nvml: Nvml, handle: Any) -> bool:
    """Whether a GPU is in MIG mode.

    Raises:
        GpuLostError: The GPU is gone.
    """
    try:
        current, _pending = nvml.call("nvmlDeviceGetMigMode", handle)
    except GpuLostError:
        raise
    except NvmlCallError:
        # Boards and drivers without MIG refuse the question.
        return False
    return bool(current)


def mig_instances(nvml: Nvml, handle: Any) -> tuple[MigInstance, ...]:
    """Return the MIG devices of a GPU in MIG mode, in the driver's order.

    Raises:
        GpuLostError: The GPU is gone.
    """
    found = []
    try:
        slots = int(nvml.call("nvmlDeviceGetMaxMigDeviceCount", handle))
    except GpuLostError:
        raise
    except NvmlCallError:
        return ()
    for slot in range(slots):
        try:
            instance = nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)
            found.append(
                MigInstance(
                    instance,
                    nvml.text("nvmlDeviceGetUUID", instance),
                    int(nvml.call("nvmlDeviceGetGpuInstanceId", instance)),
                    int(nvml.call("nvmlDeviceGetComputeInstanceId", instance)),
                )
            )
        except GpuLostError:
            raise
        except NvmlCallError:
            # Slots are sparse: an empty one is NOT_FOUND.
            continue
    return tuple(found)
