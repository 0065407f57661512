"""``WorkloadClient``: questions about networks' graphs to a collector; requests and answers are documents."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from gpusonde.collector.client.connection import ServiceClient
from gpusonde.collector.messages import fill, to_document
from gpusonde.workload.v1 import workload_pb2, workload_pb2_grpc

_PAGE_SIZE = 100
_MOST_QUESTIONS = 500
_MOST_GRAPH_BYTES = 4 << 20
_Question = TypeVar("_Question", bound="Mapping[str, Any]")


class WorkloadClient(ServiceClient):
    """Asks one collector about graphs.

    Documents have the names of the fields of ``gpusonde.workload.v1``; enumerations are lower-case texts, times Unix
    seconds. A graph is ``{"content": bytes}``, with ``format`` ("json", "onnx" or "pt2") and ``name`` where wanted.
    """

    usual_timeout_s = 300.0
    _stub_type = workload_pb2_grpc.WorkloadServiceStub

    def predict(self, workloads: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return how long training iterations take, and epochs.

        Args:
            workloads: Documents with ``graph``, ``batch_size``, ``cluster`` and, where wanted, ``dataset_type``,
                ``regressor`` and ``samples_per_epoch``. Graphs that are the same object are sent once; any number,
                which is sent in several requests where it is large.

        Returns:
            One document per workload: ``prediction`` or ``error``, the other being None.

        Raises:
            CollectorError: There is no answer to the request as a whole.
        """
        answers: list[dict[str, Any]] = []
        for part in _parts(workloads, lambda workload: workload["graph"]):
            request = workload_pb2.PredictRequest()
            sent: dict[int, int] = {}
            for place, workload in enumerate(part):
                message = request.workloads.add()
                fill(message, {key: value for key, value in workload.items() if key != "graph"})
                _fill_graph(message.graph, workload["graph"], sent, place)
            answers += [
                to_document(answer, every_key=True) for answer in self._ask(self._stub.Predict, request).answers
            ]
        return answers

    def embed(self, graphs: Sequence[Mapping[str, Any]], dataset_type: str, nearest_count: int = 0) -> dict[str, Any]:
        """Return graphs as vectors, with the known architectures most like them.

        Returns:
            ``answers``, each with ``embedding`` or ``error``, ``encoder_sha256`` and ``trained_steps``.

        Raises:
            CollectorError: As for ``predict``.
        """
        request = workload_pb2.EmbedRequest(dataset_type=dataset_type, nearest_count=nearest_count)
        found: dict[str, Any] = {"answers": [], "encoder_sha256": "", "trained_steps": None}
        for part in _parts(graphs, lambda graph: graph):
            del request.graphs[:]
            more = to_document(self._ask(self._stub.Embed, _with_graphs(request, part)), every_key=True)
            found = {**more, "answers": found["answers"] + more["answers"]}
        return found

    def queue_training(self, dataset_type: str, *, again: bool = False) -> dict[str, Any]:
        """Queue the training of an embedding, and return it; for admins.

        Raises:
            CollectorError: The caller is no admin, or the queue is full.
        """
        request = workload_pb2.QueueTrainingRequest(dataset_type=dataset_type, again=again)
        return to_document(self._ask(self._stub.QueueTraining, request).training, every_key=True)

    def trainings(self, dataset_types: Sequence[str] = ()) -> dict[str, Any]:
        """Return the trainings of embeddings, and what there are embeddings for.

        Args:
            dataset_types: Only these; all where none is named.

        Returns:
            ``trainings``, newest first, and ``dataset_types`` by name.

        Raises:
            CollectorError: There is no answer.
        """
        request = workload_pb2.ListTrainingsRequest(dataset_types=dataset_types)
        return to_document(self._ask(self._stub.ListTrainings, request), every_key=True)

    def hosts(self, *, agent_ids: Sequence[str] = (), host_names: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return the hosts that agents run on and what they have free; without names, all of them.

        Raises:
            CollectorError: There is no answer.
        """
        request = workload_pb2.DescribeClusterRequest(agent_ids=agent_ids, host_names=host_names)
        read = functools.partial(to_document, every_key=True)
        return self._list(self._stub.DescribeCluster, request, "hosts", read, page_size=_PAGE_SIZE)


def _with_graphs(request: Any, graphs: Sequence[Mapping[str, Any]]) -> Any:
    sent: dict[int, int] = {}
    for place, graph in enumerate(graphs):
        _fill_graph(request.graphs.add(), graph, sent, place)
    return request


def _fill_graph(source: workload_pb2.GraphSource, graph: Mapping[str, Any], sent: dict[int, int], place: int) -> None:
    if (earlier := sent.setdefault(id(graph), place)) != place:
        source.same_as = earlier
    else:
        fill(source, {"graph": graph})


def _parts(
    questions: Sequence[_Question], graph_of: Callable[[_Question], Mapping[str, Any]]
) -> Iterator[list[_Question]]:
    """Cut questions into requests that a collector takes by its defaults; a graph that is larger has one to itself."""
    part: list[_Question] = []
    size, seen = 0, set[int]()
    for question in questions:
        graph = graph_of(question)
        added = 0 if id(graph) in seen else len(graph["content"])
        if part and (len(part) >= _MOST_QUESTIONS or size + added > _MOST_GRAPH_BYTES):
            yield part
            part, size, seen = [], 0, set()
            added = len(graph["content"])
        part.append(question)
        size += added
        seen.add(id(graph))
    if part:
        yield part
