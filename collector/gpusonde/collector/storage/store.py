"""The store's contract, as ingest, tracking and queries see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpusonde.collector.records.model import Binding, Decoded, GpuEvent, InventoryRecord, Position
from gpusonde.collector.storage.arrivals import Arrival
from gpusonde.collector.storage.disk.log import LogEntry
from gpusonde.collector.storage.samples import Samples
from gpusonde.collector.storage.tables.facts import AgentRow, GpuRow, LossRow, RejectionRow

# Called with (agent_id, gpu_uuid) pairs that have something new.
Listener = Callable[[frozenset[tuple[str, str]]], None]


@dataclass(frozen=True)
class Incoming:
    """A record to be stored: as it came and decoded."""

    entry: LogEntry
    decoded: Decoded


@dataclass(frozen=True)
class StoreUsage:
    """How much is kept.

    Attributes:
        tier_bytes: Size on disk by tier: raw (ticks), second (averages), log, catalog.
        free_bytes: Free space where it lies; None where that is not ours to know.
    """

    tier_bytes: Mapping[str, int]
    free_bytes: int | None = None


class Store(Protocol):
    """Keeps every record exactly once and survives a crash at any moment.

    All methods block and may be called from any thread; ``append`` is called by one at a time.
    """

    def append(self, records: Sequence[Incoming]) -> int:
        """Make records durable; when it returns, they survive a power loss.

        Records at or below the durable sequence of their spool are dropped. A jump in the sequence of a spool is
        recorded as a gap.

        Returns:
            How many were dropped as repetitions.

        Raises:
            StoreFullError: There is no room; none of the records counts as stored.
            StoreError: Any other failure, likewise.
        """

    def check_writable(self) -> None:
        """Try to write.

        Raises:
            StoreFullError: There is no room.
            StoreError: Any other reason why nothing can be stored.
        """

    def quarantine(self, name: str, data: bytes) -> None:
        """Keep the bytes of a record that is refused for good.

        Raises:
            StoreFullError: There is no room.
        """

    def introduce(self, agent: AgentRow) -> int:
        """Store what an agent said of itself and return the durable sequence of its spool."""

    def agents(self) -> list[AgentRow]:
        """Return every agent ever seen."""

    def inventory(self, agent_id: str, spool_id: str) -> InventoryRecord | None:
        """Return the latest durable inventory of a spool."""

    def subscribe(self, listener: Listener) -> None:
        """Have ``listener`` called, on the thread that appends, after records became durable."""

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
        """Return the ticks of a GPU in ``[start, end)`` in order of time, each once.

        Args:
            gpu_uuid: The GPU.
            start_unix_nano: Earliest time.
            end_unix_nano: Time after the latest.
            metrics: Columns; None means every one that the GPU ever had.
            first: Only records from this one on and of the same agent, for example a run's first.
            last: Only records up to this one.

        Raises:
            StoreCorruptError: A segment that is needed cannot be read.
        """

    def next_tick(self, gpu_uuid: str, start_unix_nano: int) -> int | None:
        """Return the time of a GPU's first tick that is not before a time, or None if there is no such tick."""

    def arrivals(self, agent_id: str, gpu_uuid: str, after: Position) -> Iterator[Arrival]:
        """Yield what an agent said about a GPU behind a position, in order of arrival, ticks with all columns.

        A segment that cannot be read is logged and left out: tracking goes on.
        """

    def holds(self, agent_id: str, position: Position) -> bool:
        """Return whether a record at a position is one of an agent's that are durable."""

    def bindings(self, agent_id: str, gpu_uuid: str, through: Position) -> list[Binding]:
        """Return an agent's job bindings of a GPU up to and including a position, in order of arrival."""

    def metrics_of(self, gpu_uuid: str) -> list[str]:
        """Return the metrics that any agent ever offered for a GPU."""

    def gpus(self) -> list[GpuRow]:
        """Return every GPU ever described, once per agent."""

    def events(self, gpu_uuid: str) -> list[GpuEvent]:
        """Return a GPU's events in order of time."""

    def losses(self) -> list[LossRow]:
        """Return every loss that an agent reported and every gap that was seen."""

    def rejections(self) -> list[RejectionRow]:
        """Return the records refused for good."""

    def blank_counts(self, gpu_uuid: str) -> dict[tuple[str, int], int]:
        """Return (metric, ``gpusonde.common.v1.BlankReason``) -> NaNs of a GPU, as far as they are in segments."""
