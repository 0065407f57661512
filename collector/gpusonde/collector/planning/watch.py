"""``WatchJob``: one job followed over one stream."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from gpusonde.collector.config import PlanningConfig
from gpusonde.collector.planning.wire import pack_question, raise_errors
from gpusonde.errors import RequestError
from gpusonde.planning.v1 import planning_pb2

# Reports that wait for the next look; beyond them the stream is not read.
_MOST_REPORTS = 256
# Which have a plan of a few hundred groups at most, and may not add up to gigabytes.
_LARGEST_REPORT_BYTES = 1 << 16
# As many epochs as the optimizer looks at.
_MOST_EPOCHS = 512
_LATEST_S = 3.2e9
# Between two looks, so that a record of a job that is played back leaves room for others.
_LEAST_PAUSE_S = 0.02

# A question of ``wire`` -> its answer.
Ask = Callable[[bytes], Awaitable[dict[str, Any]]]


class EpochEnds(NamedTuple):
    """When the epochs of a run ended, and when the run did, 0 while it goes on; Unix seconds."""

    ends_unix_s: Sequence[float]
    ended_unix_s: float


# By the run's id.
EpochsOf = Callable[[str], Awaitable[EpochEnds]]
Requests = AsyncIterator[planning_pb2.WatchJobRequest]
Send = Callable[[dict[str, Any]], Awaitable[None]]
# A report, what was wrong with one, or None after the last one.
_Item: TypeAlias = "planning_pb2.WatchJobRequest | RequestError | None"


class WatchStream:
    """Follows one job.

    Args:
        start: The first request.
        ask: Asks the process that holds the job's controller.
        epochs_of: Looks epochs up.
        config: How to watch, at the time of each look.
        clock: Monotonic seconds.
        wall_clock: Unix time in seconds.
    """

    def __init__(
        self,
        start: planning_pb2.WatchStart,
        ask: Ask,
        epochs_of: EpochsOf,
        config: Callable[[], PlanningConfig],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._start = start
        self._ask = ask
        self._epochs_of = epochs_of
        self._run_tells = bool(start.run_id)
        self._config = config
        self._clock = clock
        # What the job's clock showed, and when that was.
        self._known = start.elapsed_s, clock()
        self._job_start_unix_s = wall_clock() - start.elapsed_s
        self._reports: asyncio.Queue[_Item] = asyncio.Queue(_MOST_REPORTS)

    async def run(self, requests: Requests, send: Send, may_go_on: Callable[[], None]) -> None:
        """Send recommendations until the job is done, or nobody reports any more and no run tells.

        Args:
            requests: What comes after the first request.
            send: Takes recommendations.
            may_go_on: Raises when the watch is to end; called before every look.

        Raises:
            RequestError: A request that cannot be, or no such run.
        """
        raise_errors(await self._ask(pack_question({"kind": "start_watch"}, {"start": self._start})))
        reading = asyncio.ensure_future(self._read(requests))
        try:
            await self._follow(send, may_go_on)
        finally:
            reading.cancel()

    async def _follow(self, send: Send, may_go_on: Callable[[], None]) -> None:
        pending: list[planning_pb2.WatchJobRequest] = []
        coming: asyncio.Future[_Item] | None = None
        due_s, looked_s, has_ended = self._clock(), -math.inf, False
        while True:
            if coming is None and not has_ended:
                coming = asyncio.ensure_future(self._reports.get())
            wait_s = max(0.0, due_s - self._clock())
            if coming is not None:
                await asyncio.wait({coming}, timeout=wait_s)
            else:
                await asyncio.sleep(wait_s)
            is_due = self._clock() >= due_s
            if coming is not None and coming.done():
                item, coming = coming.result(), None
                if isinstance(item, Exception):
                    raise item
                has_ended = item is None
                if item is not None:
                    pending.append(item)
                    elapsed_s = _elapsed_s(item)
                    self._known = max(self._now_s(), elapsed_s), self._clock()
                    # Reports may come faster than time passes, from a record of it.
                    is_due |= item.HasField("machines")
                    is_due |= elapsed_s >= looked_s + self._config().watch_interval_s
            if not (is_due or (has_ended and not self._run_tells)):
                continue
            may_go_on()
            now_s = self._now_s()
            recommendation = await self._look(pending, now_s)
            pending, looked_s, due_s = [], now_s, self._clock() + self._config().watch_interval_s
            await send(recommendation)
            # Of a run that has ended this look may have heard.
            is_over = has_ended and not self._run_tells
            if is_over or recommendation["kind"] == "done":
                if coming is not None:
                    coming.cancel()
                return
            await asyncio.sleep(_LEAST_PAUSE_S)

    async def _look(self, reports: list[planning_pb2.WatchJobRequest], now_s: float) -> dict[str, Any]:
        epochs = []
        if self._run_tells:
            ends_unix_s, ended_unix_s = await self._epochs_of(self._start.run_id)
            ends = sorted(end_s - self._job_start_unix_s for end_s in ends_unix_s)
            latest = ends[-_MOST_EPOCHS:]
            epochs = [{"epoch_ends_s": latest, "older_epochs": len(ends) - len(latest)}]
            if ended_unix_s:
                epochs[0]["run_ended_s"] = ended_unix_s - self._job_start_unix_s
                self._run_tells = False
        question = pack_question({"kind": "watch", "reports": epochs, "now_s": now_s}, reports=reports)
        answer = raise_errors(await self._ask(question))
        found: dict[str, Any] = answer["recommendation"]
        return found

    async def _read(self, requests: Requests) -> None:
        try:
            async for request in requests:
                _check_report(request)
                await self._reports.put(request)
        except RequestError as error:
            await self._reports.put(error)
        except DecodeError as error:
            text = f"a report cannot be decoded: {str(error)[:200]}"
            await self._reports.put(RequestError("INVALID_ARGUMENT", text))
        else:
            await self._reports.put(None)

    def _now_s(self) -> float:
        known_s, at_s = self._known
        return known_s + self._clock() - at_s


def _elapsed_s(request: planning_pb2.WatchJobRequest) -> float:
    return request.machines.elapsed_s if request.HasField("machines") else request.progress.elapsed_s


def _check_report(request: planning_pb2.WatchJobRequest) -> None:
    if request.ByteSize() > _LARGEST_REPORT_BYTES:
        raise RequestError("RESOURCE_EXHAUSTED", f"a report has more than {_LARGEST_REPORT_BYTES} bytes")
    if request.WhichOneof("request") not in ("progress", "machines"):
        raise RequestError("INVALID_ARGUMENT", "after the first request come progress and machines")
    if not 0.0 <= _elapsed_s(request) <= _LATEST_S:
        raise RequestError("INVALID_ARGUMENT", "field 'elapsed_s': must be seconds since the job's start")
