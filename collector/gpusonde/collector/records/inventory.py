"""Validation of inventories: the GPUs and columns that batches refer to."""

from __future__ import annotations

from gpusonde.collector.records.errors import RecordError
from gpusonde.collector.records.fields import check_count, check_finite, check_text
from gpusonde.collector.records.limits import Limits
from gpusonde.collector.records.model import GpuDescription, InventoryRecord, Layout
from gpusonde.common.v1 import gpu_pb2, metric_pb2
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.telemetry import METRIC_BY_NAME, MetricKind, Unit, UnknownMetricError, metric

_WIRE_UNIT = {
    Unit.RATIO: metric_pb2.UNIT_RATIO,
    Unit.BYTES: metric_pb2.UNIT_BYTES,
    Unit.BYTES_PER_SECOND: metric_pb2.UNIT_BYTES_PER_SECOND,
    Unit.WATTS: metric_pb2.UNIT_WATTS,
    Unit.JOULES: metric_pb2.UNIT_JOULES,
    Unit.CELSIUS: metric_pb2.UNIT_CELSIUS,
    Unit.MEGAHERTZ: metric_pb2.UNIT_MEGAHERTZ,
    Unit.COUNT: metric_pb2.UNIT_COUNT,
}
_WIRE_KIND = {
    MetricKind.GAUGE: metric_pb2.METRIC_KIND_GAUGE,
    MetricKind.COUNTER: metric_pb2.METRIC_KIND_COUNTER,
}
_LONGEST_INTERVAL_US = 3_600_000_000


def decode_inventory(message: ingest_pb2.Inventory, limits: Limits) -> InventoryRecord:
    """Check an inventory and turn it into its decoded form.

    Raises:
        RecordError: A field is out of its bounds, a metric is unknown or its unit or kind is not the catalogue's.
    """
    if not message.gpus:
        raise RecordError("inventory.gpus", "is empty; an inventory names at least one GPU")
    if not message.metrics:
        raise RecordError("inventory.metrics", "is empty; an inventory names at least one metric")
    check_count(message.gpus, "inventory.gpus", limits.gpus)
    check_count(message.metrics, "inventory.metrics", limits.metrics)
    if not 0 < message.sampling_interval_us <= _LONGEST_INTERVAL_US:
        raise RecordError(
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
            raise RecordError(f"{field}.name", str(error)) from None
        if descriptor.unit != _WIRE_UNIT[known.unit]:
            raise RecordError(
                f"{field}.unit",
                f"{known.name} is measured in {known.unit.value}, not in unit number {descriptor.unit}",
            )
        if descriptor.kind != _WIRE_KIND[known.kind]:
            raise RecordError(f"{field}.kind", f"{known.name} is a {known.kind.value}")
        if known.kind is MetricKind.COUNTER:
            counters.append(i)
        names.append(known.name)
    _refuse_twice(names, "inventory.metrics", "metric")
    return Layout(tuple(names), tuple(counters))


def _gpu(gpu: gpu_pb2.Gpu, field: str, limits: Limits) -> GpuDescription:
    key = check_text(gpu.gpu_uuid, f"{field}.gpu_uuid", limits.text, required=True)
    if gpu.mig_uuid:
        key = check_text(gpu.mig_uuid, f"{field}.mig_uuid", limits.text)
    check_text(gpu.product_name, f"{field}.product_name", limits.text)
    check_text(gpu.pci_bus_id, f"{field}.pci_bus_id", limits.text)
    check_text(gpu.driver_version, f"{field}.driver_version", limits.text)
    check_count(gpu.static_attributes, f"{field}.static_attributes", limits.items)
    check_count(gpu.missing_metrics, f"{field}.missing_metrics", limits.metrics)
    if gpu.framebuffer_bytes >= 1 << 63:
        raise RecordError(f"{field}.framebuffer_bytes", f"{gpu.framebuffer_bytes} is no size of a memory")
    attributes = {}
    for i, attribute in enumerate(gpu.static_attributes):
        name = check_text(attribute.name, f"{field}.static_attributes[{i}].name", limits.text, required=True)
        attributes[name] = check_finite(attribute.value, f"{field}.static_attributes[{i}].value")
    missing = frozenset(entry.metric for entry in gpu.missing_metrics if entry.metric in METRIC_BY_NAME)
    return GpuDescription(
        key, gpu.product_name, gpu.framebuffer_bytes, attributes, missing, gpu.replayed, gpu.SerializeToString()
    )


def _refuse_twice(names: list[str], field: str, what: str) -> None:
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name in seen:
            raise RecordError(f"{field}[{i}]", f"{what} {name!r} appears twice")
        seen.add(name)
