"""What the collector takes: how much of one agent, how much of all when it falls behind, and whether anything at all.

``AgentPace`` measures one agent against its rate, ``Backpressure`` all of them against the disk, and
``AdmissionControl`` rejects every stream while nothing can be stored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import grpc

from gpusonde.collector.config import IngestConfig
from gpusonde.collector.security.rates import RateBucket
from gpusonde.collector.storage.store import SampleStore
from gpusonde.errors import StoreError, StoreFullError
from gpusonde.ingest.v1 import ingest_pb2

_LOG = logging.getLogger(__name__)
_BURST_S = 10.0
# Of the records in flight that HelloAck allowed.
_NARROW = 8
# A disk can stay full for days, and the log may lie on it.
_REMINDER_INTERVAL_S = 300.0


@dataclass(frozen=True)
class Stop:
    """Why a stream ends before the agent ends it.

    Attributes:
        code: Status for the agent; OK when it is only asked to reconnect.
        text: What happened and what to do.
        preferred_target: Where it is asked to go; empty for "come back".
    """

    code: grpc.StatusCode
    text: str
    preferred_target: str = ""


def make_throttle(config: IngestConfig) -> ingest_pb2.Throttle:
    """Return what is asked of an agent that sends too much, and of all when the collector falls behind."""
    return ingest_pb2.Throttle(
        max_unacked_records=max(1, config.max_unacked_records // _NARROW), batch_interval_ms=5000
    )


class AgentPace:
    """The rate of one agent.

    Args:
        config: Its limits.
        clock: Monotonic seconds.
    """

    def __init__(self, config: IngestConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.configure(config)

    def configure(self, config: IngestConfig) -> None:
        """Set other limits, with room for a burst."""
        self._records = RateBucket(config.max_records_per_second, config.max_records_per_second * _BURST_S, self._clock)
        self._bytes = RateBucket(config.max_bytes_per_second, config.max_bytes_per_second * _BURST_S, self._clock)

    def take(self, size_bytes: int) -> float:
        """Count one record and return the seconds that the agent is ahead of its rate."""
        return max(self._records.take(1.0), self._bytes.take(float(size_bytes)))

    @property
    def owed_s(self) -> float:
        """Seconds that the agent is ahead of its rate."""
        return max(self._records.take(0.0), self._bytes.take(0.0))

    @property
    def is_calm(self) -> bool:
        """Whether there is room for bursts again."""
        return min(self._records.fill_ratio, self._bytes.fill_ratio) > 0.5


class Backpressure:
    """Tells whether the collector falls behind as a whole; with hysteresis, so that agents are not told twice a second.

    Args:
        config: When it does.
        commit_interval_s: Time between two commits, of which a few may pass before a record is late.
        lag_s: Age in seconds of the oldest record that is not durable yet.
        waiting_bytes: Bytes of such records.
        memory_share: Share of the store's memory in use.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        config: IngestConfig,
        commit_interval_s: float,
        lag_s: Callable[[], float],
        waiting_bytes: Callable[[], int],
        memory_share: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.configure(config, commit_interval_s)
        self._lag_s = lag_s
        self._waiting_bytes = waiting_bytes
        self._memory_share = memory_share
        self._clock = clock
        self._calm_since_s: float | None = None
        self.reason = ""

    def configure(self, config: IngestConfig, commit_interval_s: float) -> None:
        """Change when the collector counts as falling behind."""
        self._config = config
        self._max_lag_s = max(config.max_lag_s, 4.0 * commit_interval_s)

    def evaluate(self) -> str:
        """Return what the collector falls behind with; empty when it does not."""
        level = max(
            (self._lag_s() / self._max_lag_s, "records wait too long for the disk"),
            (2.0 * self._waiting_bytes() / self._config.max_waiting_bytes, "too many bytes wait for the disk"),
            (self._memory_share() / self._config.max_memory_share, "segments are not written fast enough"),
        )
        now = self._clock()
        if level[0] >= 1.0:
            self._calm_since_s = None
            self.reason = level[1]
        elif self.reason and level[0] < 0.75:
            self._calm_since_s = now if self._calm_since_s is None else self._calm_since_s
            if now - self._calm_since_s >= self._config.calm_s:
                self.reason, self._calm_since_s = "", None
        else:
            self._calm_since_s = None
        return self.reason


class AdmissionControl:
    """Rejects records while the store cannot be written and while the collector shuts down.

    Args:
        store: Probed until it can be written again.
        executor: Runs the store's blocking calls.
        on_change: Called with True when records are taken again and False when they no longer are.
        probe_interval_s: Time between attempts to write to a disk that was full; one is a small file.
    """

    def __init__(
        self, store: SampleStore, executor: Executor, on_change: Callable[[bool], None], probe_interval_s: float = 1.0
    ) -> None:
        self._store = store
        self._executor = executor
        self._probe_interval_s = probe_interval_s
        self._on_change = on_change
        self._stop: Stop | None = None
        self._failed = asyncio.Event()
        self._draining = False

    @property
    def rejection(self) -> Stop | None:
        """Why new streams are refused, or None when they are welcome."""
        return self._stop

    def store_failed(self, error: StoreError) -> None:
        """Reject until the store can be written again."""
        if self._stop:
            return
        _LOG.error("no records are taken: %s; the collector goes on by itself when it can store again", error)
        full = isinstance(error, StoreFullError)
        code = grpc.StatusCode.RESOURCE_EXHAUSTED if full else grpc.StatusCode.UNAVAILABLE
        self._stop = Stop(code, f"the collector cannot store records: {error}")
        self._failed.set()
        self._on_change(False)

    def drain(self) -> None:
        """Reject for good: the collector shuts down."""
        self._draining = True
        self._stop = Stop(grpc.StatusCode.UNAVAILABLE, "the collector is shutting down; reconnect in a moment")
        self._on_change(False)

    async def run(self) -> None:
        """Probe a store that failed until it can be written; runs until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._failed.wait()
            reminder_s = loop.time() + _REMINDER_INTERVAL_S
            while (error := await self._probe()) is not None:
                if loop.time() >= reminder_s:
                    _LOG.warning("still no records are taken: %s", error)
                    reminder_s = loop.time() + _REMINDER_INTERVAL_S
            self._failed.clear()
            if not self._draining:
                self._stop = None
                _LOG.info("records are taken again")
                self._on_change(True)

    async def _probe(self) -> StoreError | None:
        """Wait, then try to write; returns why that fails."""
        await asyncio.sleep(self._probe_interval_s)
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._store.check_writable)
        except StoreError as error:
            return error
        return None
