"""``check_workloads``: whether questions can be asked at all, before any process is bothered with them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gpusonde.catalog import GpuCatalog
from gpusonde.collector.messages import enum_text
from gpusonde.collector.query.prediction import resolve
from gpusonde.collector.workload.errors import (
    GRAPH_TOO_LARGE,
    INVALID_REQUEST,
    UNKNOWN_DEVICE,
    UNKNOWN_HOST,
    WorkloadError,
)
from gpusonde.collector.workload.hosts import HostView, least_resources, resource_document
from gpusonde.errors import EncoderError, RequestError
from gpusonde.predictor.workload.embedding import check_dataset_type
from gpusonde.predictor.workload.graph import GraphLimits
from gpusonde.workload.v1 import workload_pb2

_MOST_DEVICES = 100_000
_MOST_HOSTS = 10_000
_LARGEST_BATCH = 1 << 20
_MOST_SAMPLES = 1 << 50
_LONGEST_TEXT = 200
_MOST_NAMED = 5
_LARGEST_JSON_BYTES = GraphLimits().json_bytes


class Questions:
    """The graphs of a request, each once, and what is asked about them.

    Attributes:
        contents: Graphs as they came.
        graphs: Of each: its ``format`` and ``name``.
        rows: One per question: a document, or why there is none.
    """

    def __init__(self) -> None:
        self.contents: list[bytes] = []
        self.graphs: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any] | WorkloadError] = []
        self._known: dict[tuple[bytes, str, str], int] = {}
        self._indexes: list[int | WorkloadError] = []

    def add(self, source: workload_pb2.GraphSource, ask: Callable[[int], dict[str, Any]]) -> None:
        """Add a question; ``ask`` makes it, given the index of its graph."""
        index: int | WorkloadError
        try:
            index = self._find_or_add(source)
        except WorkloadError as error:
            index = error
        self._indexes.append(index)
        row: dict[str, Any] | WorkloadError
        try:
            row = index if isinstance(index, WorkloadError) else ask(index)
        except WorkloadError as error:
            row = error
        self.rows.append(row)

    def _find_or_add(self, source: workload_pb2.GraphSource) -> int:
        kind = source.WhichOneof("source")
        if kind is None:
            raise WorkloadError(INVALID_REQUEST, "give a graph", "graph")
        if kind == "same_as":
            if source.same_as >= len(self._indexes):
                text = f"{source.same_as} is no earlier element of the request"
                raise WorkloadError(INVALID_REQUEST, text, "graph.same_as")
            index = self._indexes[source.same_as]
            if isinstance(index, WorkloadError):
                raise WorkloadError(index.kind, str(index), index.field)
            return index
        graph = source.graph
        if not graph.content:
            raise WorkloadError(INVALID_REQUEST, "is empty", "graph.content")
        # No process need look at what its reader refuses unseen.
        if len(graph.content) > _LARGEST_JSON_BYTES and graph.content[:64].lstrip()[:1] == b"{":
            text = f"{len(graph.content)} bytes of JSON: at most {_LARGEST_JSON_BYTES} are accepted"
            raise WorkloadError(GRAPH_TOO_LARGE, text, "graph.content")
        key = graph.content, _choice(graph, "format", ""), _text(graph.name, "graph.name")
        index = self._known.get(key, -1)
        if index < 0:
            index = self._known[key] = len(self.contents)
            self.contents.append(graph.content)
            self.graphs.append({"format": key[1], "name": key[2]})
        return index


def check_workloads(
    workloads: Sequence[workload_pb2.Workload], hosts: Sequence[HostView], gpus: GpuCatalog
) -> Questions:
    """Turn workloads into questions.

    Args:
        workloads: What is asked.
        hosts: The hosts that they name, as far as they are known.
        gpus: Resolves names of devices.
    """
    questions = Questions()
    for workload in workloads:
        questions.add(workload.graph, functools.partial(_workload, workload, hosts=hosts, gpus=gpus))
    return questions


def check_graphs(sources: Iterable[workload_pb2.GraphSource]) -> Questions:
    """Turn graphs about which nothing else is asked into questions."""
    questions = Questions()
    for source in sources:
        questions.add(source, lambda index: {"graph": index})
    return questions


def _workload(
    workload: workload_pb2.Workload, graph: int, hosts: Sequence[HostView], gpus: GpuCatalog
) -> dict[str, Any]:
    if not 1 <= workload.batch_size <= _LARGEST_BATCH:
        raise WorkloadError(
            INVALID_REQUEST,
            f"{workload.batch_size}: must be 1 to {_LARGEST_BATCH} samples per device",
            "batch_size",
        )
    samples = workload.samples_per_epoch if workload.HasField("samples_per_epoch") else None
    if samples is not None and not 1 <= samples <= _MOST_SAMPLES:
        raise WorkloadError(INVALID_REQUEST, f"{samples}: must be at least 1, or unset", "samples_per_epoch")
    return {
        "graph": graph,
        "batch_size": workload.batch_size,
        "cluster": _cluster(workload.cluster, hosts, gpus),
        "dataset_type": dataset_type(workload.dataset_type) if workload.dataset_type else None,
        "regressor": _choice(workload, "regressor", ""),
        "optimizer": _choice(workload, "optimizer", "adamw"),
        "samples_per_epoch": samples,
    }


def _cluster(cluster: workload_pb2.Cluster, hosts: Sequence[HostView], gpus: GpuCatalog) -> dict[str, Any]:
    if cluster.agent_ids or cluster.host_names:
        named = _named_hosts(cluster, hosts)
        device, most, notes = _device_of(named, cluster.device, gpus)
        count = cluster.device_count or most
        if count > most:
            raise WorkloadError(
                UNKNOWN_DEVICE, f"{count} devices of {device}: the hosts have {most}", "cluster.device_count"
            )
        if cluster.node_count not in (0, len(named)):
            raise WorkloadError(INVALID_REQUEST, "leave it unset with hosts", "cluster.node_count")
        nodes = min(len(named), count)
        host = least_resources([each.available() for each in named])
    else:
        named, host = [], None
        device, notes = _device(cluster.device, gpus)
        count, nodes = cluster.device_count or 1, cluster.node_count or 1
    if count > _MOST_DEVICES:
        raise WorkloadError(INVALID_REQUEST, f"{count}: at most {_MOST_DEVICES}", "cluster.device_count")
    if not 1 <= nodes <= min(count, _MOST_HOSTS):
        raise WorkloadError(
            INVALID_REQUEST, f"{nodes} hosts for {count} devices: each has one at least", "cluster.node_count"
        )
    parallelism = _choice(cluster, "parallelism", "none" if count == 1 else "distributed")
    if count > 1 and parallelism == "none":
        raise WorkloadError(INVALID_REQUEST, f"{count} devices cannot share a job by it", "cluster.parallelism")
    return {
        "device": device,
        "device_count": count,
        "node_count": nodes,
        "precision": _choice(cluster, "precision", "fp32"),
        "parallelism": parallelism,
        "environment": _text(cluster.environment, "cluster.environment") or None,
        "link": _text(cluster.link, "cluster.link"),
        "network_bytes_per_second": cluster.network_bytes_per_second,
        "agent_ids": [each.agent_id for each in named],
        "host": None if host is None else resource_document(host),
        "notes": notes,
    }


def _device(name: str, gpus: GpuCatalog) -> tuple[str, list[str]]:
    """Return the canonical name of a device, and what was assumed about it."""
    if not name:
        raise WorkloadError(INVALID_REQUEST, "name a device, or hosts that have one", "cluster.device")
    try:
        found = resolve(gpus, _text(name, "cluster.device"), with_slices=True)
    except RequestError as error:
        code = UNKNOWN_DEVICE if error.status == "NOT_FOUND" else INVALID_REQUEST
        raise WorkloadError(code, str(error), "cluster.device") from None
    return found.spec.name, [f"{name}: {found.note}"] if found.note else []


def _device_of(hosts: Sequence[HostView], wanted: str, gpus: GpuCatalog) -> tuple[str, int, list[str]]:
    """Return the device model that hosts have, or that was asked for, how many there are, and what was assumed."""
    name, notes = _device(wanted, gpus) if wanted else ("", [])
    counts: dict[str, int] = {}
    for host in hosts:
        for device in host.devices:
            if device.spec is not None and not device.described.mig_uuid:
                counts[device.spec.name] = counts.get(device.spec.name, 0) + 1
    if name:
        counts = {name: counts[name]} if name in counts else {}
    if not counts:
        what = name or "device of the catalogue"
        raise WorkloadError(UNKNOWN_DEVICE, f"the hosts have no {what}", "cluster.device")
    if len(counts) > 1:
        text = f"the hosts have several models: say which of {', '.join(sorted(counts))}"
        raise WorkloadError(UNKNOWN_DEVICE, text, "cluster.device")
    ((model, count),) = counts.items()
    silent = [host.agent_id for host in hosts if not host.connected]
    untold = [host.agent_id for host in hosts if host.connected and host.load is None]
    if silent:
        notes = [*notes, f"not streaming now, and taken for idle: {', '.join(silent[:_MOST_NAMED])}"]
    if untold:
        notes = [
            *notes,
            f"their load is not told, so that they are taken for idle: {', '.join(untold[:_MOST_NAMED])}",
        ]
    return model, count, notes


def dataset_type(name: str) -> str:
    """Return the name of a dataset type.

    Raises:
        WorkloadError: It is none.
    """
    try:
        return check_dataset_type(name)
    except EncoderError as error:
        raise WorkloadError(INVALID_REQUEST, str(error), "dataset_type") from None


def _named_hosts(cluster: workload_pb2.Cluster, hosts: Sequence[HostView]) -> list[HostView]:
    """Return the hosts that a cluster names, those of an id before those of a name; of one machine, one."""
    by_id: Mapping[str, HostView] = {host.agent_id: host for host in hosts}
    found: dict[str, HostView] = {}
    for agent_id in cluster.agent_ids:
        if agent_id not in by_id:
            raise WorkloadError(
                UNKNOWN_HOST, f"there is no agent {agent_id[:_LONGEST_TEXT]!r} here", "cluster.agent_ids"
            )
        found[agent_id] = by_id[agent_id]
    for name in cluster.host_names:
        # An agent that was set up anew has another id; the one that streams is the one that is there.
        agents = sorted(
            (host for host in hosts if host.host.host_name == name),
            key=lambda host: (not host.connected, host.agent_id),
        )
        if not agents:
            raise WorkloadError(UNKNOWN_HOST, f"there is no host {name[:_LONGEST_TEXT]!r} here", "cluster.host_names")
        found[agents[0].agent_id] = agents[0]
    return list(found.values())


def _choice(message: Any, name: str, default: str) -> str:
    """Return an enumeration as the lower-case text of its value, or the default when it is not set."""
    value = getattr(message, name)
    if not value:
        return default
    text = enum_text(message, name)
    if text is None:
        raise WorkloadError(INVALID_REQUEST, f"{value} is none that this collector knows; update it", name)
    return text


def _text(text: str, name: str) -> str:
    if len(text) > _LONGEST_TEXT or not text.isprintable():
        raise WorkloadError(INVALID_REQUEST, f"must be printable and of at most {_LONGEST_TEXT} characters", name)
    return text
