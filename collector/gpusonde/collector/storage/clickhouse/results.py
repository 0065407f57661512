"""Runs, their epochs, and how far tracking has come, in ClickHouse."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from gpusonde.collector.storage.clickhouse.facts import TERM_SHIFT, Ownership
from gpusonde.collector.storage.clickhouse.sql import ClickHouseSql
from gpusonde.collector.storage.local.results import summary_row, summary_text, tree_row, tree_text
from gpusonde.collector.storage.model import (
    MOST_STATES,
    AlertRow,
    CycleTree,
    EpochRow,
    JobStateRow,
    Position,
    RunRow,
    RunUpdate,
    SummaryRow,
)
from gpusonde.errors import StoreError

_RUN_COLUMNS = ", ".join(field.name for field in fields(RunRow))
_ALERT_COLUMNS = ", ".join(field.name for field in fields(AlertRow))
_EPOCH_COLUMNS = "epoch_index, start_unix_nano, end_unix_nano, confidence, status, revision"
_EPOCH_KEY = "epoch_index, start_unix_nano, end_unix_nano"
# Runs whose written epochs are remembered; a collector follows so many GPUs at most.
_MOST_REMEMBERED = 10_000
# The runs of agents that have greeted another collector last are that collector's to follow.
_FOLLOWED = (
    "run_id IN (SELECT run_id FROM runs WHERE agent_id NOT IN"
    " (SELECT agent_id FROM agents FINAL WHERE collector != {collector:String}))"
)


_OF_AGENTS = "run_id IN (SELECT run_id FROM runs WHERE agent_id IN {agents:Array(String)})"
_OF_RUN = "run_id = {run:String}"
_TERM = f"bitShiftRight(version, {TERM_SHIFT})"


@dataclass(frozen=True)
class _Written:
    """The epochs of a run that count, and the term under which they were written; -1 of none."""

    term: int
    epochs: Mapping[int, EpochRow]


class ClickHouseResults:
    """Reads and writes these tables.

    Args:
        sql: The database.
        ownership: Gives versions to rows.
    """

    def __init__(self, sql: ClickHouseSql, ownership: Ownership) -> None:
        self._sql = sql
        self._ownership = ownership
        # Most epochs of an update are as they were; a database that merges rows need not see those again.
        self._written: OrderedDict[str, _Written] = OrderedDict()

    def save(
        self,
        updates: Sequence[RunUpdate],
        resumes: Mapping[tuple[str, str], tuple[Position, int]],
    ) -> None:
        """Write what one round of tracking has changed; after a failure the same may be written again.

        Epochs come before their runs and both before the positions: after a crash between them tracking reads the same
        ticks again and writes the same rows.
        """
        epochs: dict[str, _Written] = {}
        rows = []
        for update in updates:
            if update.epochs is not None:
                new = {epoch.index: epoch for epoch in update.epochs}
                old = epochs.get(update.run.run_id) or self._read_written(update.run)
                term = self._ownership.term(update.run.agent_id)
                rows += self._changes(update.run, old, term, new)
                epochs[update.run.run_id] = _Written(term, new)
        try:
            if rows:
                self._sql.insert("epochs", rows)
        except StoreError:
            for run_id in epochs:
                self._written.pop(run_id, None)
            raise
        for run_id, written in epochs.items():
            self._written[run_id] = written
            self._written.move_to_end(run_id)
        while len(self._written) > _MOST_REMEMBERED:
            self._written.popitem(last=False)
        trees = [
            {
                "run_id": update.run.run_id,
                "tree": tree_text(update.tree),
                "version": self._ownership.version(update.run.agent_id),
            }
            for update in updates
            if update.tree is not None
        ]
        if trees:
            self._sql.insert("trees", trees)
        states = [
            {"run_id": u.run.run_id, **vars(state), "version": self._ownership.version(u.run.agent_id)}
            for u in updates
            for state in u.states
        ]
        if states:
            self._sql.insert("job_states", states)
        # The last state of a run counts, as does its version.
        runs = [{**vars(u.run), "version": self._ownership.version(u.run.agent_id)} for u in updates]
        if runs:
            self._sql.insert("runs", runs)
        if resumes:
            positions = [
                {
                    "agent_id": agent_id,
                    "gpu_uuid": gpu_uuid,
                    **position._asdict(),
                    "not_before_unix_nano": not_before,
                    "version": self._ownership.version(agent_id),
                }
                for (agent_id, gpu_uuid), (position, not_before) in resumes.items()
            ]
            self._sql.insert("tracker_positions", positions)

    def _read_written(self, run: RunRow) -> _Written:
        written = self._written.get(run.run_id)
        if written and written.term == self._ownership.term(run.agent_id):
            return written
        # Another process, or another collector, may have written some.
        rows = self._sql.rows(
            f"SELECT {_TERM}, removed, {_EPOCH_COLUMNS} FROM {_standing_epochs(_OF_RUN)}",  # noqa: S608 - own text
            {"run": run.run_id},
        )
        standing = {row[2]: EpochRow(*row[2:]) for row in rows if not row[1]}
        return _Written(max((row[0] for row in rows), default=-1), standing)

    def _changes(
        self, run: RunRow, old: _Written, term: int, new: Mapping[int, EpochRow]
    ) -> list[dict[str, int | float | str]]:
        # All of them under a new term: what an earlier one has written, or is going to, no longer counts.
        changed = [(epoch, 0) for index, epoch in new.items() if old.term != term or old.epochs.get(index) != epoch]
        # A tracker never drops an index; one that reads the run again from its start has fewer of them for a while.
        last = max(new, default=-1)
        changed += [(epoch, 1) for index, epoch in old.epochs.items() if index > last]
        if not changed and old.term != term:
            # None at all is said by one that is not there.
            changed.append((EpochRow(0, 0, 0, 0.0, "withdrawn", 0), 1))
        version = self._ownership.version(run.agent_id)
        return [
            {
                "run_id": run.run_id,
                "epoch_index": epoch.index,
                "start_unix_nano": epoch.start_unix_nano,
                "end_unix_nano": epoch.end_unix_nano,
                "confidence": epoch.confidence,
                "status": epoch.status,
                "revision": epoch.revision,
                "removed": removed,
                "version": version,
            }
            for epoch, removed in changed
        ]

    def resumes(self) -> dict[tuple[str, str], tuple[Position, int]]:
        """Return where tracking of each (agent, GPU) starts again."""
        rows = self._sql.rows(
            "SELECT agent_id, gpu_uuid, spool, sequence, not_before_unix_nano FROM tracker_positions FINAL"
        )
        return {(agent, gpu): (Position(spool, sequence), time) for agent, gpu, spool, sequence, time in rows}

    def begin(self, agents: Collection[str]) -> dict[tuple[str, str], tuple[Position, int]]:
        """Begin anew with agents that another collector has followed, or does; see ``ResultStore``."""
        self._ownership.follow(agents)
        of_agents = "WHERE agent_id IN {agents:Array(String)}"
        rows = self._sql.rows(
            "SELECT agent_id, gpu_uuid, spool, sequence, not_before_unix_nano"  # noqa: S608 - own text only
            f" FROM (SELECT DISTINCT agent_id, gpu_uuid FROM gpus {of_agents}) AS described"
            f" LEFT JOIN (SELECT * FROM tracker_positions FINAL {of_agents}) AS reached USING (agent_id, gpu_uuid)",
            {"agents": sorted(agents)},
        )
        return {(agent, gpu): (Position(spool, sequence), time) for agent, gpu, spool, sequence, time in rows}

    def run(self, run_id: str) -> RunRow | None:
        """Return one run."""
        rows = self._sql.rows(
            f"SELECT {_RUN_COLUMNS} FROM runs FINAL WHERE run_id = {{run:String}}",  # noqa: S608 - own columns
            {"run": run_id},
        )
        return RunRow(*rows[0]) if rows else None

    def open_run(self, agent_id: str, gpu_uuid: str) -> str:
        """Return the newest run of a GPU that goes on, or nothing."""
        rows = self._sql.rows(
            "SELECT run_id FROM runs FINAL WHERE gpu_uuid = {gpu:String} AND agent_id = {agent:String} AND NOT ended"
            " ORDER BY start_unix_nano DESC LIMIT 1",
            {"gpu": gpu_uuid, "agent": agent_id},
        )
        return rows[0][0] if rows else ""

    def runs(
        self,
        *,
        gpu_uuid: str = "",
        job_id: str = "",
        open_only: bool = False,
        before: tuple[int, str] | None = None,
        limit: int,
    ) -> list[RunRow]:
        """Return runs, newest first; see ``ResultStore``."""
        conditions = ["NOT ended" if open_only else "1"]
        values: dict[str, int | str] = {"limit": limit}
        for column, value in (("gpu_uuid", gpu_uuid), ("job_id", job_id)):
            if value:
                conditions.append(f"{column} = {{{column}:String}}")
                values[column] = value
        if before:
            conditions.append("(start_unix_nano, run_id) < ({start:Int64}, {run:String})")
            values |= {"start": before[0], "run": before[1]}
        rows = self._sql.rows(
            f"SELECT {_RUN_COLUMNS} FROM runs FINAL WHERE {' AND '.join(conditions)}"  # noqa: S608 - own text only
            " ORDER BY start_unix_nano DESC, run_id DESC LIMIT {limit:UInt64}",
            values,
        )
        return [RunRow(*row) for row in rows]

    def epochs(self, run_id: str) -> list[EpochRow]:
        """Return the epochs of a run by start, withdrawn ones included."""
        rows = self._sql.rows(
            f"SELECT {_EPOCH_COLUMNS} FROM {_standing_epochs(_OF_RUN)} AND removed = 0"  # noqa: S608 - own text
            " ORDER BY start_unix_nano, epoch_index",
            {"run": run_id},
        )
        return [EpochRow(*row) for row in rows]

    def tree(self, run_id: str) -> CycleTree:
        """Return the tree of cycles of a run's job; an empty one where none is known."""
        rows = self._sql.rows("SELECT tree FROM trees FINAL WHERE run_id = {run:String}", {"run": run_id})
        return tree_row(rows[0][0]) if rows else CycleTree()

    def states(self, run_ids: Collection[str], limit: int = MOST_STATES) -> dict[str, list[JobStateRow]]:
        """Return the latest states of runs' jobs by run, in order of time; runs that have none are left out."""
        found: dict[str, list[JobStateRow]] = {}
        rows = self._sql.rows(
            "SELECT run_id, start_unix_nano, state, reason, confidence FROM job_states FINAL"
            " WHERE run_id IN {runs:Array(String)} ORDER BY run_id, start_unix_nano DESC"
            " LIMIT {limit:UInt64} BY run_id",
            {"runs": sorted(run_ids), "limit": limit},
        )
        for run_id, *row in reversed(rows):
            found.setdefault(run_id, []).append(JobStateRow(*row))
        return found

    def save_alerts(self, alerts: Sequence[AlertRow]) -> None:
        """Keep alerts; one of the same job, rule and start takes the place of the one before."""
        rows = [
            {**vars(alert), "untold": int(alert.untold), "version": self._ownership.version(alert.agent_id)}
            for alert in alerts
        ]
        if rows:
            self._sql.insert("job_alerts", rows)

    def alerts(
        self,
        *,
        job_id: str = "",
        open_only: bool = False,
        untold_only: bool = False,
        before: tuple[int, str, str] | None = None,
        limit: int,
    ) -> list[AlertRow]:
        """Return alerts, newest first; see ``ResultStore``."""
        conditions = [
            "1",
            *(["job_id = {job:String}"] if job_id else []),
            *(["end_unix_nano = 0"] if open_only else []),
            *(["untold"] if untold_only else []),
            *(["(start_unix_nano, job_id, rule) < ({start:Int64}, {last:String}, {rule:String})"] if before else []),
        ]
        values: dict[str, Any] = {"limit": limit, "job": job_id}
        values |= zip(("start", "last", "rule"), before or (0, "", ""), strict=True)
        rows = self._sql.rows(
            f"SELECT {_ALERT_COLUMNS} FROM job_alerts FINAL WHERE {' AND '.join(conditions)}"  # noqa: S608 - own text
            " ORDER BY start_unix_nano DESC, job_id DESC, rule DESC LIMIT {limit:UInt64}",
            values,
        )
        return [AlertRow(*row) for row in rows]

    def save_summaries(self, run_id: str, summaries: Sequence[tuple[EpochRow, SummaryRow]]) -> None:
        """Store what epochs add up to; a summary is keyed by the bounds it was made for."""
        if not summaries:
            return
        rows = [
            {
                "run_id": run_id,
                "epoch_index": epoch.index,
                "start_unix_nano": epoch.start_unix_nano,
                "end_unix_nano": epoch.end_unix_nano,
                "summary": summary_text(summary),
            }
            for epoch, summary in summaries
        ]
        self._sql.insert("summaries", rows)

    def summaries(self, run_id: str, epochs: Sequence[EpochRow]) -> dict[int, SummaryRow]:
        """Return the summaries, by index, of neighbouring epochs of a run, as far as there are any."""
        if not epochs:
            return {}
        rows = self._sql.rows(
            f"SELECT {_EPOCH_KEY}, summary FROM summaries WHERE run_id = {{run:String}}"  # noqa: S608 - own columns
            " AND start_unix_nano BETWEEN {first:Int64} AND {last:Int64}",
            {"run": run_id, "first": epochs[0].start_unix_nano, "last": epochs[-1].start_unix_nano},
        )
        texts = {(index, start, end): text for index, start, end, text in rows}
        keyed = {epoch.index: (epoch.index, epoch.start_unix_nano, epoch.end_unix_nano) for epoch in epochs}
        return {index: summary_row(texts[key]) for index, key in keyed.items() if key in texts}

    def to_summarise(self, run_id: str, after_unix_nano: int, limit: int) -> list[EpochRow]:
        """Return the first confirmed epochs of a run without a summary that start after a time, by start."""
        rows = self._sql.rows(
            f"SELECT {_EPOCH_COLUMNS} FROM {_unsummarised(_OF_RUN)}"  # noqa: S608 - own text only
            " WHERE start_unix_nano > {after:Int64} ORDER BY start_unix_nano, epoch_index LIMIT {limit:UInt64}",
            {"run": run_id, "after": after_unix_nano, "limit": limit},
        )
        return [EpochRow(*row) for row in rows]

    def count_to_summarise(self, run_id: str) -> int:
        """Return how many confirmed epochs of a run have no summary yet."""
        statement = f"SELECT count() FROM {_unsummarised(_OF_RUN)}"  # noqa: S608 - own text only
        return int(self._sql.rows(statement, {"run": run_id})[0][0])

    def runs_to_summarise(self, agents: Collection[str] | None = None) -> list[str]:
        """Return the runs, of those that this collector follows, with confirmed epochs that have no summary yet."""
        condition = _FOLLOWED if agents is None else _OF_AGENTS
        statement = f"SELECT DISTINCT run_id FROM {_unsummarised(condition)} ORDER BY run_id"  # noqa: S608
        # What a statement does not name, it does not read.
        values = {"collector": self._ownership.collector, "agents": sorted(agents or ())}
        return [run_id for (run_id,) in self._sql.rows(statement, values)]


def _standing_epochs(condition: str) -> str:
    """Rows of epochs of some runs that were written under the last term of any of the run's, as a table and condition.

    A collector that has lost an agent, and has not learned it yet, still writes under the term before.
    """
    return (
        f"epochs FINAL WHERE {condition} AND (run_id, {_TERM}) IN"  # noqa: S608 - own text only
        f" (SELECT run_id, max({_TERM}) FROM epochs WHERE {condition} GROUP BY run_id)"
    )


def _unsummarised(condition: str) -> str:
    """Confirmed epochs of some runs without a summary for their bounds, as a table expression."""
    return (
        f"(SELECT run_id, {_EPOCH_COLUMNS} FROM {_standing_epochs(condition)}"  # noqa: S608 - own text only
        " AND removed = 0 AND status = 'confirmed') AS confirmed"
        f" LEFT ANTI JOIN (SELECT run_id, {_EPOCH_KEY} FROM summaries WHERE {condition}) AS summarised"
        f" USING (run_id, {_EPOCH_KEY})"
    )
