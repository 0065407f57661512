"""``Engine``: one connection to a DCGM host engine, or an engine inside this process; ``EngineLink`` renews it.

DCGM's return codes become the errors of ``gpusonde.errors`` and reasons of missing values here. Calls are made by a
thread of their own (see ``calls``): an engine that hangs is left behind with it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpusonde.agent.sources.base import Clocks, SourceStatistics
from gpusonde.agent.sources.dcgm.bindings import Bindings, Entity, MigPart, read_hierarchy
from gpusonde.agent.sources.dcgm.calls import CONNECTION_NOT_VALID, CallGuard, CallSeries, TimedAnswer
from gpusonde.agent.sources.dcgm.fields import MetricGroup
from gpusonde.errors import CallRefusedError, DriverCallError, EngineLostError, SourceError, SourceUnavailableError
from gpusonde.telemetry import MissingReason

log = logging.getLogger(__name__)

# dcgmReturn_t, dcgm_structs.h
NOT_SUPPORTED = -6
TIMED_OUT = -11
NO_DATA = -14
GPU_IS_LOST = -18
FUNCTION_NOT_FOUND = -20
MODULE_NOT_LOADED = -33
PROFILING_NOT_SUPPORTED = -36
PROFILING_MULTI_PASS = -38

_REASONS = {
    NOT_SUPPORTED: MissingReason.NOT_SUPPORTED,
    -12: MissingReason.NOT_SUPPORTED,  # version mismatch
    -13: MissingReason.NOT_SUPPORTED,  # unknown field
    NO_DATA: MissingReason.NO_DATA,
    -15: MissingReason.NO_DATA,  # stale
    -16: MissingReason.NO_DATA,  # not watched
    -17: MissingReason.NO_PERMISSION,
    GPU_IS_LOST: MissingReason.GPU_LOST,
    FUNCTION_NOT_FOUND: MissingReason.NOT_SUPPORTED,  # function not found: the driver is older than the field
    -22: MissingReason.NOT_SUPPORTED,  # GPU not supported
    -29: MissingReason.NO_PERMISSION,  # requires root
    -32: MissingReason.NOT_SUPPORTED,  # field not supported by this call
    MODULE_NOT_LOADED: MissingReason.NOT_SUPPORTED,
    PROFILING_NOT_SUPPORTED: MissingReason.NOT_SUPPORTED,  # profiling not supported
    -44: MissingReason.NOT_SUPPORTED,  # driver too old
    -54: MissingReason.NO_DATA,  # paused
}
_ADVICE = {
    -7: "the engine could not start: see its log, and whether nvidia-smi works",
    GPU_IS_LOST: (
        "the GPU fell off the bus: see the kernel's log for XID errors; 'nvidia-smi --gpu-reset' or a reboot brings it "
        "back"
    ),
    FUNCTION_NOT_FOUND: (
        "libdcgm is older than the Python bindings (of several libraries the first one found is used): install both of "
        "one version"
    ),
    TIMED_OUT: (
        "the host engine did not answer in time: 'systemctl status nvidia-dcgm', then 'systemctl restart nvidia-dcgm'"
    ),
    -12: "bindings and host engine are of different DCGM versions: install the same major version of both",
    -17: (
        "profiling is reserved for root: run the host engine as root (in a container with CAP_SYS_ADMIN), or load the "
        "driver with NVreg_RestrictProfilingToAdminUsers=0"
    ),
    -25: "a library of DCGM is missing: install the whole package of this version",
    -29: "profiling is reserved for root: run the host engine as root (the unit nvidia-dcgm does)",
    MODULE_NOT_LOADED: (
        "the engine's profiling module is not loaded: install datacenter-gpu-manager-4-proprietary (DCGM 4), see "
        "'dcgmi modules -l', and restart the host engine"
    ),
    PROFILING_NOT_SUPPORTED: (
        "this GPU has no profiling metrics (they need Volta or newer, a data centre board before Hopper)"
    ),
    -37: "the profiling library failed: look for another profiler or a second host engine, then restart nvidia-dcgm",
    -44: "the driver is older than this DCGM needs: update the driver",
    -56: "the engine finds no NVIDIA driver: install it, and in a container pass the GPUs through",
    CONNECTION_NOT_VALID: (
        "no host engine listens there: start it with 'systemctl start nvidia-dcgm', or set source.dcgm_address"
    ),
}


def describe_failure(what: str, code: int, text: str) -> str:
    """Return the message about a call that answered with a ``dcgmReturn_t``, with what to do."""
    advice = _ADVICE.get(code)
    return f"{what}: {text} (DCGM error {code})" + (f": {advice}" if advice else "")


def is_hang(error: SourceError) -> bool:
    """Whether a call did not return in time: the engine hangs, or the library does."""
    return isinstance(error, EngineLostError) and error.code == TIMED_OUT


def _hang_error(what: str) -> EngineLostError:
    return EngineLostError(describe_failure(what, TIMED_OUT, "no answer"), TIMED_OUT)


def status_reason(code: int) -> MissingReason:
    """Return why a value is blank that carries this status."""
    return _REASONS.get(code, MissingReason.READ_ERROR)


@contextmanager
def translated(structs: Any, what: str) -> Iterator[None]:
    """Turn the errors of DCGM's bindings into ours.

    Args:
        structs: The module ``dcgm_structs``.
        what: What was tried, for the message.

    Raises:
        CallRefusedError: The call failed.
        EngineLostError: There is no connection any more.
    """
    try:
        yield
    except structs.DCGMError as error:
        raise _error_of(error, what) from error


def _error_of(error: Any, what: str) -> DriverCallError:
    code = int(error.value)
    kind = EngineLostError if code == CONNECTION_NOT_VALID else CallRefusedError
    return kind(describe_failure(what, code, str(error)), code)


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
        self._latest: Callable[..., int] | None = None

    @classmethod
    def connect(cls, bindings: Bindings, address: str, timeout_s: float, guard: CallGuard) -> Engine:
        """Connect to a host engine, or start one in this process.

        Args:
            bindings: The modules.
            address: ``HOST:PORT``, ``unix:///PATH`` or ``embedded``.
            timeout_s: Seconds until a connection attempt is given up.
            guard: Makes this call and all others.

        Raises:
            DriverCallError: There is none, or it refuses.
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

    def mig_parts(self) -> tuple[MigPart, ...]:
        """Return the MIG compute instances of all GPUs; none where engine or bindings do not know of them.

        Raises:
            EngineLostError: The engine is gone.
        """
        try:
            return read_hierarchy(self._call("MIG instances", "dcgmGetGpuInstanceHierarchy"))
        except CallRefusedError as error:
            log.info("%s", error)
            return ()

    def metric_groups(self, gpu_id: int) -> list[MetricGroup]:
        """Return which profiling fields the GPU has, and which of them exclude each other.

        Raises:
            DriverCallError: Profiling is not possible; ``reason`` and message say why.
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
        except CallRefusedError:
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

    def latest_values(self, what: str, *arguments: Any) -> None:
        """Fill a buffer with the newest values of fields, in one request.

        The library's own function: the one of the bindings makes an array of 4 KiB structures for each answer.

        Args:
            what: For messages.
            arguments: Entities, their number, fields, their number, flags, the buffer; as C wants them.

        Raises:
            DriverCallError: The engine refuses, or is gone.
        """
        structs = self.bindings.structs
        if self._latest is None:
            with translated(structs, what):
                self._latest = structs._dcgmGetFunctionPointer("dcgmEntitiesGetLatestValues")
        code = self._invoke(what, self._latest, *arguments, patience=1.0)
        if code:
            with translated(structs, what):
                structs._dcgmCheckReturn(code)

    def repeat_latest_values(
        self,
        deadlines_s: Sequence[float],
        latest_s: float,
        keep: Callable[[], Any],
        clocks: Clocks,
        *arguments: Any,
    ) -> CallSeries | None:
        """Have the request of :meth:`latest_values` made at several times; see :class:`CallSeries`.

        Returns:
            The series, for :meth:`end_series`; None where :meth:`latest_values` was not called yet.
        """
        if self._latest is None or self._hung:
            return None
        series = CallSeries(self._latest, (self._handle.handle, *arguments), deadlines_s, latest_s, keep, clocks)
        self._guard.repeat(series)
        return series

    def end_series(self, series: CallSeries) -> Sequence[TimedAnswer]:
        """End a series and return what has come. Where a call of it hangs, the next one finds the engine lost."""
        if not self._hung:
            try:
                self._guard.end(series)
            except TimeoutError:
                self._hung = True
                self._abandon()
        return tuple(series.answers)

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
        except DriverCallError as error:
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
            problem = f"these bindings have no {name}"
            raise CallRefusedError(f"{what}: {problem} (DCGM error {FUNCTION_NOT_FOUND})", FUNCTION_NOT_FOUND)
        return self._invoke(what, function, *arguments, patience=patience)

    def _invoke(self, what: str, function: Callable[..., Any], *arguments: Any, patience: float) -> Any:
        if self._hung:
            # Another call on this connection would wait for the one before.
            raise _hang_error(what)
        try:
            return _guarded(
                self._guard, self.bindings.structs, what, function, self._handle.handle, *arguments, patience=patience
            )
        except EngineLostError as error:
            if is_hang(error):
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
    # Not by `translated`, which would take longer than what is around a call otherwise.
    try:
        return guard.call(function, *arguments, patience=patience)
    except TimeoutError:
        raise _hang_error(what) from None
    except structs.DCGMError as error:
        raise _error_of(error, what) from error


def connect_first(bindings: Bindings, addresses: Sequence[str], timeout_s: float, guard: CallGuard) -> Engine:
    """Connect to the first address that has an engine.

    An embedded engine is started only where nobody listens: one that hangs is an engine all the same, and two on one
    host fight.

    Raises:
        SourceUnavailableError: None has; the message tells what each of them said.
    """
    refusals = []
    for address in addresses:
        try:
            return Engine.connect(bindings, address, timeout_s, guard)
        except DriverCallError as error:
            refusals.append(str(error))
            if error.code != CONNECTION_NOT_VALID:
                break
    raise SourceUnavailableError("no DCGM engine: " + "; ".join(refusals))


_CONNECT_TIMEOUT_S = 2.0
_RECONNECT_INTERVAL_S = 5.0
# Each hung call holds a thread until it returns, which may be never.
_LONGEST_RECONNECT_INTERVAL_S = 300.0
# A connection that holds for so long has ended the trouble before it.
_TROUBLE_OVER_S = 60.0


class EngineLink:
    """Connects, notes losses and hangs, and connects again.

    An engine that cannot be reached is tried every five seconds; one in which calls hang at doubling distances, and at
    once when a hung call returns: the engine moves again.

    Args:
        addresses: Where an engine may be, the preferred one first; a lost one is looked for at the first only.
        load: Finds the bindings.
        patience_s: Seconds of trouble after which the source fails; a connection that soon fails again is no end of it.
        call_limit_s: Seconds after which a call of the engine is given up.
        statistics: Counts reconnections and hung calls.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        load: Callable[[], Bindings],
        patience_s: float,
        call_limit_s: float,
        statistics: SourceStatistics,
    ) -> None:
        self.engine: Engine | None = None
        self._addresses = tuple(addresses)
        self._load = load
        self._patience_s = patience_s
        self._guard = CallGuard(call_limit_s, self._count_cost)
        self._statistics = statistics
        self._bindings: Bindings | None = None
        self._trouble_since_s: float | None = None
        self._connected_s = 0.0
        self._refusal = ""
        self._retry_due_s = 0.0
        self._hung = 0
        self._hang_distance_s = _RECONNECT_INTERVAL_S

    @property
    def address(self) -> str:
        """What it is connected to; empty for nothing."""
        return self.engine.address if self.engine is not None else ""

    @property
    def library_version(self) -> str:
        """Version of the loaded ``libdcgm``; empty for none."""
        return self._bindings.library_version if self._bindings is not None else ""

    @property
    def bindings_found(self) -> str:
        """Folder of the loaded bindings; empty for none."""
        return self._bindings.folder if self._bindings is not None else ""

    def connect(self) -> Engine:
        """Load the bindings and connect for the first time.

        Raises:
            SourceUnavailableError: No bindings or no engine; the message says what to do.
        """
        self._bindings = self._load()
        self.engine = connect_first(self._bindings, self._addresses, _CONNECT_TIMEOUT_S, self._guard)
        return self.engine

    def lose(self, error: DriverCallError, now_s: float) -> None:
        """Give the connection up; :meth:`connect_again` looks for the engine."""
        if self._trouble_since_s is None or now_s - self._connected_s >= _TROUBLE_OVER_S:
            self._trouble_since_s, self._hang_distance_s = now_s, _RECONNECT_INTERVAL_S
        self._wait(error, now_s)
        log.error("%s; trying again in %.0f s", error, self._retry_due_s - now_s)
        self.close()

    def connect_again(self, now_s: float, meet: Callable[[Engine], None]) -> None:
        """Look for the engine, if it is time to.

        Args:
            now_s: The monotonic clock.
            meet: Takes the new connection into use; what it raises refuses the connection.

        Raises:
            SourceError: There was trouble for ``patience_s``.
        """
        troubled_s = 0.0 if self._trouble_since_s is None else now_s - self._trouble_since_s
        if troubled_s >= self._patience_s:
            raise SourceError(f"{self._refusal}; given up after {troubled_s:.0f} s")
        if now_s < self._retry_due_s and not (self._hung and self._guard.hung < self._hung):
            return
        self._hung = self._guard.hung
        if self._bindings is None:
            raise SourceError("the DCGM source is not open")
        engine: Engine | None = None
        try:
            engine = Engine.connect(self._bindings, self._addresses[0], _CONNECT_TIMEOUT_S, self._guard)
            meet(engine)
        except (DriverCallError, SourceUnavailableError) as error:
            if engine is not None:
                log.warning("the DCGM engine is back but refuses: %s", error)
                engine.close()
            self._wait(error, now_s)
            return
        self.engine, self._connected_s = engine, now_s
        self._statistics.reconnects += 1
        log.warning("the DCGM engine at %s answers again", engine.address)

    def close(self) -> None:
        """Disconnect; safe to call twice."""
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.close()

    def _wait(self, error: SourceError, now_s: float) -> None:
        """Say when the engine is looked for next."""
        self._refusal = str(error)
        distance_s = _RECONNECT_INTERVAL_S
        if is_hang(error):
            self._statistics.hung_calls += 1
            distance_s = self._hang_distance_s
            self._hang_distance_s = min(2 * self._hang_distance_s, _LONGEST_RECONNECT_INTERVAL_S)
        self._hung = self._guard.hung
        self._retry_due_s = now_s + distance_s

    def _count_cost(self, processor_s: float) -> None:
        self._statistics.helper_processor_s += processor_s
