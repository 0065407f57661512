"""``QueryService``: the questions' way through gRPC."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

import grpc
import grpc.aio

from gpusonde.collector.query.jobs import list_alerts, list_jobs
from gpusonde.collector.query.prediction import LatencyPredictor
from gpusonde.collector.query.runs import list_epochs, list_runs
from gpusonde.collector.query.samples import stream_samples
from gpusonde.collector.query.slow_jobs import SlowJobs
from gpusonde.collector.storage.store import Store
from gpusonde.errors import RequestError, StoreCorruptError, StoreError
from gpusonde.predictor.crossgpu import ModelFileError
from gpusonde.query.v1 import query_pb2, query_pb2_grpc

_LOG = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")

Context = grpc.aio.ServicerContext[Any, Any]


class QueryService(query_pb2_grpc.QueryServiceServicer):
    """Implements ``gpusonde.query.v1.QueryService``.

    Args:
        store: Where runs and samples are.
        predictor: Predicts.
        executor: Runs the answers; they compute and block.
        slow_jobs: Says why jobs are slower.
    """

    def __init__(self, store: Store, predictor: LatencyPredictor, executor: Executor, slow_jobs: SlowJobs) -> None:
        self._store = store
        self._predictor = predictor
        self._executor = executor
        self._slow_jobs = slow_jobs

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
        return await self._answer(context, lambda: list_jobs(self._store, request, slow_jobs=self._slow_jobs))

    async def ListAlerts(  # noqa: N802
        self, request: query_pb2.ListAlertsRequest, context: Context
    ) -> query_pb2.ListAlertsResponse:
        """Return alerts about jobs, newest first."""
        return await self._answer(context, lambda: list_alerts(self._store.results, request))

    async def PredictEpochLatency(  # noqa: N802
        self, request: query_pb2.PredictEpochLatencyRequest, context: Context
    ) -> query_pb2.PredictEpochLatencyResponse:
        """Predict the epoch latency on other GPUs."""
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

    async def _answer(self, context: Context, answer: Callable[[], _Answer]) -> _Answer:
        """Run an answer in the executor and turn its exceptions into statuses."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, answer)
        except RequestError as error:
            code, text = grpc.StatusCode[error.status], str(error)
        except StoreCorruptError as error:
            _LOG.error("%s", error)
            code, text = grpc.StatusCode.DATA_LOSS, str(error)
        except StoreError as error:
            _LOG.error("%s", error)
            code, text = grpc.StatusCode.UNAVAILABLE, str(error)
        except ModelFileError as error:
            code, text = grpc.StatusCode.FAILED_PRECONDITION, f"the collector's model cannot be used: {error}"
        except Exception as error:  # the client must get a status whatever happened
            _LOG.exception("a question failed")
            code, text = grpc.StatusCode.INTERNAL, f"{type(error).__name__}; see the collector's log"
        await context.abort(code, text)
        raise AssertionError  # abort raises
