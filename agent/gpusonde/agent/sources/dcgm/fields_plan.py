"""Opens the watches of a host: what every GPU is asked, at which pace, and what it cannot be asked."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gpusonde.agent.sources.dcgm.bindings import GPU, DcgmDevice, Entity
from gpusonde.agent.sources.dcgm.connection import (
    MODULE_NOT_LOADED,
    NOT_SUPPORTED,
    PROFILING_MULTI_PASS,
    PROFILING_NOT_SUPPORTED,
    Engine,
    status_reason,
)
from gpusonde.agent.sources.dcgm.fields import (
    EVERY_PROFILING_FIELD,
    FAST_METRICS,
    FREE_MEMORY_FIELD,
    INSTANT_POWER_FIELD,
    METRIC_OF_FIELD,
    PART_PROFILING_FIELDS,
    PROFILING_METRICS,
    SLOW_METRICS,
    USED_MEMORY_FIELD,
    XID_FIELD,
    MetricGroup,
    ProfilingChoice,
    choose_profiling,
)
from gpusonde.agent.sources.dcgm.gpu import EngineValue
from gpusonde.agent.sources.dcgm.watch import Watch
from gpusonde.errors import CallRefusedError, DriverCallError
from gpusonde.telemetry import METRICS, Metric, MissingReason

log = logging.getLogger(__name__)

FAST, SLOW, XID, PROFILING = "fast", "slow", "xid", "profiling"
_PARTS = "-parts"
# The engine answers a new watch at its next round; this is how long one waits to learn what the GPUs give.
_FIRST_VALUES_S = 2.0


@dataclass
class Watches:
    """The open watches of an engine.

    Attributes:
        plain: Watches of plain metrics, read every tick; they tell whether a GPU is there.
        profiling: Watches of profiling metrics, read every tick.
        slow: Watches read once a second.
        missing: Metrics that cannot be watched on an entity, and why.
        multiplexed: Names of the metrics that some GPU measures only part of the time.
        refusals: What the engine said where it refused.
    """

    plain: list[Watch] = field(default_factory=list)
    profiling: list[Watch] = field(default_factory=list)
    slow: list[Watch] = field(default_factory=list)
    missing: dict[Entity, dict[str, MissingReason]] = field(default_factory=dict)
    multiplexed: frozenset[str] = frozenset()
    refusals: list[str] = field(default_factory=list)

    @property
    def fast(self) -> list[Watch]:
        """Those read every tick."""
        return [*self.plain, *self.profiling]

    def first_values(self, pause_s: float, sleep: Callable[[float], None]) -> list[tuple[str, EngineValue]]:
        """Read until every GPU answered for every field, or for two seconds; return watches' names and values.

        Raises:
            DriverCallError: The engine refuses.
        """
        watches = [*self.fast, *self.slow]
        open_questions = {(e, f) for w in watches for e in w.entities for f in w.field_ids if f != XID_FIELD}
        values: list[tuple[str, EngineValue]] = []
        for _ in range(math.ceil(_FIRST_VALUES_S / pause_s)):
            sleep(pause_s)
            for watch in watches:
                fresh = watch.read()
                values += [(watch.name, value) for value in fresh]
                open_questions -= {(value.entity, value.field_id) for value in fresh}
            if not open_questions:
                break
        return values

    def close(self) -> None:
        """Close all watches, the newest first."""
        for watch in reversed([*self.plain, *self.slow, *self.profiling]):
            watch.close()
        self.plain, self.slow, self.profiling = [], [], []


class Planner:
    """Watches everything that the GPUs and MIG instances of an engine have.

    Profiling fields are watched apart from the rest, and apart for each GPU model and for instances: one field that one
    of them lacks makes the engine refuse all fields of all of that watch.

    Args:
        engine: An open engine.
        devices: What is to be sampled.
        interval_s: Seconds between ticks.
        slow_interval_s: Seconds between measurements of the slow metrics.
        wall_ns: Unix time in nanoseconds.
    """

    def __init__(
        self,
        engine: Engine,
        devices: Sequence[DcgmDevice],
        interval_s: float,
        slow_interval_s: float,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._engine = engine
        self._interval_s = interval_s
        self._slow_interval_s = slow_interval_s
        self._wall_ns = wall_ns
        self._gpus = tuple(device.entity for device in devices if device.part is None)
        self._gpu_of = {device.entity: device.gpu_id for device in devices}
        # Compute instances of one GPU instance share its entity.
        self._parts = tuple(dict.fromkeys(device.entity for device in devices if device.part is not None))
        self._watches = Watches(missing={entity: {} for entity in (*self._gpus, *self._parts)})

    def open(self) -> Watches:
        """Open all watches.

        Raises:
            DriverCallError: Not even the plain metrics of the GPUs can be watched.
        """
        watches = self._watches
        try:
            watches.plain.append(self._open_plain())
            self._open_slow()
            if self._parts:
                self._open_parts()
            self._open_profiling()
        except DriverCallError:
            watches.close()
            raise
        return watches

    def _open_plain(self) -> Watch:
        fields = _fields(FAST_METRICS)
        try:
            # Fields of one group are refused together, and older engines do not know this one.
            return self._open_watch(FAST, self._gpus, [*fields, INSTANT_POWER_FIELD], self._interval_s)
        except CallRefusedError as error:
            log.info("power is the driver's average: %s", error)
            return self._open_watch(FAST, self._gpus, fields, self._interval_s)

    def _open_slow(self) -> None:
        for name, fields, interval_s in (
            (SLOW, _fields(SLOW_METRICS), self._slow_interval_s),
            # XIDs are events: the interval only bounds how long one waits in the engine.
            (XID, [XID_FIELD], 1.0),
        ):
            self._try_watch(name, self._gpus, fields, interval_s, self._watches.slow)

    def _open_parts(self) -> None:
        given = {METRIC_OF_FIELD[f].name for f in (*PART_PROFILING_FIELDS, USED_MEMORY_FIELD, FREE_MEMORY_FIELD)}
        for entity in self._parts:
            self._note(entity, (m.name for m in METRICS if m.name not in given), MissingReason.NOT_SUPPORTED)
        self._try_watch(FAST + _PARTS, self._parts, [USED_MEMORY_FIELD], self._interval_s, self._watches.plain)
        self._try_watch(SLOW + _PARTS, self._parts, [FREE_MEMORY_FIELD], self._slow_interval_s, self._watches.slow)

    def _open_profiling(self) -> None:
        by_choice: dict[tuple[bool, ProfilingChoice], list[Entity]] = defaultdict(list)
        split = {self._gpu_of[entity] for entity in self._parts}
        chosen: dict[int, ProfilingChoice | DriverCallError] = {}
        for entity in (*self._gpus, *self._parts):
            gpu = self._gpu_of[entity]
            choice = chosen.setdefault(gpu, self._choose(gpu)) if gpu not in chosen else chosen[gpu]
            if isinstance(choice, DriverCallError):
                self._refused([entity], EVERY_PROFILING_FIELD, choice)
                continue
            if entity.group != GPU:
                choice = choice.only(PART_PROFILING_FIELDS)
            by_choice[gpu in split and entity.group == GPU, choice].append(entity)
        multiplexed: set[int] = set()
        for number, ((_, choice), entities) in enumerate(by_choice.items()):
            opened = self._open_choice(f"{PROFILING}{number}", choice, entities)
            if opened is not None:
                multiplexed |= opened.multiplexed
            absent = [m.name for m in PROFILING_METRICS if opened is None or m.dcgm_field_id not in opened.field_ids]
            for entity in entities:
                self._note(entity, absent, MissingReason.NOT_SUPPORTED)
        self._watches.multiplexed = frozenset(METRIC_OF_FIELD[f].name for f in multiplexed)

    def _choose(self, gpu_id: int) -> ProfilingChoice | DriverCallError:
        try:
            return choose_profiling(self._engine.metric_groups(gpu_id))
        except CallRefusedError as error:
            if error.code not in (MODULE_NOT_LOADED, NOT_SUPPORTED, PROFILING_NOT_SUPPORTED):
                return error
            # From Hopper on the engine profiles without the module that would answer.
            attempt = choose_profiling([MetricGroup(0, 0, EVERY_PROFILING_FIELD)])
            try:
                self._open_watch("attempt", [Entity(GPU, gpu_id)], attempt.field_ids, self._interval_s).close()
            except CallRefusedError:
                return error
            return attempt

    def _open_choice(self, name: str, choice: ProfilingChoice, entities: Sequence[Entity]) -> ProfilingChoice | None:
        """Watch the chosen fields, or those of them that the engine takes; None when it takes none."""
        if not choice.field_ids:
            return None
        try:
            self._watches.profiling.append(self._open_watch(name, entities, choice.field_ids, self._interval_s))
        except CallRefusedError as error:
            if error.code == PROFILING_MULTI_PASS and choice.multiplexed:
                log.warning("%s; watching only what one pass gives", error)
                return self._open_choice(name, choice.single_pass(), entities)
            if error.code == NOT_SUPPORTED and len(choice.field_ids) > 1:
                return self._open_choice(name, choice.only(self._taken(entities, choice, error)), entities)
            self._refused(entities, choice.field_ids, error)
            return None
        return choice

    def _taken(self, entities: Sequence[Entity], choice: ProfilingChoice, error: DriverCallError) -> list[int]:
        """Return the fields that the engine takes one by one: a board may lack one that its model has (NVLink)."""
        taken = []
        for wanted in choice.field_ids:
            try:
                self._open_watch("attempt", entities, [wanted], self._interval_s).close()
            except CallRefusedError as refusal:
                self._refused(entities, [wanted], refusal, quiet=True)
            else:
                taken.append(wanted)
        if not taken:
            self._watches.refusals.append(str(error))
            log.warning("%s", error)
        return taken

    def _open_watch(self, name: str, entities: Sequence[Entity], fields: Sequence[int], interval_s: float) -> Watch:
        watch = Watch(self._engine, name, entities, fields, interval_s, self._wall_ns)
        watch.open()
        return watch

    def _try_watch(
        self, name: str, entities: Sequence[Entity], fields: Sequence[int], interval_s: float, opened: list[Watch]
    ) -> None:
        try:
            opened.append(self._open_watch(name, entities, fields, interval_s))
        except CallRefusedError as error:
            self._refused(entities, fields, error)

    def _note(self, entity: Entity, names: Iterable[str], reason: MissingReason) -> None:
        for name in names:
            self._watches.missing[entity].setdefault(name, reason)

    def _refused(
        self, entities: Sequence[Entity], fields: Iterable[int], error: DriverCallError, *, quiet: bool = False
    ) -> None:
        names = ["xid_count" if f == XID_FIELD else METRIC_OF_FIELD[f].name for f in fields]
        for entity in entities:
            self._note(entity, names, status_reason(error.code))
        if not quiet and str(error) not in self._watches.refusals:
            self._watches.refusals.append(str(error))
            log.warning("%s", error)


def _fields(metrics: Sequence[Metric]) -> list[int]:
    return [m.dcgm_field_id for m in metrics if m.dcgm_field_id is not None]
