"""``gpusonde workload hosts``: the hosts that a collector's agents run on, and what they have free."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from gpusonde.cli import wording
from gpusonde.cli.connection import add_collector_options, client_security
from gpusonde.cli.output import Output, Screen
from gpusonde.cli.parsing import Parser, Subparsers, add_command, names


def add_hosts_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde workload hosts``."""
    parser = add_command(
        subparsers,
        common,
        "hosts",
        "list the hosts of a collector's agents and what they have free",
        "List the hosts that a collector's agents run on, with their GPUs and what is free of cores, memory, disk and "
        "FLOPS: what a prediction for these hosts reckons with.",
    )
    parser.add_argument("hosts", nargs="*", metavar="HOST", help="only these, by name (default: all)")
    parser.add_argument("--agents", type=names, default=[], metavar="A,B", help="and those of these agents")
    add_collector_options(parser)


def run_hosts(args: argparse.Namespace) -> int:
    """Ask and print."""
    from gpusonde.collector.client.query.workload import WorkloadClient

    with WorkloadClient(args.collector, security=client_security(args)) as client:
        found = client.hosts(host_names=args.hosts, agent_ids=args.agents)
    payload = {"hosts": [_host(host) for host in found]}
    Output(as_json=args.json).result(
        payload, lambda screen: _render(screen, payload["hosts"], named=bool(args.hosts or args.agents))
    )
    return 0


def _host(found: Mapping[str, Any]) -> dict[str, Any]:
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
        "load_time": None if found["load_time"] is None else wording.iso_time(round(found["load_time"] * 1e9)),
        "cpu_busy": load.get("cpu_busy_ratio"),
        "free_disk_bytes": load.get("free_disk_bytes"),
        "free_cores": free["cores"],
        "free_memory_bytes": free["memory_bytes"],
        "free_disk_throughput": free["disk_bytes_per_second"],
        "free_cpu_flops": free["flops"],
        "gpus": [_gpu(device) for device in found["devices"]],
    }


def _gpu(device: Mapping[str, Any]) -> dict[str, Any]:
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


def _render(screen: Screen, hosts: Sequence[Mapping[str, Any]], *, named: bool) -> None:
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
                wording.number(host["free_cores"]),
                str(host["cores"]),
                wording.gibibytes(host["free_memory_bytes"]),
                wording.gibibytes(host["memory_bytes"]),
                wording.yes_no(host["connected"]),
            )
            for host in hosts
        ],
        numeric=("free cores", "of", "free memory"),
    )


def _gpus(gpus: Sequence[Mapping[str, Any]]) -> str:
    counts: dict[str, int] = {}
    for gpu in gpus:
        name = gpu["gpu_model"] or gpu["product_name"]
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} x {name}" for name, count in counts.items()) or "none"
