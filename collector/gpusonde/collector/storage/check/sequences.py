"""Is every record there once? Sequences of segments, log and catalogue put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpusonde.collector.storage.check.intervals import Intervals
from gpusonde.collector.storage.tables.database import Database

# Records without samples are rows here, keyed by their sequence.
_FACTS = ("inventories", "job_bindings", "source_ends", "gpu_events", "losses", "rejections", "empty_records")
_MOST_HOLES = 20

_OVERLAPS = """
SELECT gpu_uuid, agent_id, first_sequence, before, file_name, kind FROM (
    SELECT gpu_uuid, spool, segment, first_sequence,
        LAG(last_sequence) OVER (PARTITION BY gpu_uuid, spool ORDER BY first_sequence, segment, row_group) AS before,
        LAG(segment) OVER (PARTITION BY gpu_uuid, spool ORDER BY first_sequence, segment, row_group) AS segment_before
    FROM segment_parts WHERE segment IN (SELECT segment FROM segments WHERE kind != 'second')
) JOIN segments USING (segment) JOIN spools USING (spool)
WHERE segment != segment_before AND first_sequence <= before LIMIT 20
"""


def overlaps(database: Database) -> Iterator[tuple[str, str]]:
    """Yield file and problem where two segments claim the same records of a GPU."""
    for gpu, agent, first, before, name, _ in database.rows(_OVERLAPS):
        yield name, f"records {first} to {before} of GPU {gpu} of agent {agent} are in another segment too"


def check_sequences(
    database: Database, held: Mapping[int, Intervals], logged: Mapping[tuple[str, str], Intervals]
) -> Iterator[tuple[str, str]]:
    """Yield file and problem where records that were acknowledged are nowhere, and no loss is on record.

    Args:
        database: The catalogue.
        held: Spool -> sequences in segments.
        logged: (agent, spool id) -> sequences in the log.
    """
    deleted = bool(database.rows("SELECT 1 FROM deletions WHERE kind != 'second' LIMIT 1"))
    spools = database.rows("SELECT agent_id, spool_id, spool, stored_sequence FROM spools ORDER BY agent_id, spool")
    for agent_id, spool_id, spool, stored in spools:
        known = held.get(spool)
        # Retention deletes from the front; where nothing is left there is nothing to compare with.
        first = known.first if known else None
        if not deleted:
            first = 1
        if first is None or not stored:
            continue
        everything = Intervals()
        for part in (known, logged.get((agent_id, spool_id))):
            if part:
                everything.add_from(part)
        for first_missing, last_missing in _known_losses(database, spool):
            everything.add(first_missing, last_missing)
        for sequence in _facts(database, spool, first):
            everything.add(sequence, sequence)
        for count, (begin, end) in enumerate(everything.missing(first, stored)):
            if count == _MOST_HOLES:
                yield "catalog.sqlite", f"spool {spool_id} of agent {agent_id} has more holes than are listed here"
                break
            problem = f"records {begin} to {end} of spool {spool_id} of agent {agent_id} are in no segment"
            yield "catalog.sqlite", f"{problem}, and no loss is on record; was a file removed by hand?"


def _known_losses(database: Database, spool: int) -> Iterator[tuple[int, int]]:
    for table in ("gaps", "losses"):
        statement = f"SELECT first_sequence, last_sequence FROM {table} WHERE spool = ? AND first_sequence > 0"  # noqa: S608
        yield from ((first, last) for first, last in database.rows(statement, (spool,)))


def _facts(database: Database, spool: int, first: int) -> Iterator[int]:
    for table in _FACTS:
        statement = f"SELECT DISTINCT sequence FROM {table} WHERE spool = ? AND sequence >= ?"  # noqa: S608 - own text
        for (sequence,) in database.rows(statement, (spool, first)):
            yield sequence
