"""What NVML shows of a host: whole GPUs, and the instances of those that are split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpusonde.agent.sources.nvml.library import Nvml, NvmlCallError
from gpusonde.agent.sources.nvml.mig import MigInstance, is_split, mig_instances


@dataclass(frozen=True)
class Device:
    """A GPU or a MIG instance.

    Attributes:
        handle: Handle of the whole GPU.
        gpu_uuid: UUID of the whole GPU.
        index: The driver's index of the GPU.
        instance: The MIG instance; None for the whole GPU.
    """

    handle: Any
    gpu_uuid: str
    index: int
    instance: MigInstance | None = None

    @property
    def key(self) -> str:
        """Its name in the fleet."""
        return self.gpu_uuid if self.instance is None else self.instance.uuid

    @property
    def own_handle(self) -> Any:
        """Handle of the instance, or of the GPU."""
        return self.handle if self.instance is None else self.instance.handle


def find_devices(nvml: Nvml, refused: Callable[[int, NvmlCallError], None]) -> list[Device]:
    """Return the GPUs that answer, each before its MIG instances.

    Args:
        nvml: The library.
        refused: Told the index of a GPU that does not answer, and how it refused.

    Raises:
        NvmlCallError: Not even their number is told.
        SourceFailedError: The driver is gone.
    """
    devices: list[Device] = []
    for index in range(int(nvml.call("nvmlDeviceGetCount"))):
        try:
            handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
            gpu = Device(handle, nvml.text("nvmlDeviceGetUUID", handle), index)
            instances = mig_instances(nvml, handle) if is_split(nvml, handle) else ()
        except NvmlCallError as error:
            refused(index, error)
            continue
        devices.append(gpu)
        devices += [Device(handle, gpu.gpu_uuid, index, instance) for instance in instances]
    return devices
