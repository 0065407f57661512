"""What TLS and the check of callers cost a collector.

Usage: ``python benchmarks/security [--records N] [--connections N] [--out docs/results/security.md]``

Starts a collector in plain text, with a token and with mTLS, streams the same records to each from this process and
opens connections to it, and reads the collector's CPU time from the operating system (Linux).
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.running_collector import ProcessCollector  # noqa: E402 - tests/ is not a package
from support.wire_agent import WireStream, batch, hello, inventory  # noqa: E402

from gpusonde.collector.client import Client  # noqa: E402
from gpusonde.collector.security.identity import Role  # noqa: E402
from gpusonde.collector.security.tokens import token_entry  # noqa: E402
from gpusonde.service.tls import ClientSecurity  # noqa: E402

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_WINDOW = 64


@dataclass(frozen=True)
class Way:
    """A way to connect: settings of the collector, and the files of an agent and a reader."""

    name: str
    settings: dict[str, str]
    agent: ClientSecurity
    reader: ClientSecurity


def ways(folder: Path) -> list[Way]:
    """Return plain text, a token and mTLS."""
    script = ROOT / "deploy" / "tls" / "make-dev-certs.sh"
    names = ("--collector", "127.0.0.1", "--agent", "agent-1")
    subprocess.run(["sh", str(script), str(folder / "tls"), *names], check=True, stdout=subprocess.DEVNULL)
    tls = folder / "tls"
    for token in ("agent", "reader"):
        (folder / token).write_text(f"token-of-the-{token}")
    entries = (token_entry("token-of-the-agent", Role.AGENT), token_entry("token-of-the-reader", Role.READER))
    (folder / "tokens.toml").write_text("\n".join(entries))

    def certificate(name: str) -> ClientSecurity:
        return ClientSecurity(str(tls / "ca.pem"), str(tls / f"{name}.pem"), str(tls / f"{name}.key"))

    mutual = {
        "security__tls_certificate": str(tls / "collector.pem"),
        "security__tls_key": str(tls / "collector.key"),
        "security__tls_client_ca": str(tls / "ca.pem"),
    }
    tokens = {"security__tokens_file": str(folder / "tokens.toml"), "security__anonymous": "never"}
    by_token = [ClientSecurity(token_file=str(folder / name)) for name in ("agent", "reader")]
    return [
        Way("plain text", {}, ClientSecurity(), ClientSecurity()),
        Way("plain text, token", tokens, *by_token),
        Way("mTLS", mutual, certificate("agent-agent-1"), certificate("reader")),
    ]


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def measure(way: Way, folder: Path, records: int, connections: int) -> tuple[float, float]:
    """Return the collector's CPU time per record and per connection with one question, in microseconds."""
    settings = way.settings | {
        "ingest__max_records_per_second": "1000000",
        "security__questions_per_second": "1000000",
        "runs__track": "false",
    }
    with ProcessCollector(folder / "data", **settings) as collector:
        pid = collector._process.pid
        content = [inventory(), *(batch(n) for n in range(2, records + 1))]
        with WireStream(collector.target, hello("agent-1"), timeout_s=600.0, security=way.agent) as stream:
            stream.greet()
            stream.send(content[0]).wait_acked(1)
            time.sleep(2.0)
            before, sent = cpu_s(pid), 1
            while stream.acked < records:
                limit = min(records, stream.acked + _WINDOW)
                stream.send(*content[sent:limit])
                sent = max(sent, limit)
                stream.wait_acked(stream.acked + 1)
            per_record = (cpu_s(pid) - before) / (records - 1)
        time.sleep(2.0)
        before = cpu_s(pid)
        for _ in range(connections):
            with Client(collector.target, security=way.reader) as client:
                client.list_runs(limit=1)
        per_connection = (cpu_s(pid) - before) / connections
    return 1e6 * per_record, 1e6 * per_connection


def middle(way: Way, folder: Path, args: argparse.Namespace) -> tuple[float, float]:
    """Return the medians of several measurements."""
    pairs = []
    for run in range(args.repeats):
        place = folder / f"{way.name.replace(' ', '_')}-{run}"
        place.mkdir()
        pairs.append(measure(way, place, args.records, args.connections))
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--connections", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        rows = [(way.name, *middle(way, folder, args)) for way in ways(folder)]
    finally:
        shutil.rmtree(folder)
    lines = [
        "# The cost of TLS: results",
        "",
        f"Printed by `python benchmarks/security` on {datetime.date.today().isoformat()}: 2 cores, loopback, busy",
        f"machine, Python {sys.version.split()[0]}. {args.records} records of 10 ticks and 3 metrics on one stream,",
        f"{_WINDOW} in flight, then {args.connections} connections with one question each, one after the other; median",
        f"of {args.repeats} runs. CPU time of the collector process, user and system.",
        "",
        "| way | CPU per record, µs | CPU per connection and question, µs |",
        "|---|---|---|",
        *(f"| {name} | {record:.0f} | {connection:.0f} |" for name, record, connection in rows),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
