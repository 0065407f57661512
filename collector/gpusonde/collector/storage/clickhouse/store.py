"""``ClickHouseStore``: the store in a database that any number of collectors share.

What tracking knows of open runs, in ClickHouse: whichever collector an agent greets next can go on there.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gpusonde.collector.records.decode import decode_record
from gpusonde.collector.records.model import STORED_LIMITS, Binding, GpuEvent, InventoryRecord, Position
from gpusonde.collector.storage.clickhouse.facts import Facts, Ownership
from gpusonde.collector.storage.clickhouse.reader import Reader
from gpusonde.collector.storage.clickhouse.schema import Retention, prepare
from gpusonde.collector.storage.clickhouse.sql import Rows, Sql, binary_column, fact_table, progress_table, sample_table
from gpusonde.collector.storage.clickhouse.tail import Tail
from gpusonde.collector.storage.local.facts import AgentRow, GpuRow, LossRow, RejectionRow
from gpusonde.collector.storage.local.states import StateFileError
from gpusonde.collector.storage.samples import SECOND_NS, Arrival, Samples
from gpusonde.collector.storage.store import Incoming, Listener, StoreCounters
from gpusonde.ingest.v1 import ingest_pb2

_LARGEST_BYTES = 1 << 26
# Format of a row that says that there is nothing any more.
_REMOVED = 0


class ClickHouseStates:
    """One row per agent and GPU.

    Args:
        sql: The database.
        ownership: Gives versions to rows.
    """

    def __init__(self, sql: Sql, ownership: Ownership) -> None:
        self._sql = sql
        self._ownership = ownership

    def write(self, key: tuple[str, str], version: int, content: bytes) -> None:
        """See ``StateStore.write``."""
        if len(content) > _LARGEST_BYTES:
            raise ValueError(f"a state of {len(content)} bytes is larger than the {_LARGEST_BYTES} that are read again")
        self._put(key, version, content)

    def read(self, key: tuple[str, str], version: int) -> bytes | None:
        """See ``StateStore.read``."""
        table = self._sql.table(
            "SELECT format, content FROM tracking_states FINAL"
            " WHERE agent_id = {agent:String} AND gpu_uuid = {gpu:String}",
            {"agent": key[0], "gpu": key[1]},
        )
        if not table.num_rows:
            return None
        found = table.column("format")[0].as_py()
        if found == _REMOVED:
            return None
        if found != version:
            raise StateFileError(f"the state of {key} is of version {found}, this collector reads {version}")
        return binary_column(table, "content")[0]

    def remove(self, key: tuple[str, str]) -> None:
        """See ``StateStore.remove``."""
        self._put(key, _REMOVED, b"")

    def keep_only(self, keys: Iterable[tuple[str, str]]) -> None:
        """Do nothing: the states of GPUs that this collector does not follow are other collectors'."""

    def _put(self, key: tuple[str, str], version: int, content: bytes) -> None:
        row = {
            "agent_id": key[0],
            "gpu_uuid": key[1],
            "format": version,
            "content": content,
            "version": self._ownership.version(key[0]),
        }
        self._sql.insert("tracking_states", fact_table([row]))


_NS_PER_US = 1_000
# Spools are numbered by the microsecond in which they began, and by a digest where several began together.
_SPOOL_DIGEST_BITS = 10
# More than the records of one commit of a busy collector.
_PROBE = bytes(1 << 20)


@dataclass(frozen=True)
class ClickHouseOptions:
    """How the store uses the database.

    Attributes:
        database: Its name.
        create_schema: Whether the collector makes and changes tables.
        retention: For how long samples are kept.
        tail_s: For how long records stay in memory for tracking.
        tail_bytes: Size of what stays there at most.
    """

    database: str = "gpusonde"
    create_schema: bool = True
    retention: Retention = field(default_factory=Retention)
    tail_s: float = 60.0
    tail_bytes: int = 256 << 20


class ClickHouseStore:
    """Keeps records in ClickHouse; nothing is on this machine.

    Args:
        sql: The database.
        ownership: Which agents are this collector's.
        options: How.
        wall_clock_ns: Unix time in nanoseconds.
        monotonic_clock: Seconds, for the age of what is in memory and the length of inserts.
        counters: Told what the store does.
    """

    def __init__(
        self,
        sql: Sql,
        ownership: Ownership,
        options: ClickHouseOptions | None = None,
        *,
        wall_clock_ns: Callable[[], int] = time.time_ns,
        monotonic_clock: Callable[[], float] = time.monotonic,
        counters: StoreCounters | None = None,
    ) -> None:
        self.counters = counters or StoreCounters()
        self._monotonic_clock = monotonic_clock
        self._sql = sql
        self._ownership = ownership
        self._options = options or ClickHouseOptions()
        self._wall_clock_ns = wall_clock_ns
        self._facts = Facts(sql)
        self._tail = Tail(self._options.tail_s, self._options.tail_bytes, monotonic_clock)
        self._reader = Reader(
            sql, self._facts, self._tail, lambda spool: self._durable.get(spool, 0), self._raw_since_unix_nano
        )
        self._append_lock = threading.Lock()
        self._lock = threading.Lock()
        # (agent, spool id) -> number and durable sequence, of the spools that this process appends to.
        self._spools: dict[tuple[str, str], int] = {}
        self._durable: dict[int, int] = {}
        self._listeners: list[Listener] = []

    def open(self) -> None:
        """Make or check the schema.

        Raises:
            StoreError: The database cannot be used, or belongs to a newer collector.
        """
        options = self._options
        prepare(self._sql, options.database, options.retention, may_change=options.create_schema)
        self._ownership.restore(self._facts.owners())

    def close(self) -> None:
        """Disconnect; everything appended is durable already."""
        with self._append_lock:
            self._sql.close()

    def _raw_since_unix_nano(self) -> int:
        raw_s = self._options.retention.raw_s
        return self._wall_clock_ns() - raw_s * SECOND_NS if raw_s else 0

    # Writing -----------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[Incoming]) -> int:
        """See ``Store.append``.

        The samples come before the durable sequence that covers them. What a crash or a failure leaves between the two
        is sent again, and rows with the same key are one row: no transaction is needed.
        """
        with self._append_lock:
            fresh, rows = self._news(records)
            if not fresh:
                return len(records)
            began_at = self._monotonic_clock()
            for table, facts in rows.facts.items():
                if facts:
                    self._sql.insert(table, fact_table(facts))
            if rows.blocks:
                self._sql.insert("samples", sample_table(rows.blocks))
            self._sql.insert("progress", progress_table(rows.reached))
            self.counters.on_log_sync(self._monotonic_clock() - began_at)
            gpus = self._tail.add([(position, incoming.decoded) for position, incoming in fresh])
            with self._lock:
                self._durable.update(rows.reached)
        touched = frozenset(
            (incoming.entry.agent_id, gpu) for (_, incoming), about in zip(fresh, gpus, strict=True) for gpu in about
        )
        if touched:
            for listener in self._listeners:
                listener(touched)
        return len(records) - len(fresh)

    def _news(self, records: Sequence[Incoming]) -> tuple[list[tuple[Position, Incoming]], Rows]:
        """Drop repetitions, find the gaps, make rows of the rest."""
        fresh: list[tuple[Position, Incoming]] = []
        rows = Rows()
        for incoming in records:
            entry = incoming.entry
            spool = self._spool(entry.agent_id, entry.spool_id)
            before = rows.reached.get(spool, self._durable[spool])
            if entry.sequence <= before:
                continue
            if entry.sequence > before + 1:
                rows.gap(spool, before + 1, entry.sequence - 1)
            position = Position(spool, entry.sequence)
            rows.add(position, incoming)
            fresh.append((position, incoming))
        return fresh, rows

    def _spool(self, agent_id: str, spool_id: str) -> int:
        """Return the number of a spool and see to it that how far it is durable is known."""
        number = self._spools.get((agent_id, spool_id))
        if number is None or number not in self._durable:
            return self._begin_spool(agent_id, spool_id, self._wall_clock_ns())
        return number

    def _begin_spool(self, agent_id: str, spool_id: str, began_unix_nano: int) -> int:
        """Look a spool up, or number it.

        Numbers of one agent rise in order of first arrival, and two collectors that see a spool first at the same time,
        from the same greeting, give it the same number.
        """
        known = self._facts.spools_of(agent_id)
        number = known.get(spool_id)
        if number is None:
            digest = hashlib.sha256(f"{agent_id}\n{spool_id}".encode()).digest()
            low = int.from_bytes(digest[:4], "little") % (1 << _SPOOL_DIGEST_BITS)
            number = max(began_unix_nano // _NS_PER_US << _SPOOL_DIGEST_BITS | low, 1 + max(known.values(), default=0))
            while self._facts.agent_of(number) not in (None, agent_id):
                number += 1
            self._facts.save_spool(agent_id, spool_id, number)
            known[spool_id] = number
        durable = self._facts.durable(number)
        with self._lock:
            self._durable[number] = durable
            self._spools.update({(agent_id, name): spool for name, spool in known.items()})
        self._tail.begin(number, durable)
        return number

    def check_writable(self) -> None:
        """See ``Store.check_writable``."""
        collector = self._ownership.collector
        row = {"collector": collector, "version": self._wall_clock_ns(), "data": _PROBE}
        self._sql.insert("probes", fact_table([row]))

    def quarantine(self, name: str, data: bytes) -> None:
        """See ``Store.quarantine``."""
        self._sql.insert("quarantine", fact_table([{"name": name, "data": data, "version": self._wall_clock_ns()}]))

    def introduce(self, agent: AgentRow) -> int:
        """See ``Store.introduce``; the agent is this collector's from then on."""
        with self._append_lock:
            owner = self._ownership.take(agent.agent_id, self._facts.owner(agent.agent_id))
            self._facts.save_agent(agent, owner, self._ownership.version(agent.agent_id))
            # Asked anew at every greeting: another collector may have taken records meanwhile.
            spool = self._begin_spool(agent.agent_id, agent.spool_id, agent.start_unix_nano)
            return self._durable[spool]

    def check_owners(self) -> frozenset[str]:
        """Look which agents have greeted another collector meanwhile and return those."""
        return self._ownership.lose(self._facts.owners())

    def followed(self) -> list[tuple[str, str]]:
        """Return the (agent, GPU) pairs that are not another collector's."""
        others = {
            agent for agent, owner in self._facts.owners().items() if owner.collector != self._ownership.collector
        }
        return [(gpu.agent_id, gpu.gpu_uuid) for gpu in self._facts.gpus() if gpu.agent_id not in others]

    def subscribe(self, listener: Listener) -> None:
        """See ``Store.subscribe``."""
        self._listeners.append(listener)

    # Reading -----------------------------------------------------------------------------------------------------

    def inventory(self, agent_id: str, spool_id: str) -> InventoryRecord | None:
        """See ``Store.inventory``."""
        spool = self._facts.spools_of(agent_id).get(spool_id)
        message = None if spool is None else self._facts.inventory_message(spool, self._facts.durable(spool))
        if message is None:
            return None
        decoded = decode_record(ingest_pb2.Record.FromString(message), None, STORED_LIMITS)
        return decoded if isinstance(decoded, InventoryRecord) else None

    def agents(self) -> list[AgentRow]:
        """See ``Store.agents``."""
        return self._facts.agents()

    def read(
        self,
        gpu_uuid: str,
        start_unix_nano: int,
        end_unix_nano: int,
        metrics: Sequence[str] | None = None,
        *,
        first: Position | None = None,
        last: Position | None = None,
    ) -> Samples:
        """See ``Store.read``."""
        return self._reader.read(gpu_uuid, start_unix_nano, end_unix_nano, metrics, first, last)

    def next_tick(self, gpu_uuid: str, start_unix_nano: int) -> int | None:
        """See ``Store.next_tick``."""
        return self._reader.next_tick(gpu_uuid, start_unix_nano)

    def arrivals(self, agent_id: str, gpu_uuid: str, after: Position) -> Iterator[Arrival]:
        """See ``Store.arrivals``."""
        return self._reader.arrivals(agent_id, gpu_uuid, after, self._durable_of(agent_id))

    def _durable_of(self, agent_id: str) -> dict[int, int]:
        """Return the spools of an agent and how far they are durable, without a question where this process knows."""
        with self._lock:
            spools = [number for (agent, _), number in self._spools.items() if agent == agent_id]
            known = {number: self._durable[number] for number in spools if number in self._durable}
        if not spools or not self._ownership.owns(agent_id):
            return {number: self._facts.durable(number) for number in self._facts.spools_of(agent_id).values()}
        asked = {number: self._facts.durable(number) for number in spools if number not in known}
        with self._lock:
            for number, durable in asked.items():
                self._durable.setdefault(number, durable)
        return known | asked

    def metrics_of(self, gpu_uuid: str) -> list[str]:
        """See ``Store.metrics_of``."""
        return self._facts.metrics_of(gpu_uuid)

    def holds(self, agent_id: str, position: Position) -> bool:
        """See ``Store.holds``."""
        return 0 < position.sequence <= self._durable_of(agent_id).get(position.spool, 0)

    def bindings(self, agent_id: str, gpu_uuid: str, through: Position) -> list[Binding]:
        """See ``Store.bindings``."""
        return [binding for position, binding in self._facts.bindings(agent_id, gpu_uuid) if position <= through]

    def gpus(self) -> list[GpuRow]:
        """See ``Store.gpus``."""
        return self._facts.gpus()

    def events(self, gpu_uuid: str) -> list[GpuEvent]:
        """See ``Store.events``."""
        return self._facts.events(gpu_uuid)

    def losses(self) -> list[LossRow]:
        """See ``Store.losses``."""
        return self._facts.losses()

    def rejections(self) -> list[RejectionRow]:
        """See ``Store.rejections``."""
        return self._facts.rejections()

    def blank_counts(self, gpu_uuid: str) -> dict[tuple[str, int], int]:
        """See ``Store.blank_counts``."""
        return self._facts.blank_counts(gpu_uuid)
