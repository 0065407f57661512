"""Validation of records and greetings."""

from __future__ import annotations

from gpusonde.collector.records.batch import decode_batch
from gpusonde.collector.records.errors import MissingInventoryError, RecordError, RecordTooLargeError
from gpusonde.collector.records.fields import check_count, check_identity, check_index, check_text, check_time
from gpusonde.collector.records.inventory import decode_inventory
from gpusonde.collector.records.limits import Limits
from gpusonde.collector.records.model import (
    Binding,
    BindingsRecord,
    Decoded,
    EventsRecord,
    GpuEvent,
    InventoryRecord,
    LossRecord,
    SourceEndedRecord,
)
from gpusonde.common.v1 import job_pb2
from gpusonde.ingest.v1 import ingest_pb2

_LARGEST_SEQUENCE = (1 << 63) - 1
# What is said of the host is kept as it came, with fields that we do not know yet.
_LARGEST_HELLO_BYTES = 1 << 14


def check_hello(hello: ingest_pb2.Hello, limits: Limits) -> None:
    """Check the first message of a stream.

    Raises:
        RecordTooLargeError: It is larger than anybody's.
        RecordError: A field is out of its bounds.
    """
    if (size := hello.ByteSize()) > _LARGEST_HELLO_BYTES:
        raise RecordTooLargeError("hello", f"has {size} bytes, at most {_LARGEST_HELLO_BYTES} are taken")
    check_identity(hello.agent_id, "hello.agent_id")
    check_identity(hello.spool_id, "hello.spool_id")
    check_identity(hello.instance_id, "hello.instance_id")
    check_text(hello.agent_version, "hello.agent_version", limits.text)
    check_text(hello.host.host_name, "hello.host.host_name", limits.text)
    check_text(hello.host.kernel_release, "hello.host.kernel_release", limits.text)
    check_text(hello.host.cpu_model, "hello.host.cpu_model", limits.text)
    check_count(hello.encodings, "hello.encodings", limits.items)
    check_time(hello.agent_start_time_unix_nano, "hello.agent_start_time_unix_nano")
    if not 0 < hello.first_available_sequence <= _LARGEST_SEQUENCE:
        raise RecordError("hello.first_available_sequence", "sequences begin with 1")


def decode_record(record: ingest_pb2.Record, inventory: InventoryRecord | None, limits: Limits) -> Decoded:
    """Check one record and turn it into its decoded form.

    Args:
        record: The message.
        inventory: The latest inventory before it in the same spool, or None.
        limits: Caps.

    Raises:
        RecordTooLargeError: It is larger than ``limits.record_bytes``.
        MissingInventoryError: It refers to GPUs and there is no inventory.
        RecordError: Any other fault, with the field that has it.
    """
    size = record.ByteSize()
    if size > limits.record_bytes:
        raise RecordTooLargeError(
            "record", f"has {size} bytes, at most {limits.record_bytes} are taken (HelloAck.max_record_bytes)"
        )
    payload = record.WhichOneof("payload")
    if payload == "inventory":
        return decode_inventory(record.inventory, limits)
    if payload == "job_bindings":
        return _bindings(record.job_bindings, limits)
    if payload == "loss_report":
        return _loss(record.loss_report)
    if payload is None:
        raise RecordError("record.payload", "is empty or newer than this collector; update the collector")
    if inventory is None:
        raise MissingInventoryError(f"record.{payload}", "comes before any Inventory of this spool; send one first")
    if payload == "batch":
        return decode_batch(record.batch, inventory, limits)
    if payload == "gpu_events":
        return _events(record.gpu_events, inventory, limits)
    return _source_ended(record.source_ended, inventory, limits)


def _bindings(message: ingest_pb2.JobBindings, limits: Limits) -> BindingsRecord:
    check_count(message.bindings, "job_bindings.bindings", limits.items)
    return BindingsRecord(
        tuple(_binding(b, f"job_bindings.bindings[{i}]", limits) for i, b in enumerate(message.bindings))
    )


def _binding(binding: job_pb2.JobBinding, field: str, limits: Limits) -> Binding:
    start = check_time(binding.start_time_unix_nano, f"{field}.start_time_unix_nano")
    end = binding.end_time_unix_nano
    if end and check_time(end, f"{field}.end_time_unix_nano") < start:
        raise RecordError(f"{field}.end_time_unix_nano", "comes before start_time_unix_nano")
    check_count(binding.labels, f"{field}.labels", limits.labels)
    for key, value in binding.labels.items():
        check_text(key, f"{field}.labels", limits.text, required=True)
        check_text(value, f"{field}.labels[{key}]", limits.text)
    return Binding(
        check_text(binding.gpu_uuid, f"{field}.gpu_uuid", limits.text, required=True),
        check_text(binding.job_id, f"{field}.job_id", limits.text, required=True),
        binding.scheduler,
        start,
        end,
        dict(binding.labels),
    )


def _loss(message: ingest_pb2.LossReport) -> LossRecord:
    first, last = message.first_lost_sequence, message.last_lost_sequence
    if max(first, last, message.lost_ticks) > _LARGEST_SEQUENCE:
        raise RecordError("loss_report", "numbers above 2^63 - 1 are not taken")
    # Ticks that never became records (a full disk) have no sequence numbers: both are zero then.
    if last < first or (first == 0) != (last == 0):
        raise RecordError("loss_report.last_lost_sequence", f"{last} does not close a range that begins at {first}")
    return LossRecord(first, last, message.reason, message.lost_ticks)


def _events(message: ingest_pb2.GpuEvents, inventory: InventoryRecord, limits: Limits) -> EventsRecord:
    check_count(message.events, "gpu_events.events", limits.items)
    events = []
    for i, event in enumerate(message.events):
        field = f"gpu_events.events[{i}]"
        gpu = inventory.gpus[check_index(event.gpu, f"{field}.gpu", len(inventory.gpus), "GPUs")]
        time = check_time(event.time_unix_nano, f"{field}.time_unix_nano")
        events.append(GpuEvent(gpu.gpu_uuid, time, event.kind, event.value))
    return EventsRecord(tuple(events))


def _source_ended(message: ingest_pb2.SourceEnded, inventory: InventoryRecord, limits: Limits) -> SourceEndedRecord:
    check_count(message.gpus, "source_ended.gpus", limits.gpus)
    return SourceEndedRecord(
        tuple(
            inventory.gpus[check_index(gpu, f"source_ended.gpus[{i}]", len(inventory.gpus), "GPUs")].gpu_uuid
            for i, gpu in enumerate(message.gpus)
        )
    )
