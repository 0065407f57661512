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
    """What ``gpusonde fleet hosts`` prints."""

    hosts: Annotated[list[HostPayload], JsonKey("the hosts")]


class QueuedTrainingPayload(TypedDict):
    """A training that a collector has queued."""

    dataset_type: Annotated[str, JsonKey("type of data")]
    state: Annotated[str, JsonKey("`queued`, `running`, `done` or `failed`")]
    reason: Annotated[str | None, JsonKey("why it failed")]
    queued_time: Annotated[str | None, JsonKey("when it was asked for")]
    started_time: Annotated[str | None, JsonKey("when it was begun last")]
    ended_time: Annotated[str | None, JsonKey("when it was done or failed")]
    completed_steps: Annotated[int, JsonKey("steps done")]
    total_steps: Annotated[int | None, JsonKey("all of them; null while nobody knows")]
    attempts: Annotated[int, JsonKey("times that it was begun, or was to be: the third that dies is the last")]
    encoder_sha256: Annotated[str | None, JsonKey("of the encoder's weights")]


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
