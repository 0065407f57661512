"""``Watch``: one set of fields that the engine records for some GPUs, and what it recorded since the last look."""

from __future__ import annotations

import ctypes
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from gpusonde.agent.sources.dcgm.connection.engine import Engine
from gpusonde.agent.sources.dcgm.connection.entities import Entity
from gpusonde.agent.sources.dcgm.connection.errors import NO_DATA, DcgmCallError, EngineLostError
from gpusonde.agent.sources.dcgm.values import EngineValue, plain_layout, read_number

# How long the engine keeps what was not fetched. Long enough for a stalled host, short because it is memory of the
# engine: 100 values per field at 10 Hz.
_KEEP_S = 10.0
_KEEP_INTERVALS = 3.0
_OVERLAP_INTERVALS = 2.0


class Watch:
    """A field group watched on a group of GPUs.

    The bindings' own collectors are not used: some return only the last of several values, repeat the last one when
    there is nothing new, or drop the rest of a batch behind a value they do not know. The raw callback does not.

    Args:
        engine: An open engine.
        name: What the watch is for, part of its name in the engine.
        entities: GPUs or MIG instances.
        field_ids: Numbers of the fields.
        interval_s: Seconds between measurements.
        wall_ns: Unix time in nanoseconds.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        entities: Sequence[Entity],
        field_ids: Sequence[int],
        interval_s: float,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.name = name
        self.entities = tuple(entities)
        self.field_ids = tuple(field_ids)
        self._engine = engine
        self._interval_s = interval_s
        self._wall_ns = wall_ns
        self._group: Any = None
        self._fields: Any = None
        self._since_us = 0
        self._seen_us: dict[tuple[int, int, int], int] = {}
        self._values: list[EngineValue] = []
        self._failure: Exception | None = None
        # Kept for as long as the engine may call it: ctypes does not hold it.
        self._layout = plain_layout(engine.bindings.structs.c_dcgmFieldValue_v1)
        self._entity_of = {tuple(entity): entity for entity in entities}
        self._callback = engine.bindings.agent.dcgmFieldValueEntityEnumeration_f(self._take)

    def open(self) -> None:
        """Make the groups and start recording.

        Raises:
            DcgmCallError: The engine refuses; one field that a GPU lacks is enough when it is a profiling field.
        """
        # A name is taken until its owner disconnects, and another agent may watch the same engine.
        name = f"gpusonde-{self.name}-{uuid.uuid4().hex[:12]}"
        self._since_us = self._wall_ns() // 1000
        try:
            self._group = self._engine.make_group(name, self.entities)
            self._fields = self._engine.make_field_group(name, self.field_ids)
            self._watch()
        except DcgmCallError:
            self.close()
            raise

    def read(self) -> list[EngineValue]:
        """Return what was recorded since the previous call, in the engine's order.

        Raises:
            DcgmCallError: The engine refuses; :class:`EngineLostError` when it is gone.
        """
        now_us = self._wall_ns() // 1000
        if self._since_us > now_us + 1_000_000:
            # The clock was set back: nothing would be newer than before for as long as the step was.
            self._since_us = now_us
            self._seen_us.clear()
        # A list of its own for each call: one that hangs may yet come back and go on filling its.
        values: list[EngineValue] = []
        self._values, self._failure = values, None
        try:
            following_us = self._engine.values_since(
                self.name, self._group, self._fields, self._since_us, self._callback
            )
        except DcgmCallError as error:
            if error.code != NO_DATA:
                raise
        else:
            self._since_us = self._resume_from(following_us)
        if self._failure is not None:
            raise self._failure
        return values

    def renew(self) -> None:
        """Stop and start recording, which brings stuck profiling fields back.

        Raises:
            DcgmCallError: The engine refuses.
        """
        self._engine.unwatch(self.name, self._group, self._fields)
        self._watch()

    def close(self) -> None:
        """Stop recording and give the groups back."""
        fields, self._fields = self._fields, None
        group, self._group = self._group, None
        releases: list[Callable[[], None]] = []
        if fields is not None:
            releases += [
                lambda: self._engine.unwatch(self.name, group, fields),
                lambda: self._engine.delete_field_group(fields),
            ]
        if group is not None:
            releases.append(lambda: self._engine.delete_group(group))
        for release in releases:
            try:
                release()
            except EngineLostError:
                # The engine cleans up after a connection that ended.
                return
            except DcgmCallError:
                continue

    def _watch(self) -> None:
        keep_s = max(_KEEP_S, _KEEP_INTERVALS * self._interval_s)
        self._engine.watch(self.name, self._group, self._fields, self._interval_s, keep_s)

    def _resume_from(self, following_us: int) -> int:
        """Return the time to ask from next.

        The engine measures while it answers, one field after the other, and tells the time after the newest value it
        gave. A field that it answered for just before measuring it would lose that value, so the oldest of the fields'
        newest times counts, for at most two intervals.
        """
        oldest_us = min(self._seen_us.values(), default=following_us) + 1
        overlap_us = round(_OVERLAP_INTERVALS * self._interval_s * 1e6)
        return max(min(following_us, oldest_us), following_us - overlap_us)

    def _take(self, entity_group: int, entity_id: int, values: Any, count: int, _user_data: Any) -> int:
        """Copy values out of the engine's memory; called by ``dcgmGetValuesSince_v2``."""
        try:
            entity = self._entity_of[entity_group, entity_id]
            append = self._values.append
            plain, start = self._layout, 0
            if plain is not None:
                start, stride = ctypes.addressof(values.contents), ctypes.sizeof(plain)
            for i in range(count):
                value = values[i] if plain is None else plain.from_address(start + i * stride)
                # A value may come twice: see _resume_from, and some versions repeat the last one. 0 is no time.
                key, time_us = (entity_group, entity_id, value.fieldId), value.ts
                if time_us:
                    if time_us <= self._seen_us.get(key, 0):
                        continue
                    self._seen_us[key] = time_us
                append(EngineValue(entity, value.fieldId, time_us, read_number(value)))
        except Exception as error:
            # ctypes would print it and go on without the rest of the batch.
            self._failure = self._failure or error
        return 0
