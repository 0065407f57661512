"""``DcgmSource``: all GPUs and MIG instances of this host through a DCGM host engine."""

from __future__ import annotations

import collections
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.agent.config import SourceConfig
from gpusonde.agent.inventory import CudaAttributes, read_cuda_attributes
from gpusonde.agent.sources.base import (
    Clocks,
    GpuDescription,
    GpuEventKind,
    GpuTicks,
    Reading,
    SourceEvent,
    SourceInventory,
    SourceStatistics,
)
from gpusonde.agent.sources.dcgm.bindings import Bindings, DcgmDevice, Entity, load_bindings
from gpusonde.agent.sources.dcgm.calls import CallSeries, TimedAnswer
from gpusonde.agent.sources.dcgm.connection import (
    EMBEDDED,
    GPU_IS_LOST,
    Engine,
    EngineLink,
    describe_failure,
)
from gpusonde.agent.sources.dcgm.devices import EngineDevices, describe_devices, find_engine_devices
from gpusonde.agent.sources.dcgm.fields import EVERY_PROFILING_FIELD, METRIC_OF_FIELD, XID_FIELD
from gpusonde.agent.sources.dcgm.fields_plan import Planner, Watches
from gpusonde.agent.sources.dcgm.gpu import PLAIN, PROFILING, DcgmGpu
from gpusonde.agent.sources.dcgm.holes import HoleFiller, ReaderRow
from gpusonde.agent.sources.dcgm.pause import ProfilingPause
from gpusonde.agent.sources.dcgm.raw_ticks import DcgmTicks, SteadyTicks
from gpusonde.agent.sources.dcgm.steady import LookPhase, Steady, is_in_order
from gpusonde.agent.sources.dcgm.tick_grid import IndexArray
from gpusonde.agent.sources.dcgm.watch import LatestValues, StuckWatch, Watch
from gpusonde.agent.sources.nvml.library import Nvml
from gpusonde.errors import CallRefusedError, DriverCallError, EngineLostError, SourceUnavailableError
from gpusonde.telemetry import METRICS, Metric, MissingReason

log = logging.getLogger(__name__)

# Far longer than any answer takes, and shorter than what the engine keeps: nothing is lost with an engine that is slow.
_CALL_LIMIT_S = 4.0
_SLOW_READ_INTERVAL_S = 1.0
_CLOCK_SET_BACK_US = 1_000_000
# Fewer looks than this are not worth a series. One that is later than this share of an interval is left out.
_LEAST_AHEAD, _LATEST = 2, 0.5
_ROUNDING_S = 1e-3


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
        self._last_us = self._step_us = self._due_us = 0
        self._rows: list[tuple[LatestValues, list[ReaderRow]]] = []
        self._learned: dict[str, dict[str, MissingReason]] = {}
        self._never_given: dict[str, dict[str, MissingReason]] = {}
        self._silent: Mapping[int, str] = {}
        self._rewatched = False
        self._began_us = 0
        self._xid_seen_us: dict[str, int] = {}
        self._holes = HoleFiller(config.interval_s, config.rate == "adaptive")
        self._steady: Steady | None = None
        self._settled: LatestValues | None = None
        self._series: CallSeries | None = None
        self._answers: collections.deque[TimedAnswer] = collections.deque()
        self._phase = LookPhase(config.interval_s)
        self._shift_s = 0.0

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
        self._end_series()
        if (steady := self._steady) is not None and (taken := self._take_answers(steady)) is not None:
            return taken
        if self._answers:
            answer = self._answers.popleft()
            reading = self._read(answer.look.deadline_s, answer)
            reading.more, reading.looks = True, (answer.look,)
            return reading
        return self._read(deadline_s, None)

    def _read(self, deadline_s: float, answer: TimedAnswer | None) -> Reading:
        """Take what the engine measured up to a deadline, in an answer that is there or one that is asked for."""
        events: list[SourceEvent] = []
        if answer is None:
            now_us, late_s = self._clocks.wall_ns() // 1000, self._clocks.monotonic() - deadline_s
        else:
            now_us, late_s = answer.look.wall_ns // 1000, answer.look.ended_s - deadline_s
        if now_us < self._last_us - _CLOCK_SET_BACK_US:
            self._leave_steady()
            for gpu in self._gpus:
                gpu.restart(deadline_s)
        before_us, self._last_us = self._last_us, now_us
        self._step_us = now_us - before_us
        self._due_us = now_us - round(late_s * 1e6)
        if self._link.engine is None:
            self._link.connect_again(deadline_s, self._meet_again)
        # What was answered so far is of the GPUs and watches so far.
        inventory = None if self._found is None or self._answers else self._join(deadline_s, events)
        self._shift_s = 0.0
        if self._link.engine is not None and not self._rewatched:
            try:
                steady = self._fetch(self._link.engine, deadline_s, events, answer)
            except EngineLostError as error:
                self._lose_engine(error, deadline_s, events)
            else:
                if steady is not None:
                    return Reading(
                        steady,
                        tuple(events),
                        inventory=inventory,
                        tick_count=len(self._gpus),
                        shift_s=self._shift_s,
                        look_ahead=self._look_ahead,
                    )
        for gpu in self._gpus:
            # Before the columns change, ticks that are not whole are given as they are.
            gpu.collect(None if self._rewatched else now_us, deadline_s)
        ticks: Sequence[GpuTicks]
        if max((gpu.pending for gpu in self._gpus), default=0) <= 1:
            single = ((gpu.index, gpu.only_tick()) for gpu in self._gpus)
            ticks = DcgmTicks([(index, tick) for index, tick in single if tick is not None])
        else:
            several = (gpu.next_ticks() for gpu in self._gpus)
            ticks = tuple(part for part in several if part is not None)
        self.statistics.suspect_ticks = sum(gpu.suspect_ticks for gpu in self._gpus)
        self.statistics.capped_ratios = sum(gpu.capped_ratios for gpu in self._gpus)
        more = any(gpu.has_pending for gpu in self._gpus) or (self._rewatched and self._link.engine is not None)
        settled, self._settled = self._settled, None
        if settled is not None and len(ticks) == len(self._gpus):
            self._begin_steady(settled, deadline_s)
        return Reading(ticks, tuple(events), more, inventory, shift_s=self._shift_s)

    def _look_ahead(self, next_s: float, interval_s: float, until_s: float) -> int:
        """Look at deadlines that follow, see :attr:`Reading.look_ahead`: the guard's thread asks, and nobody waits."""
        steady = self._steady
        in_time = self._holes.is_in_time(self._holes.step_s) and self._holes.is_in_time(interval_s)
        if steady is None or not in_time or self._series is not None:
            return 0
        until_s = min(until_s, self._slow_due_s, self._look_due_s, self._pause.due_s)
        count = math.ceil((until_s - _ROUNDING_S - next_s) / interval_s)
        if count < _LEAST_AHEAD:
            return 0
        deadlines_s = [next_s + number * interval_s for number in range(count)]
        self._series = steady.latest.ask_at(deadlines_s, _LATEST * interval_s, self._clocks)
        return 0 if self._series is None else count

    def _end_series(self) -> None:
        """Have the answers to the looks that were taken since the last reading."""
        series, self._series = self._series, None
        if series is not None and self._link.engine is not None:
            self._answers.extend(self._link.engine.end_series(series))

    def _take_answers(self, steady: Steady) -> Reading | None:
        """Take the oldest answers that are ticks as they are, if the first is."""
        count = steady.fits([answer.content for answer in self._answers]) if self._answers else 0
        if not count:
            return None
        looks = [self._answers.popleft().look for _ in range(count)]
        for look in looks:
            self._holes.look(look.deadline_s)
            now_us = look.wall_ns // 1000
            self._step_us, self._last_us = now_us - self._last_us, now_us
        ticks = steady.take(count, looks[-1].deadline_s)
        return Reading(ticks, more=True, tick_count=count * len(self._gpus), looks=looks)

    def progress(self) -> None:
        """Hardware has no end."""

    def close(self) -> None:
        """End the watches, then the connection."""
        if self._link.engine is None:
            return
        self._end_series()
        self._answers.clear()
        self._pause.close()
        self._watches.close()
        self._link.close()

    def _open(self, engine: Engine) -> SourceInventory:
        self._began_us = self._clocks.wall_ns() // 1000
        found = self._find(engine)
        watches = self._plan(engine, found.devices)
        learned = watches.learn_missing(min(self._interval_s, 0.1), self._clocks.sleep)
        self._learned = {device.key: learned.get(device.entity, {}) for device in found.devices}
        self._never_given = {}
        self._cuda = self._probes.cuda_attributes()
        inventory = self._make_inventory(found, self._clocks.monotonic(), [])
        log.info("DCGM %s, engine at %s", self.library_version or "of unknown version", engine.address)
        return inventory

    def _find(self, engine: Engine) -> EngineDevices:
        found = find_engine_devices(engine, self._probes.load_nvml)
        for gpu_id, why in found.silent.items():
            if gpu_id not in self._silent:
                log.warning("GPU %d cannot be sampled (%s); going on with the others", gpu_id, why)
        self._silent = found.silent
        return found

    def _plan(self, engine: Engine, devices: Sequence[DcgmDevice]) -> Watches:
        """Watch devices. What was watched before ends afterwards, so that the engine does not stop recording."""
        self._leave_steady()
        planned = Planner(engine, devices, self._interval_s, self._slow_interval_s).open()
        before, self._watches = self._watches, planned
        seen: dict[tuple[Entity, int], int] = {}
        for latest in before.latest:
            seen |= latest.seen()
        for latest in planned.latest:
            latest.continue_from(seen)
        before.close()
        now_s = self._clocks.monotonic()
        self._stuck = {watch: StuckWatch(self._interval_s, now_s) for watch in planned.fast}
        self._slow_due_s = -math.inf
        self._look_due_s = now_s + self._slow_interval_s
        for device in devices:
            for metric in METRICS:
                if metric.dcgm_field_id is None and metric.name != "xid_count":
                    planned.missing[device.entity].setdefault(metric.name, MissingReason.NOT_SUPPORTED)
        return planned

    def _lacking(self, device: DcgmDevice) -> dict[str, MissingReason]:
        return {
            **self._never_given.get(device.key, {}),
            **self._learned.get(device.key, {}),
            **self._watches.missing[device.entity],
        }

    def _columns_of(self, devices: Sequence[DcgmDevice]) -> tuple[Metric, ...]:
        """Return the columns with which these devices are sampled too; columns only grow."""
        given = {m.name for m in self._columns}
        for device in devices:
            given |= {m.name for m in METRICS} - self._lacking(device).keys()
        return tuple(m for m in METRICS if m.name in given)

    def _make_inventory(self, found: EngineDevices, now_s: float, events: list[SourceEvent]) -> SourceInventory:
        """Say what the devices give. Those that were there keep their place and their counts."""
        known = {gpu.key: gpu for gpu in self._gpus}
        devices = {device.key: device for device in found.devices}
        before, self._columns = self._columns, self._columns_of(found.devices)
        missing = {device.entity: self._lacking(device) for device in found.devices}
        described = describe_devices(found, missing, self._probes.load_nvml, self._cuda)
        self._described = {**self._described, **described}
        self._gpus = []
        for index, key in enumerate(dict.fromkeys((*known, *devices))):
            there, gpu = devices.get(key), known.get(key)
            lacking = known[key].missing if there is None else missing[there.entity]
            if gpu is None or before != self._columns or gpu.missing != lacking:
                is_part = bool(self._described[key].mig_uuid)
                gpu = DcgmGpu(
                    key, index, self._columns, lacking, self._interval_s, self._slow_interval_s, now_s, is_part
                )
                if key in known:
                    gpu.succeed(known[key])
            self._gpus.append(gpu)
            if there is None:
                self._lose(gpu, "it is gone", events)
        self._map(found.devices)
        return SourceInventory(
            source=self.name,
            gpus=tuple(self._described[gpu.key] for gpu in self._gpus),
            metrics=self._columns,
            interval_s=self._interval_s,
            multiplexed=self._watches.multiplexed,
        )

    def _map(self, devices: Sequence[DcgmDevice]) -> None:
        """Note whose values the rows of the readers are."""
        known = {gpu.key: gpu for gpu in self._gpus}
        self._gpus_of = {}
        for device in devices:
            if device.key in known:
                self._gpus_of.setdefault(device.entity, []).append(known[device.key])
        self._rows = []
        for latest in self._watches.latest:
            fields = [f for f in latest.field_ids if f != XID_FIELD]
            rows = [
                ReaderRow(row, gpu, gpu.slots(fields))
                for row, entity in enumerate(latest.entities)
                for gpu in self._gpus_of.get(entity, ())
            ]
            self._rows.append((latest, rows))
            latest.expect({row: [f for f in fields if METRIC_OF_FIELD[f].name in gpu.missing] for row, gpu, _ in rows})

    def _fetch(
        self, engine: Engine, now_s: float, events: list[SourceEvent], answer: TimedAnswer | None
    ) -> SteadyTicks | None:
        """Hand what is new to the GPUs; return it where it is ticks as it is."""
        self._pause.check(engine, now_s)
        everything = answer is None and now_s >= self._slow_due_s - _ROUNDING_S
        if everything:
            self._slow_due_s = now_s + _SLOW_READ_INTERVAL_S
        self._holes.look(now_s)
        for latest in self._watches.latest:
            try:
                if answer is None:
                    latest.ask(everything)
                else:
                    latest.raw = answer.content
            except CallRefusedError as error:
                self._leave_steady()
                log.debug("%s", error)
                if error.code == GPU_IS_LOST:
                    self._look_due_s = now_s
                continue
            if self._steady is not None and self._steady.fits([latest.raw]):
                if not everything:
                    return self._steady.take(1, now_s)
                if self._is_as_before(self._steady, now_s):
                    return self._keep_up(engine, self._steady, now_s)
                self._steady.tell()
                latest.decode()
                whole, _, activity = latest.whole_rows()
                if is_in_order(whole, activity):
                    self._take_all_slow(self._steady, now_s, events)
                    return self._keep_up(engine, self._steady, now_s)
                self._leave_steady()
            else:
                self._leave_steady()
                latest.decode()
            self._follow_losses(latest, now_s, events)
            self._holes.fill(latest, self._rows_of(latest), self._watches, now_s)
            self._note_news(latest, now_s)
        self._take_rows(everything, now_s, events)
        self._watch_phase(everything)
        profiling = set(self._watches.profiling)
        for watch in self._watches.fast:
            if self._pause.paused and watch in profiling:
                self._stuck[watch].hold(now_s)
            if self._stuck[watch].due(now_s):
                self._renew(watch, "gave nothing new", now_s)
        self._renew_zeros(now_s)
        for gpu in self._gpus:
            if gpu.is_silent(now_s):
                self._lose(gpu, "no values any more", events)
        if now_s >= self._look_due_s:
            self._look_again(engine, now_s)
        return None

    def _is_as_before(self, steady: Steady, now_s: float) -> bool:
        """Whether nothing is new in what was just read but the ticks themselves."""
        if now_s >= steady.slow_due_s or not steady.is_as_before():
            return False
        latest, rows = self._rows[0]
        last = len(rows[0].slots)
        if last == len(latest.field_ids):
            return True
        # Those of which the history was refused are asked for again.
        xids_us = latest.seen_us[:, last].tolist()
        return not any(xids_us[row] > self._xid_seen_us.get(gpu.key, self._began_us) for row, gpu, _ in rows)

    def _take_all_slow(self, steady: Steady, now_s: float, events: list[SourceEvent]) -> None:
        latest, rows = self._rows[0]
        for row, gpu, slots in rows:
            self._take_slow(latest, row, gpu, slots, now_s, events)
            self._note_numbers(latest, row, gpu, now_s)
        steady.keep_up()
        steady.slow_due_s = min(now_s + self._slow_interval_s, *(gpu.held_until_s for _, gpu, _ in rows))

    def _keep_up(self, engine: Engine, steady: Steady, now_s: float) -> SteadyTicks:
        """Do what is due now and then while all is well."""
        # All that fits is new.
        for watch in self._watches.fast:
            self._stuck[watch].fresh(now_s)
        for gpu in self._gpus:
            gpu.zeros.observe(0.0, 0.0, now_s)
        times_us = steady.read_us.reshape(-1)
        self._note_lag(times_us)
        if self._holes.is_in_time(self._holes.step_s):
            self._shift_s = self._phase.shift_s(times_us, self._due_us)
        ticks = steady.take(1, now_s)
        if now_s >= self._look_due_s - _ROUNDING_S:
            self._look_again(engine, now_s)
        return ticks

    def _begin_steady(self, latest: LatestValues, now_s: float) -> None:
        """From now on take whole answers as ticks, if all GPUs are in one reader and in order."""
        rows = self._rows_of(latest)
        gpus = [gpu for _, gpu, _ in rows]
        if gpus != self._gpus or len(self._rows) > 1 or latest.are_parts or not all(gpu.is_in_order for gpu in gpus):
            return
        names = [m.name for m in self._columns]
        power = names.index("power_watts") if "power_watts" in names else None
        slots = [slots for _, _, slots in rows]
        self._steady = Steady(latest, gpus, slots, len(names), power, self._interval_s, now_s)

    def _leave_steady(self) -> None:
        steady, self._steady = self._steady, None
        if steady is not None:
            steady.leave()
            for watch in self._stuck.values():
                watch.fresh(steady.taken_s)

    def _watch_phase(self, everything: bool) -> None:
        """See whether the engine measures in the middle between two looks."""
        if not self._watches.latest or not self._holes.is_in_time(self._holes.step_s):
            return
        latest = self._watches.latest[0]
        # A look that was late by itself says nothing of the phase.
        if self._holes.is_in_time(self._step_us / 1e6) and self._holes.misses(latest):
            self._phase.note_miss()
        if everything:
            self._shift_s = self._phase.shift_s(latest.times_us[:, latest.fast].reshape(-1), self._due_us)

    def _rows_of(self, latest: LatestValues) -> list[ReaderRow]:
        return next(rows for source, rows in self._rows if source is latest)

    def _note_news(self, latest: LatestValues, now_s: float) -> None:
        """Note which watches gave something new, and how late it came."""
        for part, watches in ((latest.plain, self._watches.plain), (latest.profiling, self._watches.profiling)):
            if latest.fresh[:, part].any():
                for watch in watches:
                    if latest.entities[0] in watch.entities:
                        self._stuck[watch].fresh(now_s)
        self._note_lag(latest.times_us[:, latest.fast])

    def _note_lag(self, times_us: npt.NDArray[np.int64]) -> None:
        if times_us.size and (newest_us := int(times_us.max())):
            self.statistics.lag_s = max(0.0, self._clocks.wall_ns() / 1e9 - newest_us / 1e6)

    def _take_rows(self, everything: bool, now_s: float, events: list[SourceEvent]) -> None:
        """Hand the new values of the readers to their GPUs."""
        for latest, rows in self._rows:
            are_ticks = True
            if everything and latest.holds_everything:
                for row, gpu, slots in rows:
                    self._take_slow(latest, row, gpu, slots, now_s, events)
                    self._note_numbers(latest, row, gpu, now_s)
            whole, spans_us, activity = latest.whole_rows()
            fast = latest.fast.stop
            for row, gpu, slots in rows:
                if latest.capped is not None:
                    gpu.capped_ratios += int(latest.capped[row])
                if not whole[row] or not gpu.take_whole(
                    spans_us[row], slots[:fast], latest.numbers[row, :fast], activity[row], now_s
                ):
                    are_ticks = False
                    self._take_row(latest, row, gpu, slots, now_s)
            if are_ticks and is_in_order(whole, activity):
                self._settled = latest

    def _take_row(self, latest: LatestValues, row: int, gpu: DcgmGpu, slots: IndexArray, now_s: float) -> None:
        fresh = latest.fresh[row]
        for name, part in ((PLAIN, latest.plain), (PROFILING, latest.profiling)):
            places = np.flatnonzero(fresh[part]) + part.start
            if places.size:
                times_us, numbers = latest.times_us[row, places].tolist(), latest.numbers[row, places]
                gpu.take_row(name, slots[places], times_us, numbers, latest.reasons(row, places), now_s)

    def _take_slow(
        self,
        latest: LatestValues,
        row: int,
        gpu: DcgmGpu,
        slots: IndexArray,
        now_s: float,
        events: list[SourceEvent],
    ) -> None:
        first, last = latest.fast.stop, len(slots)
        gpu.take_slow(
            slots[first:last],
            latest.fresh[row, first:last].tolist(),
            latest.numbers[row, first:last],
            latest.reasons(row, range(first, last)),
            now_s,
        )
        for place in np.flatnonzero(latest.times_us[row, latest.fast] == 0).tolist():
            gpu.stand(int(slots[place]), latest.reason(row, place))
        if last < len(latest.field_ids) and latest.times_us[row, last] > self._xid_seen_us.get(gpu.key, self._began_us):
            self._take_xids(latest.entities[row], gpu, events)

    def _note_numbers(self, latest: LatestValues, row: int, gpu: DcgmGpu, now_s: float) -> None:
        blanks = np.isnan(latest.numbers[row]).tolist()
        given: set[str] = set()
        blank: dict[str, MissingReason] = {}
        for place, field_id in enumerate(latest.field_ids):
            if field_id == XID_FIELD or (self._pause.paused and field_id in EVERY_PROFILING_FIELD):
                continue
            name = METRIC_OF_FIELD[field_id].name
            if not blanks[place]:
                given.add(name)
            elif not gpu.has_given(name):
                blank[name] = latest.reason(row, place)
        gpu.note_numbers(given, blank, now_s)

    def _follow_numbers(self, now_s: float) -> bool:
        """Note which metrics count as missing because there has never been a number, and return whether others do."""
        changed = False
        for gpu in self._gpus:
            before = self._never_given.get(gpu.key, {})
            never = {
                name: reason
                for name, reason in (gpu.never_given(now_s) | before).items()
                if not gpu.has_given(name) and (name in before or name not in gpu.missing)
            }
            if never.keys() != before.keys():
                log.warning("GPU %s: never a number of: %s", gpu.key, ", ".join(sorted(never)) or "nothing any more")
                self._never_given[gpu.key] = never
                changed = True
        return changed

    def _take_xids(self, entity: Entity, gpu: DcgmGpu, events: list[SourceEvent]) -> None:
        """Take all XIDs since the last one that was seen, those of a time without connection too."""
        if self._watches.xids is None:
            return
        seen_us = self._xid_seen_us.get(gpu.key, self._began_us)
        try:
            values = self._watches.xids.history_of(entity, XID_FIELD, seen_us + 1)
        except CallRefusedError as error:
            log.debug("%s", error)
            return
        for value in values:
            if isinstance(value.number, MissingReason) or value.number <= 0:
                continue
            self._xid_seen_us[gpu.key] = max(value.time_us, self._xid_seen_us.get(gpu.key, 0))
            gpu.count_xid()
            log.error("GPU %s reports XID %d", gpu.key, int(value.number))
            events.append(SourceEvent(gpu.index, value.time_us * 1000, GpuEventKind.XID, int(value.number)))

    def _follow_losses(self, latest: LatestValues, now_s: float, events: list[SourceEvent]) -> None:
        """See which GPUs the engine calls lost, and which give numbers again."""
        plain = latest.plain
        lost = (latest.statuses[:, plain] == GPU_IS_LOST).any(axis=1)
        if not lost.any() and not any(gpu.lost for gpu in self._gpus):
            return
        numbers = (latest.fresh[:, plain] & ~np.isnan(latest.numbers[:, plain])).any(axis=1)
        for row, gpu, _ in self._rows_of(latest):
            if lost[row]:
                self._lose(gpu, "DCGM says so", events)
            elif gpu.lost and numbers[row]:
                gpu.lost = False
                gpu.restart(now_s)
                events.append(SourceEvent(gpu.index, self._clocks.wall_ns(), GpuEventKind.RECOVERED))
                log.warning("GPU %s answers again", gpu.key)

    def _lose(self, gpu: DcgmGpu, why: str, events: list[SourceEvent]) -> None:
        if gpu.lost:
            return
        gpu.lost = True
        # The XID that says why may have come since it was last asked for.
        self._slow_due_s = -math.inf
        events.append(SourceEvent(gpu.index, self._clocks.wall_ns(), GpuEventKind.LOST))
        log.error("GPU %s is lost (%s); going on with the others", gpu.key, why)

    def _renew(self, watch: Watch, why: str, now_s: float) -> None:
        log.warning("the watch %s %s: renewing it", watch.name, why)
        try:
            watch.renew()
        except CallRefusedError as error:
            if error.code == GPU_IS_LOST:
                # Of one GPU; the others are watched without it once it is known which.
                self._look_due_s = now_s
            elif watch is self._watches.plain[0]:
                # Silent, and not even the plain metrics can be watched again: only a new connection can help.
                raise _engine_lost(self.engine_address, error) from error
            log.warning("%s; tried again later", error)

    def _renew_zeros(self, now_s: float) -> None:
        if self._pause.paused:
            return
        for watch in self._watches.profiling:
            gpus = [gpu for entity in watch.entities for gpu in self._gpus_of.get(entity, ()) if not gpu.lost]
            due = [gpu.zeros.due(now_s) for gpu in gpus]
            if any(due):
                self._renew(watch, "says zero although kernels run; its values are blank until they change", now_s)

    def _lose_engine(self, error: EngineLostError, now_s: float, events: list[SourceEvent]) -> None:
        self._leave_steady()
        self._answers.clear()
        self._link.lose(error, now_s)
        self._found, self._settled, self._rewatched = None, None, False
        # They went with the connection.
        self._watches, self._rows, self._stuck = Watches(refusals=self._watches.refusals), [], {}
        self._pause.forget()
        for gpu in self._gpus:
            self._lose(gpu, "the engine is gone", events)

    def _meet_again(self, engine: Engine) -> None:
        """Watch what a new connection shows. The engine's numbers may have changed, and there may be new GPUs."""
        found = self._find(engine)
        keys = {device.key for device in found.devices}
        known = {gpu.key for gpu in self._gpus}
        if not keys & known:
            raise SourceUnavailableError("it shows none of the GPUs that were sampled")
        devices = [device for device in found.devices if device.key in known]
        try:
            self._plan(engine, devices)
        except DriverCallError:
            self._watches = Watches()
            raise
        self._map(devices)
        if keys - known:
            self._found = found

    def _look_again(self, engine: Engine, now_s: float) -> None:
        """See whether GPUs or MIG instances have come or gone; the next reading follows."""
        self._look_due_s = now_s + self._slow_interval_s
        try:
            found = self._find(engine)
        except EngineLostError:
            raise
        except (DriverCallError, SourceUnavailableError) as error:
            log.debug("looking for GPUs: %s", error)
            return
        watched = self._watches.watched()
        known = {gpu.key: e for e, gpus in self._gpus_of.items() for gpu in gpus if e in watched}
        changed = self._follow_numbers(now_s)
        if changed or {device.key: device.entity for device in found.devices} != known:
            self._found = found

    def _join(self, now_s: float, events: list[SourceEvent]) -> SourceInventory | None:
        """Watch what was found, and take what is new into the inventory.

        Where columns change, the ticks of the old ones are delivered first.
        """
        found, engine = self._found, self._link.engine
        if found is None or engine is None:
            return None
        if not self._rewatched:
            try:
                self._plan(engine, found.devices)
            except DriverCallError as error:
                self._lose_engine(_engine_lost(engine.address, error), now_s, events)
                return None
            self._map(found.devices)
            devices = {device.key: device for device in found.devices}
            known = {gpu.key: gpu for gpu in self._gpus}
            for key in known.keys() - devices.keys():
                self._lose(known[key], "it is gone", events)
            same = all(known[key].missing == self._lacking(devices[key]) for key in known.keys() & devices.keys())
            if same and devices.keys() <= known.keys():
                self._found = None
                return None
            self._rewatched = not same or self._columns_of(found.devices) != self._columns
            if self._rewatched:
                return None
        elif any(gpu.has_pending for gpu in self._gpus):
            return None
        self._found, self._rewatched = None, False
        before = len(self._gpus)
        self.statistics.inventories += 1
        inventory = self._make_inventory(found, now_s, events)
        if len(self._gpus) != before or len(found.devices) != before:
            log.warning("the GPUs have changed: %d are sampled now, %d before", len(found.devices), before)
        return inventory


def _engine_lost(address: str, error: DriverCallError) -> EngineLostError:
    return EngineLostError(describe_failure(f"engine at {address}", error.code, str(error)), error.code)
