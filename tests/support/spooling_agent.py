"""A small agent with a spool on disk: as a class, and as a process that can be killed at any moment.

It keeps the protocol's promises and nothing else: a record is in the spool file before it is sent, records are sent
from the collector's durable sequence on, and those of a spool are the same after every start. Record 1 is the
inventory, record k holds ticks 10 (k - 2) and following (see ``wire_agent``).

Process: ``python spooling_agent.py TARGET SPOOL_FILE RECORDS PAUSE_S``. It samples at least so many records, and goes
on until the file ``SPOOL_FILE.enough`` exists; then it sends the rest and exits with 0.
"""

from __future__ import annotations

import queue
import struct
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

_HEAD = struct.Struct("<II")


class Spool:
    """Records in one file, each with its length and CRC; a torn tail is cut when it is opened."""

    def __init__(self, path: Path):
        self.records = []
        good = 0
        data = path.read_bytes() if path.exists() else b""
        while good + _HEAD.size <= len(data):
            length, checksum = _HEAD.unpack_from(data, good)
            body = data[good + _HEAD.size : good + _HEAD.size + length]
            if len(body) != length or zlib.crc32(body) != checksum:
                break
            self.records.append(body)
            good += _HEAD.size + length
        self._file = path.open("r+b" if path.exists() else "w+b", buffering=0)
        self._file.truncate(good)
        self._file.seek(good)

    def append(self, record: bytes):
        self._file.write(_HEAD.pack(len(record), zlib.crc32(record)) + record)
        self.records.append(record)


class ResumingAgent:
    """Streams the records of a list, which may grow meanwhile, until all ``total`` of them are acknowledged.

    ``total`` may be set later; until then it is infinite. ``hello`` makes a greeting. Every end of a stream but
    ``refused`` statuses is followed by the next stream.
    """

    refused = ("ALREADY_EXISTS", "FAILED_PRECONDITION")

    def __init__(self, target, hello, records, total, window=64):
        self.target, self.hello, self.records, self.total, self.window = target, hello, records, total, window
        self.acked = 0
        self.streams = 0
        self.statuses = []
        self.stop = threading.Event()

    def run(self, timeout_s=120.0):
        """Return whether everything was acknowledged in time."""
        from support.wire_agent import StreamEnded

        deadline = time.monotonic() + timeout_s
        while self.acked < self.total and time.monotonic() < deadline and not self.stop.is_set():
            try:
                self._stream()
            except StreamEnded as ended:
                self.statuses.append((ended.code, ended.details))
                if ended.code in self.refused:
                    return False
                time.sleep(0.05)
        return self.acked >= self.total

    def _stream(self):
        from support.wire_agent import StreamEnded, WireStream

        with WireStream(self.target, self.hello(), timeout_s=300.0) as stream:
            ack = stream.greet()
            self.streams += 1
            self.acked, sent = ack.durable_sequence, ack.durable_sequence
            answers = queue.SimpleQueue()
            reader = threading.Thread(target=_read, args=(stream, answers), daemon=True)
            reader.start()
            while self.acked < self.total and not self.stop.is_set():
                while sent < len(self.records) and sent - self.acked < self.window:
                    stream.send_serialized(self.records[sent])
                    sent += 1
                try:
                    answer = answers.get(timeout=0.005)
                except queue.Empty:
                    continue
                if isinstance(answer, StreamEnded):
                    raise answer
                if answer.HasField("ack"):
                    self.acked = answer.ack.durable_sequence


def _read(stream, answers):
    from support.wire_agent import StreamEnded

    try:
        while True:
            answers.put(stream.next())
    except StreamEnded as ended:
        answers.put(ended)


def kill_by_turns(collector, spool, records, pause_s, kills, chance):
    """Run the process against a collector, kill each so often at any moment, and let the agent send the rest."""
    command = [sys.executable, __file__, collector.target, str(spool), str(records), pause_s]
    agent = subprocess.Popen(command)
    try:
        for _ in range(kills):
            assert still_runs(agent, chance.uniform(0.3, 1.2))
            collector.kill()
            collector.start()
            assert still_runs(agent, chance.uniform(0.3, 1.2))
            agent.kill()
            agent.wait()
            agent = subprocess.Popen(command)
        Path(f"{spool}.enough").touch()
        assert agent.wait(240) == 0
    finally:
        agent.kill()
        agent.wait()


def still_runs(process, after_s):
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        return True
    return False


def main():
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from support.wire_agent import batch, hello, inventory

    target, path, total, pause_s = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    spool = Spool(path)
    started = time.time_ns()

    greeting = lambda: hello(start=started, instance=f"i{started}")  # noqa: E731
    agent = ResumingAgent(target, greeting, spool.records, float("inf"))

    def sample():
        enough = Path(f"{path}.enough")
        while len(spool.records) < total or not enough.exists():
            sequence = len(spool.records) + 1
            record = inventory() if sequence == 1 else batch(sequence)
            spool.append(record.SerializeToString())
            time.sleep(pause_s)
        agent.total = len(spool.records)

    threading.Thread(target=sample, daemon=True).start()
    sys.exit(0 if agent.run(600.0) else 1)


if __name__ == "__main__":
    main()
