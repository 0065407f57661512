"""Records and greetings from the wire to their decoded form, with every field checked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpusonde.common.v1 import gpu_pb2, job_pb2
from gpusonde.errors import WireError
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.wire.blocks import decode_batch
from gpusonde.service.wire.model import (
    KINDS,
    UNITS,
    ActivityRecord,
    Binding,
    BindingsRecord,
    DecodedRecord,
    EventsRecord,
    GpuEvent,
    Int64Array,
    InventoryGpu,
    InventoryRecord,
    JobActivity,
    Layout,
    Limits,
    LossRecord,
    SourceEndedRecord,
    check_count,
    check_finite,
    check_identity,
    check_index,
    check_text,
    check_time,
)
from gpusonde.telemetry import METRIC_BY_NAME, MetricKind, UnknownMetricError, metric

_LONGEST_INTERVAL_US = 3_600_000_000


def decode_inventory(message: ingest_pb2.Inventory, limits: Limits) -> InventoryRecord:
    """Check an inventory and turn it into its decoded form.

    Raises:
        WireError: A field is out of its bounds, a metric is unknown or its unit or kind is not the catalogue's.
    """
    if not message.gpus:
        raise WireError("inventory.gpus", "is empty; an inventory names at least one GPU")
    if not message.metrics:
        raise WireError("inventory.metrics", "is empty; an inventory names at least one metric")
    check_count(message.gpus, "inventory.gpus", limits.gpus)
    check_count(message.metrics, "inventory.metrics", limits.metrics)
    if not 0 < message.sampling_interval_us <= _LONGEST_INTERVAL_US:
        raise WireError(
            "inventory.sampling_interval_us", f"{message.sampling_interval_us} is not between 1 us and one hour"
        )
    check_text(message.source, "inventory.source", limits.text)
    gpus = tuple(_gpu(gpu, f"inventory.gpus[{i}]", limits) for i, gpu in enumerate(message.gpus))
    _refuse_twice([gpu.gpu_uuid for gpu in gpus], "inventory.gpus", "gpu_uuid")
    return InventoryRecord(gpus, _layout(message), message.source, message.sampling_interval_us)


def _layout(message: ingest_pb2.Inventory) -> Layout:
    names: list[str] = []
    counters: list[int] = []
    for i, descriptor in enumerate(message.metrics):
        field = f"inventory.metrics[{i}]"
        try:
            known = metric(descriptor.name)
        except UnknownMetricError as error:
            raise WireError(f"{field}.name", str(error)) from None
        if descriptor.unit != UNITS[known.unit]:
            raise WireError(
                f"{field}.unit",
                f"{known.name} is measured in {known.unit.value}, not in unit number {descriptor.unit}",
            )
        if descriptor.kind != KINDS[known.kind]:
            raise WireError(f"{field}.kind", f"{known.name} is a {known.kind.value}")
        if known.kind is MetricKind.COUNTER:
            counters.append(i)
        names.append(known.name)
    _refuse_twice(names, "inventory.metrics", "metric")
    return Layout(tuple(names), tuple(counters))


def _gpu(gpu: gpu_pb2.Gpu, field: str, limits: Limits) -> InventoryGpu:
    key = check_text(gpu.gpu_uuid, f"{field}.gpu_uuid", limits.text, required=True)
    if gpu.mig_uuid:
        key = check_text(gpu.mig_uuid, f"{field}.mig_uuid", limits.text)
    check_text(gpu.product_name, f"{field}.product_name", limits.text)
    check_text(gpu.pci_bus_id, f"{field}.pci_bus_id", limits.text)
    check_text(gpu.driver_version, f"{field}.driver_version", limits.text)
    check_count(gpu.static_attributes, f"{field}.static_attributes", limits.items)
    check_count(gpu.missing_metrics, f"{field}.missing_metrics", limits.metrics)
    if gpu.framebuffer_bytes >= 1 << 63:
        raise WireError(f"{field}.framebuffer_bytes", f"{gpu.framebuffer_bytes} is no size of a memory")
    attributes = {}
    for i, attribute in enumerate(gpu.static_attributes):
        name = check_text(attribute.name, f"{field}.static_attributes[{i}].name", limits.text, required=True)
        attributes[name] = check_finite(attribute.value, f"{field}.static_attributes[{i}].value")
    missing = frozenset(entry.metric for entry in gpu.missing_metrics if entry.metric in METRIC_BY_NAME)
    return InventoryGpu(
        key, gpu.product_name, gpu.framebuffer_bytes, attributes, missing, gpu.replayed, gpu.SerializeToString()
    )


def _refuse_twice(names: list[str], field: str, what: str) -> None:
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name in seen:
            raise WireError(f"{field}[{i}]", f"{what} {name!r} appears twice")
        seen.add(name)


_LARGEST_SEQUENCE = (1 << 63) - 1
# What is said of the host is kept as it came, with fields that we do not know yet.
_LARGEST_HELLO_BYTES = 1 << 14


def check_hello(hello: ingest_pb2.Hello, limits: Limits) -> None:
    """Check the first message of a stream.

    Raises:
        WireError: It is larger than anybody's, or a field is out of its bounds.
    """
    if (size := hello.ByteSize()) > _LARGEST_HELLO_BYTES:
        raise WireError(
            "hello", f"has {size} bytes, at most {_LARGEST_HELLO_BYTES} are taken", status="RESOURCE_EXHAUSTED"
        )
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
        raise WireError("hello.first_available_sequence", "sequences begin with 1")
    if hello.first_sequence > hello.first_available_sequence:
        raise WireError("hello.first_sequence", "is behind hello.first_available_sequence")
    check_count(hello.marks, "hello.marks", limits.items)
    for mark in hello.marks:
        check_identity(mark.gpu_uuid, "hello.marks.gpu_uuid")
        check_time(mark.tick_time_unix_nano, "hello.marks.tick_time_unix_nano")
        if not 0 < mark.sequence <= _LARGEST_SEQUENCE:
            raise WireError("hello.marks.sequence", "sequences begin with 1")


def check_records(request: ingest_pb2.StreamSamplesRequest, limits: Limits) -> Sequence[ingest_pb2.Record]:
    """Check a message behind Hello and return its records.

    Raises:
        WireError: It has none, too many, or something beside them.
    """
    kind = request.WhichOneof("payload")
    if kind == "record" and not request.records:
        return [request.record]
    if kind is not None or not request.records:
        raise WireError("request", "Hello comes once; later messages carry a Record, or records and nothing else")
    if (count := len(request.records)) > limits.records:
        raise WireError(
            "request.records",
            f"has {count} records, at most {limits.records} are taken (HelloAck.max_records_per_request)",
        )
    return request.records


def decode_record(record: ingest_pb2.Record, inventory: InventoryRecord | None, limits: Limits) -> DecodedRecord:
    """Check one record and turn it into its decoded form.

    Args:
        record: The message.
        inventory: The latest inventory before it in the same spool, or None.
        limits: Caps.

    Raises:
        WireError: It is larger than ``limits.record_bytes``, refers to GPUs and there is no inventory, or a field is
            out of its bounds.
    """
    size = record.ByteSize()
    if size > limits.record_bytes:
        raise WireError(
            "record",
            f"has {size} bytes, at most {limits.record_bytes} are taken (HelloAck.max_record_bytes)",
            status="RESOURCE_EXHAUSTED",
        )
    payload = record.WhichOneof("payload")
    if payload == "inventory":
        return decode_inventory(record.inventory, limits)
    if payload == "job_bindings":
        return _bindings(record.job_bindings, limits)
    if payload == "loss_report":
        return _loss(record.loss_report)
    if payload == "job_activity":
        return decode_activity(record.job_activity, limits)
    if payload is None:
        raise WireError("record.payload", "is empty or newer than this collector; update the collector")
    if inventory is None:
        raise WireError(
            f"record.{payload}",
            "comes before any Inventory of this spool; send one first",
            status="FAILED_PRECONDITION",
        )
    if payload == "batch":
        return decode_batch(record.batch, inventory, limits)
    if payload == "gpu_events":
        return _events(record.gpu_events, inventory, limits)
    return _source_ended(record.source_ended, inventory, limits)


# A longer time without a look is no activity.
_LONGEST_ACTIVITY_MS = 3_600_000
_MOST_PROCESSES = 1 << 22


def decode_activity(message: ingest_pb2.JobActivity, limits: Limits) -> ActivityRecord:
    """Check what processes of jobs did and turn it into its decoded form.

    Raises:
        WireError: A field is out of its bounds.
    """
    start = check_time(message.start_time_unix_nano, "job_activity.start_time_unix_nano")
    check_count(message.offsets_ms, "job_activity.offsets_ms", limits.items)
    check_count(message.groups, "job_activity.groups", limits.gpus)
    offsets = np.array(message.offsets_ms, dtype=np.int64)
    if offsets.size and (np.any(np.diff(offsets) <= 0) or offsets[-1] > _LONGEST_ACTIVITY_MS):
        raise WireError("job_activity.offsets_ms", "does not increase, or goes beyond an hour")
    times = start + 1_000_000 * offsets
    return ActivityRecord(
        tuple(
            _activity(group, times, message, f"job_activity.groups[{i}]", limits)
            for i, group in enumerate(message.groups)
        )
    )


def _activity(
    group: ingest_pb2.ProcessGroupActivity,
    times: Int64Array,
    message: ingest_pb2.JobActivity,
    field: str,
    limits: Limits,
) -> JobActivity:
    check_count(group.gpu_uuids, f"{field}.gpu_uuids", limits.gpus)
    for gpu in group.gpu_uuids:
        check_text(gpu, f"{field}.gpu_uuids", limits.text, required=True)
    for name, count in (("processes", group.processes), ("holders", group.holders)):
        if count > _MOST_PROCESSES:
            raise WireError(f"{field}.{name}", f"{count} are more than a host can have")
    columns = (
        ("forks", group.forks, 1.0), ("exits", group.exits, 1.0), ("lifetime_ms", group.lifetime_ms, 1e-3),
        ("read_bytes", group.read_bytes, 1.0), ("written_bytes", group.written_bytes, 1.0),
        ("processor_ms", group.processor_ms, 1e-3),
    )  # fmt: skip
    values = np.full((len(columns), times.size), np.nan)
    for i, (name, column, unit) in enumerate(columns):
        if len(column) not in (0, times.size):
            raise WireError(f"{field}.{name}", f"has {len(column)} values for {times.size} looks")
        if column:
            values[i] = np.array(column, dtype=np.float64) * unit
    alone = ingest_pb2.JobActivity(
        start_time_unix_nano=message.start_time_unix_nano, offsets_ms=message.offsets_ms, groups=[group]
    )
    holders = group.holders if group.HasField("holders") else None
    gpus, text = tuple(group.gpu_uuids), alone.SerializeToString()
    return JobActivity(gpus, times, values, text, holders=holders, processes=group.processes)


def _bindings(message: ingest_pb2.JobBindings, limits: Limits) -> BindingsRecord:
    check_count(message.bindings, "job_bindings.bindings", limits.items)
    return BindingsRecord(
        tuple(_binding(b, f"job_bindings.bindings[{i}]", limits) for i, b in enumerate(message.bindings))
    )


def _binding(binding: job_pb2.JobBinding, field: str, limits: Limits) -> Binding:
    start = check_time(binding.start_time_unix_nano, f"{field}.start_time_unix_nano")
    end = binding.end_time_unix_nano
    if end and check_time(end, f"{field}.end_time_unix_nano") < start:
        raise WireError(f"{field}.end_time_unix_nano", "comes before start_time_unix_nano")
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
        raise WireError("loss_report", "numbers above 2^63 - 1 are not taken")
    # Ticks that never became records (a full disk) have no sequence numbers: both are zero then.
    if last < first or (first == 0) != (last == 0):
        raise WireError("loss_report.last_lost_sequence", f"{last} does not close a range that begins at {first}")
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
