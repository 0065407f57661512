"""Hosts of agents: what they have, what of it is free (``ResourceCollector``), and lists of it (``ClusterDescriber``).

Under load a host offers what its free cores have (PredictDDL, Eq. 1 and 2): memory, disk throughput and FLOPS per core,
summed over the free cores. Where the agent measured that less is free of one of them, that counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpusonde.catalog import GpuCatalog, GpuSpec
from gpusonde.collector.ingest.session import AgentSession, KnownLoad
from gpusonde.collector.query.paging import from_token, page_size, to_token
from gpusonde.collector.query.prediction import resolve
from gpusonde.collector.storage.store import FactStore, Store
from gpusonde.common.v1 import gpu_pb2
from gpusonde.errors import RequestError
from gpusonde.predictor.workload.engine import HostResources
from gpusonde.workload.v1 import workload_pb2

# A disk that had little to do says little about what it could do.
_LEAST_DISK_BUSY_RATIO = 0.1
_RESOURCES = ("cores", "memory_bytes", "disk_bytes_per_second", "flops")


@dataclass(frozen=True)
class HostDevice:
    """A GPU of a host.

    Attributes:
        described: As its agent describes it.
        spec: In the catalogue; None where it is not there.
    """

    described: gpu_pb2.Gpu
    spec: GpuSpec | None

    @property
    def key(self) -> str:
        """What its samples are kept under."""
        return self.described.mig_uuid or self.described.gpu_uuid


@dataclass(frozen=True)
class HostView:
    """A host as its agent tells.

    Attributes:
        agent_id: The agent.
        host: What it is.
        connected: Whether the agent streams to this collector.
        load: What it does; None where nobody knows.
        devices: Its GPUs.
    """

    agent_id: str
    host: gpu_pb2.Host
    connected: bool
    load: KnownLoad | None
    devices: tuple[HostDevice, ...]

    def available(self) -> HostResources:
        """Return what is free; without a load, that is everything."""
        load = self.load.load if self.load else gpu_pb2.HostLoad()
        return available_resources(self.host, load)


def available_resources(host: gpu_pb2.Host, load: gpu_pb2.HostLoad) -> HostResources:
    """Return what a host under load has free: its totals per core, over its free cores."""
    cores = float(host.cpu_core_count or host.cpu_count)
    if cores <= 0:
        return HostResources(memory_bytes=_known(load, "available_memory_bytes"))
    free_cores = cores * (1.0 - _ratio(load.cpu_busy_ratio))

    def scale_to_free_cores(total: float | None, measured: float | None = None) -> float | None:
        if not total:
            return measured
        share = total / cores * free_cores
        return share if measured is None else min(share, measured)

    disk = _disk_bytes_per_second(load)
    return HostResources(
        cores=free_cores,
        memory_bytes=scale_to_free_cores(float(host.memory_bytes), _known(load, "available_memory_bytes")),
        disk_bytes_per_second=scale_to_free_cores(
            disk, None if disk is None else disk * (1.0 - _ratio(load.disk_busy_ratio))
        ),
        flops=scale_to_free_cores(host.cpu_flops if math.isfinite(host.cpu_flops) and host.cpu_flops > 0 else None),
    )


def least_resources(hosts: Sequence[HostResources]) -> HostResources | None:
    """Return what every one of several hosts has free: in synchronous training the others wait for the slowest."""
    if not hosts:
        return None
    found: dict[str, float | None] = {}
    for name in _RESOURCES:
        values = [getattr(host, name) for host in hosts]
        found[name] = None if any(value is None for value in values) else min(values)
    return HostResources(**found)


def resource_document(resources: HostResources) -> dict[str, Any]:
    """Return resources as a ``HostResources`` message has them; what nobody knows is None."""
    return {name: getattr(resources, name) for name in _RESOURCES}


class ResourceCollector:
    """Knows the hosts that agents run on.

    Args:
        facts: What agents said of themselves and their GPUs.
        sessions: The open streams, which say what hosts are doing.
        gpus: Resolves names of GPUs.
    """

    def __init__(self, facts: FactStore, sessions: Callable[[], Iterable[AgentSession]], gpus: GpuCatalog) -> None:
        self._facts = facts
        self._sessions = sessions
        self._gpus = gpus

    def loads(self) -> dict[str, KnownLoad | None]:
        """Return the agents that stream now, and what their hosts do; to be called on the event loop."""
        return {session.agent_id: session.load for session in self._sessions()}

    def hosts(
        self,
        loads: Mapping[str, KnownLoad | None],
        agent_ids: Iterable[str] | None = None,
        host_names: Iterable[str] | None = None,
    ) -> list[HostView]:
        """Return hosts by agent id. Blocks.

        Args:
            loads: What ``loads`` returned.
            agent_ids: Only these and those of ``host_names``; both None means all.
            host_names: Likewise.

        Raises:
            StoreError: The store cannot be read.
        """
        ids, names = set(agent_ids or ()), set(host_names or ())
        rows = [
            row
            for row in self._facts.agents()
            if (agent_ids is None and host_names is None) or row.agent_id in ids or row.host_name in names
        ]
        wanted = {row.agent_id for row in rows}
        devices: dict[str, list[HostDevice]] = {agent_id: [] for agent_id in wanted}
        for gpu in self._facts.gpus() if wanted else ():
            if gpu.agent_id in wanted:
                described = gpu_pb2.Gpu.FromString(gpu.message)
                devices[gpu.agent_id].append(HostDevice(described, self._spec(described)))
        return [
            HostView(
                row.agent_id,
                gpu_pb2.Host.FromString(row.host),
                row.agent_id in loads,
                loads.get(row.agent_id),
                tuple(sorted(devices[row.agent_id], key=lambda device: (device.described.gpu_index, device.key))),
            )
            for row in sorted(rows, key=lambda row: row.agent_id)
        ]

    def _spec(self, gpu: gpu_pb2.Gpu) -> GpuSpec | None:
        try:
            return resolve(self._gpus, gpu.product_name, gpu.framebuffer_bytes).spec
        except RequestError:
            return None


def _known(load: gpu_pb2.HostLoad, name: str) -> float | None:
    return float(getattr(load, name)) if load.HasField(name) else None


def _ratio(value: float) -> float:
    return min(1.0, max(0.0, value))


def _disk_bytes_per_second(load: gpu_pb2.HostLoad) -> float | None:
    """Return what the disks could do: what they did, over the share of time that it took."""
    if not load.HasField("disk_bytes_per_second") or load.disk_busy_ratio < _LEAST_DISK_BUSY_RATIO:
        return None
    return load.disk_bytes_per_second / _ratio(load.disk_busy_ratio)


_DEFAULT_PAGE = 50
_LARGEST_PAGE = 100
_WINDOW_NANOSECONDS = 60_000_000_000
# The first that a GPU has says whether it is busy.
_BUSY = ("graphics_active", "gpu_utilization")
_FREE_MEMORY = "framebuffer_free_bytes"
_USED_MEMORY = "framebuffer_used_bytes"


class ClusterDescriber:
    """Describes hosts.

    Args:
        resources: Knows them.
        store: What their GPUs did of late.
        clock: Unix nanoseconds.
    """

    def __init__(self, resources: ResourceCollector, store: Store, clock: Callable[[], int] = time.time_ns) -> None:
        self._resources = resources
        self._store = store
        self._clock = clock

    def page(
        self, request: workload_pb2.DescribeClusterRequest, loads: Mapping[str, KnownLoad | None]
    ) -> dict[str, Any]:
        """Return a ``DescribeClusterResponse`` as a document. Blocks.

        Raises:
            RequestError: The page cannot be (``INVALID_ARGUMENT``).
            StoreError: The store cannot be read.
        """
        limit = page_size(request.page_size, _DEFAULT_PAGE, _LARGEST_PAGE)
        place = from_token(request.page_token, (str,))
        if request.agent_ids or request.host_names:
            hosts = self._resources.hosts(loads, request.agent_ids, request.host_names)
        else:
            hosts = self._resources.hosts(loads)
        rest = [host for host in hosts if place is None or host.agent_id > str(place[0])]
        page = rest[:limit]
        token = to_token([page[-1].agent_id]) if len(rest) > limit else ""
        return {"hosts": [self._host(host) for host in page], "next_page_token": token}

    def _host(self, host: HostView) -> dict[str, Any]:
        known = host.load
        return {
            "agent_id": host.agent_id,
            "host": _present(host.host),
            "connected": host.connected,
            "load": _present(known.load) if known else None,
            "load_time": known.unix_s if known else None,
            "available": resource_document(host.available()),
            "devices": [self._device(device) for device in host.devices],
        }

    def _device(self, device: HostDevice) -> dict[str, Any]:
        described, spec = device.described, device.spec
        busy, free_memory = self._read_recent(device)
        flops = None if spec is None or described.mig_uuid else spec.fp32_tflops * 1e12
        return {
            "gpu_uuid": device.key,
            "product_name": described.product_name,
            "device": "" if spec is None else spec.name,
            "memory_bytes": described.framebuffer_bytes,
            "flops": flops,
            "busy_ratio": busy,
            "available_flops": None if flops is None or busy is None else flops * (1.0 - busy),
            "free_memory_bytes": free_memory,
            "replayed": described.replayed,
        }

    def _read_recent(self, device: HostDevice) -> tuple[float | None, float | None]:
        offered = set(self._store.facts.metrics(device.key))
        busy = next((name for name in _BUSY if name in offered), None)
        wanted = [name for name in (busy, _FREE_MEMORY, _USED_MEMORY) if name in offered]
        if not wanted:
            return None, None
        now = self._clock()
        columns = self._store.samples.read(device.key, now - _WINDOW_NANOSECONDS, now, wanted).columns
        ratio = None if busy is None else _mean(columns.get(busy))
        free, used = _mean(columns.get(_FREE_MEMORY)), _mean(columns.get(_USED_MEMORY))
        if free is None and used is not None and device.described.framebuffer_bytes:
            free = max(0.0, device.described.framebuffer_bytes - used)
        return None if ratio is None else min(1.0, max(0.0, ratio)), free


def _mean(column: Any) -> float | None:
    if column is None:
        return None
    values = column[np.isfinite(column)]
    mean = float(values.mean(dtype=np.float64)) if values.size else math.nan
    return mean if math.isfinite(mean) else None


def _present(message: Any) -> dict[str, Any]:
    """Return the fields that are set, by name."""
    return {field.name: value for field, value in message.ListFields()}
