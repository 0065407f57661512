"""``DcgmSource``: all GPUs and MIG instances of this host through a DCGM host engine.

``ProfilingPause`` gives the profiling counters to another profiler for as long as a file exists: before Hopper they
belong to one profiler per host, and Nsight and CUPTI fail while DCGM reads them. ``StuckWatch`` says when a watch has
to be renewed: profiling fields of DCGM stop after hours or after an XID.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpusonde.agent.config import SourceConfig
from gpusonde.agent.inventory import CudaAttributes, read_cuda_attributes
from gpusonde.agent.sources.base import (
    LASTING_REASONS,
    Clocks,
    GpuDescription,
    GpuEventKind,
    Reading,
    SourceEvent,
    SourceInventory,
    SourceStatistics,
)
from gpusonde.agent.sources.dcgm.bindings import Bindings, DcgmDevice, Entity, load_bindings
from gpusonde.agent.sources.dcgm.connection import (
    EMBEDDED,
    GPU_IS_LOST,
    Engine,
    EngineLink,
    describe_failure,
    status_reason,
)
from gpusonde.agent.sources.dcgm.fields import INSTANT_POWER_FIELD, METRIC_OF_FIELD, XID_FIELD
from gpusonde.agent.sources.dcgm.fields_plan import Planner, Watches
from gpusonde.agent.sources.dcgm.gpu import DcgmGpu, EngineValue
from gpusonde.agent.sources.dcgm.watch import EngineDevices, Watch, describe_devices, find_engine_devices
from gpusonde.agent.sources.nvml.library import Nvml
from gpusonde.errors import CallRefusedError, DriverCallError, EngineLostError, SourceUnavailableError
from gpusonde.telemetry import METRICS, Metric, MissingReason

log = logging.getLogger(__name__)

_CHECK_INTERVAL_S = 0.5


class ProfilingPause:
    """Pauses and resumes the engine's profiling.

    The engine is never resumed by a start or an end of the agent, only when the file goes away: a profiler may be at
    work.

    Args:
        path: The file; empty for never.
        exists: Whether a path exists.
    """

    def __init__(self, path: str, exists: Callable[[str], bool] = os.path.exists) -> None:
        self._path = path
        self._exists = exists
        self._checked_s = float("-inf")
        self.paused = False

    def check(self, engine: Engine, now_s: float) -> None:
        """Look at the file, at most twice a second, and do what it says.

        Raises:
            EngineLostError: The engine is gone.
        """
        if not self._path or now_s - self._checked_s < _CHECK_INTERVAL_S:
            return
        self._checked_s = now_s
        wanted = self._exists(self._path)
        if wanted == self.paused:
            return
        try:
            if wanted:
                engine.pause_profiling()
                log.warning("%s exists: profiling metrics are paused, their values are blank", self._path)
            else:
                engine.resume_profiling()
                log.warning("%s is gone: profiling metrics are measured again", self._path)
        except CallRefusedError as error:
            log.warning("%s; tried again every %g s", error, _CHECK_INTERVAL_S)
            return
        self.paused = wanted

    def forget(self) -> None:
        """Forget the engine: another one is not paused until the file is looked at again."""
        self.paused = False
        self._checked_s = float("-inf")

    def close(self) -> None:
        """Say what is left behind."""
        if self.paused:
            log.warning(
                "the engine's profiling stays paused, because %s exists; 'dcgmi profile --resume' ends that", self._path
            )


# NVIDIA/DCGM issues 16 and 303: no new values.
_FIRST_PATIENCE_S = 3.0
_FIRST_PATIENCE_INTERVALS = 10.0
_LONGEST_PATIENCE_S = 300.0


class StuckWatch:
    """Decides when a silent watch is renewed; later and later while that does not help.

    Args:
        interval_s: Seconds between measurements.
        now_s: The monotonic clock.
    """

    def __init__(self, interval_s: float, now_s: float) -> None:
        self._first_s = max(_FIRST_PATIENCE_S, _FIRST_PATIENCE_INTERVALS * interval_s)
        self._patience_s = self._first_s
        self._since_s = now_s

    def fresh(self, now_s: float) -> None:
        """Note that there was a new value."""
        self._since_s, self._patience_s = now_s, self._first_s

    def hold(self, now_s: float) -> None:
        """Silence is expected now, so it does not count."""
        self._since_s = now_s

    def due(self, now_s: float) -> bool:
        """Whether to renew the watch now; True once per period of patience."""
        if now_s - self._since_s < self._patience_s:
            return False
        self._since_s = now_s
        self._patience_s = min(2 * self._patience_s, _LONGEST_PATIENCE_S)
        return True


# Far longer than any answer takes, and shorter than what the engine keeps: nothing is lost with an engine that is slow.
_CALL_LIMIT_S = 4.0
_SLOW_READ_INTERVAL_S = 1.0
_CLOCK_SET_BACK_US = 1_000_000
_LOST = status_reason(GPU_IS_LOST)


@dataclass(frozen=True)
class HostProbes:
    """What is found on a host beside the engine.

    Attributes:
        load_bindings: Finds DCGM's bindings, in the given folder or for an empty one wherever they are.
        load_nvml: Makes NVML, which knows more of a board than DCGM.
        cuda_attributes: Asks the CUDA driver for attributes.
    """

    load_bindings: Callable[[str], Bindings] = load_bindings
    load_nvml: Callable[[], Nvml] = Nvml.load
    cuda_attributes: Callable[[], CudaAttributes] = read_cuda_attributes


class DcgmSource:
    """Reads every GPU and MIG instance that the engine shows.

    The remote engine is asked first: a second, embedded one would fight with it for the counters before Hopper. Times
    are the engine's own. A GPU or an engine that is lost becomes an event; both are tried again. An engine that does
    not answer is given up in time, so that the sampler goes on. GPUs and instances that come later join the inventory.

    Args:
        config: How to reach the engine, what is left to other profilers, and how often is measured.
        patience_s: Seconds without an engine after which the source fails.
        call_limit_s: Seconds after which a request for values is given up; other calls may take three times as long.
        probes: What is found on this host beside the engine.
        clocks: The time, and waiting.
    """

    name = "dcgm"

    def __init__(
        self,
        config: SourceConfig,
        *,
        patience_s: float = math.inf,
        call_limit_s: float = _CALL_LIMIT_S,
        probes: HostProbes | None = None,
        clocks: Clocks | None = None,
    ) -> None:
        probes = probes or HostProbes()
        address = config.dcgm_address
        self.statistics = SourceStatistics()
        self._link = EngineLink(
            (address, *([EMBEDDED] if config.dcgm_embedded and address != EMBEDDED else [])),
            lambda: probes.load_bindings(config.dcgm_bindings),
            patience_s,
            call_limit_s,
            self.statistics,
        )
        self._slow_interval_s = config.slow_interval_s
        self._interval_s = config.interval_s
        self._probes = probes
        self._clocks = clocks or Clocks()
        self._pause = ProfilingPause(config.profiler_pause_file)
        self._watches = Watches()
        self._stuck: dict[Watch, StuckWatch] = {}
        self._cuda: CudaAttributes = {}
        self._columns: tuple[Metric, ...] = ()
        self._gpus: list[DcgmGpu] = []
        self._gpus_of: dict[Entity, list[DcgmGpu]] = {}
        self._described: dict[str, GpuDescription] = {}
        self._found: EngineDevices | None = None
        self._slow_due_s = -math.inf
        self._look_due_s = -math.inf
        self._last_us = 0

    @property
    def engine_address(self) -> str:
        """What the source is connected to; empty for nothing."""
        return self._link.address

    @property
    def library_version(self) -> str:
        """Version of the loaded ``libdcgm``; empty for none."""
        return self._link.library_version

    @property
    def bindings_found(self) -> str:
        """Folder of the loaded bindings; empty for none."""
        return self._link.bindings_found

    @property
    def refusals(self) -> Sequence[str]:
        """What the engine refused to watch, and what to do about it."""
        return tuple(self._watches.refusals)

    def open(self) -> SourceInventory:
        """Connect, find the GPUs and what each of them gives.

        Raises:
            SourceUnavailableError: No bindings, no engine, no GPU, or a refusal; the message says what to do.
        """
        engine = self._link.connect()
        try:
            return self._open(engine)
        except DriverCallError as error:
            self.close()
            raise SourceUnavailableError(str(error)) from error
        except BaseException:
            self.close()
            raise

    def read(self, deadline_s: float) -> Reading:
        """Fetch what the engine measured since the last call.

        Raises:
            SourceError: There was no engine for ``patience_s``, or it hangs again and again.
        """
        events: list[SourceEvent] = []
        now_us = self._clocks.wall_ns() // 1000
        if now_us < self._last_us - _CLOCK_SET_BACK_US:
            for gpu in self._gpus:
                gpu.restart()
        self._last_us = now_us
        if self._link.engine is None:
            self._link.connect_again(deadline_s, self._meet_again)
        inventory = self._join(deadline_s, events)
        if self._link.engine is not None and self._found is None:
            try:
                self._fetch(self._link.engine, deadline_s, events)
            except EngineLostError as error:
                self._lose_engine(error, deadline_s, events)
        ticks = []
        for gpu in self._gpus:
            # Before the columns change, ticks that are not whole are given as they are.
            gpu.collect(None if self._found is not None else now_us, deadline_s)
            following = gpu.next_ticks()
            if following is not None:
                ticks.append(following)
        self.statistics.suspect_ticks = sum(gpu.suspect_ticks for gpu in self._gpus)
        self.statistics.capped_ratios = sum(gpu.capped_ratios for gpu in self._gpus)
        more = any(gpu.has_pending for gpu in self._gpus) or (self._found is not None and self._link.engine is not None)
        return Reading(tuple(ticks), tuple(events), more, inventory)

    def progress(self) -> None:
        """Hardware has no end."""

    def close(self) -> None:
        """End the watches, then the connection."""
        if self._link.engine is None:
            return
        self._pause.close()
        self._watches.close()
        self._link.close()

    def _open(self, engine: Engine) -> SourceInventory:
        found = find_engine_devices(engine, self._probes.load_nvml)
        watches = self._watch(engine, found.devices)
        first = watches.first_values(min(self._interval_s, 0.1), self._clocks.sleep)
        for _, value in first:
            _note_missing(value, watches.missing)
        self._cuda = self._probes.cuda_attributes()
        now_s = self._clocks.monotonic()
        inventory = self._make_inventory(found, now_s, [])
        for watch, value in first:
            for gpu in self._gpus_of.get(value.entity, ()):
                gpu.take(watch, value, now_s)
        log.info("DCGM %s, engine at %s", self.library_version or "of unknown version", engine.address)
        return inventory

    def _watch(self, engine: Engine, devices: Sequence[DcgmDevice]) -> Watches:
        self._watches = Planner(engine, devices, self._interval_s, self._slow_interval_s, self._clocks.wall_ns).open()
        now_s = self._clocks.monotonic()
        self._stuck = {watch: StuckWatch(self._interval_s, now_s) for watch in self._watches.fast}
        self._slow_due_s = -math.inf
        self._look_due_s = now_s + self._slow_interval_s
        return self._watches

    def _make_inventory(self, found: EngineDevices, now_s: float, events: list[SourceEvent]) -> SourceInventory:
        """Say what the devices give. Those that were there keep their place and their counts; columns only grow."""
        known = {gpu.key: gpu for gpu in self._gpus}
        devices = {device.key: device for device in found.devices}
        missing = self._watches.missing
        for device in found.devices:
            for metric in METRICS:
                if metric.dcgm_field_id is None and metric.name != "xid_count":
                    missing[device.entity].setdefault(metric.name, MissingReason.NOT_SUPPORTED)
        given = {m.name for m in self._columns}
        given |= {m.name for m in METRICS if any(m.name not in missing[d.entity] for d in found.devices)}
        self._columns = tuple(m for m in METRICS if m.name in given)
        described = describe_devices(found, missing, self._probes.load_nvml, self._cuda)
        self._described = {**self._described, **described}
        self._gpus, self._gpus_of = [], {}
        for index, key in enumerate(dict.fromkeys((*known, *devices))):
            there = devices.get(key)
            lacking = known[key].missing if there is None else missing[there.entity]
            is_part = bool(self._described[key].mig_uuid)
            gpu = DcgmGpu(key, index, self._columns, lacking, self._interval_s, now_s, is_part=is_part)
            if key in known:
                gpu.succeed(known[key])
            self._gpus.append(gpu)
            if there is None:
                self._lose(gpu, "it is gone", events)
            else:
                self._gpus_of.setdefault(there.entity, []).append(gpu)
        return SourceInventory(
            source=self.name,
            gpus=tuple(self._described[gpu.key] for gpu in self._gpus),
            metrics=self._columns,
            interval_s=self._interval_s,
            multiplexed=self._watches.multiplexed,
        )

    def _fetch(self, engine: Engine, now_s: float, events: list[SourceEvent]) -> None:
        self._pause.check(engine, now_s)
        profiling = set(self._watches.profiling)
        for watch in self._watches.fast:
            if self._read_watch(watch, now_s, events):
                self._stuck[watch].fresh(now_s)
            elif self._pause.paused and watch in profiling:
                self._stuck[watch].hold(now_s)
            if self._stuck[watch].due(now_s):
                self._renew(watch, "gave nothing new")
        if now_s >= self._slow_due_s:
            self._slow_due_s = now_s + _SLOW_READ_INTERVAL_S
            for watch in self._watches.slow:
                self._read_watch(watch, now_s, events)
        self._renew_zeros(now_s)
        for gpu in self._gpus:
            if gpu.is_silent(now_s):
                self._lose(gpu, "no values any more", events)
        if now_s >= self._look_due_s:
            self._look_again(engine, now_s)

    def _read_watch(self, watch: Watch, now_s: float, events: list[SourceEvent]) -> bool:
        """Hand a watch's new values to their GPUs; return whether there were any with a time."""
        try:
            values = watch.read()
        except CallRefusedError as error:
            log.debug("%s", error)
            return False
        decides = watch in self._watches.plain
        for value in values:
            for gpu in self._gpus_of.get(value.entity, ()):
                if decides and (gpu.lost or value.number is _LOST):
                    self._follow_loss(gpu, value, events)
                xid = gpu.take(watch.name, value, now_s)
                if xid is not None:
                    log.error("GPU %s reports XID %d", gpu.key, xid)
                    events.append(SourceEvent(gpu.index, value.time_us * 1000, GpuEventKind.XID, xid))
        newest_us = max((value.time_us for value in values), default=0)
        if newest_us and watch in self._stuck:
            self.statistics.lag_s = max(0.0, self._clocks.wall_ns() / 1e9 - newest_us / 1e6)
        return newest_us > 0

    def _follow_loss(self, gpu: DcgmGpu, value: EngineValue, events: list[SourceEvent]) -> None:
        if value.number is _LOST:
            self._lose(gpu, "DCGM says so", events)
        elif gpu.lost and value.time_us and not isinstance(value.number, MissingReason):
            gpu.lost = False
            gpu.restart()
            events.append(SourceEvent(gpu.index, self._clocks.wall_ns(), GpuEventKind.RECOVERED))
            log.warning("GPU %s answers again", gpu.key)

    def _lose(self, gpu: DcgmGpu, why: str, events: list[SourceEvent]) -> None:
        if gpu.lost:
            return
        gpu.lost = True
        events.append(SourceEvent(gpu.index, self._clocks.wall_ns(), GpuEventKind.LOST))
        log.error("GPU %s is lost (%s); going on with the others", gpu.key, why)

    def _renew(self, watch: Watch, why: str) -> None:
        log.warning("the watch %s %s: renewing it", watch.name, why)
        try:
            watch.renew()
        except CallRefusedError as error:
            if watch is self._watches.plain[0]:
                # Silent, and not even the plain metrics can be watched again: only a new connection can help.
                raise _engine_lost(self.engine_address, error) from error
            log.warning("%s; tried again later", error)

    def _renew_zeros(self, now_s: float) -> None:
        if self._pause.paused:
            return
        for watch in self._watches.profiling:
            due = [gpu.zeros.due(now_s) for entity in watch.entities for gpu in self._gpus_of.get(entity, ())]
            if any(due):
                self._renew(watch, "says zero although kernels run; its values are blank until they change")

    def _lose_engine(self, error: EngineLostError, now_s: float, events: list[SourceEvent]) -> None:
        self._link.lose(error, now_s)
        self._found = None
        self._pause.forget()
        for gpu in self._gpus:
            self._lose(gpu, "the engine is gone", events)

    def _meet_again(self, engine: Engine) -> None:
        """Watch what a new connection shows. The engine's numbers may have changed, and there may be new GPUs."""
        found = find_engine_devices(engine, self._probes.load_nvml)
        keys = {device.key for device in found.devices}
        if not keys & {gpu.key for gpu in self._gpus}:
            raise SourceUnavailableError("it shows none of the GPUs that were sampled")
        known = {gpu.key: gpu for gpu in self._gpus}
        devices = [device for device in found.devices if device.key in known]
        self._watch(engine, devices)
        self._gpus_of = {}
        for device in devices:
            self._gpus_of.setdefault(device.entity, []).append(known[device.key])
        if keys - known.keys():
            self._found = found

    def _look_again(self, engine: Engine, now_s: float) -> None:
        """See whether GPUs or MIG instances have come or gone; the inventory follows at the next reading."""
        self._look_due_s = now_s + self._slow_interval_s
        try:
            found = find_engine_devices(engine, self._probes.load_nvml)
        except EngineLostError:
            raise
        except (DriverCallError, SourceUnavailableError) as error:
            log.debug("looking for GPUs: %s", error)
            return
        watched = {gpu.key: entity for entity, gpus in self._gpus_of.items() for gpu in gpus}
        if {device.key: device.entity for device in found.devices} != watched:
            self._found = found

    def _join(self, now_s: float, events: list[SourceEvent]) -> SourceInventory | None:
        """Take what was found into the inventory, once the ticks of the old one are delivered."""
        found, engine = self._found, self._link.engine
        if found is None or engine is None or any(gpu.has_pending for gpu in self._gpus):
            return None
        self._found = None
        before = len(self._gpus)
        try:
            self._watches.close()
            self._watch(engine, found.devices)
        except DriverCallError as error:
            self._lose_engine(_engine_lost(engine.address, error), now_s, events)
            return None
        self.statistics.inventories += 1
        inventory = self._make_inventory(found, now_s, events)
        log.warning("the GPUs have changed: %d are sampled now, %d before", len(found.devices), before)
        return inventory


def _note_missing(value: EngineValue, missing: Mapping[Entity, dict[str, MissingReason]]) -> None:
    if value.field_id == XID_FIELD or value.entity not in missing:
        return
    name = METRIC_OF_FIELD[value.field_id].name
    if not isinstance(value.number, MissingReason):
        missing[value.entity].pop(name, None)
    elif value.number in LASTING_REASONS and value.field_id != INSTANT_POWER_FIELD:
        missing[value.entity][name] = value.number


def _engine_lost(address: str, error: DriverCallError) -> EngineLostError:
    return EngineLostError(describe_failure(f"engine at {address}", error.code, str(error)), error.code)
