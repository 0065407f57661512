"""``Otlp``: series and GPUs as OpenTelemetry metrics, to a receiver of OTLP over gRPC.

GPUs are told as the conventions for hardware have them, in the name of their host:
https://opentelemetry.io/docs/specs/semconv/hardware/gpu/. Series keep their names, with dots behind ``gpusonde`` and
what they are about, so that they have the names of ``/metrics`` again where Prometheus stores them.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import grpc
import numpy as np
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.metrics_core import Metric as Family

from gpusonde.collector.push.outgoing import MOST_POINTS, TIMEOUT_S, read_headers
from gpusonde.collector.storage.model import GpuRow
from gpusonde.collector.storage.store import Store
from gpusonde.common.v1.gpu_pb2 import Gpu

_MOST_GPUS = 10_000
_LEAST_WINDOW_NS = 10 * 1_000_000_000  # in which an agent has sent something
_SCHEMA = "https://opentelemetry.io/schemas/1.38.0"
_CUMULATIVE = AggregationTemporality.CUMULATIVE
# It logs every attempt that fails; the pusher says when that begins and ends.
logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class _HardwareMetric:
    """What a metric of ours is in the conventions; ``up_down`` is an UpDownCounter, as sizes are."""

    ours: str
    name: str
    unit: str
    up_down: bool = False
    monotonic: bool = False
    more: tuple[tuple[str, str], ...] = ()


_HARDWARE = (
    _HardwareMetric("gpu_utilization", "hw.gpu.utilization", "1", more=(("hw.gpu.task", "general"),)),
    _HardwareMetric("encoder_utilization", "hw.gpu.utilization", "1", more=(("hw.gpu.task", "encoder"),)),
    _HardwareMetric("decoder_utilization", "hw.gpu.utilization", "1", more=(("hw.gpu.task", "decoder"),)),
    _HardwareMetric("framebuffer_used_bytes", "hw.gpu.memory.usage", "By", up_down=True),
    _HardwareMetric("power_watts", "hw.power", "W"),
    _HardwareMetric("energy_joules", "hw.energy", "J", monotonic=True),
    _HardwareMetric("xid_count", "hw.errors", "{error}", monotonic=True, more=(("error.type", "xid"),)),
)
_OURS = tuple(each.ours for each in _HARDWARE)


class Otlp:
    """Makes requests for one receiver.

    Args:
        endpoint: ``http://host:port`` or ``https://host:port``.
        headers_file: File of headers; empty for none.
        store: Where GPUs and their samples are.
        interval_s: Between two times, over which GPUs are averaged.
        instance: Name of this collector.
        version: Its version.
        start_unix_nano: Since when counters count.
    """

    def __init__(
        self,
        endpoint: str,
        headers_file: str,
        store: Store,
        interval_s: float,
        instance: str,
        version: str,
        start_unix_nano: int,
    ) -> None:
        self._endpoint = endpoint
        self._headers_file = headers_file
        self._store = store
        self._window_ns = max(round(interval_s * 1e9), _LEAST_WINDOW_NS)
        self._start = start_unix_nano
        self._own = Resource(
            {"service.name": "gpusonde-collector", "service.instance.id": instance, "service.version": version}
        )
        self._scope = InstrumentationScope("gpusonde", version)
        self._headers: dict[str, str] | None = None
        self._exporter: OTLPMetricExporter | None = None

    def batches(self, families: Sequence[Family], now_unix_nano: int) -> Sequence[OtlpBatch]:
        """Return the series in the name of the collector, and the GPUs of each host in the name of the host.

        Raises:
            OSError: The headers cannot be read.
            StoreError: The store cannot be read.
        """
        exporter = self._connected(read_headers(self._headers_file))
        told = [(self._own, "", list(self._families(families, now_unix_nano)))]
        for host, metrics in self._hosts(now_unix_nano).items():
            told.append((Resource({"host.name": host} if host else {}), _SCHEMA, metrics))
        return [
            OtlpBatch(
                exporter,
                MetricsData([ResourceMetrics(resource, [ScopeMetrics(self._scope, piece, schema)], schema)]),
                sum(_points(metric) for metric in piece),
            )
            for resource, schema, metrics in told
            for piece in _pieces(metrics)
        ]

    def close(self) -> None:
        """End an attempt that goes on."""
        if self._exporter is not None:
            self._exporter.shutdown()

    def _connected(self, headers: dict[str, str]) -> OTLPMetricExporter:
        if self._exporter is None or headers != self._headers:
            self.close()
            insecure = self._endpoint.startswith("http://")
            lower = {name.lower(): value for name, value in headers.items()}
            self._exporter = OTLPMetricExporter(self._endpoint, insecure, headers=lower, timeout=TIMEOUT_S)
            self._headers = headers
        return self._exporter

    def _families(self, families: Sequence[Family], now: int) -> Iterator[Metric]:
        for family in families:
            name, unit = family.name.replace("_", ".", 2), _unit(family.name)
            if family.type == "histogram":
                data: Gauge | Sum | Histogram = Histogram([self._histogram(family, now)], _CUMULATIVE)
            else:
                points = [
                    NumberDataPoint(sample.labels, self._start if family.type == "counter" else 0, now, sample.value)
                    for sample in family.samples
                    if not math.isnan(sample.value)
                ]
                if not points:
                    continue
                is_counter = family.type == "counter"
                data = Sum(points, _CUMULATIVE, is_monotonic=True) if is_counter else Gauge(points)
            yield Metric(name, family.documentation, unit, data)

    def _histogram(self, family: Family, now: int) -> HistogramDataPoint:
        reached = [(float(s.labels["le"]), int(s.value)) for s in family.samples if s.name.endswith("_bucket")]
        total = next(sample.value for sample in family.samples if sample.name.endswith("_sum"))
        counts = np.diff([0, *(count for _, count in reached)]).tolist()
        bounds = [bound for bound, _ in reached if math.isfinite(bound)]
        return HistogramDataPoint(
            {}, self._start, now, reached[-1][1], total, counts, bounds, min=math.nan, max=math.nan
        )

    def _hosts(self, now: int) -> dict[str, list[Metric]]:
        """Host -> the metrics of its GPUs, of those that were sampled lately."""
        followed = {gpu_uuid for _, gpu_uuid in self._store.followed()}
        points: dict[str, dict[_HardwareMetric, list[NumberDataPoint]]] = defaultdict(lambda: defaultdict(list))
        limits: dict[str, list[NumberDataPoint]] = defaultdict(list)
        for row in self._store.facts.gpus()[:_MOST_GPUS]:
            described = Gpu.FromString(row.message)
            if row.gpu_uuid not in followed or described.replayed:
                continue
            names = [name for name in _OURS if name in row.metrics]
            samples = self._store.samples.read(row.gpu_uuid, now - self._window_ns, now, names)
            if not len(samples):
                continue
            at, about = int(samples.time_unix_nano[-1]), _attributes(row, described)
            for known in _HARDWARE:
                column = samples.columns.get(known.ours)
                valid = column[np.isfinite(column)] if column is not None else np.empty(0)
                if valid.size:
                    value = float(valid[-1] if known.monotonic or known.up_down else valid.mean())
                    start = self._start if known.monotonic else 0
                    point = NumberDataPoint({**about, **dict(known.more)}, start, at, value)
                    points[row.host_name][known].append(point)
            if described.framebuffer_bytes:
                limits[row.host_name].append(NumberDataPoint(about, 0, at, described.framebuffer_bytes))
        found = {host: [_hardware(known, of) for known, of in by.items()] for host, by in points.items()}
        for host, sizes in limits.items():
            total = Sum(sizes, _CUMULATIVE, is_monotonic=False)
            found.setdefault(host, []).append(Metric("hw.gpu.memory.limit", "", "By", total))
        return found


@dataclass(frozen=True)
class OtlpBatch:
    """One request."""

    exporter: OTLPMetricExporter
    data: MetricsData
    points: int

    def __len__(self) -> int:
        return self.points

    def send(self) -> None:
        """Send it.

        Raises:
            OSError: It was not taken.
        """
        try:
            result = self.exporter.export(self.data)
        except (grpc.RpcError, ValueError) as error:  # so gRPC calls a channel that was closed
            raise OSError(str(error)) from error
        if result is not MetricExportResult.SUCCESS:
            raise OSError("no OTLP receiver takes it there")


def _attributes(row: GpuRow, described: Gpu) -> dict[str, str]:
    known = {
        "hw.id": row.gpu_uuid,
        "hw.type": "gpu",
        "hw.name": f"GPU {described.gpu_index}",
        "hw.vendor": "NVIDIA",
        "hw.model": described.product_name,
        "hw.driver_version": described.driver_version,
    }
    return {name: value for name, value in known.items() if value}


def _hardware(known: _HardwareMetric, points: list[NumberDataPoint]) -> Metric:
    data = Sum(points, _CUMULATIVE, known.monotonic) if known.monotonic or known.up_down else Gauge(points)
    return Metric(known.name, "", known.unit, data)


def _unit(name: str) -> str:
    units: Mapping[str, str] = {"_seconds": "s", "_bytes": "By", "_ratio": "1"}
    return next((unit for suffix, unit in units.items() if name.endswith(suffix)), "")


def _points(metric: Metric) -> int:
    return len(metric.data.data_points)


def _pieces(metrics: Sequence[Metric]) -> Iterator[list[Metric]]:
    """Cut metrics into messages; one metric alone may have more points than a message should."""
    piece: list[Metric] = []
    for metric in metrics:
        if piece and sum(map(_points, piece)) + _points(metric) > MOST_POINTS:
            yield piece
            piece = []
        piece.append(metric)
    if piece:
        yield piece
