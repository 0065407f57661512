"""``gpusonde fleet``: a collector's agents, their hosts, its trainings; and sending agents to another collector.

``gpusonde token``: bearer tokens for agents and readers that have no certificate.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from gpusonde import formatting
from gpusonde.cli.connection import add_collector_options, client_security, collector_address
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser, address, names
from gpusonde.errors import UsageError

if TYPE_CHECKING:
    from gpusonde.collector.client import FleetClient

_AGENT_ID = re.compile(r"[A-Za-z0-9._:@*-]{1,128}")
_LABEL = re.compile(r"[A-Za-z0-9 ._:@/-]{1,64}")


class TokenPayload(TypedDict):
    """What ``gpusonde token new`` prints."""

    token: Annotated[str, JsonKey("stored nowhere")]
    digest: Annotated[str, JsonKey("SHA-256, hexadecimal")]
    role: str
    entry_toml: Annotated[str, JsonKey("lines for the collector's file")]


class FleetListPayload(TypedDict):
    """What ``gpusonde fleet list`` prints."""

    agents: Annotated[list[dict[str, Any]], JsonKey(holds="gpusonde.collector.client.ConnectedAgent")]


class FleetDrainPayload(TypedDict):
    """What ``gpusonde fleet drain`` prints."""

    drained: Annotated[list[str], JsonKey("agents that were asked")]
    absent: Annotated[list[str], JsonKey("agents of `--agents` without an open stream")]
    target: Annotated[str | None, JsonKey("null for back")]


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


def add_token_options(parser: Parser) -> None:
    """Declare ``gpusonde token``."""
    parser.description = (
        "Make a bearer token. It is printed once: put it alone into the file that uplink.token_file or --token-file "
        "names, and the [[token]] lines into the collector's security.tokens_file, which holds a digest only."
    )
    parser.add_argument("action", choices=["new"], help="make one")
    parser.add_argument("--role", choices=["agent", "reader", "admin"], required=True, help="what it is for")
    parser.add_argument(
        "--agent-id", default="", metavar="ID", help="agent that it is for; * stands for any characters (default: all)"
    )
    parser.add_argument("--label", default="", metavar="TEXT", help="how logs call it (default: part of its digest)")


def run_token(args: argparse.Namespace) -> int:
    """Make and print one."""
    from gpusonde.collector.security.identity import Role
    from gpusonde.collector.security.tokens import digest_token, new_token, token_entry

    if args.agent_id and args.role != "agent":
        raise UsageError("--agent-id is for --role agent")
    if args.agent_id and not _AGENT_ID.fullmatch(args.agent_id):
        raise UsageError("--agent-id takes letters, digits and . _ : @ - and *, 128 at most")
    if args.label and not _LABEL.fullmatch(args.label):
        raise UsageError("--label takes letters, digits, spaces and . _ : @ / -, 64 at most")
    token = new_token()
    entry = token_entry(token, Role(args.role), args.agent_id, args.label)

    def render(screen: Screen) -> None:
        screen.line("token, for the client's file (it is not shown again):")
        screen.line(token)
        screen.line("")
        screen.line("lines for the collector's security.tokens_file:")
        screen.line(entry)

    payload: TokenPayload = {"token": token, "digest": digest_token(token), "role": args.role, "entry_toml": entry}
    Output(as_json=args.json).result(payload, render)
    return 0


def add_fleet_options(parser: Parser) -> None:
    """Declare ``gpusonde fleet``."""
    parser.description = (
        "List the agents that stream to a collector, the hosts that they run on with what is free of them, or the "
        "trainings of encoders that it has queued; or ask agents to go to another collector. An agent goes only where "
        "its own uplink.allowed_targets lets a collector send it. 'list', 'drain' and --train need a certificate or "
        "token of the role admin."
    )
    parser.add_argument(
        "action",
        choices=["list", "hosts", "trainings", "drain"],
        help="list agents, their hosts or trainings of encoders, or end streams",
    )
    parser.add_argument("--agents", type=names, metavar="A,B", help="hosts, drain: of these agents")
    parser.add_argument(
        "--train", metavar="NAME", help="trainings: queue the one for this type of data first, again if it has ended"
    )
    parser.add_argument("--all", action="store_true", help="drain: every agent that streams now")
    parser.add_argument("--to", type=address, metavar="HOST:PORT", help="drain: where they should go (default: back)")
    add_collector_options(parser)


def run_fleet(args: argparse.Namespace) -> int:
    """Ask or order, and print."""
    from gpusonde.collector.client import FleetClient

    if args.train is not None and args.action != "trainings":
        raise UsageError("--train belongs to trainings")
    if (args.agents and args.action not in ("hosts", "drain")) or ((args.all or args.to) and args.action != "drain"):
        raise UsageError("--agents belongs to hosts and drain, --all and --to to drain")
    if args.action in ("hosts", "trainings"):
        return _list_hosts(args) if args.action == "hosts" else _list_trainings(args)
    draining = args.action == "drain"
    if draining and bool(args.agents) == args.all:
        raise UsageError("drain needs --agents A,B or --all, not both")
    with FleetClient(collector_address(args), security=client_security(args)) as client:
        return _drain(args, client) if draining else _list(args, client)


def _list(args: argparse.Namespace, client: FleetClient) -> int:
    agents = client.list_agents()

    def render(screen: Screen) -> None:
        screen.line(f"{formatting.count(len(agents), 'agent')} {'streams' if len(agents) == 1 else 'stream'} to it")
        for agent in agents:
            throttled = ", throttled" if agent.throttled else ""
            screen.line(f"{agent.agent_id} on {agent.host_name or 'an unnamed host'} ({agent.identity}{throttled})")

    payload: FleetListPayload = {"agents": [dataclasses.asdict(agent) for agent in agents]}
    Output(as_json=args.json).result(payload, render)
    return 0


def _drain(args: argparse.Namespace, client: FleetClient) -> int:
    drained, absent = client.drain(None if args.all else args.agents, args.to or "")

    def render(screen: Screen) -> None:
        screen.line(
            f"{formatting.count(len(drained), 'agent')} asked to {f'go to {args.to}' if args.to else 'come back later'}"
        )
        if absent:
            screen.note(f"no open stream here: {', '.join(absent)}")

    payload: FleetDrainPayload = {"drained": list(drained), "absent": list(absent), "target": args.to}
    Output(as_json=args.json).result(payload, render)
    return 1 if absent else 0


def _list_hosts(args: argparse.Namespace) -> int:
    """Ask which hosts agents run on and what they have free, and print it."""
    from gpusonde.collector.client import WorkloadClient

    with WorkloadClient(collector_address(args), security=client_security(args)) as client:
        found = client.hosts(agent_ids=args.agents or [])
    payload: HostsPayload = {"hosts": [_host(host) for host in found]}
    Output(as_json=args.json).result(
        payload, lambda screen: _render_hosts(screen, payload["hosts"], named=bool(args.agents))
    )
    return 0


def _list_trainings(args: argparse.Namespace) -> int:
    """Queue a training where one is asked for, ask which there are, and print them."""
    from gpusonde.collector.client import WorkloadClient

    with WorkloadClient(collector_address(args), security=client_security(args)) as client:
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
        name = gpu["gpu_model"] or gpu["product_name"] or "unnamed GPU"
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
