"""``QueryService``: the questions' way through gRPC."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio

from gpusonde.collector.query.jobs import JobView, get_job, list_alerts, list_jobs
from gpusonde.collector.query.prediction import LatencyPredictor
from gpusonde.collector.query.runs import get_run, list_epochs, list_runs
from gpusonde.collector.query.samples import decimate_samples, stream_samples
from gpusonde.collector.query.watch import SharedLooks
from gpusonde.collector.security.guard import Guard
from gpusonde.collector.storage.store import Store
from gpusonde.errors import RequestError, StoreCorruptError, StoreError
from gpusonde.predictor.crossgpu import ModelFileError
from gpusonde.query.v1 import query_pb2, query_pb2_grpc

_LOG = logging.getLogger(__name__)
_FEW_TARGETS = 4
_Answer = TypeVar("_Answer")

Context = grpc.aio.ServicerContext[Any, Any]


class QueryService(query_pb2_grpc.QueryServiceServicer):
    """Implements ``gpusonde.query.v1.QueryService``.

    Args:
        store: Where runs and samples are.
        predictor: Predicts.
        executor: Runs the answers; they compute and block.
        view: How jobs are looked at.
        guard: Knows callers, whose proof may be withdrawn during a watch.
    """

    def __init__(
        self, store: Store, predictor: LatencyPredictor, executor: Executor, view: JobView, guard: Guard
    ) -> None:
        self._store = store
        self._predictor = predictor
        self._executor = executor
        self._view = view
        self._guard = guard
        self._looks = SharedLooks(store, view, executor)

    def drain(self) -> None:
        """Have every watch end."""
        self._looks.drain()

    async def ListRuns(  # noqa: N802 - gRPC's name, as below
        self, request: query_pb2.ListRunsRequest, context: Context
    ) -> query_pb2.ListRunsResponse:
        """Return runs, newest first."""
        return await self._answer(context, lambda: list_runs(self._store, request))

    async def ListEpochs(  # noqa: N802
        self, request: query_pb2.ListEpochsRequest, context: Context
    ) -> query_pb2.ListEpochsResponse:
        """Return the epochs of a run."""
        return await self._answer(context, lambda: list_epochs(self._store.results, request))

    async def ListJobs(  # noqa: N802
        self, request: query_pb2.ListJobsRequest, context: Context
    ) -> query_pb2.ListJobsResponse:
        """Return jobs with what they do, newest first."""
        return await self._answer(context, lambda: list_jobs(self._store, request, view=self._view))

    async def ListAlerts(  # noqa: N802
        self, request: query_pb2.ListAlertsRequest, context: Context
    ) -> query_pb2.ListAlertsResponse:
        """Return alerts about jobs, newest first."""
        return await self._answer(context, lambda: list_alerts(self._store.results, request))

    async def PredictEpochLatency(  # noqa: N802
        self, request: query_pb2.PredictEpochLatencyRequest, context: Context
    ) -> query_pb2.PredictEpochLatencyResponse:
        """Predict the epoch latency on other GPUs."""
        if request.WhichOneof("source") == "measurement" and 0 < len(request.target_gpu_models) <= _FEW_TARGETS:
            # Nothing is read, and a thread is longer in waking than this takes.
            try:
                return self._predictor.predict(request)
            except Exception as error:  # the client must get a status whatever happened
                await self._abort(context, error)
        return await self._answer(context, lambda: self._predictor.predict(request))

    async def ReadSamples(  # noqa: N802
        self, request: query_pb2.ReadSamplesRequest, context: Context
    ) -> AsyncIterator[query_pb2.ReadSamplesResponse]:
        """Stream the samples of a GPU."""
        pieces = stream_samples(self._store, request)
        while (found := await self._answer(context, lambda: next(pieces, None))) is not None:
            piece, resolution_s = found
            response = query_pb2.ReadSamplesResponse(arrow_ipc=piece)
            if resolution_s:
                response.resolution.FromNanoseconds(round(resolution_s * 1e9))
            yield response

    async def GetRun(  # noqa: N802
        self, request: query_pb2.GetRunRequest, context: Context
    ) -> query_pb2.GetRunResponse:
        """Return one run."""
        return await self._answer(context, lambda: get_run(self._store, request))

    async def GetJob(  # noqa: N802
        self, request: query_pb2.GetJobRequest, context: Context
    ) -> query_pb2.GetJobResponse:
        """Return one job with what it does."""
        return await self._answer(context, lambda: get_job(self._store, request, view=self._view))

    async def DecimateSamples(  # noqa: N802
        self, request: query_pb2.DecimateSamplesRequest, context: Context
    ) -> query_pb2.DecimateSamplesResponse:
        """Return the bounds of samples in bins of time."""
        return await self._answer(context, lambda: decimate_samples(self._store, request))

    async def WatchChanges(  # noqa: N802
        self, request: query_pb2.WatchChangesRequest, context: Context
    ) -> AsyncIterator[query_pb2.WatchChangesResponse]:
        """Stream what goes on and what has changed."""
        identity = self._guard.identify(context)

        def may_go_on() -> None:
            if problem := self._guard.revoked(identity):
                raise RequestError("UNAUTHENTICATED", problem)

        try:
            async for change in self._looks.watch(request, may_go_on):
                yield change
        except Exception as error:  # the client must get a status whatever happened
            await self._abort(context, error)

    async def _answer(self, context: Context, answer: Callable[[], _Answer]) -> _Answer:
        """Run an answer in the executor and turn its exceptions into statuses."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, answer)
        except Exception as error:  # the client must get a status whatever happened
            await self._abort(context, error)

    async def _abort(self, context: Context, error: Exception) -> NoReturn:
        code, text = grpc.StatusCode.INTERNAL, f"{type(error).__name__}; see the collector's log"
        if isinstance(error, RequestError):
            code, text = grpc.StatusCode[error.status], str(error)
        elif isinstance(error, StoreError):
            _LOG.error("%s", error)
            is_corrupt = isinstance(error, StoreCorruptError)
            code, text = grpc.StatusCode.DATA_LOSS if is_corrupt else grpc.StatusCode.UNAVAILABLE, str(error)
        elif isinstance(error, ModelFileError):
            code, text = grpc.StatusCode.FAILED_PRECONDITION, f"the collector's model cannot be used: {error}"
        else:
            _LOG.error("a question failed", exc_info=error)
        await context.abort(code, text)
        raise AssertionError  # abort raises
