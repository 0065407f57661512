"""The same samples as messages of several shapes through one gRPC server: CPU and bytes per sample.

As a script it is the server; it tells its port, and at the end of each stream what the stream cost.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from workload import TICKS_PER_SECOND, WIRE_METRICS, GpuStream, generated_jobs, inventory_record, jittered_offsets

from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.wire import InventoryRecord, Limits, decode_record

GPUS = 8
_ACK_EVERY = 10
_SAMPLES_PER_SECOND = GPUS * TICKS_PER_SECOND * len(WIRE_METRICS)
_FIELD = descriptor_pb2.FieldDescriptorProto


@dataclass(frozen=True)
class ShapeCost:
    """What one shape costs.

    Attributes:
        name: The shape.
        messages_per_second: Of one host.
        bytes_per_sample: On the wire, without HTTP/2.
        cpu_us_per_sample: Of the server.
        gpus_per_core: That one core would take.
    """

    name: str
    messages_per_second: float
    bytes_per_sample: float
    cpu_us_per_sample: float

    @property
    def gpus_per_core(self) -> float:
        """GPUs at 10 Hz whose samples one core takes."""
        return 1e6 / (self.cpu_us_per_sample * TICKS_PER_SECOND * len(WIRE_METRICS))


def _messages() -> dict[str, Any]:
    """Messages that the product does not have, made here."""
    file = descriptor_pb2.FileDescriptorProto(name="shapes.proto", package="shapes", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, bool]) -> None:
        made = file.message_type.add(name=name)
        for number, (field, kind, repeated) in enumerate(fields, 1):
            label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
            added = made.field.add(name=field, number=number, type=kind, label=label)
            if kind == _FIELD.TYPE_MESSAGE:
                added.type_name = ".shapes.Block" if name == "Batch" else ".shapes.Sample"

    message("Tick", ("gpu_uuid", _FIELD.TYPE_STRING, False), ("time_unix_nano", _FIELD.TYPE_SFIXED64, False),
            ("values", _FIELD.TYPE_FLOAT, True))  # fmt: skip
    message("Block", ("gpu", _FIELD.TYPE_UINT32, False), ("offsets_us", _FIELD.TYPE_INT32, True),
            ("values", _FIELD.TYPE_FLOAT, True))  # fmt: skip
    message("Batch", ("start_unix_nano", _FIELD.TYPE_SFIXED64, False), ("blocks", _FIELD.TYPE_MESSAGE, True))
    message("Sample", ("metric", _FIELD.TYPE_STRING, False), ("value", _FIELD.TYPE_FLOAT, False))
    message("NamedTick", ("gpu_uuid", _FIELD.TYPE_STRING, False), ("time_unix_nano", _FIELD.TYPE_SFIXED64, False),
            ("samples", _FIELD.TYPE_MESSAGE, True))  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"shapes.{name}") for name in ("Tick", "Batch", "NamedTick")}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()}


def _values(second: int) -> list[np.ndarray]:
    jobs = generated_jobs(2, 60)
    return [GpuStream(jobs[gpu % 2], 7 * gpu).values(second % 60).astype(np.float32) for gpu in range(GPUS)]


def _columnar(seconds: int) -> Iterator[bytes]:
    jobs, offsets = generated_jobs(2, 60), jittered_offsets()
    streams = [GpuStream(jobs[gpu % 2], 7 * gpu) for gpu in range(GPUS)]
    first = inventory_record(0, GPUS)
    first.sequence = 1
    yield first.SerializeToString()
    for second in range(seconds):
        record = ingest_pb2.Record(sequence=second + 2)
        record.batch.encoding = ingest_pb2.ENCODING_FLOAT32_LE_ZSTD
        for gpu, stream in enumerate(streams):
            stream.fill(record.batch.blocks.add(), gpu, second, 10**18 + second * 10**9, offsets[second % len(offsets)])
        yield record.SerializeToString()


def _per_tick(seconds: int) -> Iterator[bytes]:
    tick = _messages()["Tick"]
    blocks = _values(0)
    made = [
        tick(gpu_uuid=f"GPU-{gpu:032d}", time_unix_nano=10**18 + i, values=blocks[gpu][:, i].tolist())
        for i in range(TICKS_PER_SECOND)
        for gpu in range(GPUS)
    ]
    data = [message.SerializeToString() for message in made]
    for _ in range(seconds):
        yield from data


def _named(seconds: int) -> Iterator[bytes]:
    tick = _messages()["NamedTick"]
    blocks = _values(0)
    data = []
    for i in range(TICKS_PER_SECOND):
        for gpu in range(GPUS):
            message = tick(gpu_uuid=f"GPU-{gpu:032d}", time_unix_nano=10**18 + i)
            for metric, value in zip(WIRE_METRICS, blocks[gpu][:, i].tolist(), strict=True):
                message.samples.add(metric=metric.name, value=value)
            data.append(message.SerializeToString())
    for _ in range(seconds):
        yield from data


def _repeated(seconds: int) -> Iterator[bytes]:
    batch = _messages()["Batch"]
    message = batch(start_unix_nano=10**18)
    for gpu, block in enumerate(_values(0)):
        offsets = np.arange(TICKS_PER_SECOND) * 100_000
        message.blocks.add(gpu=gpu, offsets_us=offsets.tolist(), values=block.ravel().tolist())
    data = message.SerializeToString()
    for _ in range(seconds):
        yield data


class _Taker:
    """Turns messages into arrays, as a collector must before it can store them."""

    def __init__(self) -> None:
        self._inventory: InventoryRecord | None = None
        self._limits = Limits()
        self._classes = _messages()

    def columnar(self, data: bytes) -> int:
        record = ingest_pb2.Record.FromString(data)
        decoded = decode_record(record, self._inventory, self._limits)
        if isinstance(decoded, InventoryRecord):
            self._inventory = decoded
            return 0
        return sum(block.values.size for block in decoded.blocks)  # type: ignore[union-attr]

    def per_tick(self, data: bytes) -> int:
        return int(np.array(self._classes["Tick"].FromString(data).values, dtype=np.float32).size)

    def named(self, data: bytes) -> int:
        message = self._classes["NamedTick"].FromString(data)
        return len({sample.metric: sample.value for sample in message.samples})

    def repeated(self, data: bytes) -> int:
        blocks = self._classes["Batch"].FromString(data).blocks
        return sum(np.array(block.values, dtype=np.float32).size for block in blocks)


SHAPES: dict[str, tuple[str, Callable[[int], Iterator[bytes]], float]] = {
    "columnar": ("**ours**: columns as bytes, zstd, one message per host and second", _columnar, 1.0),
    "repeated": ("repeated float, one message per host and second", _repeated, 1.0),
    "per_tick": ("repeated float, one message per GPU and tick", _per_tick, GPUS * TICKS_PER_SECOND),
    "named": ("named values, one message per GPU and tick", _named, GPUS * TICKS_PER_SECOND),
}


async def _serve() -> None:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 1 << 24)])

    def handler(take: Callable[[bytes], int]) -> grpc.RpcMethodHandler:
        async def stream(requests: AsyncIterator[bytes], context: Any) -> None:
            begin, samples, count = time.process_time(), 0, 0
            async for data in requests:
                samples += take(data)
                count += 1
                if count % _ACK_EVERY == 0:
                    await context.write(b"")
            cost = {"cpu_s": time.process_time() - begin, "samples": samples, "messages": count}
            await context.write(json.dumps(cost).encode())

        return grpc.stream_stream_rpc_method_handler(stream)

    taker = _Taker()
    handlers = {name: handler(getattr(taker, name)) for name in SHAPES}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("shapes.Shapes", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


def compare(seconds: int) -> list[ShapeCost]:
    """Send so many host-seconds of each shape as fast as the server takes them."""
    server = subprocess.Popen([sys.executable, str(Path(__file__))], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        target = f"127.0.0.1:{int(server.stdout.readline())}"
        costs = []
        for name, (description, make, per_second) in SHAPES.items():
            # A message per tick takes ten times as long; a tenth tells as much.
            length = max(1, seconds if per_second == 1.0 else seconds // 10)
            sizes = [len(data) for data in make(2)]
            with grpc.insecure_channel(target) as channel:
                answers = list(channel.stream_stream(f"/shapes.Shapes/{name}")(make(length)))
            cost = json.loads(answers[-1])
            size = sum(sizes[-int(per_second) :])
            costs.append(
                ShapeCost(description, per_second, size / _SAMPLES_PER_SECOND, 1e6 * cost["cpu_s"] / cost["samples"])
            )
    finally:
        server.kill()
        server.wait()
    return costs


if __name__ == "__main__":
    asyncio.run(_serve())
