"""What the telemetry path costs: agents, wire, collector. Real processes, loopback gRPC, the true protocol, real time.

Usage: ``python benchmarks/telemetry [SECTION...] [--out docs/results/telemetry.md] [--quick]``

Sections: agent, spool, ingest, tracking, connections, shapes, restart; all in about twenty minutes on two cores.
What samples cost on disk, and reading them, is ``benchmarks/telemetry/storage.py``. CPU is counted in CPU seconds of
the process in question: on a busy machine waiting times are those of the machine.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import agent_cost
import connections
import restart
import shapes
import spool_engines
import tracking
from ingest import Load, Outcome, play

_MIB = 1 << 20


def table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Lines of a Markdown table."""
    head, *lines = ["| " + " | ".join(cells) + " |" for cells in (columns, *rows)]
    return [head, "|" + "---|" * len(columns), *lines, ""]


def agent_section(args: argparse.Namespace) -> list[str]:
    """The agent."""
    seconds = 5 if args.quick else 60
    idle, awake = agent_cost.measure(seconds), agent_cost.measure(seconds, awake=True)

    def both(show: Callable[[agent_cost.AgentCost], str]) -> tuple[str, str]:
        return show(idle), show(awake)

    def late(cost: agent_cost.AgentCost) -> str:
        return "{:.2f} / {:.1f} / {:.1f} ms".format(*cost.late_ms)

    rows = [
        ("CPU", *both(lambda cost: f"{100 * cost.cpu_share:.2f} % of a core"), "1 %"),
        ("resident memory", *both(lambda cost: f"{cost.rss_bytes / _MIB:.1f} MiB"), "60 MiB"),
        ("tick lateness, median / 99 % / most", *both(late), "99 %: 10 ms"),
        ("CPU until it runs", *both(lambda cost: f"{cost.start_cpu_s:.2f} s"), ""),
        ("wake-ups of all threads", *both(lambda cost: f"{cost.wakeups_per_s:.0f} per second"), ""),
    ]
    text = (
        f"`gpusonde agent`, {idle.gpus} GPUs, {idle.metrics} metrics, 10 Hz, {idle.seconds:.0f} s each, over a "
        "stand-in for NVIDIA's library that answers at once: what the driver itself takes comes on top."
    )
    columns = ("what", "cores asleep between ticks", "cores awake", "wanted at most")
    return ["## The agent on its host", "", text, "", *table(columns, rows)]


def spool_section(args: argparse.Namespace) -> list[str]:
    """The spool beside SQLite."""
    seconds = 2 if args.quick else 30
    text = (
        "The agent's segment files, and a table of SQLite (WAL, `synchronous=FULL`, a row a record, a checksum of ours "
        f"in each): records of 8 GPUs, 25 metrics, 10 Hz, each committed; {seconds} s per load. Damage: the mean over "
        f"400 spools of 150 to 600 committed records. SQLite {sqlite3.sqlite_version}; why the segments stay: "
        "[0030](../decisions/0030-the-spool-is-our-own.md)."
    )
    return ["## The spool beside SQLite", "", text, "", *spool_engines.report(seconds), ""]


def ingest_section(args: argparse.Namespace) -> list[str]:
    """The collector under load."""
    seconds = 5 if args.quick else 75
    loads = [Load(2, 2, 5, tracking=False, data=args.data)] if args.quick else [
        Load(125, 8, seconds, tracking=False, data=args.data),
        Load(625, 8, seconds, tracking=False, data=args.data),
    ]  # fmt: skip
    settings: list[tuple[Load, tuple[str, ...]]] = [(load, ()) for load in loads]
    tracked = Load(2, 2, 5, data=args.data) if args.quick else Load(125, 8, args.tracked_seconds, data=args.data)
    settings.append((tracked, ("runs.processes=2",)))
    rows = [_ingest_row(play(load, None, *more), more) for load, more in settings]
    columns = ("GPUs", "tracking", "seconds", "CPU of the collector", "resident, most", "ack median / 99 % / most",
               "records sent twice", "ticks missing / doubled", "runs, with epochs", "CPU of the load")  # fmt: skip
    text = (
        f"{_data_text(args)}, 25 metrics at 10 Hz, 8 GPUs and one connection per agent, a record per second, phases "
        "apart; with zstd 3.0 bytes per sample on the wire. After each load the segments were compared with what was "
        "sent. CPU in cores (CPU seconds per second), processes of tracking included; beside it that of the last third."
    )
    return ["## The collector under load", "", text, "", *table(columns, rows)]


def _data_text(args: argparse.Namespace) -> str:
    if args.data:
        return f"Recorded traces ({args.data.name}/titanx_*), what they lack derived from their activity with noise"
    return "Generated training jobs (epochs of 12 to 300 s, validation, iteration ripple, noise in all bits)"


def _ingest_row(outcome: Outcome, settings: tuple[str, ...]) -> tuple[str, ...]:
    load, fleet, stored = outcome.load, outcome.fleet, outcome.stored
    ack = fleet["ack_ms"]
    return (
        f"{load.agents * load.gpus:,}",
        f"on ({', '.join(settings)})" if load.tracking else "off",
        str(load.seconds),
        f"{outcome.cpu_per_s[0]:.2f} ({outcome.cpu_per_s[1]:.2f})",
        f"{outcome.peak_bytes / _MIB:,.0f} MiB",
        f"{ack['p50']:.0f} / {ack['p99']:.0f} / {ack['max']:.0f} ms",
        str(fleet["repeated"]),
        f"{stored.missing + stored.incomplete} / {stored.repeated} of {stored.ticks:,}",
        f"{outcome.runs[0]}, {outcome.runs[1]}" if load.tracking else "-",
        f"{fleet['cpu_per_s']:.2f}",
    )


def tracking_section(args: argparse.Namespace) -> list[str]:
    """The tracker alone."""
    stages = tracking.by_age(*((1, 30) if args.quick else (4, 1800)))
    rows = [
        (f"{s.from_s} to {s.to_s} s", f"{100 * s.cpu_share:.3f} % of a core", f"{1000 * s.cpu_share:.2f} cores")
        for s in stages
    ]
    text = "One `EpochTracker` fed second by second with the 25 metrics, by the age of the run."
    columns = ("age of the run", "one GPU", "1,000 GPUs, all of that age")
    return ["## Looking for epochs", "", text, "", *table(columns, rows)]


def connections_section(args: argparse.Namespace) -> list[str]:
    """Many connections."""
    seen = connections.measure(*((20, 3) if args.quick else (1250, 15)))
    failures = ", ".join(f"{count} x {reason}" for reason, count in seen.failures.items()) or "none"
    rows = [(f"{seen.agents:,}", f"{seen.connected_ms:.0f} ms", str(seen.unacked), failures, f"{seen.cpu_s:.1f} s")]
    columns = ("agents", "greeted (99 %)", "records unacknowledged", "streams that ended", "CPU of the collector")
    text = (
        "Agents with a connection each that all come at once. The collector raises the usual soft limit of "
        f"{connections.USUAL_LIMIT:,} open files; where the hard limit is 1,024 it serves 768 agents and refuses the "
        "rest."
    )
    return ["## Many connections", "", text, "", *table(columns, rows)]


def shapes_section(args: argparse.Namespace) -> list[str]:
    """Shapes of messages."""
    costs = shapes.compare(20 if args.quick else 300)
    rows = [
        (
            cost.name, f"{cost.messages_per_second:g}", f"{cost.bytes_per_sample:.2f}",
            f"{cost.cpu_us_per_sample:.3f} µs", f"{cost.gpus_per_core:,.0f}",
        )
        for cost in costs
    ]  # fmt: skip
    columns = ("message", "messages per host and second", "bytes per sample", "server CPU per sample", "GPUs per core")
    text = (
        "The same samples (8 GPUs, 25 metrics, 10 Hz) through one `grpc.aio` server, up to arrays; ours with all "
        "checks and decompression, the others with none. CPU of the server with gRPC."
    )
    return ["## Shapes of messages", "", text, "", *table(columns, rows)]


def restart_section(args: argparse.Namespace) -> list[str]:
    """Restart."""
    seen = restart.measure(*((1, 20) if args.quick else (4, 3600)))
    rows = [(f"{seen.gpus}", f"{seen.seconds / 60:.0f} min", f"{seen.log_bytes / _MIB:,.0f} MiB",
             f"{seen.from_log_s:.1f} s", f"{seen.from_segments_s:.1f} s")]  # fmt: skip
    columns = ("GPUs", "in the log", "size of the log", "start, log read back", "start, all in segments")
    text = (
        "From the start of the process to the first answer. The log usually holds a minute; so much is in it only "
        "where no segment could be written for so long."
    )
    return ["## Restart", "", text, "", *table(columns, rows)]


_SECTIONS: dict[str, Callable[[argparse.Namespace], list[str]]] = {
    "agent": agent_section,
    "spool": spool_section,
    "ingest": ingest_section,
    "tracking": tracking_section,
    "connections": connections_section,
    "shapes": shapes_section,
    "restart": restart_section,
}


def main() -> int:
    """Run the sections that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="default: all")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    parser.add_argument("--data", type=Path, help="folder of recorded traces to play instead of generated ones")
    parser.add_argument("--tracked-seconds", type=int, default=240, help="length of the load with tracking")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    args = parser.parse_args()
    if unknown := set(args.sections) - set(_SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(_SECTIONS)}")
    today = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
    words = " ".join(["python benchmarks/telemetry", *args.sections])
    printed = (
        f"Printed by `{words}` on {today}, {platform.machine()}, {os.cpu_count()} cores, loopback, busy machine (other "
        "work on both cores all the time): CPU seconds are those of the processes, waiting times include the others."
    )
    short = "What falls short: [collector.md](../collector.md#what-it-costs), [agent.md](../agent.md#what-it-costs)."
    lines = ["# The telemetry path: results", "", f"{printed} {short}", ""]
    for name in args.sections or _SECTIONS:
        section = _SECTIONS[name](args)
        print("\n".join(section), flush=True)
        lines += section
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
