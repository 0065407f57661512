"""``ClusterDescriber``: hosts with their devices and what is free of them, page by page."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from gpusonde.collector.ingest.loads import KnownLoad
from gpusonde.collector.query.paging import from_token, page_size, to_token
from gpusonde.collector.storage.samples import Samples
from gpusonde.collector.workload.hosts.resources import Device, HostView, ResourceCollector, resource_document
from gpusonde.workload.v1 import workload_pb2

_DEFAULT_PAGE = 50
_LARGEST_PAGE = 100
_WINDOW_NANOSECONDS = 60_000_000_000
# The first that a GPU has says whether it is busy.
_BUSY = ("graphics_active", "gpu_utilization")
_FREE_MEMORY = "framebuffer_free_bytes"
_USED_MEMORY = "framebuffer_used_bytes"


class SampleStore(Protocol):
    """Where the samples of the last minute are."""

    def metrics_of(self, gpu_uuid: str) -> list[str]:
        """See ``Store.metrics_of``."""

    def read(
        self, gpu_uuid: str, start_unix_nano: int, end_unix_nano: int, metrics: Sequence[str] | None = None
    ) -> Samples:
        """See ``Store.read``."""


class ClusterDescriber:
    """Describes hosts.

    Args:
        resources: Knows them.
        samples: What their GPUs did of late.
        clock: Unix nanoseconds.
    """

    def __init__(
        self, resources: ResourceCollector, samples: SampleStore, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._resources = resources
        self._samples = samples
        self._clock = clock

    def page(
        self, request: workload_pb2.DescribeClusterRequest, loads: Mapping[str, KnownLoad | None]
    ) -> dict[str, Any]:
        """Return a ``DescribeClusterResponse`` as a document. Blocks.

        Raises:
            InvalidQuestionError: The page cannot be.
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

    def _device(self, device: Device) -> dict[str, Any]:
        described, spec = device.described, device.spec
        busy, free_memory = self._of_late(device)
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

    def _of_late(self, device: Device) -> tuple[float | None, float | None]:
        offered = set(self._samples.metrics_of(device.key))
        busy = next((name for name in _BUSY if name in offered), None)
        wanted = [name for name in (busy, _FREE_MEMORY, _USED_MEMORY) if name in offered]
        if not wanted:
            return None, None
        now = self._clock()
        columns = self._samples.read(device.key, now - _WINDOW_NANOSECONDS, now, wanted).columns
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
