"""``ClickHouseStore``: the store in a database that any number of collectors share."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.clickhouse.facts import ClickHouseFacts, Ownership
from gpusonde.collector.storage.clickhouse.results import ClickHouseResults
from gpusonde.collector.storage.clickhouse.samples import ClickHouseSamples
from gpusonde.collector.storage.clickhouse.schema import prepare
from gpusonde.collector.storage.clickhouse.sql import ClickHouseSql, binary_column
from gpusonde.collector.storage.model import StoreUsage
from gpusonde.collector.storage.store import OwnersListener, StoreCounters, UnusableStateError
from gpusonde.errors import StoreError

_LOG = logging.getLogger(__name__)
_OWNER_CHECK_S = 5.0
# A move counts from when its insert began, which may end late.
_OWNER_OVERLAP_S = 120.0
_LARGEST_BYTES = 1 << 26
# Format of a row that says that there is nothing any more.
_REMOVED = 0


class ClickHouseStore:
    """Everything in a database that other collectors share.

    Args:
        sql: The database.
        ownership: Which agents are this collector's.
        config: For how long samples are kept.
        place: Where it is, for a human reader.
        wall_clock_ns: Unix time in nanoseconds.
        monotonic_clock: Seconds, for the age of what is in memory and the length of inserts.
    """

    def __init__(
        self,
        sql: ClickHouseSql,
        ownership: Ownership,
        config: StoreConfig,
        *,
        place: str = "",
        wall_clock_ns: Callable[[], int] = time.time_ns,
        monotonic_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sql = sql
        self._ownership = ownership
        self._config = config
        self.place = place
        self._monotonic_clock = monotonic_clock
        self._owners_known_s = monotonic_clock()
        self.counters = StoreCounters()
        self.facts = ClickHouseFacts(sql)
        self.samples = ClickHouseSamples(
            sql,
            self.facts,
            ownership,
            config,
            self.counters,
            wall_clock_ns=wall_clock_ns,
            monotonic_clock=monotonic_clock,
        )
        self.results = ClickHouseResults(sql, ownership)
        self.states = ClickHouseStates(sql, ownership)

    def open(self) -> None:
        """Make or check the schema.

        Raises:
            StoreError: The database cannot be used, or belongs to a newer collector.
        """
        database = self._sql.config
        try:
            prepare(self._sql, database.database, self._config, may_change=database.create_schema)
            self._owners_known_s = self._monotonic_clock()
            self._ownership.restore(self.facts.owners())
        except StoreError:
            self._sql.close()
            raise

    def close(self) -> None:
        """Disconnect; everything appended is durable already."""
        self.samples.close()

    def configure(self, config: StoreConfig) -> None:
        """Do nothing: all of it is fixed by the connection and the schema."""

    def flush(self) -> None:
        """Do nothing: everything is in its place."""

    def memory_share(self) -> float:
        """Return 0: no samples wait here, an insert has succeeded or the stream ends."""
        return 0.0

    def usage(self) -> StoreUsage:
        """Return what the tables take on the server's disks, of all collectors.

        Raises:
            StoreError: It cannot be found out.
        """
        sizes = dict(
            self._sql.rows(
                "SELECT table, toInt64(sum(bytes_on_disk)) FROM system.parts"
                " WHERE active AND database = currentDatabase() GROUP BY table"
            )
        )
        raw, second = sizes.pop("samples", 0), sizes.pop("samples_1s", 0)
        return StoreUsage({"raw": raw, "second": second, "catalog": sum(sizes.values())})

    def run_in_background(self, executors: Mapping[str, Executor]) -> Sequence[Coroutine[Any, Any, None]]:
        """Return the work of checking whether agents have gone to other collectors."""
        return [self._watch_owners(executors["maintain"])]

    async def _watch_owners(self, executor: Executor) -> None:
        while True:
            await asyncio.sleep(_OWNER_CHECK_S)
            try:
                lost = await asyncio.shield(asyncio.get_running_loop().run_in_executor(executor, self.check_owners))
            except StoreError as error:
                _LOG.error("whose agents are whose cannot be read now: %s", error)
                continue
            if lost:
                _LOG.info("agents have gone to other collectors: %s", ", ".join(sorted(lost)))

    def check_owners(self) -> frozenset[str]:
        """Look which agents have greeted another collector meanwhile and return those."""
        asked_s = self._monotonic_clock()
        lost = self._ownership.lose(self.facts.new_owners(math.ceil(asked_s - self._owners_known_s + _OWNER_OVERLAP_S)))
        self._owners_known_s = asked_s
        return lost

    def followed(self) -> list[tuple[str, str]]:
        """Return the (agent, GPU) pairs that are not another collector's."""
        others = {agent for agent, owner in self.facts.owners().items() if owner.collector != self._ownership.collector}
        return [(gpu.agent_id, gpu.gpu_uuid) for gpu in self.facts.gpus() if gpu.agent_id not in others]

    def subscribe_to_owners(self, listener: OwnersListener) -> None:
        """Have ``listener`` called when agents come from another collector or go to one."""
        self._ownership.subscribe(listener)


class ClickHouseStates:
    """Implements ``StateStore`` with one row per agent and GPU: the collector that an agent greets next goes on there.

    Args:
        sql: The database.
        ownership: Gives versions to rows.
    """

    def __init__(self, sql: ClickHouseSql, ownership: Ownership) -> None:
        self._sql = sql
        self._ownership = ownership

    def write(self, key: tuple[str, str], version: int, content: bytes) -> None:
        """Replace what is kept for an agent and a GPU."""
        if len(content) > _LARGEST_BYTES:
            raise ValueError(f"a state of {len(content)} bytes is larger than the {_LARGEST_BYTES} that are read again")
        self._put(key, version, content)

    def read(self, key: tuple[str, str], version: int) -> bytes | None:
        """Return what was written for a key, or None when there is nothing."""
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
            raise UnusableStateError(f"the state of {key} is of version {found}, this collector reads {version}")
        return binary_column(table, "content")[0]

    def remove(self, key: tuple[str, str]) -> None:
        """Remove what is kept for a key."""
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
        self._sql.insert("tracking_states", [row])
