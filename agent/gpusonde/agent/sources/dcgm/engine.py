"""``Engine``: one connection to a DCGM host engine, or an engine inside this process."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

from gpusonde.agent.sources.base import SourceUnavailableError
from gpusonde.agent.sources.dcgm.bindings import Bindings
from gpusonde.agent.sources.dcgm.errors import DcgmCallError, translated
from gpusonde.agent.sources.dcgm.fields import MetricGroup

log = logging.getLogger(__name__)

EMBEDDED = "embedded"
UNIX_PREFIX = "unix://"


class Engine:
    """An open engine.

    Args:
        bindings: The modules.
        handle: A ``pydcgm.DcgmHandle``.
        address: What it is connected to, or ``"embedded"``.
    """

    def __init__(self, bindings: Bindings, handle: Any, address: str) -> None:
        self.bindings = bindings
        self.address = address
        self._handle = handle
        self._system = handle.GetSystem()

    @classmethod
    def connect(cls, bindings: Bindings, address: str, timeout_s: float) -> Engine:
        """Connect to a host engine, or start one in this process.

        Args:
            bindings: The modules.
            address: ``HOST:PORT``, ``unix:///PATH`` or ``embedded``.
            timeout_s: Seconds until a connection attempt is given up.

        Raises:
            DcgmCallError: There is none, or it refuses.
        """
        where: dict[str, Any] = {}
        if address.startswith(UNIX_PREFIX):
            where = {"unixSocketPath": address.removeprefix(UNIX_PREFIX), "timeoutMs": math.ceil(timeout_s * 1e3)}
        elif address != EMBEDDED:
            where = {"ipAddress": address, "timeoutMs": math.ceil(timeout_s * 1e3)}
        with translated(bindings.structs, f"host engine at {address}"):
            # AUTO: an embedded engine polls with a thread of its own. It says nothing about a remote one.
            handle = bindings.pydcgm.DcgmHandle(opMode=bindings.structs.DCGM_OPERATION_MODE_AUTO, **where)
        return cls(bindings, handle, address)

    @property
    def handle(self) -> Any:
        """The handle as the calls of ``dcgm_agent`` take it."""
        return self._handle.handle

    def gpu_ids(self) -> list[int]:
        """Return DCGM's ids of the GPUs."""
        with translated(self.bindings.structs, "list of GPUs"):
            return [int(gpu) for gpu in self._system.discovery.GetAllGpuIds()]

    def gpu_attributes(self, gpu_id: int) -> Any:
        """Return the ``c_dcgmDeviceAttributes`` of one GPU."""
        with translated(self.bindings.structs, f"attributes of GPU {gpu_id}"):
            return self._system.discovery.GetGpuAttributes(gpu_id)

    def metric_groups(self, gpu_id: int) -> list[MetricGroup]:
        """Return which profiling fields the GPU has, and which of them exclude each other.

        Raises:
            DcgmCallError: Profiling is not possible; ``reason`` and message say why.
        """
        with translated(self.bindings.structs, f"profiling metrics of GPU {gpu_id}"):
            answer = self.bindings.agent.dcgmProfGetSupportedMetricGroups(self.handle, gpu_id)
        groups = (answer.metricGroups[i] for i in range(answer.numMetricGroups))
        return [
            MetricGroup(int(g.majorId), int(g.minorId), frozenset(int(g.fieldIds[i]) for i in range(g.numFieldIds)))
            for g in groups
        ]

    def make_group(self, name: str, gpu_ids: Sequence[int]) -> Any:
        """Return a ``DcgmGroup`` of GPUs; the name must be new to the engine."""
        with translated(self.bindings.structs, "group of GPUs"):
            return self._system.GetGroupWithGpuIds(name, list(gpu_ids))

    def make_field_group(self, name: str, field_ids: Sequence[int]) -> Any:
        """Return a ``DcgmFieldGroup``; the name must be new to the engine."""
        with translated(self.bindings.structs, "group of fields"):
            return self.bindings.pydcgm.DcgmFieldGroup(self._handle, name, list(field_ids))

    def pause_profiling(self) -> None:
        """Free the profiling counters of all GPUs for another profiler; values are blank until resumed."""
        with translated(self.bindings.structs, "pausing profiling"):
            self.bindings.agent.dcgmProfPause(self.handle)

    def resume_profiling(self) -> None:
        """Take the profiling counters again."""
        with translated(self.bindings.structs, "resuming profiling"):
            self.bindings.agent.dcgmProfResume(self.handle)

    def close(self) -> None:
        """Disconnect; the engine drops what this connection watched."""
        try:
            with translated(self.bindings.structs, "disconnecting"):
                self._handle.Shutdown()
        except DcgmCallError as error:
            # Otherwise DcgmHandle's destructor tries again and prints the error.
            self._handle._handleCreated = False
            log.debug("%s", error)


def connect_first(bindings: Bindings, addresses: Sequence[str], timeout_s: float) -> Engine:
    """Connect to the first address that has an engine.

    Raises:
        SourceUnavailableError: None has; the message tells what each of them said.
    """
    refusals = []
    for address in addresses:
        try:
            return Engine.connect(bindings, address, timeout_s)
        except DcgmCallError as error:
            refusals.append(str(error))
    raise SourceUnavailableError("no DCGM engine: " + "; ".join(refusals))
