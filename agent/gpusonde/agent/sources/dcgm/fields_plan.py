"""Opens the watches of a host: what every GPU is asked, at which pace, and what it cannot be asked."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpusonde.agent.sources.base import LASTING_REASONS
from gpusonde.agent.sources.dcgm.bindings import GPU, DcgmDevice, Entity
from gpusonde.agent.sources.dcgm.connection import (
    GPU_IS_LOST,
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
from gpusonde.agent.sources.dcgm.watch import LatestValues, Watch
from gpusonde.errors import CallRefusedError, DriverCallError
from gpusonde.telemetry import METRICS, Metric, MissingReason

log = logging.getLogger(__name__)

FAST, SLOW, XID, PROFILING = "fast", "slow", "xid", "profiling"
_PARTS = "-parts"
# An XID is what one wants to know of a time in which nobody was connected.
_KEEP_XIDS_S = 3600.0
# The engine answers a new watch at its next round; this is how long one waits to learn what the GPUs give.
_FIRST_VALUES_S = 2.0


@dataclass
class Watches:
    """The open watches of an engine, and how their newest values are read.

    Attributes:
        plain: Watches of plain metrics, read every tick; they tell whether a GPU is there.
        profiling: Watches of profiling metrics, read every tick.
        slow: Watches read once a second.
        xids: The watch of XIDs, read once a second; None where the engine has none.
        latest: Read what the watches record: one for all GPUs that are asked the same.
        missing: Metrics that cannot be watched on an entity, and why.
        multiplexed: Names of the metrics that some GPU measures only part of the time.
        refusals: What the engine said where it refused.
    """

    plain: list[Watch] = field(default_factory=list)
    profiling: list[Watch] = field(default_factory=list)
    slow: list[Watch] = field(default_factory=list)
    xids: Watch | None = None
    latest: list[LatestValues] = field(default_factory=list)
    missing: dict[Entity, dict[str, MissingReason]] = field(default_factory=dict)
    multiplexed: frozenset[str] = frozenset()
    refusals: list[str] = field(default_factory=list)

    @property
    def fast(self) -> list[Watch]:
        """Those read every tick."""
        return [*self.plain, *self.profiling]

    def watched(self) -> frozenset[Entity]:
        """Return what is watched; a GPU that the engine calls lost is not."""
        return frozenset(entity for watch in (*self.fast, *self.slow) for entity in watch.entities)

    def make_latest(self, engine: Engine) -> None:
        """Make the readers, one for each set of watches: the engine notes a fault for a field that is not watched."""
        parts = ([*self.plain], [*self.profiling], [*self.slow, *([self.xids] if self.xids is not None else [])])
        entities = dict.fromkeys(entity for watches in parts for watch in watches for entity in watch.entities)
        alike: dict[tuple[tuple[Watch, ...], ...], list[Entity]] = defaultdict(list)
        for entity in entities:
            alike[tuple(tuple(w for w in watches if entity in w.entities) for watches in parts)].append(entity)
        self.latest = [
            LatestValues(engine, group, *([f for watch in watches for f in watch.field_ids] for watches in kinds))
            for kinds, group in alike.items()
        ]

    def learn_missing(self, pause_s: float, sleep: Callable[[float], None]) -> dict[Entity, dict[str, MissingReason]]:
        """Look until every GPU answered for every field, or for two seconds; return what will never be given.

        Raises:
            DriverCallError: The engine refuses.
        """
        for _ in range(math.ceil(_FIRST_VALUES_S / pause_s)):
            sleep(pause_s)
            for latest in self.latest:
                latest.read(everything=True)
            if not any(_is_open(latest, row, place) for latest, row, place in self._blanks()):
                break
        learned: dict[Entity, dict[str, MissingReason]] = defaultdict(dict)
        for latest, row, place in self._blanks():
            reason, name = latest.reason(row, place), METRIC_OF_FIELD[latest.field_ids[place]].name
            if reason in LASTING_REASONS and latest.field_ids[place] != INSTANT_POWER_FIELD:
                learned[latest.entities[row]][name] = reason
        for latest in self.latest:
            if INSTANT_POWER_FIELD in latest.field_ids:
                known = latest.numbers[:, latest.field_ids.index(INSTANT_POWER_FIELD)]
                for row in np.flatnonzero(~np.isnan(known)).tolist():
                    learned[latest.entities[row]].pop(METRIC_OF_FIELD[INSTANT_POWER_FIELD].name, None)
            # They were only looked at; the first tick takes them.
            latest.seen_us[:] = 0
        return dict(learned)

    def close(self) -> None:
        """Close all watches, the newest first."""
        xids = [self.xids] if self.xids is not None else []
        for watch in reversed([*self.plain, *self.slow, *xids, *self.profiling]):
            watch.close()
        self.plain, self.slow, self.profiling, self.xids, self.latest = [], [], [], None, []

    def _blanks(self) -> list[tuple[LatestValues, int, int]]:
        """Return the places of the readers that hold no number."""
        return [
            (latest, row, place)
            for latest in self.latest
            for row, place in np.argwhere(np.isnan(latest.numbers)).tolist()
            if latest.field_ids[place] != XID_FIELD
        ]


def _is_open(latest: LatestValues, row: int, place: int) -> bool:
    """Whether the engine may yet answer for a field."""
    return latest.times_us[row, place] == 0 and latest.reason(row, place) not in LASTING_REASONS


class Planner:
    """Watches everything that the GPUs and MIG instances of an engine have.

    Profiling fields are watched apart from the rest, and apart for each GPU model and for instances: one field that one
    of them lacks makes the engine refuse all fields of all of that watch.

    Args:
        engine: An open engine.
        devices: What is to be sampled.
        interval_s: Seconds between ticks.
        slow_interval_s: Seconds between measurements of the slow metrics.
    """

    def __init__(
        self, engine: Engine, devices: Sequence[DcgmDevice], interval_s: float, slow_interval_s: float
    ) -> None:
        self._engine = engine
        self._interval_s = interval_s
        self._slow_interval_s = slow_interval_s
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
            watches.make_latest(self._engine)
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
        self._try_watch(SLOW, self._gpus, _fields(SLOW_METRICS), self._slow_interval_s, self._watches.slow)
        xids: list[Watch] = []
        # XIDs are events: the interval only bounds how long one waits in the engine.
        self._try_watch(XID, self._gpus, [XID_FIELD], 1.0, xids, _KEEP_XIDS_S)
        self._watches.xids = xids[0] if xids else None

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

    def _open_watch(
        self, name: str, entities: Sequence[Entity], fields: Sequence[int], interval_s: float, keep_s: float = 0.0
    ) -> Watch:
        """Watch fields on all entities but those that the engine calls lost."""
        watch = Watch(self._engine, name, entities, fields, interval_s, keep_s)
        try:
            watch.open()
        except CallRefusedError as error:
            if error.code != GPU_IS_LOST or len(entities) < 2:
                raise
            there = [entity for entity in entities if self._is_there(entity, fields, interval_s)]
            if not there or len(there) == len(entities):
                raise
            log.info("%s; going on with %d of %d", error, len(there), len(entities))
            return self._open_watch(name, there, fields, interval_s, keep_s)
        return watch

    def _is_there(self, entity: Entity, fields: Sequence[int], interval_s: float) -> bool:
        attempt = Watch(self._engine, "attempt", [entity], fields, interval_s)
        try:
            attempt.open()
        except CallRefusedError as error:
            return error.code != GPU_IS_LOST
        attempt.close()
        return True

    def _try_watch(
        self,
        name: str,
        entities: Sequence[Entity],
        fields: Sequence[int],
        interval_s: float,
        opened: list[Watch],
        keep_s: float = 0.0,
    ) -> None:
        try:
            opened.append(self._open_watch(name, entities, fields, interval_s, keep_s))
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
