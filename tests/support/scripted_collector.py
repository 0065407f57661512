"""A real gRPC ingest server that does what a test tells it to: ack late, throttle, drain, refuse, die."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from support.own_port import own_port

from gpusonde.ingest.v1 import ingest_pb2, ingest_pb2_grpc

_END = object()


@dataclass
class Script:
    """What the collector does in one session. Sessions after the last script behave like ``Script()``."""

    refuse: grpc.StatusCode | None = None
    refuse_details: str = "refused by the test"
    silent: bool = False  # never answers Hello
    ack: bool = True
    durable_sequence: int | None = None  # claimed in HelloAck instead of the truth
    encoding: int = ingest_pb2.ENCODING_FLOAT32_LE_ZSTD
    max_record_bytes: int = 4 << 20
    max_unacked_records: int = 64
    max_records_per_request: int = 0  # none of `records`, as older collectors
    die_after: int | None = None  # abort the stream once this many records of it were stored
    close_after: int | None = None  # end the stream with OK instead
    drain_after: int | None = None
    preferred_target: str = ""
    throttle_after: tuple[int, ingest_pb2.Throttle] | None = None


def holds(spools: list[dict[int, ingest_pb2.Record]], mark: ingest_pb2.RecordMark) -> bool:
    records = [stored[mark.sequence] for stored in spools if mark.sequence in stored]
    return mark.tick_time_unix_nano in [
        block.start_time_unix_nano for record in records for block in record.batch.blocks
    ]


@dataclass
class ScriptedCollector(ingest_pb2_grpc.IngestServiceServicer):
    """Stores records in memory, exactly once per (agent_id, spool_id, sequence), and remembers every Hello."""

    scripts: list[Script] = field(default_factory=list)
    hellos: list[ingest_pb2.Hello] = field(default_factory=list)
    stored: dict[tuple[str, str], dict[int, ingest_pb2.Record]] = field(default_factory=dict)
    compares: bool = True  # tells which marked records it has
    duplicates: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    port: int = field(default_factory=own_port)
    highest_unacked: int = 0
    together: list[int] = field(default_factory=list)  # records in each request, 0 for one in `record`

    def __enter__(self) -> ScriptedCollector:
        self._server: grpc.Server | None = None
        self._outs: list[queue.SimpleQueue[object]] = []
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, or start again on the same port."""
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=16), options=[("grpc.so_reuseport", 0)])
        ingest_pb2_grpc.add_IngestServiceServicer_to_server(self, server)
        servicer = health.HealthServicer()
        servicer.set("gpusonde.ingest.v1.IngestService", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        assert server.add_insecure_port(self.target)
        server.start()
        self._server = server

    def stop(self) -> None:
        """Break every stream and free the port."""
        if self._server is not None:
            for out in self._outs:
                out.put(_END)
            self._server.stop(0).wait()
            self._server = None

    def wait_for(self, condition, timeout_s: float = 60.0) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout_s), f"not within {timeout_s} s; stored {self.summary()}"

    def records(self) -> list[ingest_pb2.Record]:
        """Everything stored, by spool in order of first contact, then by sequence."""
        with self.changed:
            return [stored[s] for stored in self.stored.values() for s in sorted(stored)]

    def payloads(self, kind: str) -> list[ingest_pb2.Record]:
        return [record for record in self.records() if record.WhichOneof("payload") == kind]

    def summary(self) -> dict[object, int]:
        return {key: len(stored) for key, stored in self.stored.items()}

    def send(self, response: ingest_pb2.StreamSamplesResponse) -> None:
        """Send something on the newest stream."""
        self._outs[-1].put(response)

    def StreamSamples(self, request_iterator, context) -> Iterator[ingest_pb2.StreamSamplesResponse]:
        hello = next(request_iterator).hello
        with self.changed:
            script = self.scripts[len(self.hellos)] if len(self.hellos) < len(self.scripts) else Script()
            self.hellos.append(hello)
            stored = self.stored.setdefault((hello.agent_id, hello.spool_id), {})
            durable = max(stored, default=0)
            spools = [each for (agent, _), each in self.stored.items() if agent == hello.agent_id]
            self.changed.notify_all()
        if script.refuse is not None:
            context.abort(script.refuse, script.refuse_details)
        out: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._outs.append(out)
        if not script.silent:
            claimed = durable if script.durable_sequence is None else script.durable_sequence
            out.put(
                ingest_pb2.StreamSamplesResponse(
                    hello_ack=ingest_pb2.HelloAck(
                        durable_sequence=claimed,
                        encoding=script.encoding,
                        max_record_bytes=script.max_record_bytes,
                        max_unacked_records=script.max_unacked_records,
                        max_records_per_request=script.max_records_per_request,
                        collector_id="scripted",
                        same_sequence=max(
                            (m.sequence for m in hello.marks if self.compares and holds(spools, m)), default=0
                        ),
                    )
                )
            )
        expected = max(durable + 1, hello.first_available_sequence)
        threading.Thread(
            target=self._store, args=(request_iterator, script, stored, expected, out), daemon=True
        ).start()
        context.add_callback(lambda: out.put(_END))
        while (item := out.get()) is not _END:
            if isinstance(item, grpc.StatusCode):
                context.abort(item, "died by the test's wish")
            yield item

    def _unpack(self, requests):
        for request in requests:
            self.together.append(len(request.records))
            for record in request.records or [request.record]:
                yield request, record

    def _store(self, requests, script: Script, stored, expected: int, out) -> None:
        count = 0
        try:
            for request, record in self._unpack(requests):
                assert len(request.records) <= script.max_records_per_request
                count += 1
                with self.changed:
                    if record.sequence in stored:
                        self.duplicates += 1
                    if record.sequence != expected:
                        self.gaps.append((expected, record.sequence))
                    expected = record.sequence + 1
                    stored[record.sequence] = record
                    self.changed.notify_all()
                if script.ack:
                    out.put(ingest_pb2.StreamSamplesResponse(ack=ingest_pb2.Ack(durable_sequence=record.sequence)))
                else:
                    self.highest_unacked = max(self.highest_unacked, count)
                if script.throttle_after and count == script.throttle_after[0]:
                    out.put(ingest_pb2.StreamSamplesResponse(throttle=script.throttle_after[1]))
                if count == script.drain_after:
                    drain = ingest_pb2.Drain(grace_ms=2000, preferred_target=script.preferred_target)
                    out.put(ingest_pb2.StreamSamplesResponse(drain=drain))
                if count == script.die_after:
                    out.put(grpc.StatusCode.INTERNAL)
                    return
                if count == script.close_after:
                    out.put(_END)
                    return
        except grpc.RpcError:
            pass
        out.put(_END)
