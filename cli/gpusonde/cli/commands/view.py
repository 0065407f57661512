"""``gpusonde view``: the collector's page for trace files, without a collector: what it makes is gone when it ends."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from gpusonde import formatting
from gpusonde.cli.commands.detect import ALL_GPUS, add_trace_options, read_gpus
from gpusonde.cli.demo.processes import DemoProcess, stopped_by_signals
from gpusonde.cli.output import JsonKey, Output
from gpusonde.cli.parsing import Parser
from gpusonde.errors import CommandError

if TYPE_CHECKING:
    from gpusonde.telemetry import Trace

_START_TIMEOUT_S = 60.0
_POLL_S = 0.2
# A file is there after some seconds, but for very long ones.
_REPLAY_S = 5.0
_MOST_SPEED = 500.0
_MOST_FILES = 64


class ViewPayload(TypedDict):
    """What ``gpusonde view`` prints."""

    url: Annotated[str, JsonKey("where the page is, until the command ends")]
    gpus: Annotated[int, JsonKey("GPUs in the files")]


def add_view_options(parser: Parser) -> None:
    """Declare ``gpusonde view``."""
    parser.description = (
        "Show trace files on the collector's page: a collector and an agent for each file run on loopback, with a"
        " folder of their own, until Ctrl-C; then all of it is removed."
    )
    parser.add_argument(
        "traces", nargs="+", type=Path, metavar="TRACE", help="as of 'gpusonde detect'; several may be given"
    )
    parser.add_argument(
        "--gpu-model", metavar="NAME", help="GPU of the traces, where the files do not say: for times on other GPUs"
    )
    add_trace_options(parser, every="; all by default")
    parser.set_defaults(gpu=ALL_GPUS)


def run_view(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    from gpusonde.telemetry import write_trace

    if importlib.util.find_spec("uvicorn") is None:
        raise CommandError("the page needs the extra 'web': pip install 'gpusonde[collector,web]'")
    if len(args.traces) > _MOST_FILES:
        raise CommandError(f"{len(args.traces)} files; up to {_MOST_FILES} are shown at a time")
    # Read here, once: stdin and Prometheus give it no second time, and an agent knows nothing of columns.
    read = [_named(read_gpus(args, path), args.gpu_model) for path in args.traces]
    longest_s = max(trace.duration_s for traces in read for trace in traces)
    gpus = sum(map(len, read))
    output = Output(as_json=args.json)
    with contextlib.ExitStack() as stack:
        stack.enter_context(stopped_by_signals())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpusonde-view-")))
        collector, url, address = _start_collector(directory, output, stack)
        speed = min(_MOST_SPEED, max(1.0, longest_s / _REPLAY_S))
        for number, traces in enumerate(read, start=1):
            write_trace(_told_apart(traces, f"GPU-{number}"), _trace_file(directory, number))
        agents = _start_agents(args.traces, speed, address, directory, stack)
        output.result(
            ViewPayload(url=url, gpus=gpus),
            lambda screen: screen.line(
                f"{url} shows {formatting.count(gpus, 'GPU')} of {formatting.count(len(agents), 'file')} until Ctrl-C"
            ),
        )
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                for process in (collector, *agents):
                    process.check()
                time.sleep(_POLL_S)
    return 0


def _start_collector(directory: Path, output: Output, stack: contextlib.ExitStack) -> tuple[DemoProcess, str, str]:
    """Start a collector with a page; return it, the page's address and its own."""
    store = directory / "store"
    arguments = ["collector", "--listen", "127.0.0.1:0", "--store", str(store)]
    # Files are replayed faster than the rate that an agent may have.
    for setting in ("metrics.listen=", "web.listen=127.0.0.1:0", "ingest.max_records_per_second=10000"):
        arguments += ["--set", setting]
    collector = DemoProcess("collector", arguments, directory)
    stack.callback(collector.stop)
    collector.start()
    with output.progress("starting the collector"):
        collector.wait_until((store / "address").is_file, "the start of the collector", _START_TIMEOUT_S)
    if not (store / "web_address").is_file():
        raise CommandError(f"the collector serves no page: {collector.last_words()}")
    web, own = ((store / name).read_text(encoding="utf-8").strip() for name in ("web_address", "address"))
    return collector, f"http://{web}/", own


def _trace_file(directory: Path, number: int) -> Path:
    """Where the traces of a file are for its agent: CSV, which needs no pyarrow."""
    return directory / f"trace-{number}.csv"


def _named(traces: Sequence[Trace], gpu_model: str | None) -> list[Trace]:
    """Say of traces which GPU they are of, where they do not."""
    from gpusonde.catalog import load_gpus

    if gpu_model is None:
        return list(traces)
    name = load_gpus().resolve(gpu_model).spec.name
    return [trace if trace.gpu_model else replace(trace, gpu_model=name) for trace in traces]


def _told_apart(traces: Sequence[Trace], nameless: str) -> list[Trace]:
    """Name the GPUs of one file apart: those of a table with ``trace_id`` may have one name, or none."""
    if len(traces) == 1:
        return list(traces)
    given = {trace.gpu_uuid for trace in traces}
    named: dict[str, Trace] = {}
    for number, trace in enumerate(traces):
        name = trace.gpu_uuid
        while not name or name in named or (name != trace.gpu_uuid and name in given):
            name = f"{name or nameless}-{number}"
        named[name] = replace(trace, gpu_uuid=name)
    return list(named.values())


def agent_names(paths: Sequence[Path]) -> list[str]:
    """Return what the agent of each trace is called: as its file is, or as an address without its password."""
    from gpusonde.telemetry.readers.prometheus import without_password

    called = ["stdin" if str(path) == "-" else Path(without_password(path)).name for path in paths]
    stems = [re.sub(r"[^A-Za-z0-9._-]", "-", name)[:80].lstrip("._-") or "trace" for name in called]
    return [stem if stems.count(stem) == 1 else f"{stem}-{number}" for number, stem in enumerate(stems, start=1)]


def _start_agents(
    paths: Sequence[Path], speed: float, address: str, directory: Path, stack: contextlib.ExitStack
) -> list[DemoProcess]:
    """Have each file replayed by an agent that is called as the file is."""
    agents = []
    for number, name in enumerate(agent_names(paths), start=1):
        words = ["agent", "--json", "--collector", address, "--id", name, "--spool", str(directory / f"spool-{number}")]
        words += ["--set", "metrics.listen=", "--replay", str(_trace_file(directory, number)), "--speed", repr(speed)]
        agent = DemoProcess(f"agent-{number}", words, directory)
        # Stopped before the collector: the stack unwinds backwards.
        stack.callback(agent.stop)
        agent.start()
        agents.append(agent)
    return agents
