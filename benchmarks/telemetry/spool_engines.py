"""The agent's spool beside SQLite (WAL, synchronous=FULL, one row a record): what each costs, and what damage does.

    python benchmarks/telemetry/spool_engines.py [--seconds 30]

Records are those of 8 GPUs, 25 metrics, 10 Hz. Each engine runs in a process of its own, in real time, acknowledged ten
seconds behind; CPU is that process's. System calls are counted by ``strace``, where it is installed, in a run of its
own. Damage is one changed bit or one cut, at places drawn with a seed, in spools of 150 to 600 records that were all
committed: what is read back is compared with what was written.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from gpusonde.agent.batch import Batcher
from gpusonde.agent.sources.base import GpuTicks
from gpusonde.agent.spool import Spool, SpoolError
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.telemetry import METRICS, MetricKind

GPUS, TICKS_PER_SECOND = 8, 10
_METRICS = tuple(m for m in METRICS if m.name not in ("encoder_utilization", "decoder_utilization"))
_BEGUN_NS = 1_700_000_000 * 10**9
_KEPT_S = 10
_RECORDS_PER_S = 10
_MOMENTS = (150, 300, 450, 600)  # records in a spool that is damaged
_COUNTED = ("fsync", "fdatasync", "pwrite64", "write", "pread64", "fcntl")


class Engine(Protocol):
    """What is asked of either."""

    def append(self, record: ingest_pb2.Record) -> None:
        """Write a record under the next sequence."""

    def commit(self) -> None:
        """Return once everything written survives a power loss."""

    def acknowledge(self, sequence: int) -> None:
        """Let everything up to a sequence go."""

    def close(self) -> None:
        """Close the files."""


class SegmentEngine:
    """The agent's own spool."""

    def __init__(self, directory: Path, max_bytes: int = 1 << 30) -> None:
        self._spool = Spool(directory, max_bytes=max_bytes, agent_id="benchmark")
        self._spool.open()
        self.append, self.commit = self._spool.append, self._spool.commit
        self.acknowledge, self.close = self._spool.acknowledge, self._spool.close


class SqliteEngine:
    """A table of records, with a checksum of our own: SQLite has none of its pages."""

    def __init__(self, directory: Path, max_bytes: int = 1 << 30) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(directory / "spool.db", isolation_level=None)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "auto_vacuum=INCREMENTAL"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS records"
            " (sequence INTEGER PRIMARY KEY, ticks INTEGER, crc INTEGER, payload BLOB)"
        )
        self._max_bytes, self._bytes, self._sequence, self._removed = max_bytes, 0, 0, 0
        self._in_transaction = False

    def append(self, record: ingest_pb2.Record) -> None:
        """Insert a row under the next sequence."""
        self._sequence += 1
        record.sequence = self._sequence
        payload = record.SerializeToString()
        if not self._in_transaction:
            self._connection.execute("BEGIN")
            self._in_transaction = True
        while self._bytes + len(payload) > self._max_bytes:
            self._drop_an_eighth()
        ticks = sum(block.tick_count for block in record.batch.blocks)
        row = (self._sequence, ticks, zlib.crc32(payload), payload)
        self._connection.execute("INSERT INTO records VALUES (?, ?, ?, ?)", row)
        self._bytes += len(payload)

    def commit(self) -> None:
        """End the transaction."""
        if self._in_transaction:
            self._connection.execute("COMMIT")
            self._in_transaction = False

    def acknowledge(self, sequence: int) -> None:
        """Delete rows, a hundred at a time."""
        if sequence - self._removed >= 100:  # as segments go: not row by row
            self._delete(sequence)

    def close(self) -> None:
        """Commit and close the database."""
        self.commit()
        self._connection.close()

    def _drop_an_eighth(self) -> None:
        self._delete(self._removed + max(1, (self._sequence - self._removed) // 8))

    def _delete(self, sequence: int) -> None:
        where = "FROM records WHERE sequence <= ?"
        (freed,) = self._connection.execute(f"SELECT total(length(payload)) {where}", (sequence,)).fetchone()
        self._connection.execute(f"DELETE {where}", (sequence,))
        self._bytes, self._removed = self._bytes - int(freed), sequence


ENGINES = {"segments": SegmentEngine, "sqlite": SqliteEngine}


def records(count: int, ticks: int) -> list[ingest_pb2.Record]:
    """Return records of all GPUs, each with a number of ticks."""
    chance = np.random.default_rng(5)
    batcher = Batcher(_METRICS)
    scale = np.array([[1e9 if m.kind is MetricKind.COUNTER else 0.9] for m in _METRICS])
    made = []
    for number in range(count):
        for gpu in range(GPUS):
            first = (number * ticks + np.arange(ticks)) * 10**8 + _BEGUN_NS
            batcher.add(GpuTicks(gpu, first, np.round(chance.random((len(_METRICS), ticks)), 2) * scale))
        made.append(ingest_pb2.Record(batch=batcher.flush()))
    return made


def play(engine: Engine, rate: int, seconds: float) -> dict[str, float]:
    """Append at a rate in real time, a commit after each record."""
    made = records(50, TICKS_PER_SECOND // rate)
    began, cpu = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    count = max(1, int(rate * seconds))
    commits_ms = []
    for number in range(count):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        engine.append(made[number % len(made)])
        start = time.monotonic()
        engine.commit()
        commits_ms.append(1e3 * (time.monotonic() - start))
        engine.acknowledge(number + 1 - _KEPT_S * rate)
    used = resource.getrusage(resource.RUSAGE_SELF)
    busy = used.ru_utime + used.ru_stime - cpu.ru_utime - cpu.ru_stime
    engine.close()
    low, high = np.quantile(commits_ms, [0.5, 0.99])
    return {"cpu_share": busy / seconds, "commit_ms": float(low), "commit_99_ms": float(high)}


def cost(name: str, rate: int, seconds: float, directory: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Run an engine in a process of its own; and again under strace, for its system calls a second."""
    command = [sys.executable, __file__, "--play", name, "--rate", str(rate)]
    found = json.loads(_output([*command, "--seconds", str(seconds), "--directory", str(directory / "cost")]))
    if not shutil.which("strace"):
        return found, {}
    traced, log = 10.0, directory / "strace"
    calls = ["strace", "-f", "-c", "-o", str(log), "-e", f"trace={','.join(_COUNTED)}"]
    _output([*calls, *command, "--seconds", str(traced), "--directory", str(directory / "traced")])
    _output([*calls[:4], str(directory / "start"), *calls[5:], *command, "--seconds", "0.1", "--directory",
             str(directory / "none")])  # fmt: skip
    made, before = _counts(log), _counts(directory / "start")
    return found, {name: (made.get(name, 0) - before.get(name, 0)) / traced for name in _COUNTED}


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def _counts(path: Path) -> dict[str, int]:
    found = re.findall(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", path.read_text("utf-8"), re.M)
    return {name: int(count) for count, name in found if name != "total"}


def read_back(name: str, directory: Path) -> dict[int, bytes] | None:
    """Return what an engine gives after damage; None when it cannot be opened. Losses it tells of are empty."""
    found: dict[int, bytes] = {}
    try:
        if name == "segments":
            spool = Spool(directory, max_bytes=1 << 30)
            spool.open()
            for sequence in range(spool.first_available_sequence, spool.last_sequence + 1):
                record = spool.read(sequence)
                found[sequence] = (
                    b"" if record is None or record.HasField("loss_report") else record.SerializeToString()
                )
            spool.close()
            return found
        connection = sqlite3.connect(directory / "spool.db")
        try:
            for sequence, crc, payload in connection.execute("SELECT sequence, crc, payload FROM records ORDER BY 1"):
                found[sequence] = payload if isinstance(payload, bytes) and zlib.crc32(payload) == crc else b""
        except sqlite3.DatabaseError:
            return found or None
        finally:
            connection.close()
    except (SpoolError, sqlite3.DatabaseError):
        return None
    return found


def damage(name: str, kind: str, times: int, directory: Path) -> dict[str, float]:
    """Damage a spool of committed records, over and over; return what came of it."""
    wholes = _snapshots(name, directory)
    chance = random.Random(kind)
    outcomes = {"unusable": 0, "told": 0, "untold": 0, "wrong": 0}
    for number in range(times):
        whole, expected = wholes[number % len(wholes)]
        copy = shutil.copytree(whole, directory / "damaged")
        files = sorted(p for p in copy.iterdir() if p.suffix in (".seg", ".db", ".db-wal"))
        (file,) = chance.choices(files, [p.stat().st_size for p in files])
        content = bytearray(file.read_bytes())
        at = chance.randrange(len(content))
        if kind == "bit":
            content[at] ^= 1 << chance.randrange(8)
            file.write_bytes(content)
        else:
            file.write_bytes(content[:at])
        found = read_back(name, copy)
        outcomes["unusable"] += found is None
        if found is not None:
            outcomes["told"] += sum(found.get(s) == b"" for s in expected)
            outcomes["untold"] += sum(s not in found for s in expected)
            outcomes["wrong"] += sum(found.get(s, right) not in (b"", right) for s, right in expected.items())
        shutil.rmtree(copy)
    return {key: count / times for key, count in outcomes.items()}


def _snapshots(name: str, directory: Path) -> list[tuple[Path, dict[int, bytes]]]:
    """Return copies of a spool at four moments, since SQLite's log comes and goes, with what is in them."""
    engine = ENGINES[name](directory / f"live-{name}")
    wholes = []
    for number, record in enumerate(records(_MOMENTS[-1], 1), 1):
        engine.append(record)
        engine.commit()
        if number in _MOMENTS:
            whole = shutil.copytree(directory / f"live-{name}", directory / f"{name}-{number}")
            for useless in ("lock", "spool.db-shm"):
                (whole / useless).unlink(missing_ok=True)
            found = read_back(name, shutil.copytree(whole, directory / "read"))
            shutil.rmtree(directory / "read")
            if found is None or len(found) != number:
                raise AssertionError(f"{name} does not give back what was committed")
            wholes.append((whole, found))
    engine.close()
    shutil.rmtree(directory / f"live-{name}")
    return wholes


def bound(name: str, directory: Path) -> tuple[int, float]:
    """Return the most that an engine has on the disk which is to keep to 2 MiB, and its size beside its payload."""
    engine, made = ENGINES[name](directory / f"bound-{name}", 2 << 20), records(50, TICKS_PER_SECOND)
    most = 0
    for number in range(2000):
        engine.append(made[number % 50])
        engine.commit()
        most = max(most, sum(p.stat().st_size for p in (directory / f"bound-{name}").iterdir()))
    engine.close()
    engine = ENGINES[name](directory / f"size-{name}")
    for number in range(2000):
        engine.append(made[number % 50])
        engine.commit()
    engine.close()
    size = sum(p.stat().st_size for p in (directory / f"size-{name}").iterdir())
    return most, size / sum(made[number % 50].ByteSize() for number in range(2000))


def report(seconds: float) -> list[str]:
    """Measure both engines and return the section of the page."""
    columns: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="gpusonde-spool-") as name:
        for engine in ENGINES:
            rows = columns.setdefault(engine, [])
            directory = Path(name) / engine
            directory.mkdir()
            found, calls = cost(engine, _RECORDS_PER_S, seconds, directory)
            rows.append(f"{100 * found['cpu_share']:.2f} % of a core")
            rows.append(f"{found['commit_ms']:.1f} / {found['commit_99_ms']:.1f} ms")
            syncs = calls.get("fsync", 0) + calls.get("fdatasync", 0)
            writes = calls.get("pwrite64", 0) + calls.get("write", 0)
            others = calls.get("pread64", 0) + calls.get("fcntl", 0)
            rows.append(f"{syncs:.1f} / {writes:.1f} / {others:.1f}" if calls else "strace is not installed")
            most, share = bound(engine, Path(name))
            rows += [f"{share:.3f}", f"{most / (1 << 20):.2f} MiB"]
            for kind in ("bit", "cut"):
                folder = Path(name) / f"{engine}-{kind}"
                folder.mkdir()
                seen = damage(engine, kind, 400, folder)
                rows.append(f"{seen['told']:.2f} / {seen['untold']:.2f} / {seen['wrong']:.2f}")
                rows.append(f"{100 * seen['unusable']:.1f} %")
    labels = ["CPU", "commit, median / 99 %", "syncs / writes / reads and locks a second"]
    labels += ["size on disk beside the records", "most on disk where 2 MiB are allowed"]
    for kind in ("one changed bit", "a file cut short"):
        labels += [f"{kind}: records lost and told / lost untold / wrong", f"{kind}: nothing can be read"]
    lines = ["| what | segments (ours) | SQLite |", "|---|---|---|"]
    return [
        *lines,
        *(f"| {label} | {ours} | {other} |" for label, ours, other in zip(labels, *columns.values(), strict=True)),
    ]


def main() -> int:
    """Measure, or be one engine's process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="of the load")
    parser.add_argument("--play", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=int, default=_RECORDS_PER_S, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    logging.disable()
    if args.play:
        print(json.dumps(play(ENGINES[args.play](args.directory), args.rate, args.seconds)))
    else:
        print("\n".join(report(args.seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
