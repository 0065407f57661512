"""What a collector answers: steps of networks, on any GPUs or on the hosts of its agents, and embeddings.

It gets graphs as JSON, whatever files they come from: no weights leave here.

``gpusonde workload hosts``: the hosts that a collector's agents run on, and what they have free.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from gpusonde.cli import formatting
from gpusonde.cli.connection import add_collector_options, client_security
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser, names
from gpusonde.cli.workload.answers import StepPayload, StepsPayload, doubts_about_memory, row, unanswered
from gpusonde.cli.workload.sources import read_graphs
from gpusonde.errors import CommandError

if TYPE_CHECKING:
    from gpusonde.cli.workload.embed import EmbedPayload
    from gpusonde.collector.client import WorkloadClient
    from gpusonde.predictor.workload.engine import WorkloadPrediction, WorkloadRequest
    from gpusonde.predictor.workload.graph import WorkloadGraph


class HostGpuPayload(TypedDict):
    """A GPU of a host."""

    gpu_uuid: Annotated[str, JsonKey("the GPU")]
    product_name: Annotated[str, JsonKey("as the driver calls it")]
    gpu_model: Annotated[str | None, JsonKey("as the catalogue does")]
    memory_bytes: Annotated[int | None, JsonKey("its memory")]
    busy: Annotated[float | None, JsonKey("share of the last minute in which it worked", "ratio")]
    free_memory_bytes: Annotated[float | None, JsonKey("mean over the last minute")]
    flops: Annotated[float | None, JsonKey("its peak, single precision", "per second")]
    free_flops: Annotated[float | None, JsonKey("what is not busy of it", "per second")]


class HostPayload(TypedDict):
    """A host of an agent, and what is free of it; null where nobody knows."""

    agent_id: Annotated[str, JsonKey("the agent")]
    host_name: Annotated[str, JsonKey("its host")]
    connected: Annotated[bool, JsonKey("whether the agent streams to this collector now")]
    cpu_model: Annotated[str, JsonKey("its processor")]
    cores: Annotated[int, JsonKey("cores")]
    memory_bytes: Annotated[int, JsonKey("memory")]
    disk_bytes: Annotated[int, JsonKey("size of the disk that the agent keeps its files on")]
    cpu_flops: Annotated[float | None, JsonKey("peak of all cores, single precision", "per second")]
    load_time: Annotated[str | None, JsonKey("when the agent last told what the host does")]
    cpu_busy: Annotated[float | None, JsonKey("share of the processors' time in use", "ratio")]
    free_disk_bytes: Annotated[int | None, JsonKey("free space of that disk")]
    free_cores: Annotated[float | None, JsonKey("cores that are not in use")]
    free_memory_bytes: Annotated[float | None, JsonKey("free memory")]
    free_disk_throughput: Annotated[
        float | None, JsonKey("free throughput of the disks, once they had to do", "bytes per second")
    ]
    free_cpu_flops: Annotated[float | None, JsonKey("FLOPS of the free cores", "per second")]
    gpus: Annotated[list[HostGpuPayload], JsonKey("its GPUs")]


class HostsPayload(TypedDict):
    """What ``gpusonde workload hosts`` prints."""

    hosts: Annotated[list[HostPayload], JsonKey("the hosts")]


def add_hosts_options(parser: Parser) -> None:
    """Declare ``gpusonde workload hosts``."""
    parser.description = (
        "List the hosts that a collector's agents run on, with their GPUs and what is free of cores, memory, disk and "
        "FLOPS: what a prediction for these hosts reckons with."
    )
    parser.add_argument("hosts", nargs="*", metavar="HOST", help="only these, by name (default: all)")
    parser.add_argument("--agents", type=names, default=[], metavar="A,B", help="and those of these agents")
    add_collector_options(parser)


def run_hosts(args: argparse.Namespace) -> int:
    """Ask and print."""
    from gpusonde.collector.client import WorkloadClient

    with WorkloadClient(args.collector, security=client_security(args)) as client:
        found = client.hosts(host_names=args.hosts, agent_ids=args.agents)
    payload: HostsPayload = {"hosts": [_host(host) for host in found]}
    Output(as_json=args.json).result(
        payload, lambda screen: _render(screen, payload["hosts"], named=bool(args.hosts or args.agents))
    )
    return 0


def _host(found: Mapping[str, Any]) -> HostPayload:
    host, load, free = found["host"], found["load"] or {}, found["available"]
    return {
        "agent_id": found["agent_id"],
        "host_name": host["host_name"],
        "connected": found["connected"],
        "cpu_model": host["cpu_model"],
        "cores": host["cpu_core_count"] or host["cpu_count"],
        "memory_bytes": host["memory_bytes"],
        "disk_bytes": host["disk_bytes"],
        "cpu_flops": host["cpu_flops"] or None,
        "load_time": None if found["load_time"] is None else formatting.iso_time(round(found["load_time"] * 1e9)),
        "cpu_busy": load.get("cpu_busy_ratio"),
        "free_disk_bytes": load.get("free_disk_bytes"),
        "free_cores": free["cores"],
        "free_memory_bytes": free["memory_bytes"],
        "free_disk_throughput": free["disk_bytes_per_second"],
        "free_cpu_flops": free["flops"],
        "gpus": [_gpu(device) for device in found["devices"]],
    }


def _gpu(device: Mapping[str, Any]) -> HostGpuPayload:
    return {
        "gpu_uuid": device["gpu_uuid"],
        "product_name": device["product_name"],
        "gpu_model": device["device"] or None,
        "memory_bytes": device["memory_bytes"],
        "busy": device["busy_ratio"],
        "free_memory_bytes": device["free_memory_bytes"],
        "flops": device["flops"],
        "free_flops": device["available_flops"],
    }


def _render(screen: Screen, hosts: Sequence[HostPayload], *, named: bool) -> None:
    if not hosts:
        screen.line(f"the collector knows no {'such ' if named else ''}host")
        return
    screen.table(
        ("host", "agent", "GPUs", "free cores", "of", "free memory", "of", "streams"),
        [
            (
                host["host_name"],
                host["agent_id"],
                _gpus(host["gpus"]),
                formatting.number(host["free_cores"]),
                str(host["cores"]),
                formatting.gibibytes(host["free_memory_bytes"]),
                formatting.gibibytes(host["memory_bytes"]),
                formatting.yes_no(host["connected"]),
            )
            for host in hosts
        ],
        numeric=("free cores", "of", "free memory"),
    )


def _gpus(gpus: Sequence[HostGpuPayload]) -> str:
    counts: dict[str, int] = {}
    for gpu in gpus:
        name = gpu["gpu_model"] or gpu["product_name"]
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} x {name}" for name, count in counts.items()) or "none"


# A GPU that does less is taken for idle: drivers and monitoring touch it now and then.
_BUSY_RATIO = 0.05


def predicted_there(args: argparse.Namespace, requests: Sequence[WorkloadRequest], notes: list[str]) -> StepsPayload:
    """Return a collector's answers to requests, as they are printed."""
    # One object for each graph: it is sent once.
    sent = {id(request.graph): _sent(request.graph) for request in requests}
    workloads = [
        {
            "graph": sent[id(request.graph)],
            "batch_size": request.batch_size,
            "cluster": _cluster(request),
            **_wishes(args),
        }
        for request in requests
    ]
    with _client(args) as client:
        answers = client.predict(workloads)
    rows = [
        row(request, _prediction(answer["prediction"]), args.samples_per_epoch, _error(answer))
        for request, answer in zip(requests, answers, strict=True)
    ]
    return _payload([*notes, *_of_embeddings(answers)], rows)


def predicted_for_hosts(args: argparse.Namespace) -> StepsPayload:
    """Return a collector's answers for hosts of its agents, with what is free of them, as they are printed."""
    from gpusonde.catalog import load_gpus

    graphs = read_graphs(args.graphs)
    asked = [
        (graph, size, device, count)
        for graph in graphs
        for device in args.device or [""]
        for count in args.devices or [0]
        for size in args.batch_size
    ]
    sent = {id(graph): _sent(graph) for graph in graphs}
    workloads = [
        {
            "graph": sent[id(graph)],
            "batch_size": size,
            "cluster": _cluster_of_hosts(args, device, count),
            **_wishes(args),
        }
        for graph, size, device, count in asked
    ]
    with _client(args) as client:
        answers = client.predict(workloads)
        found = [answer["prediction"]["cluster"] for answer in answers if answer["prediction"] is not None]
        agent_ids = sorted({agent_id for cluster in found for agent_id in cluster["agent_ids"]})
        hosts = client.hosts(agent_ids=agent_ids) if agent_ids else []
    gpus = load_gpus()
    devices = {cluster["device"] for cluster in found}
    notes = [f"{graph.name}: {note}" for graph in graphs for note in graph.notes]
    notes += [note for cluster in found for note in cluster["notes"]]
    notes += _of_free(found, hosts) + _of_busy_gpus(hosts, devices)
    notes += doubts_about_memory(graphs, [gpus.get(name) for name in sorted(devices)], max(args.batch_size))
    rows = [
        _row_of_hosts(args, graph, size, answer) for (graph, size, _, _), answer in zip(asked, answers, strict=True)
    ]
    return _payload([*notes, *_of_embeddings(answers)], rows)


def embedded_there(args: argparse.Namespace, graphs: Sequence[WorkloadGraph], nearest: int) -> EmbedPayload:
    """Return a collector's embeddings of graphs, and the known networks most like them, as they are printed.

    Raises:
        CommandError: It has no encoder for this type of data, or refuses a graph.
    """
    sent = [_sent(graph) for graph in graphs]
    with _client(args) as client:
        embedded = client.embed(sent, args.dataset_type, nearest)
    return {
        "dataset_type": args.dataset_type,
        "encoder_sha256": embedded["encoder_sha256"],
        "trained_steps": embedded["trained_steps"],
        "graphs": [
            {
                "graph": graph.name,
                "embedding": found["values"],
                "nearest": [
                    {"architecture": each["name"], "family": each["family"], "similarity": each["similarity"]}
                    for each in found["nearest"]
                ],
            }
            for graph, found in zip(graphs, _answered(embedded["answers"], graphs, "embedding"), strict=True)
        ],
    }


def _client(args: argparse.Namespace) -> WorkloadClient:
    from gpusonde.collector.client import WorkloadClient

    return WorkloadClient(args.collector, security=client_security(args))


def _sent(graph: WorkloadGraph) -> dict[str, Any]:
    from gpusonde.predictor.workload.graph import dump_graph

    return {"content": dump_graph(graph).encode(), "format": "json"}


def _payload(notes: Iterable[str], rows: list[StepPayload]) -> StepsPayload:
    return {"model_version": None, "notes": list(dict.fromkeys(notes)), "predictions": rows}


def _wishes(args: argparse.Namespace) -> dict[str, Any]:
    wishes = {
        "regressor": args.regressor,
        "dataset_type": args.dataset_type,
        "samples_per_epoch": args.samples_per_epoch,
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
        **({} if cluster.environment is None else {"environment": cluster.environment}),
    }


def _cluster_of_hosts(args: argparse.Namespace, device: str, count: int) -> dict[str, Any]:
    wishes = {
        "device": device,
        "device_count": count,
        "parallelism": args.parallelism if count != 1 else None,
        "environment": args.environment,
    }
    return {
        "host_names": args.hosts,
        "agent_ids": args.agents,
        "precision": args.precision,
        **{key: value for key, value in wishes.items() if value},
    }


def _row_of_hosts(
    args: argparse.Namespace, graph: WorkloadGraph, batch_size: int, answer: Mapping[str, Any]
) -> StepPayload:
    from gpusonde.predictor.workload.engine import Cluster, HostResources, Parallelism, Precision, WorkloadRequest

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
    request = WorkloadRequest(graph, batch_size, cluster)
    return row(request, _prediction(answer["prediction"]), args.samples_per_epoch, agent_ids=found["agent_ids"])


def _of_free(clusters: Sequence[Mapping[str, Any]], hosts: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the prediction reckons with."""
    names = {host["agent_id"]: host["host"]["host_name"] for host in hosts}
    return [
        f"{', '.join(names.get(each, each) for each in cluster['agent_ids'])}: reckoned with"
        f" {formatting.number(cluster['host']['cores'])} free cores and"
        f" {formatting.gibibytes(cluster['host']['memory_bytes'])} of free memory"
        + (" each, as the weakest has" if len(cluster["agent_ids"]) > 1 else "")
        for cluster in clusters
        if cluster["host"] is not None
    ]


def _of_busy_gpus(hosts: Sequence[Mapping[str, Any]], devices: set[str]) -> list[str]:
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


def _of_embeddings(answers: Sequence[Mapping[str, Any]]) -> list[str]:
    uses = [answer["prediction"]["embedding"] for answer in answers if answer["prediction"] is not None]
    return [use["note"] for use in uses if use is not None and use["note"]]


def _answered(
    answers: Sequence[Mapping[str, Any]], graphs: Sequence[WorkloadGraph], what: str
) -> list[Mapping[str, Any]]:
    for graph, answer in zip(graphs, answers, strict=True):
        if answer["error"] is not None:
            text = answer["error"]["text"]
            raise CommandError(text if answer["error"]["kind"] == "no_embedding" else f"{graph.name}: {text}")
    return [answer[what] for answer in answers]


def _error(answer: Mapping[str, Any]) -> str | None:
    return None if answer["error"] is None else str(answer["error"]["text"])


def _prediction(found: Mapping[str, Any] | None) -> WorkloadPrediction | None:
    from gpusonde.predictor.workload.engine import WorkloadPrediction

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
    )
