"""A host engine in memory: fields are measured on its own clock from a waveform whose integral is known.

It does what a real one was seen to do (DCGM 4.4.2 over a stub of NVML): a lost GPU is still listed and answers with
the UUID ``<<<NULL>>>``, but no group or watch may hold it; history is asked by one request per entity and field, and a
field without news is answered with status -14 and time 0; the latest values of many are one request; what NVML refuses
inside its answer comes as 0; a recording is the engine's, whoever watches it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gpusonde.telemetry import METRIC_BY_DCGM_FIELD_ID, Unit

NOT_SUPPORTED, NO_DATA, NOT_WATCHED, GPU_IS_LOST, CONNECTION_NOT_VALID, MULTI_PASS = -6, -14, -16, -18, -21, -38
FUNCTION_NOT_FOUND = -20
NULL_TEXT = "<<<NULL>>>"
PROFILING_FIELDS = tuple(f for f in METRIC_BY_DCGM_FIELD_ID if f >= 1001)
DOUBLE_FIELDS = frozenset({155, 157, *(f for f in PROFILING_FIELDS if f <= 1008)})
INT64_BLANK, DOUBLE_BLANK = 0x7FFFFFFFFFFFFFF0, 140737488355328.0

# (major, minor, fields) as `dcgmi profile -l` shows them.
HOPPER = ((0, 0, PROFILING_FIELDS),)
TURING = (
    (0, 1, (1002, 1003, 1004, 1007)),
    (0, 2, (1006,)),
    (0, 3, (1008,)),
    (1, 0, (1005,)),
    (2, 0, (1009, 1010)),
    (3, 0, (1001,)),
    (4, 0, (1011, 1012)),
)
# Of the level, per field; the profiling fields are means over the time between two measurements.
SHARES = {1001: 1.0, 1002: 0.9, 1003: 0.5, 1004: 0.7, 1005: 0.6, 1006: 0.0, 1007: 0.3, 1008: 0.1}
BYTES_PER_LEVEL = {1009: 1e9, 1010: 2e9, 1011: 3e9, 1012: 4e9}


# Kinds of entities: a GPU, a MIG GPU instance, a compute instance in it.
GPU, GPU_INSTANCE, COMPUTE_INSTANCE = 1, 4, 5
UNKNOWN_FIELD = -13
XID_FIELD = 230


@dataclass(frozen=True)
class FakeInstance:
    """A MIG GPU instance and the compute instances in it, by NVML's numbers."""

    gpu: int
    instance: int
    compute: tuple[int, ...] = (0,)
    slices: int = 1

    @property
    def share(self) -> float:
        """Of the GPU's level."""
        return 1.0 - 0.05 * self.instance


@dataclass
class WatchState:
    """What one connection watches."""

    entities: tuple[tuple[int, int], ...]
    fields: tuple[int, ...]
    interval_s: float
    keep_s: float


@dataclass
class Recording:
    """One field of one entity, as the engine measures it for whoever watches it."""

    start_s: float
    interval_s: float
    keep_s: float
    given: tuple[float, float, int] | None = None


@dataclass
class FakeEngine:
    """The engine and everything that can go wrong with it; times in seconds of its own clock."""

    version: int = 4
    gpus: int = 2
    groups: dict[int, tuple[tuple[int, int, tuple[int, ...]], ...]] = field(default_factory=dict)
    period_s: float = 10.0
    time_s: float = 1_700_000_000.0
    lag_s: float = 0.0
    drift: float = 0.0
    jitter_s: float = 0.0
    profiling_phase_s: float = 0.0
    answer_s: float = 0.0
    library: bool = True
    remote: bool = True
    embeddable: bool = True
    max_passes: int = 5
    calls: list[str] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    blanks: dict[tuple[int, int], int | str] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    lacking: dict[int, set[int]] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    stuck: set[int] = field(default_factory=set)
    zeros: set[int] = field(default_factory=set)
    xids: list[tuple[int, float, int]] = field(default_factory=list)
    paused: bool = False
    instances: dict[int, FakeInstance] = field(default_factory=dict)
    excess: float = 1.0
    instant_power: bool = True
    inner_unsupported: set[int] = field(default_factory=set)
    refuses_lost_at: str = "watch"
    names_lost: bool = False
    library_lacks: set[str] = field(default_factory=set)
    request_s: float = 0.0
    requests: int = 0
    functions: dict[str, Any] = field(default_factory=dict)
    recordings: dict[tuple[tuple[int, int], int], Recording] = field(default_factory=dict)
    hanging: set[str] = field(default_factory=set)
    released: threading.Event = field(default_factory=threading.Event)
    held: int = 0
    connections: list[Connection] = field(default_factory=list)

    def advance(self, seconds: float) -> None:
        self.time_s += seconds

    def set_clock(self, seconds: float) -> None:
        """The host's clock is set; what was measured keeps its stamps."""
        self.time_s += seconds
        for recording in self.recordings.values():
            recording.start_s += seconds

    def kill(self) -> None:
        """The host engine ends: its connections are dead and its groups gone."""
        self.remote = False
        for connection in self.connections:
            connection.alive = False
        self.connections.clear()
        self.recordings.clear()

    def count_requests(self, number: int) -> None:
        """Note requests, each of which costs its client processor time."""
        self.requests += number
        end_s = time.thread_time() + number * self.request_s
        while self.request_s and time.thread_time() < end_s:
            continue

    def record(self, watch: WatchState) -> None:
        """Begin recordings, or go on with those that are there."""
        for entity in watch.entities:
            for field_id in watch.fields:
                known = self.recordings.get((entity, field_id))
                if known is None or known.interval_s != watch.interval_s:
                    start_s = self.time_s + 0.003
                    self.recordings[entity, field_id] = Recording(start_s, watch.interval_s, watch.keep_s)

    def end(self, watch: WatchState) -> None:
        """End the recordings that nobody else watches."""
        others = [w for connection in self.connections for w in connection.watches.values()]
        kept = {(entity, field_id) for w in others for entity in w.entities for field_id in w.fields}
        for entity in watch.entities:
            for field_id in watch.fields:
                if (entity, field_id) not in kept:
                    self.recordings.pop((entity, field_id), None)

    def uuid(self, gpu: int) -> str:
        return f"GPU-dc60000{gpu}-0000-0000-0000-000000000000"

    def level(self, gpu: int, seconds: float) -> float:
        high = (seconds % self.period_s) < 0.9 * self.period_s
        return (0.8 if high else 0.2) - 0.02 * gpu

    def mean(self, gpu: int, start_s: float, end_s: float) -> float:
        """The true mean of the level between two times."""
        return (self._integral(end_s) - self._integral(start_s)) / (end_s - start_s) - 0.02 * gpu

    def _integral(self, seconds: float) -> float:
        periods, rest = divmod(seconds, self.period_s)
        high = min(rest, 0.9 * self.period_s)
        return periods * self.period_s * 0.74 + 0.8 * high + 0.2 * (rest - high)

    def fail(self, function: str) -> int:
        """The code that a function answers; 0 for success."""
        self.calls.append(function)
        if function in self.hanging:
            self.held += 1
            self.released.wait()
            self.held -= 1
        return self.refused.get(function, 0)

    def metric_groups(self, gpu: int) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
        return self.groups.get(gpu, HOPPER)

    def gpu_of(self, entity: tuple[int, int]) -> int:
        """The whole GPU that an entity belongs to."""
        return entity[1] if entity[0] == GPU else self.instances[entity[1]].gpu

    def watch_code(self, entities: tuple[tuple[int, int], ...], fields: tuple[int, ...]) -> int:
        """One profiling field that an entity lacks is enough to refuse all, and so is one lost GPU."""
        for entity in entities:
            gpu = self.gpu_of(entity)
            if gpu in self.lost:
                return GPU_IS_LOST
            groups = self.metric_groups(gpu)
            wanted = {f for f in fields if f >= 1001}
            if (entity[0] != GPU and max(wanted, default=0) > 1008) or wanted & self.lacking.get(gpu, set()):
                return NOT_SUPPORTED
            if wanted - {f for _, _, ids in groups for f in ids}:
                return NOT_SUPPORTED
            passes = {major: {m for M, m, ids in groups if major == M and wanted & set(ids)} for major, _, _ in groups}
            if max(map(len, passes.values()), default=0) > self.max_passes:
                return MULTI_PASS
        return 0

    def measured(self, entity: tuple[int, int], field_id: int, since_s: float) -> list[tuple[float, float, int]]:
        """(time, number, status) of one field, oldest first."""
        gpu = self.gpu_of(entity)
        if field_id == XID_FIELD:
            return [
                (at, float(code), 0) for which, at, code in self.xids if which == gpu and since_s <= at <= self.time_s
            ]
        recording = self.recordings.get((entity, field_id))
        if recording is None or gpu in self.silent or field_id in self.stuck:
            return []
        oldest_s = max(since_s, self.time_s - recording.keep_s)
        number = max(0, math.floor((oldest_s - self._start_s(recording, field_id)) / self._step_s(recording)) - 1)
        rows = []
        while (at_s := self._at_s(recording, field_id, number)) <= self.time_s - self.lag_s:
            if at_s >= oldest_s:
                rows.append((at_s, *self._value(entity, field_id, at_s, self._step_s(recording), number)))
            number += 1
        return rows

    def latest(self, entity: tuple[int, int], field_id: int) -> tuple[float, float, int]:
        """(time, number, status) of the newest value; the one before where a field gives nothing new."""
        if field_id == XID_FIELD:
            return max(self.measured(entity, field_id, 0.0), default=(0.0, 0.0, NO_DATA))
        recording = self.recordings.get((entity, field_id))
        if recording is None:
            return 0.0, 0.0, NOT_WATCHED
        if self.gpu_of(entity) not in self.silent and field_id not in self.stuck:
            now_s, step_s = self.time_s - self.lag_s, self._step_s(recording)
            number = math.floor((now_s - self._start_s(recording, field_id)) / step_s) + 1
            while number >= 0 and (at_s := self._at_s(recording, field_id, number)) > now_s:
                number -= 1
            if number >= 0 and (recording.given is None or recording.given[0] != at_s):
                recording.given = (at_s, *self._value(entity, field_id, at_s, step_s, number))
        return recording.given or (0.0, 0.0, NO_DATA)

    def latest_rows(self, pairs: list[tuple[int, int]], field_ids: list[int]) -> tuple[Sequence, Sequence, Sequence]:
        """Times, numbers and statuses of the newest values, by entity, then by field."""
        rows = [
            self.latest(pair, field_id) if pair[0] == GPU or pair[1] in self.instances else (0.0, 0.0, NOT_WATCHED)
            for pair in pairs
            for field_id in field_ids
        ]
        times_s, numbers, statuses = zip(*rows, strict=True)
        return times_s, numbers, statuses

    def _step_s(self, recording: Recording) -> float:
        return recording.interval_s * (1.0 + self.drift)

    def _start_s(self, recording: Recording, field_id: int) -> float:
        return recording.start_s + (self.profiling_phase_s if field_id >= 1001 else 0.0)

    def _at_s(self, recording: Recording, field_id: int, number: int) -> float:
        """When a value is measured."""
        regular_s = self._start_s(recording, field_id) + number * self._step_s(recording)
        return regular_s + self.jitter_s * math.sin(1.7 * number)

    def _value(
        self, entity: tuple[int, int], field_id: int, at_s: float, step_s: float, number: int
    ) -> tuple[float, int]:
        gpu = self.gpu_of(entity)
        if entity[0] != GPU:
            return self._value_of_part(self.instances[entity[1]], field_id, at_s, step_s)
        blank = self.blanks.get((gpu, field_id))
        if gpu in self.lost:
            return 0.0, GPU_IS_LOST
        if isinstance(blank, int) and blank < 0:
            return 0.0, blank
        is_profiling = field_id >= 1001
        early = is_profiling and self.version == 3 and number < 2
        if blank is not None or early or (is_profiling and self.paused):
            offset = {"not found": 1, "not supported": 2, "no permission": 3}.get(str(blank), 0)
            return (DOUBLE_BLANK if field_id in DOUBLE_FIELDS else INT64_BLANK) + offset, 0
        if field_id in self.zeros or field_id in self.inner_unsupported:
            return 0.0, 0
        if is_profiling:
            mean = self.mean(gpu, at_s - step_s, at_s)
            return SHARES[field_id] * mean if field_id in SHARES else BYTES_PER_LEVEL[field_id] * mean, 0
        return self._plain(gpu, field_id, at_s), 0

    def _value_of_part(self, part: FakeInstance, field_id: int, at_s: float, step_s: float) -> tuple[float, int]:
        """A part has profiling ratios and memory, and nothing else."""
        if 1001 <= field_id <= 1008:
            factor = self.excess if field_id == 1002 else 1.0
            return factor * part.share * SHARES[field_id] * self.mean(part.gpu, at_s - step_s, at_s), 0
        if field_id == 252:
            return part.share * 10240 * part.slices * self.level(part.gpu, at_s), 0
        if field_id == 251:
            return 1000.0, 0
        return INT64_BLANK + 2, 0

    def _plain(self, gpu: int, field_id: int, at_s: float) -> float:
        level = self.level(gpu, at_s)
        known = {
            203: 100 * level,
            204: 40 * level,
            157: 100 + 600 * level,
            155: 50 + 600 * level,
            100: 1980 * level,
            252: 40960 * level,
        }
        if field_id in known:
            return known[field_id]
        if field_id == 156:
            # Millijoules since the clock's zero.
            return 1e3 * (100 * at_s + 600 * (self._integral(at_s) - 0.02 * gpu * at_s)) % 1e15
        return {Unit.CELSIUS: 50.0, Unit.MEGAHERTZ: 2619.0, Unit.BYTES: 1000.0}.get(
            METRIC_BY_DCGM_FIELD_ID[field_id].unit, 4.0
        )


class LiveEngine(FakeEngine):
    """An engine on the host's own clock."""

    @property
    def time_s(self) -> float:
        return time.time()

    @time_s.setter
    def time_s(self, seconds: float) -> None:
        """The clock is not ours to set."""


class Connection:
    """One client's groups and watches."""

    # What a function in C is given for it.
    _as_parameter_ = None

    def __init__(self, engine: FakeEngine, address: str) -> None:
        self.engine = engine
        self.address = address
        self.alive = True
        self.groups: dict[int, tuple[tuple[int, int], ...]] = {}
        self.field_groups: dict[int, tuple[int, ...]] = {}
        self.watches: dict[tuple[int, int], WatchState] = {}
        engine.connections.append(self)


_CURRENT: list[FakeEngine] = []


def install(engine: FakeEngine) -> None:
    """Make the modules of the stand-in talk to this engine."""
    _CURRENT[:] = [engine]


def current() -> FakeEngine:
    return _CURRENT[0]
