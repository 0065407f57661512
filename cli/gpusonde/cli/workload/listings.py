"""``gpusonde fleet hosts`` and ``gpusonde fleet trainings``: what a collector tells of its hosts and trainings."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict

from gpusonde.cli import formatting
from gpusonde.cli.connection import client_security
from gpusonde.cli.output import JsonKey, Output, Screen


class HostGpuPayload(TypedDict):
    """A GPU of a host."""

    gpu_uuid: str
    product_name: Annotated[str, JsonKey("the driver's name")]
    gpu_model: str | None
    memory_bytes: int | None
    busy: Annotated[float | None, JsonKey("share of the last minute")]
    free_memory_bytes: Annotated[float | None, JsonKey("mean over the last minute")]
    flops: Annotated[float | None, JsonKey("peak, single precision", "per second")]
    free_flops: Annotated[float | None, JsonKey("not busy", "per second")]


class HostPayload(TypedDict):
    """A host of an agent, and what is free of it; null where nobody knows."""

    agent_id: str
    host_name: str
    connected: bool
    cpu_model: str
    cores: int
    memory_bytes: int
    disk_bytes: Annotated[int, JsonKey("of the disk with the agent's files")]
    cpu_flops: Annotated[float | None, JsonKey("peak of all cores, single precision", "per second")]
    load_time: Annotated[str | None, JsonKey("of the agent's latest report")]
    cpu_busy: Annotated[float | None, JsonKey("share of the processors' time")]
    free_disk_bytes: Annotated[int | None, JsonKey("of the disk with the agent's files")]
    free_cores: float | None
    free_memory_bytes: float | None
    free_disk_throughput: Annotated[float | None, JsonKey("once the disks had to do", "bytes per second")]
    free_cpu_flops: Annotated[float | None, JsonKey("of the free cores", "per second")]
    gpus: list[HostGpuPayload]


class HostsPayload(TypedDict):
    """What ``gpusonde fleet hosts`` prints."""

    hosts: list[HostPayload]


class QueuedTrainingPayload(TypedDict):
    """A training that a collector has queued."""

    dataset_type: str
    state: Annotated[str, JsonKey("`queued`, `running`, `done` or `failed`")]
    reason: Annotated[str | None, JsonKey("of a failure")]
    queued_time: str | None
    started_time: Annotated[str | None, JsonKey("the latest time")]
    ended_time: str | None
    completed_steps: int
    total_steps: int | None
    attempts: Annotated[int, JsonKey("the third that dies is the last")]
    encoder_sha256: str | None


class TrainingsPayload(TypedDict):
    """What ``gpusonde fleet trainings`` prints."""

    trainings: Annotated[list[QueuedTrainingPayload], JsonKey("the newest first")]


def list_hosts(args: argparse.Namespace) -> int:
    """Ask which hosts agents run on and what they have free, and print it."""
    from gpusonde.collector.client import WorkloadClient

    with WorkloadClient(args.collector, security=client_security(args)) as client:
        found = client.hosts(agent_ids=args.agents or [])
    payload: HostsPayload = {"hosts": [_host(host) for host in found]}
    Output(as_json=args.json).result(
        payload, lambda screen: _render_hosts(screen, payload["hosts"], named=bool(args.agents))
    )
    return 0


def list_trainings(args: argparse.Namespace) -> int:
    """Queue a training where one is asked for, ask which there are, and print them."""
    from gpusonde.collector.client import WorkloadClient

    with WorkloadClient(args.collector, security=client_security(args)) as client:
        if args.train is not None:
            # Who asks for one that is done or has failed wants it again; what is queued or runs stays as it is.
            client.queue_training(args.train, again=True)
        payload: TrainingsPayload = {"trainings": [_training(each) for each in client.trainings()["trainings"]]}
    Output(as_json=args.json).result(payload, lambda screen: _render_trainings(screen, payload["trainings"]))
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


def _render_hosts(screen: Screen, hosts: Sequence[HostPayload], *, named: bool) -> None:
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


def _training(found: Mapping[str, Any]) -> QueuedTrainingPayload:
    def time(name: str) -> str | None:
        return None if found[name] is None else formatting.iso_time(round(found[name] * 1e9))

    return {
        "dataset_type": found["dataset_type"],
        "state": found["state"],
        "reason": found["reason"] or None,
        "queued_time": time("queued_time"),
        "started_time": time("started_time"),
        "ended_time": time("ended_time"),
        "completed_steps": found["completed_steps"],
        "total_steps": found["total_steps"] or None,
        "attempts": found["attempts"],
        "encoder_sha256": found["encoder_sha256"] or None,
    }


def _render_trainings(screen: Screen, trainings: Sequence[QueuedTrainingPayload]) -> None:
    if not trainings:
        screen.line("no training was ever queued there")
        return
    screen.table(
        ("type of data", "state", "steps", "queued", "reason"),
        [
            (
                each["dataset_type"],
                each["state"],
                f"{each['completed_steps']}/{each['total_steps'] or '?'}" if each["attempts"] else "",
                each["queued_time"] or "",
                each["reason"] or "",
            )
            for each in trainings
        ],
    )
