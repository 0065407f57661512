"""Our own words -> the messages of ``gpusonde.ingest.v1``, apart from the sample batches (see ``batch``)."""

from __future__ import annotations

from collections.abc import Iterable

from gpusonde.agent.sources.base import (
    GpuDescription,
    GpuEvent,
    GpuEventKind,
    SourceInventory,
    StaticOrigin,
)
from gpusonde.common.v1 import gpu_pb2, metric_pb2
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.telemetry import BlankReason, Metric, MetricKind, SamplingClass, Unit

UNITS = {
    Unit.RATIO: metric_pb2.UNIT_RATIO,
    Unit.BYTES: metric_pb2.UNIT_BYTES,
    Unit.BYTES_PER_SECOND: metric_pb2.UNIT_BYTES_PER_SECOND,
    Unit.WATTS: metric_pb2.UNIT_WATTS,
    Unit.JOULES: metric_pb2.UNIT_JOULES,
    Unit.CELSIUS: metric_pb2.UNIT_CELSIUS,
    Unit.MEGAHERTZ: metric_pb2.UNIT_MEGAHERTZ,
    Unit.COUNT: metric_pb2.UNIT_COUNT,
}
KINDS = {
    MetricKind.GAUGE: metric_pb2.METRIC_KIND_GAUGE,
    MetricKind.COUNTER: metric_pb2.METRIC_KIND_COUNTER,
}
SAMPLING_CLASSES = {
    SamplingClass.FAST: metric_pb2.SAMPLING_CLASS_FAST,
    SamplingClass.SLOW: metric_pb2.SAMPLING_CLASS_SLOW,
}
BLANK_REASONS = {
    BlankReason.NOT_SUPPORTED: gpu_pb2.BLANK_REASON_NOT_SUPPORTED,
    BlankReason.NO_PERMISSION: gpu_pb2.BLANK_REASON_NO_PERMISSION,
    BlankReason.NOT_FOUND: gpu_pb2.BLANK_REASON_NOT_FOUND,
    BlankReason.NO_DATA: gpu_pb2.BLANK_REASON_NO_DATA,
    BlankReason.READ_ERROR: gpu_pb2.BLANK_REASON_READ_ERROR,
    BlankReason.GPU_LOST: gpu_pb2.BLANK_REASON_GPU_LOST,
    BlankReason.OUT_OF_RANGE: gpu_pb2.BLANK_REASON_OUT_OF_RANGE,
}
STATIC_ORIGINS = {
    StaticOrigin.NVML: gpu_pb2.STATIC_SOURCE_NVML,
    StaticOrigin.CUDA_DRIVER: gpu_pb2.STATIC_SOURCE_CUDA_DRIVER,
    StaticOrigin.DCGM: gpu_pb2.STATIC_SOURCE_DCGM,
    StaticOrigin.RECORDED: gpu_pb2.STATIC_SOURCE_UNSPECIFIED,
}
EVENT_KINDS = {
    GpuEventKind.XID: ingest_pb2.GPU_EVENT_KIND_XID,
    GpuEventKind.LOST: ingest_pb2.GPU_EVENT_KIND_LOST,
    GpuEventKind.RECOVERED: ingest_pb2.GPU_EVENT_KIND_RECOVERED,
    GpuEventKind.CLOCK_STEP: ingest_pb2.GPU_EVENT_KIND_CLOCK_STEP,
}


def inventory_record(inventory: SourceInventory) -> ingest_pb2.Record:
    """Return the record that names the GPUs and columns of the batches after it."""
    return ingest_pb2.Record(
        inventory=ingest_pb2.Inventory(
            gpus=[_gpu(gpu) for gpu in inventory.gpus],
            metrics=[_descriptor(metric, metric.name in inventory.multiplexed) for metric in inventory.metrics],
            source=inventory.source,
            sampling_interval_us=min(round(inventory.interval_s * 1e6), 0xFFFF_FFFF),
        )
    )


def events_record(events: Iterable[GpuEvent]) -> ingest_pb2.Record:
    """Return the record of what happened to GPUs outside their metrics."""
    return ingest_pb2.Record(
        gpu_events=ingest_pb2.GpuEvents(
            events=[
                ingest_pb2.GpuEvent(
                    gpu=event.gpu,
                    time_unix_nano=event.time_unix_nano,
                    kind=EVENT_KINDS[event.kind],
                    value=event.value,
                )
                for event in events
            ]
        )
    )


def source_ended_record(gpus: Iterable[int]) -> ingest_pb2.Record:
    """Return the record that ends the runs of a finite source's GPUs."""
    return ingest_pb2.Record(source_ended=ingest_pb2.SourceEnded(gpus=gpus))


def _gpu(gpu: GpuDescription) -> gpu_pb2.Gpu:
    return gpu_pb2.Gpu(
        gpu_uuid=gpu.gpu_uuid,
        mig_uuid=gpu.mig_uuid,
        gpu_index=gpu.gpu_index,
        pci_bus_id=gpu.pci_bus_id,
        product_name=gpu.product_name,
        framebuffer_bytes=gpu.framebuffer_bytes,
        driver_version=gpu.driver_version,
        static_attributes=[
            gpu_pb2.StaticAttribute(name=a.name, value=a.value, source=STATIC_ORIGINS[a.origin])
            for a in gpu.static_attributes
        ],
        missing_metrics=[
            gpu_pb2.MissingMetric(metric=name, reason=BLANK_REASONS[reason])
            for name, reason in gpu.missing_metrics.items()
        ],
        replayed=gpu.replayed,
    )


def _descriptor(metric: Metric, multiplexed: bool) -> metric_pb2.MetricDescriptor:
    return metric_pb2.MetricDescriptor(
        name=metric.name,
        unit=UNITS[metric.unit],
        kind=KINDS[metric.kind],
        dcgm_field_id=metric.dcgm_field_id or 0,
        multiplexed=multiplexed,
        sampling_class=SAMPLING_CLASSES[metric.sampling_class],
    )
