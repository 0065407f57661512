"""``DcgmSource``: all GPUs of this host through a DCGM host engine."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpusonde.agent.inventory import CudaAttributes, read_cuda_attributes
from gpusonde.agent.sources.base import (
    GpuDescription,
    GpuEvent,
    GpuEventKind,
    Reading,
    SourceFailedError,
    SourceInventory,
    SourceStatistics,
    SourceUnavailableError,
)
from gpusonde.agent.sources.dcgm.bindings import Bindings, load_bindings
from gpusonde.agent.sources.dcgm.describe import describe_gpus, gpu_uuid
from gpusonde.agent.sources.dcgm.engine import EMBEDDED, Engine, connect_first
from gpusonde.agent.sources.dcgm.errors import GPU_IS_LOST, DcgmCallError, EngineLostError, status_reason
from gpusonde.agent.sources.dcgm.fields import XID_FIELD
from gpusonde.agent.sources.dcgm.gpu import DcgmGpu
from gpusonde.agent.sources.dcgm.pause import ProfilingPause
from gpusonde.agent.sources.dcgm.plan import Watches, open_watches
from gpusonde.agent.sources.dcgm.stuck import StuckWatch
from gpusonde.agent.sources.dcgm.values import EngineValue
from gpusonde.agent.sources.dcgm.watch import Watch
from gpusonde.agent.sources.nvml.library import Nvml
from gpusonde.agent.sources.plausibility import LASTING_REASONS
from gpusonde.telemetry import METRIC_BY_DCGM_FIELD_ID, METRICS, BlankReason, Metric

log = logging.getLogger(__name__)

DEFAULT_ADDRESS = "127.0.0.1:5555"
_CONNECT_TIMEOUT_S = 2.0
_RECONNECT_INTERVAL_S = 5.0
# The engine answers a new watch at its next round; this is how long open() waits to learn what the GPUs give.
_FIRST_VALUES_S = 2.0
_SLOW_READ_INTERVAL_S = 1.0
_CLOCK_SET_BACK_US = 1_000_000
_LOST = status_reason(GPU_IS_LOST)


class DcgmSource:
    """Reads every GPU that the engine shows.

    The remote engine is asked first: a second, embedded one would fight with it for the counters before Hopper. Times
    are the engine's own. A GPU or an engine that is lost becomes an event; both are tried again.

    Args:
        address: The host engine: ``HOST:PORT`` or ``unix:///PATH``; ``embedded`` for none.
        embedded: Start an engine in this process when none answers there.
        bindings_folder: Where the bindings are; empty to look for them.
        pause_file: While this file exists, the profiling counters are left to another profiler; empty for never.
        slow_interval_s: Seconds between measurements of the slow metrics.
        interval_s: Seconds between ticks.
        patience_s: Seconds without an engine after which the source fails.
        load: Finds the bindings.
        load_nvml: Makes NVML, which knows more of a board than DCGM.
        cuda_attributes: Asks the CUDA driver for attributes.
        wall_ns: Unix time in nanoseconds.
        monotonic: Seconds, never set back.
        sleep: Waits for seconds.
    """

    name = "dcgm"

    def __init__(
        self,
        *,
        address: str = DEFAULT_ADDRESS,
        embedded: bool = True,
        bindings_folder: str = "",
        pause_file: str = "",
        slow_interval_s: float = 10.0,
        interval_s: float = 0.1,
        patience_s: float = math.inf,
        load: Callable[[str], Bindings] = load_bindings,
        load_nvml: Callable[[], Nvml] = Nvml.load,
        cuda_attributes: Callable[[], CudaAttributes] = read_cuda_attributes,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._addresses = (address, *([EMBEDDED] if embedded and address != EMBEDDED else []))
        self._bindings_folder = bindings_folder
        self._slow_interval_s = slow_interval_s
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._load = load
        self._load_nvml = load_nvml
        self._cuda_attributes = cuda_attributes
        self._wall_ns = wall_ns
        self._monotonic = monotonic
        self._sleep = sleep
        self.statistics = SourceStatistics()
        self._pause = ProfilingPause(pause_file)
        self._bindings: Bindings | None = None
        self._engine: Engine | None = None
        self._watches = Watches()
        self._stuck: dict[Watch, StuckWatch] = {}
        self._gpus: list[DcgmGpu] = []
        self._gpu_of_id: dict[int, DcgmGpu] = {}
        self._slow_due_s = -math.inf
        self._lost_s = 0.0
        self._retry_due_s = 0.0
        self._last_us = 0

    @property
    def engine_address(self) -> str:
        """What the source is connected to; empty for nothing."""
        return self._engine.address if self._engine is not None else ""

    @property
    def library_version(self) -> str:
        """Version of the loaded ``libdcgm``; empty for none."""
        return self._bindings.library_version if self._bindings is not None else ""

    @property
    def bindings_found(self) -> str:
        """Folder of the loaded bindings; empty for none."""
        return self._bindings.folder if self._bindings is not None else ""

    @property
    def refusals(self) -> Sequence[str]:
        """What the engine refused to watch, and what to do about it."""
        return tuple(self._watches.refusals)

    def open(self) -> SourceInventory:
        """Connect, find the GPUs and what each of them gives.

        Raises:
            SourceUnavailableError: No bindings, no engine, no GPU, or a refusal; the message says what to do.
        """
        self._bindings = self._load(self._bindings_folder)
        self._engine = connect_first(self._bindings, self._addresses, _CONNECT_TIMEOUT_S)
        try:
            return self._open(self._engine)
        except DcgmCallError as error:
            self.close()
            raise SourceUnavailableError(str(error)) from error
        except BaseException:
            self.close()
            raise

    def read(self, deadline_s: float) -> Reading:
        """Fetch what the engine measured since the last call.

        Raises:
            SourceFailedError: There was no engine for ``patience_s``.
        """
        events: list[GpuEvent] = []
        now_us = self._wall_ns() // 1000
        if now_us < self._last_us - _CLOCK_SET_BACK_US:
            for gpu in self._gpus:
                gpu.restart()
        self._last_us = now_us
        if self._engine is None:
            self._try_reconnect(deadline_s, events)
        if self._engine is not None:
            try:
                self._fetch(self._engine, deadline_s, events)
            except EngineLostError as error:
                self._lose_engine(error, deadline_s, events)
        ticks = []
        for gpu in self._gpus:
            gpu.collect(now_us, deadline_s)
            following = gpu.next_ticks()
            if following is not None:
                ticks.append(following)
        return Reading(tuple(ticks), tuple(events), more=any(gpu.has_pending for gpu in self._gpus))

    def progress(self) -> None:
        """Hardware has no end."""

    def close(self) -> None:
        """End the watches, then the connection."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        self._pause.close()
        self._watches.close()
        engine.close()

    def _open(self, engine: Engine) -> SourceInventory:
        attributes = self._attributes(engine)
        self._watches = open_watches(engine, tuple(attributes), self._interval_s, self._slow_interval_s, self._wall_ns)
        first = self._first_values(tuple(attributes))
        missing = self._watches.missing
        for watch, value in first:
            self._note_missing(watch, value, missing)
        for gpu_id in attributes:
            missing[gpu_id].update(
                {
                    m.name: BlankReason.NOT_SUPPORTED
                    for m in METRICS
                    if m.dcgm_field_id is None and m.name != "xid_count"
                }
            )
        columns = tuple(m for m in METRICS if any(m.name not in missing[gpu_id] for gpu_id in attributes))
        now_s = self._monotonic()
        self._make_gpus(attributes, columns, now_s)
        for watch, value in first:
            self._gpu_of_id[value.gpu_id].take(watch, value, now_s)
        log.info("DCGM %s, engine at %s", self.library_version or "of unknown version", engine.address)
        return SourceInventory(
            source=self.name,
            gpus=self._describe(attributes, missing),
            metrics=columns,
            interval_s=self._interval_s,
            multiplexed=self._watches.multiplexed,
        )

    def _attributes(self, engine: Engine) -> dict[int, Any]:
        attributes = {}
        for gpu_id in engine.gpu_ids():
            try:
                attributes[gpu_id] = engine.gpu_attributes(gpu_id)
            except EngineLostError:
                raise
            except DcgmCallError as error:
                log.warning("GPU %d cannot be sampled (%s); going on with the others", gpu_id, error)
        if not attributes:
            raise SourceUnavailableError(
                f"the DCGM engine at {engine.address} shows no GPU that answers: see 'dcgmi discovery -l' and "
                "'nvidia-smi -L'"
            )
        return attributes

    def _first_values(self, gpu_ids: Sequence[int]) -> list[tuple[str, EngineValue]]:
        """Read until every GPU answered for every field, or for two seconds."""
        watches = [*self._watches.fast, *self._watches.slow]
        self._stuck = {watch: StuckWatch(self._interval_s, self._monotonic()) for watch in self._watches.fast}
        open_questions = {(g, f) for w in watches for g in w.gpu_ids for f in w.field_ids if f != XID_FIELD}
        values: list[tuple[str, EngineValue]] = []
        for _ in range(math.ceil(_FIRST_VALUES_S / min(self._interval_s, 0.1))):
            self._sleep(min(self._interval_s, 0.1))
            for watch in watches:
                fresh = watch.read()
                values += [(watch.name, value) for value in fresh]
                open_questions -= {(value.gpu_id, value.field_id) for value in fresh}
            if not open_questions:
                break
        return [(watch, value) for watch, value in values if value.gpu_id in gpu_ids]

    def _note_missing(self, watch: str, value: EngineValue, missing: dict[int, dict[str, BlankReason]]) -> None:
        if value.field_id == XID_FIELD:
            return
        name = METRIC_BY_DCGM_FIELD_ID[value.field_id].name
        if isinstance(value.number, BlankReason):
            if value.number in LASTING_REASONS:
                missing[value.gpu_id][name] = value.number
        else:
            missing[value.gpu_id].pop(name, None)

    def _make_gpus(self, attributes: dict[int, Any], columns: Sequence[Metric], now_s: float) -> None:
        self._gpus = []
        for index, (gpu_id, facts) in enumerate(attributes.items()):
            gpu = DcgmGpu(gpu_uuid(facts), index, columns, self._watches.missing[gpu_id], self._interval_s, now_s)
            self._gpus.append(gpu)
            self._gpu_of_id[gpu_id] = gpu

    def _describe(
        self, attributes: dict[int, Any], missing: dict[int, dict[str, BlankReason]]
    ) -> tuple[GpuDescription, ...]:
        described = describe_gpus(attributes, missing, self._load_nvml, self._cuda_attributes())
        return tuple(described[gpu_id] for gpu_id in attributes)

    def _fetch(self, engine: Engine, now_s: float, events: list[GpuEvent]) -> None:
        self._pause.check(engine, now_s)
        for watch in self._watches.fast:
            if self._read_watch(watch, now_s, events):
                self._stuck[watch].fresh(now_s)
            elif self._pause.paused and watch is not self._watches.fast[0]:
                self._stuck[watch].hold(now_s)
            if self._stuck[watch].due(now_s):
                self._renew(watch, "gave nothing new")
        if now_s >= self._slow_due_s:
            self._slow_due_s = now_s + _SLOW_READ_INTERVAL_S
            for watch in self._watches.slow:
                self._read_watch(watch, now_s, events)
        self._renew_zeros(now_s)
        self._lose_silent(now_s, events)

    def _read_watch(self, watch: Watch, now_s: float, events: list[GpuEvent]) -> bool:
        """Hand a watch's new values to their GPUs; return whether there were any with a time."""
        try:
            values = watch.read()
        except EngineLostError:
            raise
        except DcgmCallError as error:
            log.debug("%s", error)
            return False
        for value in values:
            gpu = self._gpu_of_id.get(value.gpu_id)
            if gpu is None:
                continue
            self._follow_loss(gpu, watch, value, events)
            xid = gpu.take(watch.name, value, now_s)
            if xid is not None:
                log.error("GPU %s reports XID %d", gpu.gpu_uuid, xid)
                events.append(GpuEvent(gpu.index, value.time_us * 1000, GpuEventKind.XID, xid))
        return any(value.time_us for value in values)

    def _follow_loss(self, gpu: DcgmGpu, watch: Watch, value: EngineValue, events: list[GpuEvent]) -> None:
        if watch is not self._watches.fast[0]:
            return
        if value.number is _LOST:
            self._lose(gpu, "DCGM says so", events)
        elif gpu.lost and value.time_us and not isinstance(value.number, BlankReason):
            gpu.lost = False
            gpu.restart()
            events.append(GpuEvent(gpu.index, self._wall_ns(), GpuEventKind.RECOVERED))
            log.warning("GPU %s answers again", gpu.gpu_uuid)

    def _lose(self, gpu: DcgmGpu, why: str, events: list[GpuEvent]) -> None:
        if gpu.lost:
            return
        gpu.lost = True
        events.append(GpuEvent(gpu.index, self._wall_ns(), GpuEventKind.LOST))
        log.error("GPU %s is lost (%s); going on with the others", gpu.gpu_uuid, why)

    def _lose_silent(self, now_s: float, events: list[GpuEvent]) -> None:
        for gpu in self._gpus:
            if gpu.is_silent(now_s):
                self._lose(gpu, "no values any more", events)

    def _renew(self, watch: Watch, why: str) -> None:
        log.warning("the watch %s %s: renewing it", watch.name, why)
        try:
            watch.renew()
        except EngineLostError:
            raise
        except DcgmCallError as error:
            if watch is self._watches.fast[0]:
                # Silent, and not even the plain metrics can be watched again: only a new connection can help.
                raise EngineLostError(f"engine at {self.engine_address}", error.code, str(error)) from error
            log.warning("%s; tried again later", error)

    def _renew_zeros(self, now_s: float) -> None:
        if self._pause.paused:
            return
        for watch in self._watches.fast[1:]:
            due = [self._gpu_of_id[g].zeros.due(now_s) for g in watch.gpu_ids if g in self._gpu_of_id]
            if any(due):
                self._renew(watch, "says zero although kernels run; its values are blank until they change")

    def _lose_engine(self, error: EngineLostError, now_s: float, events: list[GpuEvent]) -> None:
        log.error("%s; trying again every %g s", error, _RECONNECT_INTERVAL_S)
        if self._engine is not None:
            self._engine.close()
        self._engine, self._lost_s, self._retry_due_s = None, now_s, now_s + _RECONNECT_INTERVAL_S
        self._pause.forget()
        for gpu in self._gpus:
            self._lose(gpu, "the engine is gone", events)

    def _try_reconnect(self, now_s: float, events: list[GpuEvent]) -> None:
        if now_s < self._retry_due_s:
            return
        self._retry_due_s = now_s + _RECONNECT_INTERVAL_S
        if self._bindings is None:
            raise SourceFailedError("the DCGM source is not open")
        try:
            engine = connect_first(self._bindings, self._addresses[:1], _CONNECT_TIMEOUT_S)
        except SourceUnavailableError as error:
            log.debug("%s", error)
            if now_s - self._lost_s >= self._patience_s:
                raise SourceFailedError(f"{error}; given up after {now_s - self._lost_s:.0f} s") from error
            return
        try:
            self._watch_again(engine, now_s)
        except (DcgmCallError, SourceUnavailableError) as error:
            log.warning("the DCGM engine is back but refuses: %s", error)
            engine.close()
            return
        self._engine = engine
        log.warning("the DCGM engine at %s answers again", engine.address)

    def _watch_again(self, engine: Engine, now_s: float) -> None:
        """Watch the same GPUs on a new connection. Their ids may have changed; new GPUs wait for the next start."""
        known = {gpu.gpu_uuid: gpu for gpu in self._gpus}
        ids = {
            gpu_id: known[uuid]
            for gpu_id, facts in self._attributes(engine).items()
            if (uuid := gpu_uuid(facts)) in known
        }
        if not ids:
            raise SourceUnavailableError("it shows none of the GPUs that were sampled")
        self._watches = open_watches(engine, tuple(ids), self._interval_s, self._slow_interval_s, self._wall_ns)
        self._stuck = {watch: StuckWatch(self._interval_s, now_s) for watch in self._watches.fast}
        self._gpu_of_id = ids
        self._slow_due_s = -math.inf
