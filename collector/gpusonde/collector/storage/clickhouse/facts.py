"""Agents, spools, inventories and everything else that records say besides samples, out of the database.

``Ownership`` tells which collector speaks for an agent: the one that it greeted last. ClickHouse has no transactions,
so nobody can be kept from writing. Instead every row that may change carries a version that begins with the agent's
term, the number of times it has changed collectors: what an earlier collector still writes about an agent, late, loses
against what the present one has written.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpusonde.collector.storage.clickhouse.sql import ClickHouseSql, binary_column
from gpusonde.collector.storage.model import (
    AgentRow,
    GpuRow,
    LossRow,
    Position,
    RejectionRow,
    decode_inventory,
    read_activity,
)
from gpusonde.collector.storage.store import OwnersListener
from gpusonde.service.wire import Binding, GpuEvent, InventoryRecord, JobActivity

_NS_PER_MS = 1_000_000
# Milliseconds since 1970 fit until the year 2109; 2^21 changes of collector are one every half minute for two years.
TERM_SHIFT = 42
# For so long a claim may be there before all else that is said with it.
_RIVALS_S = 300
_LAST_ITEM = 1 << 62
_ACTIVITY_AT_ONCE = 256


@dataclass(frozen=True)
class AgentOwner:
    """The collector that an agent greeted last, and how many times that has changed."""

    collector: str
    term: int


@dataclass(frozen=True)
class GreetedAgent:
    """What an agent said of itself, and to whom."""

    agent: AgentRow
    owner: AgentOwner
    version: int


@dataclass(frozen=True)
class KnownAgents:
    """What the database holds that greetings are about.

    Attributes:
        agents: What agents said of themselves last, and to whom.
        claims: Who has claimed agents last, if that was lately; what they said to it may not be there yet.
        spools: (Agent, spool id) -> number and durable sequence, of all spools of the agents.
        holders: Numbers that were asked about -> the agents that have spools of these numbers, nothing where none has.
        inventories: Numbers of spools that were asked about -> the records with their latest durable inventories.
    """

    agents: dict[str, tuple[AgentRow, AgentOwner]]
    claims: dict[str, AgentOwner]
    spools: dict[tuple[str, str], tuple[int, int]]
    holders: dict[int, str]
    inventories: dict[int, bytes]

    def inventory(self, spool: int) -> InventoryRecord | None:
        """Return the latest durable inventory of a spool that was asked about, if there is one."""
        message = self.inventories.get(spool)
        return decode_inventory(message) if message else None

    def owner(self, agent_id: str) -> AgentOwner | None:
        """Return who owns an agent, as far as anybody has said."""
        said = [self.agents[agent_id][1]] if agent_id in self.agents else []
        said += [self.claims[agent_id]] if agent_id in self.claims else []
        return max(said, key=lambda owner: owner.term, default=None)


class Ownership:
    """The terms of the agents of this collector.

    Args:
        collector: Its name; no two collectors have the same.
        wall_clock_ns: Unix time in nanoseconds.
    """

    def __init__(self, collector: str, wall_clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.collector = collector
        self._wall_clock_ns = wall_clock_ns
        self._terms: dict[str, int] = {}
        # Those under which tracking has begun with agents: it may not have heard of today's yet.
        self._followed: dict[str, int] = {}
        self._listeners: list[OwnersListener] = []
        self._last_ms = 0
        self._lock = threading.RLock()

    def subscribe(self, listener: OwnersListener) -> None:
        """Have ``listener`` called with agents that come from another collector or have gone to one."""
        self._listeners.append(listener)

    def restore(self, owners: Mapping[str, AgentOwner]) -> None:
        """Go on with the agents that greeted this collector last, before it was started anew."""
        with self._lock:
            self._terms = {agent: owner.term for agent, owner in owners.items() if owner.collector == self.collector}
            self._followed = dict(self._terms)

    def next_owner(self, before: AgentOwner | None) -> AgentOwner:
        """Return what an agent's owner becomes by greeting this collector."""
        if before is None:
            return AgentOwner(self.collector, 1)
        return before if before.collector == self.collector else AgentOwner(self.collector, before.term + 1)

    def take(self, owners: Mapping[str, AgentOwner]) -> None:
        """Own agents; the database says so already, and what it holds of them is known here."""
        with self._lock:
            came = frozenset(agent for agent, owner in owners.items() if self._terms.get(agent) != owner.term)
            self._terms.update({agent: owner.term for agent, owner in owners.items()})
            self._tell(came, came=True)

    def lose(self, owners: Mapping[str, AgentOwner]) -> frozenset[str]:
        """Compare with what the database says and return the agents that now belong to another collector."""
        with self._lock:
            lost = frozenset(
                agent
                for agent, term in self._terms.items()
                if (owner := owners.get(agent)) and owner.collector != self.collector and owner.term >= term
            )
            for agent in lost:
                del self._terms[agent]
            self._tell(lost, came=False)
        return lost

    def _tell(self, agents: frozenset[str], *, came: bool) -> None:
        """Call the listeners, under the lock: in the order in which it happened."""
        for listener in self._listeners if agents else ():
            listener(agents, came)

    def owns(self, agent_id: str) -> bool:
        """Return whether an agent has greeted this collector last, as far as is known."""
        with self._lock:
            return agent_id in self._terms

    def follow(self, agents: Collection[str]) -> None:
        """Note that tracking of agents begins anew, under their terms of now.

        What it has found so far keeps the term under which it was found, and loses against what another collector has
        written meanwhile.
        """
        with self._lock:
            self._followed.update({agent: self._terms.get(agent, 0) for agent in agents})

    def term(self, agent_id: str) -> int:
        """Return the term under which an agent is followed, 0 of one that has not greeted this collector."""
        with self._lock:
            return self._followed.get(agent_id, self._terms.get(agent_id, 0))

    def version(self, agent_id: str, term: int | None = None) -> int:
        """Return a version above all that this collector has given to rows about an agent in a term.

        Args:
            agent_id: The agent.
            term: The term; without one, that under which the agent is followed.
        """
        term = self.term(agent_id) if term is None else term
        with self._lock:
            self._last_ms = max(self._last_ms + 1, self._wall_clock_ns() // _NS_PER_MS)
            return term << TERM_SHIFT | self._last_ms


_OF_AGENTS = "FROM spools WHERE agent_id IN {agents:Array(String)}"
_SPOOL_PROGRESS = (
    "SELECT agent_id, spool_id, spool, sequence"  # noqa: S608 - own text only
    f" FROM (SELECT agent_id, spool_id, min(spool) AS spool {_OF_AGENTS} GROUP BY agent_id, spool_id) AS named"
    " LEFT JOIN (SELECT spool, max(sequence) AS sequence FROM progress"
    f" WHERE spool IN (SELECT spool {_OF_AGENTS}) GROUP BY spool) AS reached USING (spool)"
)
_GREETED = f"SELECT spool {_OF_AGENTS} AND spool_id IN {{spools:Array(String)}}"
# Every statement counts a row that was inserted twice, and is not merged yet, once: DISTINCT, or FINAL where rows of
# one key have versions.


class ClickHouseFacts:
    """Implements ``FactStore`` over the database, and writes agents and spools.

    Args:
        sql: The database.
    """

    def __init__(self, sql: ClickHouseSql) -> None:
        self._sql = sql

    # Agents and spools -------------------------------------------------------------------------------------------

    def claim(self, owners: Mapping[str, AgentOwner], version: Callable[[str, int], int]) -> dict[str, AgentOwner]:
        """Say that agents have come to a collector, under terms that no other one has.

        Of two that are greeted at once, and claim one term, the one that looks later sees the other one's claim.

        Args:
            owners: The agents, and who owns them from now on.
            version: Gives versions to rows about an agent, in a term.

        Returns:
            The owners with the terms that they have got.
        """
        claimed, claims = dict(owners), dict(owners)
        while claims:
            rows = [
                {"agent_id": agent, **vars(owner), "version": version(agent, owner.term)}
                for agent, owner in claims.items()
            ]
            self._sql.insert("agent_moves", rows)
            rivals = self._sql.few_rows(
                "SELECT agent_id, max(term) FROM agent_moves WHERE agent_id IN {agents:Array(String)}"
                " AND collector != {collector:String} AND moved >= now() - {seconds:Int64} GROUP BY agent_id",
                {"agents": sorted(claims), "collector": rows[0]["collector"], "seconds": _RIVALS_S},
            )
            # Who has a higher one has been greeted since.
            claims = {
                agent: replace(claims[agent], term=term + 1) for agent, term in rivals if term == claims[agent].term
            }
            claimed |= claims
        return claimed

    def save_agents(self, greeted: Sequence[GreetedAgent]) -> None:
        """Store what agents said of themselves, and to whom."""
        rows = [
            {**vars(row.agent), "collector": row.owner.collector, "term": row.owner.term, "version": row.version}
            for row in greeted
        ]
        for agent in rows:
            del agent["first_sequence"]
        self._sql.insert("agents", rows)

    def agents(self) -> list[AgentRow]:
        """Return every agent ever seen."""
        table = self._sql.table(
            "SELECT agent_id, spool_id, instance_id, start_unix_nano, host_name, agent_version, host FROM agents FINAL"
            " ORDER BY agent_id"
        )
        columns = [table.column(name).to_pylist() for name in table.column_names[:-1]]
        return [AgentRow(*row) for row in zip(*columns, binary_column(table, "host"), strict=True)]

    def owners(self) -> dict[str, AgentOwner]:
        """Return the owners of all agents."""
        rows = self._sql.rows("SELECT agent_id, collector, term FROM agents FINAL")
        return {agent_id: AgentOwner(collector, term) for agent_id, collector, term in rows}

    def known_agents(self, spools: Collection[tuple[str, str]], numbers: Collection[int]) -> KnownAgents:
        """Return what greetings of agents are about, and who holds spools of some numbers.

        All in one statement: each costs the collector about a millisecond, whatever it asks.

        Args:
            spools: The agents and the ids of the spools that they come with.
            numbers: The numbers.
        """
        rows = self._sql.few_rows(
            "SELECT 'agent' AS kind, agent_id, spool_id, instance_id, start_unix_nano, host_name, agent_version,"  # noqa: S608 - own text only
            " base64Encode(host), collector, term, toInt64(0) AS spool, toInt64(0) AS sequence FROM agents FINAL"
            " WHERE agent_id IN {agents:Array(String)} UNION ALL"
            " SELECT 'claim', agent_id, '', '', 0, '', '', '', argMax(collector, version), argMax(term, version), 0, 0"
            " FROM agent_moves WHERE agent_id IN {agents:Array(String)} AND moved >= now() - {seconds:Int64}"
            " GROUP BY agent_id UNION ALL"
            " SELECT 'spool', agent_id, spool_id, '', 0, '', '', '', '', 0, spool, sequence"
            f" FROM ({_SPOOL_PROGRESS}) UNION ALL"
            " SELECT 'number', agent_id, '', '', 0, '', '', '', '', 0, spool, 0 FROM spools"
            " WHERE spool IN {numbers:Array(Int64)} UNION ALL"
            " SELECT 'inventory', '', '', '', 0, '', '',"
            " base64Encode(argMaxIf(message, sequence, sequence <= durable)), '', 0, spool, 0"
            f" FROM (SELECT spool, sequence, message FROM inventories WHERE spool IN ({_GREETED})) AS said"
            " INNER JOIN (SELECT spool, max(sequence) AS durable FROM progress"
            f" WHERE spool IN ({_GREETED}) GROUP BY spool) AS reached USING (spool) GROUP BY spool",
            {
                "agents": sorted({agent_id for agent_id, _ in spools}),
                "spools": sorted({spool_id for _, spool_id in spools}),
                "numbers": sorted(numbers),
                "seconds": _RIVALS_S,
            },
        )
        found = KnownAgents({}, {}, {}, dict.fromkeys(numbers, ""), {})
        for kind, agent_id, spool_id, instance, start, name, version, data, collector, term, spool, sequence in rows:
            if kind == "agent":
                agent = AgentRow(agent_id, spool_id, instance, start, name, version, base64.b64decode(data))
                found.agents[agent_id] = agent, AgentOwner(collector, term)
            elif kind == "claim":
                found.claims[agent_id] = AgentOwner(collector, term)
            elif kind == "spool":
                found.spools[agent_id, spool_id] = spool, sequence
            elif kind == "inventory":
                found.inventories[spool] = base64.b64decode(data)
            else:
                found.holders[spool] = agent_id
        return found

    def new_owners(self, within_s: int) -> dict[str, AgentOwner]:
        """Return the owners of the agents that have changed collectors in the last seconds, on the database's clock."""
        rows = self._sql.rows(
            "SELECT agent_id, argMax(collector, version), argMax(term, version) FROM agent_moves"
            " WHERE moved >= now() - {seconds:Int64} GROUP BY agent_id",
            {"seconds": within_s},
        )
        return {agent_id: AgentOwner(collector, term) for agent_id, collector, term in rows}

    def spools(self) -> dict[tuple[str, str], int]:
        """Return the number of every spool."""
        rows = self._sql.rows("SELECT agent_id, spool_id, min(spool) FROM spools GROUP BY agent_id, spool_id")
        return {(agent_id, spool_id): spool for agent_id, spool_id, spool in rows}

    def spool_progress(self, agent_ids: Collection[str]) -> dict[tuple[str, str], tuple[int, int]]:
        """Return (agent, spool id) -> number and durable sequence, of the spools of agents."""
        rows = self._sql.rows(_SPOOL_PROGRESS, {"agents": sorted(agent_ids)})
        return {(agent_id, spool_id): (spool, sequence) for agent_id, spool_id, spool, sequence in rows}

    def spool_holders(self, spools: Collection[int]) -> dict[int, str]:
        """Return the agents that spools are of, as far as there are such spools."""
        rows = self._sql.rows(
            "SELECT spool, agent_id FROM spools WHERE spool IN {spools:Array(Int64)}", {"spools": sorted(spools)}
        )
        return dict(rows)

    def save_spools(self, numbers: Mapping[tuple[str, str], int]) -> None:
        """Number spools."""
        rows = [
            {"agent_id": agent_id, "spool_id": spool_id, "spool": spool}
            for (agent_id, spool_id), spool in numbers.items()
        ]
        self._sql.insert("spools", rows)

    def durable(self, spool: int) -> int:
        """Return the sequence up to which a spool is durable, 0 when nothing of it is."""
        ((sequence,),) = self._sql.rows(
            "SELECT max(sequence) FROM progress WHERE spool = {spool:Int64}", {"spool": spool}
        )
        return int(sequence)

    # What records say --------------------------------------------------------------------------------------------

    def gpus(self, gpu_uuids: Collection[str] | None = None) -> list[GpuRow]:
        """Return every GPU ever described, or those of the given UUIDs, as it was described last, once per agent."""
        table = self._sql.table(
            "SELECT gpu_uuid, agent_id, host_name, last_metrics, every_metric, message FROM ("  # noqa: S608 - own text only
            " SELECT gpu_uuid, agent_id, argMax(message, (spool, sequence)) AS message,"
            " argMax(metrics, (spool, sequence)) AS last_metrics, groupUniqArrayArray(metrics) AS every_metric"
            " FROM gpus"
            + ("" if gpu_uuids is None else " WHERE gpu_uuid IN {gpus:Array(String)}")
            + " GROUP BY gpu_uuid, agent_id) AS described"
            " LEFT JOIN (SELECT agent_id, host_name FROM agents FINAL) AS named USING (agent_id)"
            " ORDER BY gpu_uuid, agent_id",
            {} if gpu_uuids is None else {"gpus": sorted(gpu_uuids)},
        )
        columns = [table.column(name).to_pylist() for name in table.column_names[:-1]]
        return [
            # A metric that is gone from the inventory still has its past.
            GpuRow(gpu, agent, host, message, tuple(dict.fromkeys([*latest, *sorted(every)])))
            for gpu, agent, host, latest, every, message in zip(*columns, binary_column(table, "message"), strict=True)
        ]

    def metrics(self, gpu_uuid: str) -> list[str]:
        """Return the metrics that any agent ever offered for a GPU."""
        rows = self._sql.rows(
            "SELECT metrics FROM gpus WHERE gpu_uuid = {gpu:String} ORDER BY agent_id, spool DESC, sequence DESC",
            {"gpu": gpu_uuid},
        )
        return list(dict.fromkeys(name for (names,) in rows for name in names))

    def bindings(self, agent_id: str, gpu_uuid: str) -> list[tuple[Position, Binding]]:
        """Return an agent's job bindings of one GPU in order of arrival."""
        rows = self._sql.rows(
            "SELECT DISTINCT spool, sequence, item, job_id, scheduler, start_unix_nano, end_unix_nano, labels"
            " FROM job_bindings WHERE gpu_uuid = {gpu:String}"
            " AND spool IN (SELECT spool FROM spools WHERE agent_id = {agent:String})"
            " ORDER BY spool, sequence, item",
            {"gpu": gpu_uuid, "agent": agent_id},
        )
        return [
            (Position(spool, sequence), Binding(gpu_uuid, job, scheduler, start, end, json.loads(labels)))
            for spool, sequence, _, job, scheduler, start, end, labels in rows
        ]

    def job_bindings(self, agent_id: str, job_id: str) -> list[tuple[str, Position, Binding]]:
        """Return the bindings of an agent's GPUs to a job, with the GPU, in order of arrival."""
        rows = self._sql.rows(
            "SELECT DISTINCT spool, sequence, item, gpu_uuid, scheduler, start_unix_nano, end_unix_nano, labels"
            " FROM job_bindings WHERE job_id = {job:String}"
            " AND spool IN (SELECT spool FROM spools WHERE agent_id = {agent:String})"
            " ORDER BY spool, sequence, item",
            {"job": job_id, "agent": agent_id},
        )
        return [
            (gpu, Position(spool, sequence), Binding(gpu, job_id, scheduler, start, end, json.loads(labels)))
            for spool, sequence, _, gpu, scheduler, start, end, labels in rows
        ]

    def open_bindings(self) -> list[tuple[str, Binding]]:
        """Return the job bindings that have not ended, with their agents, in order of their start."""
        rows = self._sql.rows(
            "SELECT agent_id, gpu_uuid, job_id, scheduler, start_unix_nano,"
            " argMax(labels, (spool, sequence, item)) AS said FROM job_bindings"
            " JOIN (SELECT DISTINCT spool, agent_id FROM spools) AS numbered USING (spool)"
            " GROUP BY agent_id, gpu_uuid, job_id, scheduler, start_unix_nano"
            " HAVING argMax(end_unix_nano, (spool, sequence, item)) = 0 ORDER BY start_unix_nano, agent_id, gpu_uuid"
        )
        return [
            (agent_id, Binding(gpu, job_id, scheduler, start, 0, json.loads(labels)))
            for agent_id, gpu, job_id, scheduler, start, labels in rows
        ]

    def source_ends(self, agent_id: str, gpu_uuid: str) -> list[Position]:
        """Return where an agent said that a GPU's source has ended."""
        rows = self._sql.rows(
            "SELECT DISTINCT spool, sequence FROM source_ends WHERE gpu_uuid = {gpu:String}"
            " AND spool IN (SELECT spool FROM spools WHERE agent_id = {agent:String}) ORDER BY spool, sequence",
            {"gpu": gpu_uuid, "agent": agent_id},
        )
        return [Position(*row) for row in rows]

    def events(self, gpu_uuid: str) -> list[GpuEvent]:
        """Return the events of one GPU in order of time."""
        rows = self._sql.rows(
            "SELECT DISTINCT time_unix_nano, spool, sequence, item, kind, value FROM gpu_events"
            " WHERE gpu_uuid = {gpu:String} ORDER BY time_unix_nano, spool, sequence, item",
            {"gpu": gpu_uuid},
        )
        return [GpuEvent(gpu_uuid, time, kind, value) for time, _, _, _, kind, value in rows]

    def activity(self, agent_id: str, gpu_uuid: str, after: Position) -> Iterator[tuple[Position, JobActivity]]:
        """Yield what the processes of the job on a GPU did, behind a position, in order of arrival."""
        place = (*after, _LAST_ITEM)
        while True:
            table = self._sql.table(
                "SELECT DISTINCT spool, sequence, item, message FROM job_activity"
                " WHERE spool IN (SELECT spool FROM spools WHERE agent_id = {agent:String})"
                " AND (spool, sequence, item) > ({spool:Int64}, {sequence:Int64}, {item:Int64})"
                " ORDER BY spool, sequence, item LIMIT {most:Int64}",
                {
                    "agent": agent_id,
                    "spool": place[0],
                    "sequence": place[1],
                    "item": place[2],
                    "most": _ACTIVITY_AT_ONCE,
                },
            )
            if not table.num_rows:
                return
            keys = zip(*(table.column(name).to_pylist() for name in ("spool", "sequence", "item")), strict=True)
            for place, message in zip(keys, binary_column(table, "message"), strict=True):
                if job := read_activity(message, gpu_uuid):
                    yield Position(*place[:2]), job

    def recent_activity(self, agent_id: str, gpu_uuids: Collection[str], since_unix_nano: int) -> list[JobActivity]:
        """Return what the processes on some GPUs did, as far as it ends after a time, in order of arrival."""
        table = self._sql.table(
            "SELECT DISTINCT spool, sequence, item, message FROM job_activity"
            " WHERE spool IN (SELECT spool FROM spools WHERE agent_id = {agent:String})"
            " AND end_unix_nano > {since:Int64} ORDER BY spool, sequence, item",
            {"agent": agent_id, "since": since_unix_nano},
        )
        messages = binary_column(table, "message") if table.num_rows else []
        return [job for message in messages if (job := read_activity(message, *gpu_uuids))]

    def losses(self) -> list[LossRow]:
        """Return every reported loss and every gap that was seen."""
        rows = self._sql.rows(
            "SELECT agent_id, spool_id, first_sequence, last_sequence, reason, lost_ticks, reported FROM ("
            " SELECT DISTINCT spool, sequence, first_sequence, last_sequence, reason, lost_ticks, 1 AS reported"
            " FROM losses UNION ALL"
            " SELECT DISTINCT spool, 0, first_sequence, last_sequence, 0, 0, 0 FROM gaps) AS lost"
            " INNER JOIN (SELECT agent_id, spool_id, min(spool) AS spool FROM spools GROUP BY agent_id, spool_id)"
            " AS named USING (spool) ORDER BY agent_id, spool_id, first_sequence, reported DESC"
        )
        return [
            LossRow(agent, spool, first, last, reason, ticks, reported=bool(reported))
            for agent, spool, first, last, reason, ticks, reported in rows
        ]

    def rejections(self) -> list[RejectionRow]:
        """Return the records that were refused for good."""
        rows = self._sql.rows(
            "SELECT agent_id, spool_id, sequence, field, problem, size_bytes, file_name FROM ("
            " SELECT DISTINCT spool, sequence, field, problem, size_bytes, file_name FROM rejections) AS refused"
            " INNER JOIN (SELECT agent_id, spool_id, min(spool) AS spool FROM spools GROUP BY agent_id, spool_id)"
            " AS named USING (spool) ORDER BY agent_id, spool, sequence"
        )
        return [RejectionRow(*row) for row in rows]

    def blank_counts(self, gpu_uuid: str) -> dict[tuple[str, int], int]:
        """Return (metric, reason) -> number of NaNs of one GPU, within the retention of samples."""
        rows = self._sql.rows(
            "SELECT metric, reason, sum(count) FROM ("
            " SELECT DISTINCT metric, reason, spool, sequence, count FROM blanks WHERE gpu_uuid = {gpu:String})"
            " GROUP BY metric, reason",
            {"gpu": gpu_uuid},
        )
        return {(metric, reason): count for metric, reason, count in rows}
