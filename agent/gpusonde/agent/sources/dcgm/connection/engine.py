"""``Engine``: one connection to a DCGM host engine, or an engine inside this process."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

from gpusonde.agent.sources.base import SourceUnavailableError
from gpusonde.agent.sources.dcgm.connection.bindings import Bindings
from gpusonde.agent.sources.dcgm.connection.entities import Entity, Part, read_hierarchy
from gpusonde.agent.sources.dcgm.connection.errors import (
    FUNCTION_NOT_FOUND,
    DcgmCallError,
    EngineHungError,
    EngineLostError,
    translated,
)
from gpusonde.agent.sources.dcgm.connection.guard import CallGuard, HungCallError
from gpusonde.agent.sources.dcgm.fields import MetricGroup

log = logging.getLogger(__name__)

EMBEDDED = "embedded"
UNIX_PREFIX = "unix://"
# dcgm_structs.h: DCGM_GROUP_EMPTY
_EMPTY_GROUP = 1
# The first watch of profiling fields loads the engine's profiling library, which takes seconds on a host of many GPUs.
# Still shorter than what the watchdog tolerates.
_PATIENCE = 3.0


class Engine:
    """An open engine. Its calls end in time, or the engine is taken for lost.

    Groups are made by the bindings' functions and not by their classes: those ask the engine again when they are
    collected, which a dead engine does not answer.

    Args:
        bindings: The modules.
        handle: A ``pydcgm.DcgmHandle``.
        address: What it is connected to, or ``"embedded"``.
        guard: Makes the calls.
    """

    def __init__(self, bindings: Bindings, handle: Any, address: str, guard: CallGuard) -> None:
        self.bindings = bindings
        self.address = address
        self._handle = handle
        self._guard = guard
        self._hung = False

    @classmethod
    def connect(cls, bindings: Bindings, address: str, timeout_s: float, guard: CallGuard) -> Engine:
        """Connect to a host engine, or start one in this process.

        Args:
            bindings: The modules.
            address: ``HOST:PORT``, ``unix:///PATH`` or ``embedded``.
            timeout_s: Seconds until a connection attempt is given up.
            guard: Makes this call and all others.

        Raises:
            DcgmCallError: There is none, or it refuses.
        """
        where: dict[str, Any] = {}
        if address.startswith(UNIX_PREFIX):
            where = {"unixSocketPath": address.removeprefix(UNIX_PREFIX), "timeoutMs": math.ceil(timeout_s * 1e3)}
        elif address != EMBEDDED:
            where = {"ipAddress": address, "timeoutMs": math.ceil(timeout_s * 1e3)}

        def make() -> Any:
            # AUTO: an embedded engine polls with a thread of its own. It says nothing about a remote one.
            return bindings.pydcgm.DcgmHandle(opMode=bindings.structs.DCGM_OPERATION_MODE_AUTO, **where)

        handle = _guarded(guard, bindings.structs, f"host engine at {address}", make)
        return cls(bindings, handle, address, guard)

    def gpu_ids(self) -> list[int]:
        """Return DCGM's ids of the GPUs."""
        return [int(gpu) for gpu in self._call("list of GPUs", "dcgmGetAllDevices")]

    def gpu_attributes(self, gpu_id: int) -> Any:
        """Return the ``c_dcgmDeviceAttributes`` of one GPU."""
        return self._call(f"attributes of GPU {gpu_id}", "dcgmGetDeviceAttributes", gpu_id)

    def mig_parts(self) -> tuple[Part, ...]:
        """Return the MIG compute instances of all GPUs; none where engine or bindings do not know of them.

        Raises:
            EngineLostError: The engine is gone.
        """
        try:
            return read_hierarchy(self._call("MIG instances", "dcgmGetGpuInstanceHierarchy"))
        except EngineLostError:
            raise
        except DcgmCallError as error:
            log.info("%s", error)
            return ()

    def metric_groups(self, gpu_id: int) -> list[MetricGroup]:
        """Return which profiling fields the GPU has, and which of them exclude each other.

        Raises:
            DcgmCallError: Profiling is not possible; ``reason`` and message say why.
        """
        answer = self._call(f"profiling metrics of GPU {gpu_id}", "dcgmProfGetSupportedMetricGroups", gpu_id)
        groups = (answer.metricGroups[i] for i in range(answer.numMetricGroups))
        return [
            MetricGroup(int(g.majorId), int(g.minorId), frozenset(int(g.fieldIds[i]) for i in range(g.numFieldIds)))
            for g in groups
        ]

    def make_group(self, name: str, entities: Sequence[Entity]) -> Any:
        """Make a group and return its id; the name must be new to the engine."""
        group = self._call("group of GPUs", "dcgmGroupCreate", _EMPTY_GROUP, name.encode())
        try:
            for entity in entities:
                self._call(f"entity {entity.id} of a group", "dcgmGroupAddEntity", group, entity.group, entity.id)
        except EngineLostError:
            raise
        except DcgmCallError:
            self.delete_group(group)
            raise
        return group

    def delete_group(self, group: Any) -> None:
        """Delete a group."""
        self._call("deleting a group", "dcgmGroupDestroy", group)

    def make_field_group(self, name: str, field_ids: Sequence[int]) -> Any:
        """Make a group of fields and return its id; the name must be new to the engine."""
        return self._call("group of fields", "dcgmFieldGroupCreate", list(field_ids), name.encode())

    def delete_field_group(self, fields: Any) -> None:
        """Delete a group of fields."""
        self._call("deleting a group of fields", "dcgmFieldGroupDestroy", fields)

    def watch(self, what: str, group: Any, fields: Any, interval_s: float, keep_s: float) -> None:
        """Record fields of a group, keeping values for ``keep_s``."""
        self._call(f"watching {what}", "dcgmWatchFields", group, fields, round(interval_s * 1e6), keep_s, 0)

    def unwatch(self, what: str, group: Any, fields: Any) -> None:
        """End a recording."""
        self._call(f"ending the watch of {what}", "dcgmUnwatchFields", group, fields)

    def values_since(self, what: str, group: Any, fields: Any, since_us: int, callback: Any) -> int:
        """Hand what was recorded since a time to a C callback; return the time after the newest value."""
        name, patience = "dcgmGetValuesSince_v2", 1.0
        return int(self._call(f"values of {what}", name, group, fields, since_us, callback, None, patience=patience))

    def pause_profiling(self) -> None:
        """Free the profiling counters of all GPUs for another profiler; values are blank until resumed."""
        self._call("pausing profiling", "dcgmProfPause")

    def resume_profiling(self) -> None:
        """Take the profiling counters again."""
        self._call("resuming profiling", "dcgmProfResume")

    def close(self) -> None:
        """Disconnect; the engine drops what this connection watched."""
        if self._hung:
            return
        try:
            _guarded(self._guard, self.bindings.structs, "disconnecting", self._handle.Shutdown)
        except DcgmCallError as error:
            log.debug("%s", error)
            self._abandon()
        else:
            self._guard.close()

    def _abandon(self) -> None:
        """Forget the connection without another call: one of it hangs, or it is gone."""
        # Otherwise DcgmHandle's destructor disconnects, in whichever thread drops it last.
        self._handle._handleCreated = False
        self._guard.close()

    def _call(self, what: str, name: str, *arguments: Any, patience: float = _PATIENCE) -> Any:
        function = getattr(self.bindings.agent, name, None)
        if function is None:
            raise DcgmCallError(what, FUNCTION_NOT_FOUND, f"these bindings have no {name}")
        if self._hung:
            # Another call on this connection would wait for the one before.
            raise EngineHungError(what)
        try:
            return _guarded(
                self._guard, self.bindings.structs, what, function, self._handle.handle, *arguments, patience=patience
            )
        except EngineHungError:
            self._hung = True
            self._abandon()
            raise


def _guarded(
    guard: CallGuard,
    structs: Any,
    what: str,
    function: Callable[..., Any],
    *arguments: Any,
    patience: float = _PATIENCE,
) -> Any:
    try:
        with translated(structs, what):
            return guard.call(function, *arguments, patience=patience)
    except HungCallError:
        raise EngineHungError(what) from None


def connect_first(bindings: Bindings, addresses: Sequence[str], timeout_s: float, guard: CallGuard) -> Engine:
    """Connect to the first address that has an engine.

    Raises:
        SourceUnavailableError: None has; the message tells what each of them said.
    """
    refusals = []
    for address in addresses:
        try:
            return Engine.connect(bindings, address, timeout_s, guard)
        except DcgmCallError as error:
            refusals.append(str(error))
    raise SourceUnavailableError("no DCGM engine: " + "; ".join(refusals))
