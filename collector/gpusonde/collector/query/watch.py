"""``WatchChanges``: what goes on and what has changed, looked up once for all who watch."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeAlias

from gpusonde.collector.query.jobs import JobView, list_alerts, list_jobs
from gpusonde.collector.query.runs import list_runs, nanoseconds
from gpusonde.collector.storage.store import Store
from gpusonde.errors import RequestError
from gpusonde.query.v1 import query_pb2

_LEAST_INTERVAL_NS, _LONGEST_INTERVAL_NS = 1_000_000_000, 60_000_000_000
_INTERVAL_S = 2.0
# A look serves whoever asks so soon after it, or longer: looks may take so much of a core, whatever the fleet's size.
_FRESH_S = 0.9
_SHARE_OF_LOOKS = 1 / 32
# Of what only has grown older, by the clock: all who watch are told at once, the same.
_TELL_AGAIN_S = 10.0
_MOST_ROWS = 1000
# Those that have ended are told to whoever saw them go on.
_MOST_ENDED = 2000

Row: TypeAlias = "query_pb2.Run | query_pb2.Job | query_pb2.JobAlert"
# Kind of row, and what names it among those.
Key = tuple[str, ...]


@dataclass(frozen=True)
class _SeenRow:
    """A row, what of it a change is told of, and when it was looked up."""

    row: Row
    mark: bytes
    at_s: float


class SharedLooks:
    """Looks at what goes on: however many watch, the store is asked once a second at most, and seldomer if it is large.

    Those who watch look by the same clock: most of what they are told is the same, and made once.

    Args:
        store: Where runs, jobs and alerts are.
        view: How jobs are looked at.
        executor: Runs the look; it blocks.
        clock: Monotonic seconds.
    """

    def __init__(
        self, store: Store, view: JobView, executor: Executor, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._view = view
        self._executor = executor
        self._clock = clock
        self._looking = asyncio.Lock()
        self._draining = asyncio.Event()
        self._fresh_until_s = float("-inf")
        self._active: dict[Key, _SeenRow] = {}
        self._ended: OrderedDict[Key, _SeenRow] = OrderedDict()

    def drain(self) -> None:
        """Have every watch end."""
        self._draining.set()

    async def watch(
        self, request: query_pb2.WatchChangesRequest, may_go_on: Callable[[], None]
    ) -> AsyncIterator[query_pb2.WatchChangesResponse]:
        """Yield what goes on, then what has changed, until the caller goes.

        Args:
            request: How often.
            may_go_on: Raises when the watch is to end; called before every look.

        Raises:
            RequestError: An interval that cannot be (``INVALID_ARGUMENT``), or the collector stops (``UNAVAILABLE``).
        """
        interval_s, is_first = _interval_s(request), True
        known: dict[Key, bytes] = {}
        told_s: dict[Key, float] = {}
        while not self._draining.is_set():
            may_go_on()
            active, ended = await self._look()
            rows = []
            for key, seen in active.items():
                if known.get(key) != seen.mark or seen.at_s // _TELL_AGAIN_S > told_s[key] // _TELL_AGAIN_S:
                    known[key], told_s[key] = seen.mark, seen.at_s
                    rows.append(seen.row)
            for key in sorted(known.keys() - active.keys()):
                del known[key], told_s[key]
                if key in ended:
                    rows.append(ended[key].row)
            # The first answer says that there is a watch, also where nothing goes on.
            if rows or is_first:
                is_first = False
                yield _response(rows)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._draining.wait(), interval_s - self._clock() % interval_s)
        raise RequestError("UNAVAILABLE", "the collector stops; watch again at another one")

    async def _look(self) -> tuple[Mapping[Key, _SeenRow], Mapping[Key, _SeenRow]]:
        async with self._looking:
            if (now_s := self._clock()) >= self._fresh_until_s:
                before = dict(self._active)
                self._active, ended, cost_s = await asyncio.get_running_loop().run_in_executor(
                    self._executor, self._read, before
                )
                for key, seen in ended.items():
                    self._ended[key] = seen
                while len(self._ended) > _MOST_ENDED:
                    self._ended.popitem(last=False)
                self._fresh_until_s = now_s + max(_FRESH_S, cost_s / _SHARE_OF_LOOKS)
            return self._active, self._ended

    def _read(self, before: Mapping[Key, _SeenRow]) -> tuple[dict[Key, _SeenRow], dict[Key, _SeenRow], float]:
        """Return what goes on, what has ended of what went on before, and the seconds of computing that this took."""
        now_s, began_s = self._clock(), time.thread_time()
        active = {_key(row): _SeenRow(row, _mark(row), now_s) for row in self._active_rows()}
        ended = {}
        for key in before.keys() - active.keys():
            if (row := self._row(key)) is not None:
                ended[key] = _SeenRow(row, _mark(row), now_s)
        return active, ended, time.thread_time() - began_s

    def _active_rows(self) -> Iterator[Row]:
        active = query_pb2.RUN_STATUS_ACTIVE
        yield from list_runs(self._store, query_pb2.ListRunsRequest(status=active, page_size=_MOST_ROWS)).runs
        jobs = query_pb2.ListJobsRequest(active_only=True, page_size=_MOST_ROWS)
        yield from list_jobs(self._store, jobs, view=self._view).jobs
        alerts = query_pb2.ListAlertsRequest(open_only=True, page_size=_MOST_ROWS)
        yield from list_alerts(self._store.results, alerts).alerts

    def _row(self, key: Key) -> Row | None:
        found: list[Row] = []
        if key[0] == "Run":
            run = self._store.results.run(key[1])
            if run is not None:
                before = query_pb2.ListRunsRequest(gpu_uuid=run.gpu_uuid, page_size=_MOST_ROWS)
                found.extend(list_runs(self._store, before).runs)
        elif key[0] == "Job":
            request = query_pb2.ListJobsRequest(job_id=key[1], page_size=_MOST_ROWS)
            found.extend(list_jobs(self._store, request, view=self._view).jobs)
        else:
            alerts = query_pb2.ListAlertsRequest(job_id=key[1], page_size=_MOST_ROWS)
            found.extend(list_alerts(self._store.results, alerts).alerts)
        return next((row for row in found if _key(row) == key), None)


def _interval_s(request: query_pb2.WatchChangesRequest) -> float:
    if not request.HasField("interval"):
        return _INTERVAL_S
    asked = nanoseconds(request.interval, "interval")
    if not _LEAST_INTERVAL_NS <= asked <= _LONGEST_INTERVAL_NS:
        raise RequestError("INVALID_ARGUMENT", "field 'interval': is not between 1 s and 60 s")
    return asked / 1e9


def _key(row: Row) -> Key:
    if isinstance(row, query_pb2.Run):
        return "Run", row.run_id
    if isinstance(row, query_pb2.Job):
        return "Job", row.job_id, str(row.scheduler)
    return "Alert", row.job_id, str(row.scheduler), str(row.state), str(row.start_time.ToNanoseconds())


def _mark(row: Row) -> bytes:
    """Return what of a row makes a change: not that time goes by, nor figures that move with every look."""
    if isinstance(row, query_pb2.Run):
        kept: Row = query_pb2.Run(epoch_count=row.epoch_count, verdict=row.verdict, job_id=row.job_id)
    elif isinstance(row, query_pb2.Job):
        kept = query_pb2.Job(
            state=row.state, members=row.members, deviations=row.deviations, slow_devices=row.slow_devices
        )
    else:
        kept = row
    return kept.SerializeToString(deterministic=True)


def _response(rows: list[Row]) -> query_pb2.WatchChangesResponse:
    return query_pb2.WatchChangesResponse(
        runs=[row for row in rows if isinstance(row, query_pb2.Run)],
        jobs=[row for row in rows if isinstance(row, query_pb2.Job)],
        alerts=[row for row in rows if isinstance(row, query_pb2.JobAlert)],
    )
