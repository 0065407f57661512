"""Slurm's jobs from mapping files: one file per GPU, holding the ids of the jobs on it, one per line.

A prolog writes them and an epilog removes them (``deploy/slurm``). The format is that of dcgm-exporter's
``--hpc-job-mapping-dir``, so one folder serves both. A file's name is a UUID of a GPU or MIG instance, the index of a
GPU, or ``INDEX.INSTANCE`` for a GPU instance of MIG.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from gpusonde.agent.jobs.devices import DeviceNames
from gpusonde.agent.jobs.owners import JobSourceError, Owner, Owners, Scheduler

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
        """See :class:`gpusonde.agent.jobs.owners.JobSource`."""
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
            raise JobSourceError(
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
