"""``Store``: what an engine provides to ingest, tracking and queries, as small contracts.

``facts`` tells what records say, ``samples`` takes records and reads ticks, ``results`` keeps runs and epochs, and
``states`` what can be worked out again. ``local`` and ``clickhouse`` implement them all.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Protocol

from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.model import (
    MOST_STATES,
    AgentRow,
    AlertRow,
    CycleTree,
    EpochRow,
    GpuRow,
    JobStateRow,
    LossRow,
    PendingRecord,
    Position,
    RejectionRow,
    RunRow,
    RunUpdate,
    SpoolStanding,
    StoreUsage,
    SummaryRow,
)
from gpusonde.collector.storage.samples import FeedEntry, Samples
from gpusonde.service.wire import Binding, GpuEvent, JobActivity

# Called with seconds, once for each piece of work.
Observer = Callable[[float], None]


class StoreCounters:
    """Counts since the start of the process; may be used from any thread.

    Attributes:
        compactions: Files that compaction has written.
        compaction_failures: Times that it could not.
        on_compaction: Called with the seconds that each file took.
        on_segment: Called with the seconds that each flushed segment took.
        on_log_sync: Called with the seconds that each write to the log took, its sync included.
    """

    def __init__(self) -> None:
        self.compactions = 0
        self.compaction_failures = 0
        self.on_compaction: Observer = _ignore
        self.on_segment: Observer = _ignore
        self.on_log_sync: Observer = _ignore
        self._deleted_bytes: Counter[str] = Counter()
        self._lock = threading.Lock()

    def compacted(self, seconds: float) -> None:
        """Note one compacted file."""
        with self._lock:
            self.compactions += 1
        self.on_compaction(seconds)

    def compaction_failed(self) -> None:
        """Note one compaction that did not succeed."""
        with self._lock:
            self.compaction_failures += 1

    def deleted(self, tier: str, size_bytes: int) -> None:
        """Note that retention has deleted a file of a tier: ``raw`` or ``second``."""
        with self._lock:
            self._deleted_bytes[tier] += size_bytes

    def deleted_bytes(self) -> dict[str, int]:
        """Return the bytes that retention has deleted, by tier."""
        with self._lock:
            return {tier: self._deleted_bytes[tier] for tier in ("raw", "second")}


def _ignore(_seconds: float) -> None:
    """Do nothing: nobody observes."""


# Called with (agent_id, gpu_uuid) pairs that have something new.
Listener = Callable[[frozenset[tuple[str, str]]], None]


class FactStore(Protocol):
    """Tells what records have said besides samples.

    All methods block, may be called from any thread, and raise ``StoreError`` when the engine fails.
    """

    def agents(self) -> list[AgentRow]:
        """Return every agent ever seen."""

    def gpus(self, gpu_uuids: Collection[str] | None = None) -> list[GpuRow]:
        """Return every GPU ever described, or those of the given UUIDs, once per agent."""

    def metrics(self, gpu_uuid: str) -> list[str]:
        """Return the metrics that any agent ever offered for a GPU."""

    def bindings(self, agent_id: str, gpu_uuid: str) -> list[tuple[Position, Binding]]:
        """Return an agent's job bindings of a GPU in order of arrival."""

    def job_bindings(self, agent_id: str, job_id: str) -> list[tuple[str, Position, Binding]]:
        """Return the bindings of an agent's GPUs to a job, with the GPU, in order of arrival."""

    def open_bindings(self) -> list[tuple[str, Binding]]:
        """Return the job bindings that have not ended, with their agents, in order of their start."""

    def events(self, gpu_uuid: str) -> list[GpuEvent]:
        """Return a GPU's events in order of time."""

    def activity(self, agent_id: str, gpu_uuid: str, after: Position) -> Iterator[tuple[Position, JobActivity]]:
        """Yield what the processes of the job on a GPU did, behind a position, in order of arrival."""

    def recent_activity(self, agent_id: str, gpu_uuids: Collection[str], since_unix_nano: int) -> list[JobActivity]:
        """Return what the processes on some GPUs did, as far as it ends after a time, in order of arrival."""

    def losses(self) -> list[LossRow]:
        """Return every loss that an agent reported and every gap that was seen."""

    def rejections(self) -> list[RejectionRow]:
        """Return the records refused for good."""

    def blank_counts(self, gpu_uuid: str) -> dict[tuple[str, int], int]:
        """Return (metric, ``gpusonde.common.v1.MissingReason``) -> NaNs of a GPU, as far as they are in segments."""


class SampleReader(Protocol):
    """Reads samples. All methods block, may be called from any thread, and raise ``StoreError`` when they fail."""

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


def read_windows(
    reader: SampleReader,
    gpu_uuid: str,
    start_unix_nano: int,
    end_unix_nano: int,
    metrics: Sequence[str],
    length_ns: int,
) -> Iterator[Samples]:
    """Read the ticks of a GPU in ``[start, end)`` piece by piece, so that memory stays bounded.

    From tick to tick: a host that once woke up in 1970 leaves decades without any between.
    """
    start = start_unix_nano
    while (tick := reader.next_tick(gpu_uuid, start)) is not None and tick < end_unix_nano:
        start = min(tick + length_ns, end_unix_nano)
        # A segment may be deleted meanwhile.
        if len(samples := reader.read(gpu_uuid, tick, start, metrics)):
            yield samples


class SampleStore(SampleReader, Protocol):
    """Keeps every record exactly once and survives a crash at any moment; reads the samples back.

    All methods block and may be called from any thread; ``append`` is called by one at a time.
    """

    def register_agents(self, agents: Sequence[AgentRow]) -> list[SpoolStanding]:
        """Store what agents said of themselves and return where their spools stand.

        A new spool that does not begin with 1 goes on from another: what lies before counts as durable and is no gap.
        """

    def append(self, records: Sequence[PendingRecord]) -> int:
        """Make records durable; when it returns, they survive a power loss.

        Records at or below the durable sequence of their spool are dropped. A jump in the sequence of a spool is
        recorded as a gap.

        Returns:
            How many were dropped as repetitions.

        Raises:
            StoreFullError: There is no room; none of the records counts as stored.
            StoreError: Any other failure, likewise.
        """

    def quarantine(self, name: str, data: bytes) -> None:
        """Keep the bytes of a record that is refused for good.

        Raises:
            StoreFullError: There is no room.
        """

    def check_writable(self) -> None:
        """Try to write.

        Raises:
            StoreFullError: There is no room.
            StoreError: Any other reason why nothing can be stored.
        """

    def subscribe(self, listener: Listener) -> None:
        """Have ``listener`` called, on the thread that appends, after records became durable."""

    def contains(self, agent_id: str, position: Position) -> bool:
        """Return whether a record at a position is one of an agent's that are durable."""

    def holds_tick(self, agent_id: str, sequence: int, gpu_uuid: str, time_unix_nano: int) -> bool:
        """Return whether a durable record of an agent, of this sequence in any spool, has a tick of a GPU at a time.

        Raises:
            StoreCorruptError: A segment that is needed cannot be read.
        """

    def read_feed(self, agent_id: str, gpu_uuid: str, after: Position) -> Iterator[FeedEntry]:
        """Yield what an agent said about a GPU behind a position, in order of arrival, ticks with all columns.

        A segment that cannot be read is logged and left out: tracking goes on.
        """


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

    def begin(self, agents: Collection[str]) -> dict[tuple[str, str], tuple[Position, int]]:
        """Begin anew with agents that another collector has followed, or does; on the thread that saves.

        Returns:
            Where tracking of each of their GPUs starts, those included that nobody has followed yet. What is saved of
            them from now on counts more than what this or another collector has saved before, or still saves.
        """

    def run(self, run_id: str) -> RunRow | None:
        """Return one run."""

    def open_run(self, agent_id: str, gpu_uuid: str) -> str:
        """Return the newest run of a GPU that goes on, or nothing."""

    def runs(
        self,
        *,
        gpu_uuid: str = "",
        job_id: str = "",
        open_only: bool = False,
        before: tuple[int, str] | None = None,
        limit: int,
    ) -> list[RunRow]:
        """Return runs, newest first.

        Args:
            gpu_uuid: Only of this GPU; empty means every one.
            job_id: Only of this job; empty means every one.
            open_only: Only those that go on.
            before: Only those behind this (start, run id) in the order.
            limit: At most so many.
        """

    def epochs(self, run_id: str) -> list[EpochRow]:
        """Return the epochs of a run by start, withdrawn ones included."""

    def tree(self, run_id: str) -> CycleTree:
        """Return the tree of cycles of a run's job; an empty one where none is known."""

    def states(self, run_ids: Collection[str], limit: int = MOST_STATES) -> dict[str, list[JobStateRow]]:
        """Return the latest states of runs' jobs by run, in order of time; runs that have none are left out.

        Args:
            run_ids: The runs.
            limit: At most so many of each.
        """

    def save_alerts(self, alerts: Sequence[AlertRow]) -> None:
        """Keep alerts; one of the same job, rule and start takes the place of the one before."""

    def alerts(
        self,
        *,
        job_id: str = "",
        open_only: bool = False,
        untold_only: bool = False,
        before: tuple[int, str, str] | None = None,
        limit: int,
    ) -> list[AlertRow]:
        """Return alerts, newest first.

        Args:
            job_id: Only of jobs of this name; empty means every one.
            open_only: Only those that are not over.
            untold_only: Only those that the webhook has not taken as they stand.
            before: Only those behind this (start, job, rule) in the order.
            limit: At most so many.
        """

    def save_summaries(self, run_id: str, summaries: Sequence[tuple[EpochRow, SummaryRow]]) -> None:
        """Store what epochs add up to, for those whose bounds are still the same."""

    def summaries(self, run_id: str, epochs: Sequence[EpochRow]) -> dict[int, SummaryRow]:
        """Return the summaries, by index, of neighbouring epochs of a run, as far as there are any."""

    def to_summarise(self, run_id: str, after_unix_nano: int, limit: int) -> list[EpochRow]:
        """Return the first confirmed epochs of a run without a summary that start after a time, by start."""

    def count_to_summarise(self, run_id: str) -> int:
        """Return how many confirmed epochs of a run have no summary yet."""

    def runs_to_summarise(self, agents: Collection[str] | None = None) -> list[str]:
        """Return the runs, of those that this collector follows, with confirmed epochs that have no summary yet.

        Args:
            agents: Whose runs; without, of all.
        """


class UnusableStateError(Exception):
    """What is kept of an open run cannot be used: the run is read again from its start."""


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
            UnusableStateError: It is damaged, or of another version.
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


class Store(Protocol):
    """One way to keep everything: an engine, which provides the contracts above and has a life.

    Attributes:
        facts: What records say besides samples.
        samples: The records on their way in, the samples on their way out.
        results: Runs and epochs.
        states: What tracking knows of open runs.
        counters: What the engine has done.
        place: Where it keeps things, for a human reader.
    """

    @property
    def facts(self) -> FactStore: ...  # noqa: D102 - see above

    @property
    def samples(self) -> SampleStore: ...  # noqa: D102

    @property
    def results(self) -> ResultStore: ...  # noqa: D102

    @property
    def states(self) -> StateStore: ...  # noqa: D102

    @property
    def counters(self) -> StoreCounters: ...  # noqa: D102

    @property
    def place(self) -> str: ...  # noqa: D102

    def open(self) -> None:
        """Get ready.

        Raises:
            StoreError: The store cannot be used.
        """

    def close(self) -> None:
        """Let go; everything appended is durable already."""

    def configure(self, config: StoreConfig) -> None:
        """Take over what can change while the collector runs; nothing is read or written."""

    def flush(self) -> None:
        """Do what makes the next start quick.

        Raises:
            StoreError: It cannot be done, which costs time and nothing else.
        """

    def memory_share(self) -> float:
        """Return the share of the memory for samples that is in use; at 1 nothing is taken any more."""

    def usage(self) -> StoreUsage:
        """Return how much is kept.

        Raises:
            StoreError: It cannot be found out.
        """

    def run_in_background(self, executors: Mapping[str, Executor]) -> Sequence[Coroutine[Any, Any, None]]:
        """Return what has to be done for as long as the collector runs; each ends by being cancelled.

        Args:
            executors: A thread each for ``flush`` and ``maintain``.
        """

    def followed(self) -> list[tuple[str, str]]:
        """Return the (agent, GPU) pairs whose runs this collector follows."""

    def subscribe_to_owners(self, listener: OwnersListener) -> None:
        """Have ``listener`` called when agents come from another collector or go to one."""
