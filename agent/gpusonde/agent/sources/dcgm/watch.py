"""``Watch``: fields that the engine records for some GPUs. ``LatestValues``: the newest of what it recorded.

``StuckWatch`` says when a watch has to be renewed: profiling fields of DCGM stop after hours or after an XID.
"""

from __future__ import annotations

import ctypes
import functools
import math
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusonde.agent.sources.base import Clocks
from gpusonde.agent.sources.dcgm.bindings import GPU, Entity
from gpusonde.agent.sources.dcgm.calls import CallSeries
from gpusonde.agent.sources.dcgm.connection import NO_DATA, Engine
from gpusonde.agent.sources.dcgm.fields import METRIC_OF_FIELD, XID_FIELD
from gpusonde.agent.sources.dcgm.gpu import PLAIN, PROFILING
from gpusonde.agent.sources.dcgm.values import (
    EngineValue,
    decode_numbers,
    limits_of,
    number_words,
    plain_layout,
    read_number,
    read_reason,
    refusal_of,
    value_layout,
)
from gpusonde.errors import DriverCallError, EngineLostError
from gpusonde.telemetry import FloatArray, MissingReason, Unit

# How long the engine keeps what was not fetched. Long enough for a stalled host, short because it is memory of the
# engine: 100 values per field at 10 Hz.
_KEEP_S = 10.0
_KEEP_INTERVALS = 3.0


class Watch:
    """A field group watched on a group of GPUs.

    Args:
        engine: An open engine.
        name: What the watch is for, part of its name in the engine.
        entities: GPUs or MIG instances.
        field_ids: Numbers of the fields.
        interval_s: Seconds between measurements.
        keep_s: Seconds for which the engine keeps values; 0 for what a stalled host needs.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        entities: Sequence[Entity],
        field_ids: Sequence[int],
        interval_s: float,
        keep_s: float = 0.0,
    ) -> None:
        self.name = name
        self.entities = tuple(entities)
        self.field_ids = tuple(field_ids)
        self._engine = engine
        self._interval_s = interval_s
        self._keep_s = keep_s or max(_KEEP_S, _KEEP_INTERVALS * interval_s)
        self._group: Any = None
        self._fields: Any = None
        # Of one entity and of one field, for history; made when first asked for.
        self._groups_of_one: dict[Entity, Any] = {}
        self._fields_of_one: dict[int, Any] = {}

    def open(self) -> None:
        """Make the groups and start recording.

        Raises:
            DriverCallError: The engine refuses; one field that a GPU lacks is enough when it is a profiling field.
        """
        name = self._new_name()
        try:
            self._group = self._engine.make_group(name, self.entities)
            self._fields = self._engine.make_field_group(name, self.field_ids)
            self._watch()
        except DriverCallError:
            self.close()
            raise

    def history(self, since_us: int) -> list[EngineValue]:
        """Return everything that was recorded since a time: one request for each entity and field.

        Raises:
            DriverCallError: The engine refuses; :class:`EngineLostError` when it is gone.
        """
        return self._values_since(self._group, self._fields, since_us)

    def history_of(self, entity: Entity, field_id: int, since_us: int) -> list[EngineValue]:
        """Return what was recorded of one field of one entity since a time: three requests.

        Raises:
            DriverCallError: The engine refuses; :class:`EngineLostError` when it is gone.
        """
        if entity not in self._groups_of_one:
            self._groups_of_one[entity] = self._engine.make_group(self._new_name(), [entity])
        if field_id not in self._fields_of_one:
            self._fields_of_one[field_id] = self._engine.make_field_group(self._new_name(), [field_id])
        return self._values_since(self._groups_of_one[entity], self._fields_of_one[field_id], since_us)

    def renew(self) -> None:
        """Stop and start recording, which brings stuck profiling fields back.

        Raises:
            DriverCallError: The engine refuses.
        """
        self._engine.unwatch(self.name, self._group, self._fields)
        self._watch()

    def close(self) -> None:
        """Stop recording and give the groups back."""
        fields, self._fields = self._fields, None
        group, self._group = self._group, None
        releases: list[Callable[[], None]] = []
        if fields is not None:
            releases.append(lambda: self._engine.unwatch(self.name, group, fields))
        releases += [
            functools.partial(self._engine.delete_field_group, one)
            for one in (fields, *self._fields_of_one.values())
            if one is not None
        ]
        releases += [
            functools.partial(self._engine.delete_group, one)
            for one in (group, *self._groups_of_one.values())
            if one is not None
        ]
        self._fields_of_one.clear()
        self._groups_of_one.clear()
        for release in releases:
            try:
                release()
            except EngineLostError:
                # The engine cleans up after a connection that ended.
                return
            except DriverCallError:
                continue

    def _new_name(self) -> str:
        # A name is taken until its owner disconnects, and another agent may watch the same engine.
        return f"gpusonde-{self.name}-{uuid.uuid4().hex[:12]}"

    def _watch(self) -> None:
        self._engine.watch(self.name, self._group, self._fields, self._interval_s, self._keep_s)

    def _values_since(self, group: Any, fields: Any, since_us: int) -> list[EngineValue]:
        """Fetch what was recorded since a time.

        The bindings' own collectors are not used: some return only the last of several values, repeat the last one
        when there is nothing new, or drop the rest of a batch behind a value they do not know. The raw callback does
        not.
        """
        agent = self._engine.bindings.agent
        layout = plain_layout(self._engine.bindings.structs.c_dcgmFieldValue_v1)
        entity_of = {tuple(entity): entity for entity in self.entities}
        values: list[EngineValue] = []
        failures: list[Exception] = []

        def take(entity_group: int, entity_id: int, rows: Any, count: int, _user_data: Any) -> int:
            """Copy values out of the engine's memory; called by ``dcgmGetValuesSince_v2``."""
            try:
                entity, start, stride = entity_of[entity_group, entity_id], 0, 0
                if layout is not None:
                    start, stride = ctypes.addressof(rows.contents), ctypes.sizeof(layout)
                for i in range(count):
                    value = rows[i] if layout is None else layout.from_address(start + i * stride)
                    # A field without news is answered too, with time 0.
                    if value.ts >= since_us and value.ts:
                        values.append(EngineValue(entity, value.fieldId, value.ts, read_number(value)))
            except Exception as error:
                # ctypes would print it and go on without the rest of the batch.
                failures.append(error)
            return 0

        callback = agent.dcgmFieldValueEntityEnumeration_f(take)
        try:
            self._engine.values_since(self.name, group, fields, since_us, callback)
        except DriverCallError as error:
            if error.code != NO_DATA:
                raise
        if failures:
            raise failures[0]
        return values


class LatestValues:
    """The newest values of the same fields of some entities, read by one request into a buffer that is kept.

    Reading history costs one request per entity and field, and each makes library and engine clear 4 MiB. This is one
    for all, and misses a value only where the engine measured twice between two looks.

    Args:
        engine: An open engine.
        entities: GPUs or MIG instances, not both.
        plain: Fields of plain metrics, read every time.
        profiling: Fields of profiling metrics, read every time.
        slow: Fields that are read when asked for; XIDs may be among them.
    """

    def __init__(
        self,
        engine: Engine,
        entities: Sequence[Entity],
        plain: Sequence[int],
        profiling: Sequence[int],
        slow: Sequence[int],
    ) -> None:
        self.entities = tuple(entities)
        self.field_ids = (*plain, *profiling, *slow)
        self.plain = slice(0, len(plain))
        self.profiling = slice(len(plain), len(plain) + len(profiling))
        self.fast = slice(0, self.profiling.stop)
        self._engine = engine
        structs = engine.bindings.structs
        buffer = (structs.c_dcgmFieldValue_v2 * (len(entities) * len(self.field_ids)))()
        pairs = (structs.c_dcgmGroupEntityPair_t * len(entities))()
        for pair, entity in zip(pairs, entities, strict=True):
            pair.entityGroupId, pair.entityId = entity
        self.layout = value_layout(structs.c_dcgmFieldValue_v2)
        size = ctypes.sizeof(structs.c_dcgmFieldValue_v2)
        self._requests = {}
        for everything, fields in ((False, self.field_ids[self.fast]), (True, self.field_ids)):
            shape = (len(entities), len(fields), self.layout.itemsize // 8)
            heads = np.ndarray(shape, np.int64, buffer, strides=(len(fields) * size, size, 8))
            numbers = (ctypes.c_uint16 * len(fields))(*fields)
            counts = ctypes.c_uint(shape[0]), ctypes.c_uint(shape[1])
            self._requests[everything] = (heads, (pairs, counts[0], numbers, counts[1], ctypes.c_uint(0), buffer))
        limits = [None if f == XID_FIELD else limits_of(f) for f in self.field_ids]
        self._scale = np.array([1.0 if known is None else known.scale for known in limits])
        self._least = np.array([0.0 if known is None else known.least for known in limits])
        self._most = np.array([math.inf if known is None else known.most for known in limits])
        self._is_ratio = np.array([known is not None and known.is_ratio for known in limits])
        self._is_share = np.array([f != XID_FIELD and METRIC_OF_FIELD[f].unit is Unit.RATIO for f in self.field_ids])
        fast = self.field_ids[self.fast]
        self.ratio_places = np.flatnonzero(self._is_ratio[self.fast])
        names = [METRIC_OF_FIELD[f].name for f in fast]
        self._utilization_place = names.index("gpu_utilization") if "gpu_utilization" in names else None
        self.counts = np.ones((len(entities), len(fast)), dtype=bool)
        self.are_parts = bool(entities) and entities[0].group != GPU
        self.seen_us: npt.NDArray[np.int64] = np.zeros((len(entities), len(self.field_ids)), dtype=np.int64)
        self.raw = self._requests[True][0].copy()
        self.decode()

    def read(self, everything: bool) -> None:
        """Ask for the newest values and decode them: :meth:`ask` and :meth:`decode`."""
        self.ask(everything)
        self.decode()

    def ask(self, everything: bool) -> None:
        """Ask for the newest values. ``raw`` then is a copy of what each begins with: ``layout``, in words of 8 bytes.

        Args:
            everything: The slow fields too.

        Raises:
            DriverCallError: The engine refuses; :class:`EngineLostError` when it is gone.
        """
        heads, arguments = self._requests[everything]
        self._engine.latest_values("latest values", *arguments)
        self.raw = heads.copy()

    def ask_at(self, deadlines_s: Sequence[float], latest_s: float, clocks: Clocks) -> CallSeries | None:
        """Ask for the newest fast values at several times; the answers hold what :meth:`ask` leaves in ``raw``.

        Args:
            deadlines_s: When, monotonic clock.
            latest_s: By how much later each may be.
            clocks: What time it is.
        """
        heads, arguments = self._requests[False]
        return self._engine.repeat_latest_values(deadlines_s, latest_s, heads.copy, clocks, *arguments)

    def reason(self, row: int, place: int) -> MissingReason:
        """Return why a number is NaN."""
        return self.reason_of(self._values[row, place], place)

    def reason_of(self, value: np.void, place: int) -> MissingReason:
        """Return why a value of a field is no number."""
        known = read_reason(value)
        if known is not None:
            return known
        number = float(value["double"] if value["type"] == ord("d") else value["integer"])
        return refusal_of(self.field_ids[place], number)

    def reasons(self, row: int, places: Sequence[int] | npt.NDArray[np.intp]) -> Callable[[int], MissingReason]:
        """Return :meth:`reason` of the i-th of some places of a row; good until the next reading."""
        return lambda i: self.reason(row, int(places[i]))

    @property
    def holds_everything(self) -> bool:
        """Whether the reading was one of the slow fields too."""
        return bool(self.numbers.shape[1] == len(self.field_ids))

    def expect(self, missing: Mapping[int, Collection[int]]) -> None:
        """Note what is never measured: row -> fields of which a blank says nothing; ``counts`` are the others."""
        for row, fields in missing.items():
            self.counts[row] = [f not in fields for f in self.field_ids[self.fast]]

    def whole_rows(self) -> tuple[list[bool], list[list[tuple[str, int, int]]], list[tuple[float, float]]]:
        """Return by row whether all fast values are new numbers, when the parts were measured, and the activity."""
        numbers, times_us = self.numbers[:, self.fast], self.times_us[:, self.fast]
        counted = self.counts
        whole = ~((np.isnan(numbers) | ~self.fresh[:, self.fast]) & counted).any(axis=1)
        if not counted.all():
            # What is never measured has no time either.
            times_us = np.where(counted, times_us, times_us.max(axis=1, initial=0)[:, np.newaxis])
        spans = []
        for name, part in ((PLAIN, self.plain), (PROFILING, self.profiling)):
            if part.stop > part.start:
                first_us, last_us = times_us[:, part].min(axis=1).tolist(), times_us[:, part].max(axis=1).tolist()
                spans.append([(name, first, last) for first, last in zip(first_us, last_us, strict=True)])
        ratios = numbers[:, self.ratio_places]
        busiest = np.fmax.reduce(ratios, axis=1, initial=np.nan).tolist()
        place = self._utilization_place
        utilization = [math.nan] * len(busiest) if place is None else numbers[:, place].tolist()
        return (
            whole.tolist(),
            [list(row) for row in zip(*spans, strict=True)],
            list(zip(utilization, busiest, strict=True)),
        )

    def word_limits(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return between what the words of fast values lie that are numbers, types being those of the last answer."""
        types = self._values["type"][:, self.fast]
        return number_words(types, self._least[self.fast], self._most[self.fast])

    @property
    def shows_work(self) -> bool:
        """Whether some GPU did something just now."""
        shares = self.numbers[:, self.fast][:, self._is_share[self.fast]]
        return bool((shares > 0).any())

    def continue_from(self, before: Mapping[tuple[Entity, int], int]) -> None:
        """Go on after what another one has seen, so that nothing comes twice."""
        for row, entity in enumerate(self.entities):
            for place, field_id in enumerate(self.field_ids):
                self.seen_us[row, place] = before.get((entity, field_id), 0)

    def seen(self) -> dict[tuple[Entity, int], int]:
        """Return the times of what was read, for :meth:`continue_from`."""
        return {
            (entity, field_id): int(self.seen_us[row, place])
            for row, entity in enumerate(self.entities)
            for place, field_id in enumerate(self.field_ids)
        }

    def decode(self) -> None:
        """Take what the engine answered last; the attributes then hold it, by entity and field.

        ``times_us`` is when it was measured, 0 where nothing was; ``before_us`` what that was at the reading before;
        ``fresh`` where the two differ; ``numbers`` are in the catalogue's units, NaN where there is none; ``statuses``
        the engine's codes; ``capped`` how many ratios of each MIG instance were above 1.
        """
        self._values = values = self.raw.view(self.layout)[..., 0]
        count = values.shape[1]
        self.statuses = values["status"].copy()
        self.times_us = values["time_us"].copy()
        self.before_us = self.seen_us[:, :count].copy()
        self.fresh = (self.times_us != self.before_us) & (self.times_us != 0)
        np.copyto(self.seen_us[:, :count], self.times_us, where=self.fresh)
        numbers = self.numbers_of(values)
        self.capped: npt.NDArray[np.int64] | None = None
        if self.are_parts:
            # NVIDIA/DCGM issue 152: the engine relates some ratios of an instance to fewer SMs than it has.
            above = (numbers > 1.0) & self._is_ratio[:count]
            self.capped = (above & self.fresh).sum(axis=1)
            numbers[above] = 1.0
        self.numbers = numbers

    def numbers_of(self, values: npt.NDArray[np.void]) -> FloatArray:
        """Return the numbers in an array of ``layout`` in the catalogue's units, NaN where there is none.

        Args:
            values: The last axis are the fields, or the first of them.
        """
        count = values.shape[-1]
        numbers = decode_numbers(values)
        numbers[~((numbers >= self._least[:count]) & (numbers <= self._most[:count]))] = np.nan
        numbers *= self._scale[:count]
        return numbers


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
