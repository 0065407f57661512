"""Runs, their epochs, and how far tracking has come: all derived from the samples, and kept for ever.

Which epochs still need a summary is not kept beside them: they are those that have none.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, astuple, fields
from operator import attrgetter

from gpusonde.collector.storage.local.database import Database
from gpusonde.collector.storage.model import (
    MOST_STATES,
    AlertRow,
    CycleRow,
    CycleTree,
    DeviationRow,
    EpochRow,
    JobStateRow,
    Position,
    RunRow,
    RunUpdate,
    SummaryRow,
)

_RUN_FIELDS = tuple(field.name for field in fields(RunRow))
_RUN_VALUES = attrgetter(*_RUN_FIELDS)
_RUN_COLUMNS = ", ".join(_RUN_FIELDS)
_ALERT_COLUMNS = ", ".join(field.name for field in fields(AlertRow))
_RUN_MARKS = ", ".join("?" for _ in _RUN_FIELDS)
_MAYBE_UNKNOWN = ("period_s", "period_low_s", "period_high_s", "idle_share", "stalled_share")
# The words of the index that finds them.
_TO_SUMMARISE = "status = 'confirmed' AND summary IS NULL"
# Most epochs of an update are as they were and are not written again; an epoch keeps its summary while its bounds hold.
_SAVE_EPOCH = """
INSERT INTO epochs (run_id, epoch_index, start_unix_nano, end_unix_nano, confidence, status, revision)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run_id, epoch_index) DO UPDATE SET
    summary = CASE WHEN start_unix_nano = excluded.start_unix_nano AND end_unix_nano = excluded.end_unix_nano
              THEN summary END,
    start_unix_nano = excluded.start_unix_nano, end_unix_nano = excluded.end_unix_nano,
    confidence = excluded.confidence, status = excluded.status, revision = excluded.revision
WHERE (start_unix_nano, end_unix_nano, confidence, status, revision)
    IS NOT (excluded.start_unix_nano, excluded.end_unix_nano, excluded.confidence, excluded.status, excluded.revision)
"""


class LocalResults:
    """Implements ``ResultStore`` over the catalogue.

    Args:
        database: Where they are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(
        self,
        updates: Sequence[RunUpdate],
        resumes: Mapping[tuple[str, str], tuple[Position, int]],
    ) -> None:
        """Write what one round of tracking has changed, in one transaction.

        Args:
            updates: Runs that are new or have changed.
            resumes: (agent, GPU) -> where tracking starts again after a crash: behind a record, and not before a time.
        """
        with self._database.transaction() as connection:
            for update in updates:
                _save_run(connection, update)
            connection.executemany(
                "INSERT OR REPLACE INTO tracker_positions VALUES (?, ?, ?, ?, ?)",
                [(*key, *position, not_before) for key, (position, not_before) in resumes.items()],
            )

    def resumes(self) -> dict[tuple[str, str], tuple[Position, int]]:
        """Return where tracking of each (agent, GPU) starts again."""
        rows = self._database.rows(
            "SELECT agent_id, gpu_uuid, spool, sequence, not_before_unix_nano FROM tracker_positions"
        )
        return {(agent, gpu): (Position(spool, sequence), time) for agent, gpu, spool, sequence, time in rows}

    def begin(self, agents: Collection[str]) -> dict[tuple[str, str], tuple[Position, int]]:
        """Do nothing: no other collector has any agents of this directory."""
        return {}

    def run(self, run_id: str) -> RunRow | None:
        """Return one run."""
        rows = self._database.rows(f"SELECT {_RUN_COLUMNS} FROM runs WHERE run_id = ?", (run_id,))  # noqa: S608
        return _run_row(rows[0]) if rows else None

    def open_run(self, agent_id: str, gpu_uuid: str) -> str:
        """Return the newest run of a GPU that goes on, or nothing."""
        rows = self._database.rows(
            "SELECT run_id FROM runs WHERE gpu_uuid = ? AND agent_id = ? AND NOT ended"
            " ORDER BY start_unix_nano DESC LIMIT 1",
            (gpu_uuid, agent_id),
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
        conditions: list[str] = ["NOT ended" if open_only else "1"]
        parameters: list[str] = []
        for column, value in (("gpu_uuid", gpu_uuid), ("job_id", job_id)):
            if value:
                conditions.append(f"{column} = ?")
                parameters.append(value)
        rows = self._database.rows(
            f"SELECT {_RUN_COLUMNS} FROM runs WHERE {' AND '.join(conditions)}"  # noqa: S608 - own text only
            + (" AND (start_unix_nano, run_id) < (?, ?)" if before else "")
            + " ORDER BY start_unix_nano DESC, run_id DESC LIMIT ?",
            (*parameters, *(before or ()), limit),
        )
        return [_run_row(row) for row in rows]

    def epochs(self, run_id: str) -> list[EpochRow]:
        """Return the epochs of a run by start, withdrawn ones included."""
        rows = self._database.rows(
            "SELECT epoch_index, start_unix_nano, end_unix_nano, confidence, status, revision FROM epochs"
            " WHERE run_id = ? ORDER BY start_unix_nano, epoch_index",
            (run_id,),
        )
        return [EpochRow(*row) for row in rows]

    def tree(self, run_id: str) -> CycleTree:
        """Return the tree of cycles of a run's job; an empty one where none is known."""
        rows = self._database.rows("SELECT tree FROM trees WHERE run_id = ?", (run_id,))
        return tree_row(rows[0][0]) if rows else CycleTree()

    def states(self, run_ids: Collection[str], limit: int = MOST_STATES) -> dict[str, list[JobStateRow]]:
        """Return the latest states of runs' jobs by run, in order of time; runs that have none are left out."""
        found: dict[str, list[JobStateRow]] = {}
        for run_id in run_ids:
            rows = self._database.rows(
                "SELECT start_unix_nano, state, reason, confidence FROM job_states WHERE run_id = ?"
                " ORDER BY start_unix_nano DESC LIMIT ?",
                (run_id, limit),
            )
            if rows:
                found[run_id] = [JobStateRow(*row) for row in reversed(rows)]
        return found

    def save_alerts(self, alerts: Sequence[AlertRow]) -> None:
        """Keep alerts; one of the same job, rule and start takes the place of the one before."""
        with self._database.transaction() as connection:
            connection.executemany(
                f"INSERT OR REPLACE INTO job_alerts ({_ALERT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                [astuple(alert) for alert in alerts],
            )

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
            *(["job_id = ?"] if job_id else []),
            *(["end_unix_nano = 0"] if open_only else []),
            *(["untold"] if untold_only else []),
            *(["(start_unix_nano, job_id, rule) < (?, ?, ?)"] if before else []),
        ]
        rows = self._database.rows(
            f"SELECT {_ALERT_COLUMNS} FROM job_alerts WHERE {' AND '.join(conditions)}"  # noqa: S608 - own text only
            " ORDER BY start_unix_nano DESC, job_id DESC, rule DESC LIMIT ?",
            (*([job_id] if job_id else []), *(before or ()), limit),
        )
        return [AlertRow(*row) for row in rows]

    def save_summaries(self, run_id: str, summaries: Sequence[tuple[EpochRow, SummaryRow]]) -> None:
        """Store what epochs add up to, for those whose bounds are still the same."""
        with self._database.transaction() as connection:
            connection.executemany(
                "UPDATE epochs SET summary = ?"
                " WHERE run_id = ? AND epoch_index = ? AND start_unix_nano = ? AND end_unix_nano = ?",
                [
                    (summary_text(summary), run_id, epoch.index, epoch.start_unix_nano, epoch.end_unix_nano)
                    for epoch, summary in summaries
                ],
            )

    def summaries(self, run_id: str, epochs: Sequence[EpochRow]) -> dict[int, SummaryRow]:
        """Return the summaries, by index, of neighbouring epochs of a run, as far as there are any."""
        if not epochs:
            return {}
        rows = self._database.rows(
            "SELECT epoch_index, summary FROM epochs"
            " WHERE run_id = ? AND start_unix_nano BETWEEN ? AND ? AND summary IS NOT NULL",
            (run_id, epochs[0].start_unix_nano, epochs[-1].start_unix_nano),
        )
        return {index: summary_row(text) for index, text in rows}

    def to_summarise(self, run_id: str, after_unix_nano: int, limit: int) -> list[EpochRow]:
        """Return the first confirmed epochs of a run without a summary that start after a time, by start."""
        rows = self._database.rows(
            "SELECT epoch_index, start_unix_nano, end_unix_nano, confidence, status, revision FROM epochs"  # noqa: S608
            f" WHERE run_id = ? AND start_unix_nano > ? AND {_TO_SUMMARISE} ORDER BY start_unix_nano LIMIT ?",
            (run_id, after_unix_nano, limit),
        )
        return [EpochRow(*row) for row in rows]

    def count_to_summarise(self, run_id: str) -> int:
        """Return how many confirmed epochs of a run have no summary yet."""
        statement = f"SELECT COUNT(*) FROM epochs WHERE run_id = ? AND {_TO_SUMMARISE}"  # noqa: S608 - own text
        return int(self._database.rows(statement, (run_id,))[0][0])

    def runs_to_summarise(self, agents: Collection[str] | None = None) -> list[str]:
        """Return the runs with confirmed epochs that have no summary yet."""
        condition = _TO_SUMMARISE
        if agents is not None:
            condition += f" AND run_id IN (SELECT run_id FROM runs WHERE agent_id IN ({', '.join('?' * len(agents))}))"  # noqa: S608
        statement = f"SELECT DISTINCT run_id FROM epochs WHERE {condition} ORDER BY run_id"  # noqa: S608
        return [run_id for (run_id,) in self._database.rows(statement, tuple(agents or ()))]


def summary_text(summary: SummaryRow) -> str:
    """Return a summary as JSON, nine digits each: a float32's worth and a little more, some 35 bytes per metric."""

    def short(value: float) -> float | None:
        return float(f"{value:.9g}") if math.isfinite(value) else None

    means = {name: mean for name, value in summary.means.items() if (mean := short(value)) is not None}
    fields = [short(summary.seen_share), short(summary.energy_joules), means]
    return json.dumps(fields, separators=(",", ":"))


def summary_row(text: str) -> SummaryRow:
    """Return the summary that ``summary_text`` has written."""
    seen, energy, means = json.loads(text)
    return SummaryRow(seen, math.nan if energy is None else energy, means)


def tree_text(tree: CycleTree) -> str:
    """Return a tree of cycles as JSON."""
    return json.dumps(asdict(tree), separators=(",", ":"))


def tree_row(text: str) -> CycleTree:
    """Return the tree that ``tree_text`` has written."""
    fields = json.loads(text)
    cycles = (CycleRow(**{**row, "starts_unix_nano": tuple(row["starts_unix_nano"])}) for row in fields["cycles"])
    deviations = (DeviationRow(**row) for row in fields["deviations"])
    return CycleTree(**{**fields, "cycles": tuple(cycles), "deviations": tuple(deviations)})


def _save_run(connection: sqlite3.Connection, update: RunUpdate) -> None:
    values = [None if isinstance(v, float) and math.isnan(v) else v for v in _RUN_VALUES(update.run)]
    connection.execute(f"INSERT OR REPLACE INTO runs ({_RUN_COLUMNS}) VALUES ({_RUN_MARKS})", values)  # noqa: S608
    run_id = update.run.run_id
    if update.tree is not None:
        connection.execute("INSERT OR REPLACE INTO trees VALUES (?, ?)", (run_id, tree_text(update.tree)))
    connection.executemany(
        "INSERT OR REPLACE INTO job_states VALUES (?, ?, ?, ?, ?)",
        [(run_id, *astuple(state)) for state in update.states],
    )
    if update.epochs is None:
        return
    connection.executemany(
        _SAVE_EPOCH,
        [
            (
                run_id,
                epoch.index,
                epoch.start_unix_nano,
                epoch.end_unix_nano,
                epoch.confidence,
                epoch.status,
                epoch.revision,
            )
            for epoch in update.epochs
        ],
    )
    # A tracker never drops an index; one that reads the run again from its start has fewer of them for a while.
    last = max((epoch.index for epoch in update.epochs), default=-1)
    connection.execute("DELETE FROM epochs WHERE run_id = ? AND epoch_index > ?", (run_id, last))


def _run_row(row: tuple[object, ...]) -> RunRow:
    named = dict(zip(_RUN_FIELDS, row, strict=True))
    for name in _MAYBE_UNKNOWN:
        named[name] = math.nan if named[name] is None else named[name]
    named["ended"] = bool(named["ended"])
    return RunRow(**named)  # type: ignore[arg-type]
