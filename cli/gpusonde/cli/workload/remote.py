"""What a collector answers: steps of networks, on any GPUs or on the hosts of its agents, and embeddings.

It gets graphs as JSON, whatever files they come from: no weights leave here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpusonde import formatting
from gpusonde.cli.connection import client_security
from gpusonde.cli.workload.answers import StepPayload, StepsPayload, row, unanswered
from gpusonde.cli.workload.sources import read_graphs
from gpusonde.errors import CommandError

if TYPE_CHECKING:
    from gpusonde.collector.client import WorkloadClient
    from gpusonde.predictor.workload.engine import WorkloadPrediction, WorkloadRequest
    from gpusonde.predictor.workload.graph import WorkloadGraph


# A GPU that does less is taken for idle: drivers and monitoring touch it now and then.
_BUSY_RATIO = 0.05


def predict_there(args: argparse.Namespace, requests: Sequence[WorkloadRequest], notes: list[str]) -> StepsPayload:
    """Return a collector's answers to requests, as they are printed."""
    # One object for each graph: it is sent once.
    sent = {id(request.graph): to_sent(request.graph) for request in requests}
    workloads = [
        {
            "graph": sent[id(request.graph)],
            "batch_size": request.batch_size,
            "cluster": _cluster(request),
            **_question_options(args),
        }
        for request in requests
    ]
    with open_client(args) as client:
        answers = client.predict(workloads)
    rows = [
        row(request, _prediction(answer["prediction"]), args.samples_per_epoch, _error(answer))
        for request, answer in zip(requests, answers, strict=True)
    ]
    return _payload([*notes, *_note_embeddings(answers)], rows)


def predict_for_hosts(args: argparse.Namespace) -> StepsPayload:
    """Return a collector's answers for hosts of its agents, with what is free of them, as they are printed."""
    graphs = read_graphs(args.graphs)
    asked = [
        (graph, size, device, count)
        for graph in graphs
        for device in args.target_gpus or [""]
        for count in args.gpus or [0]
        for size in args.batch_size
    ]
    sent = {id(graph): to_sent(graph) for graph in graphs}
    workloads = [
        {
            "graph": sent[id(graph)],
            "batch_size": size,
            "cluster": _make_cluster(args, device, count),
            **_question_options(args),
        }
        for graph, size, device, count in asked
    ]
    with open_client(args) as client:
        answers = client.predict(workloads)
        found = [answer["prediction"]["cluster"] for answer in answers if answer["prediction"] is not None]
        agent_ids = sorted({agent_id for cluster in found for agent_id in cluster["agent_ids"]})
        hosts = client.hosts(agent_ids=agent_ids) if agent_ids else []
    devices = {cluster["device"] for cluster in found}
    notes = [f"{graph.name}: {note}" for graph in graphs for note in graph.notes]
    notes += [note for cluster in found for note in cluster["notes"]]
    notes += _note_free_resources(found, hosts) + _note_busy_gpus(hosts, devices)
    rows = [_make_row(args, graph, size, answer) for (graph, size, _, _), answer in zip(asked, answers, strict=True)]
    return _payload([*notes, *_note_embeddings(answers)], rows)


def open_client(args: argparse.Namespace) -> WorkloadClient:
    """Connect to the collector that the command names."""
    from gpusonde.collector.client import WorkloadClient

    return WorkloadClient(args.collector, security=client_security(args))


def to_sent(graph: WorkloadGraph) -> dict[str, Any]:
    """Put a graph into the form in which it is sent."""
    from gpusonde.predictor.workload.graph import dump_graph

    return {"content": dump_graph(graph).encode(), "format": "json"}


def _payload(notes: Iterable[str], rows: list[StepPayload]) -> StepsPayload:
    return {"model_version": None, "notes": list(dict.fromkeys(notes)), "predictions": rows, "exchange_rates": None}


def _question_options(args: argparse.Namespace) -> dict[str, Any]:
    wishes = {
        "regressor": args.regressor,
        "dataset_type": args.dataset_type,
        "samples_per_epoch": args.samples_per_epoch,
        "optimizer": args.optimizer,
    }
    return {key: value for key, value in wishes.items() if value is not None}


def _cluster(request: WorkloadRequest) -> dict[str, Any]:
    cluster = request.cluster
    return {
        "device": cluster.device,
        "device_count": cluster.device_count,
        "node_count": cluster.node_count,
        "precision": cluster.precision.value,
        "parallelism": cluster.parallelism.value,
        "link": cluster.link,
        "network_bytes_per_second": cluster.network_bytes_per_second,
        **({} if cluster.environment is None else {"environment": cluster.environment}),
    }


def _make_cluster(args: argparse.Namespace, device: str, count: int) -> dict[str, Any]:
    wishes = {
        "device": device,
        "device_count": count,
        "parallelism": args.parallelism if count != 1 else None,
        "environment": args.environment,
    }
    return {
        "host_names": args.hosts,
        "precision": args.precision,
        **{key: value for key, value in wishes.items() if value},
    }


def _make_row(
    args: argparse.Namespace, graph: WorkloadGraph, batch_size: int, answer: Mapping[str, Any]
) -> StepPayload:
    from gpusonde.catalog import Precision
    from gpusonde.predictor.workload.engine import Cluster, HostResources, Optimizer, Parallelism, WorkloadRequest

    if answer["prediction"] is None:
        return unanswered(graph.name, batch_size, args.precision, _error(answer))
    found = answer["prediction"]["cluster"]
    cluster = Cluster(
        found["device"],
        found["device_count"],
        found["node_count"],
        Precision(found["precision"]),
        Parallelism(found["parallelism"]),
        host=None if found["host"] is None else HostResources(**found["host"]),
    )
    request = WorkloadRequest(graph, batch_size, cluster, Optimizer(args.optimizer))
    return row(request, _prediction(answer["prediction"]), args.samples_per_epoch, agent_ids=found["agent_ids"])


def _note_free_resources(clusters: Sequence[Mapping[str, Any]], hosts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the prediction reckons with."""
    names = {host["agent_id"]: host["host"]["host_name"] for host in hosts}
    return [
        f"{', '.join(names.get(each, each) for each in cluster['agent_ids'])}: reckoned with"
        f" {formatting.number(cluster['host']['cores'])} free cores and"
        f" {formatting.gibibytes(cluster['host']['memory_bytes'])} of free memory"
        + (" each, as the weakest has" if len(cluster["agent_ids"]) > 1 else "")
        for cluster in clusters
        if cluster["host"] is not None
    ]


def _note_busy_gpus(hosts: Sequence[Mapping[str, Any]], devices: set[str]) -> list[str]:
    notes = []
    for host in hosts:
        ratios = [each["busy_ratio"] or 0.0 for each in host["devices"] if each["device"] in devices]
        busy = sum(ratio > _BUSY_RATIO for ratio in ratios)
        if busy:
            notes.append(
                f"{host['host']['host_name']}: {busy} of {formatting.count(len(ratios), 'GPU')} worked in the last "
                "minute; predicted is a job that has them for itself"
            )
    return notes


def _note_embeddings(answers: Sequence[Mapping[str, Any]]) -> list[str]:
    uses = [answer["prediction"]["embedding"] for answer in answers if answer["prediction"] is not None]
    return [use["note"] for use in uses if use is not None and use["note"]]


def take_answers(
    answers: Sequence[Mapping[str, Any]], graphs: Sequence[WorkloadGraph], what: str
) -> list[Mapping[str, Any]]:
    """Return that key of every answer.

    Raises:
        CommandError: A graph was refused; the message names it.
    """
    for graph, answer in zip(graphs, answers, strict=True):
        if answer["error"] is not None:
            text = answer["error"]["text"]
            raise CommandError(text if answer["error"]["kind"] == "no_embedding" else f"{graph.name}: {text}")
    return [answer[what] for answer in answers]


def _error(answer: Mapping[str, Any]) -> str | None:
    return None if answer["error"] is None else str(answer["error"]["text"])


def _prediction(found: Mapping[str, Any] | None) -> WorkloadPrediction | None:
    from gpusonde.predictor.workload.engine import MemoryFit, WorkloadPrediction

    if found is None:
        return None
    seconds = found["iteration_seconds"]
    return WorkloadPrediction(
        seconds["value"],
        seconds["low"],
        seconds["high"],
        found["coverage"],
        found["regressor"],
        found["features"],
        found["out_of_distribution"],
        tuple(found["reasons"]),
        tuple((near["name"], near["similarity"]) for near in found["nearest"]),
        None if found["memory"] is None else MemoryFit.from_document(found),
        found["communication_ratio"],
    )
