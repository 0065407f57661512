"""What an engine of the store provides: samples and facts, what tracking has found, and what it knows of open runs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Protocol

from gpusonde.collector.records.model import Position
from gpusonde.collector.storage.counters import StoreCounters
from gpusonde.collector.storage.store import Store, StoreUsage
from gpusonde.collector.storage.tables.results import EpochRow, RunRow, RunUpdate, SummaryRow

if TYPE_CHECKING:
    from gpusonde.collector.config import CollectorConfig


class ResultStore(Protocol):
    """Keeps runs, their epochs, and how far tracking has come.

    All methods block, may be called from any thread, and raise ``StoreError`` when the engine fails.
    """

    def save(
        self,
        updates: Sequence[RunUpdate],
        resumes: Mapping[tuple[str, str], tuple[Position, int]],
    ) -> None:
        """Write what one round of tracking has changed; after a failure the same may be written again.

        Args:
            updates: Runs that are new or have changed. An epoch keeps its summary while its bounds hold, and indices
                behind the last one of an update are gone.
            resumes: (agent, GPU) -> where tracking starts again after a crash: behind a record, and not before a time.
                They are never ahead of the runs.
        """

    def resumes(self) -> dict[tuple[str, str], tuple[Position, int]]:
        """Return where tracking of each (agent, GPU) starts again."""

    def run(self, run_id: str) -> RunRow | None:
        """Return one run."""

    def open_run(self, agent_id: str, gpu_uuid: str) -> str:
        """Return the newest run of a GPU that goes on, or nothing."""

    def runs(
        self, *, gpu_uuid: str = "", job_id: str = "", before: tuple[int, str] | None = None, limit: int
    ) -> list[RunRow]:
        """Return runs, newest first.

        Args:
            gpu_uuid: Only of this GPU; empty means every one.
            job_id: Only of this job; empty means every one.
            before: Only those behind this (start, run id) in the order.
            limit: At most so many.
        """

    def epochs(self, run_id: str) -> list[EpochRow]:
        """Return the epochs of a run by start, withdrawn ones included."""

    def save_summaries(self, run_id: str, summaries: Sequence[tuple[EpochRow, SummaryRow]]) -> None:
        """Store what epochs add up to, for those whose bounds are still the same."""

    def summaries(self, run_id: str, epochs: Sequence[EpochRow]) -> dict[int, SummaryRow]:
        """Return the summaries, by index, of neighbouring epochs of a run, as far as there are any."""

    def to_summarise(self, run_id: str, after_unix_nano: int, limit: int) -> list[EpochRow]:
        """Return the first confirmed epochs of a run without a summary that start after a time, by start."""

    def count_to_summarise(self, run_id: str) -> int:
        """Return how many confirmed epochs of a run have no summary yet."""

    def runs_to_summarise(self) -> list[str]:
        """Return the runs, of those that this collector follows, with confirmed epochs that have no summary yet."""


class StateStore(Protocol):
    """Keeps what can be worked out again: it may be lost, or be old, but never half there."""

    def write(self, key: tuple[str, str], version: int, content: bytes) -> None:
        """Replace what is kept for an agent and a GPU.

        Raises:
            ValueError: The content is larger than would be read.
            StoreError: It cannot be kept now; the old one stays.
        """

    def read(self, key: tuple[str, str], version: int) -> bytes | None:
        """Return what was written for a key, or None when there is nothing.

        Raises:
            StateFileError: It is damaged, or of another version.
        """

    def remove(self, key: tuple[str, str]) -> None:
        """Remove what is kept for a key; nothing is no error.

        Raises:
            StoreError: It cannot be removed.
        """

    def keep_only(self, keys: Iterable[tuple[str, str]]) -> None:
        """Remove what is kept for any other key, as far as nobody else could need it.

        Raises:
            StoreError: Something cannot be removed.
        """


# Called with agents that came from another collector or went to one, and whether they came, on any thread. What this
# collector remembers of them is no longer right.
OwnersListener = Callable[[frozenset[str], bool], None]


class Engine(Protocol):
    """One way to keep all of it.

    Attributes:
        store: Samples and facts.
        results: Runs and epochs.
        states: What tracking knows of open runs.
        counters: What the engine has done.
        place: Where it keeps things, for a human reader.
    """

    store: Store
    results: ResultStore
    states: StateStore
    counters: StoreCounters
    place: str

    def open(self) -> None:
        """Get ready.

        Raises:
            StoreError: The store cannot be used.
        """

    def close(self) -> None:
        """Let go; everything appended is durable already."""

    def memory_share(self) -> float:
        """Return the share of the memory for samples that is in use; at 1 nothing is taken any more."""

    def usage(self) -> StoreUsage:
        """Return how much is kept.

        Raises:
            StoreError: It cannot be found out.
        """

    def configure(self, config: CollectorConfig) -> None:
        """Take over what can change while the collector runs; nothing is read or written."""

    def finish(self) -> None:
        """Do what makes the next start quick.

        Raises:
            StoreError: It cannot be done, which costs time and nothing else.
        """

    def background(self, executors: Mapping[str, Executor]) -> Sequence[Coroutine[Any, Any, None]]:
        """Return what has to be done for as long as the collector runs; each ends by being cancelled."""

    def followed(self) -> list[tuple[str, str]]:
        """Return the (agent, GPU) pairs whose runs this collector follows."""

    def subscribe_to_owners(self, listener: OwnersListener) -> None:
        """Have ``listener`` called when agents come from another collector or go to one."""
