"""An agent reduced to the wire: builds records, streams them, reads answers. Written against the protos alone."""

from __future__ import annotations

import itertools
import queue
import time

import grpc
import numpy as np

from gpusonde.common.v1 import gpu_pb2, metric_pb2
from gpusonde.ingest.v1 import ingest_pb2, ingest_pb2_grpc
from gpusonde.service.tls import ClientSecurity
from gpusonde.telemetry import MetricKind, Unit, metric

UNITS = {unit: metric_pb2.Unit.Value(f"UNIT_{unit.name}") for unit in Unit}
METRICS = ("sm_active", "power_watts", "framebuffer_used_bytes")
START_NS = 1_700_000_000_000_000_000
TICK_NS = 100_000_000


def hello(agent_id="agent-1", spool_id="spool-1", first=1, start=1_000, instance="instance-1", **more):
    return ingest_pb2.Hello(
        agent_id=agent_id,
        spool_id=spool_id,
        first_available_sequence=first,
        agent_start_time_unix_nano=start,
        instance_id=instance,
        host=gpu_pb2.Host(host_name="host-1"),
        encodings=[ingest_pb2.ENCODING_FLOAT32_LE],
        **more,
    )


def descriptor(name):
    known = metric(name)
    kind = metric_pb2.METRIC_KIND_COUNTER if known.kind is MetricKind.COUNTER else metric_pb2.METRIC_KIND_GAUGE
    return metric_pb2.MetricDescriptor(name=name, unit=UNITS[known.unit], kind=kind)


def gpu(uuid="GPU-a", model="Tesla T4", **more):
    return gpu_pb2.Gpu(gpu_uuid=uuid, product_name=model, **more)


def inventory(sequence=1, metrics=METRICS, gpus=("GPU-a",), **gpu_facts):
    return ingest_pb2.Record(
        sequence=sequence,
        inventory=ingest_pb2.Inventory(
            gpus=[g if isinstance(g, gpu_pb2.Gpu) else gpu(g, **gpu_facts) for g in gpus],
            metrics=[descriptor(name) for name in metrics],
            source="test",
            sampling_interval_us=100_000,
        ),
    )


def block(first_tick=0, ticks=10, values=None, metrics=METRICS, gpu_index=0, start_ns=START_NS, bases=(), missed=0):
    """Ticks ``first_tick`` and following of a 10 Hz stream; by default every value is its tick's number modulo 1."""
    if values is None:
        values = np.tile((np.arange(first_tick, first_tick + ticks) % 100) / 100, (len(metrics), 1))
    return ingest_pb2.GpuBlock(
        gpu=gpu_index,
        tick_count=ticks,
        start_time_unix_nano=start_ns + first_tick * TICK_NS,
        tick_offsets_us=(np.arange(ticks) * (TICK_NS // 1000)).astype("<i4").tobytes(),
        values=np.asarray(values, dtype="<f4").tobytes(),
        counter_bases=bases,
        missed_ticks=missed,
    )


def batch(sequence, *blocks, encoding=ingest_pb2.ENCODING_FLOAT32_LE):
    """Without blocks: ten ticks that follow those of ``sequence - 1``, the first batch being number 2."""
    blocks = blocks or (block(first_tick=10 * (sequence - 2)),)
    return ingest_pb2.Record(sequence=sequence, batch=ingest_pb2.SampleBatch(blocks=blocks, encoding=encoding))


def source_ended(sequence, *gpus):
    return ingest_pb2.Record(sequence=sequence, source_ended=ingest_pb2.SourceEnded(gpus=gpus or [0]))


class StreamEnded(Exception):
    """The collector ended the stream."""

    def __init__(self, code, details):
        self.code, self.details = code, details
        super().__init__(f"{code}: {details}")


class WireStream:
    """One stream. Everything waits at most ``timeout_s`` and then fails the test."""

    def __init__(self, target, greeting, timeout_s=200.0, security=None):
        access = (security or ClientSecurity()).load(target)
        options = [("grpc.use_local_subchannel_pool", 1), *access.options]
        self._channel = (
            grpc.secure_channel(target, access.credentials, options)
            if access.credentials
            else grpc.insecure_channel(target, options)
        )
        self._out = queue.SimpleQueue()
        self._call = ingest_pb2_grpc.IngestServiceStub(self._channel).StreamSamples(
            iter(self._out.get, None), timeout=timeout_s, wait_for_ready=True, metadata=access.metadata
        )
        self.acked = 0
        self.drain = None
        if greeting is not None:
            self._out.put(ingest_pb2.StreamSamplesRequest(hello=greeting))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._out.put(None)
        self._call.cancel()
        self._channel.close()

    def next(self):
        try:
            return next(self._call)
        except StopIteration:
            raise StreamEnded("OK", "") from None
        except grpc.RpcError as error:
            raise StreamEnded(error.code().name, error.details()) from None

    def greet(self):
        """Read HelloAck and return it."""
        ack = self.next().hello_ack
        self.acked = ack.durable_sequence
        return ack

    def send(self, *records):
        for record in records:
            self._out.put(ingest_pb2.StreamSamplesRequest(record=record))
        return self

    def send_serialized(self, record):
        self._out.put(ingest_pb2.StreamSamplesRequest(record=ingest_pb2.Record.FromString(record)))

    def send_raw(self, request):
        self._out.put(request)
        return self

    def finish(self):
        """Half-close."""
        self._out.put(None)
        return self

    def wait_acked(self, sequence):
        while self.acked < sequence:
            answer = self.next()
            if answer.HasField("ack"):
                self.acked = answer.ack.durable_sequence
        return self

    def end(self):
        """Read to the end and return its status and text."""
        try:
            while True:
                answer = self.next()
                if answer.HasField("ack"):
                    self.acked = answer.ack.durable_sequence
                elif answer.HasField("drain"):
                    self.drain = answer.drain
        except StreamEnded as ended:
            return ended.code, ended.details


def wait_for_growth(value, target, what, stalled_s=60.0):
    """Wait until ``value()`` is above ``target``, however long that takes, as long as it grows now and then."""
    newest, deadline = value(), time.monotonic() + stalled_s
    while newest <= target:
        assert time.monotonic() < deadline, f"{what}: {newest} of {target}, and no more for {stalled_s} s"
        time.sleep(0.02)
        if (now := value()) > newest:
            newest, deadline = now, time.monotonic() + stalled_s
    return newest


def wait_until(condition, timeout_s=120.0, what="the condition"):
    """Poll until ``condition()`` is true and return its value."""
    deadline = time.monotonic() + timeout_s
    for _ in itertools.count():
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what} did not come true within {timeout_s} s"
        time.sleep(0.02)
    return None
