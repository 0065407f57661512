"""``WorkloadService``: questions about workloads over gRPC, which it has checked and asks the processes about."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio

from gpusonde.catalog import load_gpus
from gpusonde.collector.config import CollectorConfig
from gpusonde.collector.ingest.agents import Agents
from gpusonde.collector.messages import fill
from gpusonde.collector.metrics import CollectorCounters
from gpusonde.collector.storage.store import Store
from gpusonde.collector.workload.checker import Questions, check_graphs, check_workloads, dataset_type
from gpusonde.collector.workload.errors import INVALID_REQUEST, WorkloadError
from gpusonde.collector.workload.hosts import ClusterDescriber, HostView, ResourceCollector
from gpusonde.collector.workload.processes import WorkloadProcesses
from gpusonde.collector.workload.training import Trainings, has_torch, trainer_command, training_document
from gpusonde.collector.workload.training_queue import TrainingQueue
from gpusonde.errors import ChildBusyError, EncoderError, RequestError, StoreError
from gpusonde.predictor.workload.embedding import Registry
from gpusonde.workload.v1 import workload_pb2, workload_pb2_grpc

_LOG = logging.getLogger(__name__)
_MOST_NEIGHBOURS = 50
# 500 about one graph take up to two seconds.
_MAX_QUESTIONS = 1000
# The largest network of the zoo has 1,019.
_MAX_OPERATIONS = 20_000
# Of processor time for reading one graph: the 82 networks of the zoo take 4 s together.
_GRAPH_TIME_LIMIT_S = 5.0

Context = grpc.aio.ServicerContext[Any, Any]
_Response = TypeVar("_Response")
_Value = TypeVar("_Value")


class WorkloadService(workload_pb2_grpc.WorkloadServiceServicer):
    """Implements ``gpusonde.workload.v1.WorkloadService``.

    It owns what answers: the processes, the queue of trainings, and what knows hosts.

    Args:
        config: The configuration at the start.
        store: Where hosts, GPUs and samples are.
        agents: The streams that say what hosts are doing.
        executor: Runs what blocks.
        counters: Where answers and refusals are counted.
    """

    def __init__(
        self,
        config: CollectorConfig,
        store: Store,
        agents: Agents,
        executor: Executor,
        counters: CollectorCounters,
    ) -> None:
        self._config = config
        self._executor = executor
        self._counters = counters
        self._gpus = load_gpus()
        self._resources = ResourceCollector(store.facts, agents.sessions, self._gpus)
        self._describer = ClusterDescriber(self._resources, store)
        self._processes = WorkloadProcesses(config.workers.pool(config.workload.processes))
        self._trainings = Trainings(TrainingQueue(config.trainings), self._trainer_command, counters.trainings)
        self._registry = functools.cache(lambda: Registry(config.embeddings))
        counters.workload_waiting = lambda: self._processes.waiting

    async def check_model(self, config: CollectorConfig) -> None:
        """Read the model that a configuration names, with the encoder that it may need.

        Raises:
            MissingEncoderError: Its encoder is not in the folder of the encoders.
            ModelFileError: It cannot be used.
            OSError: It cannot be read.
        """
        if config.workload.model:
            await asyncio.get_running_loop().run_in_executor(self._executor, _check, config)

    def configure(self, config: CollectorConfig) -> None:
        """Set other bounds, from the next question on."""
        self._config = config
        self._processes.configure(config.workers.pool(config.workload.processes))
        self._trainings.wake()

    async def run(self) -> None:
        """Look after the queue of trainings until cancelled."""
        await self._trainings.run()

    async def close(self) -> None:
        """End the processes that answer."""
        await self._processes.close()

    async def Predict(  # noqa: N802 - gRPC's name, as below
        self, request: workload_pb2.PredictRequest, context: Context
    ) -> workload_pb2.PredictResponse:
        """Estimate the duration of training iterations and epochs."""
        await self._check(context, [workload.graph for workload in request.workloads])
        try:
            hosts = await self._hosts(request.workloads)
            questions = check_workloads(request.workloads, hosts, self._gpus)
            answers = await self._ask("predict", questions)
            await self._queue_trainings(answers["answers"])
        except Exception as error:  # the client must get a status whatever happened
            await self._abort(context, error)
        return _filled(workload_pb2.PredictResponse(), answers)

    async def Embed(  # noqa: N802
        self, request: workload_pb2.EmbedRequest, context: Context
    ) -> workload_pb2.EmbedResponse:
        """Return graphs as vectors, with the known architectures most like them."""
        await self._check(context, request.graphs)
        try:
            more = {
                "dataset_type": _required_dataset_type(request.dataset_type),
                "nearest_count": _nearest_count(request.nearest_count),
            }
            answers = await self._ask("embed", check_graphs(request.graphs), more)
        except Exception as error:  # as above
            await self._abort(context, error)
        return _filled(workload_pb2.EmbedResponse(), answers)

    async def QueueTraining(  # noqa: N802
        self, request: workload_pb2.QueueTrainingRequest, context: Context
    ) -> workload_pb2.QueueTrainingResponse:
        """Queue the training of an embedding; the interceptor has seen that the caller is an admin."""
        try:
            name = _required_dataset_type(request.dataset_type)
            training = await self._blocking(lambda: self._trainings.queue.enqueue(name, again=request.again))
            self._trainings.wake()
        except Exception as error:  # as above
            await self._abort(context, error)
        return _filled(workload_pb2.QueueTrainingResponse(), {"training": training_document(training)})

    async def ListTrainings(  # noqa: N802
        self, request: workload_pb2.ListTrainingsRequest, context: Context
    ) -> workload_pb2.ListTrainingsResponse:
        """Return trainings, and the dataset types that there are embeddings for."""
        try:
            names = {_required_dataset_type(name) for name in request.dataset_types}
            found = await self._blocking(lambda: self._list_trainings(names))
        except Exception as error:  # as above
            await self._abort(context, error)
        return _filled(workload_pb2.ListTrainingsResponse(), found)

    async def DescribeCluster(  # noqa: N802
        self, request: workload_pb2.DescribeClusterRequest, context: Context
    ) -> workload_pb2.DescribeClusterResponse:
        """Return hosts, and what they have free."""
        loads = self._resources.loads()
        try:
            page = await self._blocking(lambda: self._describer.page(request, loads))
        except Exception as error:  # as above
            await self._abort(context, error)
        return _filled(workload_pb2.DescribeClusterResponse(), page)

    def _trainer_command(self, dataset_type: str) -> tuple[str, ...] | None:
        config = self._config
        if not config.workload.train or not has_torch():
            return None
        datasets = config.workload.datasets
        folder = Path(datasets).expanduser() if datasets else None
        return trainer_command(dataset_type, config.trainings, config.embeddings, folder)

    async def _ask(self, kind: str, questions: Questions, more: dict[str, Any] | None = None) -> dict[str, Any]:
        config = self._config
        began_s = time.monotonic()
        head = {
            **(more or {}),
            "model": config.model_file,
            "embeddings": str(config.embeddings),
            "max_operations": _MAX_OPERATIONS,
            "graph_time_limit_s": _GRAPH_TIME_LIMIT_S,
        }
        found = await self._processes.ask(kind, questions, head)
        self._counters.workload.observe(time.monotonic() - began_s)
        for answer in found["answers"]:
            self._counters.workload_answers[_status(answer)] += 1
        return found

    async def _hosts(self, workloads: Sequence[workload_pb2.Workload]) -> list[HostView]:
        ids = {agent_id for workload in workloads for agent_id in workload.cluster.agent_ids}
        names = {name for workload in workloads for name in workload.cluster.host_names}
        if not ids and not names:
            return []
        loads = self._resources.loads()
        return await self._blocking(lambda: self._resources.hosts(loads, ids, names))

    async def _queue_trainings(self, answers: Sequence[dict[str, Any]]) -> None:
        """Have embeddings trained that answers had to do without, and say so in them."""
        missing = [
            use
            for answer in answers
            if (use := (answer.get("prediction") or {}).get("embedding")) is not None and not use["available"]
        ]
        for name in {use["dataset_type"] for use in missing}:
            known = await self._blocking(functools.partial(self._trainings.enqueue_if_absent, name))
            for use in missing:
                if use["dataset_type"] == name:
                    use.update(known, note=f"{use['note']}; {known['note']}")
        if missing:
            self._trainings.wake()

    def _list_trainings(self, names: Collection[str]) -> dict[str, Any]:
        registry = self._registry()
        trainings = self._trainings.queue.trainings()
        encoders = [registry.get(name) for name in registry.dataset_types() if not names or name in names]
        return {
            "trainings": [training_document(each) for each in trainings if not names or each.dataset_type in names],
            "dataset_types": [
                {
                    "name": encoder.dataset_type,
                    "encoder_sha256": encoder.sha256,
                    "trained_steps": encoder.trained_steps,
                    "shipped": encoder.is_shipped,
                }
                for encoder in encoders
            ],
        }

    async def _blocking(self, work: Callable[[], _Value]) -> _Value:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def _check(self, context: Context, sources: Sequence[workload_pb2.GraphSource]) -> None:
        if self._processes.options.processes < 1:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                "this collector answers no questions about workloads (workload.processes = 0)",
            )
        max_request_bytes = self._config.workload.max_request_bytes
        if len(sources) > _MAX_QUESTIONS:
            self._counters.refused["workload_size"] += 1
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{len(sources)} questions in one request, {_MAX_QUESTIONS} are taken",
            )
        # Not ByteSize(), which writes the whole message to measure it.
        size = sum(len(source.graph.content) for source in sources)
        if size > max_request_bytes:
            self._counters.refused["workload_size"] += 1
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the request's graphs have {size} bytes, {max_request_bytes} are taken (workload.max_request_bytes)",
            )

    async def _abort(self, context: Context, error: Exception) -> NoReturn:
        text = str(error)
        if isinstance(error, RequestError):
            code = grpc.StatusCode[error.status]
            if error.reason:
                self._counters.refused[error.reason] += 1
        elif isinstance(error, WorkloadError):
            code = grpc.StatusCode.INVALID_ARGUMENT
            text = f"field {error.field!r}: {text}" if error.field else text
        elif isinstance(error, ChildBusyError):
            self._counters.refused["workload_busy"] += 1
            code = grpc.StatusCode.RESOURCE_EXHAUSTED
        elif isinstance(error, (EncoderError, StoreError, OSError)):
            _LOG.error("a question about workloads failed: %s", error)
            code = grpc.StatusCode.UNAVAILABLE
        else:
            _LOG.error("a question about workloads failed", exc_info=error)
            code, text = grpc.StatusCode.INTERNAL, f"{type(error).__name__}; see the collector's log"
        await context.abort(code, text)
        raise AssertionError  # abort raises


def _status(answer: dict[str, Any]) -> str:
    if error := answer.get("error"):
        return str(error["kind"])
    prediction = answer.get("prediction")
    return "out_of_distribution" if prediction and prediction["out_of_distribution"] else "ok"


def _required_dataset_type(name: str) -> str:
    if not name:
        raise WorkloadError(INVALID_REQUEST, "name one; 'ListTrainings' lists them", "dataset_type")
    return dataset_type(name)


def _nearest_count(count: int) -> int:
    if count > _MOST_NEIGHBOURS:
        raise WorkloadError(INVALID_REQUEST, f"{count}: at most {_MOST_NEIGHBOURS}", "nearest_count")
    return count


def _filled(response: _Response, document: dict[str, Any]) -> _Response:
    fill(response, document)  # type: ignore[arg-type]
    return response


def _check(config: CollectorConfig) -> None:
    # It brings what computes models, which this process does not need otherwise.
    from gpusonde.collector.workload.answering import load_model  # noqa: PLC0415

    load_model(config.model_file, config.embeddings)
