"""What tracking knows of open runs, in ClickHouse: whichever collector an agent greets next can go on there."""

from __future__ import annotations

from collections.abc import Iterable

from gpusonde.collector.storage.clickhouse.encode import fact_table
from gpusonde.collector.storage.clickhouse.ownership import Ownership
from gpusonde.collector.storage.clickhouse.sql import Sql, binary_column
from gpusonde.collector.storage.disk.state_files import StateFileError

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
