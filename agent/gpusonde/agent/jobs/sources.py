"""What sources of jobs share (``JobSource``, ``DeviceNames``), and the simplest of them: Slurm's mapping files.

``DeviceNames`` turns the names that schedulers give to GPUs into the key under which they are sampled. One GPU has an
index in three orders, which differ on some hosts; a UUID is the same everywhere:

* NVML's (nvidia-smi, DCGM, ``CUDA_DEVICE_ORDER=PCI_BUS_ID``): by PCI bus address;
* the device file's: N of ``/dev/nvidiaN``, what Slurm's ``SLURM_JOB_GPUS`` counts;
* CUDA's own default: fastest first. No scheduler counts so, and the agent never does.

Mapping files are one per GPU with the ids of the jobs on it, one per line. A prolog writes them and an epilog removes
them (``deploy/slurm``). The format is that of dcgm-exporter's ``--hpc-job-mapping-dir``, so one folder serves both. A
file's name is a UUID of a GPU or MIG instance, the index of a GPU, or ``INDEX.INSTANCE`` for a GPU instance of MIG.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpusonde.agent.jobs.ownership import Owner, Owners, Scheduler
from gpusonde.agent.sources.base import GpuDescription
from gpusonde.errors import SourceError

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


# What a collector takes in one string.
_LONGEST_TEXT = 256
_UNPRINTABLE = re.compile(r"[^\x21-\x7e]+")


class JobSource(Protocol):
    """Tells who holds the GPUs. Used by one thread."""

    @property
    def name(self) -> str:
        """Short name for logs."""
        ...

    def owners(self, now_unix_nano: int) -> Owners:
        """Return the owners of every GPU that has one.

        Raises:
            SourceError: It does not answer now; what it said before stays in force.
        """
        ...


def bounded(text: str) -> str:
    """Return ``text`` without blanks and control characters, and short enough for every collector.

    What is cut away lives on in a digest, so that two long names stay two.
    """
    clean = _UNPRINTABLE.sub("_", text)
    if len(clean) <= _LONGEST_TEXT:
        return clean
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
    return f"{clean[: _LONGEST_TEXT - len(digest) - 1]}~{digest}"


_LARGEST_FILE_BYTES = 16 << 10
_MOST_FILES = 1024
_MOST_JOBS = 64
_INDEX = re.compile(r"(\d{1,3})(?:\.(\d{1,3}))?")
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")
# A last line without its end is still being written, unless nobody has touched the file for so long.
_WRITING_NS = 2_000_000_000


@dataclass(frozen=True)
class _Seen:
    """One file as it was read: the look of it, and since when each job has stood in it."""

    stamp: tuple[int, int, int]
    since: dict[str, int]
    complete: bool


class MappingFiles:
    """Reads a folder of mapping files; a file that has not changed is not read again.

    Args:
        folder: The folder; it may be absent until the first job starts.
        devices: Resolves file names.
        index_order: What an index counts: "nvml" (order of the PCI bus, as nvidia-smi) or "device" (N of
            ``/dev/nvidiaN``, as Slurm).
    """

    name = "slurm"

    def __init__(self, folder: Path, devices: DeviceNames, *, index_order: str = "nvml") -> None:
        self._folder = folder
        self._devices = devices
        self._index_order = index_order
        self._seen: dict[str, _Seen] = {}

    def owners(self, now_unix_nano: int) -> Owners:
        """See :class:`gpusonde.agent.jobs.sources.JobSource`."""
        by_gpu: dict[str, dict[str, int]] = {}
        seen: dict[str, _Seen] = {}
        for name in self._names():
            gpu = self._gpu(name)
            if gpu is None:
                continue
            found = self._look(name, now_unix_nano)
            if found is None:
                continue
            seen[name] = found
            jobs = by_gpu.setdefault(gpu, {})
            for job, since in found.since.items():
                jobs[job] = min(since, jobs.get(job, since))
        self._seen = seen
        return {
            gpu: tuple(Owner(Scheduler.SLURM, job, start_unix_nano=since) for job, since in jobs.items())
            for gpu, jobs in by_gpu.items()
            if jobs
        }

    def _names(self) -> list[str]:
        try:
            with os.scandir(self._folder) as entries:
                names = [entry.name for entry, _ in zip(entries, range(_MOST_FILES), strict=False)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SourceError(
                f"{self._folder}: {error.strerror}; the agent must be able to list it and read its files"
            ) from error
        return sorted(names)

    def _gpu(self, name: str) -> str | None:
        match = _INDEX.fullmatch(name)
        if match is None:
            return self._devices.by_uuid(name)
        number, is_device_file = int(match[1]), self._index_order == "device"
        if match[2] is not None:
            return self._devices.by_instance(number, int(match[2]), is_device_file=is_device_file)
        return self._devices.by_device_file(number) if is_device_file else self._devices.by_index(number)

    def _look(self, name: str, now_unix_nano: int) -> _Seen | None:
        """Return what stands in a file now, None when it is gone or no mapping file."""
        before = self._seen.get(name)
        path = self._folder / name
        try:
            # Neither a link out of the folder nor a pipe that nobody writes to may lead the agent astray.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError:
            return before
        try:
            status = os.fstat(descriptor)
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            if before is not None and before.complete and before.stamp == stamp:
                return before
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_FILE_BYTES:
                return None
            data = os.read(descriptor, _LARGEST_FILE_BYTES)
        except OSError:
            return before
        finally:
            os.close(descriptor)
        age_ns = now_unix_nano - status.st_mtime_ns
        complete = data.endswith(b"\n") or not data or not 0 <= age_ns < _WRITING_NS
        known = before.since if before is not None else {}
        changed = min(status.st_mtime_ns, now_unix_nano)
        jobs = _jobs(data if complete else data[: data.rfind(b"\n") + 1])
        return _Seen(stamp, {job: known.get(job, changed) for job in jobs}, complete)


def _jobs(data: bytes) -> list[str]:
    """Return the job ids, the first word of each line; what cannot be one is passed over."""
    words = (line.split()[0] for line in data.decode("ascii", errors="replace").splitlines() if line.strip())
    return list(dict.fromkeys(word for word in words if _JOB.fullmatch(word)))[:_MOST_JOBS]
