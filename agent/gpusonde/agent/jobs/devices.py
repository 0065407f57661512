"""``DeviceNames``: the names that schedulers give to GPUs -> the key under which we sample them.

One GPU has an index in three orders, which differ on some hosts:

* NVML's (nvidia-smi, DCGM, ``CUDA_DEVICE_ORDER=PCI_BUS_ID``): by PCI bus address;
* the device file's: N of ``/dev/nvidiaN``, what Slurm's ``SLURM_JOB_GPUS`` counts;
* CUDA's own default: fastest first. No scheduler counts so, and we never do.

A UUID is the same everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpusonde.agent.sources.base import GpuDescription

DRIVER_FOLDER = Path("/proc/driver/nvidia")
_LARGEST_INFORMATION_BYTES = 1 << 16
_UUID = re.compile(r"^GPU UUID:\s*(\S+)", re.MULTILINE)
_MINOR = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)
_INSTANCE_ATTRIBUTE = "mig_gpu_instance_id"
# Time-slicing in the device plugin hands out "UUID::0", "UUID::1" ... for one GPU.
_REPLICA = re.compile(r"::\d+$")
# The device plugin of GKE names device files.
_DEVICE_FILE = re.compile(r"nvidia(\d+)")


class DeviceNames:
    """Resolves names of GPUs.

    Args:
        gpus: The sampled GPUs.
        minors: N of ``/dev/nvidiaN`` -> UUID of the GPU.
    """

    def __init__(self, gpus: Iterable[GpuDescription], minors: Mapping[int, str]) -> None:
        self._minors = dict(minors)
        self._keys: frozenset[str] = frozenset()
        self._by_index: Mapping[int, str] = {}
        self._instances: Mapping[tuple[str, int], list[str]] = {}
        self.take(gpus)

    def take(self, gpus: Iterable[GpuDescription]) -> None:
        """Take the GPUs of a new inventory; callable from any thread.

        Replayed GPUs are left out: no job holds them now.
        """
        real = [gpu for gpu in gpus if not gpu.replayed]
        self._by_index = {gpu.gpu_index: gpu.gpu_uuid for gpu in real}
        instances: dict[tuple[str, int], list[str]] = {}
        for gpu in real:
            for attribute in gpu.static_attributes:
                if attribute.name == _INSTANCE_ATTRIBUTE and gpu.mig_uuid:
                    instances.setdefault((gpu.gpu_uuid, round(attribute.value)), []).append(gpu.mig_uuid)
        self._instances = instances
        self._keys = frozenset(gpu.key for gpu in real)

    @property
    def keys(self) -> frozenset[str]:
        """Every GPU that may have an owner."""
        return self._keys

    def by_uuid(self, name: str) -> str | None:
        """Return the key for a UUID, or for one of a device plugin's replicas of it."""
        bare = _REPLICA.sub("", name)
        return bare if bare in self._keys else None

    def by_index(self, index: int) -> str | None:
        """Return the key for an index in NVML's order; None for a GPU that is split into MIG instances."""
        return self._sampled_whole(self._by_index.get(index))

    def by_device_file(self, number: int) -> str | None:
        """Return the key for N of ``/dev/nvidiaN``; None for a GPU that is split into MIG instances."""
        return self._sampled_whole(self._minors.get(number))

    def by_instance(self, number: int, instance: int, *, is_device_file: bool) -> str | None:
        """Return the key for a GPU instance of a GPU given by its index or device file.

        None where several compute instances share it: which of them is meant, nobody says.
        """
        uuid = (self._minors if is_device_file else self._by_index).get(number, "")
        found = self._instances.get((uuid, instance), [])
        return found[0] if len(found) == 1 else None

    def _sampled_whole(self, uuid: str | None) -> str | None:
        return uuid if uuid in self._keys else None

    def by_plugin_id(self, name: str) -> str | None:
        """Return the key for an id of a Kubernetes device plugin: a UUID, a replica of one, or ``nvidiaN``."""
        bare = _REPLICA.sub("", name)
        if match := _DEVICE_FILE.fullmatch(bare):
            return self.by_device_file(int(match.group(1)))
        return self.by_uuid(bare)


def read_minors(driver: Path = DRIVER_FOLDER) -> dict[int, str]:
    """Ask the kernel module which device file belongs to which UUID; empty where it does not tell."""
    minors = {}
    try:
        folders = sorted((driver / "gpus").iterdir())
    except OSError:
        return {}
    for folder in folders:
        try:
            with (folder / "information").open("rb") as file:
                text = file.read(_LARGEST_INFORMATION_BYTES).decode(errors="replace")
        except OSError:
            continue
        uuid, minor = _UUID.search(text), _MINOR.search(text)
        if uuid and minor:
            minors[int(minor.group(1))] = uuid.group(1)
    return minors
